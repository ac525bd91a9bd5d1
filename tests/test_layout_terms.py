"""A layer's time and a device's memory, term by term: columns against one row in plain Python.

The rows are drawn over all that a row can say (experts, adapters, offloading, every ZeRO stage,
every kind of software), and the oracle below is written out from the sources that the modules
name, with ``if`` where they select among columns.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from advisor.planners.core.arrays import Layouts, Machines, Shapes, Software, busiest_rank
from advisor.planners.core.layout_case import LayoutCase, LayoutParameters
from advisor.planners.layouts.time import step_times
from advisor.planners.memory.transformers import (
    MemoryConstants,
    host_bytes,
    ledger,
    memory_bytes,
    needed_bytes,
)
from advisor.planners.step.transformer import block_times

ROWS = 400
FACTOR = 1.3  # of the device's own times
P = LayoutParameters(wave_exponent=0.6, cast_bytes=3.0, pp_efficiency=0.8, dp_latency_s=1e-4)
M = MemoryConstants(logit_bytes=6.0, gathered_layers=1.5)


@cache
def drawn() -> LayoutCase:
    draw = np.random.default_rng(5)

    def one_of(*values: Any) -> Any:
        return draw.choice(np.array(values), ROWS)

    heads, kv_share = one_of(4, 8, 16), one_of(1, 2, 4)
    tp, ep = one_of(1, 2, 4), one_of(1, 1, 2, 4)
    experts = np.where(ep > 1, 8, one_of(1, 4))
    zero = one_of(0, 1, 2, 3)
    dp, cp = ep * one_of(1, 2, 3), one_of(1, 1, 2)
    return LayoutCase(
        shapes=Shapes(
            layers=one_of(3, 7, 24), hidden=heads * one_of(60, 64, 96), heads=heads,
            kv_heads=heads // kv_share, ffn=one_of(700, 1024, 4096), matrices=one_of(2, 3),
            sequence=one_of(128, 1000, 4096), vocabulary=one_of(100, 50000), experts=experts,
            experts_per_token=np.where(experts > 1, one_of(1, 2), 1),
            trained_share=one_of(0.0, 1.0, 1.0), passed_share=one_of(0.3, 1.0, 1.0),
            tables=one_of(1, 2),
        ),
        layouts=Layouts(
            dp=dp, tp=tp, pp=one_of(1, 2, 3), micro_batch=one_of(1, 2, 4),
            accumulation_steps=one_of(1, 2, 8), shard_group=np.maximum(dp * cp // one_of(1, 2), 1),
            cp=cp, ep=ep, etp=np.where(ep > 1, one_of(0, 1), 0), virtual_stages=one_of(1, 1, 2),
            zero_stage=zero,
            recompute=one_of(0, 1, 2), partial_layers=one_of(0, 1, 2),
            is_sequence_parallel=one_of(0, 1), holds_all=one_of(0, 0, 1),
            offloads_optimizer=one_of(0, 1), offloads_activations=one_of(0, 1),
            reshards=one_of(0, 1), offloads_parameters=np.where(zero == 3, one_of(0, 1), 0),
        ),
        machines=Machines(
            flop_per_s=one_of(1e14, 3e14), memory_bytes_per_s=one_of(1e12, 2e12),
            memory_bytes=8e10, intra_bytes_per_s=one_of(1e10, 4e10, 3e11),
            network_bytes_per_s=one_of(2e10, 1e11), domain_machines=one_of(1, 1, 2),
            host_bytes_per_s=one_of(1e9, 2e10), devices_per_node=one_of(2, 4, 8),
            generation=one_of(0, 1, 2, 3), precision=one_of(0, 1, 2, 3),
            is_ultra=one_of(0, 1), elementwise_flop_per_s=one_of(np.inf, 4e12, 2e13),
            relative_power=one_of(0.8, 1.0, 1.3),
        ),
        software=Software(
            fusion=one_of(0, 1, 2, 3), attention=one_of(0, 1, 2, 3),
            is_launch_heavy=one_of(0, 1), is_trainer=one_of(0, 1), is_untuned=one_of(0, 1),
            gradient_bytes=one_of(2, 4), weight_bytes=one_of(2.0, 4.0),
            optimizer_state_bytes=one_of(6.0, 12.0), logit_scale=one_of(1.0, 1.75),
            activation_scale=one_of(1.0, 1.2), keeps_gradients=one_of(0, 1),
            splits_inputs=one_of(0, 1), gathers_whole=one_of(0, 1),
            gradient_shard_bytes=one_of(0.0, 4.0), reduce_bucket_elements=one_of(0.0, 5e6),
            offload_takes_gradients=one_of(0, 1),
            is_ring_balanced=one_of(0, 1), stops_early=one_of(0, 1),
            selective_gemm=one_of(0.0, 0.5), adapter_flop=one_of(0.0, 2e6),
            adapter_product_bytes=one_of(0.0, 3e4), adapter_sum_bytes=one_of(0.0, 5e4),
            requantised_bytes=one_of(0.0, 1e6), decoded_flop=one_of(0.0, 30.0),
            dequantised_bytes=one_of(0.0, 2.5, 7.0),
            dequantised_forward_bytes=one_of(0.0, 2.5), overlaps_tp=one_of(0, 1),
            overlaps_pp=one_of(0, 1), overlaps_dp=one_of(0, 1, 1), overlaps_ep=one_of(0, 1),
            sends_once=one_of(0, 1), evens_tokens=one_of(0, 0, 1),
            update_flop=one_of(0.0, 0.0, 1e5),
            residual_bytes=np.where(np.arange(ROWS) % 3, 2.0, 4.0),
        ),
        parameters=P, device_factor=FACTOR,
    )  # fmt: skip


def rows() -> list[Any]:
    """Return the drawn rows one by one, every column under its own name."""
    case = drawn()
    busy = busiest_rank(case.shapes, case.layouts)
    found = []
    for at in range(ROWS):
        row = {"busy": float(busy[at])}
        for part in (case.shapes, case.layouts, case.machines, case.software):
            for one in fields(part):
                row[one.name] = np.broadcast_to(getattr(part, one.name), (ROWS,))[at].item()
        row["etp"] = row["etp"] or row["tp"]
        row["busy"] = 1.0 if row["evens_tokens"] else row["busy"]
        found.append(SimpleNamespace(**row))
    return found


def weights(r: Any) -> tuple[float, float]:
    """Return the parameters of a layer's attention, and of one of its experts."""
    kv_width = r.hidden * r.kv_heads / r.heads
    return 2 * r.hidden * (r.hidden + kv_width), r.matrices * r.hidden * r.ffn


