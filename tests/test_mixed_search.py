from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.planners.core.arrays import Machines, Software
from advisor.planners.core.errors import GIB, PlanningError
from advisor.planners.core.layout_case import LayoutParameters, UnitTimes
from advisor.planners.core.setup import Transformer
from advisor.planners.layouts.mixed import (
    GroupStages,
    MachineGroup,
    MixedColumns,
    apportion,
    group_stages,
    search_mixed,
    update_s,
)
from advisor.planners.layouts.problem import LayoutProblem, SearchSpace
from advisor.planners.memory.transformers import MemoryConstants

A100 = Machines(
    flop_per_s=271e12,
    memory_bytes_per_s=1.555e12,
    memory_bytes=40 * GIB,
    intra_bytes_per_s=300e9,
    network_bytes_per_s=12.5e9,
    devices_per_node=8,
)
V100 = replace(
    A100, flop_per_s=80e12, memory_bytes_per_s=0.9e12, memory_bytes=16 * GIB, generation=0
)
MODEL = Transformer(layers=24, hidden=2048, heads=16, sequence=1024, vocabulary=50000)
times = st.integers(1, 9).map(float)


def held(machines: Machines, nodes: int = 1, model: Transformer = MODEL) -> MachineGroup:
    return MachineGroup(problem=LayoutProblem(transformer=model, machines=machines), nodes=nodes)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_apportioning_equals_trying_every_share(data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, 3))
    stages = data.draw(st.lists(st.integers(1, 2), min_size=groups, max_size=groups))
    layer_s = data.draw(st.lists(times, min_size=groups, max_size=groups))
    most = data.draw(st.lists(st.integers(0, 5), min_size=groups, max_size=groups))
    head = float(data.draw(st.integers(0, 6)))
    layers = data.draw(st.integers(1, 9))
    speed = [t for t, p in zip(layer_s, stages, strict=True) for _ in range(p)]
    cap = [m for m, p in zip(most, stages, strict=True) for _ in range(p)]
    best = np.inf
    for share in itertools.product(*(range(1, c + 1) for c in cap)):
        if sum(share) == layers:
            stage = [n * t for n, t in zip(share, speed, strict=True)]
            stage[-1] += head
            best = min(best, max(stage))
    counts, last, slowest = apportion(
        layers,
        [np.array([p]) for p in stages],
        [np.array([t]) for t in layer_s],
        [np.array([m]) for m in most],
        np.array([head]),
    )
    if sum(stages) > layers:
        # Fewer layers than stages: the search never asks.
        return
    assert slowest[0] == pytest.approx(best)
    if np.isfinite(best):
        placed = sum(int(n[0]) * p for n, p in zip(counts, stages, strict=True))
        assert placed - int(counts[-1][0]) + int(last[0]) >= layers


def test_faster_machines_hold_more_layers() -> None:
    plan = search_mixed([held(A100, 1), held(V100, 1)], 64)
    assert sum(plan.layers) == 24
    per_group = dict.fromkeys(plan.order, 0)
    stages = [
        g for g, layout in zip(plan.order, plan.layouts, strict=True) for _ in range(layout.pp)
    ]
    for group, n in zip(stages, plan.layers, strict=True):
        per_group[group] += n
    assert per_group[0] > per_group[1]


def test_every_device_and_sample_is_used() -> None:
    plan = search_mixed([held(A100, 1), held(V100, 2)], 48)
    devices = sorted(layout.devices for layout in plan.layouts)
    assert devices == [8, 16]
    assert {layout.global_batch for layout in plan.layouts} == {48}
    assert len(plan.layers) == sum(layout.pp for layout in plan.layouts)


@pytest.mark.parametrize("vocabulary", [1000, 50000, 500000])
def test_the_step_is_what_its_stages_take(vocabulary: int) -> None:
    quiet = LayoutParameters(
        step_s=0.0, optimizer_bytes=0.0, dp_overlap=1e9, pp_latency_s=0.0, straggler=0.0
    )
    groups = [
        MachineGroup(
            problem=LayoutProblem(
                transformer=replace(MODEL, vocabulary=vocabulary),
                machines=replace(machines, network_bytes_per_s=1e15),
                parameters=quiet,
            ),
            nodes=1,
        )
        for machines in (A100, V100)
    ]
    plan = search_mixed(groups, 64)
    steps = plan.layouts[0].accumulation_steps
    # 1e-4: sends at 10^15 bytes/s still take a little.
    assert plan.step_s == pytest.approx(
        sum(plan.stage_s) + (steps - 1) * max(plan.stage_s), rel=1e-4
    )


