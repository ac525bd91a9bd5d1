"""Equations of training memory: state by ZeRO stage, activations of a layer, all of a device.

| here           | papers  | meaning                                                              |
|----------------|---------|----------------------------------------------------------------------|
| ``dp``         | d, N_d  | ranks that share one copy of the state                               |
| ``tp``         | t       | tensor-parallel ranks                                                |
| ``tokens``     | s b     | tokens of one micro-batch on one device                              |
| ``h, f, a``    | h, -, a | width of the residual stream, of the feed-forward block, heads       |

``model_state`` is the one equation of weights, gradients and optimizer state: how much of them
lies on a device and how much on its host, by ZeRO stage and offload. All sums of them are read
from it; what a parameter takes by precision is ``TrainingSetup``'s. Transformers in a framework
(``needed_bytes``) and recorded or described work (``recorded_steps``) hand in different constants,
each where it says why.

References
----------
.. [1] V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models,"
   MLSys 2023, arXiv:2205.05198. Section 4: activations per layer, equations (1) to (6).
.. [2] S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
   Models," SC'20. Section 5: states by stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import (
    GB,
    MIB,
    Floats,
    Layouts,
    Machines,
    Shapes,
    Software,
    device_parameters,
    expert_group,
    held_parameters,
    layer_expert_parameters,
    layer_parameters,
    met_columns,
    partial_share,
    passed_layers_share,
    query_columns,
    stage_tables,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConstants:
    """What a run takes besides its tensors; fitted on printed nvidia-smi readings."""

    context_bytes: float = 3.0 * GB  # CUDA context, libraries, communication buffers [bytes]
    # allocated over needed: fragmentation and buffers, over all tensors; on a device that trains
    # alone over those that come and go: nothing is flattened, padded or received there
    slack: float = 1.11
    # context of a device that trains alone, without communicators. BigScience's reading of an A100
    # that computed nothing, 1,573 MiB (V100: 1,113) [bytes]
    alone_context_bytes: float = 1573.0 * MIB
    # per token and vocabulary entry on the last stage, by Megatron's loss [bytes]
    logit_bytes: float = 8.0
    gathered_layers: float = 2.0  # layers whose parameters ZeRO-3 holds gathered
    # ``slack`` is a job's own, of blocks that were replayed: what lasts loses nothing
    is_replayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """What weights, gradients and optimizer state take for one device: there, and on its host."""

    device_bytes: Floats
    host_bytes: Floats


def model_state(
    weights: ArrayLike,
    gradients: ArrayLike,
    optimizer: ArrayLike,
    *,
    dp: ArrayLike = 1,
    zero_stage: ArrayLike = 0,
    keeps_gradients: ArrayLike = False,
    moves_weights: ArrayLike = False,
    moves_optimizer: ArrayLike = False,
    moves_gradients: ArrayLike = False,
) -> ModelState:
    """Return where so many bytes of weights, gradients and optimizer state lie.

    Stage 1 shards the optimizer state over ``dp`` workers, 2 the gradients too, 3 also the
    weights ([2]_, section 5). ``keeps_gradients`` says where gradients stay whole whatever the
    stage, because they are added up over several micro-batches before they are reduced. A host
    that has the optimizer's state keeps the gradients that it updates with, too; on the device
    they stay but for ``moves_gradients``.

    Examples
    --------
    >>> [float(model_state(2, 2, 12, dp=4, zero_stage=z).device_bytes) for z in range(4)]
    [16.0, 7.0, 5.5, 4.0]
    >>> moved = model_state(2, 2, 12, dp=4, zero_stage=1, moves_optimizer=True)
    >>> float(moved.device_bytes), float(moved.host_bytes)
    (4.0, 3.5)
    """
    d, stage = np.asarray(dp, float), np.asarray(zero_stage)
    if not (np.all(d >= 1) and np.all((stage >= 0) & (stage <= 3))):
        raise ValueError(f"need dp >= 1 and a ZeRO stage of 0 to 3, got {dp!r} and {zero_stage!r}")
    weights, gradients = np.asarray(weights, float), np.asarray(gradients, float)
    optimizer, updates = np.asarray(optimizer, float), np.asarray(moves_optimizer, bool)
    passes = np.asarray(moves_weights, bool)
    scatters = (stage >= 2) & ~np.asarray(keeps_gradients, bool)
    on_device = gradients * ~np.asarray(moves_gradients, bool) / np.where(scatters, d, 1.0)
    weights, shards = weights / np.where(stage >= 3, d, 1.0), np.where(stage >= 1, d, 1.0)
    return ModelState(
        device_bytes=np.asarray(weights * ~passes + on_device + optimizer * ~updates / shards),
        host_bytes=np.asarray(weights * passes + (optimizer + gradients) * updates / shards),
    )


def token_activation_bytes(
    shapes: Shapes,
    *,
    tp: ArrayLike = 1,
    is_sequence_parallel: ArrayLike = False,
    keeps_scores: ArrayLike = False,
    element_bytes: ArrayLike = 2.0,
    mask_bytes: ArrayLike = 2.0,
    keeps_joint_product: ArrayLike = False,
) -> Floats:
    r"""Return what one layer keeps of one token for its backward pass [bytes].

    .. math:: h \left(10 + \frac{24}{t} + \frac{5 a s}{h t}\right)

    for two-byte elements ([1]_, equations 2 and 4), generalised to any ``ffn``, gated blocks,
    grouped key/value heads and experts. The ten unsharded bytes (inputs of two norms and two
    products, two dropout masks) are divided by ``tp`` under sequence parallelism.

    ``keeps_scores``: the quadratic term: gone with flash attention and selective recomputation;
    ``mask_bytes``: of both dropout masks; 0 where nothing is dropped; ``keeps_joint_product``: the
    product of queries, keys and values is kept beside rotated queries and keys.
    """
    e, t = np.asarray(element_bytes, float), np.asarray(tp, float)
    h, a = np.asarray(shapes.hidden, float), np.asarray(shapes.heads, float)
    kv = np.asarray(shapes.kv_heads) / shapes.heads
    outside = (4 * e + mask_bytes) * h / np.where(is_sequence_parallel, t, 1.0)
    joint = np.where(keeps_joint_product, e * (1 + kv), 0.0)
    inner = met_columns(shapes, per_token=np.asarray(shapes.experts_per_token))
    wide = e * np.asarray(shapes.matrices) * inner
    inside = (e * (2 + 2 * kv) + joint) * query_columns(shapes) + wide
    scores = np.where(keeps_scores, (2 * e + 1) * a * shapes.sequence, 0.0)
    return np.asarray(outside + (inside + scores) / t)


def device_bytes(
    states: Floats,
    passing: Floats,
    constants: MemoryConstants,
    *,
    is_alone: ArrayLike,
    excess: Floats | float = 0.0,
) -> Floats:
    """Return context, states and what comes and goes in a pass, with what the allocator loses.

    ``is_alone``: no other device trains with this one; ``excess``: what a recorded step held
    beyond states and passing; below 0 where gradients are not there yet, which leave no more than
    themselves [bytes].
    """
    slack, context = constants.slack, constants.context_bytes
    lasting = states if constants.is_replayed else slack * states
    shared = context + lasting + slack * (passing + excess)
    alone = min(constants.alone_context_bytes, context) + states + np.minimum(excess, 0)
    alone = alone + slack * (passing + np.maximum(excess, 0))
    return np.asarray(np.where(is_alone, alone, shared))


# Whose memory is asked for: the device's that has most, or the first stage's.
StageAsked = Literal["fullest", "first"]


def layer_activation_bytes(shapes: Shapes, layouts: Layouts, software: Software) -> Floats:
    """Return what one layer keeps of one micro-batch without recomputation [bytes]."""
    tokens = layouts.micro_batch * np.asarray(shapes.sequence, float) / layouts.cp
    recompute, skipped = np.asarray(layouts.recompute), np.asarray(software.selective_gemm)
    per_token = token_activation_bytes(
        shapes,
        tp=layouts.tp,
        is_sequence_parallel=np.asarray(layouts.is_sequence_parallel, bool),
        # Selective recomputation keeps no scores.
        keeps_scores=(np.asarray(software.attention) == 0) & (recompute == 0),
        # The stacks of 2020-2022 keep two dropout masks; today's models drop nothing.
        mask_bytes=np.where(np.asarray(software.is_launch_heavy), 2.0, 0.0),
        # Values are a view of the joint product's output, which Megatron keeps whole for them.
        keeps_joint_product=is_megatron_core(software) & (np.asarray(shapes.matrices) == 3),
    )
    # torchtitan's selective recomputation keeps every second product's output.
    kept = np.where((recompute == 1) & (skipped > 0), 1 - skipped, 1.0)
    return np.asarray(tokens * (per_token * kept) * software.activation_scale)


def in_flight(layouts: Layouts) -> Floats:
    """Return micro-batches whose activations the first stage holds.

    GPipe m, 1F1B min(p, m), interleaved 1F1B times 1 + (p-1)/(p v), zero bubble in a V as 1F1B,
    DualPipe half a stage more (Qi et al., 2024, table 1; DeepSeek-V3, 2024, table 2).
    """
    p, m = np.asarray(layouts.pp, float), np.asarray(layouts.accumulation_steps, float)
    v = np.asarray(layouts.virtual_stages, float)
    ahead = np.where(v > 1, 1 + (p - 1) / (p * v), 1.0)
    backward = np.asarray(layouts.backward)
    ahead = np.where(backward > 0, np.where(backward == 2, 1 + 1 / (2 * p), 1.0), ahead)
    one_f_one_b = np.minimum(p * ahead, m)
    return np.asarray(np.where(np.asarray(layouts.holds_all), np.where(p > 1, m, 1), one_f_one_b))


def layout_state_bytes(
    shapes: Shapes,
    layouts: Layouts,
    software: Software,
    constants: MemoryConstants,
    *,
    layers: Floats,
    embeddings: Floats | float,
) -> Floats:
    """Return parameters, gradients, optimizer and gathered layers on one device [bytes].

    ``layers``, ``embeddings``: layers of the stage, and its embedding or head matrices.
    """
    held = held_parameters(shapes, layouts, layers=layers, tables=embeddings)
    routed = expert_parameters(shapes, layouts, layers=layers)
    d, zero = shard_ranks(layouts), np.asarray(layouts.zero_stage)
    copies = expert_copies(layouts, d)
    dense = parameter_state(layouts, software, shapes, d)
    expert = dense if np.all(np.asarray(shapes.experts) == 1) else (
        parameter_state(layouts, software, shapes, copies)
    )  # fmt: skip
    gathered = _gathered_parameters(shapes, layouts, software, constants, held)
    # A lone device fetches the layers that lie on the host.
    is_lone = (np.asarray(layouts.offloads_parameters) > 0) & (np.asarray(layouts.pp) == 1)
    gathered = np.where((zero >= 3) & ((d > 1) | is_lone), software.weight_bytes * gathered, 0.0)
    states = (held - routed) * dense.device_bytes + routed * expert.device_bytes + gathered
    return np.asarray(states + _kept_by_deepspeed(held, layouts, d, software))


def parameter_state(
    layouts: Layouts, software: Software, shapes: Shapes, ranks: Floats
) -> ModelState:
    """Return the state of a parameter that so many ranks share copies of."""
    # What is frozen has neither gradient nor optimizer state.
    trained = np.asarray(shapes.trained_share, float)
    return model_state(
        software.weight_bytes, trained * software.gradient_bytes,
        trained * software.optimizer_state_bytes, dp=ranks, zero_stage=layouts.zero_stage,
        keeps_gradients=accumulates_whole(layouts), moves_weights=layouts.offloads_parameters,
        moves_optimizer=layouts.offloads_optimizer,
        moves_gradients=_moves_gradients(layouts, software, ranks),
    )  # fmt: skip


def expert_parameters(shapes: Shapes, layouts: Layouts, *, layers: Floats) -> Floats:
    """Return the parameters of a device's experts; 0 of a model with one block a layer."""
    routed = np.asarray(layers) * layer_expert_parameters(shapes, layouts)
    return np.where(np.asarray(shapes.experts) > 1, routed, 0.0)


