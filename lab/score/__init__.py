"""Scores against published measurements: protocols as data, one harness, one library of rules.

``PROTOCOLS`` names every protocol, where it is and what it asks. Measurements are laid out like
``shared/data``, so that the same protocol scores any table of the same form.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from advisor.lab.score.harness import Protocol, Validation

__all__ = ["ON_OUR_RUNS", "PROTOCOLS", "SAMPLED", "SHIPPED", "load", "run"]

# Protocol, module:name, the question that it answers.
_TABLE: Final = """
typed typed:TYPED What does the command say to lines as people type them?
spot spot:FINISH When a 10 h job on spot nodes ends: second halves of traces from first.
spot-plan spot:PLAN What does a job on spot nodes pay by a deadline, over the least?
queue clusters:QUEUE Completion times of jobs on a shared cluster, against Tiresias.
availability clusters:AVAILABILITY How long is a job on chosen nodes of a shared cluster?
failures clusters:FAILURE What do saves, restarts and faults cost?
instance described:INSTANCE How long does a profiled job take on an unseen instance type?
described described:DESCRIBED How long is a job that was never run, on an unseen device?
recorded recorded:RECORDED How long is a recorded script's step on a GPU that it never saw?
neusight described:NEUSIGHT_STEPS How long is a described model's step on an unseen device?
layers described:LAYER How long is a transformer layer on an unseen GPU?
layouts layouts:LAYOUT_STEPS How long does a step of a transformer take in a given layout?
mixed mixed:MIXED How long is a step over unlike machines, in a given layout?
pipeline transformers:PIPELINE How long is a step on more GPUs, given own runs on few?
finetune transformers:FINETUNE How long does a step of a fine-tuning run take?
blackwell transformers:BLACKWELL How long is a step of Megatron on B200s?
gpu devices:GPU How fast are known jobs on an unseen GPU?
gpu-mlperf devices:GPU_MLPERF How fast are MLPerf's jobs on an unseen accelerator?
job devices:JOB How long is a step of a known job, on a GPU that it was never on?
series-mlperf scaling:SERIES_MLPERF How fast is a larger system, given the smallest?
campaigns runs:CAMPAIGN How many GPU-hours does a whole training run take?
series scaling:SERIES How long does a run take, given its first minute?
cluster scaling:CLUSTER How fast are several nodes, given each alone?
own runs:OWN How long do our own runs take, their program unseen?
minutes minutes:MINUTES How long is a job of about a minute, known from a twentieth of it?
thesis runs:THESIS Cost and time on a random split, as the Nazari thesis judged them.
ranking runs:RANKING Which configuration is cheapest for an unseen job?
scaling scaling:SCALING How long is a step on more than four GPUs, knowing four?
scaling-nominal scaling:NOMINAL The same, knowing one GPU and the links as sold?
colocation clusters:COLOCATION How fast are two jobs on one GPU, known from other pairs?
memory memory:PROTOCOL How much memory does a device take, and which runs run out of it?
"""
PROTOCOLS: Final[dict[str, tuple[str, str]]] = {
    name: (place, question)
    for name, place, question in (line.split(" ", 2) for line in _TABLE.strip().splitlines())
}
# Model folders as they ship, on the rows that ship: what the gate holds still, and no table shows.
SHIPPED: Final[dict[str, str]] = {
    "shipped/device_model": "shipped:DEVICE",
    "shipped/layout_model": "shipped:LAYOUT",
    "shipped/memory": "shipped:MEMORY",
    "shipped/scaling": "shipped:SCALING",
    "shipped/campaign": "shipped:WHOLE_RUNS",
}
# A few rows of the protocols that take minutes: what the quick gate runs of them.
SAMPLED: Final[dict[str, str]] = {
    "sampled/described": "sampled:DESCRIBED",
    "sampled/job": "sampled:JOBS",
    "sampled/own": "sampled:SECONDS",
    "sampled/minutes": "sampled:LONGER",
    "sampled/thesis": "sampled:SPLIT",
}
# Protocols on the runs that come with the package.
ON_OUR_RUNS: Final = ("own", "minutes", "thesis", "campaigns")


def load(name: str) -> Protocol:
    """Return a protocol, a sample of one, or the check of a shipped folder.

    Raises KeyError if there is none of that name.
    """
    held = SHIPPED | SAMPLED
    place = held[name] if name in held else PROTOCOLS[name][0]
    module, _, attribute = place.partition(":")
    found: Protocol = getattr(importlib.import_module(f"advisor.lab.score.{module}"), attribute)
    return found


def run(protocol: str, data: Path, *, is_blind: bool = False) -> Validation:
    """Score the product on one protocol's rows of the measurements under ``data``.

    ``is_blind`` also fits and chooses again without the scored group whatever the protocol does
    not leave it out of (``Validation.blind``).

    Raises KeyError if there is no such protocol.
    """
    from advisor.lab.score import harness

    return harness.run(load(protocol), data, is_blind=is_blind)