def test_unlike_machines_beat_the_faster_group_alone_when_links_are_fast() -> None:
    from advisor.planners.layouts.search import search

    fast = [held(replace(m, network_bytes_per_s=100e9), 1) for m in (A100, V100)]
    mixed = search_mixed(fast, 256)
    alone = search(MODEL, fast[0].problem.machines, 1, 256)
    assert alone.best is not None
    assert mixed.step_s < alone.best.step_s


def test_two_groups_of_the_same_machine_are_no_faster_than_one_search() -> None:
    from advisor.planners.layouts.search import search

    twice = [held(A100, 1)] * 2
    whole = search(MODEL, A100, 2, 64)
    assert whole.best is not None
    assert search_mixed(twice, 64).step_s >= whole.best.step_s


def test_what_fits_nowhere_names_the_nearest_miss() -> None:
    huge = Transformer(layers=96, hidden=12288, heads=96, sequence=2048, vocabulary=51200)
    groups = [held(A100, model=huge), held(V100, model=huge)]
    with pytest.raises(PlanningError, match=r"misses by \d+"):
        search_mixed(groups, 16)


def test_machines_without_a_common_width_are_refused() -> None:
    tiny = replace(MODEL, layers=1)
    groups = [held(A100, model=tiny), held(V100, model=tiny)]
    with pytest.raises(PlanningError, match="no pipeline divides"):
        search_mixed(groups, 7)


def told(tp: int, pp: int, micro: int = 2, **more: Any) -> SearchSpace:
    space = SearchSpace(tp=tp, pp=pp, micro_batch=micro, zero_stages=(0,), recomputes=("full",))
    return replace(space, **more)


@pytest.mark.parametrize(("tp", "pp"), [(8, 1), (4, 1), (2, 1), (2, 2), (8, 2)])
def test_a_stage_over_two_groups_of_one_machine_is_a_stage_of_that_machine(
    tp: int, pp: int
) -> None:
    """Three machines and one, of one kind: as two and two, where each group holds its stages."""
    apart = search_mixed([held(A100, 3), held(A100, 1)], 64, space=told(tp, pp))
    twice = search_mixed([held(A100, 2), held(A100, 2)], 64, space=told(tp, pp))
    assert apart.step_s == pytest.approx(twice.step_s, rel=1e-9)
    assert any(len(groups) == 2 for groups in apart.groups_by_stage)
    assert all(used > 0 for used in apart.memory_bytes)


@pytest.mark.parametrize(("tp", "pp"), [(8, 1), (4, 1), (8, 2)])
def test_a_stage_that_spans_kinds_is_as_slow_as_its_slowest(tp: int, pp: int) -> None:
    mixed = search_mixed([held(A100, 1), held(V100, 3)], 64, space=told(tp, pp))
    slow = search_mixed([held(V100, 3), held(V100, 1)], 64, space=told(tp, pp))
    fast = search_mixed([held(A100, 3), held(A100, 1)], 64, space=told(tp, pp))
    assert fast.step_s < mixed.step_s <= slow.step_s * (1 + 1e-9)
    if pp == 1:
        assert mixed.step_s == pytest.approx(slow.step_s, rel=1e-9)
        assert mixed.groups_by_stage == ((0, 1),)


def test_a_given_cut_is_kept_and_no_other_is_faster_than_the_chosen() -> None:
    groups = [held(A100, 1), held(V100, 1)]
    chosen = search_mixed(groups, 64, space=told(8, 2))
    steps = []
    for first in range(4, 21):
        cut = (first, MODEL.layers - first)
        found = search_mixed(groups, 64, space=told(8, 2, stage_layers=cut))
        assert found.layers == cut
        steps.append(found.step_s)
        if cut == chosen.layers and found.order == chosen.order:
            assert found.step_s == pytest.approx(chosen.step_s, rel=1e-6)
    assert chosen.step_s <= min(steps) * (1 + 1e-6)
    with pytest.raises(PlanningError, match="do not hold"):
        search_mixed(groups, 64, space=told(8, 2, stage_layers=(10, 10)))