def rate(r: Any, precision: int) -> float:
    by_generation = [P.gemm_volta, 1.0, P.gemm_hopper, P.gemm_blackwell][r.generation]
    found = r.flop_per_s * P.gemm_efficiency * by_generation
    found *= [1.0, P.fp8_gain, P.fp4_gain, P.tf32_gain][precision]
    if r.is_untuned:
        found *= P.gemm_untuned
    if r.generation == 3 and precision > 0:
        found *= P.low_blackwell
    if precision == 2 and r.is_ultra:
        found *= 15 / 10
    found *= r.relative_power**P.blackwell_power
    return float(found)


def products(r: Any) -> float:
    """Every product at the large one's rate, slowed by its shape; and what it reads and writes."""
    tokens, h, f, kv = r.micro_batch * r.sequence / r.cp, r.hidden, r.ffn, r.kv_heads / r.heads
    attention, expert = weights(r)
    # Ranks with experts of their own see a share of the tokens each, whole experts wide.
    rows_of_expert = tokens * r.etp / r.tp * r.experts_per_token * r.ep / r.experts
    flop = 2 * tokens * attention * (1 + P.saturation_tokens / tokens) / r.tp
    of_experts = 1 + P.saturation_tokens / rows_of_expert
    if r.experts > 1:
        of_experts *= (1 + P.expert_width * r.etp / f) / P.grouped_efficiency
        of_experts *= 1 + (P.low_width * r.etp / f if r.precision in (1, 2) else 0)
    flop += 2 * tokens * r.experts_per_token * expert * r.busy * of_experts / r.tp
    slow = 1 + P.saturation_tp * r.tp / h
    if r.precision in (1, 2):
        slow *= 1 + P.low_width * r.tp / h
        slow /= (h / 8192) ** (P.low_wide * r.precision)
    if h // r.tp % 64:
        slow *= P.misaligned_gemm
    processors, share, whole = [80, 108, 132, 148][r.generation], 0.0, 0.0
    for columns, inner, outer in (
        (h * (1 + 2 * kv) / r.tp, h, h * (1 + 2 * kv)),
        (h, h, h),
        (f * (r.matrices - 1) / r.tp, h, f * (r.matrices - 1)),
        (h, f, h),
    ):
        tiles = math.ceil(tokens / 128) * math.ceil(columns / 256)
        waves = math.ceil(tiles / processors) * processors
        filled = (tokens / 128) * (columns / 256) / waves
        share += inner * outer * filled**-P.wave_exponent
        whole += inner * outer
    slow *= share / whole
    held = attention / r.tp + expert * r.experts / (r.ep * r.etp)
    # Inputs and outputs: of query-key-value, projection, up (and gate), down.
    entries = h + h / r.tp * (1 + 2 * kv) + h / r.tp + h
    entries += h + f / r.tp * (r.matrices - 1) + f / r.tp + h
    entries += h * (r.matrices - 2)
    moved = 2 * (held + tokens * entries) * (2 if r.precision == 3 else 1)
    if r.precision in (1, 2):
        # Weights once a step, unless they are gathered anew or cast by kernels apart.
        kept = r.zero_stage < 3 and not r.casts_apart
        cast = tokens * (2 * h + (h + f) * r.experts_per_token) / r.tp
        cast += held / (r.accumulation_steps if kept else 1)
        each = P.cast_bytes * (P.cast_apart if r.casts_apart else 1)
        moved += each * (5 / 2 if r.precision == 2 else 1) * cast
    return float(flop / rate(r, r.precision) * slow + moved / (0.856 * r.memory_bytes_per_s))