def expert_copies(layouts: Layouts, ranks: Floats) -> Floats:
    """Return the ranks among ``ranks`` data-parallel ones, and their tp, that share an expert."""
    return np.asarray(np.maximum(ranks * layouts.tp / expert_group(layouts), 1.0))


def _gathered_parameters(
    shapes: Shapes, layouts: Layouts, software: Software, constants: MemoryConstants, held: Floats
) -> Floats:
    """Return the parameters that ZeRO-3 has gathered at once on one device."""
    attention, _ = layer_parameters(shapes)
    one_layer = attention / np.asarray(layouts.tp, float) + layer_expert_parameters(
        shapes, layouts
    )
    layer = np.minimum(constants.gathered_layers * one_layer, held)
    is_whole = (np.asarray(layouts.pp) > 1) | (np.asarray(software.gathers_whole) > 0)
    return np.where(is_whole, held, layer)


def shard_ranks(layouts: Layouts) -> Floats:
    """Return the ranks that share one copy of the sharded state."""
    ranks = np.asarray(layouts.dp, float) * np.asarray(layouts.cp)
    return np.asarray(np.minimum(np.asarray(layouts.shard_group, float), ranks))


def accumulates_whole(layouts: Layouts) -> NDArray[np.bool_]:
    """Return where sharded gradients are added up whole and scattered once a step.

    Stages of a pipeline with several micro-batches: whatever the ZeRO stage, they are reduced
    after the last one.
    """
    steps = np.asarray(layouts.accumulation_steps)
    return np.asarray((np.asarray(layouts.pp) > 1) & (steps > 1))