def test_activations_in_single_precision_are_sent_twice_as_wide() -> None:
    """Told apart by the products' precision alone: the layers' times are given by a table."""
    table = UnitTimes(
        micro_batches=np.array([1.0, 2.0]), forward_s=np.array([[1.0], [2.0]]),
        backward_s=np.array([[2.0], [4.0]]), optimizer_s=0.0, log_sd=0.0,
    )  # fmt: skip
    quiet = LayoutParameters(tp_latency_s=0.0, pp_latency_s=0.0)
    steps = []
    for precision, link in ((0, 1e8), (3, 2e8)):
        machines = replace(
            A100, intra_bytes_per_s=link, network_bytes_per_s=link, precision=precision
        )
        problem = LayoutProblem(
            transformer=replace(MODEL, vocabulary=64), machines=machines, parameters=quiet,
            block_table=table,
        )  # fmt: skip
        groups = [MachineGroup(problem=problem, nodes=1)] * 2
        space = told(4, 4, stage_layers=(6, 6, 6, 6))
        steps.append(search_mixed(groups, 2, space=space).step_s)
    assert steps[0] == pytest.approx(steps[1], rel=1e-3)


ROWS = 60


def drawn() -> tuple[list[LayoutProblem], MixedColumns]:
    """Three unlike groups of one transformer, and candidates that differ in every choice."""
    draw = np.random.default_rng(3)

    def one_of(*values: int) -> Any:
        return draw.choice(np.array(values), ROWS)

    common: dict[str, Any] = {
        "transformer": replace(MODEL, kv_heads=4, is_gated=True, ffn=5000),
        "software": Software(gradient_bytes=2, overlaps_dp=1, fusion=0, attention=0),
        "parameters": LayoutParameters(pp_efficiency=0.8, pp_latency_s=1e-3, dp_overlap=0.3),
        "memory": MemoryConstants(slack=1.2, context_bytes=2e9, logit_bytes=6.0),
    }
    problems = [
        LayoutProblem(**(common | {"machines": machines, "device_factor": factor}))
        for machines, factor in ((A100, 1.0), (V100, 1.4), (replace(A100, precision=3), 0.9))
    ]
    micro, steps = one_of(1, 2, 4), one_of(1, 3, 8)
    columns = MixedColumns(
        width=one_of(1, 2, 4), micro_batch=micro, steps=steps, recompute=one_of(0, 1, 2),
        zero_stage=one_of(0, 1), tp=[one_of(1, 2, 4) for _ in problems],
        pp=[one_of(1, 2) for _ in problems],
    )  # fmt: skip
    return problems, columns


@pytest.mark.parametrize("group", [0, 1, 2])
def test_a_groups_memory_and_sends_are_those_of_one_stage_counted_by_hand(group: int) -> None:
    problems, columns = drawn()
    problem, found = problems[group], group_stages(problems, columns, group)
    memory, model = problem.memory, problem.transformer
    of_layer = (2 * 2048 * (2048 + 512) + 3 * 2048 * 5000) / columns.tp[group]
    for i in range(ROWS):
        width, tp = int(columns.width[i]), int(columns.tp[group][i])
        tokens = int(columns.micro_batch[i]) * model.sequence
        shards = width if columns.zero_stage[i] else 1
        states = 2 + 2 + 12 / shards  # weight, 16-bit gradient, optimizer and master copy
        table = model.vocabulary * model.hidden / tp if group in (0, 2) else 0
        # As many micro-batches in flight as stages follow the group's first, itself included.
        later = sum(int(pp[i]) for pp in columns.pp[group:])
        held = min(later, int(columns.steps[i]))
        ranks = tp if tp > 1 else 1  # they share the sequence
        scores = 5 * model.heads * model.sequence if columns.recompute[i] == 0 else 0
        layer = tokens * (
            8 * model.hidden / ranks
            + ((4 + 4 * 4 / 16) * model.hidden + 2 * 3 * 5000 + scores) / tp
        )
        sent = 2 * tokens * model.hidden / ranks
        is_repeated = columns.recompute[i] == 2
        fixed = held * sent + table * states + (layer if is_repeated else 0)
        fixed += memory.logit_bytes * tokens * model.vocabulary / tp if group == 2 else 0
        fixed = memory.context_bytes + memory.slack * fixed
        each = memory.slack * (of_layer[i] * states + held * (sent if is_repeated else layer))
        assert found.fixed_bytes[i] == pytest.approx(fixed)
        assert found.layer_bytes[i] == pytest.approx(each)
        assert found.most[i] == int(max(problem.capacity_bytes - fixed, 0) / each)
        link = 12.5e9 / min(width * tp, 8)
        sends = 2 * tokens * model.hidden / tp * (2 if group == 2 else 1) / (0.8 * link) + 1e-3
        assert found.send_s[i] == pytest.approx(sends)
    np.testing.assert_allclose(found.layer_parameters, of_layer)


