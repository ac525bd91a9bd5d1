"""The constants of the step-time equation (``step.device``), fitted by ``advisor train``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
        kappa doubles in so many years.
    limit_sharpness : float
        n of the smooth minimum of arithmetic and power.
    kepler_fraction : float
        Share of both its rates, of products and of memory, that a Kepler GPU reaches beside later
        ones; Maxwell its root.
    unhidden_fraction : float
        rho.
    latency_s, dispatch_s : mapping of kind of device to float
        l and h, eager. [s]
    split_gain, split_s : float
        How much more than its share of all cores a core does alone, and what a call that is split
        over cores waits for its threads [s]: fitted to steps with one thread and two
        (``python -m benchmarks.experiments.threads``).
    compiled_launch_fraction, compiled_traffic_fraction : float
        What ``torch.compile`` leaves of the launches, and of the traffic of pointwise classes.
    fitted_architectures : frozenset of str
        Chip families whose measurements the constants have seen.
    fitted_rates : tuple of (float, float, float)
        ``device_rates.log_rates`` of every device whose measurements the constants have seen.
    fitted_kinds : frozenset of str
        Classes of operators whose measurements the constants have seen.
    log_sd, unseen_architecture_log_sd, unseen_kind_log_sd, unmeasured_rate_log_sd : float
        One standard deviation of ln(predicted / measured) on a device left out; what an unseen
        chip family, a step wholly of unseen classes, and a device without a sustained rate add
        (in squares).
    distance_log_sd : float
        What a device's distance from the nearest one fitted adds, for every unit of it.
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
    kepler_fraction: float
    unhidden_fraction: float
    latency_s: Mapping[str, float]
    dispatch_s: Mapping[str, float]
    split_gain: float
    split_s: float
    compiled_launch_fraction: float
    compiled_traffic_fraction: float
    fitted_architectures: frozenset[str]
    fitted_rates: tuple[tuple[float, float, float], ...]
    fitted_kinds: frozenset[str]
    log_sd: float
    unseen_architecture_log_sd: float
    unseen_kind_log_sd: float
    unmeasured_rate_log_sd: float
    distance_log_sd: float
    unfitted_device_log_sd: float
