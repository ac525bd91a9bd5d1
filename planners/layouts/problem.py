"""One transformer on one kind of machine: its fastest layout on so many devices, and a bound.

Layouts are evaluated as blocks of columns (``planners.layouts.problem``): memory first, then time
where it fits, block by block, so that memory stays bounded however many layouts there are.
Deterministic: of equal layouts the first in the grid's order wins, which is the simpler one.
Layouts that move anything to host memory are looked at only where they could be the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, reduce
from itertools import compress, product
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import (
    BACKWARDS,
    OFFLOADS,
    RECOMPUTES,
    Floats,
    Layout,
    LayoutCase,
    LayoutConditions,
    Layouts,
    Offload,
    Recompute,
    Schedule,
    Shapes,
    StackFacts,
    Transformer,
    chunk_layers,
    device_parameters,
    domain_devices,
    select,
    shapes_of,
)
from advisor.planners.layouts.frameworks import fills_chunks, layout_columns
from advisor.planners.layouts.time import StepTimes, least_step_s, step_times, with_paging
from advisor.planners.memory import (
    Ledger,
    MemoryConstants,
    StageAsked,
    context_bytes,
    deviation_bytes,
    host_bytes,
    ledger,
    model_state,
    needed_bytes,
    needed_of,
    parameter_state,
)
from advisor.planners.step import block_times

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
# What a device must have room for, and one standard deviation of it [bytes].
Needs = tuple[Floats, Floats]
# How likely a layout must fit: to be rented, and to be shown as possible. Deviations are those of
# readings, which hold what the allocator would give back before it fails: of published runs that
# ran 95 % fit by the first, 99 % by the second (``advisor validate memory``).
RENTED: Final = 0.9
POSSIBLE: Final = 0.5
# Repeats of one run on one machine with the same software scatter by 3 % (reference: MLPerf
# rounds): a layout that gains less is not worth its complexity.
INDISTINGUISHABLE: Final = 1.03
# Beyond these nobody has trained.
_MOST_STAGES: Final = 512
_MOST_CP: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What may be chosen; the default is everything."""

    max_tp: int = 64
    max_micro_batch: int = 128
    min_tp: int = 1
    min_pp: int = 1
    min_cp: int = 1
    min_ep: int = 1
    # tp, pp, cp, ep, etp, micro_batch, accumulation_steps: exactly these; None leaves them open
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    micro_batch: int | None = None
    accumulation_steps: int | None = None
    # the question leaves a degree open that is fixed here, to look at one family of layouts
    is_part: bool = False
    # stages may hold unlike numbers of layers: over unlike machines
    cuts_unevenly: bool = False
    # layers of each stage over unlike machines; None leaves the cut to the planner
    stage_layers: tuple[int, ...] | None = None
    schedules: tuple[Schedule, ...] = ("1f1b", "gpipe", "interleaved")
    # exactly this schedule, and so many chunks of layers on a stage; None leaves them open
    schedule: Schedule | None = None
    chunks: int | None = None
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    # ranks that hold the same share their state: stage 0 is for one rank
    always_shards: bool = False
    # hierarchical sharding: state shared by the ranks of one node only
    may_shard_in_nodes: bool = True
    recomputes: tuple[Recompute, ...] = ("none", "selective", "full")
    offloads: tuple[Offload, ...] = OFFLOADS
    # parameters of a lone device may lie in host memory, too: where offload was asked for by name
    offloads_alone: bool = False
    # exactly these are moved, of what may be (``offloads``); None leaves it open
    moves: tuple[Offload, ...] | None = None
    # layers are updated in the backward pass, so that no micro-batches are accumulated
    updates_in_backward: bool = False
    # probability that a device has room for what a layout needs (``RENTED``, ``POSSIBLE``)
    sureness: float = POSSIBLE
    # layers may be swapped in from host memory, by peers that average (``planners.systems.atom``)
    swaps: bool = False
    # steps between two averagings of such peers; None leaves it to the planner
    average_every: int | None = None

    def sharded_as(self, facts: StackFacts | None) -> SearchSpace:
        """Return the space, with ZeRO stages that nobody asked for as a stack has them."""
        if facts is None or self.zero_stages != SearchSpace().zero_stages:
            return self
        return replace(self, zero_stages=facts.zero_stages, always_shards=facts.always_shards)

    @property
    def fixed(self) -> dict[str, object]:
        """What is not left open, by name."""
        default = SearchSpace()
        names = ("tp", "pp", "cp", "ep", "etp", "micro_batch", "accumulation_steps",
                 "schedule", "chunks", "zero_stages", "recomputes", "offloads", "moves",
                 "updates_in_backward")  # fmt: skip
        return {n: getattr(self, n) for n in names if getattr(self, n) != getattr(default, n)}


