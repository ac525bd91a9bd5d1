"""Published measurements: who made them, where they lie, and one reader for each.

Every protocol and every fit reads its measurements here. What ships lies in
``datasets/measurements`` in our form (``PublishedTable``, ``Collection``); a folder laid out like
``shared/data``, or a table of the published form, is turned into it while it is read.
"""

from __future__ import annotations

from typing import Final

from advisor.measurements.campaigns import CAMPAIGNS
from advisor.measurements.collectives import COLLECTIVES
from advisor.measurements.dataset import Dataset
from advisor.measurements.failures import FAILURES
from advisor.measurements.fetched import HIVEMIND, SPOT
from advisor.measurements.finetuning import BLACKWELL, FINETUNE
from advisor.measurements.layers import LAYERS
from advisor.measurements.layouts import LAYOUTS
from advisor.measurements.limits import ESCRA
from advisor.measurements.mlperf import MLPERF
from advisor.measurements.parcae import PARCAE
from advisor.measurements.queueing import HELIOS, POLLUX_QUEUE, TIRESIAS
from advisor.measurements.runs import IBM, PROFET, SCOUT, TRAINPRED
from advisor.measurements.scaling import POLLUX, SIA
from advisor.measurements.stragglers import STRAGGLERS
from advisor.measurements.suites import GAVEL, LAMBDA, NEUSIGHT, NVIDIA_EXAMPLES

ALL: Final = (
    MLPERF, LAYOUTS, LAYERS, COLLECTIVES, NEUSIGHT, GAVEL, NVIDIA_EXAMPLES, PARCAE, FAILURES,
    STRAGGLERS, ESCRA, CAMPAIGNS, FINETUNE, BLACKWELL, PROFET, TRAINPRED, SCOUT, IBM, POLLUX,
    TIRESIAS, POLLUX_QUEUE, HELIOS, LAMBDA, SIA, SPOT, HIVEMIND,
)  # fmt: skip
BY_NAME: Final = {one.name: one for one in ALL}


__all__ = [
    "ALL", "BLACKWELL", "BY_NAME", "CAMPAIGNS", "COLLECTIVES", "ESCRA", "FAILURES", "FINETUNE",
    "GAVEL", "HELIOS", "HIVEMIND",
    "IBM", "LAMBDA", "LAYERS", "LAYOUTS", "MLPERF", "NEUSIGHT", "NVIDIA_EXAMPLES", "PARCAE",
    "POLLUX", "POLLUX_QUEUE", "PROFET", "SCOUT", "SIA", "SPOT", "STRAGGLERS", "TIRESIAS",
    "TRAINPRED", "Dataset",
]  # fmt: skip