def attention(r: Any) -> float:
    tokens = r.micro_batch * r.sequence / r.cp
    flop = 2 * 2 * tokens * r.sequence * r.hidden / r.tp
    if r.attention == 0:
        if r.hidden / r.heads % 8:
            flop *= P.misaligned_heads
        each = P.eager_score_bytes if r.fusion == 0 else P.score_bytes
        moved = each * tokens * r.sequence * r.heads / r.tp * (2 if r.precision == 3 else 1)
        return float(
            flop / (r.flop_per_s * P.unfused_efficiency) + moved / (0.856 * r.memory_bytes_per_s)
        )
    if r.attention == 3 and r.generation == 3:
        share = P.flash_blackwell * (P.ultra_attention if r.is_ultra else 1)
    elif r.generation >= 2:
        share = [P.flash1_hopper, P.flash2_hopper, P.flash3_hopper][r.attention - 1]
    else:
        share = [P.flash1_ampere, P.flash2_ampere, P.flash2_ampere][r.attention - 1]
    # The last rank of a ring in order sees all keys: 2 cp of (cp + 1) halves.
    last = 1 if r.is_ring_balanced else 2 * r.cp / (r.cp + 1)
    return float(flop / 2 * last / (r.flop_per_s * share))


def elementwise(r: Any) -> float:
    tokens = r.micro_batch * r.sequence / r.cp
    ranks = r.tp if r.is_sequence_parallel else 1
    wide = [P.eager_bytes, P.fused_bytes, P.compiled_bytes, P.lean_bytes][r.fusion]
    moved = wide * r.hidden / ranks
    inner = P.activation_bytes * r.ffn * (r.matrices - 1)
    moved += inner * r.experts_per_token * r.busy / r.tp
    if r.experts > 1:
        # Out and back: read once and written for each expert; sorted again among ranks.
        times = 2 * (1 + r.experts_per_token)
        times += 4 * r.experts_per_token if r.ep * r.etp > r.tp else 0
        moved += times * 2 * r.hidden / ranks * P.permuted
    return float(moved * tokens * (2 if r.precision == 3 else 1) / (0.856 * r.memory_bytes_per_s))


def layer(r: Any) -> tuple[float, float, float, float]:
    """Return forward, backward, repeated and streamed time of a layer [s]."""
    memory, tokens = 0.856 * r.memory_bytes_per_s, r.micro_batch * r.sequence / r.cp
    width = 2 if r.precision == 3 else 1
    p, a, e = products(r), attention(r), elementwise(r)
    adapters = tokens * r.adapter_flop / r.tp / rate(r, r.precision)
    adapters += tokens * r.adapter_product_bytes * width / r.tp / memory
    sums = tokens * r.adapter_sum_bytes * width / r.tp / memory
    of_attention, expert = weights(r)
    held = of_attention / r.tp + expert * r.experts / (r.ep * r.etp)
    decoded = r.decoded_flop * held / r.elementwise_flop_per_s
    unpacked, written = (
        max(moved * held / memory, decoded if moved else 0.0)
        for moved in (r.dequantised_forward_bytes, r.dequantised_bytes)
    )
    unpacked += tokens * r.requantised_bytes / r.tp / memory
    forward = p + a + e + adapters + sums + unpacked
    passed = min(r.passed_share * r.pp, 1.0)
    backward = (2 if r.trained_share else 1) * p + (2.5 if r.attention else 2.0) * a
    if r.trained_share:
        # The step's sum is read and written, where the product counted one writing.
        backward += max(2 * r.gradient_bytes - 2 * width, 0) * held / memory
    backward += P.elementwise_backward * e + 2 * adapters + sums + written
    again = 0.0
    if r.recompute == 2:
        again = forward
        if r.stops_early:
            again -= p * expert / r.matrices / (of_attention + expert)
        again *= repeated_share(r)
    elif r.recompute == 1:
        again = r.selective_gemm * p + e if r.selective_gemm else a
    streamed = (1 + passed * P.elementwise_backward) * e + (1 + passed) * sums
    streamed += unpacked + passed * written
    return forward, passed * backward, passed * again, streamed


