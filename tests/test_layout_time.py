from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.catalogue import Catalogue
from advisor.planners.core.arrays import (
    Layouts,
    Machines,
    Shapes,
    Software,
    busiest_rank,
    layer_parameters,
)
from advisor.planners.core.layout_case import LayoutCase, LayoutParameters
from advisor.planners.core.setup import Schedule
from advisor.planners.layouts.pipeline import device_order, replay_s
from advisor.planners.layouts.time import step_times
from advisor.planners.memory.transformers import in_flight, layer_activation_bytes
from advisor.planners.step.transformer import block_times, products_s

SHAPE = Shapes(
    layers=24,
    hidden=2048,
    heads=16,
    kv_heads=16,
    ffn=8192,
    matrices=2,
    sequence=2048,
    vocabulary=51200,
)
A100 = Machines(
    flop_per_s=271e12,
    memory_bytes_per_s=2e12,
    memory_bytes=80 * 2**30,
    intra_bytes_per_s=300e9,
    network_bytes_per_s=100e9,
    devices_per_node=8,
)
PLAIN = Layouts(dp=8, tp=1, pp=1, micro_batch=4, accumulation_steps=4, shard_group=8)
P = LayoutParameters()
NO_STRAGGLERS = replace(P, straggler=0.0)


def case(
    layouts: Layouts,
    machines: Machines = A100,
    software: Software | None = None,
    *,
    shapes: Shapes = SHAPE,
    parameters: LayoutParameters = P,
) -> LayoutCase:
    return LayoutCase(
        shapes=shapes,
        layouts=layouts,
        machines=machines,
        software=software or Software(),
        parameters=parameters,
    )


def step_s(layouts: Layouts, machines: Machines = A100, software: Software | None = None) -> float:
    return float(step_times(case(layouts, machines, software)).step_s)


def test_parameters_of_known_models() -> None:
    # GPT-3: 96 layers of 12 h^2; Llama-3-8B: 218.1 million a layer (from its configuration).
    attention, ffn = layer_parameters(
        replace(SHAPE, hidden=12288, heads=96, kv_heads=96, ffn=49152)
    )
    assert float(attention + ffn) == 12 * 12288**2
    attention, ffn = layer_parameters(
        replace(SHAPE, hidden=4096, heads=32, kv_heads=8, ffn=14336, matrices=3)
    )
    assert float(attention + ffn) == 218_103_808


def test_activations_follow_korthikanti() -> None:
    # Equation 2, tensor parallel only: s b h (10 + 24/t + 5 a s/(h t)), with dropout masks.
    software = Software(attention=0, is_launch_heavy=1)
    for t in (1, 2, 8):
        found = layer_activation_bytes(SHAPE, replace(PLAIN, tp=t), software)
        expected = 2048 * 4 * 2048 * (10 + 24 / t + 5 * 16 * 2048 / 2048 / t)
        assert float(found) == pytest.approx(expected)
    # Equation 4, with sequence parallelism everything is divided.
    found = layer_activation_bytes(SHAPE, replace(PLAIN, tp=8, is_sequence_parallel=1), software)
    assert float(found) == pytest.approx(2048 * 4 * 2048 * (34 + 5 * 16 * 2048 / 2048) / 8)


EXACT = replace(P, straggler=0.0, dp_overlap=0.0, fsdp_overlap=0.0, offload_overlap=0.0)
BYTES = Software(weight_bytes=2.0, gradient_bytes=4.0, optimizer_state_bytes=12.0)


@given(st.integers(1, 12), st.integers(1, 24), st.integers(2, 4))
def test_in_flight_counts_what_the_first_devices_order_holds(pp: int, m: int, v: int) -> None:
    def most(schedule: Schedule, m: int, v: int = 1) -> float:
        order = device_order(schedule, 0, pp, m, v)
        return float(
            np.cumsum([-1 if is_backward else 1 for is_backward, _, _ in order]).max() / v
        )

    layouts = replace(PLAIN, pp=pp, accumulation_steps=m)
    assert float(in_flight(layouts)) == most("1f1b", m)
    held = in_flight(replace(layouts, holds_all=1))
    assert float(held) == (most("gpipe", m) if pp > 1 else 1)
    rounds = replace(layouts, accumulation_steps=m * pp, virtual_stages=v)
    assert float(in_flight(rounds)) == pytest.approx(most("interleaved", m * pp, v))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([2, 4, 8]), st.sampled_from([8, 16, 32]))
