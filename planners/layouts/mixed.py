"""All layouts of a transformer over groups of unlike machines.

| here               | meaning                                                                |
|--------------------|------------------------------------------------------------------------|
| ``pp_g``           | stages of group g                                                      |
| ``layer_s``        | forward and backward of one layer and micro-batch in a group [s]       |
| ``most``           | layers that fit into a stage of the group                              |
| ``slowest_s``      | the longest stage, to be made as short as possible [s]                 |

Every layout of equal machines (``planners.layouts.problem``) that runs 1F1B, with any number of
stages, and every order of the groups is a column (n,); lists are by group. step = the stages, the
fullest of each group + (m-1) x the slowest + m x the slowest send + the slowest group's reduction
and optimizer: each of them, and memory, by the law of one kind of machine (``planners.layouts``,
``planners.memory``), asked of a model of which every stage has as many layers as the group's. So
groups of one kind take what ``LayoutProblem`` says of them as one.

A stage time is a whole number of layers of its group, the last one's a whole number and the head.
The least limit under which all layers find room is one of those: per group it is found by halving.

Each group holds its own stages, or stages span groups: ranks are counted through the groups in
order, as Megatron-LM counts them, and a stage is the next of them. Micro-batches are shared
evenly, so a stage of several kinds is as slow, and has as much room, as the least of them. The
columns of such a choice have stages of a *set* of groups where others have stages of a group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from itertools import groupby, permutations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import (
    GIB,
    Floats,
    Layout,
    Layouts,
    PlanningError,
    Shapes,
    Transformer,
    impossible,
    refused,
    select,
)
from advisor.planners.layouts.problem import (
    LayoutProblem,
    SearchSpace,
    axis_part,
    block,
    flattened,
    layout_at,
    needs_of,
    over_bytes,
    recomputes,
    shards,
    splits,
)
from advisor.planners.layouts.search import check_sizes
from advisor.planners.layouts.time import (
    StageTimes,
    data_parallel_s,
    optimizer_s,
    slowest,
    stage_times,
    straggling,
)
from advisor.planners.memory import Ledger, at_row, ledger, needed_of

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Held:
    """The stages of one group, or of a set of groups, as candidates have them."""

    kinds: Sequence[LayoutProblem]  # the machines that hold them
    layouts: Layouts
    pp: Sequence[Ints]  # stages of each group, or set of groups, in pipeline order
    place: int  # in pipeline order
    times: StageTimes  # of a layer, and what is sent, on the slowest kind

    @property
    def is_last(self) -> bool:
        """Whether the last stage, with the head, is among them."""
        return self.place == len(self.pp) - 1

    def take(self, rows: Ints) -> _Held:
        """Return some of the candidates."""
        layouts, pp = select(self.layouts, rows), [one[rows] for one in self.pp]
        return replace(self, layouts=layouts, pp=pp, times=_taken([self.times], rows))

    def shapes(self, layers: Ints) -> Shapes:
        """Return the model of which every stage has so many layers, and the tables as here."""
        whole = self.kinds[0].shapes
        tables = whole.vocabulary if self.is_last or self.place == 0 else 0
        return replace(
            whole, layers=layers * np.asarray(self.layouts.pp, np.int64), vocabulary=tables
        )

    def ledger(self, layers: Ints) -> Ledger:
        """Return what the fullest device holds of so many layers a stage, by term."""
        one = self.kinds[0]
        # A group's first stage holds most: as many micro-batches as stages follow it, and itself.
        behind = self.layouts.pp - np.sum(self.pp[: self.place], axis=0)
        return ledger(
            self.shapes(layers), self.layouts, one.software, one.memory,
            stage="fullest" if self.is_last else "first",
            held=np.minimum(behind, self.layouts.accumulation_steps),
        )  # fmt: skip

    def over_bytes(self, layers: Ints) -> Floats:
        """Return by how much so many layers a stage miss the room of some device [bytes]."""
        return over_bytes(self.kinds, needs_of(self.ledger(layers), self.kinds[0].memory))

    def most(self) -> Ints:
        """Return the layers that fit into a stage; 0 where not even one does."""
        low = np.zeros(np.shape(self.layouts.dp), np.int64)
        high = np.full_like(low, self.kinds[0].transformer.layers)
        while (low < high).any():
            middle = (low + high + 1) // 2
            fits = self.over_bytes(np.maximum(middle, 1)) <= 0
            low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
        return low

    def ending_s(self, layers: Ints) -> Floats:
        """Return the exposed reductions of so many layers a stage, and their update [s]."""
        shapes, one = self.shapes(layers), self.times
        computed = self.layouts.accumulation_steps * (layers * one.busy_s + one.head_s)
        cases = [replace(kind.case(self.layouts), shapes=shapes) for kind in self.kinds]
        reduced = [data_parallel_s(case, layers * one.backward_s, computed) for case in cases]
        return slowest(reduced) + slowest([optimizer_s(case) for case in cases])


def _taken(kinds: Sequence[StageTimes], rows: Ints) -> StageTimes:
    """Return some candidates' times, on the slowest kind."""
    names, n = [f.name for f in fields(StageTimes)], np.shape(kinds[0].busy_s)
    columns = {name: slowest([getattr(one, name) for one in kinds]) for name in names}
    return StageTimes(**{name: np.broadcast_to(one, n)[rows] for name, one in columns.items()})


