"""Four published ways to cope when some of a job's spot nodes go, replayed on node counts.

=================  ==============================================================================
here               meaning, unit
=================  ==============================================================================
``restart``        Needs all nodes: waits for them, starts from the last checkpoint.
``replan``         Goes on with what is left (Varuna, Sailor): from the checkpoint, after a search
                   and a restart; grows again after a planned save.
``template``       Goes on at once (Oobleck): plans were made beforehand and live copies hold the
                   state, as long as enough nodes are left.
``redundancy``     Computes its neighbour's part too (Bamboo): slower, but a node may go at any
                   time; two neighbours at once send it back to the checkpoint.
``speed[k]``       throughput on k nodes by that on all of them; 0 where k nodes cannot run it.
=================  ==============================================================================

Time is wall time, work is seconds of computing on all nodes. Progress between checkpoints counts
as saved where nothing is lost; saving costs its share of every stride. Of k of n ring neighbours
taken at once, none are adjacent with probability ``n / (n - k) C(n - k, k) / C(n, k)``
(Kaplansky 1943); what is lost is weighed with it, so replays need no randomness.

Pauses by default are measured ones: Parcae's after removals and additions (``checkpoints``),
Bamboo's rendezvous of 20-30 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import check_not_negative, check_positive, impossible, refused
from advisor.planners.goodput import RESTART_AFTER_ADDITION_S, restart_after_removal_s
from advisor.planners.spot.availability import Column, SpotTrace

Name = Literal["restart", "replan", "template", "redundancy"]
STRATEGIES: Final[tuple[Name, ...]] = get_args(Name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A way of coping, and how it behaves."""

    name: Name
    least_nodes: int  # with fewer the job stands still and goes back to its checkpoint
    # removal_s, addition_s: standstill after nodes went or came [s]
    removal_s: float
    addition_s: float
    start_s: float  # standstill after the job stood still for want of nodes [s]
    # a removal throws away what was computed since the last checkpoint
    loses_progress: bool = True
    is_ring: bool = False  # it does so only where two neighbours go at once
    overhead_fraction: float = 0.0  # time added to every step


_SEARCH_S: Final = 10.0  # of a new plan, for ``replan`` [s]
_RENDEZVOUS_S: Final = 25.0  # Bamboo's [s]
# Bamboo's extra forward pass, partly hidden in the bubble: our assumption between 0 (all hidden)
# and a third (a forward of forward and backward).
_REDUNDANCY_OVERHEAD: Final = 0.2


