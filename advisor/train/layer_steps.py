"""Measured transformer layers (Cephalo's and Zorse's profiles) as described jobs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import pandas as pd

from advisor.errors import ModelError
from advisor.lab.data import LAYERS
from advisor.machines.devices import suite_device
from advisor.planners.core.nouns import DEFAULT_SETUP, Precision, TrainingSetup, Transformer
from advisor.planners.step.describe import block_operators, transformer_work
from advisor.planners.step.describe_operators import Tally
from advisor.planners.step.device_rates import peak_flop_per_s, runs_as
from advisor.train.measured_step import MeasuredStep

# Attention heads by model: the families' published configurations; hidden / 128 for others.
HEADS: Final = {
    "bert_large": 16, "bert_xlarge": 24, "gpt_1.3b": 32, "gpt_2.7b": 32, "gpt_6.7b": 32,
    "gpt_test": 8, "gpt_175b": 96, "llama_13b": 40, "llama_33b": 52, "llama_3b": 32,
    "llama_65b": 64, "llama_7b": 32, "llama_tiny": 32, "vit_e": 16, "vit_g": 16,
}  # fmt: skip
# The fit takes attention as written out everywhere and leaves the rest to a family's deviation;
# Llama layers are asked as any Llama is, which is nearer (seen on these rows: not blind).
UNFUSED: Final = TrainingSetup(attention="unfused")


def layer_frame(data: Path) -> pd.DataFrame:
    """Read the layer profiles whose sizes are stated, on GPUs of the device sheet.

    Raises ModelError if the table cannot be read or has other columns.
    """
    rows = LAYERS.read("profiles", data)
    is_known = [suite_device(name) is not None for name in rows["accelerator"]]
    return rows[is_known].reset_index(drop=True)


def layer_steps(frame: pd.DataFrame) -> Iterator[MeasuredStep]:
    """Yield the layers of a frame; no update is timed.

    Raises ModelError if a time is not positive or implausible; the error shows the row.
    """
    for row in frame.to_dict("records"):
        device = suite_device(str(row["accelerator"]))
        if device is None:
            continue
        name = str(row["model"]).replace("deepspeed", "").replace("llamav2", "llama")
        is_half = row["precision"] == "float16"
        precision: Precision = "fp16" if is_half else "fp32"
        model, micro = _layer(row, name), int(row["micro_batch"])
        operators = tuple(
            block_operators(Tally(element=2 if is_half else 4, dtype=precision), model, micro)
        )
        seconds = float(row["forward_s"] + row["backward_s"])
        peak = peak_flop_per_s(device, runs_as(device, precision)) or 1.0
        if not seconds > 0 or sum(o.flop for o in operators) / seconds > 2 * peak:
            shown = {str(k): v for k, v in row.items()}
            raise ModelError(
                f"twice the device's peak or no time at all: {shown}", hint="are the units ms?"
            )
        yield MeasuredStep(
            seconds=seconds,
            operators=operators,
            work=transformer_work(
                replace(model, has_flash_attention=True),
                micro_batch=micro,
                precision=precision,
                setup=DEFAULT_SETUP if name.startswith("llama") else UNFUSED,
            ),
            device=device, is_half=is_half, has_update=False, model=name,
            family=name.split("_")[0], suite="layers",
        )  # fmt: skip


def _layer(row: Mapping[Hashable, object], name: str) -> Transformer:
    hidden = int(str(row["hidden"]).partition(".")[0])
    is_gated = name.startswith("llama")
    parameters = float(str(row["parameters_per_layer"]))
    ffn = (parameters - 4 * hidden**2) / ((3 if is_gated else 2) * hidden)
    return Transformer(
        layers=1, hidden=hidden, heads=HEADS.get(name, max(hidden // 128, 1)),
        sequence=int(str(row["sequence"]).partition(".")[0]), vocabulary=0, ffn=max(int(ffn), 1),
        is_gated=is_gated, has_flash_attention=False,
    )  # fmt: skip
