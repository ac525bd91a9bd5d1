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
from advisor.planners.core.nouns import Layout
from advisor.planners.core.setup import Transformer
from advisor.planners.layouts.frameworks import layout_columns
from advisor.planners.layouts.mixed import MachineGroup, apportion, search_mixed
from advisor.planners.layouts.problem import LayoutProblem, SearchSpace
from advisor.planners.memory.transformers import MemoryConstants, needed_of

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
def test_the_step_is_what_its_stages_take_and_what_is_sent_and_reduced(vocabulary: int) -> None:
    model = replace(MODEL, vocabulary=vocabulary)
    groups = [held(A100, model=model), held(V100, model=model)]
    plan = search_mixed(groups, 64, space=told(8, 2, stage_layers=(15, 9)))
    steps = plan.layouts[0].accumulation_steps
    stages_s = sum(plan.stage_s) + (steps - 1) * max(plan.stage_s)
    assert plan.network_s > 0
    assert plan.step_s == pytest.approx(stages_s + plan.network_s)


def test_unlike_machines_beat_the_faster_group_alone_when_links_are_fast() -> None:
    from searched import search

    fast = [held(replace(m, network_bytes_per_s=100e9), 1) for m in (A100, V100)]
    mixed = search_mixed(fast, 256)
    alone = search(MODEL, fast[0].problem.machines, 1, 256)
    assert alone.best is not None
    assert mixed.step_s < alone.best.step_s


def test_two_groups_of_the_same_machine_are_no_faster_than_one_search() -> None:
    from searched import search

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
        search_mixed(groups, 7, space=SearchSpace(cp=1))


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
    assert all(float(needed_of(one)) > 0 for one in apart.ledgers)


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


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_two_groups_of_one_machine_take_what_one_group_takes(data: st.DataObject) -> None:
    """The same layout of the same model: to the second and to the byte, whatever the software."""
    software = Software(
        gradient_bytes=data.draw(st.sampled_from([2, 4])), overlaps_dp=data.draw(st.booleans()),
        fusion=data.draw(st.sampled_from([0, 1])), attention=data.draw(st.sampled_from([0, 2])),
        gradient_shard_bytes=data.draw(st.sampled_from([0, 4])), keeps_gradients=0,
        logit_scale=data.draw(st.sampled_from([0.5, 1.0])),
    )  # fmt: skip
    problem = LayoutProblem(
        transformer=replace(MODEL, kv_heads=4, is_gated=True, ffn=5000),
        machines=A100, software=software, device_factor=data.draw(st.sampled_from([0.9, 1.0])),
        trained_share=data.draw(st.sampled_from([0.5, 1.0])),
        memory=MemoryConstants(slack=1.2, context_bytes=2e9, logit_bytes=6.0),
    )  # fmt: skip
    tp, pp = data.draw(st.sampled_from([(1, 1), (1, 2), (2, 4), (4, 1), (8, 2), (4, 4)]))
    dp = 16 // tp // pp
    layout = Layout(
        dp=dp, tp=tp, pp=pp, micro_batch=data.draw(st.sampled_from([1, 2])),
        accumulation_steps=data.draw(st.sampled_from([1, 2, 8])),
        zero_stage=data.draw(st.sampled_from([0, 1, 2, 3] if dp > 1 else [0])),
        recompute=data.draw(st.sampled_from(["none", "selective", "full"])),
        is_sequence_parallel=tp > 1,
    )  # fmt: skip
    space = SearchSpace(
        tp=tp, pp=pp, micro_batch=layout.micro_batch, zero_stages=(layout.zero_stage,),
        accumulation_steps=layout.accumulation_steps, recomputes=(layout.recompute,),
        stage_layers=(MODEL.layers // pp,) * pp, cp=1, ep=1, may_shard_in_nodes=False,
    )  # fmt: skip
    whole = problem.evaluate(layout)
    groups = [MachineGroup(problem=problem, nodes=1)] * 2
    if whole.memory_bytes > problem.capacity_bytes:
        with pytest.raises(PlanningError, match="misses by"):
            search_mixed(groups, layout.global_batch, space=space)
        return
    found = search_mixed(groups, layout.global_batch, space=space)
    assert found.step_s == pytest.approx(whole.step_s, rel=1e-9)
    fullest = max(found.ledgers, key=lambda one: float(needed_of(one)))
    of_whole = problem.ledger(layout_columns(layout))
    assert {name: float(one) for name, one in fullest.items()} == pytest.approx(
        {name: float(one) for name, one in of_whole.items()}, rel=1e-9
    )


def test_no_group_is_filled_beyond_its_devices() -> None:
    """Where half the layers do not fit on the smaller device, they lie on the larger one."""
    small = replace(A100, memory_bytes=16 * GIB)
    groups = [held(A100), held(small)]
    space = SearchSpace(tp=1, pp=2, micro_batch=2, zero_stages=(0,), recomputes=("none",))
    found = search_mixed(groups, 64, space=space)
    for place, terms in zip(found.order, found.ledgers, strict=True):
        assert needed_of(terms) <= groups[place].problem.capacity_bytes
    assert len(set(found.layers)) == 2