def _kept_by_deepspeed(
    held: Floats, layouts: Layouts, ranks: Floats, software: Software
) -> Floats:
    """Return the fp32 gradient and the reduction's bucket that it adds without ZeRO 2 [bytes].

    Its optimizer casts the gradients that it updates with: all of them, or its shard's. Gradients
    that lie on the host pass through the bucket.
    """
    if not (np.any(software.gradient_shard_bytes) or np.any(software.reduce_bucket_elements)):
        return np.zeros(())
    zero, moves = np.asarray(layouts.zero_stage), _moves_gradients(layouts, software, ranks)
    cast = model_state(0, 0, software.gradient_shard_bytes * held, dp=ranks, zero_stage=zero)
    bucket = 4.0 * np.minimum(held, software.reduce_bucket_elements)
    kept = np.where((zero < 2) & ~moves, cast.device_bytes, 0.0)
    return np.asarray(kept + np.where((zero == 1) | moves, bucket, 0.0))


def _moves_gradients(layouts: Layouts, software: Software, ranks: Floats) -> NDArray[np.bool_]:
    """Return where gradients go to the host as they come, as DeepSpeed's offload has it.

    From ZeRO 2 on, and on one rank, where stages differ in nothing else: two bytes a parameter
    stay on the device (Ren et al., ZeRO-Offload, 2021, section 4).
    """
    is_offload = np.asarray(layouts.offloads_optimizer) > 0
    is_deepspeed = np.asarray(software.gradient_shard_bytes, float) > 0
    return np.asarray(is_offload & is_deepspeed & ((layouts.zero_stage >= 2) | (ranks == 1)))


