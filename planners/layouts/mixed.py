"""All layouts of a transformer over groups of unlike machines.

| here               | meaning                                                                  |
|--------------------|--------------------------------------------------------------------------|
| ``width``          | D: data-parallel ranks, the same in every stage                          |
| ``tp_g``, ``pp_g`` | tensor-parallel degree and stages of group g: D tp_g pp_g = its devices  |
| ``slowest_s``      | the longest stage and its sends [s]                                      |

Every choice of D, tp per group, micro-batch, recomputation, ZeRO 0 or 1 and order of the groups is
a column; layers are apportioned in ``planners.layouts.mixed``. step = sum of the stages
and sends +
(m-1) x the slowest + the slowest group's reduction and optimizer, as ``stage_partition``. One kind
of machine is ``planners.layouts.search``'s case.

Each group holds its own stages, or stages span groups: ranks are counted through the groups in
order, as Megatron-LM counts them, and a stage is the next D tp of them. Micro-batches are shared
evenly, so a stage of several kinds is as slow, and has as much room, as the least of them. The
columns of such a choice have stages of a *set* of groups where others have stages of a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
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
    Transformer,
    activation_width,
    impossible,
    layer_parameters,
    refused,
)
from advisor.planners.layouts.problem import LayoutProblem, SearchSpace, divisors
from advisor.planners.layouts.search import check_sizes
from advisor.planners.layouts.time import ring_bytes_per_s
from advisor.planners.links import tensor_parallel_s
from advisor.planners.memory import kept_bytes, layer_activation_bytes, sent_bytes
from advisor.planners.step import block_times

# ------------------------------------------------------------------------------------------
# Stages of a pipeline over unlike groups: what a layer takes in each, and how many each holds.
#
# | here             | meaning                                                                    |
# |------------------|----------------------------------------------------------------------------|
# | ``layer_s``      | forward and backward of one layer and micro-batch in a group [s]           |
# | ``most``         | layers that fit into a stage of the group                                  |
# | ``head_s``       | what the last stage does besides [s]                                       |
# | ``slowest_s``    | the longest stage, to be made as short as possible [s]                     |
#
# A stage time is a whole number of layers of its group, the last one's a whole number and the
# head. The least limit under which all layers find room is one of those: per group it is found by
# halving, for all columns at once. Columns are (n,), one row a candidate; lists are by group.


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
class GroupStages:
    """One group's stages: a layer's time, a send, and memory as fixed + layers x each.

    All arrays of shape (n,); ``update_s`` is exposed reduction and optimizer of a stage as
    ``update_fixed_s`` + layers x ``update_layer_s``, before what hides it is taken off.
    """

    layer_s: Floats
    send_s: Floats
    fixed_bytes: Floats
    layer_bytes: Floats
    most: Ints
    layer_parameters: Floats
    embedding_parameters: Floats
    ring_bytes_per_s: Floats
    stream_bytes_per_s: Floats


def group_stages(
    problems: Sequence[LayoutProblem], columns: MixedColumns, group: int
) -> GroupStages:
    """Return what one group's stages take, for every candidate."""
    problem, tp = problems[group], columns.tp[group]
    here, parameters = problem.machines, problem.parameters
    case = problem.case(columns.layouts(group))
    inside = tensor_parallel_s(case)
    side_by_side = np.minimum(columns.width * tp, int(here.devices_per_node))
    network = float(here.network_bytes_per_s) / side_by_side
    width = problem.transformer.hidden / tp
    boundary = 2 * columns.micro_batch * float(problem.transformer.sequence) * width
    boundary = boundary * activation_width(here.precision)
    send = boundary / (parameters.pp_efficiency * network) + parameters.pp_latency_s
    fixed, each, weights, embedding = _memory(problem, columns, group, len(problems))
    room = np.maximum(problem.capacity_bytes - fixed, 0.0)
    return GroupStages(
        layer_s=block_times(case).busy_s(inside) + inside,
        send_s=np.where(columns.stages > 1, send, 0.0),
        fixed_bytes=fixed,
        layer_bytes=each,
        most=np.floor(room / each).astype(np.int64),
        layer_parameters=weights,
        embedding_parameters=embedding,
        ring_bytes_per_s=ring_bytes_per_s(case, columns.width),
        stream_bytes_per_s=case.stream_bytes_per_s,
    )


