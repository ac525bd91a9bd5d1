"""Step time of transformer layouts, as columns: layers, links, bubble, optimizer, offload.

| here            | papers | meaning                                                            |
|-----------------|--------|--------------------------------------------------------------------|
| ``stage_s``     | -      | forward and backward of one micro-batch on the slowest stage [s]   |
| ``m``, ``p``, ``v`` | m, p, v | micro-batches, stages, chunks of a device                     |
| ``d``           | d      | data-parallel ranks that share a reduction (dp x cp)               |

step = m (stage + sends) + (p-1)/v stage + exposed reductions + optimizer, times a straggler term.
Stages of ceil(l/p) layers: the slowest rules. Sources: Narayanan et al. (SC'21, section 2-3),
Rajbhandari et al. (ZeRO, 2020), Chen et al. (InternEvo, 2024) for hierarchical sharding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import Final

import numpy as np

from advisor.planners.core import (
    Column,
    Floats,
    LayoutCase,
    LayoutConditions,
    LayoutParameters,
    Layouts,
    activation_width,
    device_parameters,
    domain_devices,
    domain_network_bytes_per_s,
    expert_group,
    partial_share,
    passed_layers_share,
)
from advisor.planners.links import context_parallel_s, expert_parallel_s, tensor_parallel_s
from advisor.planners.memory import (
    accumulates_whole,
    expert_copies,
    expert_parameters,
    is_megatron_core,
    kept_bytes,
    model_state,
    shard_ranks,
)
from advisor.planners.step import block_times, product_rate

# Buckets of Megatron's reductions: 40 million fp32 elements, or a million a rank where that is
# more (``DistributedDataParallelConfig.bucket_size``). [bytes]
_BUCKET_BYTES: Final = 4 * 40e6
_BUCKET_BYTES_PER_RANK: Final = 4 * 1e6
_ROUNDING: Final = 1e-9
# Weight, gradient and state of a parameter in the runs that the constant was fitted on. [bytes]
_FITTED_STATE_BYTES: Final = 18.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """A step and what it is made of; the parts add up to ``step_s`` [s]."""

    step_s: Floats
    compute_s: Floats
    inside_layer_s: Floats
    pipeline_s: Floats
    data_parallel_s: Floats
    optimizer_s: Floats
    offload_s: Floats
    input_s: Floats = field(default_factory=lambda: np.zeros(()))


def ring_bytes_per_s(case: LayoutCase, ranks: Column, width: Column | None = None) -> Floats:
    """Return the bandwidth of a data-parallel ring over ``ranks``, per device [bytes/s].

    All network interfaces of a node (or of the nodes that one switch fabric joins) serve the rings
    that cross it: one for each of the ``width`` neighbours that hold different parameters, tp by
    default.
    """
    machines, parameters = case.machines, case.parameters
    width = np.asarray(case.layouts.tp if width is None else width, float)
    inside = parameters.dp_intra_efficiency * np.asarray(machines.intra_bytes_per_s)
    joined = domain_devices(machines)
    rings = np.minimum(width, joined)
    across = parameters.dp_network_efficiency * domain_network_bytes_per_s(machines) / rings
    is_inside = np.asarray(ranks) * width <= joined
    return np.where(is_inside, inside, np.minimum(inside, across))


def ring_latency_s(case: LayoutCase, ranks: Column, bytes_: Floats) -> Floats:
    """Return what the steps of one direction of a ring take besides its bytes [s].

    As ``links.collectives``: every call takes ranks - 1 steps, so the efficiency of a ring falls
    with its length. Megatron's buckets grow with the ranks, FSDP's are layers.
    """
    ranks = np.asarray(ranks, float)
    bucket = np.maximum(_BUCKET_BYTES, _BUCKET_BYTES_PER_RANK * ranks)
    layer = bytes_ / np.maximum(np.ceil(np.asarray(case.shapes.layers) / case.layouts.pp), 1)
    bucket = np.where(np.asarray(case.layouts.zero_stage) == 3, layer, bucket)
    calls = np.ceil(np.asarray(bytes_) / np.maximum(bucket, 1.0) - _ROUNDING)
    return np.asarray(calls * (ranks - 1) * case.parameters.dp_latency_s)


def _by_tensor_s(case: LayoutCase, ranks: Column) -> Floats:
    """Return what the calls take that hand out updated weights tensor by tensor [s].

    So do loops around PyTorch that shard the optimizer alone (``ZeroRedundancyOptimizer``,
    InternEvo's ``HybridZeroOptimizer``): every rank broadcasts what it updated, along a ring.
    Megatron and DeepSpeed gather buckets.
    """
    software, zero = case.software, np.asarray(case.layouts.zero_stage)
    is_loop = (np.asarray(software.fusion) != 1) & (np.asarray(software.is_launch_heavy) == 0)
    is_loop &= np.asarray(software.reduce_bucket_elements) == 0
    is_loop &= (zero == 1) | (zero == 2)
    # Four of attention, those of the feed-forward block, and two norms.
    tensors = np.ceil(np.asarray(case.shapes.layers) / case.layouts.pp)
    tensors = tensors * (6 + np.asarray(case.shapes.matrices))
    late = tensors * (np.asarray(ranks, float) - 1) * case.parameters.dp_latency_s
    return np.where(is_loop, late, 0.0)


def data_parallel_s(case: LayoutCase, backward_s: Floats, compute_s: Floats) -> Floats:
    """Return the exposed reductions and gathers of a step [s].

    ``backward_s``: of one micro-batch on a stage: what a gradient reduction can hide behind;
    ``compute_s``: of the whole step: what ZeRO-3's gathers can hide behind.
    """
    layouts, software, parameters = case.layouts, case.software, case.parameters
    zero = np.asarray(layouts.zero_stage)
    d, group = np.asarray(layouts.dp) * np.asarray(layouts.cp, float), shard_ranks(layouts)
    held, routed = device_parameters(case.shapes, layouts), _routed_parameters(case)
    # Copies of an expert are on fewer ranks than those of what all tokens meet, and farther apart.
    one = _collectives(case, held - routed, d, group, np.asarray(layouts.tp, float))
    if np.any(routed):
        copies, of_group = (expert_copies(layouts, ranks) for ranks in (d, group))
        other = _collectives(case, routed, copies, of_group, expert_group(layouts))
        one = tuple(a + b for a, b in zip(one, other, strict=True))
    scattered, scatter, between, sent, gather, all_reduce = one
    gather = gather + _by_tensor_s(case, group)
    m = np.asarray(layouts.accumulation_steps)
    # ZeRO 2 and 3 keep no whole gradient: every micro-batch's is scattered. Stages of a pipeline
    # add up whole gradients of weights that they gathered once.
    passes = np.where(accumulates_whole(layouts), 1, m)
    scatters = np.where(zero == 2, passes, 1)
    overlap = np.where(np.asarray(software.overlaps_dp), parameters.dp_overlap, 0.0)
    # Megatron Core gathers what was updated behind the next forward (``overlap_param_gather``).
    is_ahead = is_megatron_core(software) & (overlap > 0) & (zero > 0)
    at_once = np.where(is_ahead, 0.0, gather)
    reduction = np.where(zero == 0, all_reduce, scatters * scatter + between + at_once)
    exposed = _exposed_s(reduction, overlap * scatters * backward_s, layouts)
    forward_s = compute_s / m - backward_s
    exposed = exposed + _exposed_s(gather - at_once, overlap * forward_s, layouts)
    again = np.asarray(layouts.reshards, bool) & (np.asarray(layouts.pp) == 1)
    times = np.where(again, 2, 1)
    fsdp = passes * (times * gather + scatter) + between
    # What is never hidden is what copying takes from the kernels beside it, in memory and
    # processors: waiting for the next step of a ring takes neither.
    copied = passes * (times * sent + scattered)
    least = np.where(
        is_megatron_core(software), parameters.fsdp_exposed_core, parameters.fsdp_exposed
    )
    late = parameters.latency_exposed * (fsdp - copied - between)
    fsdp_exposed = np.maximum(least * copied + late, fsdp - parameters.fsdp_overlap * compute_s)
    return np.asarray(np.where(zero == 3, fsdp_exposed, exposed))


def _routed_parameters(case: LayoutCase) -> Floats:
    """Return the parameters of the experts on the fullest device."""
    layers = np.ceil(np.asarray(case.shapes.layers) / np.asarray(case.layouts.pp, float))
    return expert_parameters(case.shapes, case.layouts, layers=layers)


def _collectives(
    case: LayoutCase, held: Floats, d: Floats, group: Floats, width: Floats
) -> tuple[Floats, ...]:
    """Return what collectives over parameters that a device holds take, hidden or not [s].

    Of a reduce-scatter inside the shard group what is copied, and all of it; the all-reduce of
    the shards between groups; of a gather what is copied, and all of it; an all-reduce.

    ``held``: copied on ``d`` ranks, of which ``group`` share one copy of the state; ``width``:
    neighbours that hold different parameters.
    """
    shapes, software = case.shapes, case.software
    ring, group_ring = (ring_bytes_per_s(case, ranks, width) for ranks in (d, group))
    gradient = np.asarray(software.gradient_bytes, float)
    # Reduce-scatter the gradients over the shard group, all-reduce the shards between groups,
    # gather the updated parameters inside the group (ZeRO 1, 2); all-reduce everything (ZeRO 0).
    trained = held * np.asarray(shapes.trained_share, float)
    weight = np.asarray(software.weight_bytes, float)
    scattered = gradient * trained * (group - 1) / group / group_ring
    scatter = scattered + ring_latency_s(case, group, gradient * trained)
    between = 2 * gradient * trained / group * (d - group) / d / ring
    between = between + 2 * ring_latency_s(case, d / group, gradient * trained / group)
    # ZeRO 3 gathers all weights for every pass; ZeRO 1 and 2 those that were updated.
    is_whole = np.asarray(case.layouts.zero_stage) == 3
    gathered = weight * np.where(is_whole, held, trained)
    sent = gathered * (group - 1) / group / group_ring
    gather = sent + ring_latency_s(case, group, gathered)
    all_reduce = 2 * gradient * trained * (d - 1) / d / ring
    all_reduce = all_reduce + 2 * ring_latency_s(case, d, gradient * trained)
    return scattered, scatter, between, sent, gather, all_reduce


def _exposed_s(reduction_s: Floats, hiding_s: Floats, layouts: Layouts) -> Floats:
    """Return what is left of the reductions when the first stage's last backward ends [s].

    A device with v chunks ends its first chunk's gradients while p micro-batches still go
    backward through each of the other v - 1: they hide its reduction. The last chunk has its own
    last backward only. One chunk a device: one micro-batch's backward, however deep the pipeline.

    ``hiding_s``: what one micro-batch's backward on all chunks of the device hides.
    """
    p, v = np.asarray(layouts.pp, float), np.asarray(layouts.virtual_stages, float)
    within = np.minimum(p, np.asarray(layouts.accumulation_steps))
    whole = reduction_s - hiding_s * (1 + (v - 1) * within) / v
    return np.asarray(np.maximum(np.maximum(whole, (reduction_s - hiding_s) / v), 0.0))


def offload_s(case: LayoutCase, compute_s: Floats) -> Floats:
    """Return the exposed transfers to host memory and the host's optimizer update [s]."""
    shapes, layouts, machines = case.shapes, case.layouts, case.machines
    software, parameters = case.software, case.parameters
    held, updated = device_parameters(shapes, layouts), _updated_parameters(case)
    m = np.asarray(layouts.accumulation_steps)
    # Gradients go down, parameters come back; the CPUs of a node update the state and gradients of
    # every parameter of its devices (16 bytes in mixed precision with AdamW).
    weight = np.asarray(software.weight_bytes, float)
    moved = weight + software.gradient_bytes
    touched = model_state(0, software.gradient_bytes, software.optimizer_state_bytes).device_bytes
    fetched = np.where(np.asarray(layouts.zero_stage) == 3, held / shard_ranks(layouts), held)
    per_stage = np.ceil(np.asarray(shapes.layers) / layouts.pp)
    passed = per_stage * passed_layers_share(shapes, layouts)
    kept = passed * kept_bytes(shapes, layouts, software) * partial_share(shapes, layouts)
    passing = np.asarray(layouts.offloads_parameters) * weight * fetched
    passing = passing + np.asarray(layouts.offloads_activations) * kept
    # Every micro-batch's gradients go to the host, which adds them up; the last are counted above.
    gradients = np.asarray(layouts.offloads_gradients) * software.gradient_bytes * updated
    updated = np.asarray(layouts.offloads_optimizer) * updated
    return moved_s(
        parameters, machines.host_bytes_per_s, machines.devices_per_node, compute_s,
        updated_bytes=moved * updated, touched_bytes=touched * updated,
        passing_bytes=m * 2 * passing + (m - 1) * gradients,
    )  # fmt: skip


def with_paging(times: StepTimes, case: LayoutCase, over_bytes: Floats) -> StepTimes:
    """Return times with what a paged optimizer's state waits for its link to the host.

    The device updates, and what of the state has no room beside what it needs comes up and goes
    down again.

    ``over_bytes``: what the device needs without that state over what it may fill; below 0 where
    there is room.
    """
    software = case.software
    state = _updated_parameters(case) * software.optimizer_state_bytes
    missing = np.clip(over_bytes + state, 0.0, state)
    waits = np.where(software.pages_optimizer, 2 * missing / case.machines.host_bytes_per_s, 0.0)
    return replace(times, step_s=times.step_s + waits, offload_s=times.offload_s + waits)


def moved_s(
    parameters: LayoutParameters, link_bytes_per_s: Column, devices: Column, compute_s: Floats, *,
    updated_bytes: Column, touched_bytes: Column, passing_bytes: Column,
) -> Floats:  # fmt: skip
    """Return what a step waits for host memory and for the optimizer there [s].

    ``devices``: of a node, whose CPUs update for all of them; ``compute_s``: hides a part of what
    passes; ``updated_bytes``: gradients that go down and parameters that come back;
    ``touched_bytes``: what the update reads and writes; ``passing_bytes``: what goes down and
    comes back in all passes of a step.
    """
    link, rate = np.asarray(link_bytes_per_s, float), parameters.host_update_bytes_per_s
    update = updated_bytes / link + np.asarray(devices) * touched_bytes / rate
    passing = passing_bytes / link - parameters.offload_overlap * compute_s
    return np.asarray(update + np.maximum(passing, 0.0))


def _updated_parameters(case: LayoutCase) -> Floats:
    """Return the trained parameters that one device updates: its share where they are sharded."""
    held, routed = device_parameters(case.shapes, case.layouts), _routed_parameters(case)
    is_sharded, group = np.asarray(case.layouts.zero_stage) >= 1, shard_ranks(case.layouts)
    shared = (held - routed) / group
    if np.any(routed):
        shared = shared + routed / expert_copies(case.layouts, group)
    updated = np.where(is_sharded, shared, held)
    return np.asarray(updated * np.asarray(case.shapes.trained_share, float))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """What one micro-batch takes on a stage: of a layer on the device and on links, and besides.

    ``busy_s``: forward, backward and waiting for launches, of which ``backward_s`` is backward and
    what is computed again, ``weights_s`` gradients of weights; ``head_s``: on the last stage only;
    ``send_s``: there and back [s].
    """

    busy_s: Floats
    backward_s: Floats
    weights_s: Floats
    inside_s: Floats
    head_s: Floats
    send_s: Floats


def stage_times(*kinds: LayoutCase) -> StageTimes:
    """Return what one micro-batch takes on a stage of every row, on the slowest of kinds [s]."""
    found = [_stage_times(kind) for kind in kinds]
    return StageTimes(
        **{f.name: slowest([getattr(one, f.name) for one in found]) for f in fields(StageTimes)}
    )


def slowest(kinds: Sequence[Floats]) -> Floats:
    """Return the longest time of every row."""
    return reduce(np.maximum, kinds)


def _stage_times(case: LayoutCase) -> StageTimes:
    block = block_times(case)
    inside = tensor_parallel_s(case) + context_parallel_s(case) + expert_parallel_s(case)
    return StageTimes(
        busy_s=block.busy_s(inside),
        backward_s=block.backward_s + block.recompute_s,
        weights_s=block.weights_s,
        inside_s=inside,
        head_s=block.head_s,
        send_s=np.where(np.asarray(case.layouts.pp) > 1, _sends_s(case), 0.0),
    )


def step_times(case: LayoutCase, *beside: LayoutCase) -> StepTimes:
    """Return the step time of every row and its parts [s].

    ``beside``: the same on machines of other kinds that train with these. Each part is the slowest
    kind's: all wait for it.
    """
    kinds = (case, *beside)
    one = stage_times(*kinds)
    parts = _passes_s(case, one, _idle_share(case.layouts, one))
    compute = parts["compute_s"]
    backward = np.ceil(np.asarray(case.shapes.layers) / case.layouts.pp) * one.backward_s
    parts |= {
        "data_parallel_s": slowest([data_parallel_s(k, backward, compute) for k in kinds]),
        "optimizer_s": slowest([optimizer_s(kind) for kind in kinds]),
        "offload_s": slowest([offload_s(kind, compute) for kind in kinds]),
    }
    slow = _slow(kinds)
    total = reduce(np.add, parts.values()) * slow
    return StepTimes(step_s=total, **{name: part * slow for name, part in parts.items()})


def least_step_s(*kinds: LayoutCase) -> Floats:
    """Return a bound from below on every row's step, however it recomputes, shards or moves [s].

    Its passes alone: recomputing only adds to them. Where gradients of weights fill the stages'
    waits nothing is waited.
    """
    case = kinds[0]
    is_whole = np.asarray(case.layouts.backward) == 0
    parts = _passes_s(case, stage_times(*kinds), np.where(is_whole, 1.0, 0.0))
    return np.asarray(reduce(np.add, parts.values()) * _slow(kinds))


def _passes_s(case: LayoutCase, one: StageTimes, idle_share: Floats) -> dict[str, Floats]:
    """Return what all passes of a step take: computing, links inside layers, and stages [s]."""
    layouts = case.layouts
    m, p = np.asarray(layouts.accumulation_steps), np.asarray(layouts.pp)
    v = np.asarray(layouts.virtual_stages)
    per_stage = np.ceil(np.asarray(case.shapes.layers) / p)
    work = per_stage * one.busy_s + one.head_s
    stage = work + per_stage * one.inside_s
    # The head is on the last stage only: filling and draining meet it once, in the first term.
    bubble = (p - 1) / v * (stage - one.head_s) * idle_share
    return {
        "compute_s": m * work,
        "inside_layer_s": m * per_stage * one.inside_s,
        "pipeline_s": bubble + m * one.send_s,
    }


def _slow(kinds: Sequence[LayoutCase]) -> Floats:
    """Return by what rows are slower for waiting for the slowest of their nodes."""
    layouts = kinds[0].layouts
    devices = np.asarray(layouts.dp) * layouts.tp * layouts.pp * np.asarray(layouts.cp)
    per_node = slowest([-np.asarray(kind.machines.devices_per_node, float) for kind in kinds])
    return straggling(kinds[0].parameters, np.maximum(devices / -per_node, 1.0))


def _idle_share(layouts: Layouts, one: StageTimes) -> Floats:
    """Return what stages wait while filling and draining, over a pass of all their layers.

    All of it where a backward pass is one. Apart from the gradients of weights, which fill what
    would be waited: a pass forward or for gradients of inputs, whichever is longer, or twice what
    the second takes more than gradients of weights (zero bubble in a V); both passes less the
    gradients of weights (DualPipe in a V). That is what PyTorch's tables of these schedules make
    stages wait, of the second within a few percent of the step (``tests/test_schedules.py``).
    """
    code = np.asarray(layouts.backward)
    if not np.any(code):
        return np.ones(())
    weights = one.weights_s / one.busy_s
    inputs = one.backward_s / one.busy_s - weights
    longer = np.maximum(np.maximum(inputs, 2 * (inputs - weights)), 1 - inputs - weights)
    return np.where(code == 0, 1.0, np.where(code == 1, longer, 1 - 2 * weights))


def straggling(parameters: LayoutParameters, nodes: Column) -> Floats:
    """Return the factor by which so many nodes that wait for one another lengthen a step."""
    return np.asarray(1 + parameters.straggler * np.log2(nodes))


def _sends_s(case: LayoutCase) -> Floats:
    """Return sending one micro-batch's activations and gradient between stages [s]."""
    shapes, layouts, machines = case.shapes, case.layouts, case.machines
    software, parameters = case.software, case.parameters
    tokens = case.tokens
    tp = np.asarray(layouts.tp, float)
    width = tp * layouts.cp * np.asarray(layouts.dp)
    network, joined = domain_network_bytes_per_s(machines), domain_devices(machines)
    intra = machines.intra_bytes_per_s
    link = between_stages_bytes_per_s(intra, network, joined, width, layouts.pp)
    link = np.minimum(link, intra)
    sent = 2 * tokens * shapes.hidden / tp * activation_width(machines.precision)
    once = sent / (parameters.pp_efficiency * link)
    v = np.asarray(layouts.virtual_stages)
    hidden = np.where(np.asarray(software.overlaps_pp) & (v > 1), parameters.pp_exposed, 1.0)
    heavy = np.asarray(software.is_launch_heavy) * parameters.launch_send_s
    return np.asarray(2 * (once + parameters.pp_latency_s + heavy) * v * hidden)


def between_stages_bytes_per_s(
    intra: Column, network: Column, joined: Column, width: Column, stages: Column
) -> Floats:
    """Return the rate at which a rank hands over to the next stage [bytes/s].

    Stages are the outermost axis: a stage's ranks (``width``) send to the next stage's side by
    side, as many of them over one network as the devices that it serves (``joined``).
    """
    is_inside = np.asarray(width) * stages <= joined
    return np.where(is_inside, intra, network / np.minimum(width, joined))


def optimizer_s(case: LayoutCase) -> Floats:
    """Return the optimizer's update on the device and the step's fixed time [s]."""
    return np.asarray(update_s(case) + fixed_s(case))


def update_s(case: LayoutCase) -> Floats:
    """Return the optimizer's update on the device: its traffic, and Muon's products [s]."""
    software, parameters = case.software, case.parameters
    stays = (np.asarray(case.layouts.offloads_optimizer) == 0) | (
        np.asarray(software.pages_optimizer) > 0
    )
    updated = _updated_parameters(case) * stays
    memory = case.stream_bytes_per_s
    # The constant was fitted where weights, gradients and AdamW's state are 18 bytes.
    kept = model_state(
        software.weight_bytes, software.gradient_bytes, software.optimizer_state_bytes
    )
    share = kept.device_bytes / _FITTED_STATE_BYTES
    moved = parameters.optimizer_bytes * share * updated / memory
    if np.any(software.update_flop):
        moved = moved + np.asarray(software.update_flop) * updated / product_rate(case)
    return np.asarray(moved * case.device_factor)


def fixed_s(case: LayoutConditions) -> Floats:
    """Return what every step takes besides computing and communicating [s].

    A table of the blocks' times has what starting every operator takes in it.
    """
    is_trainer = (np.asarray(case.software.is_trainer) > 0) & (case.block_table is None)
    return np.where(is_trainer, case.parameters.step_eager_s, case.parameters.step_s)
