"""Equations of training memory: state by ZeRO stage, activations of a layer, all of a device.

| here           | papers  | meaning                                                              |
|----------------|---------|----------------------------------------------------------------------|
| ``dp``         | d, N_d  | ranks that share one copy of the state                               |
| ``tp``         | t       | tensor-parallel ranks                                                |
| ``tokens``     | s b     | tokens of one micro-batch on one device                              |
| ``h, f, a``    | h, -, a | width of the residual stream, of the feed-forward block, heads       |

``layout_memory`` asks them of transformers in a framework, ``training_memory`` and ``unit_memory``
of recorded or described work. They hand in different constants, each where it says why.

References
----------
.. [1] V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models,"
   MLSys 2023, arXiv:2205.05198. Section 4: activations per layer, equations (1) to (6).
.. [2] S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
   Models," SC'20. Section 5: states by stage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from advisor.planners.core.columns import Shapes
from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.units import GB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConstants:
    """What a run takes besides its tensors; fitted on printed nvidia-smi readings.

    Attributes
    ----------
    context_bytes : float
        CUDA context, libraries, communication buffers. [bytes]
    slack : float
        Allocated over needed: fragmentation and buffers, over all tensors; on a device that trains
        alone over those that come and go: nothing is flattened, padded or received there.
    alone_context_bytes : float
        Context of a device that trains alone, without communicators. BigScience's reading of an
        A100 that computed nothing, 1,573 MiB (V100: 1,113). [bytes]
    logit_bytes : float
        Per token and vocabulary entry on the last stage, by Megatron's loss. [bytes]
    gathered_layers : float
        Layers whose parameters ZeRO-3 holds gathered.
    """

    context_bytes: float = 3.0 * GB
    slack: float = 1.11
    alone_context_bytes: float = 1573.0 * MIB
    logit_bytes: float = 8.0
    gathered_layers: float = 2.0


def state_bytes(
    parameter_bytes: ArrayLike,
    gradient_bytes: ArrayLike,
    optimizer_bytes: ArrayLike,
    *,
    dp: ArrayLike,
    zero_stage: ArrayLike,
    keeps_gradients: ArrayLike = False,
) -> Floats:
    """Return parameters, gradients and optimizer state on one device [bytes].

    Stage 1 shards the optimizer state over ``dp`` workers, 2 the gradients too, 3 also the
    parameters ([2]_, section 5). ``keeps_gradients`` says where gradients stay whole whatever the
    stage, because they are added up over several micro-batches before they are reduced.

    Examples
    --------
    >>> [float(state_bytes(2, 2, 12, dp=4, zero_stage=z)) for z in range(4)]
    [16.0, 7.0, 5.5, 4.0]
    """
    d, stage = np.asarray(dp, float), np.asarray(zero_stage)
    if not (np.all(d >= 1) and np.all((stage >= 0) & (stage <= 3))):
        raise ValueError(f"need dp >= 1 and a ZeRO stage of 0 to 3, got {dp!r} and {zero_stage!r}")
    scatters = (stage >= 2) & ~np.asarray(keeps_gradients, bool)
    return np.asarray(
        np.asarray(parameter_bytes, float) / np.where(stage >= 3, d, 1.0)
        + np.asarray(gradient_bytes, float) / np.where(scatters, d, 1.0)
        + np.asarray(optimizer_bytes, float) / np.where(stage >= 1, d, 1.0)
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

    Parameters
    ----------
    keeps_scores : array-like of bool
        The quadratic term: gone with flash attention and selective recomputation.
    mask_bytes : array-like
        Of both dropout masks; 0 where nothing is dropped.
    keeps_joint_product : array-like of bool
        The product of queries, keys and values is kept beside rotated queries and keys.
    """
    e, t = np.asarray(element_bytes, float), np.asarray(tp, float)
    h, a = np.asarray(shapes.hidden, float), np.asarray(shapes.heads, float)
    kv = np.asarray(shapes.kv_heads) / shapes.heads
    outside = (4 * e + mask_bytes) * h / np.where(is_sequence_parallel, t, 1.0)
    joint = np.where(keeps_joint_product, e * (1 + kv), 0.0)
    wide = e * np.asarray(shapes.matrices) * np.asarray(shapes.ffn, float)
    inside = (e * (2 + 2 * kv) + joint) * h + wide * np.asarray(shapes.experts_per_token)
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

    Parameters
    ----------
    is_alone : array-like of bool
        No other device trains with this one.
    excess : array
        What a recorded step held beyond states and passing; below 0 where gradients are not there
        yet, which leave no more than themselves. [bytes]
    """
    slack, context = constants.slack, constants.context_bytes
    shared = context + slack * (states + passing + excess)
    alone = min(constants.alone_context_bytes, context) + states + np.minimum(excess, 0)
    alone = alone + slack * (passing + np.maximum(excess, 0))
    return np.asarray(np.where(is_alone, alone, shared))
