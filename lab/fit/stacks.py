"""Published steps of PyTorch-native stacks, by release, as questions (``lab.data.STACKS``).

A row is asked where it states model, batch and micro-batch, and its software is a stack of ours:

- torchao's benchmarks and NVFP4's pages run torchtitan: FSDP2 over all ranks (ZeRO 3), compiled,
  every second product recomputed unless the page says nothing of it and nothing less fits.
- nanochat is a loop of its own: compiled, every rank the whole model, nothing recomputed (its
  optimizer is Muon, sharded, which is taken for AdamW).
- Primus' DDP rows are Megatron Core on ROCm.

Left out: llm.c (hand-written kernels: no stack), modded-nanogpt (batch and attention windows
change while it runs, dimensions read by pattern), hours without steps, AMD rows without a batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from advisor.errors import ModelError
from advisor.jobs.model_facts import restacked
from advisor.lab.data import STACKS
from advisor.lab.fit.asked import AskedRun
from advisor.planners.core.errors import bytes_per_s
from advisor.planners.core.nouns import Layout, Recompute
from advisor.planners.core.setup import DEFAULT_SETUP, Precision, Transformer

# Not stated and not used but for Primus' eight machines: eight interfaces of 400 Gbit/s.
_NETWORK_BYTES_PER_S: Final = bytes_per_s(3200)
# Boards under a limit of power that nobody states: their gain of low precision is of the stack,
# their rate is of the limit.
LIMITED: Final = "torchao, power limited"
# Row-wise scales cost torchao most of the gain; no flag says them.
ROW_WISE: Final = "rowwise"
_GPUS: Final = {
    "H100-80GB": "H100-SXM5-80GB", "B200": "B200-SXM-180GB", "MI300X": "MI300X",
    "MI325X": "MI325X",
    # Four a host, 184 GiB each: NVFP4's page does not say more.
    "Blackwell, about 184 GiB (B200 or GB200, unsaid)": "GB200-186GB",
}  # fmt: skip
# Source of a row -> its table, the stack as its user would name it, and what it recomputes.
# torchtitan 0.0.2 is what torchao's page names for its H100s, which are Meta's (2.4 TB/s in
# torchao/testing/training/roofline_utils.py), as torchtitan's; of the others the day.
_ASKED: Final[dict[str, tuple[str, str, Recompute]]] = {
    "docs/source/workflows/training.md": ("torchao", "torchtitan@0.1.0", "selective"),
    "torchtitan/components/quantization/nvfp4.md": ("nvfp4", "torchtitan@0.2.2", "selective"),
    "dev/LOG.md": ("nanochat", "ddp-compiled", "none"),
    "dev/LEADERBOARD.md": ("nanochat", "ddp-compiled", "none"),
    "docs_deprecated/tech_blogs/projection/projection.md": ("primus", "megatron-core", "none"),
}
_H100_OF_TORCHAO: Final = ("torchtitan@0.0.2", "H100-96GB-HBM2e-500W")


def stacks_read(data: Path) -> tuple[list[AskedRun], int]:
    """Read the rows under ``data`` that can be asked, and how many cannot.

    Raises ModelError if a table is missing or damaged.
    """
    tables = [STACKS.read(name, data).to_dict("records") for name in ("steps", "amd")]
    rows = [row for table in tables for row in table]
    try:
        runs = [_run(row) for row in rows if _is_asked(row)]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"cannot read {STACKS.title}: {error}", hint="name a folder laid out like shared/data"
        ) from error
    return runs, len(rows) - len(runs)


def _is_asked(row: dict[Any, Any]) -> bool:
    known = all(row[name] == row[name] for name in ("layers", "micro_batch", "sequence"))
    return row["path"] in _ASKED and row["accelerator"] in _GPUS and known and not _is_unsaid(row)


def _is_unsaid(row: dict[Any, Any]) -> bool:
    """Whether Primus' row is of FSDP: by which of its backends it does not say."""
    return str(row["stack"]).startswith("Primus") and str(row["layout"]) != "ddp"


def _run(row: dict[Any, Any]) -> AskedRun:
    table, stack, recompute = _ASKED[row["path"]]
    words, devices = str(row["precision"]), int(row["accelerators"])
    gpu = _GPUS[row["accelerator"]]
    if table == "torchao" and row["accelerator"].startswith("H100"):
        stack, gpu = _H100_OF_TORCHAO
    nodes = int(row["nodes"])
    micro, sequence = int(row["micro_batch"]), int(row["sequence"])
    batch = micro * devices
    if row.get("tokens_per_step", 0.0) > 0:
        batch = round(row["tokens_per_step"] / sequence)
    measured = row["step_s"]
    if not measured > 0:
        measured = batch * sequence / devices / row["tokens_per_s_per_accelerator"]
    is_replicated = stack in ("ddp-compiled", "megatron-core")
    return AskedRun(
        row_id=row["row"],
        table=LIMITED if "power limited" in words else table,
        model=row["model"],
        gpu=gpu,
        transformer=_transformer(row),
        setup=restacked(DEFAULT_SETUP, {"stack": stack}),
        precision=_precision(words),
        layout=Layout(
            dp=devices, micro_batch=micro, accumulation_steps=max(batch // (devices * micro), 1),
            zero_stage=0 if is_replicated else 3, recompute=recompute,
        ),
        per_node=devices // nodes,
        network_bytes_per_s=_NETWORK_BYTES_PER_S,
        measured_s=float(measured),
        stack=stack,
    )  # fmt: skip


def _transformer(row: dict[Any, Any]) -> Transformer:
    heads, kv_heads = int(row["heads"]), row["kv_heads"]
    names = ("layers", "hidden", "ffn", "vocabulary", "sequence")
    sizes: dict[str, Any] = {name: int(row[name]) for name in names}
    return Transformer(
        **sizes, heads=heads,
        kv_heads=int(kv_heads) if kv_heads == kv_heads else heads,
        is_gated=row["is_gated"] == 1, has_tied_embeddings=False,
    )  # fmt: skip


def _precision(words: str) -> Precision:
    if "nvfp4" in words:
        return "fp4"
    return "fp8" if words.startswith(("fp8", "mxfp8")) else "bf16"
