"""What one training step takes on a device: a roofline over the operators of the step.

Every operator takes the larger of its arithmetic and its memory traffic, plus the part of the
smaller one that the kernel cannot hide; the device starts kernels no faster than the host hands
them over:

    t_k = max(C_k, M_k) + rho min(C_k, M_k) + n_k l         C_k = F_k / R,  M_k = B_k / W
    t   = max(sum_k t_k, sum_k n_k h)

| here                    | paper | meaning, unit                                              |
|-------------------------|-------|------------------------------------------------------------|
| ``flop``                | F     | operations of all calls of an operator [flop]              |
| ``bytes``               | B     | traffic of all calls; the activations grow with the batch  |
| ``compute_rate``        | R     | sustained products x efficiency of the class [flop/s]      |
| ``memory_rate``         | W     | memory bandwidth x efficiency of the class [bytes/s]       |
| ``count``               | n     | calls                                                      |
| ``latency_s``           | l     | what a call takes on the device however small [s]          |
| ``dispatch_s``          | h     | what a call takes on the host [s]                          |
| ``unhidden_fraction``   | rho   | 0: perfect overlap, 1: none                                |

A constant time per call is the same law as a size-dependent efficiency x / (x + R l) in the
operations x of the call, so that ``t(micro_batch)`` is t0 + t1 x micro_batch up to the maxima.

Sources: S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009, eq. 1; the
constants are fitted by ``advisor train device-model`` and come in as ``DeviceParameters``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.errors import PlanningError
from advisor.planners.nouns import PRECISION_BYTES, Device, OperatorKind, Work

KINDS: Final[tuple[str, ...]] = get_args(OperatorKind)
# Products run in the precision that the job asks for; the other classes keep their tensors' type.
PRODUCTS: Final = frozenset({"matmul", "convolution", "attention", "recurrent"})
# What a precision runs as where the device lacks it, tried in this order; fp32 ends every chain.
FALLBACKS: Final[Mapping[str, tuple[str, ...]]] = {
    "fp64": ("fp32",),
    "fp32": ("fp32", "bf16", "fp16"),
    "tf32": ("tf32", "fp32", "bf16", "fp16"),
    "bf16": ("bf16", "fp16", "fp32"),
    "fp16": ("fp16", "bf16", "fp32"),
    "fp8": ("fp8", "bf16", "fp16", "fp32"),
    "int8": ("fp8", "bf16", "fp16", "fp32"),
}


# PyTorch gives a thread no fewer elements than this (ATen/Parallel.h, GRAIN_SIZE).
GRAIN: Final = 32_768
_FP32_BYTES: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What one class of operators reaches: R = ``compute`` x sustained, W = ``memory`` x peak."""

    compute: float
    memory: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceParameters:
    """The constants of the step-time equation; each names the term that it stands in.

    Attributes
    ----------
    efficiencies : mapping of kind of device to mapping of OperatorKind to Efficiency
        R and W of the equation.
    sustained_fraction : mapping of kind of device to mapping of precision to float
        e: share of the datasheet peak that large products sustain on a device without a measured
        rate and with power to spare.
    vector_fraction : mapping of str to float
        e of fp32 products on GPUs: ``"separate"`` units for integers, ``"shared"`` ones (two
        units of which one also takes integers: GA10x, Ada), ``"single"`` (Pascal and before).
    tensor_flop_per_j, vector_flop_per_j : float
        kappa of a chip of 2023: what a joule buys on matrix and on vector units. [flop/J]
    flop_per_j_doubling_years : float
        In which kappa doubles. [years]
    limit_sharpness : float
        n of the smooth minimum of arithmetic and power.
    unhidden_fraction : float
        rho.
    latency_s, dispatch_s : mapping of kind of device to float
        l and h, eager. [s]
    compiled_launch_fraction, compiled_traffic_fraction : float
        What ``torch.compile`` leaves of the launches, and of the traffic of pointwise classes.
    fitted_architectures : frozenset of str
        Chip families whose measurements the constants have seen.
    fitted_kinds : frozenset of str
        Classes of operators whose measurements the constants have seen.
    log_sd, unseen_architecture_log_sd, unseen_kind_log_sd, unmeasured_rate_log_sd : float
        One standard deviation of ln(predicted / measured) on a device left out; what an unseen
        chip family, a step wholly of unseen classes, and a device without a sustained rate add
        (in squares).
    unfitted_device_log_sd : float
        The same for what is no GPU: nothing of it was fitted.
    """

    efficiencies: Mapping[str, Mapping[str, Efficiency]]
    sustained_fraction: Mapping[str, Mapping[str, float]]
    vector_fraction: Mapping[str, float]
    tensor_flop_per_j: float
    vector_flop_per_j: float
    flop_per_j_doubling_years: float
    limit_sharpness: float
    unhidden_fraction: float
    latency_s: Mapping[str, float]
    dispatch_s: Mapping[str, float]
    compiled_launch_fraction: float
    compiled_traffic_fraction: float
    fitted_architectures: frozenset[str]
    fitted_kinds: frozenset[str]
    log_sd: float
    unseen_architecture_log_sd: float
    unseen_kind_log_sd: float
    unmeasured_rate_log_sd: float
    unfitted_device_log_sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """Step times of one job on many devices.

    Attributes
    ----------
    micro_batch_s, backward_s : ndarray of shape (n_devices, n_batches)
        Forward and backward of one micro-batch, and the backward part of it. [s]
    optimizer_s, optimizer_launch_s : ndarray of shape (n_devices,)
        Once per optimizer step, and the part of it that is starting kernels. [s]
    compute_s, memory_s, launch_s : ndarray of shape (n_devices, n_batches)
        What bounds ``micro_batch_s``; they sum to it. [s]
    log_sd : ndarray of shape (n_devices,)
        One standard deviation of ln(error), before any calibration.
    is_extrapolating : ndarray of bool of shape (n_devices,)
        The chip family or the classes of operators were not among the measurements.
    runs_as : tuple of str
        The precision of the large products on each device.
    """

    micro_batch_s: NDArray[np.float64]
    backward_s: NDArray[np.float64]
    optimizer_s: NDArray[np.float64]
    optimizer_launch_s: NDArray[np.float64]
    compute_s: NDArray[np.float64]
    memory_s: NDArray[np.float64]
    launch_s: NDArray[np.float64]
    log_sd: NDArray[np.float64]
    is_extrapolating: NDArray[np.bool_]
    runs_as: tuple[str, ...]


