"""Laws and oracles of the planners of recorded models."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_models import convolutions, transformer

from advisor.estimate import case
from advisor.machines import devices
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.layout_case import UnitTimes
from advisor.planners.core.nouns import Layout, Link, Node, Recompute, Work
from advisor.planners.layouts.pipeline import replay_s
from advisor.planners.layouts.problem import Found, SearchSpace
from advisor.planners.layouts.unit_search import UnitProblem, search_units
from advisor.planners.links.gradients import data_parallel_step
from advisor.planners.memory.recorded_steps import (
    UnitTable,
    base_ledger,
    parameter_ledger,
    training_memory_bytes,
)
from advisor.planners.memory.transformers import without_terms
from advisor.planners.step.model_units import (
    TransformerBlocks,
    transformer_blocks,
    unit_times,
    work_units,
)
from advisor.planners.systems.batch_by_kind import MicroBatchCurve, balance
from advisor.planners.systems.pipeline_of_groups import StageGroup, StageMemory, grouped_pipeline

DEVICES = devices.accelerator_devices()
CONSTANTS = devices.device_parameters()
BATCHES = tuple(2.0**k for k in range(10))


def problem_of(work: Work, name: str = "L4", count: int = 4, **changes: float) -> UnitProblem:
    device = replace(DEVICES[name], **changes)  # type: ignore[arg-type]
    node = Node(
        name=f"{count}x{name}",
        device=device,
        devices=count,
        intra=Link(name="pcie", bytes_per_s=1e10, latency_s=1e-5),
        network=Link(name="network", bytes_per_s=3e9, latency_s=5e-5),
        host=Link(name="pcie", bytes_per_s=1e10),
        vcpus=16,
        memory_bytes=64e9,
    )
    parts = work_units(work)
    found = transformer_blocks(work, parts)
    blocks = found if isinstance(found, TransformerBlocks) else None
    return UnitProblem(
        work=work,
        table=UnitTable.of(parts, work),
        blocks=blocks,
        memory=case.memory(),
        scaling=case.scaling(),
        node=node,
        times={
            tp: unit_times(work, parts, [device], BATCHES, CONSTANTS, tp=tp)[0]
            for tp in ([1, 2, 4] if blocks else [1])
        },
    )


def test_units_are_blocks_and_single_layers() -> None:
    names = [u.name for u in work_units(transformer(blocks=2))]
    assert names == ["embed", "blocks.0", "blocks.1", "norm", "head"]
    # A layer without parameters stays with the one before it.
    assert [len(u.layers) for u in work_units(convolutions())] == [2, 2, 2, 2, 1]
    assert len(work_units(replace(transformer(), layers=()))) == 1


def test_units_hold_all_parameters_and_activations() -> None:
    for work in (transformer(), convolutions()):
        assert sum(u.parameters for u in work_units(work)) == work.parameters
        saved = sum(u.saved_bytes_per_sample for u in work_units(work))
        assert saved == pytest.approx(work.saved_bytes_per_sample)


def test_a_transformer_is_recognised_and_a_cnn_is_not() -> None:
    found = transformer_blocks(transformer(6, 512, 128), work_units(transformer(6, 512, 128)))
    assert isinstance(found, TransformerBlocks)
    assert (found.blocks, found.hidden, found.tokens) == (6, 512, 128)
    assert found.degrees(8) == (1, 2, 4, 8)
    assert "repeated" in str(transformer_blocks(convolutions(), work_units(convolutions())))
    without = replace(transformer(), operators=convolutions().operators)
    assert "attention" in str(transformer_blocks(without, work_units(without)))


def test_heads_bound_the_tensor_parallel_ranks() -> None:
    found = transformer_blocks(transformer(), work_units(transformer()), heads=6)
    assert isinstance(found, TransformerBlocks)
    assert found.degrees(8) == (1, 2)  # 3 and 6 divide the heads but not the width of 512


@pytest.mark.parametrize("gain", [0.0, 0.3, 1.0])
def test_units_add_up_to_the_devices_step(gain: float) -> None:
    work = transformer()
    device, host = DEVICES["A100-SXM4-40GB"], DEVICES["T4"]
    parts, bare = work_units(work), work_units(replace(work, layers=()))
    found = unit_times(work, parts, [device], BATCHES, CONSTANTS, host=host, gain=gain)[0]
    alone = unit_times(work, bare, [device], BATCHES, CONSTANTS)[0]
    np.testing.assert_allclose(found.forward_s.sum(axis=1), alone.forward_s[:, 0])
    np.testing.assert_allclose(found.backward_s.sum(axis=1), alone.backward_s[:, 0])


def test_measured_units_move_the_shares_by_the_gain() -> None:
    work = transformer()
    slow = replace(work.layers[2], forward_s=50 * (work.layers[2].forward_s or 0))
    slowed = replace(work, layers=(*work.layers[:2], slow, *work.layers[3:]))
    shares = []
    for gain in (0.0, 0.3, 1.0):
        t = unit_times(
            slowed,
            work_units(slowed),
            [DEVICES["L4"]],
            [4.0],
            CONSTANTS,
            host=DEVICES["T4"],
            gain=gain,
        )[0]
        shares.append(t.forward_s[0, 1] / t.forward_s[0].sum())
    assert shares == sorted(shares)
    assert shares[0] < shares[2]


def test_tensor_parallel_divides_products_and_leaves_norms() -> None:
    work = transformer(hidden=2048, tokens=1024)
    one, four = (
        unit_times(work, work_units(work), [DEVICES["A100-SXM4-40GB"]], [32.0], CONSTANTS, tp=tp)[
            0
        ]
        for tp in (1, 4)
    )
    block = four.forward_s[0, 1] / one.forward_s[0, 1]
    assert 0.25 < block < 0.6
    assert four.forward_s[0, 0] == one.forward_s[0, 0]  # the embedding stays whole


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_memory_of_all_units_is_the_models(zero: int) -> None:
    model = problem_of(transformer())
    each = parameter_ledger(model.work, dp=4, zero_stage=zero, memory=model.memory)
    state = model.table.held_parameters(1) * without_terms(each)
    kept = model.memory.slack * 8 * model.table.kept_bytes(1, "kept").sum()
    used = float(without_terms(base_ledger(model.work, 8.0, model.memory))) + state.sum() + kept
    expected = training_memory_bytes(model.work, 8, dp=4, zero_stage=zero, parameters=model.memory)
    assert used == pytest.approx(float(expected))


def test_recomputing_keeps_less() -> None:
    table = problem_of(transformer()).table
    again = table.kept_bytes(1, "recomputed").sum() + table.live_bytes(1, "recomputed")
    assert again < 0.5 * table.kept_bytes(1, "kept").sum()


def slow_search(of: UnitProblem, batch: int, pp: int) -> float:
    """Try every micro-batch and every cut into ``pp`` stages of one device each, in words."""
    times, best = of.times[1], np.inf
    table = of.table
    local = batch // (of.node.devices // pp)
    dp = of.node.devices // pp
    for u in (2**k for k in range(local.bit_length())):
        a = local // u
        forward, backward = (x[0] for x in times.at(np.array([float(u)])))
        send = of.node.intra.latency_s + u * table.output_bytes / of.node.intra.bytes_per_s
        for cuts in combinations(range(1, len(table.names)), pp - 1):
            stages = list(pairwise([0, *cuts, len(table.names)]))
            took = [
                (forward + backward)[i:j].sum() + (2 * send[j - 1] if j < len(table.names) else 0)
                for i, j in stages
            ]
            through = sum(took) + (a - 1) * max(took)
            slow = stages[int(np.argmax(took))]
            heaviest = max(table.parameters[i:j].sum() for i, j in stages)
            share = heaviest / of.work.parameters
            columns = data_parallel_step(
                micro_batch_s=through, backward_s=backward[slice(*slow)].sum(),
                optimizer_s=times.optimizer_s * share, accumulation_steps=1,
                gradient_bytes=of.work.gradient_bytes * share, nodes=1, devices_per_node=dp,
                intra_bytes_per_s=of.node.intra.bytes_per_s,
                intra_latency_s=of.node.intra.latency_s,
                network_bytes_per_s=of.node.network.bytes_per_s,
                network_latency_s=of.node.network.latency_s, parameters=of.scaling,
            )  # fmt: skip
            best = min(best, float(columns.step_s))
    return best


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("make", [transformer, convolutions])
def test_no_cut_or_micro_batch_is_better_than_the_found_one(make, pp: int) -> None:  # type: ignore[no-untyped-def]
    work = make()
    space = SearchSpace(pp=pp, tp=1, zero_stages=(0,), recomputes=("none",), offloads=())
    of = problem_of(work)
    found = search_units(of, 1, 32, space=space)
    assert found.step_s <= slow_search(of, 32, pp) * (1 + 1e-9)
    assert sum(found.stages) == len(of.table.names)
    assert sum(found.parts_s.values()) == pytest.approx(found.step_s)


def test_no_layout_is_clearly_faster_than_the_chosen_one() -> None:
    work = transformer()
    of = problem_of(work)
    chosen = search_units(of, 2, 64)
    modes: tuple[Recompute, ...] = ("none", "full")
    for tp, pp, zero, mode in product((1, 2, 4), (1, 2, 4, 8), range(4), modes):
        space = SearchSpace(tp=tp, pp=pp, zero_stages=(zero,), recomputes=(mode,), offloads=())
        try:
            one = search_units(of, 2, 64, space=space)
        except PlanningError:
            continue
        assert one.step_s * 1.03 >= chosen.step_s * (1 - 1e-9)


@pytest.mark.parametrize("memory_bytes", [4.5e9, 80e9])
def test_what_is_not_worth_looking_for_changes_no_answer_that_is(memory_bytes: float) -> None:
    work = transformer(blocks=12, hidden=1024)
    of = problem_of(work, memory_bytes=memory_bytes)
    best = search_units(of, 2, 64)
    assert search_units(of, 2, 64, worth_s=1.1 * best.step_s) == best
    with suppress(PlanningError):
        assert search_units(of, 2, 64, worth_s=0.5 * best.step_s).step_s >= best.step_s


def test_stages_hold_what_their_memory_has() -> None:
    """A cut that fits is the fastest one; where that does not fit, another is looked for."""
    work = transformer(blocks=12, hidden=1024)
    space = SearchSpace(pp=4, tp=1, zero_stages=(0,), recomputes=("none",), offloads=())
    roomy = search_units(problem_of(work), 1, 32, space=space)
    for fraction in (0.98, 0.9, 0.8):
        tight = problem_of(work, memory_bytes=fraction * roomy.memory_bytes)
        try:
            found = search_units(tight, 1, 32, space=space)
        except PlanningError:
            continue
        assert found.memory_bytes <= tight.node.device.memory_bytes
        assert found.step_s >= roomy.step_s * (1 - 1e-9)


def test_layouts_use_their_devices_and_keep_the_batch() -> None:
    work = transformer()
    of = problem_of(work)
    one = search_units(of, 4, 96)
    assert one.layout.devices == 16
    assert 96 <= one.layout.global_batch < 96 + one.layout.dp * one.layout.accumulation_steps
    assert one.memory_bytes <= of.node.device.memory_bytes


def test_what_does_not_fit_whole_is_sharded_recomputed_or_offloaded() -> None:
    work = transformer(blocks=12, hidden=1024)
    tight = problem_of(work, memory_bytes=4.5e9)
    found = search_units(tight, 1, 32)
    layout = found.layout
    assert found.memory_bytes <= 4.5e9
    assert layout.zero_stage or layout.pp > 1 or layout.tp > 1 or layout.offload
    with pytest.raises(PlanningError, match="misses by") as caught:
        search_units(problem_of(work, memory_bytes=1e9), 1, 32)
    assert caught.value.exit_code == 3
    assert "it would fit with" in caught.value.hint


def test_offloading_needs_host_memory() -> None:
    work = transformer(blocks=12, hidden=1024)
    of = problem_of(work, count=1, memory_bytes=3.4e9)
    assert search_units(of, 1, 4).layout.offload
    poor = replace(of, node=replace(of.node, memory_bytes=1e8))
    with pytest.raises(PlanningError):
        search_units(poor, 1, 4)


@given(st.lists(st.floats(0.1, 5.0), min_size=2, max_size=5), st.integers(1, 9))
def test_the_formula_bounds_the_replayed_schedule(stage_s: list[float], micro: int) -> None:
    """Equal to an event simulation of 1F1B for equal stages, never below it for unequal ones."""
    forward, backward = [t / 3 for t in stage_s], [2 * t / 3 for t in stage_s]
    formula = sum(stage_s) + (micro - 1) * max(stage_s)
    replayed = float(replay_s(forward, backward, micro, schedule="1f1b"))
    assert replayed <= formula * (1 + 1e-9)
    # What is bound to happen: the slowest stage works all the time, the others fill and drain.
    assert replayed >= micro * max(stage_s) * (1 - 1e-9)
    thirds = [1 / 3] * len(stage_s), [2 / 3] * len(stage_s)
    assert replay_s(*thirds, micro) == pytest.approx(len(stage_s) + micro - 1)


RISING = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=2)


def curve_of(lines: list[list[float]]) -> MicroBatchCurve:
    """Micro-batch times t0 + t1 u, and a floor that small ones cannot fall below."""
    powers = 2.0 ** np.arange(8)
    return MicroBatchCurve(np.array([np.maximum(t0 + t1 * powers, 3 * t0) for t0, t1 in lines]))


@given(
    st.lists(RISING, min_size=2, max_size=3),
    st.lists(st.integers(1, 3), min_size=3, max_size=3),
    st.lists(st.integers(1, 9), min_size=3, max_size=3),
    st.integers(9, 30),
)
def test_no_split_over_kinds_is_better(
    lines: list[list[float]], counts: list[int], largest: list[int], batch: int
) -> None:
    curve, kinds = curve_of(lines), np.arange(len(lines))
    n, most = np.array(counts[: len(lines)]), np.array(largest[: len(lines)])
    found = balance(curve, kinds, n, most, batch)
    assert (found * n).sum() >= batch
    assert (found >= 1).all()
    best = min(
        float(curve.step_s(kinds, np.array(b), most).max())
        for b in product(range(1, batch + 1), repeat=len(lines))
        if (np.array(b) * n).sum() >= batch
    )
    assert float(curve.step_s(kinds, found, most).max()) == pytest.approx(best)


def test_fewer_samples_than_devices_are_refused() -> None:
    with pytest.raises(PlanningError, match="less than one sample"):
        balance(curve_of([[1, 1], [1, 1]]), [0, 1], [4, 4], [8, 8], 7)


def flat(seconds: list[float]) -> UnitTimes:
    """Times that do not depend on the micro-batch; a third of each is forward."""
    each = np.array([seconds])
    return UnitTimes(
        micro_batches=np.array([1.0]), forward_s=each / 3, backward_s=each * 2 / 3,
        optimizer_s=0.0, log_sd=0.1,
    )  # fmt: skip


FREE = StageMemory(state_bytes=lambda _: np.zeros(4), kept_bytes=np.zeros(4), base_bytes=0.0)


def test_a_pipeline_of_single_workers_is_cut_as_well_as_any() -> None:
    units_s, speeds, micro = [3.0, 1.0, 2.0, 2.0], [1.0, 2.5], 6
    groups = [
        StageGroup(name=str(s), workers=(flat([t / s for t in units_s]),), capacity_bytes=1.0)
        for s in speeds
    ]
    found = grouped_pipeline(groups, 1, micro, send_s=np.zeros(4), memory=FREE)
    best = min(
        sum(stages) + (micro - 1) * max(stages)
        for order in ((0, 1), (1, 0))
        for cut in range(1, 4)
        for stages in [
            [sum(units_s[:cut]) / speeds[order[0]], sum(units_s[cut:]) / speeds[order[1]]]
        ]
    )
    assert found.pipeline_s == pytest.approx(best)


def test_faster_workers_of_a_group_take_more_micro_batches() -> None:
    groups = [
        StageGroup(name="a", workers=(flat([1.0] * 4), flat([2.0] * 4)), capacity_bytes=1.0),
        StageGroup(name="b", workers=(flat([1.0] * 4),), capacity_bytes=1.0),
    ]
    found = grouped_pipeline(groups, 1, 9, send_s=np.zeros(4), memory=FREE)
    counts = found.counts[found.order.index(0)]
    assert counts == (6, 3)
    assert sum(found.counts[found.order.index(1)]) == 9


@pytest.mark.parametrize("layout", [
    Layout(micro_batch=2), Layout(micro_batch=2, recompute="full"),
    Layout(dp=4, micro_batch=2, accumulation_steps=2, zero_stage=3),
    Layout(pp=2, dp=2, micro_batch=2, accumulation_steps=4),
    Layout(tp=2, dp=2, micro_batch=2, recompute="full"),
    Layout(micro_batch=1, offload=frozenset({"optimizer", "parameters"})),
])  # fmt: skip
def test_the_terms_of_units_sum_to_what_their_search_says(layout: Layout) -> None:
    work = transformer(blocks=12, hidden=1024)
    of = problem_of(work)
    cut = of.cut(layout, Found())
    assert cut is not None
    said = of.over(cut, layout, layout.micro_batch * layout.accumulation_steps, Found())
    terms = of.ledger(layout)
    assert all(float(term) >= 0 for term in terms.values())
    assert float(without_terms(terms)) == pytest.approx(said.memory_bytes)
