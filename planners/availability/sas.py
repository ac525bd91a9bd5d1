"""Choosing nodes for the workers of one job, all of which wait for the slowest.

==================  ============================================================================
here                meaning, unit
==================  ============================================================================
``futures``    A    possible free shares of nodes (``forecast.futures``). [fraction]
``work``       W    slots the job would take on whole nodes. [slots]
``slots``           that it takes on those chosen. [slots]
==================  ============================================================================

    progress of a slot = min over workers of A_i,     slots = least T with sum of progress >= W

The step of a synchronous job waits for its slowest worker, so a node that is full holds all others
up: nodes of like shares go together (``groups``), as in SAS. ``choose`` begins with the best nodes
of the best group, and swaps one node for another as long as the expected completion shortens.

Source: SAS and SAS-RL (Tairin and Shen, ICPP'23): groups of similar nodes, least completion time.
Their clustering, features and learning were not published: the swaps are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.availability.forecast import Shares
from advisor.planners.core.errors import PlanningError
from advisor.planners.links.slowest import loss_to_slowest

# A job on a full node still gets on after the horizon: at a hundredth of a node.
LEAST_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Nodes for the workers of a job.

    Attributes
    ----------
    slots : float
        Expected until the job is done. [slots]
    p95_slots : float
        Within which 19 of 20 futures end. [slots]
    straggler_loss : float
        Share of a step that the median worker waits for the slowest. [fraction]
    """

    nodes: tuple[int, ...]
    slots: float
    p95_slots: float
    straggler_loss: float


def completion_slots(possible: Shares, nodes: Sequence[int], work: float) -> NDArray[np.float64]:
    """Return how long the job takes on these nodes in each future [slots].

    Beyond the horizon it goes on as it did on average in that future.

    Parameters
    ----------
    possible : ndarray of shape (draws, horizon, nodes)
    work : float
        [slots]
    """
    progress = possible[:, :, list(nodes)].min(axis=2)
    done = progress.cumsum(axis=1)
    draws, horizon = progress.shape
    last = np.minimum((done < work).sum(axis=1), horizon - 1)
    row = np.arange(draws)
    before = done[row, last] - progress[row, last]
    ended = done[row, -1] >= work
    inside = last + (work - before) / np.where(ended, progress[row, last], 1.0)
    rate = np.maximum(progress.mean(axis=1), LEAST_SHARE)
    return np.asarray(np.where(ended, inside, horizon + (work - done[row, -1]) / rate))


def groups(possible: Shares, count: int) -> list[tuple[int, ...]]:
    """Return nodes of like mean and spread, in so many groups (Ward's criterion).

    Parameters
    ----------
    possible : ndarray of shape (draws, horizon, nodes)
    """
    features = np.stack([possible.mean(axis=(0, 1)), possible.std(axis=(0, 1))], axis=1)
    found: list[tuple[int, ...]] = [(k,) for k in range(len(features))]
    while len(found) > max(count, 1):
        pairs = [(i, j) for i in range(len(found)) for j in range(i + 1, len(found))]
        i, j = min(pairs, key=lambda ij: _ward(features, found[ij[0]], found[ij[1]]))
        found[i] = tuple(sorted(found[i] + found[j]))
        del found[j]
    return found


def _ward(features: Shares, one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """Return what joining two groups adds to the squares within."""
    apart = features[list(one)].mean(axis=0) - features[list(other)].mean(axis=0)
    weight = len(one) * len(other) / (len(one) + len(other))
    return float(weight * (apart**2).sum())


def choose(possible: Shares, *, workers: int, work: float) -> Placement:
    """Return the nodes on which the job is expected to end first.

    Parameters
    ----------
    possible : ndarray of shape (draws, horizon, nodes)
    work : float
        Slots the job would take on whole nodes. [slots]

    Raises
    ------
    PlanningError
        If there are fewer nodes than workers, or no work.
    """
    nodes = possible.shape[2]
    if not 1 <= workers <= nodes or not work > 0:
        raise PlanningError(
            f"{workers} workers on {nodes} nodes for {work:g} slots are out of range",
            hint="give as many workers as there are nodes, or fewer",
            exit_code=2,
        )

    def expected(chosen: tuple[int, ...]) -> float:
        return float(completion_slots(possible, chosen, work).mean())

    share = possible.mean(axis=(0, 1))
    starts = [tuple(np.argsort(-share, kind="stable")[:workers].tolist())]
    for count in range(1, nodes // workers + 1):
        starts += [
            tuple(sorted(one, key=lambda k: -share[k])[:workers])
            for one in groups(possible, count)
            if len(one) >= workers
        ]
    best = min(dict.fromkeys(starts), key=expected)
    slots = expected(best)
    while True:
        swaps = [
            (*best[:at], node, *best[at + 1 :])
            for at in range(workers)
            for node in range(nodes)
            if node not in best
        ]
        better = min(swaps, key=expected, default=best)
        if expected(better) >= slots * (1.0 - 1e-9):
            break
        best, slots = better, expected(better)
    return placement(possible, best, work)


def placement(possible: Shares, nodes: Sequence[int], work: float) -> Placement:
    """Return what is expected of a job on given nodes."""
    slots = completion_slots(possible, nodes, work)
    times = [1.0 / np.maximum(possible[:, 0, k], LEAST_SHARE) for k in nodes]
    return Placement(
        nodes=tuple(sorted(int(k) for k in nodes)),
        slots=float(slots.mean()),
        p95_slots=float(np.quantile(slots, 0.95)),
        straggler_loss=loss_to_slowest(times),
    )
