"""Ways of choosing nodes, and what each would have brought on days that it had not seen.

=========================  =====================================================================
way                        nodes
=========================  =====================================================================
freest now                 most is free of them in this slot
freest by forecast         in the mean of the forecast, over four times the job's length
freest over futures        in the mean of possible futures, over eight times the job's length
groups and swaps           the best of like nodes, and swaps that shorten the expected completion
usually freest             in the mean of the record
=========================  =====================================================================

A job that arrives in a slot starts with the next one, and waits for the slowest of its nodes. What
was free then is recorded; only the job is played: it is small beside the cluster. The ways before
the last two differ by little, and which is best depends on the cluster and on the job's length: so
they are judged on the later half of a record, each with what the earlier half told.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.availability.forecast import NodeHistory, Shares, futures
from advisor.planners.availability.sas import choose, completion_slots
from advisor.planners.core.errors import PlanningError

DRAWS: Final = 60
MOST_ARRIVALS: Final = 72
_MOST_CHOICES: Final = 2000
_LOOK_AHEAD: Final = 8  # times the work, of futures; half of it of the forecast
_FREE: Final = 0.05  # of a node that is not full


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrival:
    """A job that arrives, and what is known then.

    Attributes
    ----------
    now : ndarray of shape (nodes,)
        Free shares in the slot of the arrival. [fraction]
    slot : int
        Its number since the beginning of some day.
    work : float
        Slots the job would take on whole nodes. [slots]
    possible : ndarray of shape (draws, horizon, nodes)
        Futures.
    """

    history: NodeHistory
    now: Shares
    slot: int
    workers: int
    work: float
    possible: Shares

    @classmethod
    def at(
        cls, history: NodeHistory, now: Shares, *, slot: int, workers: int, work: float,
        draws: int = DRAWS,
    ) -> Arrival:  # fmt: skip
        """Return an arrival with futures drawn for it.

        Raises
        ------
        PlanningError
            If there are fewer nodes than workers, no work, or the record is too short.
        """
        if not 1 <= workers <= history.nodes or not 0 < work < np.inf:
            raise PlanningError(
                f"{workers} workers on {history.nodes} nodes for {work:g} slots are out of range",
                hint="give as many workers as there are nodes, or fewer",
                exit_code=2,
            )
        horizon = min(max(int(_LOOK_AHEAD * work), 1), len(history.shares) // 2)
        possible = futures(history, now, slot=slot, horizon=horizon, draws=draws, seed=slot)
        return cls(
            history=history, now=now, slot=slot, workers=workers, work=work, possible=possible
        )

    def freest(self, shares: Shares) -> tuple[int, ...]:
        """Return as many nodes as there are workers, those of the largest shares."""
        order = np.argsort(-np.asarray(shares), kind="stable")
        return tuple(sorted(int(k) for k in order[: self.workers]))


def _by_forecast(one: Arrival) -> tuple[int, ...]:
    ahead = max(int(_LOOK_AHEAD / 2 * one.work), 1)
    return one.freest(one.history.forecast(one.now, one.slot, ahead).mean(axis=0))


Way = Callable[[Arrival], tuple[int, ...]]
WAYS: Final[Mapping[str, Way]] = MappingProxyType({
    "freest now": lambda one: one.freest(one.now),
    "freest by forecast": _by_forecast,
    "freest over futures": lambda one: one.freest(one.possible.mean(axis=(0, 1))),
    "groups and swaps": lambda one: choose(
        one.possible, workers=one.workers, work=one.work
    ).nodes,
    "usually freest": lambda one: one.freest(one.history.shares.mean(axis=0)),
})  # fmt: skip
# What is recommended: least over both lengths of jobs on Helios' later half (docs/experiments.md).
CHOSEN: Final = "freest by forecast"
RANDOM: Final = "any nodes"
NOT_FULL: Final = "any nodes not full now"
BEST: Final = "best of all, known afterwards"


def arrivals(
    history: NodeHistory, later: Shares, *, workers: int, work: float
) -> Iterator[tuple[Arrival, Shares]]:
    """Yield jobs that arrive on later days, evenly, each with what was really free then.

    Parameters
    ----------
    history : NodeHistory
        Of the days before: it ends where ``later`` begins.
    later : ndarray of shape (slots, nodes)
        Free shares. [fraction]
    work : float
        Slots a job would take on whole nodes. [slots]

    Raises
    ------
    PlanningError
        If the later days are too short for the job.
    """
    horizon = max(int(_LOOK_AHEAD * work), 4 * history.day_slots)
    last = len(later) - horizon - 1
    if last < 1:
        raise PlanningError(
            f"{len(later)} slots are too few to judge jobs of {work:g} by",
            hint="record the nodes for longer, or ask about a shorter job",
            exit_code=2,
        )
    begun = len(history.shares)
    for at in np.unique(np.linspace(0, last, MOST_ARRIVALS).astype(int)).tolist():
        one = Arrival.at(history, later[at], slot=begun + at, workers=workers, work=work)
        yield one, later[at + 1 : at + 1 + horizon]


def judge(
    history: NodeHistory,
    later: Shares,
    *,
    workers: int,
    work: float,
    others: Mapping[str, Way] = MappingProxyType({}),
) -> dict[str, Shares]:
    """Return how long jobs took that arrived on later days, by way of choosing nodes [slots].

    Returns
    -------
    dict of ndarray
        One value an arrival; of choices at random the mean over all choices of nodes, or over
        2,000 of them.

    Raises
    ------
    PlanningError
        If the later days are too short for the job.
    """
    every = _choices(history.nodes, workers)
    took: dict[str, list[float]] = {}
    for one, path in arrivals(history, later, workers=workers, work=work):
        for name, way in {**WAYS, **others}.items():
            slots = completion_slots(path[None], way(one), work)
            took.setdefault(name, []).append(float(slots[0]))
        of_all = completion_slots(path[:, every].min(axis=2).T[:, :, None], [0], work)
        free = (one.now[every] > _FREE).all(axis=1)
        took.setdefault(NOT_FULL, []).append(float(of_all[free if free.any() else ~free].mean()))
        took.setdefault(RANDOM, []).append(float(of_all.mean()))
        took.setdefault(BEST, []).append(float(of_all.min()))
    return {name: np.array(values) for name, values in took.items()}


def _choices(nodes: int, workers: int) -> NDArray[np.int64]:
    """Return choices of nodes, one a row: all of them, or drawn ones where they are many."""
    if math.comb(nodes, workers) <= _MOST_CHOICES:
        return np.array(list(itertools.combinations(range(nodes), workers)))
    draw = np.random.default_rng(0)
    return np.array([draw.choice(nodes, workers, replace=False) for _ in range(_MOST_CHOICES)])