def strategy(
    name: Name, *, nodes: int, restart_s: float | None = None, least_nodes: int = 1
) -> Strategy:
    """Return one of the four ways with its pauses.

    Raises PlanningError if there is no such strategy.

    Parameters
    ----------
    nodes : int
        That the job asks for.
    restart_s : float, optional
        After a removal, by default Parcae's for so many nodes. [s]
    least_nodes : int
        That can still run the job; ``restart`` always needs all.
    """
    if restart_s is None:
        restart_s = float(restart_after_removal_s(nodes))
    added_s = RESTART_AFTER_ADDITION_S
    pauses_s = {
        "restart": (restart_s, restart_s),
        "replan": (restart_s + _SEARCH_S, added_s + _SEARCH_S),
        "template": (added_s, added_s),
        "redundancy": (_RENDEZVOUS_S, _RENDEZVOUS_S),
    }
    if name not in pauses_s:
        raise refused(f"no strategy named {name!r}", f"one of {', '.join(STRATEGIES)}")
    is_ring = name == "redundancy"
    removal_s, addition_s = pauses_s[name]
    return Strategy(
        name=name, least_nodes=nodes if name == "restart" else least_nodes, removal_s=removal_s,
        addition_s=addition_s, start_s=restart_s, loses_progress=name != "template",
        is_ring=is_ring, overhead_fraction=_REDUNDANCY_OVERHEAD if is_ring else 0.0,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRun:
    """One job under one strategy from several starts; nan where the record ends first."""

    finish_s: Column  # (n,); from submission [s]
    node_s: Column  # (n,); paid node-seconds [s]
    changes: Column  # (n,); times that the number of nodes in use changed


def replay_strategy(
    trace: SpotTrace, way: Strategy, start_s: ArrayLike, *, work_s: float, nodes: int,
    checkpoint_interval_s: float = 1800.0, checkpoint_s: float = 0.0,
) -> StrategyRun:  # fmt: skip
    """Replay a job that asks for ``nodes`` nodes over a trace of node counts.

    ``start_s``: (n,); [s]; ``work_s``: useful computing on all nodes [s]; on fewer nodes
    throughput is in proportion.

    Raises PlanningError if the trace never had the nodes that the job needs, or a value makes no
    sense.
    """
    rate = np.arange(nodes + 1) / nodes
    check_positive("replay", work_s=work_s, checkpoint_interval_s=checkpoint_interval_s)
    check_not_negative("replay", start_s=start_s, work_s=work_s, checkpoint_s=checkpoint_s)
    if int(trace.available.max()) < way.least_nodes:
        raise impossible(
            f"trace {trace.name!r} never has the {way.least_nodes} nodes that {way.name} needs",
            "ask for fewer nodes, or take another strategy",
        )
    start = np.atleast_1d(np.asarray(start_s, float))
    useful = checkpoint_interval_s / (checkpoint_interval_s + checkpoint_s)
    walk = _StrategyWalk(
        way=way,
        rate=rate * useful / (1.0 + way.overhead_fraction),
        stride_s=checkpoint_interval_s + checkpoint_s,
        save_s=checkpoint_s,
        work_s=work_s,
        start_s=start,
    )
    edges = np.append(trace.start_s, trace.end_s)
    used = np.minimum(trace.available, nodes)
    runnable = np.where(used < way.least_nodes, 0, used)
    at = np.searchsorted(trace.start_s, start, side="right") - 1
    while walk.is_open.any():
        row = np.flatnonzero(walk.is_open & (at < runnable.size))
        if not row.size:
            break
        begin = np.maximum(edges[at[row]], start[row])
        walk.interval(row, begin, edges[at[row] + 1], runnable[at[row]])
        at[row] += 1
    return StrategyRun(finish_s=walk.finish_s, node_s=walk.node_s, changes=walk.changes)


class _StrategyWalk:
    """Where each start stands; ``interval`` moves the open ones through one constant count."""

    def __init__(
        self, *, way: Strategy, rate: Column, stride_s: float, save_s: float, work_s: float,
        start_s: Column,
    ) -> None:  # fmt: skip
        self.way, self.rate, self.stride_s, self.save_s = way, rate, stride_s, save_s
        self.work_s, self.start_s = work_s, start_s
        count = start_s.size
        self.committed, self.unsaved = np.zeros(count), np.zeros(count)
        self.since_save = np.zeros(count)  # computing time in the current stride [s]
        self.pause = np.zeros(count)
        self.nodes = np.zeros(count, np.int64)
        self.node_s, self.changes = np.zeros(count), np.zeros(count)
        self.finish_s: Column = np.full(count, np.nan)
        self.is_open: NDArray[np.bool_] = np.ones(count, bool)

    def interval(
        self, row: NDArray[np.intp], begin: Column, end: Column, nodes: NDArray[np.int64]
    ) -> None:
        """Change to ``nodes`` nodes and compute until ``end``."""
        self._change(row, nodes)
        rate = self.rate[nodes]
        waited = np.minimum(self.pause[row], end - begin)
        able = end - begin - waited
        missing = self.work_s - self.committed[row] - self.unsaved[row]
        is_done = (rate > 0) & (missing <= rate * able + 1e-9)
        took = np.where(is_done, missing / np.where(rate > 0, rate, 1.0), able)
        self.node_s[row] += nodes * (waited + took)
        self.finish_s[row[is_done]] = (begin + waited + took - self.start_s[row])[is_done]
        self.is_open[row[is_done]] = False
        self.pause[row] -= waited
        stride = self.since_save[row] + np.where(rate > 0, able, 0.0)
        strides = np.floor(stride / self.stride_s + 1e-9)
        rest = np.maximum(stride - strides * self.stride_s, 0.0)
        gained = self.unsaved[row] + rate * able
        kept = np.where(strides > 0, rate * rest, gained)
        self.committed[row] += np.where(strides > 0, gained - kept, 0.0)
        self.unsaved[row], self.since_save[row] = kept, rest

    def _change(self, row: NDArray[np.intp], nodes: NDArray[np.int64]) -> None:
        way, before = self.way, self.nodes[row]
        fewer, more = nodes < before, nodes > before
        lost = np.where(fewer & way.loses_progress, 1.0, 0.0)
        if way.is_ring:
            lost[fewer] = _adjacent(before[fewer], (before - nodes)[fewer])
        lost = np.where(fewer & (nodes == 0), 1.0, lost)
        # Nodes that come are waited for: the job saves first.
        saved = more & (before > 0)
        self.committed[row] += np.where(saved, self.unsaved[row], 0.0)
        self.unsaved[row] *= np.where(saved, 0.0, 1.0 - lost)
        self.since_save[row] *= np.where(saved, 0.0, 1.0 - lost)
        removal = way.removal_s + (way.start_s if way.is_ring else 0.0) * lost
        pause = np.where(
            fewer, removal, np.where(before > 0, way.addition_s + self.save_s, way.start_s)
        )
        self.pause[row] = np.where(fewer | more, pause, self.pause[row])
        self.changes[row] += fewer | more
        self.nodes[row] = nodes


def _adjacent(nodes: NDArray[np.int64], removed: NDArray[np.int64]) -> Column:
    """Return the probability that two of the removed are neighbours on a ring."""
    chances = []
    for n, k in zip(nodes.tolist(), removed.tolist(), strict=True):
        apart = n / (n - k) * comb(n - k, k) / comb(n, k) if n > k else 0.0
        chances.append(1.0 - apart)
    return np.array(chances)