def repeated_share(r: Any) -> float:
    chunk = math.ceil(r.layers / (r.pp * r.virtual_stages))
    return min(r.partial_layers / chunk, 1.0) if r.partial_layers else 1.0


def head(r: Any) -> float:
    logits = r.micro_batch * r.sequence / r.cp * r.vocabulary / r.tp
    took = 2 * (3 if r.trained_share else 2) * logits * r.hidden / rate(r, 0)
    took += P.logit_bytes * logits / (0.856 * r.memory_bytes_per_s)
    return float(took * (P.head_share if r.pp > 1 else 1))


def started(r: Any) -> float:
    each = P.launch_eager_s if r.is_trainer else P.launch_light_s
    if r.is_launch_heavy:
        each = P.launch_heavy_s + P.launch_tp_s * (r.tp - 1) / (8 - 1)
    if r.experts > 1:
        each += P.launch_expert_s / (1 if r.ep * r.etp > r.tp else 2)
    return float((4 if r.recompute == 2 else 3) * each)


def test_the_units_times_are_the_sums_of_their_terms() -> None:
    """Kernels are started once forward, twice backward and once more to repeat."""
    found = block_times(drawn())
    columns = (
        found.forward_s, found.backward_s, found.recompute_s, found.streamed_s, found.head_s,
        found.launch_s,
    )  # fmt: skip
    terms = [FACTOR * np.array([*layer(r), head(r), started(r)]) for r in rows()]
    np.testing.assert_allclose(np.stack(columns, axis=1), terms, rtol=1e-9)


# Memory


def held(r: Any) -> tuple[float, float]:
    """Return the parameters on the fullest device, and those of experts among them."""
    of_attention, expert = weights(r)
    layers = math.ceil(r.layers / r.pp)
    tables = r.tables if r.pp == 1 else 1
    routed = layers * expert * r.experts / (r.ep * r.etp)
    dense = (layers * of_attention + tables * r.vocabulary * r.hidden) / r.tp
    return dense + routed, routed if r.experts > 1 else 0.0


def copies(r: Any) -> tuple[int, float]:
    ranks = min(r.shard_group, r.dp * r.cp)
    return ranks, max(ranks * r.tp / (r.ep * r.etp), 1)


def states(r: Any) -> float:
    whole, routed = held(r)
    ranks, of_experts = copies(r)

    def each(n: float) -> float:
        weight = r.weight_bytes * (1 - r.offloads_parameters) / (n if r.zero_stage == 3 else 1)
        whole_gradient = r.zero_stage < 2 or (r.pp > 1 and r.accumulation_steps > 1)
        gradient = r.trained_share * r.gradient_bytes / (1 if whole_gradient else n)
        gradient *= not moves_gradients(r, n)
        moments = r.trained_share * r.optimizer_state_bytes * (1 - r.offloads_optimizer)
        return float(weight + gradient + moments / (n if r.zero_stage else 1))

    found = (whole - routed) * each(ranks) + routed * each(of_experts)
    if r.zero_stage == 3 and (ranks > 1 or (r.offloads_parameters and r.pp == 1)):
        of_attention, expert = weights(r)
        some = of_attention / r.tp + expert * r.experts / (r.ep * r.etp)
        some *= M.gathered_layers
        all_of_it = r.pp > 1 or r.gathers_whole
        found += r.weight_bytes * (whole if all_of_it else min(some, whole))
    moves, trained = moves_gradients(r, ranks), whole * r.trained_share
    if r.zero_stage == 0 and not moves:
        found += r.gradient_shard_bytes * trained
    if r.zero_stage == 1 and not moves:
        found += r.gradient_shard_bytes * trained / ranks
    if r.zero_stage == 1 or moves:
        found += 4 * min(trained, 5e8 if moves else r.reduce_bucket_elements)
    return found


def moves_gradients(r: Any, ranks: float) -> bool:
    """Whether DeepSpeed sends gradients to the host as they come (ZeRO-Offload, 2021)."""
    return bool(
        r.offloads_optimizer and r.offload_takes_gradients and (r.zero_stage >= 2 or ranks == 1)
    )


def is_core(r: Any) -> bool:
    return r.fusion == 1 and not r.is_launch_heavy