def apportion(
    layers: int, stages: Sequence[Ints], layer_s: Sequence[Floats], most: Sequence[Ints],
    head_s: Floats,
) -> tuple[list[Ints], Ints, Floats]:  # fmt: skip
    """Share layers over unlike stages so that the slowest is as fast as possible.

    ``stages``: (n,); stages of the group; ``layer_s``, ``most``: (n,); time of a layer [s]; most
    layers that a stage can hold; ``head_s``: (n,); what the last stage of the last group does
    besides [s].

    Returns
    -------
    counts : list of arrays
        Most layers of a stage of each group within the slowest stage's time.
    last : array
        The same of the last stage, which has the head besides.
    slowest_s : array
        The longest stage; inf where the layers find no room. [s]
    """

    def placed(limit: Floats) -> tuple[list[Ints], Ints, Ints]:
        # A billionth: k layers must fit into k times a layer's time, rounded as it may be.
        counts = [
            np.minimum(np.floor(limit / t * (1 + 1e-9)), m).astype(np.int64)
            for t, m in zip(layer_s, most, strict=True)
        ]
        last = np.floor(np.maximum(limit - head_s, 0.0) / layer_s[-1] * (1 + 1e-9))
        last = np.minimum(last, most[-1]).astype(np.int64)
        total: Ints = np.sum([p * n for p, n in zip(stages, counts, strict=True)], axis=0)
        total = total - counts[-1] + last
        everybody = np.min([*counts, last], axis=0) >= 1
        return counts, last, np.where(everybody, total, -1)

    best = np.full(head_s.shape, np.inf)
    for group, (t, m) in enumerate(zip(layer_s, most, strict=True)):
        for extra in (0.0, head_s) if group == len(layer_s) - 1 else (0.0,):
            low, high = np.ones_like(m), np.minimum(np.maximum(m, 1), layers)
            while (low < high).any():
                middle = (low + high) // 2
                enough = placed(middle * t + extra)[2] >= layers
                high = np.where(enough & (low < high), middle, high)
                low = np.where(enough | (low >= high), low, middle + 1)
            limit = high * t + extra
            best = np.where(placed(limit)[2] >= layers, np.minimum(best, limit), best)
    counts, last, _ = placed(np.where(np.isfinite(best), best, 0.0))
    return counts, last, best


