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

A job that arrives in a slot starts with the next one, and waits for the slowest of its nodes.
What was free then is recorded; only the job is played: it is small beside the cluster. The ways
before the last two differ by little, and which is best depends on the cluster and on the job's
length: so they are judged on the later half of a record, each with what the earlier half told.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import refused
from advisor.planners.systems.free_shares import NodeHistory, Shares, futures, learn
from advisor.planners.systems.sas import check_job, choose, completion_slots

DRAWS: Final = 60
MOST_ARRIVALS: Final = 72
_MOST_CHOICES: Final = 2000
_LOOK_AHEAD: Final = 8  # times the work, of futures; half of it of the forecast
_FREE: Final = 0.05  # of a node that is not full
_FOLDS: Final = 4  # parts of a record, each judged by what the others tell


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrival:
    """A job that arrives, and what is known then."""

    history: NodeHistory
    now: Shares  # (nodes,); free shares in the slot of the arrival [fraction]
    slot: int  # its number since the beginning of some day
    workers: int
    work: float  # slots the job would take on whole nodes [slots]
    possible: Shares  # (draws, horizon, nodes); futures

    @classmethod
    def at(
        cls, history: NodeHistory, now: Shares, *, slot: int, workers: int, work: float,
        draws: int = DRAWS,
    ) -> Arrival:  # fmt: skip
        """Return an arrival with futures drawn for it.

        Raises PlanningError if there are fewer nodes than workers, no work, or the record is too
        short.
        """
        check_job(workers, history.nodes, work)
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
CHOSEN: Final = "freest by forecast"  # where a record is too short to judge the ways on it
LEARNED: Final = "learned policy"
RANDOM: Final = "any nodes"
NOT_FULL: Final = "any nodes not full now"
BEST: Final = "best of all, known afterwards"


def _judged_slots(work: float, day_slots: int) -> int:
    """Return how many slots of a record a job is given that arrives in it."""
    return max(int(_LOOK_AHEAD * work), 4 * day_slots)


def arrivals(
    history: NodeHistory, later: Shares, *, workers: int, work: float, most: int | None = None
) -> Iterator[tuple[Arrival, Shares]]:
    """Yield jobs that arrive on later days, evenly, each with what was really free then.

    ``history``: of the days before: it ends where ``later`` begins; ``later``: (slots, nodes);
    free shares [fraction]; ``work``: slots a job would take on whole nodes [slots].

    Raises PlanningError if the later days are too short for the job.
    """
    horizon = _judged_slots(work, history.day_slots)
    last = len(later) - horizon - 1
    if last < 1:
        raise refused(
            f"{len(later)} slots are too few to judge jobs of {work:g} by",
            "record the nodes for longer, or ask about a shorter job",
        )
    begun = len(history.shares)
    for at in np.unique(np.linspace(0, last, most or MOST_ARRIVALS).astype(int)).tolist():
        one = Arrival.at(history, later[at], slot=begun + at, workers=workers, work=work)
        yield one, later[at + 1 : at + 1 + horizon]