def step_time(
    work: Work, devices: Sequence[Device], micro_batches: ArrayLike, parameters: DeviceParameters
) -> StepColumns:
    """Estimate a training step on each device at each micro-batch.

    Parameters
    ----------
    work : Work
        Operators of one optimizer step over ``work.micro_batch`` samples.
    devices : sequence of Device
        n_devices of them.
    micro_batches : array-like of shape (n_batches,)
        Samples, positive.
    parameters : DeviceParameters

    Raises
    ------
    PlanningError
        If the work has no forward operators, a micro-batch is not positive, or a precision is
        unknown.

    Notes
    -----
    The devices are what is looped over nowhere: 100,000 estimates take well under a second.
    """
    batches = np.atleast_1d(np.asarray(micro_batches, float))
    _check(work, batches)
    table = _OperatorTable.of(work)
    scale = batches / work.micro_batch  # (n_batches,)
    rates = _Rates.of(work, table, devices, parameters)
    forward, backward, optimizer = (
        _phase(table, rates, phase, scale if phase != "optimizer" else np.ones(1))
        for phase in ("forward", "backward", "optimizer")
    )
    compute, memory, launch = (f + b for f, b in zip(forward, backward, strict=True))
    log_sd, is_extrapolating = _uncertainty(work, table, devices, parameters)
    return StepColumns(
        micro_batch_s=compute + memory + launch,
        backward_s=np.sum(backward, axis=0),
        optimizer_s=np.sum(optimizer, axis=0)[:, 0],
        optimizer_launch_s=optimizer[2][:, 0],
        compute_s=compute,
        memory_s=memory,
        launch_s=launch,
        log_sd=log_sd,
        is_extrapolating=is_extrapolating,
        runs_as=tuple(runs_as(device, work.precision) for device in devices),
    )


