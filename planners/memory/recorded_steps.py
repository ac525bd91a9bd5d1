"""Memory of data-parallel training of recorded or described work, and the largest micro-batch.

Device memory = context + slack x (parameters + gradients + optimizer state, by ZeRO stage
+ activations + logits + communication buckets + gathered layers), as ``equations`` has it; a
recorded step is replayed (``excess_bytes``). A transformer that is split over devices is the
subject of ``planners.memory.transformers``; a recorded model's units are a ``UnitTable``.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import (
    MIB,
    PRECISION_BYTES,
    Column,
    Floats,
    Moment,
    Precision,
    Transformer,
    Work,
    shapes_of,
)
from advisor.planners.memory.transformers import (
    BUCKET_ELEMENTS,
    Ledger,
    MemoryConstants,
    context_bytes,
    model_state,
    token_activation_bytes,
    without_terms,
)
from advisor.planners.step import Unit

Array = NDArray[np.float64]

BLOCK_BYTES = 512
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB


def excess_bytes(
    work: Work, micro_batch: ArrayLike, *, gradient_share: ArrayLike = 1.0,
    update_share: ArrayLike = 1.0, accumulates: ArrayLike = True, is_cpu: ArrayLike = False,
) -> Array:  # fmt: skip
    """Return what a step holds at most beside weights and state, gradients and saved activations.

    Memory of a recorded step beside weights and optimizer state, replayed at any micro-batch.

    | here         | meaning                                                                     |
    |--------------|-----------------------------------------------------------------------------|
    | ``g``, ``t`` | gradients that were there, and what else does not grow, of a moment [bytes] |
    | ``a``        | what grows with the micro-batch ``b`` [bytes/sample]                        |
    | ``G``        | gradients of all trained parameters on the device [bytes]                   |

    beside(b) = max over moments of g + t + a b. Where gradients are added up over several
    micro-batches, or kept from step to step, all of G is there at every moment. Accelerators
    update parameters in groups, which takes one more copy of what is updated (``torch.optim`` says
    so of ``foreach``: about the parameters' size more than a loop over them). What PyTorch's
    caching allocator hands out is a multiple of 512 bytes, out of segments of 2 MiB for blocks of
    up to 1 MiB and of 20 MiB for blocks of less than 10 MiB (PyTorch's notes on CUDA memory
    management; ``c10/cuda/CUDACachingAllocator.h``: ``kMinBlockSize``, ``kSmallBuffer``,
    ``kLargeBuffer``).

    Never less than 0 where gradients are there at every moment, and then the same on every share
    of them; 0 where no moment was recorded.

    ``gradient_share``, ``update_share``: parts of the gradients, and of the parameters that are
    updated, on one device; ``accumulates``: gradients are there at every moment [bytes].
    """
    b, share = np.asarray(micro_batch, float), np.asarray(gradient_share, float)
    if not work.moments:
        return np.zeros(np.broadcast_shapes(b.shape, share.shape))
    always = np.asarray(accumulates, bool)
    updated = np.where(is_cpu, 0.0, np.asarray(update_share, float))
    peak = np.zeros(())
    for moment in work.moments:
        gradients = np.where(always, work.gradient_bytes, moment.gradient_bytes)
        temporary = moment.temporary_bytes * (updated if moment.is_update else 1.0)
        growing = moment.growing_bytes_per_sample * b
        peak = np.maximum(peak, share * gradients + temporary + growing)
    return np.asarray(peak - share * work.gradient_bytes - work.saved_bytes_per_sample * b)


def rounding_bytes(work: Work) -> float:
    """Return the most that the caching allocator's rounding adds to a step's blocks [bytes].

    Less than a block's granule for each, and a segment of either pool that is not full; where the
    blocks were replayed, what that says.
    """
    if work.slack is not None:
        return work.lost_bytes
    blocks = max((moment.blocks for moment in work.moments), default=0)
    return (
        float(BLOCK_BYTES * blocks + SMALL_SEGMENT_BYTES + LARGE_SEGMENT_BYTES) if blocks else 0.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParameters(MemoryConstants):
    """Fitted constants of the memory model (``advisor train memory``)."""

    context_bytes: float
    alone_context_bytes: float
    # resident memory of a training process on a CPU without its tensors [bytes]
    process_bytes: float
    slack: float
    cpu_slack: float  # ``slack`` of the C library's allocator on a CPU
    logit_bytes: float
    # communication buckets as a share of the gradients, where workers are several
    bucket_fraction: float
    log_sd: float  # standard deviation of log(measured / predicted)

    def __post_init__(self) -> None:
        if self.slack < 1 or self.cpu_slack < 1 or self.log_sd < 0:
            raise ValueError(f"impossible memory parameters: {self}")


def recorded_activation_bytes(
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


def work_ledger(
    work: Work, micro_batch: ArrayLike, *, dp: ArrayLike = 1, zero_stage: ArrayLike = 0,
    is_cpu: ArrayLike = False, offload: AbstractSet[str] = frozenset(),
    accumulates: ArrayLike = True, is_alone: ArrayLike | None = None, parameters: MemoryParameters,
) -> Ledger:  # fmt: skip
    """Return the memory that a data-parallel worker takes, by the terms of ``TERMS``.

    ``is_cpu``: the process's own memory takes the place of the accelerator's context; ``offload``:
    what lies in host memory instead; two layers of it stay on the device at a time;
    ``accumulates``: gradients are added up over several micro-batches, so that they are always
    there; ``is_alone``: no other device trains with this one; None means where there is one
    worker.

    Raises ValueError if a count is below one or a stage is unknown.
    """
    b, d, stage = (
        np.asarray(micro_batch, float),
        np.asarray(dp, float),
        np.asarray(zero_stage, int),
    )
    if not np.all(b >= 1):
        raise ValueError(f"micro_batch must be at least 1, got {micro_batch!r}")
    terms = _work_states(work, d, stage, offload, parameters)
    states = reduce(np.add, terms.values())
    kept, logits = _activation_bytes(work, b, parameters)
    excess = excess_bytes(
        work, b, gradient_share=np.where(stage >= 2, 1 / d, 1.0),
        update_share=np.where(stage >= 1, 1 / d, 1.0), accumulates=accumulates, is_cpu=is_cpu,
    )  # fmt: skip
    # Below 0 where gradients are not there yet, which leave no more than themselves.
    terms["gradients"] = terms["gradients"] + np.minimum(excess, 0.0)
    terms |= {
        "activations": np.asarray(kept + b * work.input_bytes_per_sample), "logits": logits,
        "workspace": np.maximum(excess, 0.0),
    }  # fmt: skip
    is_alone = np.asarray(d == 1 if is_alone is None else is_alone)
    context = context_bytes(parameters, is_alone)
    terms["context"] = np.where(is_cpu, parameters.process_bytes, context)
    passing = terms["activations"] + logits + terms["workspace"]
    lasting = 0.0 if parameters.is_replayed else states + np.minimum(excess, 0.0)
    lost = rounding_bytes(work) + (parameters.slack - 1) * (
        passing + np.where(is_alone, 0.0, lasting)
    )
    on_cpu = (parameters.cpu_slack - 1) * (states + np.minimum(excess, 0.0) + passing)
    terms["rounding"] = np.where(is_cpu, on_cpu, lost)
    return terms


def training_memory_bytes(work: Work, micro_batch: ArrayLike, **asked: Any) -> Array:
    """Return the sum of ``work_ledger``, asked alike [bytes]."""
    return without_terms(work_ledger(work, micro_batch, **asked))


def largest_micro_batch(
    work: Work, device_memory_bytes: ArrayLike, *, largest: int = 65_536,
    margin_fraction: ArrayLike = 0.0, dp: ArrayLike = 1, zero_stage: ArrayLike = 0,
    is_cpu: ArrayLike = False, accumulates: ArrayLike = True, parameters: MemoryParameters,
) -> NDArray[np.int64]:  # fmt: skip
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


def _work_states(
    work: Work, d: Array, stage: NDArray[np.int_], offload: AbstractSet[str],
    parameters: MemoryParameters,
) -> Ledger:  # fmt: skip
    """States, buckets, gathered layers and low-precision copies of ``work`` on one device."""
    casts = _cast_bytes(work)
    kept = model_state(
        work.parameter_bytes, work.gradient_bytes, work.optimizer_state_bytes, dp=d,
        zero_stage=stage, moves_weights="parameters" in offload,
        moves_optimizer="optimizer" in offload, moves_gradients="gradients" in offload,
    )  # fmt: skip
    layers = work.transformer.layers if work.transformer else len(work.layers)
    at_once = min(1.0, parameters.gathered_layers / max(1, layers))
    # What is gathered is what computes: the low-precision copy where there is one.
    fetches = ((stage == 3) & (d > 1)) | ("parameters" in offload)
    gathered = np.where(fetches, at_once * (casts or work.parameter_bytes), casts)
    bucket = parameters.bucket_fraction * work.gradient_bytes
    buckets = np.where((stage < 2) & (d > 1), bucket, 0.0)
    if "gradients" in offload:
        buckets = np.maximum(buckets, 4.0 * min(work.parameters, BUCKET_ELEMENTS))
    shape = np.broadcast_shapes(np.shape(d), np.shape(stage))
    weights, gradients, optimizer = (
        np.broadcast_to(one, shape) for one in (kept.weights, kept.gradients, kept.optimizer)
    )
    return {
        "parameters": weights, "gradients": gradients, "optimizer": optimizer,
        "gathered": np.asarray(gathered), "buckets": np.asarray(buckets),
    }  # fmt: skip


def _cast_bytes(work: Work) -> float:
    """Weights that autocast keeps in low precision beside stored fp32 ones [bytes]."""
    if work.setup.has_adapters:  # the frozen base is loaded in low precision
        count, stored = work.trainable_parameters, work.setup.stored_bytes(work.precision)
        return PRECISION_BYTES[work.precision] * cast_parameters(
            work.precision, count, stored * count
        )
    return PRECISION_BYTES[work.precision] * cast_parameters(
        work.precision, work.parameters, work.parameter_bytes
    )


def cast_parameters(precision: Precision, parameters: int, stored_bytes: float) -> float:
    """Return how many parameters are stored wider than they compute.

    Of a frozen base in 16 bits and adapters in 32, the adapters.
    """
    low, wide = PRECISION_BYTES[precision], PRECISION_BYTES["fp32"]
    stored = stored_bytes / max(parameters, 1)
    if low != PRECISION_BYTES["bf16"]:
        return float(parameters) if low < min(stored, wide) else 0.0
    return parameters * min(max((stored - low) / (wide - low), 0.0), 1.0)


def _activation_bytes(
    work: Work, micro_batch: Array, parameters: MemoryParameters
) -> tuple[Array, Array]:
    """Activations, and logits with their gradient, which measured activations already hold."""
    model = work.transformer
    if model is None or work.saved_bytes_per_sample > 0:
        measured = np.asarray(micro_batch * work.saved_bytes_per_sample)
        return measured, np.zeros_like(measured)
    element = max(float(min(PRECISION_BYTES[work.precision], 4)), 2.0)
    tokens = micro_batch * model.sequence
    # Frozen layers keep nothing for a backward pass.
    layers = np.ceil(model.layers - work.setup.frozen_layers(model))
    logits = tokens * model.vocabulary * parameters.logit_bytes
    kept = layers * recorded_activation_bytes(model, tokens, element_bytes=element)
    return np.asarray(kept), np.asarray(logits)


# What becomes of the activations between forward and backward.
Kept = Literal["kept", "recomputed", "offloaded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTable:
    """A model's units as columns of shape (n_units,).

    Memory of a recorded model's stages, unit by unit: what a partition may add up.

    | here            | papers | meaning                                                       |
    |-----------------|--------|---------------------------------------------------------------|
    | ``state_bytes`` | 16 P   | weights, gradients, optimizer state of a unit, by ZeRO stage  |
    | ``kept_bytes``  | -      | activations of a unit that one micro-batch keeps              |
    | ``live_bytes``  | -      | of the unit whose activations are computed again, all at once |
    | ``base_bytes``  | -      | context, and the micro-batch's own samples                    |

    Recomputation is by unit: only a unit's input is kept, and one unit is live (Chen et al., 2016,
    section 3, with segments of one block, as ``torch.utils.checkpoint`` is used). Everything else
    is ``training_memory_bytes``, whose total over all units this equals.
    """

    names: tuple[str, ...]
    # parameters, whole_share: parameters, and the part of them that tensor parallelism leaves
    # whole
    parameters: Floats
    whole_share: Floats
    # saved_bytes, input_bytes, output_bytes: kept for the backward pass, taken from the unit
    # before, handed on [bytes/sample]
    saved_bytes: Floats
    input_bytes: Floats
    output_bytes: Floats
    is_block: NDArray[np.bool_]

    @classmethod
    def of(cls, parts: Sequence[Unit], work: Work) -> UnitTable:
        """Return the units of a model as columns."""
        output = np.array([p.output_bytes_per_sample for p in parts])
        return cls(
            names=tuple(p.name for p in parts),
            parameters=np.array([float(p.parameters) for p in parts]),
            whole_share=np.array([p.whole_share if p.is_block else 1.0 for p in parts]),
            saved_bytes=np.array([p.saved_bytes_per_sample for p in parts]),
            input_bytes=np.concatenate([[work.input_bytes_per_sample], output[:-1]]),
            output_bytes=output,
            is_block=np.array([p.is_block for p in parts]),
        )

    def held_parameters(self, tp: int = 1) -> Floats:
        """Return each unit's parameters on one of ``tp`` ranks."""
        return self.parameters * (self.whole_share + (1 - self.whole_share) / tp)

    def kept_bytes(self, tp: int, way: Kept) -> Floats:
        """Return each unit's activations that one sample keeps on one rank [bytes].

        The inputs of a block's two halves are whole on every rank (Korthikanti et al., 2022,
        equation 2 without sequence parallelism), the rest is divided.
        """
        if way == "offloaded":
            return np.zeros_like(self.saved_bytes)
        if way == "recomputed":
            return np.minimum(self.input_bytes, self.saved_bytes)
        whole = np.minimum(2 * self.input_bytes, self.saved_bytes)
        divided = whole + (self.saved_bytes - whole) / tp
        return np.where(self.is_block & (tp > 1), divided, self.saved_bytes)

    def live_bytes(self, tp: int, way: Kept) -> float:
        """Return what is on the device beside the kept activations [bytes/sample].

        One unit while it is recomputed; two while one is copied to the host and back.
        """
        units = {"kept": 0.0, "recomputed": 1.0, "offloaded": 2.0}[way]
        return units * float(self.kept_bytes(tp, "kept").max())


