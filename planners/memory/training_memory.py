r"""Memory of training on one device: what is kept, and the largest micro-batch that fits.

======================  =========  ========================================================
here                    paper      meaning
======================  =========  ========================================================
``tokens``              s b        tokens of one micro-batch on one device
``hidden``, ``heads``   h, a       of the transformer
``ffn``                 f          inner width of the feed-forward block (4 h in [1]_)
``tp``, ``pp``, ``dp``  t, p, d    tensor-, pipeline- and data-parallel degree
``in_flight``           (none)     micro-batches whose activations a stage keeps at once
======================  =========  ========================================================

Device memory = context + slack x (parameters + gradients + optimizer state, by ZeRO stage [2]_
+ activations, by recompute mode [1]_ + logits + communication buckets + gathered layers).

References
----------
.. [1] V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models,"
   MLSys 2023, arXiv:2205.05198. Section 4: activations per layer, equations (1) to (6).
.. [2] S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
   Models," SC'20. Section 5: states by stage.
.. [3] T. Chen et al., "Training Deep Nets with Sublinear Memory Cost," 2016, arXiv:1604.06174.
   Section 4: sqrt(n) checkpoints.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core.columns import shapes_of
from advisor.planners.core.nouns import PRECISION_BYTES, Moment, Transformer, Work
from advisor.planners.memory.equations import (
    MemoryConstants,
    device_bytes,
    state_bytes,
    token_activation_bytes,
)
from advisor.planners.memory.step_moments import excess_bytes, rounding_bytes

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParameters(MemoryConstants):
    """Fitted constants of the memory model (``advisor train memory``).

    Attributes
    ----------
    process_bytes : float
        Resident memory of a training process on a CPU without its tensors. [bytes]
    cpu_slack : float
        ``slack`` of the C library's allocator on a CPU.
    bucket_fraction : float
        Communication buckets as a share of the gradients, where workers are several.
    log_sd : float
        Standard deviation of log(measured / predicted).
    """

    context_bytes: float
    alone_context_bytes: float
    process_bytes: float
    slack: float
    cpu_slack: float
    logit_bytes: float
    bucket_fraction: float
    log_sd: float

    def __post_init__(self) -> None:
        if self.slack < 1 or self.cpu_slack < 1 or self.log_sd < 0:
            raise ValueError(f"impossible memory parameters: {self}")


def layer_activation_bytes(
    model: Transformer,
    tokens: ArrayLike,
    *,
    tp: ArrayLike = 1,
    is_sequence_parallel: ArrayLike = False,
    is_selective: ArrayLike = False,
    element_bytes: float = 2.0,
) -> Array:
    """Return what one transformer layer keeps for its backward pass [bytes].

    Nothing is known here of the software, so that both dropout masks count, as in the published
    formula; and the width of one expert, since the constants were fitted with that.
    """
    per_token = token_activation_bytes(
        replace(shapes_of(model), experts_per_token=1),
        tp=tp,
        is_sequence_parallel=is_sequence_parallel,
        keeps_scores=~(np.asarray(is_selective, bool) | model.has_flash_attention),
        element_bytes=element_bytes,
    )
    return np.asarray(np.asarray(tokens, float) * per_token)


def training_memory_bytes(
    work: Work,
    micro_batch: ArrayLike,
    *,
    dp: ArrayLike = 1,
    zero_stage: ArrayLike = 0,
    recompute: ArrayLike = "none",
    tp: ArrayLike = 1,
    pp: ArrayLike = 1,
    in_flight: ArrayLike | None = None,
    is_sequence_parallel: ArrayLike = False,
    is_cpu: ArrayLike = False,
    offload: AbstractSet[str] = frozenset(),
    accumulates: ArrayLike = True,
    is_alone: ArrayLike | None = None,
    parameters: MemoryParameters,
) -> Array:
    """Return the memory that training takes on the fullest device [bytes].

    A recorded step is replayed where its model is whole on the device (``step_moments``).

    Parameters
    ----------
    micro_batch : array-like of int
        Samples in one micro-batch.
    zero_stage : array-like of int in 0..3
    recompute : {"none", "selective", "full"} or array-like of them
    in_flight : array-like, optional
        Micro-batches whose activations the stage keeps; None means 1F1B's first stage, ``pp``.
    is_sequence_parallel, is_cpu : array-like of bool
        On a CPU the process's own memory takes the place of the accelerator's context.
    offload : set of {"optimizer", "parameters", "activations"}
        What lies in host memory instead; two layers of it stay on the device at a time.
    accumulates : array-like of bool
        Gradients are added up over several micro-batches, so that they are always there.
    is_alone : array-like of bool, optional
        No other device trains with this one; None means where the layout has one device.

    Raises
    ------
    ValueError
        If a count is below one or a stage or mode is unknown.
    """
    b, stages = np.asarray(micro_batch, float), np.asarray(pp, float)
    if not np.all(b >= 1):
        raise ValueError(f"micro_batch must be at least 1, got {micro_batch!r}")
    states = _work_state_bytes(work, dp, zero_stage, tp, pp, offload, parameters)
    live = stages if in_flight is None else np.asarray(in_flight, float)
    activations = _activation_bytes(work, b, recompute, tp, pp, is_sequence_parallel, live)
    if "activations" in offload:
        activations = activations * np.minimum(1.0, 2.0 * stages / max(1, _depth(work)))
    passing = activations + b * work.input_bytes_per_sample
    passing = passing + _logits_bytes(work, b, tp, parameters)
    excess: Array = np.zeros(())
    if np.all(np.asarray(recompute) == "none") and "activations" not in offload:
        d, stage = np.asarray(dp, float), np.asarray(zero_stage, int)
        excess = excess_bytes(
            work, b, gradient_share=np.where(stage >= 2, 1 / d, 1.0),
            update_share=np.where(stage >= 1, 1 / d, 1.0), accumulates=accumulates, is_cpu=is_cpu,
        )  # fmt: skip
        excess = np.where((stages > 1) | (np.asarray(tp) > 1), 0.0, excess)
    if is_alone is None:
        is_alone = np.asarray(dp, float) * np.asarray(tp, float) * stages == 1
    on_cpu = parameters.process_bytes + parameters.cpu_slack * (states + passing + excess)
    on_device = device_bytes(states, passing, parameters, is_alone=is_alone, excess=excess)
    return np.asarray(np.where(is_cpu, on_cpu, rounding_bytes(work) + on_device))


def largest_micro_batch(
    work: Work,
    device_memory_bytes: ArrayLike,
    *,
    largest: int = 65_536,
    margin_fraction: ArrayLike = 0.0,
    parameters: MemoryParameters,
    dp: ArrayLike = 1,
    zero_stage: ArrayLike = 0,
    recompute: ArrayLike = "none",
    tp: ArrayLike = 1,
    pp: ArrayLike = 1,
    in_flight: ArrayLike | None = None,
    is_sequence_parallel: ArrayLike = False,
    is_cpu: ArrayLike = False,
    offload: AbstractSet[str] = frozenset(),
    accumulates: ArrayLike = True,
) -> NDArray[np.int64]:
    """Return the largest micro-batch that fits, at most ``largest``; 0 where not even one does.

    Memory is affine in the micro-batch at each moment of a step, so two evaluations give it
    exactly. ``margin_fraction`` of the device's memory is kept free.
    """

    def needed(micro_batch: int, moments: tuple[Moment, ...]) -> Array:
        return training_memory_bytes(
            replace(work, moments=moments),
            micro_batch,
            dp=dp,
            zero_stage=zero_stage,
            recompute=recompute,
            tp=tp,
            pp=pp,
            in_flight=in_flight,
            is_sequence_parallel=is_sequence_parallel,
            is_cpu=is_cpu,
            offload=offload,
            accumulates=accumulates,
            parameters=parameters,
        )

    room = np.asarray(device_memory_bytes, float) * (1.0 - np.asarray(margin_fraction))
    apart: list[tuple[Moment, ...]] = [(moment,) for moment in work.moments] or [()]
    found = [
        _last_that_fits(room, needed(1, only), needed(largest, only), largest) for only in apart
    ]
    return np.asarray(np.minimum.reduce(found), np.int64)


def _last_that_fits(room: Array, one: Array, most: Array, largest: int) -> NDArray[np.int64]:
    """Return the last of 1 to ``largest`` on the line from ``one`` to ``most`` below ``room``."""
    slope, room = (most - one) / max(1, largest - 1), room - one
    with np.errstate(divide="ignore", invalid="ignore"):
        more = np.where(slope > 0, room / slope, np.inf)
    # A billionth is added so that a batch that fits to the byte is not lost to rounding.
    batch = np.floor(np.minimum(1.0 + more * (1.0 + 1e-12) + 1e-9, largest))
    return np.asarray(np.where(room >= 0, batch, 0), np.int64)


def _work_state_bytes(
    work: Work,
    dp: ArrayLike,
    zero_stage: ArrayLike,
    tp: ArrayLike,
    pp: ArrayLike,
    offload: AbstractSet[str],
    parameters: MemoryParameters,
) -> Array:
    """States, buckets, gathered layers and low-precision copies of ``work`` on one device."""
    d, stage = np.asarray(dp, float), np.asarray(zero_stage, int)
    share = _stage_share(work, pp) / np.asarray(tp, float)
    gradients = share * work.gradient_bytes
    weights, casts = share * work.parameter_bytes, share * _cast_bytes(work)
    # Stages of a pipeline keep what ZeRO-3 gathered and gradients whole to the last micro-batch.
    is_pipeline, is_sharded = np.asarray(pp, float) > 1, (stage == 3) & (d > 1)
    kept = state_bytes(
        0.0 if "parameters" in offload else weights,
        gradients,
        0.0 if "optimizer" in offload else share * work.optimizer_state_bytes,
        dp=d,
        zero_stage=stage,
        keeps_gradients=is_pipeline,
    )
    layers = min(1.0, parameters.gathered_layers / max(1, _depth(work)))
    at_once = np.where(is_sharded & is_pipeline, 1.0, layers)
    # What is gathered is what computes: the low-precision copy where there is one.
    computes = casts if _cast_bytes(work) else weights
    fetches = is_sharded | ("parameters" in offload)
    gathered = np.where(fetches, at_once * computes, casts)
    buckets = np.where((stage < 2) & (d > 1), parameters.bucket_fraction * gradients, 0.0)
    return np.asarray(kept + gathered + buckets)


def _cast_bytes(work: Work) -> float:
    """Weights that autocast keeps in low precision beside stored fp32 ones [bytes]."""
    low = PRECISION_BYTES[work.precision]
    stored, cast = _ratio(work.parameter_bytes, work.parameters), work.parameters
    if work.setup.has_adapters:  # the frozen base is loaded in low precision
        stored, cast = work.setup.stored_bytes(work.precision), work.trainable_parameters
    return float(low * cast) if low < min(stored, 4.0) else 0.0


def _activation_bytes(
    work: Work,
    micro_batch: Array,
    recompute: ArrayLike,
    tp: ArrayLike,
    pp: ArrayLike,
    is_sequence_parallel: ArrayLike,
    in_flight: Array,
) -> Array:
    mode, stages = np.asarray(recompute), np.asarray(pp, float)
    if not np.all(np.isin(mode, ("none", "selective", "full"))):
        raise ValueError(f"unknown recompute mode in {recompute!r}")
    model = work.transformer
    if model is None or work.saved_bytes_per_sample > 0:
        saved = micro_batch * work.saved_bytes_per_sample / (np.asarray(tp, float) * stages)
        # Chen et al. [3]_: sqrt(n) checkpoints and one segment between two of them.
        full = saved * min(1.0, 2.0 / np.sqrt(max(1, _depth(work))))
        return np.asarray(np.where(mode == "full", full, saved) * in_flight)
    element = float(min(PRECISION_BYTES[work.precision], 4))
    element = max(element, 2.0)
    tokens = micro_batch * model.sequence
    # Frozen layers keep nothing for a backward pass.
    layers = np.ceil((model.layers - work.setup.frozen_layers(model)) / stages)
    layer = layer_activation_bytes(
        model,
        tokens,
        tp=tp,
        is_sequence_parallel=is_sequence_parallel,
        is_selective=mode == "selective",
        element_bytes=element,
    )
    boundary = tokens * model.hidden * element
    boundary = boundary / np.where(is_sequence_parallel, np.asarray(tp, float), 1.0)
    full = layers * boundary * in_flight + layer
    return np.where(mode == "full", full, layers * layer * in_flight)


def _logits_bytes(
    work: Work, micro_batch: Array, tp: ArrayLike, parameters: MemoryParameters
) -> Array:
    """Logits and their gradient; measured activations already hold them."""
    model = work.transformer
    if model is None or work.saved_bytes_per_sample > 0:
        return np.zeros_like(micro_batch)
    tokens = micro_batch * model.sequence
    kept = tokens * model.vocabulary * parameters.logit_bytes
    return np.asarray(kept / np.asarray(tp, float))


def _stage_share(work: Work, pp: ArrayLike) -> Array:
    """Largest share of the parameters on a pipeline stage: its layers and one embedding."""
    stages = np.asarray(pp, float)
    model = work.transformer
    if model is None:
        return 1.0 / stages
    embedding = min(0.5, model.vocabulary * model.hidden / work.parameters)
    tables = 1.0 if model.has_tied_embeddings else 2.0
    layers = max(0.0, 1.0 - tables * embedding)
    share = layers * np.ceil(model.layers / stages) / model.layers + embedding
    return np.where(stages > 1, np.minimum(1.0, share), 1.0)


def _depth(work: Work) -> int:
    """Layers between which checkpoints can lie."""
    return work.transformer.layers if work.transformer else len(work.layers)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