def passed_back(r: Any) -> float:
    """Return a gated block's gradients, one kernel an operator: 3 f + 2 h elements a token."""
    if r.matrices != 3 or r.fusion not in (0, 3):
        return 0.0
    inner = r.ffn * r.experts_per_token / r.tp
    tokens = r.micro_batch * r.sequence / r.cp
    return float(tokens * 2 * (3 * inner + 2 * r.hidden) * r.activation_scale)


def of_layer(r: Any) -> float:
    """Return what one layer keeps of one micro-batch: Korthikanti et al., equations 2 and 4."""
    kv = r.kv_heads / r.heads
    outside = (8 + (2 if r.is_launch_heavy else 0)) * r.hidden
    outside /= r.tp if r.is_sequence_parallel else 1
    inside = (4 + 4 * kv + (2 * (1 + kv) if is_core(r) and r.matrices == 3 else 0)) * r.hidden
    inside += 2 * r.matrices * r.ffn * r.experts_per_token
    if r.attention == 0 and r.recompute == 0:
        inside += 5 * r.heads * r.sequence
    found = outside + inside / r.tp
    if r.recompute == 1 and r.selective_gemm:
        found *= 1 - r.selective_gemm
    elif r.matrices == 3:  # Llama's elementwise kernels, one each or made again
        stream = r.hidden / (r.tp if r.is_sequence_parallel else 1)
        gate = r.ffn * r.experts_per_token / r.tp
        norms = (8 if r.trained_share else 4) * stream
        found += {0: norms + 2 * gate, 2: -4 * stream - 2 * gate}.get(r.fusion, 0)
    return float(found * r.micro_batch * r.sequence / r.cp * r.activation_scale)


def between(r: Any) -> float:
    tokens = r.micro_batch * r.sequence / r.cp
    return float(2 * tokens * r.hidden / (r.tp if r.is_sequence_parallel else 1))


def kept(r: Any) -> float:
    if r.recompute < 2:
        return of_layer(r)
    start = between(r) / (r.tp if r.splits_inputs and not r.is_sequence_parallel else 1)
    start *= r.residual_bytes / 2 if r.zero_stage < 3 else 1
    return repeated_share(r) * start + (1 - repeated_share(r)) * of_layer(r)


def in_flight(r: Any) -> float:
    if r.holds_all:
        return float(r.accumulation_steps) if r.pp > 1 else 1.0
    ahead = 1 + (r.pp - 1) / (r.pp * r.virtual_stages) if r.virtual_stages > 1 else 1.0
    return float(min(r.pp * ahead, r.accumulation_steps))


def passing(r: Any, *, is_first: bool = False) -> tuple[float, float]:
    """Return what comes and goes on the fullest stage, or on the first, and what stays cached.

    Blocks of the loss's moment are there at the update, too: all that no other stream uses.
    """
    moved = r.offloads_activations * repeated_share(r)
    each = kept(r) * (1 - moved) * min(r.passed_share * r.pp, 1)
    live = of_layer(r) + passed_back(r) if r.recompute == 2 or moved else 0.0
    layers = math.ceil(r.layers / r.pp)
    sent = 0.0 if r.pp == 1 or is_core(r) else between(r)
    first = in_flight(r) * (layers * each + sent) + live
    logits = M.logit_bytes * r.logit_scale * r.micro_batch * r.sequence / r.cp
    last = layers * each + max(live, logits * r.vocabulary / r.tp)
    found = first if is_first and r.pp > 1 else max(first, last)
    absent = 0.0  # gradients of the only micro-batch, which come as activations go
    if not r.keeps_gradients and r.accumulation_steps == 1 and r.pp == 1:
        (ranks, of_experts), (whole, routed) = copies(r), held(r)
        shares = (ranks, of_experts) if r.zero_stage >= 2 else (1, 1)
        absent = (whole - routed) * (not moves_gradients(r, ranks)) / shares[0]
        absent += routed * (not moves_gradients(r, of_experts)) / shares[1]
        absent *= r.trained_share * r.gradient_bytes
    matrix = 2 * r.hidden * max(r.ffn, r.hidden) / r.tp if r.dequantised_bytes else 0
    is_sharded = r.zero_stage == 3 and copies(r)[0] > 1
    cached = (1.0 if is_sharded else 0.5) * (found - of_layer(r))
    is_later = of_layer(r) > found - absent
    return float(max(found - absent, of_layer(r)) + matrix), max(cached, 0.0) * is_later


