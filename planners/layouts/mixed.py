"""All layouts of a transformer over groups of unlike machines.

| here               | meaning                                                                |
|--------------------|------------------------------------------------------------------------|
| ``width``          | D: data-parallel ranks, the same in every stage                        |
| ``tp_g``, ``pp_g`` | tensor-parallel degree and stages of group g: D tp_g pp_g = its devices |
| ``layer_s``        | forward and backward of one layer and micro-batch in a group [s]       |
| ``most``           | layers that fit into a stage of the group                              |
| ``slowest_s``      | the longest stage, to be made as short as possible [s]                 |

Every choice of D, tp per group, micro-batch, recomputation, ZeRO stage and order of the groups is
a column (n,); lists are by group. step = the stages, the fullest of each group + (m-1) x the
slowest + m x the slowest send + the slowest group's reduction and optimizer: each of them, and
memory, by the law of one kind of machine (``planners.layouts.time``, ``planners.memory``), asked
of a model of which every stage has as many layers as the group's. So groups of one kind take what
``LayoutProblem`` says of them as one.

A stage time is a whole number of layers of its group, the last one's a whole number and the head.
The least limit under which all layers find room is one of those: per group it is found by halving.

Each group holds its own stages, or stages span groups: ranks are counted through the groups in
order, as Megatron-LM counts them, and a stage is the next D tp of them. Micro-batches are shared
evenly, so a stage of several kinds is as slow, and has as much room, as the least of them. The
columns of such a choice have stages of a *set* of groups where others have stages of a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby, permutations, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import (
    GIB,
    RECOMPUTES,
    Floats,
    Layout,
    Layouts,
    PlanningError,
    Shapes,
    Transformer,
    impossible,
    refused,
)
from advisor.planners.layouts.problem import LayoutProblem, SearchSpace, divisors
from advisor.planners.layouts.search import check_sizes
from advisor.planners.layouts.time import (
    StageTimes,
    data_parallel_s,
    optimizer_s,
    slowest,
    stage_times,
    straggling,
)
from advisor.planners.memory import needed_bytes

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedColumns:
    """Candidates: the width (data-parallel ranks), micro-batch and choices all groups share."""

    # width, micro_batch, steps, recompute, zero_stage: (n,)
    width: Ints
    micro_batch: Ints
    steps: Ints
    recompute: Ints
    zero_stage: Ints
    # tp, pp: (n,); tensor-parallel degree and stages, by group in pipeline order
    tp: list[Ints]
    pp: list[Ints]

    @property
    def stages(self) -> Ints:
        """Stages of all groups together."""
        total: Ints = np.sum(self.pp, axis=0)
        return total

    def layouts(self, group: int) -> Layouts:
        """Return the layout model's columns of one group's stages."""
        return Layouts(
            dp=self.width,
            tp=self.tp[group],
            pp=self.stages,
            micro_batch=self.micro_batch,
            accumulation_steps=self.steps,
            shard_group=self.width,
            zero_stage=self.zero_stage,
            recompute=self.recompute,
            is_sequence_parallel=self.tp[group] > 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """The stages of one group, or of a set of groups, as candidates have them."""

    kinds: Sequence[LayoutProblem]  # the machines that hold them
    columns: MixedColumns
    place: int  # in pipeline order

    @property
    def layouts(self) -> Layouts:
        """The layout model's columns."""
        return self.columns.layouts(self.place)

    @property
    def is_last(self) -> bool:
        """Whether the last stage, with the head, is among them."""
        return self.place == len(self.columns.pp) - 1

    def times(self) -> StageTimes:
        """Return what a layer takes and what is sent, on the slowest kind."""
        return stage_times(*(kind.case(self.layouts) for kind in self.kinds))

    def shapes(self, layers: Ints) -> Shapes:
        """Return the model of which every stage has so many layers, and the tables as here."""
        whole = self.kinds[0].shapes
        tables = whole.vocabulary if self.is_last or self.place == 0 else 0
        return replace(whole, layers=layers * self.columns.stages, vocabulary=tables)

    def needed_bytes(self, layers: Ints) -> Floats:
        """Return what the fullest device needs for so many layers a stage."""
        one, columns = self.kinds[0], self.columns
        # A group's first stage holds most: as many micro-batches as stages follow it, and itself.
        behind = columns.stages - np.sum(columns.pp[: self.place], axis=0)
        return needed_bytes(
            self.shapes(layers), self.layouts, one.software, one.memory,
            stage="fullest" if self.is_last else "first",
            held=np.minimum(behind, columns.steps),
        )  # fmt: skip

    @property
    def capacity_bytes(self) -> float:
        """What may be filled of the smallest device."""
        return min(kind.capacity_bytes for kind in self.kinds)

    def most(self) -> Ints:
        """Return the layers that fit into a stage; 0 where not even one does."""
        low = np.zeros_like(self.columns.width)
        high = np.full_like(low, self.kinds[0].transformer.layers)
        while (low < high).any():
            middle = (low + high + 1) // 2
            fits = self.needed_bytes(np.maximum(middle, 1)) <= self.capacity_bytes
            low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
        return low

    def ending_s(self, layers: Ints, one: StageTimes) -> Floats:
        """Return the exposed reductions of so many layers a stage, and their update [s]."""
        shapes = self.shapes(layers)
        computed = self.columns.steps * (layers * one.busy_s + one.head_s)
        cases = [replace(kind.case(self.layouts), shapes=shapes) for kind in self.kinds]
        reduced = [data_parallel_s(case, layers * one.backward_s, computed) for case in cases]
        return slowest(reduced) + slowest([optimizer_s(case) for case in cases])