def _memory(
    problem: LayoutProblem, columns: MixedColumns, group: int, groups: int
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return fixed bytes, bytes a layer, parameters a layer and embedding parameters."""
    shapes, software, memory = problem.shapes, problem.software, problem.memory
    layouts, tp = columns.layouts(group), columns.tp[group]
    attention, ffn = layer_parameters(shapes)
    weights = np.asarray((attention + ffn) / tp)
    is_end = group in (0, groups - 1)
    embedding = np.asarray(shapes.vocabulary, float) * shapes.hidden / tp * is_end
    shards = np.where(columns.zero_stage >= 1, columns.width, 1)
    trained = np.asarray(software.gradient_bytes) + software.optimizer_state_bytes / shards
    states = software.weight_bytes + problem.trained_share * trained
    whole = layer_activation_bytes(shapes, layouts, software)
    live = np.where(columns.recompute == 2, whole, 0.0)
    logits = memory.logit_bytes * columns.micro_batch * np.asarray(shapes.sequence, float)
    logits = logits * shapes.vocabulary / tp * (group == groups - 1)
    # A group's first stage holds most: as many micro-batches as stages follow it, itself included.
    behind = columns.stages - np.sum(columns.pp[:group], axis=0)
    held = np.minimum(behind, columns.steps)
    sent = np.where(columns.stages > 1, held * sent_bytes(shapes, layouts, software), 0.0)
    fixed = memory.context_bytes + memory.slack * (live + logits + sent + embedding * states)
    each = memory.slack * (weights * states + held * kept_bytes(shapes, layouts, software))
    return np.asarray(fixed), np.asarray(each), weights, np.asarray(embedding)


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


def update_s(
    columns: MixedColumns,
    stages: Sequence[GroupStages],
    layers: Sequence[Ints],
    problem: LayoutProblem,
) -> Floats:
    """Return the slowest group's exposed gradient reduction and optimizer update [s].

    ``problem``: any group's: what does not depend on the machines.
    """
    slowest = np.zeros(columns.width.shape)
    software, parameters = problem.software, problem.parameters
    gradient, weight = float(software.gradient_bytes), float(software.weight_bytes)
    overlap = parameters.dp_overlap if software.overlaps_dp else 0.0
    d = columns.width
    for group, n in zip(stages, layers, strict=True):
        held = n * group.layer_parameters + group.embedding_parameters
        # Scatter the gradients and gather the weights, or all-reduce the gradients.
        per_parameter = np.where(columns.zero_stage >= 1, gradient + weight, 2 * gradient)
        per_parameter = per_parameter * problem.trained_share
        reduction = per_parameter * held * (d - 1) / d / group.ring_bytes_per_s
        # Two thirds of a layer's time are its backward pass.
        hidden = overlap * n * group.layer_s * 2 / 3
        updated = held / np.where(columns.zero_stage >= 1, d, 1)
        update = parameters.optimizer_bytes * updated / group.stream_bytes_per_s
        slowest = np.maximum(slowest, np.maximum(reduction - hidden, 0.0) + update)
    return np.asarray(slowest + parameters.step_s)


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
    transformer = groups[0].problem.transformer
    check_sizes(transformer, sum(g.nodes for g in groups), global_batch)
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
        for spans, columns in (
            *_candidates(transformer, ordered, global_batch, same_tp, space),
            *_spanning(transformer, ordered, global_batch, space),
        ):
            held = [[ordered[i].problem for i in span] for span in spans]
            found = _evaluate(held, columns, space.stage_layers)
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
    stages = [zero for zero in (0, 1) if zero in space.zero_stages]
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
) -> Iterator[tuple[Spans, MixedColumns]]:  # fmt: skip
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
                yield tuple(span for span, _ in runs), _columns(table)


def _candidates(
    transformer: Transformer,
    groups: Sequence[MachineGroup],
    global_batch: int,
    same_tp: bool,
    space: SearchSpace,
) -> Iterator[tuple[Spans, MixedColumns]]:
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
        yield tuple((i,) for i in range(len(groups))), _columns(np.array(rows, dtype=np.int64))


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
    stages: list[GroupStages]
    layers: list[Ints]
    last: Ints
    head_s: Floats


def _slowest(of: Sequence[GroupStages]) -> GroupStages:
    """Return the stages that devices of several kinds hold together."""
    worst = {
        one.name: reduce(
            np.minimum if one.name in _LEAST else np.maximum,
            [getattr(stages, one.name) for stages in of],
        )
        for one in fields(GroupStages)
    }
    return GroupStages(**worst)


_LEAST: Final = ("most", "ring_bytes_per_s", "stream_bytes_per_s")


def _as_cut(
    cut: Sequence[int], columns: MixedColumns, stages: Sequence[GroupStages], head_s: Floats
) -> tuple[list[Ints], Ints, Floats, Ints]:
    """Return what ``apportion`` does, and layers by column of stages, where the cut is given."""
    counts = [np.zeros_like(columns.width) for _ in stages]
    totals = np.zeros((len(stages), columns.width.size), np.int64)
    slowest = np.where(columns.stages == len(cut), 0.0, np.inf)
    ends = np.cumsum(columns.pp, axis=0)
    for stage, layers in enumerate(cut):
        of = np.argmax(ends > stage, axis=0)
        for k, one in enumerate(stages):
            here = (of == k) & (stage < ends[-1])
            counts[k] = np.where(here, np.maximum(counts[k], layers), counts[k])
            totals[k] += np.where(here, layers, 0)
            took = layers * one.layer_s + (head_s if stage == len(cut) - 1 else 0.0)
            took = np.where(layers <= one.most, took, np.inf)
            slowest = np.where(here, np.maximum(slowest, took), slowest)
    last = np.full(columns.width.shape, cut[-1], dtype=np.int64)
    return counts, last, slowest, totals


def _evaluate(
    held: Sequence[Sequence[LayoutProblem]], columns: MixedColumns,
    cut: Sequence[int] | None = None,
) -> _Evaluated:  # fmt: skip
    """Evaluate the columns.

    ``held``: of every column of stages, the kinds that hold it; ``cut``: layers by stage, where
    they are given.
    """
    problems = [kinds[0] for kinds in held]
    transformer = problems[0].transformer
    stages = [
        _slowest(
            [group_stages([*problems[:i], kind, *problems[i + 1 :]], columns, i) for kind in kinds]
        )
        for i, kinds in enumerate(held)
    ]
    last_layouts = columns.layouts(len(held) - 1)
    head = reduce(np.maximum, [block_times(kind.case(last_layouts)).head_s for kind in held[-1]])
    head = np.broadcast_to(head, columns.width.shape)
    speeds = np.stack([s.layer_s for s in stages])
    if cut is not None:
        layers, last, slowest, totals = _as_cut(cut, columns, stages, head)
    else:
        room = [s.most for s in stages]
        layers, last, slowest = apportion(transformer.layers, columns.pp, list(speeds), room, head)
        totals = np.stack([p * n for p, n in zip(columns.pp, layers, strict=True)])
        totals[-1] += last - layers[-1]
        totals = _relieved(totals, np.stack(columns.pp), speeds, transformer.layers)
    fits = np.isfinite(slowest)
    work = (totals * speeds).sum(axis=0) + head
    send = np.stack([s.send_s for s in stages])
    sends = 2 * np.sum([p * s.send_s for p, s in zip(columns.pp, stages, strict=True)], axis=0)
    slot = np.where(fits, slowest, 0.0) + 2 * send.max(axis=0)
    step = (
        work + sends + (columns.steps - 1) * slot + update_s(columns, stages, layers, problems[0])
    )
    return _Evaluated(
        step_s=np.where(fits, step, np.inf),
        missing_bytes=_missing(transformer.layers, held, columns, stages),
        stages=stages,
        layers=layers,
        last=last,
        head_s=head,
    )


def _relieved(totals: Ints, stages: Ints, speeds: Floats, layers: int) -> Ints:
    """Take the layers too many off the groups that are slowest a layer; all (groups, n)."""
    left = np.maximum(totals.sum(axis=0) - layers, 0)
    relieved = totals.copy()
    for rank in np.argsort(-speeds, axis=0, kind="stable"):
        place = rank[None, :]
        held = np.take_along_axis(relieved, place, axis=0)[0]
        spare = np.maximum(held - np.take_along_axis(stages, place, axis=0)[0], 0)
        off = np.minimum(spare, left)
        np.put_along_axis(relieved, place, (held - off)[None, :], axis=0)
        left = left - off
    return relieved


def _missing(
    layers: int,
    held: Sequence[Sequence[LayoutProblem]],
    columns: MixedColumns,
    stages: Sequence[GroupStages],
) -> Floats:
    """Return how much the fullest device lacks if every stage holds an even share of layers."""
    share = np.ceil(layers / columns.stages)
    short = [
        s.fixed_bytes + share * s.layer_bytes - min(kind.capacity_bytes for kind in kinds)
        for s, kinds in zip(stages, held, strict=True)
    ]
    return np.asarray(np.maximum(np.max(short, axis=0), 0.0))


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
    for n, pp, s in zip(found.layers, columns.pp, found.stages, strict=True):
        counts += [int(n[row])] * int(pp[row])
        speed += [float(s.layer_s[row])] * int(pp[row])
    counts[-1] = int(found.last[row])
    counts = counts if cut is None else list(cut)
    while sum(counts) > layers:
        # As ``_relieved``: the group slowest a layer first, its fullest and latest stage.
        spare = [i for i, n in enumerate(counts) if n > 1]
        slowest = max(speed[i] for i in spare)
        fullest = max((i for i in spare if speed[i] == slowest), key=lambda i: (counts[i], i))
        counts[fullest] -= 1
    stage_s = [n * t for n, t in zip(counts, speed, strict=True)]
    stage_s[-1] += float(found.head_s[row])
    used = [
        float(s.fixed_bytes[row] + n[row] * s.layer_bytes[row])
        for n, s in zip(found.layers, found.stages, strict=True)
    ]
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
        stage_s=tuple(stage_s),
        memory_bytes=tuple(max(used[k] for k in own) for own in holding),
    )