def test_a_device_holds_states_and_what_passes() -> None:
    case = drawn()
    given = (case.shapes, case.layouts, case.software, M)
    needed, whole, first = [], [], []
    for r in rows():
        lasting, (come, kept), (come_first, kept_first) = (
            states(r), passing(r), passing(r, is_first=True)
        )  # fmt: skip
        if r.dp * r.tp * r.pp * r.cp == 1:
            needed.append(M.alone_context_bytes + lasting + come)
            whole.append(M.alone_context_bytes + lasting + M.slack * come + kept)
            first.append(whole[-1])
        else:
            needed.append(M.context_bytes + lasting + come)
            whole.append(M.context_bytes + M.slack * (lasting + come) + kept)
            first.append(M.context_bytes + M.slack * (lasting + come_first) + kept_first)
    np.testing.assert_allclose(needed_bytes(*given), needed, rtol=1e-9)
    np.testing.assert_allclose(memory_bytes(*given), whole, rtol=1e-9)
    np.testing.assert_allclose(memory_bytes(*given, stage="first"), first, rtol=1e-9)


def test_a_node_holds_what_its_devices_moved_out() -> None:
    def on_host(r: Any) -> float:
        whole, routed = held(r)
        ranks, of_experts = copies(r)

        def each(n: float) -> float:
            weight = r.offloads_parameters * r.weight_bytes / (n if r.zero_stage == 3 else 1)
            touched = r.optimizer_state_bytes + r.gradient_bytes
            moments = r.offloads_optimizer * r.trained_share * touched
            return float(weight + moments / (n if r.zero_stage else 1))

        found = (whole - routed) * each(ranks) + routed * each(of_experts)
        share = r.offloads_activations * repeated_share(r) * min(r.passed_share * r.pp, 1)
        found += share * in_flight(r) * math.ceil(r.layers / r.pp) * kept(r)
        return float(r.devices_per_node * found)

    case = drawn()
    found = host_bytes(case.shapes, case.layouts, case.machines, case.software)
    np.testing.assert_allclose(found, [on_host(r) for r in rows()], rtol=1e-9)


def test_a_lone_device_loses_nothing_of_what_lasts_and_a_replayed_job_neither() -> None:
    """``ledger``: context, states and the slack, whoever trains beside."""
    constants = MemoryConstants(context_bytes=50.0, alone_context_bytes=20.0, slack=1.5)
    case = drawn()
    given = (case.shapes, case.layouts, case.software)
    plain, replayed, small = (
        ledger(*given, replace(constants, **change))
        for change in ({}, {"is_replayed": True}, {"context_bytes": 5.0})
    )
    passing = sum(plain[name] for name in ("activations", "recomputed", "logits", "workspace"))
    lasting = needed_bytes(*given, constants) - plain["context"] - passing
    is_alone = np.array([r.dp * r.tp * r.pp * r.cp == 1 for r in rows()])
    np.testing.assert_allclose(plain["context"], np.where(is_alone, 20, 50))
    np.testing.assert_allclose(small["context"], 5.0 + 0 * passing)
    cached = ledger(*given, replace(constants, slack=1.0))["fragmentation"]
    np.testing.assert_allclose(replayed["fragmentation"], cached + 0.5 * passing)
    lost = cached + 0.5 * np.where(is_alone, passing, passing + lasting)
    np.testing.assert_allclose(plain["fragmentation"], lost)


# A step


def link(r: Any, ranks: int) -> float:
    """Return what a device has of a ring of so many neighbours [bytes/s]."""
    if ranks <= r.devices_per_node * r.domain_machines:
        return float(r.intra_bytes_per_s)
    return float(min(r.intra_bytes_per_s, r.network_bytes_per_s * r.domain_machines))


def inside_layer(r: Any) -> float:
    """Tensor-parallel all-reduces, a ring of keys and values, and experts' all-to-alls."""
    tokens, passed = r.micro_batch * r.sequence / r.cp, min(r.passed_share * r.pp, 1)
    times = 2 + passed * (4 if r.recompute == 2 else 2)
    stream = 2 * tokens * r.hidden * (2 if r.precision == 3 else 1)
    is_near = r.tp <= r.devices_per_node * r.domain_machines
    is_by_host = r.tp > 1 and is_near and r.intra_bytes_per_s < 15e9
    # In and out of the host's memory at once, as far as its link to a device carries it.
    rate = max(min(2e10, r.host_bytes_per_s), 1e10) if is_by_host else link(r, r.tp)
    reduced = 2 * (r.tp - 1) / r.tp * stream / (P.tp_efficiency * rate)
    found = times * (reduced + P.tp_latency_s * math.log2(r.tp))
    found += times * P.host_message_s if is_by_host else 0
    found *= P.tp_exposed if r.overlaps_tp else 1
    if r.experts > 1:
        # Around attention as ever; the ranks of an expert gather all that it meets, or none.
        found *= (1 + (r.experts_per_token if r.etp > 1 else 0)) / 2
    keys = 2 * 2 * tokens * r.hidden * r.kv_heads / r.heads / r.tp
    rate = P.tp_efficiency * link(r, r.tp * r.cp)
    found += P.cp_exposed * (1 + 2 * passed) * (r.cp - 1) * keys / rate
    return float(found + times * between_experts(r, stream / r.tp))


