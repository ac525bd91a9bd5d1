"""The work of a recorded job: the traced step's operators, layers, software, for the planners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import get_args

from advisor.collectors.recording import DeepStep, Loading, OperatorCount
from advisor.jobs.moments import input_bytes, moments_of
from advisor.planners.core.nouns import (
    Layer,
    Operator,
    OperatorKind,
    Precision,
    TrainingSetup,
    Work,
)
from advisor.planners.core.setup import Optimizer, StoredWeights
from advisor.planners.step.describe_updates import OVER_LISTS, over_lists
from advisor.planners.step.operators import (
    convolution_kind,
    fused_calls,
    kernels_in_call,
    operator_kind,
)

# What a call of a script takes on the host, Python included. The device model's 8 us are those of
# kernels alone, which its suites measured. Six small steps with their updates over lists take 8.7
# to 14.0 us a call on this project's machine, without a driver (benchmarks/eager_calls.py,
# 2026-11-22): their geometric mean, until a GPU says more.
_CALL_S = 11e-6
# Traced as one call already, or no work at all.
_KERNELS_OF_LISTS = ("aten::_foreach", "aten::_fused", "profiler::")


def _kind(row: OperatorCount) -> OperatorKind:
    """Return the class of a recorded operator: by its name, a convolution by its shapes too."""
    if row.phase == "optimizer":
        return "optimizer"
    kind = operator_kind(row.name)
    return convolution_kind(row.shapes, row.flop / row.count) if kind == "convolution" else kind


def recorded_work(
    deep: DeepStep, loading: Loading | None, optimizers: Collection[str] = ()
) -> Work:
    """Divide the traced step by its passes: one micro-batch without accumulation.

    ``optimizers`` are the classes' names.
    """
    passes = max(deep.micro_batches, 1)
    shrinks = _over_lists(deep, optimizers)
    fused = _fused(deep)
    micro_batch = max(deep.samples // passes, 1)
    return Work(
        operators=tuple(
            Operator(
                name=o.name,
                kind=_kind(o),
                phase=o.phase,
                count=o.count
                * kernels_in_call(o.name, o.shapes)
                / (1 if o.phase == "optimizer" else passes),
                listed=_listed(o, passes, shrinks, fused),
                flop=o.flop / (1 if o.phase == "optimizer" else passes),
                bytes=o.bytes / (1 if o.phase == "optimizer" else passes),
                fixed_bytes=o.fixed_bytes / (1 if o.phase == "optimizer" else passes),
                dtype=o.dtype,
            )
            for o in deep.operators
        ),
        micro_batch=micro_batch,
        parameters=deep.parameters,
        trainable_parameters=deep.trainable_parameters,
        parameter_bytes=deep.parameter_bytes,
        optimizer_state_bytes=deep.optimizer_state_bytes,
        saved_bytes_per_sample=deep.saved_bytes / micro_batch,
        input_bytes_per_sample=input_bytes(loading, micro_batch) / micro_batch,
        layers=tuple(
            Layer(
                name=layer.name,
                parameters=layer.parameters,
                forward_flop_per_sample=layer.forward_flop / deep.samples,
                backward_flop_per_sample=layer.backward_flop / deep.samples,
                output_bytes_per_sample=layer.output_bytes / deep.samples,
                saved_bytes_per_sample=layer.saved_bytes / deep.samples,
                forward_s=layer.forward_s / passes,
                backward_s=layer.backward_s / passes,
                kind=layer.kind,
            )
            for layer in deep.layers
        ),
        precision=recorded_precision(deep),
        setup=recorded_setup(deep),
        call_s=_CALL_S if deep.device == "cpu" else None,
        moments=moments_of(deep),
    )


def _over_lists(deep: DeepStep, optimizers: Collection[str]) -> dict[str, float]:
    """Return which operators an accelerator would run over lists, and how many calls are left.

    Traced on an accelerator they are as they were.
    """
    if deep.device != "cpu" or not optimizers or not OVER_LISTS.issuperset(optimizers):
        return {}
    calls: Counter[str] = Counter()
    for o in deep.operators:
        if o.phase == "optimizer" and not o.name.startswith(_KERNELS_OF_LISTS):
            calls[o.name] += o.count
    return over_lists(calls)


def _fused(deep: DeepStep) -> dict[str, float]:
    """Return by phase which share of the calls of recurrent layers an accelerator would start.

    Traced on an accelerator they are as they were; a library's own recurrence is no product here.
    """
    if deep.device != "cpu":
        return {}
    calls: Counter[str] = Counter()
    products: Counter[str] = Counter()
    for o in deep.operators:
        if o.fused_by:
            calls[o.phase] += o.count
            products[o.phase] += o.count * (operator_kind(o.name) == "matmul")
    return fused_calls(calls, products)


def _listed(
    row: OperatorCount, passes: int, shrinks: Mapping[str, float], fused: Mapping[str, float]
) -> float | None:
    """Return how often an accelerator calls what a processor called more often; None: as often."""
    if row.phase == "optimizer":
        return shrinks[row.name] * row.count if row.name in shrinks else None
    return fused[row.phase] * row.count / passes if row.fused_by and row.phase in fused else None


def recorded_precision(deep: DeepStep) -> Precision:
    """Return what most products were computed in."""
    return deep.precision if deep.precision in get_args(Precision) else "fp32"  # type: ignore[return-value]


def recorded_setup(deep: DeepStep) -> TrainingSetup:
    """Return what the recording shows of the software: by bytes and operators, not by names."""
    weights: StoredWeights = "bf16" if deep.parameter_bytes < 3 * deep.parameters else "fp32"
    of_weights = 0.5 if weights == "bf16" else 1.0
    kept = deep.optimizer_state_bytes / max(deep.trainable_parameters, 1) / of_weights
    known: tuple[tuple[float, Optimizer], ...] = (
        (6.0, "adamw"), (3.0, "sgd-momentum"), (1.0, "adamw-8bit"), (0.0, "sgd"),
    )  # fmt: skip
    is_flash = any(operator_kind(o.name) == "attention" for o in deep.operators)
    has_scores = any("softmax" in o.name and o.phase == "backward" for o in deep.operators)
    return TrainingSetup(
        kernels="compiled" if deep.is_compiled else "eager",
        attention="unfused" if has_scores and not is_flash else "flash",
        optimizer=next(name for least, name in known if kept >= least),
        weights=weights,
    )