def parameter_ledger(
    work: Work, *, dp: ArrayLike, zero_stage: ArrayLike, offload: AbstractSet[str] = frozenset(),
    is_alone: bool = False, memory: MemoryParameters,
) -> Ledger:  # fmt: skip
    """Return what one parameter takes on a device, slack included, by term [bytes/parameter]."""
    bare = replace(
        work, saved_bytes_per_sample=0.0, input_bytes_per_sample=0.0, transformer=None, moments=()
    )
    terms = work_ledger(
        bare, 1, dp=dp, zero_stage=zero_stage, offload=offload, is_alone=is_alone,
        parameters=memory,
    )  # fmt: skip
    count = max(work.parameters, 1)
    return {name: term / count for name, term in terms.items() if name != "context"}


def base_ledger(
    work: Work, micro_batch: Column, memory: MemoryParameters, *, kept: Column = 0.0,
    live: Column = 0.0, update_share: float = 1.0, is_alone: bool = False,
) -> Ledger:  # fmt: skip
    """Return what a device holds whatever its units, and what a pass leaves of them, by term.

    Context, the micro-batch's samples, and what the recorded step held beside gradients and saved
    activations, wherever in the model that was. ``kept``, ``live``: activations of all
    micro-batches in flight, and of the units at work besides [bytes]; ``update_share``: as of
    ``excess_bytes``.
    """
    b = np.asarray(micro_batch, float)
    excess = excess_bytes(work, b, update_share=update_share)
    kept = np.asarray(kept + b * work.input_bytes_per_sample)
    lost = rounding_bytes(work) + (memory.slack - 1) * (kept + live + excess)
    return {
        "activations": kept, "recomputed": np.asarray(live), "workspace": excess,
        "context": context_bytes(memory, is_alone), "rounding": np.asarray(lost),
    }  # fmt: skip


def stage_ledger(parameters: float, each: Ledger, base: Ledger) -> Ledger:
    """Return what a stage's device holds: its parameters, and what a pass leaves, by term.

    ``each``: of a parameter (``parameter_ledger``); ``base``: ``base_ledger`` of its passes.
    """
    states: Ledger = {name: np.asarray(parameters * term) for name, term in each.items()}
    return {**states, **base, "rounding": states["rounding"] + base["rounding"]}


def offloaded_bytes(
    work: Work, table: UnitTable, *, tp: int, dp: int, zero_stage: int, offload: AbstractSet[str]
) -> float:
    """Return the host memory that one device's state takes, all units on it [bytes]."""
    share = float(table.held_parameters(tp).sum()) / max(work.parameters, 1)
    # Gradients that the host updates with are as wide as the weights are stored.
    states = model_state(
        work.parameter_bytes, work.parameter_bytes, work.optimizer_state_bytes, dp=dp,
        zero_stage=zero_stage, moves_weights="parameters" in offload,
        moves_optimizer="optimizer" in offload,
    )  # fmt: skip
    return share * float(states.host_bytes)
