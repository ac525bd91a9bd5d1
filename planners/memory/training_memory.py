"""Memory of data-parallel training of recorded or described work, and the largest micro-batch.

Device memory = context + slack x (parameters + gradients + optimizer state, by ZeRO stage
+ activations + logits + communication buckets + gathered layers), as ``equations`` has it; a
recorded step is replayed (``step_moments``). A model that is split over devices is
``layout_memory``'s where it is a transformer, ``unit_memory``'s where it is recorded.
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
    model: Transformer, tokens: ArrayLike, *, element_bytes: float = 2.0
) -> Array:
    """Return what one transformer layer keeps for its backward pass [bytes].

    Nothing is known here of the software, so that both dropout masks count, as in the published
    formula; and the width of one expert, since the constants were fitted with that.
    """
    per_token = token_activation_bytes(
        replace(shapes_of(model), experts_per_token=1),
        keeps_scores=not model.has_flash_attention,
        element_bytes=element_bytes,
    )
    return np.asarray(np.asarray(tokens, float) * per_token)


def training_memory_bytes(
    work: Work,
    micro_batch: ArrayLike,
    *,
    dp: ArrayLike = 1,
    zero_stage: ArrayLike = 0,
    is_cpu: ArrayLike = False,
    offload: AbstractSet[str] = frozenset(),
    accumulates: ArrayLike = True,
    is_alone: ArrayLike | None = None,
    parameters: MemoryParameters,
) -> Array:
    """Return the memory that a data-parallel worker takes [bytes].

    Parameters
    ----------
    zero_stage : array-like of int in 0..3
    is_cpu : array-like of bool
        The process's own memory takes the place of the accelerator's context.
    offload : set of {"optimizer", "parameters"}
        What lies in host memory instead; two layers of it stay on the device at a time.
    accumulates : array-like of bool
        Gradients are added up over several micro-batches, so that they are always there.
    is_alone : array-like of bool, optional
        No other device trains with this one; None means where there is one worker.

    Raises
    ------
    ValueError
        If a count is below one or a stage is unknown.
    """
    b, d, stage = (
        np.asarray(micro_batch, float),
        np.asarray(dp, float),
        np.asarray(zero_stage, int),
    )
    if not np.all(b >= 1):
        raise ValueError(f"micro_batch must be at least 1, got {micro_batch!r}")
    states = _work_state_bytes(work, d, stage, offload, parameters)
    passing = _activation_bytes(work, b, parameters) + b * work.input_bytes_per_sample
    excess = excess_bytes(
        work, b, gradient_share=np.where(stage >= 2, 1 / d, 1.0),
        update_share=np.where(stage >= 1, 1 / d, 1.0), accumulates=accumulates, is_cpu=is_cpu,
    )  # fmt: skip
    on_cpu = parameters.process_bytes + parameters.cpu_slack * (states + passing + excess)
    is_alone = d == 1 if is_alone is None else is_alone
    on_device = device_bytes(states, passing, parameters, is_alone=is_alone, excess=excess)
    return np.asarray(np.where(is_cpu, on_cpu, rounding_bytes(work) + on_device))


def largest_micro_batch(
    work: Work,
    device_memory_bytes: ArrayLike,
    *,
    largest: int = 65_536,
    margin_fraction: ArrayLike = 0.0,
    dp: ArrayLike = 1,
    zero_stage: ArrayLike = 0,
    is_cpu: ArrayLike = False,
    accumulates: ArrayLike = True,
    parameters: MemoryParameters,
) -> NDArray[np.int64]:
    """Return the largest micro-batch that fits, at most ``largest``; 0 where not even one does.

    Memory is affine in the micro-batch at each moment of a step, so two evaluations give it
    exactly. ``margin_fraction`` of the device's memory is kept free.
    """

    def needed(micro_batch: int, moments: tuple[Moment, ...]) -> Array:
        return training_memory_bytes(
            replace(work, moments=moments), micro_batch, dp=dp, zero_stage=zero_stage,
            is_cpu=is_cpu, accumulates=accumulates, parameters=parameters,
        )  # fmt: skip

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
    d: Array,
    stage: NDArray[np.int_],
    offload: AbstractSet[str],
    parameters: MemoryParameters,
) -> Array:
    """States, buckets, gathered layers and low-precision copies of ``work`` on one device."""
    casts = _cast_bytes(work)
    kept = state_bytes(
        0.0 if "parameters" in offload else work.parameter_bytes,
        work.gradient_bytes,
        0.0 if "optimizer" in offload else work.optimizer_state_bytes,
        dp=d,
        zero_stage=stage,
    )
    layers = work.transformer.layers if work.transformer else len(work.layers)
    at_once = min(1.0, parameters.gathered_layers / max(1, layers))
    # What is gathered is what computes: the low-precision copy where there is one.
    fetches = ((stage == 3) & (d > 1)) | ("parameters" in offload)
    gathered = np.where(fetches, at_once * (casts or work.parameter_bytes), casts)
    bucket = parameters.bucket_fraction * work.gradient_bytes
    buckets = np.where((stage < 2) & (d > 1), bucket, 0.0)
    return np.asarray(kept + gathered + buckets)


def _cast_bytes(work: Work) -> float:
    """Weights that autocast keeps in low precision beside stored fp32 ones [bytes]."""
    low = PRECISION_BYTES[work.precision]
    stored, cast = work.parameter_bytes / max(work.parameters, 1), work.parameters
    if work.setup.has_adapters:  # the frozen base is loaded in low precision
        stored, cast = work.setup.stored_bytes(work.precision), work.trainable_parameters
    return float(low * cast) if low < min(stored, 4.0) else 0.0


def _activation_bytes(work: Work, micro_batch: Array, parameters: MemoryParameters) -> Array:
    """Activations, and logits with their gradient, which measured activations already hold."""
    model = work.transformer
    if model is None or work.saved_bytes_per_sample > 0:
        return np.asarray(micro_batch * work.saved_bytes_per_sample)
    element = max(float(min(PRECISION_BYTES[work.precision], 4)), 2.0)
    tokens = micro_batch * model.sequence
    # Frozen layers keep nothing for a backward pass.
    layers = np.ceil(model.layers - work.setup.frozen_layers(model))
    logits = tokens * model.vocabulary * parameters.logit_bytes
    kept = layers * layer_activation_bytes(model, tokens, element_bytes=element)
    return np.asarray(kept + logits)