def memory_bytes(
    shapes: Shapes,
    layouts: Layouts,
    software: Software,
    constants: MemoryConstants | None = None,
    *,
    stage: StageAsked = "fullest",
) -> Floats:
    """Return the memory of the fullest device of every row, or of one of its first stage [bytes].

    Memory of transformer layouts on the fullest device, as columns.

    | here       | papers | meaning                                                      |
    |------------|--------|--------------------------------------------------------------|
    | ``states`` | -      | parameters, gradients and optimizer [bytes]                  |
    | ``kept``   | -      | activations that one layer keeps for one micro-batch [bytes] |
    | ``held``   | -      | micro-batches in flight on the first stage                   |
    | ``d``      | d      | ranks that share one copy of the state                       |

    States per parameter: 2 weight + g gradient + 12 optimizer; ZeRO 1 divides the 12, ZeRO 2 the
    gradient too, ZeRO 3 everything and gathers two layers at a time. Stages of a pipeline keep
    what they gathered, and gradients whole, until their last micro-batch: gathering for each would
    cost a reduction and two gathers a micro-batch (FSDP under a schedule:
    ``reshard_after_forward=False``, ``set_requires_gradient_sync(False)``). Activations per layer
    and token: 8 h (10 h with dropout) outside the tensor-parallel part, (4 + 4 kv/a) h + 4 f (or 6
    f where gated) inside, 2 + 2 kv/a more where Megatron rotates queries and keys, 5 a s for
    unfused attention scores; sequence parallelism divides the outside too; full recomputation
    keeps 2 h and one live layer. A stage keeps what it sent until that micro-batch's backward pass
    (DeepSpeed's ``pipe_buffers``, PyTorch's ``fwd_cache``), but in Megatron Core, which frees it
    (``deallocate_pipeline_outputs``). Either the first stage (most in flight) or the last (logits)
    is fullest. Sources: Korthikanti et al. (2022, equations 1-6), Rajbhandari et al. (ZeRO, 2020).

    What ran on a cluster's first machine was often all that somebody looked at.
    """
    fixed = constants or MemoryConstants()
    states, passing = _tensor_bytes(shapes, layouts, software, fixed, stage)
    return device_bytes(states, passing, fixed, is_alone=_is_alone(layouts))


