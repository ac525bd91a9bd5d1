"""Nodes of a shared cluster for a job's workers, and how long the job takes there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.availability.forecast import Shares, learn
from advisor.planners.availability.sas import Placement, groups, placement
from advisor.planners.availability.ways import (
    CHOSEN,
    WAYS,
    Arrival,
    judge,
)
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.units import HOUR_S
from advisor.records.node_shares import NodeShares

_GROUPS: Final = 3
_DAY_S: Final = 24 * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJobs:
    """Times of jobs like this one on the later half of the record."""

    mean_h: float
    median_h: float
    p90_h: float
    jobs: int

    @classmethod
    def of(cls, slots: NDArray[np.float64], slot_h: float) -> PastJobs:
        """Return the statistics of jobs that took so many slots."""
        hours = slots * slot_h
        return cls(
            mean_h=float(hours.mean()), median_h=float(np.median(hours)),
            p90_h=float(np.quantile(hours, 0.9)), jobs=len(hours),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesAnswer:
    """Nodes for the workers of a job.

    Attributes
    ----------
    chosen : str
        The way whose nodes are recommended.
    placements : mapping of way to Placement
        What each way would choose now; slots are those of the record.
    past : mapping of name to PastJobs
        By way, and of choices at random; empty where the record is too short.
    like_nodes : tuple of (names, mean free share, its standard deviation)
        Groups of nodes of like forecasts, the freest first.
    """

    record: NodeShares
    workers: int
    work_h: float
    chosen: str
    placements: Mapping[str, Placement]
    past: Mapping[str, PastJobs]
    like_nodes: tuple[tuple[tuple[str, ...], float, float], ...]

    @property
    def slot_h(self) -> float:
        """Length of a slot [h]."""
        return self.record.slot_s / HOUR_S

    def to_record(self) -> dict[str, Any]:
        """Return the JSON record."""
        return {
            "schema_version": 1,
            "trace": self.record.source,
            "days": self.record.days,
            "slot_s": self.record.slot_s,
            "nodes": list(self.record.names),
            "job": {"workers": self.workers, "work_h": self.work_h},
            "chosen": self.chosen,
            "ways": [self._way(name, one) for name, one in self.placements.items()],
            "past": {name: asdict(one) for name, one in self.past.items()},
            "groups": [
                {"nodes": list(names), "free_mean": mean, "free_sd": sd}
                for names, mean, sd in self.like_nodes
            ],
        }

    def _way(self, name: str, one: Placement) -> dict[str, Any]:
        past = self.past.get(name)
        return {
            "name": name,
            "nodes": [self.record.names[k] for k in one.nodes],
            "expected_h": one.slots * self.slot_h,
            "p95_h": one.p95_slots * self.slot_h,
            "straggler_loss_fraction": one.straggler_loss,
            "past": None if past is None else asdict(past),
        }


def nodes_answer(record: NodeShares, *, workers: int, work_h: float) -> NodesAnswer:
    """Choose nodes for a job that arrives at the end of a record.

    By its forecast; the other ways of choosing stand beside it, each with what it brought on the
    later half of the record by what the earlier half told.

    Raises
    ------
    PlanningError
        If the record is shorter than two days, or there are fewer nodes than workers.
    """
    day_slots = max(1, round(_DAY_S / record.slot_s))
    work = work_h * HOUR_S / record.slot_s
    history = learn(record.shares, day_slots=day_slots)
    one = Arrival.at(
        history, record.shares[-1], slot=len(record.shares) - 1, workers=workers, work=work
    )
    past = _past(record.shares, day_slots, workers, work)
    mean, sd = one.possible.mean(axis=(0, 1)), one.possible.std(axis=(0, 1))
    alike = sorted(groups(one.possible, _GROUPS), key=lambda own: -float(mean[list(own)].mean()))
    return NodesAnswer(
        record=record, workers=workers, work_h=work_h, chosen=CHOSEN,
        placements={name: placement(one.possible, way(one), work) for name, way in WAYS.items()},
        past={
            name: PastJobs.of(slots, record.slot_s / HOUR_S)
            for name, slots in past.items()
        },
        like_nodes=tuple(
            (tuple(record.names[k] for k in own), float(mean[list(own)].mean()),
             float(sd[list(own)].mean()))
            for own in alike
        ),
    )  # fmt: skip


def _past(
    shares: Shares, day_slots: int, workers: int, work: float
) -> dict[str, NDArray[np.float64]]:
    """Return what jobs took on the later half of a record; nothing where it is too short."""
    half = len(shares) // 2 // day_slots * day_slots
    try:
        return judge(
            learn(shares[:half], day_slots=day_slots), shares[half:], workers=workers, work=work
        )
    except PlanningError:
        return {}