_EVERYTHING: Final = SearchSpace()
# Groups in every order up to here (24 orders); more kinds of machine stay in the order given.
_MOST_PERMUTED: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineGroup:
    """Equal machines: the layout problem on one kind of them, and how many."""

    problem: LayoutProblem
    nodes: int

    @property
    def devices(self) -> int:
        """Devices of all machines together."""
        return int(self.problem.machines.devices_per_node) * self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlan:
    """A pipeline over groups."""

    order: tuple[int, ...]  # groups in pipeline order
    # of each group in pipeline order; ``pp`` counts the stages that it has a part in
    layouts: tuple[Layout, ...]
    groups_by_stage: tuple[tuple[int, ...], ...]  # places in ``order``; several where one spans
    layers: tuple[int, ...]  # of every stage in pipeline order
    step_s: float
    network_s: float  # of it what is sent and reduced, and the update [s]
    stage_s: tuple[float, ...]  # one micro-batch on every stage [s]
    ledgers: tuple[Ledger, ...]  # of the fullest device, by group in pipeline order [bytes]
    # considered, fitting: candidates, and those that fit
    considered: int = 0
    fitting: int = 0


def search_mixed(
    groups: Sequence[MachineGroup], global_batch: int, *, space: SearchSpace = _EVERYTHING,
    most_s: float = math.inf,
) -> MixedPlan:  # fmt: skip
    """Return the fastest pipeline over all groups.

    ``groups``: of the same transformer; ``space``: what may be chosen; ``pp`` counts the stages of
    all groups; ``most_s``: slower pipelines are not looked for [s].

    Raises PlanningError if sizes make no sense, nothing divides, or nothing fits.
    """
    transformer, nodes = groups[0].problem.transformer, sum(g.nodes for g in groups)
    check_sizes(transformer, nodes, global_batch)
    cut = space.stage_layers
    if cut is not None and (min(cut) < 1 or sum(cut) != transformer.layers):
        raise refused(
            f"stages of {', '.join(map(str, cut))} layers do not hold the model's "
            f"{transformer.layers}",
            "give the layers of every stage in order: --stage-layers 14,10",
        )
    best: MixedPlan | None = None
    considered = fitting = 0
    shortest = np.inf
    candidates = _candidates(groups, global_batch, space)
    timed = [stage_times(g.problem.case(candidates)) for g in groups]
    for order in _orders(len(groups)):
        for spans, rows, pp in _placed([groups[i].devices for i in order], candidates):
            layouts = select(candidates, rows)
            held = [
                _Held(
                    [groups[order[i]].problem for i in span], layouts, pp, k,
                    _taken([timed[order[i]] for i in span], rows),
                )
                for k, span in enumerate(spans)
            ]  # fmt: skip
            considered += rows.size
            if most_s < math.inf:
                near = _within(held, nodes, most_s)
                if not near.size:
                    continue
                held = [stages.take(near) for stages in held]
            found = _evaluate(held, nodes, cut)
            fitting += int(np.count_nonzero(np.isfinite(found.step_s)))
            shortest = min(shortest, float(found.missing_bytes.min()))
            row = int(np.argmin(found.step_s))
            if found.step_s[row] < (np.inf if best is None else best.step_s):
                best = _describe(order, spans, held, found, row, cut)
    if best is None and not np.isfinite(shortest) and considered:
        raise impossible(f"no pipeline takes {most_s:.3g} s or less", "name no longest step")
    if best is None:
        raise _nothing(transformer, groups, considered, shortest)
    return replace(best, considered=considered, fitting=fitting)


def _orders(groups: int) -> list[tuple[int, ...]]:
    return (
        list(permutations(range(groups))) if groups <= _MOST_PERMUTED else [tuple(range(groups))]
    )


def _nothing(
    transformer: Transformer, groups: Sequence[MachineGroup], considered: int, missing: float
) -> PlanningError:
    devices = " + ".join(str(g.devices) for g in groups)
    if not considered:
        return impossible(
            f"no pipeline divides {devices} devices, {transformer.heads} heads, "
            f"{transformer.layers} layers and the batch, or none that its framework runs",
            "leave degrees and ZeRO stage open, or choose a batch with more divisors",
        )
    return impossible(
        f"no pipeline over {devices} devices fits: the nearest misses by {missing / GIB:.1f} GiB "
        "on its fullest device",
        "add machines to the smaller group, or shorten the sequence",
    )


