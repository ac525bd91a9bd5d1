"""What failures, saves and restarts cost, against what was published of them.

- Parcae's restarts (V100, 10 Gb/s) on 12 to 32 nodes: what ``simulate spot`` takes for them, a
  root law after removals and one value after additions. Both were fitted on all of them;
  ``--blind`` fits them again on up to 8 nodes.
- BigScience's saves: 25 and 181 billion parameters in 18 to 20 s on 8 and 64 nodes.
- THORN's ResNet101: accuracy stands still for about 13 minutes after one fault; a checkpoint every
  10 epochs of up to 80 s, the fault just before one, replayed.
- Llama 3's table: interruptions an hour on 16,384 GPUs, the most that one may cost for "over 90 %
  effective" training time, and what the model expects at a checkpoint every 10 minutes and a
  restart of 12.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from advisor.lab.data import FAILURES, PARCAE
from advisor.planners.core.units import HOUR_S
from advisor.planners.goodput.checkpoints import (
    BYTES_PER_PARAMETER,
    NODE_BYTES_PER_S,
    RESTART_AFTER_ADDITION_S,
    restart_after_removal_s,
    save_s,
)
from advisor.planners.goodput.goodput import EdgeFaultTolerance, expected_completion
from advisor.planners.spot.availability import Column, Spells, SpotJob, replay
from advisor.validation.scores import THE_PRODUCT, Blind, Group, Validation, score

LEARNT_NODES: Final = 8
REMOVAL: Final = "Parcae, restart after a removal"
ADDITION: Final = "Parcae, restart after an addition"
# BigScience's notes: parameters, nodes, the middle of 18 to 20 s.
SAVES: Final = ((25e9, 8, 19.0), (181e9, 64, 19.0))
# THORN-ML's slides: 10 epochs of up to 80 s between checkpoints, flat for about 13 minutes.
EPOCH_S: Final = 80.0
PLATEAU_S: Final = 13 * 60.0
EFFECTIVE: Final = 0.9
SEEN: Final = (
    "the root law of Parcae's restarts and the mean after additions: fitted on all points",
    "what a node writes per second: from BigScience's notes, which are also scored",
)


def run(data: Path) -> Validation:
    """Predict what was published.

    Raises
    ------
    ModelError
        If the tables are not there.
    """
    removal, addition = _restarts(data, "removal"), _restarts(data, "addition")
    standstills = {
        REMOVAL: (restart_after_removal_s(_beyond(removal)[:, 0]), _beyond(removal)[:, 1]),
        ADDITION: (np.full(len(_beyond(addition)), RESTART_AFTER_ADDITION_S),
                   _beyond(addition)[:, 1]),
    }  # fmt: skip
    pairs = standstills | _single(_saves_s(None))
    predicted, measured = (np.concatenate(side) for side in zip(*pairs.values(), strict=True))
    return Validation(
        protocol="failures",
        description="standstills of saves, restarts and faults, in seconds",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=score(predicted, measured),
        groups=[Group(group=name, scores=score(p, m)) for name, (p, m) in pairs.items()],
        figures={"resnet101_plateau_min": plateau_s() / 60, **_llama3(data)},
        notes=[
            "no interval: a standstill has none",
        ],
    )


def blind(data: Path, shipped: Validation) -> Blind:
    """Score restarts by laws of up to 8 nodes, and each save by the other one's rate of a node.

    Raises
    ------
    ModelError
        If the tables are not there.
    """
    rates = [p * BYTES_PER_PARAMETER / nodes / seconds for p, nodes, seconds in SAVES]
    others = np.array([np.mean(rates[:i] + rates[i + 1 :]) for i in range(len(rates))])
    removal, addition = _restarts(data, "removal"), _restarts(data, "addition")
    standstills = {
        REMOVAL: (_root_law(removal), _beyond(removal)[:, 1]),
        ADDITION: (_flat(addition), _beyond(addition)[:, 1]),
    }
    pairs = standstills | _single(_saves_s(others))
    predicted, measured = (np.concatenate(side) for side in zip(*pairs.values(), strict=True))
    return Blind(
        overall=score(predicted, measured),
        groups=[Group(group=name, scores=score(p, m)) for name, (p, m) in pairs.items()],
        changed=(
            "restarts: the law and the mean of up to 8 nodes",
            "what a node writes per second: from BigScience's other save",
        ),
        still_seen=("the root in the law of Parcae's restarts: chosen with all points in sight",),
    )


def _single(saves_s: Column) -> dict[str, tuple[Column, Column]]:
    """Return predicted and published seconds of saves and of one fault."""
    return {
        "BigScience, save": (saves_s, np.array(SAVES)[:, 2]),
        "ResNet101, plateau after a fault": (np.array([plateau_s()]), np.array([PLATEAU_S])),
    }


def _saves_s(node_bytes_per_s: Column | None) -> Column:
    """Return BigScience's saves, each at a rate of its own or all at the product's [s]."""
    saves = np.array(SAVES)
    rate = NODE_BYTES_PER_S if node_bytes_per_s is None else node_bytes_per_s
    return save_s(saves[:, 0] * BYTES_PER_PARAMETER, nodes=saves[:, 1], bytes_per_s=rate)


def plateau_s() -> float:
    """Return how long the job's progress stands still after a fault just before a checkpoint."""
    job = SpotJob(work_s=50 * EPOCH_S, restart_s=0.0, checkpoint_interval_s=10 * EPOCH_S)
    up = np.array([20 * EPOCH_S - 1.0, 1e6])
    fault = Spells(up_start_s=np.array([0.0, up[0]]), up_length_s=up, end_s=float(up.sum()))
    return float(replay(fault, job, [0.0]).finish_s[0]) - job.work_s


