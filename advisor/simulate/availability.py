"""Nodes of a shared cluster for a job's workers, and how long the job takes there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import HOUR_S, PlanningError
from advisor.planners.systems import (
    LEARNED,
    WAYS,
    Arrival,
    Fold,
    Placement,
    arrivals,
    chosen_of,
    enough,
    folds_of,
    groups,
    judged_ways,
    learn,
    learned_policy,
    placement,
)  # fmt: skip
from advisor.records import NodeShares, published_node_shares, read_node_shares
from advisor.simulate.questions import SimulateAvailability, Simulated

_GROUPS: Final = 3
_DAY_S: Final = 24 * HOUR_S


def answer(asked: SimulateAvailability) -> Simulated:
    """Choose nodes for a job that arrives at the end of a record."""
    if asked.trace is None:
        record = published_node_shares()
    else:
        record = read_node_shares(asked.trace, slot_s=asked.slot)
    return nodes_of(record, asked)


def nodes_of(record: NodeShares, asked: SimulateAvailability) -> Simulated:
    """Choose nodes for a job that arrives at the end of this record.

    By the way whose jobs took least on each part of the record by what the other parts told;
    the other ways stand beside it, and so does the policy that the record teaches.

    Raises PlanningError if the record is shorter than two days, or there are fewer nodes than
    workers.
    """
    workers, slot_h = asked.workers, record.slot_s / HOUR_S
    day_slots = max(1, round(_DAY_S / record.slot_s))
    work = asked.hours * HOUR_S / record.slot_s
    history = learn(record.shares, day_slots=day_slots)
    one = Arrival.at(
        history, record.shares[-1], slot=len(record.shares) - 1, workers=workers, work=work
    )
    ways = dict(WAYS)
    try:
        folds = folds_of(record.shares, day_slots=day_slots, workers=workers, work=work)
        judged = judged_ways(folds, workers=workers, work=work)
        ways[LEARNED] = learned_policy(history, workers=workers, work=work)
    except PlanningError:  # the record is too short
        folds, judged = [], {}
    chosen = chosen_of(judged)
    past = {name: _past(slots, slot_h) for name, slots in judged.items()}
    mean, sd = one.possible.mean(axis=(0, 1)), one.possible.std(axis=(0, 1))
    alike = sorted(groups(one.possible, _GROUPS), key=lambda own: -float(mean[list(own)].mean()))
    placed = {
        name: placement(one.possible, way(one), work, asked.need) for name, way in ways.items()
    }
    return Simulated(record={
        "schema_version": 1,
        "trace": record.source,
        "days": record.days,
        "slot_s": record.slot_s,
        "nodes": list(record.names),
        "job": {"workers": workers, "work_h": asked.hours},
        "chosen": chosen,
        "need_fraction": asked.need,
        "enough_of_past_jobs": _enough(folds, workers, work, asked.need, chosen),
        "ways": [
            {"name": name, **_way(way, record), "past": past.get(name)}
            for name, way in placed.items()
        ],
        "past": past,
        "groups": [
            {"nodes": [record.names[k] for k in own], "free_mean": float(mean[list(own)].mean()),
             "free_sd": float(sd[list(own)].mean())}
            for own in alike
        ],
    })  # fmt: skip


def _way(one: Placement, record: NodeShares) -> dict[str, Any]:
    slot_h = record.slot_s / HOUR_S
    return {
        "nodes": [record.names[k] for k in one.nodes],
        "expected_h": one.slots * slot_h,
        "p95_h": one.p95_slots * slot_h,
        "straggler_loss_fraction": one.straggler_loss,
        "enough_probability": one.enough_probability,
    }


def _past(slots: NDArray[np.float64], slot_h: float) -> dict[str, float]:
    """Return the statistics of jobs that took so many slots on days that were left out."""
    hours = slots * slot_h
    return {
        "mean_h": float(hours.mean()), "median_h": float(np.median(hours)),
        "p90_h": float(np.quantile(hours, 0.9)), "jobs": len(hours),
    }  # fmt: skip


def _enough(
    folds: Sequence[Fold], workers: int, work: float, need: float, chosen: str
) -> dict[str, float] | None:
    """Return in which share of past jobs' slots all had what they need: as said, and as it was."""
    if not folds:
        return None
    rows = [
        (enough(one.possible, nodes, work, need), enough(path[None], nodes, work, need))
        for fold in folds
        for one, path in arrivals(fold.history, fold.later, workers=workers, work=work, most=24)
        for nodes in (fold.ways[chosen](one),)
    ]
    return dict(zip(("said", "was"), np.mean(rows, axis=0).tolist(), strict=True))
