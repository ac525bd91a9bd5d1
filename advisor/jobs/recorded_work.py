"""The work of a recorded job: the traced step's operators, layers, memory and software."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, get_args

import numpy as np

from advisor.collectors.format import Columns, DeepStep, Loading, Recording, rows_of
from advisor.planners.core import (
    PRECISION_BYTES,
    Column,
    Layer,
    Loss,
    Moment,
    OperatorKind,
    Operators,
    Optimizer,
    Precision,
    StoredWeights,
    TrainingSetup,
    Work,
    select,
)
from advisor.planners.memory import cast_parameters, excess_bytes, model_state
from advisor.planners.step import (
    OVER_LISTS,
    convolution_kind,
    fused_calls,
    kernels_in_call,
    kernels_of_layers,
    operator_kind,
    over_lists,
)

# What a call that Python makes takes on a usual host with a GPU, its driver included, whatever
# the version of PyTorch: fitted to the steps of 32 networks on seven hosts (lab/fit/hosts.py).
# Calls of autograd's engine and of updates over lists take less
# (``DeviceParameters.engine_call_fraction``).
CALL_S: Final = 80e-6
# CoreMark per virtual CPU of the usual host of a GPU: the median of the processors of the
# catalogue's machines with GPUs that were measured [1/s]
_USUAL_CORE_SPEED: Final = 19_000.0
# Traced as one call already, or no work at all; gradients are zeroed one by one anywhere
# (``Optimizer.zero_grad`` takes lists only where the script asks for ``foreach``).
_CALLED_AS_TRACED: Final = ("aten::_foreach", "aten::_fused", "profiler::", "aten::zero_")


def call_s_on(core_speed: Column) -> Column:
    """Return what a call takes on a host whose cores are so fast (CoreMark a vCPU) [s]."""
    return CALL_S * _USUAL_CORE_SPEED / core_speed


def recorded_work(
    deep: DeepStep, loading: Loading | None, optimizers: Collection[str] = (),
    is_rehearsed: bool = False, loss: str = "",
) -> Work:  # fmt: skip
    """Divide the traced step by its passes: one micro-batch without accumulation.

    ``optimizers`` are the classes' names, ``loss`` how the script names it; ``is_rehearsed``:
    nothing was computed, so that no measured step holds what the host's calls and those of an
    accelerator's library take.
    """
    passes = max(deep.micro_batches, 1)
    micro_batch = max(deep.samples // passes, 1)
    counted = partial(
        _operators, passes=passes, shrinks=_over_lists(deep, optimizers), fused=_fused(deep),
        batch=micro_batch if is_rehearsed else 0,
    )  # fmt: skip
    return Work(
        operators=counted(deep.operators),
        least_operators=counted(deep.least_operators),
        micro_batch=micro_batch,
        parameters=deep.parameters,
        trainable_parameters=deep.trainable_parameters,
        parameter_bytes=deep.parameter_bytes,
        optimizer_state_bytes=deep.optimizer_state_bytes,
        buffer_bytes=float(deep.buffer_bytes),
        saved_bytes_per_sample=deep.saved_bytes / micro_batch,
        input_bytes_per_sample=input_bytes(loading, micro_batch) / micro_batch,
        is_pinned=loading is not None and loading.pin_memory,
        is_queued=loading is not None and loading.non_blocking,
        loaders=0 if loading is None else loading.workers,
        layers=_layers(deep, passes),
        precision=recorded_precision(deep),
        setup=recorded_setup(deep, optimizers, loss),
        call_s=CALL_S if deep.device == "cpu" or is_rehearsed else None,
        moments=moments_of(deep),
    )


def whole_work(recording: Recording, deep: DeepStep) -> Work:
    """Return the work of the traced step; a rehearsed one is called by the host like any other."""
    is_rehearsed = recording.rehearsal is not None
    work = recorded_work(
        deep, recording.loading, recording.optimizers, is_rehearsed=is_rehearsed,
        loss=recording.told.loss if recording.told else "",
    )  # fmt: skip
    if not is_rehearsed:
        return work
    return replace(
        _with_segments(work, deep),
        operators=_computed_by_one(work.operators, deep.shards),
        least_operators=_computed_by_one(work.least_operators, deep.shards),
    )


def _with_segments(work: Work, deep: DeepStep) -> Work:
    """Return the work with what the allocator's segments lose, where they were replayed.

    A line over the batch, through the script's own.
    """
    lost = dict(deep.lost)
    if 1.0 not in lost:
        return work
    own, b = lost.pop(1.0), work.micro_batch
    rise = sum((times - 1) * (size - own) for times, size in lost.items())
    growing = min(max(rise / sum((times - 1) ** 2 for times in lost), 0.0), own)
    excess = float(excess_bytes(work, b, accumulates=deep.micro_batches > 1))
    moving = b * (work.saved_bytes_per_sample + work.input_bytes_per_sample) + max(excess, 0.0)
    if moving <= 0:
        return work
    return replace(work, slack=1.0 + growing / moving, lost_bytes=own - growing)


def _computed_by_one(operators: Operators, shards: float) -> Operators:
    """Return what one device computes that has the model alone.

    It updates all ``shards``, and exchanges nothing.
    """
    some = select(operators, np.array(["c10d" not in name for name in operators.name], bool))
    times = np.where(some.is_update, shards, 1.0)
    return replace(
        some,
        flop=some.flop * times,
        bytes=some.bytes * times,
        fixed_bytes=some.fixed_bytes * times,
    )


def _layers(deep: DeepStep, passes: int) -> tuple[Layer, ...]:
    samples, sizes = deep.samples, ("forward_flop", "backward_flop", "output_bytes", "saved_bytes")
    columns = ("name", "kind", "parameters", "forward_s", "backward_s", *sizes)
    return tuple(
        Layer(
            name=name, kind=kind, parameters=parameters, forward_s=forward_s / passes,
            backward_s=backward_s / passes,
            **{f"{of}_per_sample": size / samples for of, size in zip(sizes, each, strict=True)},
        )
        for name, kind, parameters, forward_s, backward_s, *each in rows_of(deep.layers, *columns)
    )  # fmt: skip


def _operators(
    traced: Columns, passes: int, shrinks: Mapping[str, float], fused: Mapping[str, float],
    batch: int,
) -> Operators:  # fmt: skip
    """Return the operators of a traced step, divided by its passes; an update is one for all.

    ``batch``: of a pass that was rehearsed, 0 of one that was computed.
    """
    if not traced:
        return Operators.of(())
    name, phase, count, shapes = (traced[of] for of in ("name", "phase", "count", "shapes"))
    each = [1 if one == "optimizer" else passes for one in phase]
    flop = [of_all / calls for of_all, calls in zip(traced["flop"], count, strict=True)]
    kernels = list(map(partial(_kernels, batch), name, phase, shapes, flop))
    listed = map(partial(_listed, shrinks, fused), name, phase, traced["fused_by"], count, each)
    sizes = ("flop", "bytes", "fixed_bytes")
    return Operators.from_columns({
        "name": name, "phase": phase, "dtype": traced["dtype"],
        "kind": list(map(_kind, name, phase, shapes, flop)),
        "count": np.array(count) * kernels / each,
        "listed": list(listed),
        **{size: np.array(traced[size], float) / each for size in sizes},
    })  # fmt: skip


def _kind(name: str, phase: str, shapes: str, flop: float) -> OperatorKind:
    """Return the class of a recorded operator: by its name, a convolution by its shapes too."""
    if phase == "optimizer":
        return "optimizer"
    kind = operator_kind(name)
    return convolution_kind(shapes, flop) if kind == "convolution" else kind


def _kernels(batch: int, name: str, phase: str, shapes: str, flop: float) -> float:
    """Return how many kernels a call starts, one after another."""
    if batch and name.removesuffix("_backward").endswith("_cudnn_rnn"):
        return kernels_of_layers(shapes, flop / (1 if phase == "forward" else 2), batch)
    return kernels_in_call(name, shapes)


def _over_lists(deep: DeepStep, optimizers: Collection[str]) -> dict[str, float]:
    """Return which operators an accelerator would run over lists, and how many calls are left.

    Traced on an accelerator they are as they were.
    """
    if deep.device != "cpu" or not optimizers or not OVER_LISTS.issuperset(optimizers):
        return {}
    calls: Counter[str] = Counter()
    for name, phase, count in rows_of(deep.operators, "name", "phase", "count"):
        if phase == "optimizer" and not name.startswith(_CALLED_AS_TRACED):
            calls[name] += count
    return over_lists(calls)


def _fused(deep: DeepStep) -> dict[str, float]:
    """Return by phase which share of the calls of recurrent layers an accelerator would start.

    Traced on an accelerator they are as they were; a library's own recurrence is no product here.
    """
    if deep.device != "cpu":
        return {}
    calls: Counter[str] = Counter()
    products: Counter[str] = Counter()
    columns = ("name", "phase", "count", "fused_by")
    for name, phase, count, fused_by in rows_of(deep.operators, *columns):
        if fused_by:
            calls[phase] += count
            products[phase] += count * (operator_kind(name) == "matmul")
    return fused_calls(calls, products)


def _listed(
    shrinks: Mapping[str, float], fused: Mapping[str, float], name: str, phase: str,
    fused_by: str, count: int, each: int,
) -> float | None:  # fmt: skip
    """Return how often an accelerator calls what a processor called more often; None: as often."""
    if phase == "optimizer":
        return shrinks[name] * count if name in shrinks else None
    return fused[phase] * count / each if fused_by and phase in fused else None


def recorded_precision(deep: DeepStep) -> Precision:
    """Return what most products were computed in."""
    return deep.precision if deep.precision in get_args(Precision) else "fp32"  # type: ignore[return-value]


# Classes of optimizers whose states' bytes alone do not tell them apart.
_CLASSES: Final[Mapping[str, Optimizer]] = {
    "PagedAdamW": "paged-adamw", "PagedAdam": "paged-adamw", "PagedAdamW32bit": "paged-adamw",
    "PagedAdam32bit": "paged-adamw", "PagedAdamW8bit": "paged-adamw-8bit",
    "PagedAdam8bit": "paged-adamw-8bit", "AdamW8bit": "adamw-8bit", "Adam8bit": "adamw-8bit",
    "AdamW4bit": "adamw-4bit", "Adam4bit": "adamw-4bit", "Adafactor": "adafactor",
    "Lion": "lion", "Lion32bit": "lion", "Lion8bit": "lion-8bit", "PagedLion8bit": "lion-8bit",
    "Muon": "muon", "GaLoreAdamW": "galore", "GaLoreAdamW8bit": "galore",
}  # fmt: skip


def recorded_setup(
    deep: DeepStep, optimizers: Collection[str] = (), loss: str = ""
) -> TrainingSetup:
    """Return what the recording shows of the software: by bytes and operators, then by names.

    ``optimizers``: names of the classes; ``loss``: as the script names it, empty for no name.
    """
    weights: StoredWeights = "bf16" if deep.parameter_bytes < 3 * deep.parameters else "fp32"
    held = _trained_in_copies(deep)
    of_weights = 0.5 if held[1] < 3 * held[0] else 1.0
    kept = deep.optimizer_state_bytes / max(deep.trainable_parameters, 1) / of_weights
    known: tuple[tuple[float, Optimizer], ...] = (
        (6.0, "adamw"), (3.0, "sgd-momentum"), (1.0, "adamw-8bit"), (0.0, "sgd"),
    )  # fmt: skip
    seen = list(rows_of(deep.operators, "name", "phase"))
    is_flash = any(operator_kind(name) == "attention" for name, _ in seen)
    has_scores = any("softmax" in name and phase == "backward" for name, phase in seen)
    return TrainingSetup(
        kernels="compiled" if deep.is_compiled else "eager",
        attention="unfused" if has_scores and not is_flash else "flash",
        optimizer=next(
            (_CLASSES[name] for name in optimizers if name in _CLASSES),
            next(name for least, name in known if kept >= least),
        ),
        weights=weights,
        loss=next((one for one in get_args(Loss) if one == loss), None),
        **_adapters(deep),
    )


def _trained_in_copies(deep: DeepStep) -> tuple[int, int]:
    """Return the parameters that autocast keeps copies of and their bytes: of adapters, theirs."""
    if deep.adapter_rank:
        return deep.trainable_parameters, deep.gradient_bytes
    return deep.parameters, deep.parameter_bytes


def _adapters(deep: DeepStep) -> dict[str, Any]:
    """Return the fields of a setup that say which adapters were trained; none where none were.

    The base is as wide as it was loaded, which ``weights`` then says.
    """
    if not deep.adapter_rank:
        return {}
    from advisor.recipes import adapted_modules

    return {
        "adapter_rank": deep.adapter_rank,
        "adapter_targets": adapted_modules(deep.adapter_modules) or None,
        "base_bits": deep.base_bits if deep.base_bits in (8, 4) else 16,
        "said": ("weights",),
    }


def moments_of(deep: DeepStep) -> tuple[Moment, ...]:
    """Return the moments of a traced step that are its peak for some micro-batch.

    What is fixed at a moment is weights, optimizer state, autocast's copies of the weights (which
    the planners count by themselves), then gradients as far as there can be some, then what was
    computed from these alone.
    """
    if deep.samples < 1:
        return ()
    micro_batch = max(deep.samples // max(deep.micro_batches, 1), 1)
    cast = cast_parameters(recorded_precision(deep), *_trained_in_copies(deep))
    weights = deep.parameter_bytes + PRECISION_BYTES["bf16"] * cast
    model_bytes = float(model_state(weights, 0, deep.optimizer_state_bytes).device_bytes)
    found = []
    updates = ((False, deep.memory_frontier), (True, deep.update_frontier))
    for is_update, (fixed, growing, blocks) in ((u, m) for u, many in updates for m in many):
        beside = float(max(fixed - model_bytes, 0))
        gradients = min(beside, float(deep.gradient_bytes))
        if deep.shards > 1:  # of its own shards a rank's moments say nothing of the whole
            gradients = beside = float(deep.gradient_bytes)
        found.append(
            Moment(
                gradient_bytes=gradients,
                temporary_bytes=beside - gradients,
                growing_bytes_per_sample=growing / micro_batch,
                blocks=blocks,
                is_update=is_update,
            )
        )
    if found and (deep.shards > 1 or not deep.update_frontier):
        # Whatever updated them where they were recorded.
        update = Moment(
            gradient_bytes=float(deep.gradient_bytes),
            temporary_bytes=float(deep.gradient_bytes),
            growing_bytes_per_sample=0.0, is_update=True,
        )  # fmt: skip
        found.append(update)
    return tuple(found)


def input_bytes(loading: Loading | None, micro_batch: int) -> float:
    """Return what is loaded for a pass over ``micro_batch`` samples [bytes].

    A loader's batch at least: several passes may share one (the losses of a GAN).
    """
    if loading is None or loading.sample_bytes is None:
        return 0.0
    return loading.sample_bytes * max(micro_batch, loading.batch or 0)