def test_a_pipeline_takes_what_its_replay_takes(pp: int, m: int) -> None:
    # Without links, launches, head and optimizer the formula must be the replayed schedule.
    quiet = replace(
        P,
        head_share=0.0,
        pp_latency_s=0.0,
        pp_efficiency=1e9,
        launch_light_s=0.0,
        step_s=0.0,
        optimizer_bytes=0.0,
        straggler=0.0,
    )
    layouts = replace(PLAIN, dp=1, pp=pp, accumulation_steps=m, shard_group=1)
    layer = block_times(case(layouts, parameters=quiet))
    per_stage = 24 / pp
    forward, backward = per_stage * float(layer.forward_s), per_stage * float(layer.backward_s)
    replayed = float(replay_s([forward] * pp, [backward] * pp, m))
    found = float(step_times(case(layouts, parameters=quiet)).step_s)
    assert found == pytest.approx(replayed)


def test_times_never_fall_with_more_work_or_slower_parts() -> None:
    base = step_s(PLAIN)
    assert step_s(replace(PLAIN, accumulation_steps=8)) > base
    assert step_s(replace(PLAIN, recompute=2)) > step_s(replace(PLAIN, recompute=1)) >= base
    assert step_s(PLAIN, replace(A100, flop_per_s=100e12)) > base
    assert step_s(PLAIN, replace(A100, memory_bytes_per_s=1e12)) > base
    wide = replace(PLAIN, dp=1, tp=8, shard_group=1)
    assert step_s(wide, replace(A100, intra_bytes_per_s=50e9)) > step_s(wide)
    many = replace(PLAIN, dp=64, shard_group=64)
    assert step_s(many, replace(A100, network_bytes_per_s=5e9)) > step_s(many)


def test_columns_give_what_rows_give() -> None:
    tp, m = np.array([1, 2, 4, 8]), np.array([1, 2, 4, 8])
    together = step_times(
        case(replace(PLAIN, tp=tp[:, None], accumulation_steps=m[None, :]))
    ).step_s
    assert together.shape == (4, 4)
    for i, t in enumerate(tp):
        for j, steps in enumerate(m):
            alone = step_s(replace(PLAIN, tp=int(t), accumulation_steps=int(steps)))
            assert float(together[i, j]) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize(
    "layouts",
    [
        Layouts(dp=2, tp=16, pp=1, micro_batch=1, accumulation_steps=8, shard_group=2),
        Layouts(dp=16, tp=1, pp=2, micro_batch=1, accumulation_steps=8, shard_group=16),
        Layouts(dp=32, tp=1, pp=1, micro_batch=1, accumulation_steps=1, shard_group=32, ep=16),
        Layouts(dp=2, tp=2, pp=1, cp=8, micro_batch=1, accumulation_steps=1, shard_group=16),
    ],
)
def test_a_fabric_of_machines_is_one_large_machine_to_rings_and_sends(layouts: Layouts) -> None:
    tray = replace(A100, devices_per_node=4, network_bytes_per_s=5e9)
    rack = replace(tray, domain_machines=18)
    large = replace(A100, devices_per_node=72, network_bytes_per_s=18 * 5e9)

    def communicated_s(machines: Machines) -> float:
        shapes = replace(SHAPE, experts=16, experts_per_token=2)
        found = step_times(case(layouts, machines, shapes=shapes, parameters=NO_STRAGGLERS))
        return float(found.inside_layer_s + found.pipeline_s + found.data_parallel_s)

    assert communicated_s(rack) == pytest.approx(communicated_s(large))
    assert communicated_s(rack) < 0.5 * communicated_s(tray)
    # A ring that leaves the fabric has the network of all its machines.
    wide = replace(layouts, dp=np.asarray(layouts.dp) * 64, shard_group=1)
    assert step_times(case(wide, rack)).step_s == pytest.approx(
        step_times(case(wide, large)).step_s, rel=0.05
    )