def _restarts(data: Path, kind: str) -> Column:
    """Return nodes and seconds, shape (n, 2)."""
    rows = PARCAE.read("restarts", data)
    restarts: Column = rows[rows["kind"] == kind][["nodes", "restart_s"]].to_numpy(float)
    return restarts


def _beyond(restarts: Column) -> Column:
    """Return the rows on more nodes than ``--blind`` learns from."""
    beyond: Column = restarts[restarts[:, 0] > LEARNT_NODES]
    return beyond


def _root_law(restarts: Column) -> Column:
    design = np.stack([np.ones(len(restarts)), np.sqrt(restarts[:, 0])], axis=1)
    is_known = restarts[:, 0] <= LEARNT_NODES
    fitted = np.linalg.lstsq(design[is_known], restarts[is_known, 1], rcond=None)[0]
    predicted: Column = design[~is_known] @ fitted
    return predicted


def _flat(restarts: Column) -> Column:
    is_known = restarts[:, 0] <= LEARNT_NODES
    return np.full(int((~is_known).sum()), restarts[is_known, 1].mean())


def _llama3(data: Path) -> dict[str, float]:
    table = FAILURES.read("interruptions", data).iloc[0]
    devices, days = float(table["accelerators"]), float(table["days"])
    count = float(table["interruptions_of_all"])
    between_h = days * 24 / count

    def effective(edge: EdgeFaultTolerance | None = None) -> float:
        table = expected_completion(
            days * 24 * HOUR_S, devices=devices, checkpoint_s=5.0, detection_s=0.0,
            restart_s=720.0, checkpoint_interval_s=600.0, edge=edge,
            failures_per_device_h=1.0 / (between_h * devices),
        )  # fmt: skip
        return 1.0 / (1.0 + float(table.overhead_fraction[0]))

    return {
        "llama3_hours_between_interruptions": between_h,
        "llama3_most_lost_minutes_an_interruption": (1.0 - EFFECTIVE) * between_h * 60.0,
        "llama3_effective_fraction_expected": effective(),
        "llama3_effective_fraction_with_a_second_path": effective(EdgeFaultTolerance()),
    }
