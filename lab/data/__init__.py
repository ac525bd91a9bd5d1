"""Published measurements: who made them, where they lie, and one reader for each.

What ships lies in ``datasets/measurements`` in our form (``PublishedTable``, ``Collection``); a
folder laid out like ``shared/data``, or a table of the published form, is turned into it while it
is read.
"""

from __future__ import annotations

from typing import Final

from advisor.lab.data.dataset import Dataset
from advisor.lab.data.runs import (
    CAMPAIGNS,
    ESCRA,
    FAILURES,
    HELIOS,
    HIVEMIND,
    IBM,
    POLLUX_QUEUE,
    PROFET,
    SCOUT,
    SPOT,
    STRAGGLERS,
    TIRESIAS,
    TRAINPRED,
)
from advisor.lab.data.steps import (
    BLACKWELL,
    COLLECTIVES,
    FINETUNE,
    GAVEL,
    LAMBDA,
    LAYERS,
    LAYOUTS,
    MIXTURES,
    MLPERF,
    NEUSIGHT,
    NVIDIA_EXAMPLES,
    PARCAE,
    POLLUX,
    RECORDED,
    SIA,
)  # fmt: skip

ALL: Final = (
    MLPERF, LAYOUTS, LAYERS, COLLECTIVES, NEUSIGHT, GAVEL, NVIDIA_EXAMPLES, PARCAE, FAILURES,
    STRAGGLERS, ESCRA, CAMPAIGNS, FINETUNE, BLACKWELL, MIXTURES, RECORDED, PROFET, TRAINPRED,
    SCOUT, IBM, POLLUX, TIRESIAS, POLLUX_QUEUE, HELIOS, LAMBDA, SIA, SPOT, HIVEMIND,
)  # fmt: skip
BY_NAME: Final = {one.name: one for one in ALL}

__all__ = [
    "ALL", "BLACKWELL", "BY_NAME", "CAMPAIGNS", "COLLECTIVES", "ESCRA", "FAILURES", "FINETUNE",
    "GAVEL", "HELIOS", "HIVEMIND", "IBM", "LAMBDA", "LAYERS", "LAYOUTS", "MIXTURES", "MLPERF",
    "NEUSIGHT", "NVIDIA_EXAMPLES", "PARCAE", "POLLUX", "POLLUX_QUEUE", "PROFET", "RECORDED",
    "SCOUT", "SIA", "SPOT", "STRAGGLERS", "TIRESIAS", "TRAINPRED", "Dataset",
]  # fmt: skip
