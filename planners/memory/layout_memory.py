"""Memory of transformer layouts on the fullest device, as columns.

| here             | papers | meaning                                                           |
|------------------|--------|-------------------------------------------------------------------|
| ``states``       | -      | parameters, gradients and optimizer [bytes]                       |
| ``kept``         | -      | activations that one layer keeps for one micro-batch [bytes]      |
| ``held``         | -      | micro-batches in flight on the first stage                        |
| ``d``            | d      | ranks that share one copy of the state                            |

States per parameter: 2 weight + g gradient + 12 optimizer; ZeRO 1 divides the 12, ZeRO 2 the
gradient too, ZeRO 3 everything and gathers two layers at a time. Stages of a pipeline keep what
they gathered, and gradients whole, until their last micro-batch: gathering for each would cost a
reduction and two gathers a micro-batch (FSDP under a schedule: ``reshard_after_forward=False``,
``set_requires_gradient_sync(False)``). Activations per layer and token: 8 h (10 h with dropout)
outside the tensor-parallel part, (4 + 4 kv/a) h + 4 f (or 6 f where gated) inside, 2 + 2 kv/a more
where Megatron rotates queries and keys, 5 a s for unfused attention scores; sequence parallelism
divides the outside too; full recomputation keeps 2 h and one live layer. Either the first stage
(most in flight) or the last (logits) is fullest. Sources: Korthikanti et al. (2022, equations
1-6), Rajbhandari et al. (ZeRO, 2020).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.columns import (
    Layouts,
    Machines,
    Shapes,
    Software,
    device_parameters,
    held_parameters,
    layer_parameters,
    passed_layers_share,
    stage_tables,
)
from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.units import GB


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConstants:
    """What a run takes besides its tensors; fitted on printed nvidia-smi readings.

    Attributes
    ----------
    context_bytes : float
        CUDA context, libraries, communication buffers. [bytes]
    slack : float
        Allocator fragmentation, over all tensors.
    logit_bytes : float
        Per token and vocabulary entry on the last stage, by Megatron's loss. [bytes]
    gathered_layers : float
        Layers whose parameters ZeRO-3 holds gathered.
    """

    context_bytes: float = 3.0 * GB
    slack: float = 1.11
    logit_bytes: float = 8.0
    gathered_layers: float = 2.0


def layer_activation_bytes(shapes: Shapes, layouts: Layouts, software: Software) -> Floats:
    """Return what one layer keeps of one micro-batch without recomputation [bytes]."""
    tokens = layouts.micro_batch * np.asarray(shapes.sequence, float) / layouts.cp
    h, tp = np.asarray(shapes.hidden, float), np.asarray(layouts.tp, float)
    # Inputs of two norms and two products: 8; the 2020-2022 stacks keep two dropout masks besides.
    width = np.where(np.asarray(software.is_launch_heavy), 10.0, 8.0)
    outside = width * h / np.where(np.asarray(layouts.is_sequence_parallel), tp, 1.0)
    kv = np.asarray(shapes.kv_heads) / shapes.heads
    wide = np.where(np.asarray(shapes.matrices) == 3, 6, 4) * np.asarray(shapes.ffn, float)
    # Values are a view of the joint product's output, which Megatron keeps whole for them beside
    # the rotated queries and keys.
    is_megatron = (np.asarray(software.fusion) == 1) & ~np.asarray(software.is_launch_heavy, bool)
    rotated = np.where(is_megatron & (np.asarray(shapes.matrices) == 3), 2 + 2 * kv, 0.0)
    inside = (4 + 4 * kv + rotated) * h + wide * np.asarray(shapes.experts_per_token)
    scores = 5 * np.asarray(shapes.heads, float) * shapes.sequence
    scores = np.where(np.asarray(software.attention) == 0, scores, 0.0)
    # Selective recomputation keeps no scores.
    scores = np.where(np.asarray(layouts.recompute) == 0, scores, 0.0)
    # torchtitan's selective recomputation keeps every second product's output.
    every_second = (np.asarray(layouts.recompute) == 1) & (np.asarray(software.selective_gemm) > 0)
    kept = np.where(every_second, 1 - np.asarray(software.selective_gemm), 1.0)
    per_token = (outside + (inside + scores) / tp) * kept
    return np.asarray(tokens * per_token * software.activation_scale)


def in_flight(layouts: Layouts) -> Floats:
    """Return micro-batches whose activations the first stage holds.

    GPipe m, 1F1B min(p, m), interleaved 1F1B times 1 + (p-1)/(p v).
    """
    p, m = np.asarray(layouts.pp, float), np.asarray(layouts.accumulation_steps, float)
    v = np.asarray(layouts.virtual_stages, float)
    ahead = np.where(v > 1, 1 + (p - 1) / (p * v), 1.0)
    one_f_one_b = np.minimum(p * ahead, m)
    return np.asarray(np.where(np.asarray(layouts.holds_all), np.where(p > 1, m, 1), one_f_one_b))


def state_bytes(
    shapes: Shapes,
    layouts: Layouts,
    software: Software,
    constants: MemoryConstants,
    *,
    layers: Floats,
    embeddings: Floats | float,
) -> Floats:
    """Return parameters, gradients, optimizer and gathered layers on one device [bytes].

    Parameters
    ----------
    layers : array
        Layers of the stage.
    embeddings : array
        Embedding or head matrices of the stage.
    """
    attention, ffn = layer_parameters(shapes)
    one_layer = attention + ffn * np.asarray(shapes.experts) / layouts.ep
    tp = np.asarray(layouts.tp, float)
    held = held_parameters(shapes, layouts, layers=layers, tables=embeddings)
    d = np.minimum(np.asarray(layouts.shard_group, float), layouts.dp * np.asarray(layouts.cp))
    zero = np.asarray(layouts.zero_stage)
    stored = np.asarray(software.weight_bytes, float)
    weight = stored * np.where(zero >= 3, 1 / d, 1.0)
    accumulates = accumulates_whole(layouts)
    is_whole = (zero < 2) | accumulates
    gradient = np.asarray(software.gradient_bytes) * np.where(is_whole, 1.0, 1 / d)
    optimizer = np.asarray(software.optimizer_state_bytes) * np.where(zero >= 1, 1 / d, 1.0)
    optimizer = optimizer * (1 - np.asarray(layouts.offloads_optimizer, float))
    weight = weight * (1 - np.asarray(layouts.offloads_parameters, float))
    # What is frozen has neither gradient nor optimizer state.
    trained = np.asarray(shapes.trained_share, float)
    layer = np.minimum(constants.gathered_layers * one_layer / tp, held)
    gathered = np.where(np.asarray(layouts.pp) > 1, held, layer)
    gathered = np.where((zero >= 3) & (d > 1), stored * gathered, 0.0)
    states = held * (weight + trained * (gradient + optimizer)) + gathered
    return np.asarray(states + np.where(zero == 1, _kept_by_deepspeed(held, d, software), 0.0))


def accumulates_whole(layouts: Layouts) -> NDArray[np.bool_]:
    """Return where sharded gradients are added up whole and scattered once a step.

    Stages of a pipeline with several micro-batches: whatever the ZeRO stage, they are reduced
    after the last one.
    """
    steps = np.asarray(layouts.accumulation_steps)
    return np.asarray((np.asarray(layouts.pp) > 1) & (steps > 1))


def _kept_by_deepspeed(held: Floats, ranks: Floats, software: Software) -> Floats:
    """Return the gradient shard and the reduction's bucket that its ZeRO 1 adds [bytes]."""
    shard = np.asarray(software.gradient_shard_bytes, float) / ranks * held
    return np.asarray(shard + 4.0 * np.minimum(held, software.reduce_bucket_elements))