def apportion(
    layers: int,
    stages: Sequence[Ints],
    layer_s: Sequence[Floats],
    most: Sequence[Ints],
    head_s: Floats,
) -> tuple[list[Ints], Ints, Floats]:
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
MOST_MICRO_BATCH: Final = 64
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
    memory_bytes: tuple[float, ...]  # of the fullest device, by group in pipeline order [bytes]
    # considered, fitting: candidates, and those that fit
    considered: int = 0
    fitting: int = 0


def search_mixed(
    groups: Sequence[MachineGroup], global_batch: int, *, same_tp: bool = False,
    space: SearchSpace = _EVERYTHING,
) -> MixedPlan:  # fmt: skip
    """Return the fastest pipeline over all groups.

    ``groups``: of the same transformer; dense: experts are not spread over unlike machines;
    ``same_tp``: one tensor-parallel degree for all groups: what Megatron-LM can run; False by
    default; ``space``: what may be chosen; ``pp`` counts the stages of all groups.

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
    for order in _orders(len(groups)):
        ordered = [groups[i] for i in order]
        for spans, table in (
            *_candidates(transformer, ordered, global_batch, same_tp, space),
            *_spanning(transformer, ordered, global_batch, space),
        ):
            columns = _admitted(groups[0].problem, _columns(table), table)
            if not columns.width.size:
                continue
            kinds = [[ordered[i].problem for i in span] for span in spans]
            found = _evaluate(kinds, columns, nodes, space.stage_layers)
            considered += columns.width.size
            fitting += int(np.count_nonzero(np.isfinite(found.step_s)))
            shortest = min(shortest, float(found.missing_bytes.min()))
            row = int(np.argmin(found.step_s))
            if np.isfinite(found.step_s[row]) and (
                best is None or found.step_s[row] < best.step_s
            ):
                best = _describe(
                    order, spans, columns, found, row, transformer.layers, space.stage_layers
                )
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
            f"{transformer.layers} layers and the batch: every group needs as many data-parallel "
            "ranks as the others",
            "choose machine counts with a common divisor, or a batch with more divisors",
        )
    return impossible(
        f"no pipeline over {devices} devices fits: the nearest misses by {missing / GIB:.1f} GiB "
        "on its fullest device",
        "add machines to the smaller group, or shorten the sequence",
    )


Spans = tuple[tuple[int, ...], ...]  # which groups hold the stages of each column of ``tp``


def _shared_choices(
    width: int, global_batch: int, space: SearchSpace
) -> list[tuple[int, int, int, int, int]]:
    """Return width, micro-batch, micro-batches, recomputation and ZeRO stage of all choices."""
    modes = [i for i, name in enumerate(RECOMPUTES) if name in space.recomputes]
    stages = list(space.zero_stages)
    several = [zero for zero in stages if zero or not space.always_shards]
    if (
        space.cp not in (None, 1)
        or space.ep not in (None, 1)
        or max(space.min_cp, space.min_ep) > 1
        or global_batch % width
    ):
        return []  # neither is spread over unlike machines
    each = global_batch // width
    most_micro = max(min(MOST_MICRO_BATCH, space.max_micro_batch), space.micro_batch or 1)
    return [
        (width, micro, each // micro, recompute, zero)
        for micro in divisors(each, most_micro)
        if space.micro_batch in (None, micro) and space.accumulation_steps in (None, each // micro)
        for recompute in modes
        for zero in (several if width > 1 else stages[:1])
    ]


def _spanning(
    transformer: Transformer, groups: Sequence[MachineGroup], global_batch: int,
    space: SearchSpace,
) -> Iterator[tuple[Spans, Ints]]:  # fmt: skip
    """Yield the choices in which some stage has devices of several groups, tp the same in all."""
    ends = np.cumsum([g.devices for g in groups])
    total = int(ends[-1])
    narrowest = int(np.gcd.reduce([int(g.problem.machines.devices_per_node) for g in groups]))
    for tp in divisors(narrowest):
        if (
            transformer.heads % tp
            or space.tp not in (None, tp)
            or not space.min_tp <= tp <= space.max_tp
        ):
            continue
        for width in divisors(total // tp):
            stages = total // tp // width
            if stages > transformer.layers or space.pp not in (None, stages):
                continue
            if stages < space.min_pp:
                continue
            starts = np.arange(stages) * width * tp
            first = np.searchsorted(ends, starts, "right").tolist()
            last = np.searchsorted(ends, starts + width * tp - 1, "right").tolist()
            of_stage = [tuple(range(a, b + 1)) for a, b in zip(first, last, strict=True)]
            if all(len(one) == 1 for one in of_stage):
                continue  # each group holds its own
            runs = [(span, len(list(same))) for span, same in groupby(of_stage)]
            rows = _shared_choices(width, global_batch, space)
            if rows:
                degrees = [degree for _, pp in runs for degree in (tp, pp)]
                table = np.array([(*row, *degrees) for row in rows], dtype=np.int64)
                yield tuple(span for span, _ in runs), table


def _candidates(
    transformer: Transformer,
    groups: Sequence[MachineGroup],
    global_batch: int,
    same_tp: bool,
    space: SearchSpace,
) -> Iterator[tuple[Spans, Ints]]:
    """Yield the choices in which each group holds its own stages, if there are any."""
    common = int(np.gcd.reduce([g.devices for g in groups]))
    rows = []
    for width in divisors(common):
        shared = _shared_choices(width, global_batch, space)
        if not shared:
            continue
        of_groups = [
            [
                (tp, g.devices // width // tp)
                for tp in divisors(g.devices // width, int(g.problem.machines.devices_per_node))
                if transformer.heads % tp == 0
                and space.tp in (None, tp)
                and space.min_tp <= tp <= space.max_tp
            ]
            for g in groups
        ]
        for choice in product(*of_groups):
            if same_tp and len({tp for tp, _ in choice}) > 1:
                continue
            total = sum(pp for _, pp in choice)
            if space.pp not in (None, total) or total < space.min_pp:
                continue
            if total <= transformer.layers:
                degrees = [degree for pair in choice for degree in pair]
                rows += [(*one, *degrees) for one in shared]
    if rows:
        yield tuple((i,) for i in range(len(groups))), np.array(rows, dtype=np.int64)


def _admitted(problem: LayoutProblem, columns: MixedColumns, table: Ints) -> MixedColumns:
    """Return the candidates whose stages the problem's framework runs."""
    if problem.admits is None:
        return columns
    runs = np.ones(columns.width.shape, bool)
    for place in range(len(columns.tp)):
        layouts = columns.layouts(place)
        # Rules about cutting layers into stages evenly do not hold of a cut that is given.
        runs &= problem.admits(replace(layouts, pp=np.minimum(layouts.pp, 2)))
    return _columns(table[runs])