def between_experts(r: Any, stream: float) -> float:
    """One exchange: copies of a token to ranks of its node, and to other nodes, side by side."""
    group, joined, k = r.ep * r.etp, r.devices_per_node * r.domain_machines, r.experts_per_token
    nodes = min(max(group / joined, 1), r.ep)
    of_node = max(r.ep / nodes, 1)
    if r.sends_once:
        # Whom none of k experts, drawn anywhere, belongs to gets nothing.
        near = r.ep * (1 - (1 - 1 / r.ep) ** k) * (of_node - 1) / of_node
        far = (nodes - 1) * (1 - (1 - 1 / nodes) ** k)
    else:
        near, far = k / nodes * (of_node - 1) / of_node, k * (nodes - 1) / nodes
    network = r.network_bytes_per_s * r.domain_machines / min(group, joined)
    took = stream * max(near / r.intra_bytes_per_s, far / network) * r.busy / P.ep_efficiency
    return float(took * (P.tp_exposed if r.overlaps_ep and r.virtual_stages > 1 else 1))


def send(r: Any) -> float:
    """Both ways of one micro-batch between all of a device's chunks."""
    side_by_side = r.tp * r.cp * r.dp
    joined = r.devices_per_node * r.domain_machines
    rate = r.intra_bytes_per_s
    if side_by_side * r.pp > joined:
        network = r.network_bytes_per_s * r.domain_machines
        rate = min(rate, network / min(side_by_side, joined))
    sent = 2 * r.micro_batch * r.sequence / r.cp * r.hidden / r.tp
    once = sent * (2 if r.precision == 3 else 1) / (P.pp_efficiency * rate) + P.pp_latency_s
    once += P.launch_send_s if r.is_launch_heavy else 0
    hidden = P.pp_exposed if r.overlaps_pp and r.virtual_stages > 1 else 1
    return float(2 * r.virtual_stages * once * hidden)


def ring(r: Any, ranks: float, side_by_side: int) -> float:
    joined = r.devices_per_node * r.domain_machines
    inside = P.dp_intra_efficiency * r.intra_bytes_per_s
    if ranks * side_by_side <= joined:
        return float(inside)
    network = P.dp_network_efficiency * r.network_bytes_per_s * r.domain_machines
    return float(min(inside, network / min(side_by_side, joined)))


def waits(r: Any, ranks: float, size: float) -> float:
    """Return the steps of the calls, each of which waits for its link."""
    bucket = max(160e6, 4e6 * ranks)
    if r.zero_stage == 3:
        bucket = max(size / math.ceil(r.layers / r.pp), 1)
    return math.ceil(round(size / bucket, 9)) * (ranks - 1) * P.dp_latency_s


def reductions(r: Any, backward_s: float, compute_s: float) -> float:
    """Return what is exposed of gradients and gathered weights: Rajbhandari et al., section 7."""
    (whole, routed), d, m = held(r), r.dp * r.cp, r.accumulation_steps
    passes = 1 if r.pp > 1 and m > 1 else m
    parts = [of_ranks(r, whole - routed, d, copies(r)[0], r.tp)]
    if routed:
        ranks = max(d * r.tp / (r.ep * r.etp), 1)
        parts.append(of_ranks(r, routed, ranks, copies(r)[1], r.ep * r.etp))
    scattered, scatter, among, sent, gather, everything = (
        sum(one) for one in zip(*parts, strict=True)
    )
    is_loop = r.fusion != 1 and not r.is_launch_heavy and not r.reduce_bucket_elements
    if is_loop and r.zero_stage in (1, 2):
        tensors = math.ceil(r.layers / r.pp) * (4 + r.matrices + 2)
        gather += tensors * (copies(r)[0] - 1) * P.dp_latency_s
    if r.zero_stage == 3:
        times = 2 if r.reshards and r.pp == 1 else 1
        least = P.fsdp_exposed_core if is_core(r) else P.fsdp_exposed
        copied = passes * (times * sent + scattered)
        every = passes * (times * gather + scatter)
        least = least * copied + P.latency_exposed * (every - copied)
        return float(max(least, every + among - P.fsdp_overlap * compute_s))
    scatters = passes if r.zero_stage == 2 else 1
    hidden = P.dp_overlap if r.overlaps_dp else 0
    is_ahead = is_core(r) and r.overlaps_dp and r.zero_stage > 0
    found = scatters * scatter + among + (0 if is_ahead else gather)
    if r.zero_stage == 0:
        found = everything
    ahead = exposed(r, gather, hidden * (compute_s / m - backward_s)) if is_ahead else 0
    return ahead + exposed(r, found, hidden * scatters * backward_s)