@given(st.integers(1, 10_000))
def test_waiting_for_a_ring_hides_behind_what_fsdp_computes(ranks: int) -> None:
    """Latency of FSDP's gathers is exposed to a share where computing takes longer than they."""
    layouts = replace(PLAIN, dp=ranks, shard_group=ranks, zero_stage=3)
    slow = replace(NO_STRAGGLERS, dp_latency_s=1e-3)
    fast = replace(NO_STRAGGLERS, dp_latency_s=1e-12)
    here, there = (step_times(case(layouts, parameters=p)) for p in (slow, fast))
    assert here.data_parallel_s >= there.data_parallel_s * (1 - 1e-9)
    waits = 3 * 24 * 4 * (ranks - 1) * 1e-3  # two gathers and a scatter a layer and micro-batch
    if waits + there.data_parallel_s / NO_STRAGGLERS.fsdp_exposed < 0.8 * there.compute_s:
        late = NO_STRAGGLERS.latency_exposed * waits
        assert here.data_parallel_s == pytest.approx(there.data_parallel_s + late)


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([8, 16, 64, 256]))
def test_the_busiest_of_expert_ranks_is_waited_for(ep: int, experts: int) -> None:
    shapes = replace(SHAPE, experts=experts, experts_per_token=2)

    def busiest(ep: int, **more: int) -> float:
        layouts = replace(PLAIN, ep=ep)
        return float(busiest_rank(replace(shapes, **more), layouts))

    assert busiest(1) == 1.0  # its own tokens, whichever experts they meet
    assert 1.0 <= busiest(ep) < 1.3
    assert busiest(ep) <= busiest(2 * ep)
    assert busiest(ep, experts_per_token=experts) == 1.0  # all experts meet every token
    # 64 experts of which 6 are met, one a rank: published under a balancing loss.
    published = replace(PLAIN, dp=64, ep=64)
    fullest = busiest_rank(replace(shapes, experts=64, experts_per_token=6), published)
    assert 1.5 <= float(fullest) <= 1.75


@pytest.mark.parametrize(
    ("pp", "v", "m"), [(1, 1, 4), (2, 1, 8), (4, 2, 4), (4, 3, 2), (8, 4, 16)]
)
@pytest.mark.parametrize("share", [0.05, 0.5, 4.0])
def test_chunks_are_reduced_one_after_another_behind_what_still_goes_backward(
    pp: int, v: int, m: int, share: float
) -> None:
    """A link that reduces each chunk's gradients as they end, replayed chunk by chunk."""
    network = replace(A100, devices_per_node=1, network_bytes_per_s=2e9)
    layouts = replace(PLAIN, dp=4, pp=pp, accumulation_steps=m, virtual_stages=v)

    def exposed_s(overlap: float) -> float:
        asked = case(layouts, network, replace(BYTES, overlaps_dp=1),
                     parameters=replace(EXACT, dp_overlap=overlap))  # fmt: skip
        return float(step_times(asked).data_parallel_s)

    layer = block_times(case(layouts, network, BYTES))
    hides_s = share * 24 / pp * float(layer.backward_s + layer.recompute_s) / v  # of a chunk
    link_s = -np.inf
    for left in reversed(range(v)):  # chunks that end later; the last backward ends at 0
        ends_s = -hides_s * (1 + left * min(pp, m))
        link_s = max(link_s, ends_s) + exposed_s(0.0) / v
    assert exposed_s(share) == pytest.approx(max(link_s, 0.0), abs=1e-12)


def test_low_precision_gains_more_from_wide_products() -> None:
    def gain(hidden: int) -> float:
        shapes = replace(SHAPE, hidden=hidden, heads=hidden // 128, kv_heads=hidden // 128,
                         ffn=4 * hidden)  # fmt: skip
        times = [
            float(
                products_s(case(PLAIN, replace(A100, generation=2, precision=code), shapes=shapes))
            )
            for code in (0, 1)
        ]
        return times[0] / times[1]

    assert gain(2048) < gain(4096) < gain(16384)


