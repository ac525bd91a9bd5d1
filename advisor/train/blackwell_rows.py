"""Megatron steps on one node of eight B200 (``measurements.BLACKWELL``).

Megatron Core with Transformer Engine: kernels fused by hand, fp32 gradients, the distributed
optimizer, and no overlap of the gradients' reduction. ``allocated_gib`` is PyTorch's largest
allocation on the fullest rank: no context, no fragments. Rows with latent attention (DeepSeek) are
left out: no question describes its products.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.errors import ModelError
from advisor.lab.data import BLACKWELL
from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.nouns import Layout, TrainingSetup, Transformer
from advisor.planners.core.units import GIB, bytes_per_s
from advisor.train.asked_rows import AskedRun

TABLE: Final = "blackwell"
SETUP: Final = TrainingSetup(kernels="fused", overlaps=False)
# Not stated and not used: one node.
_NETWORK_BYTES_PER_S: Final = bytes_per_s(3200)


def read(data: Path) -> tuple[list[AskedRun], Floats, int]:
    """Read the steps under ``data``.

    Raises ModelError if the table is missing or damaged.

    Returns
    -------
    allocated_bytes : array
        Measured on the fullest rank. [bytes]
    """
    try:
        rows = BLACKWELL.read("steps", data).to_dict("records")
        kept = [row for row in rows if row["attention"] == "gqa" and int(row["experts"]) == 1]
        runs = [_run(row) for row in kept]
        allocated = np.array([float(row["allocated_gib"]) * GIB for row in kept])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"cannot read {BLACKWELL.title}: {error}",
            hint="name a folder laid out like shared/data",
        ) from error
    return runs, allocated, len(rows) - len(kept)


def _run(row: dict[Any, Any]) -> AskedRun:
    tp = int(row["tp"])
    return AskedRun(
        row_id=row["case"],
        table=TABLE,
        model=row["model"],
        gpu=row["accelerator"],
        transformer=Transformer(
            layers=int(row["layers"]),
            hidden=int(row["hidden"]),
            heads=int(row["heads"]),
            kv_heads=int(row["kv_heads"]),
            ffn=int(row["ffn"]),
            sequence=int(row["sequence"]),
            vocabulary=int(row["vocabulary"]),
            is_gated=True,
            has_tied_embeddings=False,
        ),
        setup=SETUP,
        precision="bf16",
        layout=Layout(
            dp=int(row["dp"]),
            tp=tp,
            pp=int(row["pp"]),
            micro_batch=int(row["micro_batch"]),
            accumulation_steps=int(row["micro_batches"]),
            zero_stage=int(row["zero_stage"]) if int(row["dp"]) > 1 else 0,
            recompute="none",
            is_sequence_parallel=tp > 1,
        ),
        per_node=int(row["accelerators"]),
        network_bytes_per_s=_NETWORK_BYTES_PER_S,
        measured_s=float(row["step_s"]),
    )