def _candidates(groups: Sequence[MachineGroup], global_batch: int, space: SearchSpace) -> Layouts:
    """Return the layouts of equal machines that their framework runs, columns of shape (n,)."""
    one = groups[0].problem
    joined = math.gcd(*(int(g.problem.machines.devices_per_node) for g in groups))
    pp = len(space.stage_layers) if space.pp is None and space.stage_layers else space.pp
    space = replace(
        space, pp=pp, max_tp=min(space.max_tp, joined), schedules=("1f1b",), offloads=(),
        cuts_unevenly=True,
    )  # fmt: skip
    axis = splits(one.transformer, sum(g.devices for g in groups), global_batch, space)
    part = axis_part(axis, slice(None))
    layouts, valid = block(part, recomputes(space), shards(space), joined)
    if one.admits is not None:
        # Rules about cutting layers into stages evenly do not hold of other cuts.
        valid = valid & one.admits(replace(layouts, pp=np.minimum(layouts.pp, 2)))
    return flattened(layouts, valid)


# Which groups hold each run of stages.
Spans = tuple[tuple[int, ...], ...]


def _placed(
    devices: Sequence[int], candidates: Layouts
) -> Iterator[tuple[Spans, Ints, list[Ints]]]:
    """Yield rows whose stages lie on the same groups, and the stages of each such run.

    ``devices``: of the groups in pipeline order.
    """
    ends, stages = np.cumsum(devices), np.asarray(candidates.pp)
    by_spans: dict[Spans, dict[int, tuple[int, ...]]] = {}
    for pp in np.unique(stages).tolist():
        each = int(ends[-1]) // pp
        starts = np.arange(pp) * each
        first = np.searchsorted(ends, starts, "right").tolist()
        last = np.searchsorted(ends, starts + each - 1, "right").tolist()
        of_stage = (tuple(range(a, b + 1)) for a, b in zip(first, last, strict=True))
        runs = [(span, len(list(same))) for span, same in groupby(of_stage)]
        by_spans.setdefault(tuple(span for span, _ in runs), {})[pp] = tuple(n for _, n in runs)
    for spans, counts in by_spans.items():
        rows = np.flatnonzero(np.isin(stages, list(counts)))
        table = np.array([counts[pp] for pp in stages[rows].tolist()])
        yield spans, rows, list(table.T)


def _within(held: Sequence[_Held], nodes: int, most_s: float) -> Ints:
    """Return the rows of candidates whose step may be so short: by time, whatever their memory.

    Layers shared by speed as if they could be cut, and neither reductions nor updates.
    """
    one, layouts, times = held[0].kinds[0], held[0].layouts, [h.times for h in held]
    layers, m = one.transformer.layers, np.asarray(layouts.accumulation_steps)
    layer_s = [t.busy_s + t.inside_s for t in times]
    rate = np.sum([p / t for p, t in zip(held[0].pp, layer_s, strict=True)], axis=0)
    row = times[-1].head_s + layers * reduce(np.minimum, layer_s)
    sent = m * slowest([t.send_s for t in times])
    least = (row + (m - 1) * layers / rate + sent) * straggling(one.parameters, float(nodes))
    return np.flatnonzero(least * (1 - 1e-6) <= most_s)


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """Step times (inf where nothing fits) and what they are made of, by candidate."""

    step_s: Floats
    missing_bytes: Floats
    # of every column of stages: a layer [s], layers of a stage
    layer_s: list[Floats]
    layers: list[Ints]
    last: Ints
    head_s: Floats
    network_s: Floats  # what is sent and reduced, and the update [s]


def _as_cut(
    cut: Sequence[int], pp: Sequence[Ints], layer_s: Sequence[Floats], most: Sequence[Ints],
    head_s: Floats,
) -> tuple[list[Ints], Ints, Floats, Floats]:  # fmt: skip
    """Return what ``apportion`` does, and all stages in a row, where the cut is given."""
    counts = [np.zeros_like(one) for one in pp]
    row = np.array(head_s)
    ends = np.cumsum(pp, axis=0)
    longest = np.where(ends[-1] == len(cut), 0.0, np.inf)
    for stage, layers in enumerate(cut):
        of = np.argmax(ends > stage, axis=0)
        for k, one in enumerate(layer_s):
            here = (of == k) & (stage < ends[-1])
            counts[k] = np.where(here, np.maximum(counts[k], layers), counts[k])
            row += np.where(here, layers * one, 0.0)
            took = layers * one + (head_s if stage == len(cut) - 1 else 0.0)
            took = np.where(layers <= most[k], took, np.inf)
            longest = np.where(here, np.maximum(longest, took), longest)
    last = np.full(row.shape, cut[-1], dtype=np.int64)
    return counts, last, longest, row