def test_huggingfaces_trainer_starts_kernels_more_slowly_than_a_plain_loop() -> None:
    small = replace(SHAPE, hidden=512, heads=4, kv_heads=4, ffn=2048, sequence=128)
    one = replace(PLAIN, dp=1, shard_group=1, micro_batch=1, accumulation_steps=1)
    trainer, plain = (
        float(
            step_times(case(one, shapes=small, software=Software(fusion=0, is_trainer=t))).step_s
        )
        for t in (1, 0)
    )
    assert trainer - plain == pytest.approx(
        24 * 3 * (P.launch_eager_s - P.launch_light_s) + P.step_eager_s - P.step_s, rel=0.05
    )


def test_hierarchical_sharding_saves_the_network() -> None:
    # InternEvo: at 256 GPUs sharding in a node beats sharding over all.
    network = replace(A100, network_bytes_per_s=25e9)
    everywhere = replace(PLAIN, dp=256, zero_stage=3, shard_group=256, micro_batch=1)
    assert step_s(replace(everywhere, shard_group=8), network) < step_s(everywhere, network)


def test_published_runs_are_within_the_models_error() -> None:
    # Narayanan et al., SC'21, Table 1: 175-billion-class rows, iteration times from their TFLOP/s.
    # (layers, hidden, heads, tp, pp, dp, micro-batch, steps, seconds)
    rows = [
        (24, 2304, 24, 1, 1, 32, 16, 1, 3.528),
        (48, 8192, 64, 8, 2, 32, 4, 12, 14.4535),
        (80, 12288, 96, 8, 8, 24, 2, 48, 24.8174),
        (128, 25600, 160, 8, 64, 6, 1, 512, 102.63),
    ]
    for layers, hidden, heads, tp, pp, dp, micro, steps, seconds in rows:
        shape = replace(
            SHAPE, layers=layers, hidden=hidden, heads=heads, kv_heads=heads, ffn=4 * hidden
        )
        layouts = Layouts(
            dp=dp,
            tp=tp,
            pp=pp,
            micro_batch=micro,
            accumulation_steps=steps,
            virtual_stages=2 if pp > 1 else 1,
            recompute=2,
            shard_group=dp,
        )
        software = Software(attention=0, is_launch_heavy=1, overlaps_dp=0, gradient_bytes=2)
        machines = replace(A100, network_bytes_per_s=200e9)
        found = float(step_times(case(layouts, machines, software, shapes=shape)).step_s)
        assert found == pytest.approx(seconds, rel=0.10)