def exposed(r: Any, whole: float, hiding: float) -> float:
    v, within = r.virtual_stages, min(r.pp, r.accumulation_steps)
    # Chunks are reduced one after another behind what still goes backward; the last has its own.
    return float(max(whole - hiding * (1 + (v - 1) * within) / v, (whole - hiding) / v, 0))


def of_ranks(r: Any, size: float, d: float, group: float, side_by_side: int) -> list[float]:
    """Return collectives over so many parameters: scatter, shards, gather, all at once."""
    gradients = r.gradient_bytes * size * r.trained_share
    near, far = ring(r, group, side_by_side), ring(r, d, side_by_side)
    weights = r.weight_bytes * size * (1 if r.zero_stage == 3 else r.trained_share)
    scattered, sent = (one * (group - 1) / group / near for one in (gradients, weights))
    shard = gradients / group
    return [
        scattered, scattered + waits(r, group, gradients),
        2 * (shard * (d - group) / d / far + waits(r, d / group, shard)),
        sent, sent + waits(r, group, weights),
        2 * (gradients * (d - 1) / d / far + waits(r, d, gradients)),
    ]  # fmt: skip


def updated(r: Any) -> float:
    (whole, routed), (ranks, of_experts) = held(r), copies(r)
    if not r.zero_stage:
        ranks = of_experts = 1
    return float(((whole - routed) / ranks + routed / of_experts) * r.trained_share)


def offloaded(r: Any, compute_s: float) -> float:
    """Return gradients down and weights up with the host's update, and what comes and goes."""
    state = r.weight_bytes + r.gradient_bytes
    update = state * updated(r) / r.host_bytes_per_s
    touched = r.gradient_bytes + r.optimizer_state_bytes
    update += r.devices_per_node * touched * updated(r) / P.host_update_bytes_per_s
    m, shared = r.accumulation_steps, copies(r)[0] if r.zero_stage == 3 else 1
    moved = r.offloads_parameters * m * 2 * r.weight_bytes * held(r)[0] / shared
    moved += r.offloads_gradients * (m - 1) * r.gradient_bytes * updated(r)
    passed = math.ceil(r.layers / r.pp) * min(r.passed_share * r.pp, 1)
    moved += r.offloads_activations * repeated_share(r) * m * 2 * passed * kept(r)
    exposed = max(moved / r.host_bytes_per_s - P.offload_overlap * compute_s, 0)
    return float(r.offloads_optimizer * update + exposed)


def step(r: Any) -> list[float]:
    """Return the whole, and computing, inside layers, pipeline, reductions, update, offload."""
    forward, backward, again, _ = (FACTOR * one for one in layer(r))
    inside = inside_layer(r)
    busy = max(forward + backward + again, FACTOR * started(r) - inside)
    m, layers = r.accumulation_steps, math.ceil(r.layers / r.pp)
    computing = m * (layers * busy + FACTOR * head(r))
    pipeline = (r.pp - 1) / r.virtual_stages * layers * (busy + inside)
    pipeline += m * send(r) if r.pp > 1 else 0
    share = (r.weight_bytes + r.gradient_bytes + r.optimizer_state_bytes) / 18
    update = P.optimizer_bytes * share / (0.856 * r.memory_bytes_per_s)
    update += r.update_flop / rate(r, r.precision)
    update *= FACTOR * updated(r) * (1 - r.offloads_optimizer)
    parts = [
        computing, m * layers * inside, pipeline,
        reductions(r, layers * (backward + again), computing),
        update + (P.step_eager_s if r.is_trainer else P.step_s), offloaded(r, computing),
    ]  # fmt: skip
    nodes = max(r.dp * r.tp * r.pp * r.cp / r.devices_per_node, 1)
    slow = 1 + P.straggler * math.log2(nodes)
    return [slow * one for one in (sum(parts), *parts, 0.0)]  # loading is the job's


def test_a_step_is_the_sum_of_its_parts_each_by_its_own_law() -> None:
    found = step_times(drawn())
    parts = [np.broadcast_to(getattr(found, one.name), (ROWS,)) for one in fields(found)]
    expected = np.array([step(r) for r in rows()])
    for name, column, by_hand in zip(fields(found), parts, expected.T, strict=True):
        np.testing.assert_allclose(column, by_hand, rtol=1e-9, err_msg=name.name)