def divisors(number: int, limit: int | None = None) -> list[int]:
    """Return the divisors of a number in rising order, up to a limit.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    top = number if limit is None else min(number, limit)
    return [d for d in range(1, top + 1) if number % d == 0]


def fills_stages(layers: int, pp: int) -> bool:
    """Whether equal stages (but for the last one) leave none empty.

    >>> fills_stages(25, 5), fills_stages(25, 8), fills_stages(9, 8)
    (True, False, False)
    """
    return (pp - 1) * -(-layers // pp) < layers


def degrees(
    shape: Transformer, devices: int, global_batch: int, space: SearchSpace
) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield every valid (dp, tp, pp, cp, ep, etp) that uses all devices.

    Valid: heads divide over tp, no pipeline stage is empty, the sequence divides over twice cp
    (zigzag), experts divide over ep, ep etp divides the ranks of a stage, and dp divides the
    batch. Of experts that are spread, the tp ranks share each, or have their own.
    """
    kv_heads = shape.kv_heads or shape.heads
    for tp in divisors(devices, min(space.max_tp, shape.heads)):
        if tp < space.min_tp:
            continue
        if shape.heads % tp or (kv_heads % tp and tp % kv_heads) or space.tp not in (None, tp):
            continue
        stages = 1 if space.updates_in_backward else min(_MOST_STAGES, shape.layers)
        for pp in divisors(devices // tp, stages):
            if pp < space.min_pp:
                continue
            fills = space.cuts_unevenly or fills_stages(shape.layers, pp)
            if not fills or space.pp not in (None, pp):
                continue
            for cp in divisors(devices // tp // pp, _MOST_CP):
                dp = devices // tp // pp // cp
                if global_batch % dp or (cp > 1 and shape.sequence % (2 * cp)):
                    continue
                if space.cp not in (None, cp) or cp < space.min_cp:
                    continue
                for ep in divisors(shape.experts, dp * cp * tp):
                    if space.ep not in (None, ep) or ep < space.min_ep:
                        continue
                    for etp in dict.fromkeys((tp, 1) if ep > 1 else (tp,)):
                        if dp * cp * tp % (ep * etp) == 0 and space.etp in (None, etp):
                            yield dp, tp, pp, cp, ep, etp


# What ``splits`` chooses, in its rows' order.
_CHOSEN: Final = ("dp", "tp", "pp", "cp", "ep", "etp", "micro_batch", "accumulation_steps",
                  "virtual_stages", "holds_all", "backward")  # fmt: skip


@lru_cache(maxsize=256)
def splits(shape: Transformer, devices: int, global_batch: int, space: SearchSpace) -> Layouts:
    """Return axis 0, columns of shape (n,): every valid choice of degrees, batch and schedule.

    Kept for the next question: machines with as many devices share it.
    """
    rows = [
        (dp, tp, pp, cp, ep, etp, micro, global_batch // dp // micro, *schedule)
        for dp, tp, pp, cp, ep, etp in degrees(shape, devices, global_batch, space)
        for micro in _micro_batches(global_batch // dp, space)
        for schedule in _schedules(shape.layers, pp, global_batch // dp // micro, space)
    ]
    table = np.array(rows, dtype=np.int64).reshape(-1, len(_CHOSEN)).T
    columns: dict[str, Any] = dict(zip(_CHOSEN, table, strict=True))
    columns["holds_all"] = columns["holds_all"].astype(bool)
    return Layouts(
        **columns,
        is_sequence_parallel=(columns["tp"] > 1).astype(np.int64),
        shard_group=columns["dp"] * columns["cp"],
        updates_in_backward=int(space.updates_in_backward),
    )


def axis_part(axis: Layouts, rows: slice | Ints) -> Layouts:
    """Return some rows of axis 0, shaped (k, 1, 1)."""
    return select(axis, (rows, None, None))


def _micro_batches(local: int, space: SearchSpace) -> list[int]:
    """Return the micro-batches that divide a rank's samples, as far as they are left open."""
    return [
        micro
        for micro in divisors(local, space.max_micro_batch)
        if space.micro_batch in (None, micro)
        and space.accumulation_steps in (None, local // micro)
        and (micro == local or not space.updates_in_backward)
    ]


def _schedules(
    layers: int, pp: int, steps: int, space: SearchSpace
) -> list[tuple[int, bool, int]]:
    """Return (chunks of a stage, holds all micro-batches, backward) of schedules that can run."""
    may_be = (space.schedule,) if space.schedule else space.schedules
    is_open = space.schedule in (None, "1f1b", "gpipe")
    if pp == 1:
        return [(1, False, 0)] if is_open and space.chunks in (None, 1) else []
    found = [(1, False, 0)] if "1f1b" in may_be else []
    found += [(1, True, 0)] if "gpipe" in may_be else []
    # Who says how many chunks a stage has says that stages interleave.
    is_chunked = "interleaved" in may_be or (space.schedule is None and space.chunks is not None)
    if is_chunked and steps % pp == 0:
        most = -(-layers // pp)
        found += [(v, False, 0) for v in range(2, most + 1) if fills_chunks(layers, pp * v)]
    # Two chunks a stage, out and back, so that the last stage follows itself.
    if {"zb", "dualpipe"} & set(may_be) and layers % (2 * pp) == 0 and steps >= 2 * pp - 1:
        found += [(2, False, BACKWARDS.index(one)) for one in may_be if one in BACKWARDS]
    return [one for one in found if space.chunks in (None, one[0])]


def recomputes(space: SearchSpace) -> dict[str, Ints]:
    """Return axis 1, shaped (1, k, 1): recomputation."""
    codes = np.array([RECOMPUTES.index(r) for r in space.recomputes], dtype=np.int64)
    return {"recompute": codes[None, :, None]}


def shards(space: SearchSpace) -> dict[str, Ints]:
    """Return axis 2, shaped (1, 1, k): ZeRO stage, sharding in nodes or not at all, offload.

    Parameters are offloaded with ZeRO-3 only: elsewhere every rank keeps them all. Where stages
    are asked for, the least of them is what a lone device has, which shares nothing.
    """
    rows = []
    for zero in space.zero_stages:
        scopes = (0, 1) if zero and space.may_shard_in_nodes else (0,)
        for scope, moved in product(scopes, _moved(zero, space)):
            alone = not scope and may_stand_alone(zero, "parameters" in moved, space)
            lone = zero == 0 and space.always_shards and max(space.zero_stages) > 0
            rows.append((zero, scope, lone, alone, *(int(o in moved) for o in OFFLOADS)))
    table = np.array(rows, dtype=np.int64).reshape(-1, 4 + len(OFFLOADS))[None, None, :, :]
    names = ("zero_stage", "in_node", "is_lone", "is_alone", *(f"offloads_{o}" for o in OFFLOADS))
    return {name: table[..., place] for place, name in enumerate(names)}


def _moved(zero: int, space: SearchSpace) -> list[tuple[Offload, ...]]:
    """Return what may lie in host memory together in a ZeRO stage, or does where it is asked for.

    Gradients go where the stack's offloaded optimizer takes them, unless they are asked for.
    """
    if space.moves is not None and space.offloads:
        return [space.moves] if zero == 3 or "parameters" not in space.moves else []
    usable: list[Offload] = [
        o for o in OFFLOADS
        if o in space.offloads and o != "gradients" and (zero == 3 or o != "parameters")
        and not (o == "optimizer" and space.updates_in_backward)
    ]  # fmt: skip
    chosen = product((False, True), repeat=len(usable))
    return [tuple(compress(usable, some)) for some in chosen]


def may_stand_alone(zero_stage: int, moves_parameters: bool, space: SearchSpace) -> bool:
    """Whether a lone device, which shares nothing with anyone, is planned in a ZeRO stage.

    In the least that is asked for; with its parameters in host memory where that is asked for.
    """
    if moves_parameters:
        return zero_stage == 3 and space.offloads_alone
    return zero_stage == min(space.zero_stages)


def block(
    part: Layouts, recompute: dict[str, Ints], shard: dict[str, Ints], devices_per_node: int
) -> tuple[Layouts, Bools]:
    """Return a block of layouts and which of its entries are valid and not repetitions.

    Every valid layout of a transformer on so many devices, as three axes that broadcast.

    Axis 0 (``splits``): degrees, micro-batch and schedule, already checked against one another.
    Axis 1 (``recomputes``): recomputation. Axis 2 (``shards``): ZeRO stage, shard group and
    offload. What depends on one axis is computed on one axis only; the last two are short and the
    same for every split, so that a chunk of splits is a dense block. Tensor-parallel ranks always
    share the sequence outside their products (sequence parallelism): the same bytes travel, less
    is kept (Korthikanti et al., 2022, section 4.2).

    A repetition: sharding over one rank, or a node's share that is all ranks.
    """
    ranks = np.asarray(part.dp * part.cp)
    in_node = np.maximum(np.minimum(devices_per_node // np.asarray(part.tp), ranks), 1)
    group = np.where(shard["in_node"], in_node, ranks)
    moved = {name: column for name, column in shard.items() if not name.startswith(("in_", "is_"))}
    layouts = replace(part, **recompute, **moved, shard_group=group)
    may_repeat = (shard["is_lone"] == 0) | (ranks == 1)
    is_one = (ranks * part.tp * part.pp == 1) & (shard["is_alone"] == 1)
    is_sharded = np.where(shard["zero_stage"] == 0, may_repeat, (group > 1) | is_one)
    is_hierarchical = (shard["in_node"] == 0) | ((group < ranks) & (ranks % group == 0))
    return layouts, is_sharded & is_hierarchical


def flattened(layouts: Layouts, valid: Bools) -> Layouts:
    """Return the valid entries of a block in order, as columns of shape (n,)."""
    columns = {f.name: getattr(layouts, f.name) for f in fields(Layouts)}
    shape = np.broadcast_shapes(valid.shape, *(np.shape(one) for one in columns.values()))
    rows = np.broadcast_to(valid, shape)
    return Layouts(**{name: np.broadcast_to(one, shape)[rows] for name, one in columns.items()})


def layout_at(layouts: Layouts, index: tuple[int, ...], shape: tuple[int, ...]) -> Layout:
    """Return one entry of a block as a layout."""

    def at(name: str) -> int:
        return int(np.broadcast_to(getattr(layouts, name), shape)[index])

    schedule: Schedule = "1f1b"
    if at("backward"):
        schedule = "zb" if at("backward") == BACKWARDS.index("zb") else "dualpipe"
    elif at("virtual_stages") > 1:
        schedule = "interleaved"
    elif at("holds_all") and at("pp") > 1:
        schedule = "gpipe"
    ranks, group, zero = at("dp") * at("cp"), at("shard_group"), at("zero_stage")
    same = (
        "dp", "tp", "pp", "cp", "ep", "micro_batch", "accumulation_steps", "virtual_stages",
        "average_every",
    )  # fmt: skip
    return Layout(
        **{name: at(name) for name in same},
        etp=at("etp") if at("etp") not in (0, at("tp")) else None,
        schedule=schedule,
        zero_stage=zero,
        recompute=RECOMPUTES[at("recompute")],
        partial_layers=at("partial_layers") or None,
        is_sequence_parallel=bool(at("is_sequence_parallel")),
        shard_group=group if zero and group < ranks else None,
        offload=frozenset(o for o in OFFLOADS if at(f"offloads_{o}")),
        updates_in_backward=bool(at("updates_in_backward")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayout:
    """A layout with what the model says of it."""

    layout: Layout
    step_s: float
    # memory_bytes, host_bytes: needed on the fullest device; on a node for offload [bytes]
    memory_bytes: float
    host_bytes: float
    parts_s: dict[str, float]  # as in ``StepTimes``; they sum to ``step_s`` [s]
    # of a model that is cut at its units: how many each stage has, and the deviation of ln(step)
    stages: tuple[int, ...] = ()
    log_sd: float = 0.0


@dataclass(slots=True)
class Found:
    """What one search saw."""

    best: PlannedLayout | None = None
    # considered, fitting: layouts that no bound rules out, and those of them that fit into memory
    considered: int = 0
    fitting: int = 0
    # the layout that misses by the fewest bytes where none fits
    nearest: tuple[float, Layout] | None = None
    least_s: float = float("inf")  # the fastest step that was seen to fit [s]

    def misses(self, excess_bytes: float, layout: Layout) -> None:
        """Keep a layout that does not fit if none misses by less."""
        if self.nearest is None or excess_bytes < self.nearest[0]:
            self.nearest = excess_bytes, layout


# Entries of a block: its temporaries stay in the processor's cache.
_BLOCK: Final = 60_000
_FIRST: Final = 4  # part of a block that is looked at first: most often it rules out the rest
_FULL: Final = RECOMPUTES.index("full")
# Micro-batches among which the fewest seconds a sample are looked for: beyond, nothing saturates.
_LARGE_MICRO_BATCHES: Final = (1, 4, 16, 64, 256, 1024)

_ONE_DEVICE: Final = layout_columns(Layout())


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutProblem(LayoutConditions):
    """A transformer to be laid out on one kind of node: machines and factor are scalars."""

    transformer: Transformer
    device_factor: float = 1.0
    memory: MemoryConstants = field(default_factory=MemoryConstants)
    # trained_share, passed_share: of the parameters, those that are trained; of the layers, those
    # with a backward pass
    trained_share: float = 1.0
    passed_share: float = 1.0
    # probability that a device has room for what a layout needs
    sureness: float = POSSIBLE
    # full recomputation and offloaded activations take as few layers of a stage as must be
    parts_layers: bool = False
    # which layouts a framework runs (``planners.layouts.frameworks``); all where not given
    admits: Callable[[Layouts], Bools] | None = None
    # the same on other kinds of node that train with these: every rank has an equal share, so that
    # each part of a step is the slowest kind's, and a layout must fit on all
    beside: tuple[LayoutProblem, ...] = ()
    # bounds of splits that were not searched yet, by the question: of these machines alone
    seen: dict[Hashable, Floats] = field(default_factory=dict, compare=False, repr=False)

    @property
    def kinds(self) -> tuple[LayoutProblem, ...]:
        """The problem on every kind of node."""
        return (self, *self.beside)

    @property
    def shapes(self) -> Shapes:
        """The transformer as scalar columns."""
        return shapes_of(
            self.transformer, trained_share=self.trained_share, passed_share=self.passed_share
        )

    @property
    def joined_devices(self) -> int:
        """Devices that the link inside a node joins: those of a node, or of an NVLink domain."""
        return math.gcd(*(int(domain_devices(kind.machines)) for kind in self.kinds))

    @property
    def capacity_bytes(self) -> float:
        """Memory that a layout may fill of the smallest device [bytes]."""
        return min(kind.room_bytes for kind in self.kinds)

    @property
    def room_bytes(self) -> float:
        """The same of one of these machines' own devices [bytes]."""
        return float(self.machines.memory_bytes) - float(self.machines.kept_free_bytes)

    def case(self, layouts: Layouts) -> LayoutCase:
        """Return the question of what these layouts take."""
        same = {one.name: getattr(self, one.name) for one in fields(LayoutConditions)}
        return LayoutCase(shapes=self.shapes, layouts=layouts, **same)

    def evaluate(self, layout: Layout) -> PlannedLayout:
        """Return what one layout takes, whether it fits or not."""
        columns = layout_columns(layout)
        bytes_ = self.needed_bytes(columns), self.on_host(columns)[0]
        return planned(layout, self.times(columns), bytes_, (), ())

    def times(self, layouts: Layouts, needed: Floats | None = None) -> StepTimes:
        """Return the step of every layout and its parts, fitting or not [s].

        ``needed``: ``needed_bytes``, where they are known. What a step waits for its paged state
        is of these, however sure a layout must be to fit.
        """
        cases = [kind.case(layouts) for kind in self.kinds]
        times = step_times(*cases)
        if not np.any(self.software.pages_optimizer):
            return times
        needed = self.needed_bytes(layouts) if needed is None else needed
        return with_paging(times, cases[0], needed - self.capacity_bytes)

    def ledger(self, layouts: Layouts, stage: StageAsked = "fullest") -> Ledger:
        """Return the memory of the fullest device, or of an end of the pipeline, by term."""
        return ledger(self.shapes, layouts, self.software, self.memory, stage=stage)

    def needed_bytes(self, layouts: Layouts) -> Floats:
        """Return what the fullest device must have room for in every layout."""
        return needed_bytes(self.shapes, layouts, self.software, self.memory)

    def needs(self, layouts: Layouts) -> Needs:
        """Return the same with one standard deviation of it [bytes]."""
        return needs_of(self.ledger(layouts), self.memory)

    def sure_bytes(self, needs: Needs) -> Floats:
        """Return what has to be there beside what is kept free, for layouts to fit so surely.

        What is kept free is there for the error of a layout's memory, too.
        """
        needed, deviation = needs
        if self.sureness == POSSIBLE:
            return needed
        most = needed + NormalDist().inv_cdf(self.sureness) * deviation
        return np.maximum(needed, most - float(self.machines.kept_free_bytes))

    def over_bytes(self, needs: Needs) -> Floats:
        """Return by how much layouts miss their room on some device; below 0: they fit [bytes]."""
        return over_bytes(self.kinds, needs)

    def on_host(self, layouts: Layouts) -> tuple[Floats, Bools]:
        """Return what a node's host memory holds of every layout at most, and where it fits."""
        needed = [host_bytes(k.shapes, layouts, k.machines, k.software) for k in self.kinds]
        fits = [
            one <= kind.machines.host_memory_bytes
            for one, kind in zip(needed, self.kinds, strict=True)
        ]
        return reduce(np.maximum, needed), reduce(np.logical_and, fits)

    def search(self, devices: int, global_batch: int, space: SearchSpace) -> Found:
        """Return the fastest layout over all of ``devices`` that fits.

        What moves to host memory and back only adds to a step. So layouts that move anything are
        looked at only where they would be faster than what fits without, if moving were free; by
        more than measurements scatter, or else nothing is moved that nobody asked to move.
        """
        found = Found()
        axis = splits(self.transformer, devices, global_batch, space)
        moves, stays = _moving(shards(space))
        missing_s = np.zeros(np.size(axis.dp))  # where all layouts move something
        if stays["zero_stage"].size:
            bounds_s = self.bounds_s(devices, global_batch, space)
            self.seen.clear()
            missing_s = self._stay(axis, bounds_s, recomputes(space), stays, found)
        if moves["zero_stage"].size:
            kept, found.least_s = found.best, found.least_s / INDISTINGUISHABLE
            self._move(axis, recomputes(space), moves, missing_s, found)
            if kept is not None and found.best is kept:
                found.least_s = kept.step_s
        return found

    def fits(self, devices: int, global_batch: int, space: SearchSpace) -> bool:
        """Whether any layout fits into memory; no time is computed."""
        axis = splits(self.transformer, devices, global_batch, space)
        recompute, shard = recomputes(space), shards(space)
        for start in range(0, np.size(axis.dp), _BLOCK // 16):
            part = axis_part(axis, slice(start, start + _BLOCK // 16))
            layouts, valid = self._valid(part, recompute, shard)
            valid = valid & self.on_host(layouts)[1]
            if np.any(valid & (self.over_bytes(self.needs(layouts)) <= 0)):
                return True
        return False

    def _stay(
        self, axis: Layouts, bounds_s: Floats, recompute: dict[str, Ints], shard: dict[str, Ints],
        found: Found,
    ) -> Floats:  # fmt: skip
        """Look at layouts with nothing in host memory that could be the fastest.

        Returns the least time of each split among those that do not fit; inf where it is no less
        than that of what fits. [s]
        """
        missing_s = np.full(np.size(axis.dp), np.inf)
        for rows in _promising(bounds_s, recompute, shard, found):
            layouts, valid = self._valid(axis_part(axis, rows), recompute, shard)
            times, fits = self._look(layouts, valid, self.needs(layouts), found, moves=False)
            missing = np.where(valid & ~fits, times.step_s, np.inf)
            missing_s[rows] = missing.min(axis=(1, 2))
        return missing_s

    def _move(
        self, axis: Layouts, recompute: dict[str, Ints], shard: dict[str, Ints], missing_s: Floats,
        found: Found,
    ) -> None:  # fmt: skip
        """Look at layouts with something in host memory, the most promising splits first."""
        for rows in _promising(missing_s, recompute, shard, found):
            layouts, valid = self._valid(axis_part(axis, rows), recompute, shard)
            layouts = flattened(layouts, valid)  # few are
            if np.size(layouts.dp):
                valid = np.ones(np.shape(layouts.dp), dtype=bool)
                self._look(layouts, valid, self.needs(layouts), found, moves=True)

    def bounds_s(self, devices: int, global_batch: int, space: SearchSpace) -> Floats:
        """Return a bound from below on every layout of each of the ``splits``, (n,) [s]."""
        key = devices, global_batch, space
        if key not in self.seen:
            axis = splits(self.transformer, devices, global_batch, space)
            starts = range(0, max(np.size(axis.dp), 1), _BLOCK // 16)
            parts = [axis_part(axis, slice(start, start + _BLOCK // 16)) for start in starts]
            found = [least_step_s(*(kind.case(part) for kind in self.kinds)) for part in parts]
            self.seen[key] = np.concatenate([one.ravel() for one in found])
        return self.seen[key]

    def _valid(
        self, part: Layouts, recompute: dict[str, Ints], shard: dict[str, Ints]
    ) -> tuple[Layouts, Bools]:
        """Return a block, and which of its entries are valid and run by some framework."""
        layouts, valid = block(part, recompute, shard, self.joined_devices)
        return layouts, valid if self.admits is None else valid & self.admits(layouts)

    def _look(
        self, layouts: Layouts, valid: Bools, needs: Needs, found: Found, *, moves: bool
    ) -> tuple[StepTimes, Bools]:  # fmt: skip
        """Look at a block; return its times, and what fits.

        ``needs``: memory of the fullest device; ``moves``: whether anything is moved to host
        memory.
        """
        over = self.over_bytes(needs)
        if self.parts_layers:
            fewest = self._fewest_layers(layouts, over)
            layouts = replace(layouts, partial_layers=fewest)
            needs = self.needs(layouts)
            over = self.over_bytes(needs)
        on_host, has_room = np.zeros(()), np.asarray(True)
        if moves:
            on_host, has_room = self.on_host(layouts)
        shape = np.broadcast_shapes(over.shape, valid.shape, on_host.shape)
        fits = valid & (over <= 0) & has_room
        found.considered += int(np.count_nonzero(valid)) * (
            int(np.prod(shape)) // int(np.prod(valid.shape))
        )
        count = int(np.count_nonzero(fits))
        found.fitting += count
        if not count:
            self._miss(layouts, over, valid, shape, found)
        times = self.times(layouts, needs[0])
        step_s = np.where(fits, times.step_s, np.inf)
        index = np.unravel_index(int(np.argmin(step_s)), shape)
        if float(step_s[index]) < found.least_s:
            found.least_s = float(step_s[index])
            place = tuple(int(i) for i in index)
            layout = layout_at(layouts, place, shape)
            found.best = planned(layout, times, (needs[0], on_host), place, shape)
        return times, fits

    def _fewest_layers(self, layouts: Layouts, over: Floats) -> Ints:
        """Return how many layers of a chunk must be recomputed, or lie in host memory; 0 for all.

        Memory is the greatest of sums that are linear in the layers, and its deviation a norm of
        them, so that a chord between none of them and all lies above both.

        ``over``: what misses with all of them [bytes]
        """
        is_some = (np.asarray(layouts.recompute) == _FULL) | (
            np.asarray(layouts.offloads_activations) > 0
        )
        bare = replace(layouts, recompute=0, offloads_activations=0)
        without = self.over_bytes(self.needs(bare))
        layers = chunk_layers(self.shapes, layouts)
        share = without / np.maximum(without - over, 1.0)
        fewest = np.clip(np.ceil(share * layers), 1, layers)
        return np.where(is_some, fewest, 0).astype(np.int64)

    def _miss(
        self, layouts: Layouts, over: np.ndarray, valid: np.ndarray, shape: tuple[int, ...],
        found: Found,
    ) -> None:  # fmt: skip
        excess = np.where(valid, over, np.inf)
        excess = np.broadcast_to(excess, shape)
        index = np.unravel_index(int(np.argmin(excess)), shape)
        if np.isfinite(excess[index]):
            place = tuple(int(i) for i in index)
            found.misses(float(excess[index]), layout_at(layouts, place, shape))

    def least_step_s(self, devices: ArrayLike, global_batch: int, device_s: float) -> Floats:
        """Return a bound from below on the step in any layout; inf where none can fit [s].

        Computing alone, shared evenly; and where the state is larger than all devices' memory,
        what the hosts take to update the part of it that lies with them.

        ``devices``: shape (n,); ``device_s``: ``least_device_s_per_sample``, which is the same for
        all machines with the device.
        """
        devices = np.asarray(devices, float)
        software, machines = self.software, self.machines
        parameters = float(device_parameters(self.shapes, _ONE_DEVICE))
        state_bytes = self.least_state_bytes()
        nodes = devices / float(machines.devices_per_node)
        context = context_bytes(self.memory, is_alone=True)
        room = devices * (self.capacity_bytes - context)
        computing_s = device_s * global_batch / devices
        touched = model_state(0, software.gradient_bytes, software.optimizer_state_bytes)
        update_s = touched.device_bytes * self.trained_share * parameters / nodes
        with_hosts_s = computing_s + update_s / self.parameters.host_update_bytes_per_s
        most = room + nodes * float(machines.host_memory_bytes)
        least_s = np.where(state_bytes <= room, computing_s, with_hosts_s)
        return np.asarray(np.where(state_bytes > most, np.inf, least_s))

    def least_state_bytes(self) -> float:
        """Return what the state takes of all devices together, one copy of it [bytes]."""
        each = parameter_state(_ONE_DEVICE, self.software, self.shapes, np.ones(()))
        return float(device_parameters(self.shapes, _ONE_DEVICE) * each.device_bytes)

    def least_device_s_per_sample(self) -> float:
        """Return device-seconds that a sample takes at least, in any layout [s].

        A whole model on one device at the best micro-batch, every tile and wave full, nothing
        waited for, and weights cast for many micro-batches: splitting only adds to it. A bound
        from below, for pruning.
        """
        ideal = replace(
            self.parameters, wave_exponent=0.0, misaligned_gemm=1.0, misaligned_heads=1.0
        )
        micro = np.array(_LARGE_MICRO_BATCHES, float)
        layouts = replace(_ONE_DEVICE, micro_batch=micro, accumulation_steps=np.inf)
        block = block_times(replace(self.case(layouts), parameters=ideal))
        each = (block.forward_s + block.backward_s) * self.transformer.layers / micro
        return float(np.min(each))


def needs_of(terms: Ledger, constants: MemoryConstants) -> Needs:
    """Return what a device must have room for, and one standard deviation of it [bytes]."""
    return needed_of(terms), deviation_bytes(terms, constants)


def over_bytes(kinds: Iterable[LayoutProblem], needs: Needs) -> Floats:
    """Return by how much layouts miss their room on some kind of device; below 0: they fit."""
    return reduce(np.maximum, (kind.sure_bytes(needs) - kind.room_bytes for kind in kinds))


def _promising(
    bound_s: Floats, recompute: dict[str, Ints], shard: dict[str, Ints], found: Found
) -> Iterator[Ints]:
    """Yield splits by rising bound, ever more at once, until what is found is below all bounds."""
    order = np.argsort(bound_s, kind="stable")
    order = order[np.isfinite(bound_s[order])]
    most = max(1, _BLOCK // (recompute["recompute"].size * shard["zero_stage"].size))
    start, width = 0, max(1, most // _FIRST)
    while start < order.size:
        rows = np.sort(order[start : start + width])
        rows = rows[bound_s[rows] < found.least_s]
        if not rows.size:
            return
        yield rows
        start, width = start + width, most


def _moving(shard: dict[str, Ints]) -> tuple[dict[str, Ints], dict[str, Ints]]:
    """Return the shards with something in host memory, and those with nothing there."""
    moves = np.sum([column for name, column in shard.items() if "offloads" in name], axis=0) > 0
    return tuple(
        {name: column[:, :, which.ravel()] for name, column in shard.items()}
        for which in (moves, ~moves)
    )  # type: ignore[return-value]


def planned(
    layout: Layout, times: StepTimes, bytes_: tuple[Floats, Floats], place: tuple[int, ...],
    shape: tuple[int, ...], stages: tuple[int, ...] = (), log_sd: float = 0.0,
) -> PlannedLayout:  # fmt: skip
    """Return a layout with its entry of a block of the shape."""

    def at(values: np.ndarray) -> float:
        return float(np.broadcast_to(values, shape)[place])

    return PlannedLayout(
        layout=layout,
        step_s=at(times.step_s),
        memory_bytes=at(bytes_[0]),
        host_bytes=at(bytes_[1]),
        parts_s={
            part.name: at(getattr(times, part.name))
            for part in fields(times)
            if part.name != "step_s"
        },
        stages=stages,
        log_sd=log_sd,
    )
