"""Score the models against published measurements: one protocol a file.

``PROTOCOLS`` names every protocol, where it lives and what it asks. A protocol module has one
function ``run(data: Path) -> Validation``; ``data`` is laid out like ``shared/data``, so that the
same protocol scores any table of the same form. Where the scored group has a part in something
that can be fitted or chosen again without it, ``blind(data, shipped) -> Blind`` does that.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Final

from advisor.validation.scores import Blind, Group, Scores, Validation, score

__all__ = [
    "ON_OUR_RUNS", "PROTOCOLS", "Blind", "Group", "Scores", "Validation", "run", "score",
]  # fmt: skip

# Protocol -> (module, the question it answers).
PROTOCOLS: Final[dict[str, tuple[str, str]]] = {
    "spot": ("spot", "When a 10 h job on spot nodes ends: second halves of traces from first."),
    "spot-plan": ("spot_plan", "What does a job on spot nodes pay by a deadline, over the least?"),
    "queue": ("queue", "Completion times of jobs on a shared cluster, against Tiresias."),
    "availability": ("availability", "How long is a job on chosen nodes of a shared cluster?"),
    "failures": ("failures", "What do saves, restarts and faults cost?"),
    "instance": ("instance", "How long does a profiled job take on an unseen instance type?"),
    "described": ("described", "How long is a job that was never run, on an unseen device?"),
    "neusight": ("neusight", "How long is a described model's step on an unseen device?"),
    "layers": ("layers", "How long is a transformer layer on an unseen GPU?"),
    "layouts": ("layouts", "How long does a step of a transformer take in a given layout?"),
    "pipeline": ("pipeline", "How long is a step on more GPUs, given own runs on few?"),
    "finetune": ("finetune", "How long does a step of a fine-tuning run take?"),
    "blackwell": ("blackwell", "How long is a step on B200s, and how much memory does it take?"),
    "gpu": ("gpu", "How fast are known jobs on an unseen GPU?"),
    "gpu-mlperf": ("gpu_mlperf", "How fast are MLPerf's jobs on an unseen accelerator?"),
    "job": ("job", "How long is a step of a known job, on a GPU that it was never on?"),
    "series-mlperf": ("series_mlperf", "How fast is a larger system, given the smallest?"),
    "campaigns": ("campaigns", "How many GPU-hours does a whole training run take?"),
    "series": ("series", "How long does a run take, given its first minute?"),
    "cluster": ("cluster", "How fast are several nodes, given each alone?"),
    "own": ("own", "How long do our own runs take, their program unseen?"),
    "minutes": ("minutes", "How long is a job of about a minute, known from a twentieth of it?"),
    "thesis": ("thesis", "Cost and time on a random split, as the Nazari thesis judged them."),
    "ranking": ("ranking", "Which configuration is cheapest for an unseen job?"),
    "scaling": ("scaling", "How long is a step on more than four GPUs, knowing four?"),
    "scaling-nominal": ("scaling_nominal", "The same, knowing one GPU and the links as sold?"),
    "colocation": ("colocation", "How fast are two jobs on one GPU, known from other pairs?"),
    "oom": ("oom", "How much memory does a layout take, and which runs run out of it?"),
}
# Protocols on the runs that come with the package.
ON_OUR_RUNS: Final = ("own", "minutes", "thesis", "campaigns")


def run(protocol: str, data: Path, *, is_blind: bool = False) -> Validation:
    """Score one protocol on the measurements under ``data``.

    Parameters
    ----------
    protocol : str
    data : Path
    is_blind : bool
        Also fit and choose again without the scored group whatever the protocol does not leave it
        out of (``Validation.blind``).

    Raises
    ------
    KeyError
        If there is no such protocol.
    """
    module = importlib.import_module(f"advisor.validation.{PROTOCOLS[protocol][0]}")
    result: Validation = module.run(data)
    if not is_blind:
        return result
    if hasattr(module, "blind"):
        return replace(result, blind=module.blind(data, result))
    same = Blind(overall=result.overall, groups=result.groups, still_seen=result.seen)
    return replace(result, blind=same)