def _columns(table: Ints) -> MixedColumns:
    """Return rows of the shared choices, and of tp and pp of every column of stages."""
    held = (table.shape[1] - 5) // 2
    return MixedColumns(
        width=table[:, 0],
        micro_batch=table[:, 1],
        steps=table[:, 2],
        recompute=table[:, 3],
        zero_stage=table[:, 4],
        tp=[table[:, 5 + 2 * i] for i in range(held)],
        pp=[table[:, 6 + 2 * i] for i in range(held)],
    )


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """Step times (inf where nothing fits) and what they are made of, by candidate."""

    step_s: Floats
    missing_bytes: Floats
    # of every column of stages: a layer [s], layers of a stage, bytes of the fullest device
    layer_s: list[Floats]
    layers: list[Ints]
    needed_bytes: list[Floats]
    last: Ints
    head_s: Floats
    network_s: Floats  # what is sent and reduced, and the update [s]


def _as_cut(
    cut: Sequence[int], columns: MixedColumns, layer_s: Sequence[Floats], most: Sequence[Ints],
    head_s: Floats,
) -> tuple[list[Ints], Ints, Floats, Floats]:  # fmt: skip
    """Return what ``apportion`` does, and all stages in a row, where the cut is given."""
    counts = [np.zeros_like(columns.width) for _ in layer_s]
    row = np.array(head_s)
    longest = np.where(columns.stages == len(cut), 0.0, np.inf)
    ends = np.cumsum(columns.pp, axis=0)
    for stage, layers in enumerate(cut):
        of = np.argmax(ends > stage, axis=0)
        for k, one in enumerate(layer_s):
            here = (of == k) & (stage < ends[-1])
            counts[k] = np.where(here, np.maximum(counts[k], layers), counts[k])
            row += np.where(here, layers * one, 0.0)
            took = layers * one + (head_s if stage == len(cut) - 1 else 0.0)
            took = np.where(layers <= most[k], took, np.inf)
            longest = np.where(here, np.maximum(longest, took), longest)
    last = np.full(columns.width.shape, cut[-1], dtype=np.int64)
    return counts, last, longest, row