def test_fp4_gains_more_from_width_than_fp8_and_16_bits_nothing() -> None:
    def gain(precision: int) -> float:
        """Return how much faster a product's flop becomes, 16,384 wide over 8,192."""
        machines = replace(A100, generation=3, precision=precision, memory_bytes_per_s=1e30)
        times = []
        for h in (8192, 16384):
            shape = replace(SHAPE, hidden=h, heads=h // 128, kv_heads=h // 128, ffn=4 * h)
            bare = replace(P, saturation_tp=1e-9, low_width=1e-9, wave_exponent=1e-9)
            asked = case(PLAIN, machines, shapes=shape, parameters=bare)
            times.append(float(products_s(asked)) / h**2)
        return times[0] / times[1]

    assert gain(0) == pytest.approx(1.0)
    assert gain(1) == pytest.approx(2**P.low_wide)
    assert gain(2) == pytest.approx(4**P.low_wide)


def test_a_board_with_more_power_keeps_up_more_of_its_bursts() -> None:
    catalogue = Catalogue.load(with_overrides=False)
    power = {
        name: catalogue.accelerators[name].relative_power
        for name in ("B200-SXM-180GB", "GB200-186GB", "H100-SXM5-80GB", "RTX-5090")
    }
    assert power["B200-SXM-180GB"] == pytest.approx(1.0)
    # 1,200 W of 1,000 for bursts of 1,822 Tflop/s over 1,745.
    assert power["GB200-186GB"] == pytest.approx(1.2 * 1745 / 1822)
    assert power["H100-SXM5-80GB"] == power["RTX-5090"] == 1.0
    strong = replace(A100, generation=3, relative_power=1.2)
    one, other = (
        block_times(case(PLAIN, m)).head_s for m in (replace(strong, relative_power=1.0), strong)
    )
    assert other < one


def test_a_message_through_the_host_costs_the_same_however_long_it_is() -> None:
    t4 = replace(A100, intra_bytes_per_s=3e9, host_bytes_per_s=6e9, devices_per_node=4)
    split = replace(PLAIN, dp=2, tp=4, shard_group=2)

    def inside(micro_batch: int, **changed: float) -> float:
        parameters = replace(NO_STRAGGLERS, tp_latency_s=1e-12, **changed)
        layouts = replace(split, micro_batch=micro_batch, accumulation_steps=16 // micro_batch)
        return float(step_times(case(layouts, t4, parameters=parameters)).inside_layer_s)

    messages = 4 * SHAPE.layers
    assert inside(1) - inside(16) == pytest.approx(15 * messages * P.host_message_s)
    # Pieces go in and out at once: the host's whole link, where a lone copy has half of it.
    passing = 1.5 * 2 * 2048 * 2048 * 16 * messages / (P.tp_efficiency * 6e9)
    assert inside(16, host_message_s=1e-12) == pytest.approx(passing)


def test_updated_weights_are_gathered_behind_the_next_forward_or_tensor_by_tensor() -> None:
    slow = replace(A100, network_bytes_per_s=4e9)
    layouts = replace(PLAIN, dp=64, shard_group=64, zero_stage=1)
    core = Software(fusion=1, overlaps_dp=1)
    at_once = replace(core, is_launch_heavy=1)
    times = [step_times(case(layouts, slow, one)).data_parallel_s for one in (core, at_once)]
    assert times[0] < times[1]
    loop, deepspeed = Software(fusion=0), Software(fusion=0, reduce_bucket_elements=5e8)
    late = [
        float(step_times(case(layouts, slow, one, parameters=NO_STRAGGLERS)).data_parallel_s)
        for one in (loop, deepspeed)
    ]
    # 24 layers of six tensors and those of the feed-forward block, each along a ring of 64.
    assert late[0] - late[1] == pytest.approx(24 * 8 * 63 * P.dp_latency_s)


@given(st.integers(1, 64), st.sampled_from([0, 1, 3]), st.booleans())
def test_weights_are_cast_once_a_step_unless_they_are_gathered_or_cast_apart(
    m: int, zero: int, apart: bool
) -> None:
    """What ``m`` micro-batches take for casts beside one each is linear in 1/m, or the same."""
    fp8, software = replace(A100, precision=1), Software(casts_apart=int(apart))

    def each(steps: float, parameters: LayoutParameters = P) -> float:
        layouts = replace(PLAIN, zero_stage=zero, accumulation_steps=steps)
        return float(products_s(case(layouts, fp8, software, parameters=parameters)))

    if zero == 3 or apart:
        assert each(m) == each(1)
    else:
        saved = (each(1) - each(np.inf)) * (1 - 1 / m)
        assert each(1) - each(m) == pytest.approx(saved, abs=1e-12)
        assert each(2) < each(1)
    uncast = replace(P, cast_bytes=1e-12)
    assert each(m, uncast) == pytest.approx(each(1, uncast))


def test_fp4_is_read_once_more_before_it_is_cast() -> None:
    """A tensor's own scale: two and a half times the traffic of a cast to fp8."""
    alike = replace(P, fp4_gain=P.fp8_gain, low_wide=0.0)
    free = replace(alike, cast_bytes=1e-12)
    fp8, fp4 = (
        float(products_s(case(PLAIN, replace(A100, precision=code), parameters=alike)))
        - float(products_s(case(PLAIN, replace(A100, precision=code), parameters=free)))
        for code in (1, 2)
    )
    assert fp4 == pytest.approx(2.5 * fp8)


def test_a_wider_sum_of_gradients_is_read_and_written_every_micro_batch() -> None:
    wide, narrow = (
        block_times(case(PLAIN, software=Software(gradient_bytes=width))) for width in (4, 2)
    )
    attention, ffn = layer_parameters(SHAPE)
    moved = 2 * 2 * float(attention + ffn) / float(case(PLAIN).stream_bytes_per_s)
    assert float(wide.backward_s - narrow.backward_s) == pytest.approx(moved)
    assert float(wide.weights_s - narrow.weights_s) == pytest.approx(moved)
    assert float(wide.forward_s) == float(narrow.forward_s)