def judge(
    history: NodeHistory, later: Shares, *, workers: int, work: float,
    others: Mapping[str, Way] = MappingProxyType({}), most: int | None = None,
) -> dict[str, Shares]:  # fmt: skip
    """Return how long jobs took that arrived on later days, by way of choosing nodes [slots].

    Raises PlanningError if the later days are too short for the job.

    Returns
    -------
    dict of ndarray
        One value an arrival; of choices at random the mean over all choices of nodes, or over
        2,000 of them.
    """
    every = _choices(history.nodes, workers)
    took: dict[str, list[float]] = {}
    for one, path in arrivals(history, later, workers=workers, work=work, most=most):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Days of a record that are left out, and what the other days tell."""

    history: NodeHistory
    later: Shares  # (slots, nodes); of the days left out [fraction]
    ways: Mapping[str, Way]  # those of ``WAYS``, and the policy that the other days teach


def folds_of(shares: Shares, *, day_slots: int, workers: int, work: float) -> list[Fold]:
    """Return a record's days in up to four parts, each with what the others tell.

    Raises PlanningError if the record is too short for the job.
    """
    days = len(shares) // day_slots
    needed = -(-_judged_slots(work, day_slots) // day_slots) + 1
    count = min(_FOLDS, days // needed)
    if count < 2:
        raise refused(
            f"{days} days are too few to judge jobs of {work:g} slots by",
            "record the nodes for longer, or ask about a shorter job",
        )
    found = []
    for part in np.array_split(np.arange(days), count):
        begin, end = int(part[0]) * day_slots, (int(part[-1]) + 1) * day_slots
        others = np.concatenate([shares[:begin], shares[end : days * day_slots]])
        history = learn(others, day_slots=day_slots)
        learned = learned_policy(history, workers=workers, work=work)
        found.append(
            Fold(history=history, later=shares[begin:end], ways={**WAYS, LEARNED: learned})
        )
    return found


def judged_ways(
    folds: Sequence[Fold], *, workers: int, work: float
) -> dict[str, NDArray[np.float64]]:
    """Return ``judge`` on every part of a record by what the other parts told, all jobs together.

    Raises PlanningError if the record is too short.
    """
    parts = [
        judge(one.history, one.later, workers=workers, work=work,
              others={LEARNED: one.ways[LEARNED]}, most=-(-2 * MOST_ARRIVALS // len(folds)))
        for one in folds
    ]  # fmt: skip
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def chosen_of(past: Mapping[str, NDArray[np.float64]]) -> str:
    """Return the way of the least mean time on days left out; ``CHOSEN`` where none was judged."""
    names = [name for name in (*WAYS, LEARNED) if name in past]
    return min(names, key=lambda name: float(past[name].mean()), default=CHOSEN)


_AHEAD: Final = (1, 6, 24)  # slots, of the forecasts that are seen
_LESSONS: Final = 96  # arrivals that are played
_DRAWN, _BEST, _ROUNDS = 40, 8, 20


def _seen(history: NodeHistory, now: Shares, slot: int) -> Shares:
    """Return what the policy sees: a row a node."""
    ahead = history.forecast(now, slot, max(_AHEAD))
    columns = [now, *(ahead[k - 1] for k in _AHEAD), ahead.mean(axis=0),
               history.usual.mean(axis=0), history.shares.std(axis=0),
               history.persistence]  # fmt: skip
    return np.stack(columns, axis=1)


def learned_policy(history: NodeHistory, *, workers: int, work: float, seed: int = 0) -> Way:
    """Return the policy that a record teaches.

    Arrivals of the record are played; a policy places workers on the nodes of the largest scores,
    linear in what is seen of a node, and is rewarded by -ln(time / work). The weights are searched
    by the cross-entropy method: draws about a mean, which moves to the best of them. What SAS-RL's
    policy sees and how it is trained was not published: this is our own.

    Raises PlanningError if the record is too short for the job.
    """
    horizon = max(int(_LOOK_AHEAD * work), history.day_slots)
    last = len(history.shares) - horizon - 1
    if last < 2:
        raise refused(
            f"{len(history.shares)} slots are too few to learn from", "record the nodes for longer"
        )
    slots = np.unique(np.linspace(0, last, _LESSONS).astype(int))
    seen = np.stack([_seen(history, history.shares[at], at) for at in slots.tolist()])
    mean, sd = seen.mean(axis=(0, 1)), np.maximum(seen.std(axis=(0, 1)), 1e-6)
    paths = np.stack([history.shares[at + 1 : at + 1 + horizon] for at in slots.tolist()])

    def reward(weights: Shares) -> float:
        scores = (seen - mean) / sd @ weights
        nodes = np.argsort(-scores, axis=1, kind="stable")[:, None, :workers]
        slowest = np.take_along_axis(paths, nodes, axis=2).min(axis=2)
        return -float(np.log(completion_slots(slowest[:, :, None], [0], work) / work).mean())

    draw = np.random.default_rng(seed)
    centre, spread = np.zeros(seen.shape[2]), np.ones(seen.shape[2])
    for _ in range(_ROUNDS):
        tried = np.vstack([centre, draw.normal(centre, spread, (_DRAWN, len(centre)))])
        best = tried[np.argsort([-reward(one) for one in tried], kind="stable")[:_BEST]]
        centre, spread = best.mean(axis=0), best.std(axis=0) + 0.02
    return lambda one: one.freest((_seen(history, one.now, one.slot) - mean) / sd @ centre)