def needed_bytes(
    shapes: Shapes,
    layouts: Layouts,
    software: Software,
    constants: MemoryConstants | None = None,
    *,
    stage: StageAsked = "fullest",
    held: Floats | None = None,
) -> Floats:
    """Return what the fullest device, or one of the first stage, must have room for [bytes].

    Less than ``memory_bytes``, which is what a monitor shows: PyTorch's allocator keeps what was
    freed as long as there is room, and gives it back where an allocation would fail otherwise
    (``torch.cuda.memory``). What it cannot give back is the margin's (``kept_free_bytes``).

    ``held``: micro-batches whose activations the stage holds; ``in_flight`` by default.
    """
    fixed = constants or MemoryConstants()
    states, passing = _tensor_bytes(shapes, layouts, software, fixed, stage, held)
    alone = min(fixed.alone_context_bytes, fixed.context_bytes)
    context = np.where(_is_alone(layouts), alone, fixed.context_bytes)
    return np.asarray(context + states + passing)


def _is_alone(layouts: Layouts) -> NDArray[np.bool_]:
    return np.asarray(np.asarray(layouts.tp, float) * layouts.pp * layouts.cp * layouts.dp == 1)


def _tensor_bytes(
    shapes: Shapes, layouts: Layouts, software: Software, constants: MemoryConstants,
    stage: StageAsked, held: Floats | None = None,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return states, and what comes and goes in a pass, on one device [bytes]."""
    layers = np.ceil(np.asarray(shapes.layers) / np.asarray(layouts.pp, float))
    states = layout_state_bytes(
        shapes, layouts, software, constants, layers=layers,
        embeddings=stage_tables(shapes, layouts),
    )  # fmt: skip
    held = in_flight(layouts) if held is None else held
    first, last = _passing_bytes(shapes, layouts, software, constants, layers, held)
    of_last = np.where((stage == "fullest") | (np.asarray(layouts.pp) == 1), last, 0.0)
    passing = np.maximum(first, of_last)
    absent = _absent_bytes(shapes, layouts, software, layers)
    if absent is None:
        return states, passing
    # The last layer to go backward holds what it keeps when all gradients are there.
    one_layer = layer_activation_bytes(shapes, layouts, software)
    return states, np.maximum(passing - absent, one_layer)


def _absent_bytes(
    shapes: Shapes, layouts: Layouts, software: Software, layers: Floats
) -> Floats | None:
    """Return the gradients that are not there yet when activations and logits peak [bytes].

    Those of the only micro-batch, where they are freed after every update: they come one layer
    after the other, as activations go. None where there are none in any row.
    """
    is_lone = (np.asarray(layouts.accumulation_steps) == 1) & (np.asarray(layouts.pp) == 1)
    is_absent = is_lone & (np.asarray(software.keeps_gradients) == 0)
    if not np.any(is_absent):
        return None
    tables = stage_tables(shapes, layouts)
    held = held_parameters(shapes, layouts, layers=layers, tables=tables)
    gradients = held * shapes.trained_share * software.gradient_bytes
    shared = model_state(0, gradients, 0, dp=shard_ranks(layouts), zero_stage=layouts.zero_stage)
    return np.where(is_absent, shared.device_bytes, 0.0)


def _passing_bytes(
    shapes: Shapes,
    layouts: Layouts,
    software: Software,
    constants: MemoryConstants,
    layers: Floats,
    held: Floats,
) -> tuple[Floats, Floats]:
    """Return activations and logits of a pass on the first and on the last stage [bytes].

    Logits and their gradient are gone before the first layer is computed again.
    """
    # Offloaded activations leave only the layer at work on the device; so does recomputation.
    offloads = np.asarray(layouts.offloads_activations) * partial_share(shapes, layouts)
    kept = kept_bytes(shapes, layouts, software) * (1 - offloads)
    whole = layer_activation_bytes(shapes, layouts, software)
    live = np.where((np.asarray(layouts.recompute) == 2) | (offloads != 0), whole, 0.0)
    tokens = layouts.micro_batch * np.asarray(shapes.sequence, float) / layouts.cp
    logits = constants.logit_bytes * software.logit_scale * tokens * shapes.vocabulary
    logits = logits / np.asarray(layouts.tp, float)
    # Frozen layers keep nothing; they lie in the first stages.
    kept = kept * passed_layers_share(shapes, layouts)
    sent = np.where(np.asarray(layouts.pp) > 1, sent_bytes(shapes, layouts, software), 0.0)
    first = held * (layers * kept + sent) + live
    last = layers * kept + np.maximum(live, logits)
    return np.asarray(first), np.asarray(last)


def is_megatron_core(software: Software) -> NDArray[np.bool_]:
    """Return where kernels are fused by hand and the stack is not one of 2020-2022."""
    is_fused = np.asarray(software.fusion) == 1
    return np.asarray(is_fused & ~np.asarray(software.is_launch_heavy, bool))


def sent_bytes(shapes: Shapes, layouts: Layouts, software: Software) -> Floats:
    """Return what a stage keeps of one micro-batch after it sent it on [bytes]."""
    return np.where(is_megatron_core(software), 0.0, boundary_bytes(shapes, layouts))


def boundary_bytes(shapes: Shapes, layouts: Layouts) -> Floats:
    """Return one micro-batch between two layers on a device [bytes]."""
    tokens = layouts.micro_batch * np.asarray(shapes.sequence, float) / layouts.cp
    ranks = np.where(np.asarray(layouts.is_sequence_parallel), layouts.tp, 1)
    return np.asarray(2 * tokens * shapes.hidden / ranks)


def kept_bytes(shapes: Shapes, layouts: Layouts, software: Software) -> Floats:
    """Return what one layer keeps of one micro-batch, on the device or on the host [bytes]."""
    whole = layer_activation_bytes(shapes, layouts, software)
    boundary = boundary_bytes(shapes, layouts)
    if not np.any(software.splits_inputs):
        return _repeated_bytes(shapes, layouts, boundary, whole)
    # Under sequence parallelism they are shared out already.
    is_split = np.asarray(software.splits_inputs, bool) & ~np.asarray(
        layouts.is_sequence_parallel, bool
    )
    boundary = boundary / np.where(is_split, np.asarray(layouts.tp, float), 1.0)
    return _repeated_bytes(shapes, layouts, boundary, whole)


def _repeated_bytes(shapes: Shapes, layouts: Layouts, boundary: Floats, whole: Floats) -> Floats:
    """Return the mean over a stage's layers, of which some or all are recomputed in full."""
    share = partial_share(shapes, layouts)
    repeated = share * boundary + (1 - share) * whole
    return np.where(np.asarray(layouts.recompute) == 2, repeated, whole)


def host_bytes(shapes: Shapes, layouts: Layouts, machines: Machines, software: Software) -> Floats:
    """Return the host memory that offloading takes on one node [bytes]."""
    layers = np.ceil(np.asarray(shapes.layers) / layouts.pp)
    held = device_parameters(shapes, layouts)
    routed = expert_parameters(shapes, layouts, layers=layers)
    d = shard_ranks(layouts)
    copies = expert_copies(layouts, d)
    states = (held - routed) * parameter_state(layouts, software, shapes, d).host_bytes
    states = states + routed * parameter_state(layouts, software, shapes, copies).host_bytes
    kept = kept_bytes(shapes, layouts, software) * passed_layers_share(shapes, layouts)
    activations = layers * in_flight(layouts) * kept
    moved = np.asarray(layouts.offloads_activations) * partial_share(shapes, layouts)
    activations = moved * activations
    return np.asarray((states + activations) * machines.devices_per_node)
