"""Arithmetic of a device: the precision that runs, and the rate that large products sustain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final

from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Device
from advisor.planners.step.device_parameters import DeviceParameters

LogRates = tuple[float, float, float]

# What a precision runs as where the device lacks it, tried in this order; fp32 ends every chain.
FALLBACKS: Final[Mapping[str, tuple[str, ...]]] = {
    "fp64": ("fp32", "bf16", "fp16"),
    "fp32": ("fp32", "bf16", "fp16"),
    "tf32": ("tf32", "fp32", "bf16", "fp16"),
    "bf16": ("bf16", "fp16", "fp32"),
    "fp16": ("fp16", "bf16", "fp32"),
    "fp8": ("fp8", "bf16", "fp16", "fp32"),
    "int8": ("fp8", "bf16", "fp16", "fp32"),
}


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
        return arithmetic * share_of_rates(device, parameters)
    per_j = parameters.vector_flop_per_j if is_vector else parameters.tensor_flop_per_j
    years = (device.release_year or 2023.0) - 2023.0
    power = device.tdp_w * per_j * 2.0 ** (years / parameters.flop_per_j_doubling_years)
    n = parameters.limit_sharpness
    best = device.best_fp16_flop_per_s
    if best and not is_vector:
        arithmetic = min(arithmetic, best * peak / _half_peak(device))
    limit = (arithmetic**-n + power**-n) ** (-1.0 / n)
    return float(limit * share_of_rates(device, parameters))


def log_rates(device: Device) -> LogRates:
    """Return the logarithms of a device's vector peak, 16-bit peak and memory bandwidth."""
    half = device.fp16_flop_per_s or device.bf16_flop_per_s
    vector = device.fp32_flop_per_s or half or 1.0
    return math.log(vector), math.log(half or vector), math.log(device.memory_bytes_per_s)


def distance_from_fitted(device: Device, fitted: tuple[LogRates, ...]) -> float:
    """Return how far a device's rates lie from the nearest fitted one's, in logarithms."""
    return _distance(log_rates(device), fitted)


@lru_cache(maxsize=4096)  # a search asks of the same few dozen devices in every step it estimates
def _distance(rates: LogRates, fitted: tuple[LogRates, ...]) -> float:
    return min((math.dist(rates, one) for one in fitted), default=0.0)


def share_of_rates(device: Device, parameters: DeviceParameters) -> float:
    """Return the share of its rates that a GPU older than Pascal reaches, 1 for all others."""
    age = generations_before_pascal(device) if device.kind == "gpu" else 0.0
    return float(parameters.kepler_fraction**age)


def generations_before_pascal(device: Device) -> float:
    """Return 1 for Kepler (and what is older), one half for Maxwell, 0 for all others.

    Kepler's units need two independent instructions of a thread at a time, and its boards protect
    their memory within the bandwidth; Maxwell mended the first (NVIDIA, "Maxwell tuning guide",
    section 1.4). It is taken to lie midway, in logarithms: nothing of it was measured.
    """
    return _AGES.get(device.architecture, 0.0)


_AGES: Final[Mapping[str, float]] = {"Fermi": 1.0, "Kepler": 1.0, "Maxwell": 0.5}


def runs_on_matrix_units(device: Device, precision: str) -> bool:
    """Whether large products of a precision that the device has run on its matrix units."""
    if device.kind == "gpu" and vector_units(device) == "single":
        return False
    return precision != "fp32"


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
    if device.sustained_fp16_flop_per_s and peak:
        return device.sustained_fp16_flop_per_s * peak / _half_peak(device)
    return None


def unmeasured(device: Device) -> Device:
    """Return the device with nothing measured on it known: specifications alone."""
    return replace(device, sustained_fp32_flop_per_s=None, sustained_fp16_flop_per_s=None)


def _half_peak(device: Device) -> float:
    """Return the 16-bit peak, infinite where there is none. [flop/s]."""
    return device.fp16_flop_per_s or device.bf16_flop_per_s or math.inf