def peak_flop_per_s(device: Device, precision: str) -> float | None:
    """Return the dense datasheet peak, None where the device does not run the precision."""
    if precision == "fp64":
        return None
    peak: float | None = getattr(
        device, f"{'fp8' if precision == 'int8' else precision}_flop_per_s"
    )
    return peak


def runs_as(device: Device, precision: str) -> str:
    """Return the precision that ``precision`` becomes on the device.

    Raises
    ------
    PlanningError
        If the precision is unknown, or the device has no arithmetic for it at all.

    Examples
    --------
    >>> v100 = Device(name="V100", kind="gpu", memory_bytes=16e9, memory_bytes_per_s=9e11,
    ...               fp32_flop_per_s=15.7e12, fp16_flop_per_s=125e12)
    >>> runs_as(v100, "fp8"), runs_as(v100, "tf32")
    ('fp16', 'fp32')
    """
    if precision not in FALLBACKS:
        raise PlanningError(
            f"unknown precision {precision!r}", hint=f"one of: {', '.join(FALLBACKS)}", exit_code=2
        )
    for candidate in FALLBACKS[precision]:
        if peak_flop_per_s(device, candidate):
            return candidate
    raise PlanningError(
        f"{device.name} has no arithmetic that {precision} could run as",
        hint="leave the device out, or add its peaks to the device sheet",
    )


def sustained_flop_per_s(device: Device, precision: str, parameters: DeviceParameters) -> float:
    """Return what large products sustain: measured where known, else by arithmetic and power.

    A board runs out of power before it runs out of arithmetic (T4, L4, H100 NVL):

        R = ((e P)^-n + (kappa TDP)^-n)^(-1/n),   kappa = kappa_2023 2^((year - 2023) / doubling)

    Raises
    ------
    ValueError
        If the device does not run the precision: ask ``runs_as`` first.
    """
    peak = peak_flop_per_s(device, precision)
    if not peak:
        raise ValueError(f"{device.name} does not run {precision}")
    measured = measured_flop_per_s(device, precision)
    if measured is not None:
        return measured
    is_vector = precision == "fp32"
    if device.kind == "gpu" and vector_units(device) == "single" and device.fp32_flop_per_s:
        # Frameworks accumulate in fp32, which runs at the vector units' rate on such chips.
        is_vector, peak = True, device.fp32_flop_per_s
    arithmetic = peak * parameters.sustained_fraction[device.kind][precision]
    if device.kind == "gpu" and is_vector:
        arithmetic = peak * parameters.vector_fraction[vector_units(device)]
    if not device.tdp_w or device.kind != "gpu":
        return arithmetic
    per_j = parameters.vector_flop_per_j if is_vector else parameters.tensor_flop_per_j
    years = (device.release_year or 2023.0) - 2023.0
    power = device.tdp_w * per_j * 2.0 ** (years / parameters.flop_per_j_doubling_years)
    n = parameters.limit_sharpness
    return float((arithmetic**-n + power**-n) ** (-1.0 / n))


def vector_units(device: Device) -> str:
    """Return how a GPU's fp32 units are built, read off its peaks."""
    if device.tf32_flop_per_s is None and (device.fp16_flop_per_s or 0.0) < 3 * (
        device.fp32_flop_per_s or 1.0
    ):
        return "single"
    if device.tf32_flop_per_s and device.tf32_flop_per_s < 3 * (device.fp32_flop_per_s or 1.0):
        return "shared"
    return "separate"