def memory_bytes(
    shapes: Shapes,
    layouts: Layouts,
    software: Software,
    constants: MemoryConstants | None = None,
) -> Floats:
    """Return the memory of the fullest device of every row [bytes]."""
    fixed = constants or MemoryConstants()
    p = np.asarray(layouts.pp, float)
    layers = np.ceil(np.asarray(shapes.layers) / p)
    # Offloaded activations leave only the layer at work on the device; so does recomputation.
    offloads = np.asarray(layouts.offloads_activations)
    kept = kept_bytes(shapes, layouts, software) * (1 - offloads)
    whole = layer_activation_bytes(shapes, layouts, software)
    live = np.where((np.asarray(layouts.recompute) == 2) | (offloads != 0), whole, 0.0)
    tokens = layouts.micro_batch * np.asarray(shapes.sequence, float) / layouts.cp
    logits = fixed.logit_bytes * software.logit_scale * tokens * shapes.vocabulary
    logits = logits / np.asarray(layouts.tp, float)
    states = state_bytes(
        shapes, layouts, software, fixed, layers=layers, embeddings=stage_tables(shapes, layouts)
    )
    # Frozen layers keep nothing; they lie in the first stages.
    kept = kept * passed_layers_share(shapes, layouts)
    first = in_flight(layouts) * layers * kept + live
    last = layers * kept + live + logits
    tensors = states + np.maximum(first, last)
    return np.asarray(fixed.context_bytes + fixed.slack * tensors)


def kept_bytes(shapes: Shapes, layouts: Layouts, software: Software) -> Floats:
    """Return what one layer keeps of one micro-batch, on the device or on the host [bytes]."""
    whole = layer_activation_bytes(shapes, layouts, software)
    tokens = layouts.micro_batch * np.asarray(shapes.sequence, float) / layouts.cp
    ranks = np.where(np.asarray(layouts.is_sequence_parallel), layouts.tp, 1)
    boundary = 2 * tokens * shapes.hidden / ranks
    return np.where(np.asarray(layouts.recompute) == 2, boundary, whole)


def host_bytes(shapes: Shapes, layouts: Layouts, machines: Machines, software: Software) -> Floats:
    """Return the host memory that offloading takes on one node [bytes]."""
    layers = np.ceil(np.asarray(shapes.layers) / layouts.pp)
    held = device_parameters(shapes, layouts)
    d = np.minimum(np.asarray(layouts.shard_group, float), layouts.dp * np.asarray(layouts.cp))
    zero = np.asarray(layouts.zero_stage)
    # The host keeps the optimizer's state and the gradients it updates with.
    touched = np.asarray(software.optimizer_state_bytes, float) + software.gradient_bytes
    trained = held * np.asarray(shapes.trained_share, float)
    optimizer = touched * trained * np.where(zero >= 1, 1 / d, 1.0)
    weights = software.weight_bytes * held * np.where(zero >= 3, 1 / d, 1.0)
    kept = kept_bytes(shapes, layouts, software) * passed_layers_share(shapes, layouts)
    activations = layers * in_flight(layouts) * kept
    per_device = (
        np.asarray(layouts.offloads_optimizer) * optimizer
        + np.asarray(layouts.offloads_parameters) * weights
        + np.asarray(layouts.offloads_activations) * activations
    )
    return np.asarray(per_device * machines.devices_per_node)