def test_a_layer_of_a_group_takes_what_it_takes_in_the_layout_model() -> None:
    """On the device, its tensor-parallel exchanges beside; starting kernels where they rule."""
    from advisor.planners.layouts.time import step_times

    problems, columns = drawn()
    for group, problem in enumerate(problems):
        found = group_stages(problems, columns, group)
        case = problem.case(columns.layouts(group))
        parts = step_times(case)
        slow = 1 + case.parameters.straggler * np.log2(
            np.maximum(columns.width * columns.tp[group] * columns.stages / 8, 1)
        )
        heads = step_times(problem.case(replace(columns.layouts(group), pp=MODEL.layers)))
        # m (layers x busy + head) + m layers x inside: of one layer a stage the head is known.
        per_stage = np.ceil(MODEL.layers / columns.stages)
        whole = (parts.compute_s + parts.inside_layer_s) / slow / columns.steps
        lone_slow = 1 + case.parameters.straggler * np.log2(
            np.maximum(columns.width * columns.tp[group] * MODEL.layers / 8, 1)
        )
        lone = (heads.compute_s + heads.inside_layer_s) / lone_slow / columns.steps
        is_cut = per_stage > 1
        layer = (whole - lone)[is_cut] / (per_stage - 1)[is_cut]
        np.testing.assert_allclose(found.layer_s[is_cut], layer, rtol=1e-6)


@pytest.mark.parametrize("overlaps", [0, 1])
def test_the_slowest_groups_reduction_and_update_end_the_step(overlaps: int) -> None:
    """Rings over D ranks: 2 (D-1)/D of the gradients, or one way of gradients and weights."""
    problems, columns = drawn()
    software = replace(problems[0].software, overlaps_dp=overlaps)
    problems = [replace(one, software=software, trained_share=0.5) for one in problems]
    draw = np.random.default_rng(4)
    stages = [
        GroupStages(
            layer_s=draw.uniform(0.01, 0.2, ROWS), send_s=np.zeros(ROWS),
            fixed_bytes=np.zeros(ROWS), layer_bytes=np.ones(ROWS), most=np.ones(ROWS, np.int64),
            layer_parameters=draw.uniform(1e7, 1e9, ROWS),
            embedding_parameters=draw.uniform(0, 1e9, ROWS),
            ring_bytes_per_s=draw.uniform(1e9, 1e11, ROWS),
            stream_bytes_per_s=draw.uniform(1e11, 1e12, ROWS),
        )
        for _ in problems
    ]  # fmt: skip
    layers = [draw.integers(1, 9, ROWS) for _ in problems]
    found = update_s(columns, stages, layers, problems[0])
    fixed = problems[0].parameters
    for i in range(ROWS):
        d, is_sharded = int(columns.width[i]), bool(columns.zero_stage[i])
        took = []
        for one, n in zip(stages, layers, strict=True):
            held = float(n[i] * one.layer_parameters[i] + one.embedding_parameters[i])
            moved = held * 0.5 * (2 + 2 if is_sharded else 2 * 2) * (d - 1) / d
            hidden = 0.3 * overlaps * n[i] * one.layer_s[i] * 2 / 3  # of the backward pass
            update = fixed.optimizer_bytes * held / (d if is_sharded else 1)
            exposed = max(moved / one.ring_bytes_per_s[i] - hidden, 0)
            took.append(exposed + update / one.stream_bytes_per_s[i])
        assert found[i] == pytest.approx(max(took) + fixed.step_s)