def measured_flop_per_s(device: Device, precision: str) -> float | None:
    """Return the sheet's sustained rate in proportion of the peaks, None where not measured."""
    peak = peak_flop_per_s(device, precision)
    if precision == "fp32":
        return device.sustained_fp32_flop_per_s
    reference = device.fp16_flop_per_s or device.bf16_flop_per_s
    if device.sustained_fp16_flop_per_s and reference and peak:
        return device.sustained_fp16_flop_per_s * peak / reference
    return None


def _check(work: Work, batches: NDArray[np.float64]) -> None:
    if not any(operator.phase == "forward" for operator in work.operators):
        raise PlanningError(
            "the job has no forward operators to estimate from",
            hint="profile it again, or describe the model (advisor.planners.describe)",
        )
    if batches.ndim != 1 or not np.all(batches > 0):
        raise PlanningError(f"micro-batches must be positive, got {batches.tolist()}", exit_code=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OperatorTable:
    """The operators as columns of shape (n_operators,)."""

    phase: NDArray[np.str_]
    kind: tuple[str, ...]
    dtype: tuple[str, ...]
    count: NDArray[np.float64]
    flop: NDArray[np.float64]
    fixed_bytes: NDArray[np.float64]
    grown_bytes: NDArray[np.float64]

    @classmethod
    def of(cls, work: Work) -> _OperatorTable:
        operators = work.operators
        fixed = np.array([o.fixed_bytes for o in operators], float)
        return cls(
            phase=np.array([o.phase for o in operators]),
            kind=tuple(o.kind for o in operators),
            dtype=tuple(_dtype(o.dtype, o.kind, work) for o in operators),
            count=np.array([o.count for o in operators], float),
            flop=np.array([o.flop for o in operators], float),
            fixed_bytes=fixed,
            grown_bytes=np.array([o.bytes for o in operators], float) - fixed,
        )


def _dtype(dtype: str, kind: str, work: Work) -> str:
    """Return the precision that an operator asks for: products follow the job's."""
    if kind in PRODUCTS:
        return work.precision
    return dtype if dtype in PRECISION_BYTES else "fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """Rates of each operator on each device, shape (n_devices, n_operators) unless said."""

    compute: NDArray[np.float64]
    memory: NDArray[np.float64]
    latency_s: NDArray[np.float64]  # (n_devices,)
    dispatch_s: NDArray[np.float64]  # (n_devices,)
    cores: NDArray[np.float64]  # (n_devices,); 1 for accelerators, which split calls finely
    unhidden: float

    @classmethod
    def of(
        cls,
        work: Work,
        table: _OperatorTable,
        devices: Sequence[Device],
        parameters: DeviceParameters,
    ) -> _Rates:
        pairs = sorted(set(zip(table.kind, table.dtype, strict=True)))
        column = {pair: i for i, pair in enumerate(pairs)}
        index = [column[pair] for pair in zip(table.kind, table.dtype, strict=True)]
        by_pair = np.array(
            [[_pair_rates(d, *p, work, parameters) for p in pairs] for d in devices]
        )
        by_pair = by_pair.reshape(len(devices), len(pairs), 2)
        launches = parameters.compiled_launch_fraction if work.is_compiled else 1.0
        return cls(
            compute=by_pair[:, index, 0],
            memory=by_pair[:, index, 1],
            latency_s=np.array([parameters.latency_s[d.kind] for d in devices]) * launches,
            dispatch_s=np.array([d.call_s or parameters.dispatch_s[d.kind] for d in devices])
            * launches,
            cores=np.array([d.cores or 1.0 if d.kind == "cpu" else 1.0 for d in devices], float),
            unhidden=parameters.unhidden_fraction,
        )


def _pair_rates(
    device: Device, kind: str, dtype: str, work: Work, parameters: DeviceParameters
) -> tuple[float, float]:
    """Return R [flop/s] and W [bytes/s of the recorded traffic] of a class on a device."""
    efficiency = parameters.efficiencies[device.kind][kind]
    runs = runs_as(device, dtype)
    if kind in PRODUCTS:
        rate = sustained_flop_per_s(device, runs, parameters)
    else:  # Pointwise classes run on the vector units, whose rate is the fp32 peak.
        rate = device.fp32_flop_per_s or sustained_flop_per_s(device, runs, parameters) / 16
    memory = device.memory_bytes_per_s * efficiency.memory
    if work.is_compiled and kind not in PRODUCTS:
        memory /= parameters.compiled_traffic_fraction
    return rate * efficiency.compute, memory


def _phase(
    table: _OperatorTable, rates: _Rates, phase: str, scale: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return compute, memory and launch seconds of a phase, each (n_devices, n_batches)."""
    rows = table.phase == phase
    flop_s = table.flop[rows] / rates.compute[:, rows]  # at the recorded batch
    grown_s = table.grown_bytes[rows] / rates.memory[:, rows]
    fixed_s = table.fixed_bytes[rows] / rates.memory[:, rows]
    compute = np.empty((len(flop_s), scale.size))
    memory = np.empty_like(compute)
    for j, s in enumerate(scale):
        idle = _idle_cores(table, rows, rates.cores, s)
        c, m = s * flop_s * idle, (s * grown_s + fixed_s) * idle
        is_compute_bound = c >= m
        t = np.maximum(c, m) + rates.unhidden * np.minimum(c, m)
        compute[:, j] = np.where(is_compute_bound, t, 0.0).sum(axis=1)
        memory[:, j] = np.where(is_compute_bound, 0.0, t).sum(axis=1)
    calls = table.count[rows].sum()
    busy = compute + memory + (calls * rates.latency_s)[:, None]
    total = np.maximum(busy, (calls * rates.dispatch_s)[:, None])
    return compute, memory, total - compute - memory


def _idle_cores(
    table: _OperatorTable, rows: NDArray[np.bool_], cores: NDArray[np.float64], scale: float
) -> NDArray[np.float64]:
    """Return how many times slower a call is than on all cores, (n_devices, n_operators).

    A framework splits a call into pieces of ``GRAIN`` elements at least, so that small calls
    leave cores without work; at 1 for accelerators and for large calls.
    """
    moved = scale * table.grown_bytes[rows] + table.fixed_bytes[rows]
    pieces = np.maximum(moved / table.count[rows] / _FP32_BYTES / GRAIN, 1.0)
    return np.maximum(cores[:, None] / pieces, 1.0)


def _uncertainty(
    work: Work, table: _OperatorTable, devices: Sequence[Device], parameters: DeviceParameters
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    weight = table.flop / max(table.flop.sum(), 1.0) + table.grown_bytes / max(
        table.grown_bytes.sum(), 1.0
    )
    unseen = np.array([kind not in parameters.fitted_kinds for kind in table.kind])
    unseen_share = float(weight[unseen].sum() / max(weight.sum(), 1e-300))
    is_new = np.array([d.architecture not in parameters.fitted_architectures for d in devices])
    is_unfitted = np.array([d.kind != "gpu" for d in devices])
    is_guessed = np.array(
        [measured_flop_per_s(d, runs_as(d, work.precision)) is None for d in devices]
    )
    variance = (
        parameters.log_sd**2
        + np.where(is_new, parameters.unseen_architecture_log_sd**2, 0.0)
        + np.where(is_guessed, parameters.unmeasured_rate_log_sd**2, 0.0)
        + np.where(is_unfitted, parameters.unfitted_device_log_sd**2, 0.0)
        + unseen_share * parameters.unseen_kind_log_sd**2
    )
    return np.sqrt(variance), is_new | (unseen_share > 0.5)