def _evaluate(
    kinds: Sequence[Sequence[LayoutProblem]], columns: MixedColumns, nodes: int,
    cut: Sequence[int] | None = None,
) -> _Evaluated:  # fmt: skip
    """Evaluate the columns.

    ``kinds``: of every column of stages, the kinds that hold it; ``nodes``: of all kinds;
    ``cut``: layers by stage, where they are given.
    """
    held = [_Held(kinds=one, columns=columns, place=k) for k, one in enumerate(kinds)]
    layers_in_all = kinds[0][0].transformer.layers
    times = [one.times() for one in held]
    layer_s = [t.busy_s + t.inside_s for t in times]
    head = np.broadcast_to(times[-1].head_s, columns.width.shape)
    most = [one.most() for one in held]
    if cut is not None:
        layers, last, longest, row = _as_cut(cut, columns, layer_s, most, head)
    else:
        layers, last, longest = apportion(layers_in_all, columns.pp, layer_s, most, head)
        in_stages = zip(columns.pp, layers, layer_s, strict=True)
        row = head + np.sum([p * n * t for p, n, t in in_stages], axis=0)
    fits = np.isfinite(longest)
    layers = [np.maximum(n, 1) for n in layers]
    line = row + (columns.steps - 1) * np.where(fits, longest, 0.0)
    endings = [one.ending_s(n, t) for one, n, t in zip(held, layers, times, strict=True)]
    network = columns.steps * slowest([t.send_s for t in times]) + slowest(endings)
    slow = straggling(kinds[0][0].parameters, np.asarray(float(nodes)))
    share = np.ceil(layers_in_all / columns.stages).astype(np.int64)
    short = [one.needed_bytes(share) - one.capacity_bytes for one in held]
    return _Evaluated(
        step_s=np.where(fits, (line + network) * slow, np.inf),
        missing_bytes=np.maximum(reduce(np.maximum, short), 0.0),
        layer_s=layer_s,
        layers=layers,
        needed_bytes=[one.needed_bytes(n) for one, n in zip(held, layers, strict=True)],
        last=last,
        head_s=head,
        network_s=(line + network) * slow - line,
    )


def _describe(
    order: tuple[int, ...],
    spans: Spans,
    columns: MixedColumns,
    found: _Evaluated,
    row: int,
    layers: int,
    cut: Sequence[int] | None,
) -> MixedPlan:
    counts, speed = [], []
    for n, pp, layer_s in zip(found.layers, columns.pp, found.layer_s, strict=True):
        counts += [int(n[row])] * int(pp[row])
        speed += [float(layer_s[row])] * int(pp[row])
    counts[-1] = int(found.last[row])
    counts = counts if cut is None else list(cut)
    while sum(counts) > layers:
        # The group slowest a layer first, its fullest and latest stage.
        spare = [i for i, n in enumerate(counts) if n > 1]
        least = max(speed[i] for i in spare)
        fullest = max((i for i in spare if speed[i] == least), key=lambda i: (counts[i], i))
        counts[fullest] -= 1
    stage_s = [n * t for n, t in zip(counts, speed, strict=True)]
    stage_s[-1] += float(found.head_s[row])
    used = [float(one[row]) for one in found.needed_bytes]
    holding = [[k for k, span in enumerate(spans) if group in span] for group in range(len(order))]
    return MixedPlan(
        order=order,
        groups_by_stage=tuple(
            span for span, pp in zip(spans, columns.pp, strict=True) for _ in range(int(pp[row]))
        ),
        layouts=tuple(
            Layout(
                dp=int(columns.width[row]),
                tp=int(columns.tp[own[0]][row]),
                pp=int(sum(columns.pp[k][row] for k in own)),
                micro_batch=int(columns.micro_batch[row]),
                accumulation_steps=int(columns.steps[row]),
                zero_stage=int(columns.zero_stage[row]),
                recompute=RECOMPUTES[int(columns.recompute[row])],
                is_sequence_parallel=bool(columns.tp[own[0]][row] > 1),
            )
            for own in holding
        ),
        layers=tuple(counts),
        step_s=float(found.step_s[row]),
        network_s=float(found.network_s[row]),
        stage_s=tuple(stage_s),
        memory_bytes=tuple(max(used[k] for k in own) for own in holding),
    )
