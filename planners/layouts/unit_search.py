"""Layouts of a model cut at its units on equal machines: data, tensor and pipeline parallel.

Every (machines, tp, pp, micro-batch, ZeRO stage, way with the activations) is tried
(``planners.layouts.unit_stages`` has the equation); memory first, then time. Deterministic:
of layouts that no measurement would tell apart the simplest wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from advisor.planners.core import Layout, PlanningError, impossible
from advisor.planners.layouts.frameworks import RECORDED, is_runnable, layout_columns
from advisor.planners.layouts.problem import (
    Found,
    PlannedLayout,
    SearchSpace,
    divisors,
    may_stand_alone,
)
from advisor.planners.layouts.search import misses
from advisor.planners.layouts.unit_stages import (
    INDISTINGUISHABLE,
    UnitProblem,
    UnitSplit,
    least_s,
    with_pipeline,
    without_pipeline,
)

# What becomes of activations and state, by rising cost: of equal layouts the first wins.
_WAYS: Final = (
    Layout(),
    Layout(recompute="full"),
    Layout(offload=frozenset({"optimizer"})),
    Layout(recompute="full", offload=frozenset({"optimizer"})),
    Layout(offload=frozenset({"activations"})),
    Layout(offload=frozenset({"optimizer", "parameters"})),
    Layout(recompute="full", offload=frozenset({"optimizer", "parameters"})),
)
# Deeper pipelines than this have never been published.
_DEEPEST: Final = 64


def search_units(
    problem: UnitProblem,
    nodes: int,
    global_batch: int,
    *,
    space: SearchSpace | None = None,
    worth_s: float = float("inf"),
) -> PlannedLayout:
    """Return the best layout of a model's units on equal machines.

    ``global_batch``: one that the data-parallel ranks do not divide is rounded up on some of them;
    ``space``: units are not divided by context or expert parallelism, nor recomputed selectively;
    ``worth_s``: stages whose step is sure to be slower are not cut.

    Raises PlanningError if nothing divides or nothing fits; the message names the nearest miss.
    """
    space = space or SearchSpace()
    for name in ("cp", "ep"):
        if max(getattr(space, name) or 1, getattr(space, f"min_{name}")) > 1:
            raise impossible(f"units of layers are not divided by {name}")
    seen = Found(least_s=worth_s)
    splits = tuple(_splits(problem, nodes, global_batch, space))
    # What moves to the host and back never pays where the model fits without.
    for is_offloaded in (False, True):
        ways = [way for way in _admitted(space) if bool(way.offload) == is_offloaded]
        found = list(_evaluated(_by_bound(splits, ways, space, seen), seen))
        if found:
            return _simplest(found)
    raise _nothing(problem, seen, nodes, global_batch, space)


def _admitted(space: SearchSpace) -> list[Layout]:
    return [
        way
        for way in _WAYS
        if way.recompute in space.recomputes and way.offload <= set(space.offloads)
    ]


def _simplest(layouts: Sequence[PlannedLayout]) -> PlannedLayout:
    """Return the simplest of the layouts that cannot be told from the fastest."""
    limit = INDISTINGUISHABLE * min(x.step_s for x in layouts)
    return min((x for x in layouts if x.step_s <= limit), key=_complexity)


def _complexity(found: PlannedLayout) -> tuple[float, ...]:
    layout = found.layout
    return (
        len(layout.offload),
        layout.pp,
        layout.tp,
        layout.zero_stage,
        layout.recompute != "none",
        found.step_s,
    )


def _splits(
    problem: UnitProblem, nodes: int, global_batch: int, space: SearchSpace
) -> Iterator[UnitSplit]:
    """Yield the degrees that divide the machines, with the micro-batches to try."""
    per_node = problem.node.devices
    devices = nodes * per_node
    for tp in problem.times:
        if space.tp not in (None, tp) or tp < space.min_tp or per_node % tp:
            continue
        for pp in divisors(devices // tp):
            dp = devices // (tp * pp)
            stage = dp * tp
            is_whole = stage % per_node == 0 or per_node % stage == 0
            if space.pp not in (None, pp) or pp < space.min_pp or not is_whole:
                continue
            if dp > global_batch or pp > min(len(problem.table.names), _DEEPEST):
                continue
            local = -(-global_batch // dp)
            micro_batches = _micro_batches(local, space)
            if micro_batches:
                yield UnitSplit(
                    problem=problem,
                    layout=Layout(dp=dp, tp=tp, pp=pp),
                    nodes=nodes,
                    local=local,
                    micro_batches=micro_batches,
                )


def _micro_batches(local: int, space: SearchSpace) -> tuple[int, ...]:
    """Return micro-batches to try: the local batch halved until it is one, or those fixed."""
    steps = space.accumulation_steps
    found = {-(-local // 2**k) for k in range(local.bit_length())}
    if steps is not None:
        found = {-(-local // steps)}
    if space.micro_batch is not None:
        found = {space.micro_batch} if local % space.micro_batch == 0 else set()
    return tuple(sorted(u for u in found if steps in (None, -(-local // u))))


def _by_bound(
    splits: Sequence[UnitSplit], ways: Sequence[Layout], space: SearchSpace, seen: Found
) -> list[tuple[float, UnitSplit]]:
    """Return every way and ZeRO stage of the splits with a bound on its step, the least first."""
    bounds: dict[tuple[int, int, bool], float] = {}
    found = []
    for split in splits:
        for layout in _layouts(split, ways, space):
            seen.considered += len(split.micro_batches)
            one = replace(split, layout=layout)
            # Neither what is moved to the host nor the ZeRO stage is in the bound.
            key = layout.tp, layout.pp, layout.recompute == "full"
            if key not in bounds:
                bounds[key] = float(least_s(one).min())
            found.append((bounds[key], one))
    return sorted(found, key=lambda one: one[0])


def _layouts(split: UnitSplit, ways: Sequence[Layout], space: SearchSpace) -> Iterator[Layout]:
    """Yield the layouts of one split of the devices that something runs."""
    degrees = split.layout
    for way in ways:
        if way.recompute == "full" and len(split.problem.table.names) < 2:
            continue
        moves = "parameters" in way.offload
        for zero in space.zero_stages:
            shares_on_cpu = zero > 0 and split.problem.node.device.kind == "cpu"
            if degrees.devices == 1 and (shares_on_cpu or not may_stand_alone(zero, moves, space)):
                continue
            if degrees.dp == 1 < degrees.devices and zero > 0:
                continue
            # The rules of what runs a script ask which degrees are above one.
            if _runs(way, zero, min(degrees.dp, 2), min(degrees.tp, 2), min(degrees.pp, 2)):
                yield replace(way, dp=degrees.dp, tp=degrees.tp, pp=degrees.pp, zero_stage=zero)


def _evaluated(splits: Sequence[tuple[float, UnitSplit]], seen: Found) -> Iterator[PlannedLayout]:
    """Yield the best micro-batch of each split, until no bound can win any more."""
    for bound_s, split in splits:
        if bound_s > INDISTINGUISHABLE * seen.least_s:
            return
        found = (without_pipeline if split.layout.pp == 1 else with_pipeline)(split, seen)
        if found is not None:
            yield found


@cache
def _runs(way: Layout, zero_stage: int, dp: int, tp: int, pp: int) -> bool:
    """Return whether something runs a script so."""
    layout = replace(way, dp=dp, tp=tp, pp=pp, zero_stage=zero_stage)
    return bool(is_runnable(layout_columns(layout), frameworks=RECORDED))


def _nothing(
    problem: UnitProblem, seen: Found, nodes: int, global_batch: int, space: SearchSpace
) -> PlanningError:  # fmt: skip
    devices = nodes * problem.node.devices
    if not seen.considered:
        return impossible(
            f"nothing divides {devices} devices in a way that PyTorch or DeepSpeed runs",
            "leave the tensor- or pipeline-parallel degree, the ZeRO stage or offload open",
        )
    if seen.nearest is None:
        return impossible(
            f"nothing divides: {len(problem.table.names)} units of layers and a batch of "
            f"{global_batch} on {devices} devices",
            "raise the batch, or change the number of devices or the fixed degrees",
        )
    excess, layout = seen.nearest
    nearest = (
        f"dp {layout.dp}, tp {layout.tp}, pp {layout.pp}, micro-batch {layout.micro_batch}, "
        f"ZeRO {layout.zero_stage}, recompute {layout.recompute}"
    )
    is_fixed = space.micro_batch is not None and layout.micro_batch > 1
    smaller = "with a smaller micro-batch" if is_fixed else "with a smaller model"
    return misses(nearest, problem.capacity_bytes, problem.kept_free_bytes, excess, [smaller])
