"""Choosing nodes for the workers of one job, all of which wait for the slowest.

==================  ============================================================================
here                meaning, unit
==================  ============================================================================
``futures``    A    possible free shares of nodes (function ``futures``). [fraction]
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

from advisor.planners.core import refused
from advisor.planners.links import loss_to_slowest
from advisor.planners.systems.free_shares import Shares

# A job on a full node still gets on after the horizon: at a hundredth of a node.
LEAST_SHARE: Final = 0.01
ENOUGH: Final = 0.5  # of a node, by default what a worker needs of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Nodes for the workers of a job."""

    nodes: tuple[int, ...]
    slots: float  # expected until the job is done [slots]
    p95_slots: float  # within which 19 of 20 futures end [slots]
    # share of a step that the median worker waits for the slowest [fraction]
    straggler_loss: float
    # of the futures' slots until the job is done, those in which every worker has what it needs
    enough_probability: float


def completion_slots(possible: Shares, nodes: Sequence[int], work: float) -> NDArray[np.float64]:
    """Return how long the job takes on these nodes in each future [slots].

    Beyond the horizon it goes on as it did on average in that future.

    ``possible``: shape (draws, horizon, nodes); ``work``: [slots].
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

    ``possible``: shape (draws, horizon, nodes).
    """
    from scipy.cluster.hierarchy import cut_tree, ward

    features = np.stack([possible.mean(axis=(0, 1)), possible.std(axis=(0, 1))], axis=1)
    group = cut_tree(ward(features), max(count, 1))[:, 0]
    return sorted(tuple(np.flatnonzero(group == one).tolist()) for one in np.unique(group))


def check_job(workers: int, nodes: int, work: float) -> None:
    """Refuse a job that the nodes cannot hold, or that has no work."""
    if not 1 <= workers <= nodes or not 0 < work < np.inf:
        raise refused(
            f"{workers} workers on {nodes} nodes for {work:g} slots are out of range",
            "give as many workers as there are nodes, or fewer",
        )


def choose(possible: Shares, *, workers: int, work: float) -> Placement:
    """Return the nodes on which the job is expected to end first.

    ``possible``: shape (draws, horizon, nodes); ``work``: slots the job would take on whole nodes
    [slots].

    Raises PlanningError if there are fewer nodes than workers, or no work.
    """
    nodes = possible.shape[2]
    check_job(workers, nodes, work)

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


def enough(possible: Shares, nodes: Sequence[int], work: float, need: float) -> float:
    """Return in which share of the slots until the job is done every worker has what it needs.

    ``possible``: shape (draws, horizon, nodes); ``need``: of a node [fraction].
    """
    least = possible[:, :, list(nodes)].min(axis=2)
    runs = np.arange(least.shape[1])[None] < completion_slots(possible, nodes, work)[:, None]
    return float((least >= need)[runs].mean())


def placement(
    possible: Shares, nodes: Sequence[int], work: float, need: float = ENOUGH
) -> Placement:
    """Return what is expected of a job on given nodes, each worker of which needs so much."""
    slots = completion_slots(possible, nodes, work)
    times = [1.0 / np.maximum(possible[:, 0, k], LEAST_SHARE) for k in nodes]
    return Placement(
        nodes=tuple(sorted(int(k) for k in nodes)),
        slots=float(slots.mean()),
        p95_slots=float(np.quantile(slots, 0.95)),
        straggler_loss=loss_to_slowest(times),
        enough_probability=enough(possible, nodes, work, need),
    )
