"""Protocol ``blackwell``: Megatron steps on eight B200s with their memory, blind and calibrated.

Every run is asked as a user asks (``asked_runs``), with constants fitted without this table. After
three rows (smallest, middle and largest by step), constants and the device's times move as they
do for a user's own runs (``advisor runs actual``). Memory is PyTorch's largest allocation: the
model's tensors without context and slack.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from advisor.planners.memory.equations import MemoryConstants
from advisor.train import blackwell_rows
from advisor.train.asked_rows import columns_of
from advisor.validation.asked_layouts import measured_layouts, memory_bytes
from advisor.validation.asked_runs import ask, scored
from advisor.validation.layouts import hardware_flop
from advisor.validation.own_layouts import asked_after, calibrated
from advisor.validation.scores import THE_PRODUCT, Group, Validation, score
from advisor.ways.layout_model import load

# PyTorch's own count of tensors: no context, no fragments, no second process.
_TENSORS: Final = MemoryConstants(context_bytes=0.0, slack=1.0)
_EFFICIENCY: Final = "one efficiency from three rows"
NOTES: Final = (
    "blind: constants fitted without this table; how Megatron keeps rotated queries and logits "
    "was counted from its source with these readings in sight",
    "three rows: the shortest, the middle and the longest step are a user's own runs (advisor "
    "runs actual), the others are scored",
    "SimuMax measured this machine's operators first; its figures are its own",
)
SEEN: Final = (
    "how Megatron keeps rotated queries and logits: counted from its source with these readings "
    "in sight",
    "the centres and widths of the layout model's priors: chosen on other tables",
)


def run(data: Path) -> Validation:
    """Score the layout model on ``measurements/blackwell`` under ``data``."""
    runs, allocated, left_out = blackwell_rows.read(data)
    rows = columns_of(runs)
    parameters = load().without(blackwell_rows.TABLE)
    answers = ask(runs, parameters)
    measured = rows.measured_s
    order = np.argsort(measured, kind="stable")
    known = order[[0, order.size // 2, -1]]
    rest = np.setdiff1d(np.arange(len(rows)), known)
    asked = measured_layouts(rows, parameters)
    own = calibrated([asked[i] for i in known], load())
    answers_after = np.array([asked_after(asked[i], own)[0] for i in rest])
    after = score(answers_after, measured[rest])
    tensors = memory_bytes(rows, replace(_TENSORS))
    memory = score(tensors, allocated)
    bound = hardware_flop(rows) / np.asarray(rows.machines.flop_per_s)
    efficiency = np.exp(np.mean(np.log(measured[known] / bound[known])))
    return Validation(
        protocol="blackwell",
        description="Megatron steps on eight B200s, the table left out, and their memory",
        overall=scored(answers, runs, np.ones(len(runs), dtype=bool)),
        groups=[
            Group(group="step after three rows", scores=after),
            Group(group="memory, blind", scores=memory),
        ],
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        baselines={_EFFICIENCY: score(efficiency * bound[rest], measured[rest])},
        beside={_EFFICIENCY: after},
        figures={
            "memory, largest error": float(np.max(np.abs(tensors / allocated - 1))),
            "rows with latent attention, not asked": float(left_out),
        },
        notes=NOTES,
    )