def _evaluate(held: Sequence[_Held], nodes: int, cut: Sequence[int] | None) -> _Evaluated:
    """Evaluate the candidates.

    ``nodes``: of all kinds; ``cut``: layers by stage, where they are given.
    """
    layouts, pp, one = held[0].layouts, held[0].pp, held[0].kinds[0]
    in_all, m = one.transformer.layers, np.asarray(layouts.accumulation_steps)
    times = [stages.times for stages in held]
    layer_s = [t.busy_s + t.inside_s for t in times]
    head = np.broadcast_to(times[-1].head_s, m.shape)
    most = [stages.most() for stages in held]
    if cut is not None:
        layers, last, longest, row = _as_cut(cut, pp, layer_s, most, head)
    else:
        layers, last, longest = apportion(in_all, pp, layer_s, most, head)
        in_stages = zip(pp, layers, layer_s, strict=True)
        row = head + np.sum([p * n * t for p, n, t in in_stages], axis=0)
    fits = np.isfinite(longest)
    layers = [np.maximum(n, 1) for n in layers]
    line = row + (m - 1) * np.where(fits, longest, 0.0)
    endings = [stages.ending_s(n) for stages, n in zip(held, layers, strict=True)]
    network = m * slowest([t.send_s for t in times]) + slowest(endings)
    slow = straggling(one.parameters, np.asarray(float(nodes)))
    share = np.ceil(in_all / np.asarray(layouts.pp)).astype(np.int64)
    short = [stages.over_bytes(share) for stages in held]
    return _Evaluated(
        step_s=np.where(fits, (line + network) * slow, np.inf),
        missing_bytes=np.maximum(reduce(np.maximum, short), 0.0),
        layer_s=layer_s,
        layers=layers,
        last=last,
        head_s=head,
        network_s=(line + network) * slow - line,
    )


def _describe(
    order: tuple[int, ...], spans: Spans, held: Sequence[_Held], found: _Evaluated, row: int,
    cut: Sequence[int] | None,
) -> MixedPlan:  # fmt: skip
    pp = [int(one[row]) for one in held[0].pp]
    counts = [
        n for one, many in zip(found.layers, pp, strict=True) for n in [int(one[row])] * many
    ]
    speed = [
        t for one, many in zip(found.layer_s, pp, strict=True) for t in [float(one[row])] * many
    ]
    counts[-1] = int(found.last[row])
    counts = counts if cut is None else list(cut)
    while sum(counts) > held[0].kinds[0].transformer.layers:
        # The group slowest a layer first, its fullest and latest stage.
        spare = [i for i, n in enumerate(counts) if n > 1]
        least = max(speed[i] for i in spare)
        fullest = max((i for i in spare if speed[i] == least), key=lambda i: (counts[i], i))
        counts[fullest] -= 1
    stage_s = [n * t for n, t in zip(counts, speed, strict=True)]
    stage_s[-1] += float(found.head_s[row])
    terms = [at_row(h.ledger(n), row, n.shape) for h, n in zip(held, found.layers, strict=True)]
    used = [float(needed_of(one)) for one in terms]
    holding = [[k for k, span in enumerate(spans) if group in span] for group in range(len(order))]
    whole = layout_at(held[0].layouts, (row,), found.step_s.shape)
    return MixedPlan(
        order=order,
        groups_by_stage=tuple(
            span for span, many in zip(spans, pp, strict=True) for _ in range(many)
        ),
        layouts=tuple(replace(whole, pp=sum(pp[k] for k in own)) for own in holding),
        layers=tuple(counts),
        step_s=float(found.step_s[row]),
        network_s=float(found.network_s[row]),
        stage_s=tuple(stage_s),
        ledgers=tuple(terms[max(own, key=used.__getitem__)] for own in holding),
    )
