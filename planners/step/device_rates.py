"""Arithmetic of a device: the precision that runs, and the rate that large products sustain.

The constants of the step-time equation (``step.device``) are ``DeviceParameters``, fitted by
``advisor train``; ``operator_kind`` says to which of their classes an operator belongs.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import Device, OperatorKind, PlanningError, refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What one class of operators reaches: R = ``compute`` x sustained, W = ``memory`` x peak."""

    compute: float
    memory: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceParameters:
    """The constants of the step-time equation; each names the term that it stands in."""

    efficiencies: Mapping[str, Mapping[str, Efficiency]]  # r and W of the equation
    # e: share of the datasheet peak that large products sustain on a device without a measured
    # rate and with power to spare
    sustained_fraction: Mapping[str, Mapping[str, float]]
    # F_0: what a 3 x 3 convolution on vector units takes besides, as operations of a call
    winograd_fill_flop: float
    # e of fp32 products on GPUs: ``"separate"`` units for integers, ``"shared"`` ones (two units
    # of which one also takes integers: GA10x, Ada), ``"single"`` (Pascal and before)
    vector_fraction: Mapping[str, float]
    # tensor_flop_per_j, vector_flop_per_j: kappa of a chip of 2023: what a joule buys on matrix
    # and on vector units [flop/J]
    tensor_flop_per_j: float
    vector_flop_per_j: float
    flop_per_j_doubling_years: float  # kappa doubles in so many years
    limit_sharpness: float  # n of the smooth minimum of arithmetic and power
    # share of both its rates, of products and of memory, that a Kepler GPU reaches beside later
    # ones
    kepler_fraction: float
    unhidden_fraction: float
    # latency_s, dispatch_s: l and h, eager [s]
    latency_s: Mapping[str, float]
    dispatch_s: Mapping[str, float]
    # engine_call_fraction, host_log_sd: of a recorded script, what a call of the backward pass or
    # of an update takes of one that Python makes; and the deviation of ln(dispatch) over hosts
    # that nobody has seen (``advisor validate recorded`` has the hosts of a suite)
    engine_call_fraction: float
    host_log_sd: float
    # staged_bytes_per_s, link_bytes_per_s: a batch from pageable memory is copied at the first
    # rate, then crosses the link; the second is that of cards whose link is unknown
    staged_bytes_per_s: float
    link_bytes_per_s: float
    # fed_step_s, fed_step_log_sd: what else a step takes that has its batch from a loader, and
    # the deviation of its logarithm over hosts
    fed_step_s: float
    fed_step_log_sd: float
    # widened_fraction, widened_depthwise_fraction: share of their rate in 32 bits that products
    # and depthwise convolutions reach on tensors stored in 16, on devices without matrix units
    widened_fraction: float
    widened_depthwise_fraction: float
    # split_gain, split_s: how much more than its share of all cores a core does alone, and what a
    # call that is split over cores waits for its threads [s]: fitted to steps with one thread and
    # two (lab/experiments/threads.py, which the history keeps)
    split_gain: float
    split_s: float
    # compiled_launch_fraction, compiled_traffic_fraction: what ``torch.compile`` leaves of the
    # launches, and of the traffic of pointwise classes
    compiled_launch_fraction: float
    compiled_traffic_fraction: float
    # chip families whose measurements the constants have seen
    fitted_architectures: frozenset[str]
    # fitted_rates, convolved_rates: ``device_rates.log_rates`` of every device whose measurements
    # the constants have seen, and of those on which they have seen convolutions
    fitted_rates: tuple[tuple[float, float, float], ...]
    convolved_rates: tuple[tuple[float, float, float], ...]
    fitted_kinds: frozenset[str]  # classes of operators whose measurements the constants have seen
    # log_sd, unseen_architecture_log_sd, unseen_kind_log_sd, unmeasured_rate_log_sd: one standard
    # deviation of ln(predicted / measured) on a device left out; what an unseen chip family, a
    # step wholly of unseen classes, and a device without a sustained rate add (in squares)
    log_sd: float
    unseen_architecture_log_sd: float
    unseen_kind_log_sd: float
    unmeasured_rate_log_sd: float
    # what a device's distance from the nearest one fitted adds, for every unit of it
    distance_log_sd: float
    # the same for what is no GPU, and for double precision: nothing of it was fitted
    unfitted_device_log_sd: float


Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]


class Devices(Sequence[Device]):
    """A table of devices: facts as columns, shape (n,), 0 where a device lacks one.

    What is worked out of a table's rows is kept for all that are taken from it: a search asks of
    the same thousands of processors in every step that it estimates.
    """

    def __init__(
        self, devices: Iterable[Device], rows: NDArray[np.int64] | None = None,
        kept: dict[tuple[object, ...], tuple[object, NDArray[Any]]] | None = None,
    ) -> None:  # fmt: skip
        self._table = tuple(devices)
        self._rows = np.arange(len(self._table)) if rows is None else rows
        self._kept = {} if kept is None else kept

    @classmethod
    def of(cls, devices: Sequence[Device]) -> Devices:
        """Return devices as a table."""
        return devices if isinstance(devices, Devices) else cls(devices)

    def take(self, rows: NDArray[np.int64]) -> Devices:
        """Return some rows, which share what is known of the table."""
        return Devices(self._table, self._rows[rows], self._kept)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Device]:
        """Go through the devices."""
        return iter([self._table[row] for row in self._rows.tolist()])

    def __getitem__(self, at: int) -> Device:  # type: ignore[override]
        """Return one device."""
        return self._table[int(self._rows[at])]

    def kept(
        self, key: tuple[object, ...], formula: Callable[[Devices], NDArray[Any]]
    ) -> NDArray[Any]:
        """Return what a formula says of these rows, asked once of the whole table.

        ``key``: its name and what it depends on beside the devices; constants that hold mappings
        by their ``id``: the formula that is kept holds them.
        """
        if key not in self._kept:
            self._kept[key] = formula, formula(Devices(self._table, kept=self._kept))
        return self._kept[key][1][self._rows]

    def fact(self, name: str, other: float = 0.0) -> Floats:
        """Return a number of every device, or another where it has none."""

        def known(whole: Devices) -> Floats:
            values = [getattr(device, name) for device in whole._table]
            return np.array([other if one is None else one for one in values], float)

        return self.kept((name, other), known)

    def word(self, name: str) -> NDArray[np.str_]:
        """Return a word of every device."""
        return self.kept((name,), lambda whole: np.array([getattr(d, name) for d in whole._table]))

    def by_word(self, name: str, values: Mapping[str, float], other: float) -> Floats:
        """Return a number for every device by one of its words."""
        words, place = np.unique(self.word(name), return_inverse=True)
        return np.array([values.get(one, other) for one in words.tolist()], dtype=float)[place]


@lru_cache(maxsize=4096)
def _alone(device: Device) -> Devices:
    """Return the table of one device."""
    return Devices((device,))


# What a precision runs as where the device lacks it, tried in this order; fp32 ends every chain.
FALLBACKS: Final[Mapping[str, tuple[str, ...]]] = {
    "fp64": ("fp64", "fp32", "bf16", "fp16"),
    "fp32": ("fp32", "bf16", "fp16"),
    "tf32": ("tf32", "fp32", "bf16", "fp16"),
    "bf16": ("bf16", "fp16", "fp32"),
    "fp16": ("fp16", "bf16", "fp32"),
    "fp8": ("fp8", "bf16", "fp16", "fp32"),
    "int8": ("fp8", "bf16", "fp16", "fp32"),
    "fp4": ("fp4", "fp8", "bf16", "fp16", "fp32"),
}


def peaks(devices: Devices, precision: str) -> Floats:
    """Return the dense datasheet peaks, 0 where a device does not run the precision."""
    if precision == "fp64":
        return devices.fact("fp32_flop_per_s") * double_shares(devices)
    return devices.fact(f"{'fp8' if precision == 'int8' else precision}_flop_per_s")


def peak_flop_per_s(device: Device, precision: str) -> float | None:
    """Return the peak of one device, None where it does not run the precision."""
    return float(peaks(_alone(device), precision)[0]) or None


_FEW: Final = 0.1
_UNKNOWN_SHARE: Final = 1 / 32  # of a GPU: most have some units for compatibility's sake


def double_shares(devices: Devices) -> Floats:
    """Return the rates of products in double precision over those in single; 0: there is none.

    Examples
    --------
    >>> rtx_3090 = Device(name="RTX-3090", kind="gpu", memory_bytes=24e9, fp64_share=1 / 64,
    ...     memory_bytes_per_s=936e9, fp32_flop_per_s=35.6e12, tf32_flop_per_s=35.6e12)
    >>> 1 / float(double_shares(Devices([rtx_3090]))[0])
    64.0
    """
    kind, known = devices.word("kind"), devices.fact("fp64_share", np.nan)
    # A processor's vectors hold half as many numbers.
    usual = np.select([kind == "cpu", kind == "gpu"], [0.5, _UNKNOWN_SHARE], 0.0)
    return np.where(np.isnan(known), usual, known)


def all_run_as(devices: Devices, precision: str) -> NDArray[np.str_]:
    """Return the precision that ``precision`` becomes on each device.

    Raises PlanningError if the precision is unknown, or a device has no arithmetic for it at all.
    """
    if precision not in FALLBACKS:
        raise refused(f"unknown precision {precision!r}", f"one of: {', '.join(FALLBACKS)}")
    found = devices.kept(("runs as", precision), partial(_run_as, precision=precision))
    if (found == "").any():
        name = devices[int(np.argmax(found == ""))].name
        raise PlanningError(
            f"{name} has no arithmetic that {precision} could run as",
            hint="leave the device out, or add its peaks to the device sheet",
        )
    return found


def _run_as(devices: Devices, precision: str) -> NDArray[np.str_]:
    chain = FALLBACKS[precision]
    return np.select([peaks(devices, one) > 0 for one in chain], chain, "")


def runs_as(device: Device, precision: str) -> str:
    """Return the same of one device.

    Examples
    --------
    >>> v100 = Device(name="V100", kind="gpu", memory_bytes=16e9, memory_bytes_per_s=9e11,
    ...               fp32_flop_per_s=15.7e12, fp16_flop_per_s=125e12)
    >>> runs_as(v100, "fp8"), runs_as(v100, "tf32")
    ('fp16', 'fp32')
    """
    return str(all_run_as(_alone(device), precision)[0])


def sustained(devices: Devices, precision: str, parameters: DeviceParameters) -> Floats:
    """Return what large products sustain: measured where known, else by arithmetic and power.

    A board runs out of power before it runs out of arithmetic (T4, L4, H100 NVL):

        R = ((e P)^-n + (kappa TDP)^-n)^(-1/n),   kappa = kappa_2023 2^((year - 2023) / doubling)

    Of no meaning where a device does not run the precision: ask ``all_run_as`` first.
    """
    measured, peak = measured_rates(devices, precision), peaks(devices, precision)
    if precision == "fp64":
        # Few units that never run out of power; on others as much as single precision takes.
        share = double_shares(devices)
        single = sustained(devices, "fp32", parameters) * share
        found = np.where(share > _FEW, single, peak * shares_of_rates(devices, parameters))
        return np.where(measured > 0, measured, found)
    is_gpu, units = devices.word("kind") == "gpu", vector_units(devices)
    # Frameworks accumulate in fp32, which runs at the vector units' rate on such chips.
    single = devices.fact("fp32_flop_per_s")
    is_narrow = is_gpu & (units == "single") & (single > 0)
    is_vector, peak = is_narrow | (precision == "fp32"), np.where(is_narrow, single, peak)
    # Of fp4 products no measurement is among those fitted: they are taken to reach what fp8 does.
    name = "fp8" if precision == "fp4" else precision
    fractions = {kind: of.get(name, np.nan) for kind, of in parameters.sustained_fraction.items()}
    fraction = devices.by_word("kind", fractions, np.nan)
    of_units = [parameters.vector_fraction.get(one, np.nan) for one in _UNITS]
    on_vector = np.select([units == one for one in _UNITS], of_units)
    arithmetic = peak * np.where(is_gpu & is_vector, on_vector, fraction)
    limit = _limited(devices, arithmetic, is_vector, peaks(devices, precision), parameters)
    is_limited = is_gpu & (devices.fact("tdp_w") > 0)
    found = np.where(is_limited, limit, arithmetic) * shares_of_rates(devices, parameters)
    return np.where(measured > 0, measured, found)


def _limited(
    devices: Devices, arithmetic: Floats, is_vector: Booleans, peak: Floats,
    parameters: DeviceParameters,
) -> Floats:  # fmt: skip
    """Return the smooth minimum of arithmetic and power."""
    per_j = np.where(is_vector, parameters.vector_flop_per_j, parameters.tensor_flop_per_j)
    years = np.where((year := devices.fact("release_year")) > 0, year, 2023.0) - 2023.0
    power = devices.fact("tdp_w") * per_j * 2.0 ** (years / parameters.flop_per_j_doubling_years)
    best = devices.fact("best_fp16_flop_per_s") * peak / half_peaks(devices)
    is_best = (best > 0) & ~is_vector
    arithmetic = np.where(is_best, np.minimum(arithmetic, best), arithmetic)
    n = parameters.limit_sharpness
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((arithmetic**-n + power**-n) ** (-1.0 / n))


def all_sustained(devices: Devices, dtype: str, parameters: DeviceParameters) -> Floats:
    """Return what large products in ``dtype`` sustain, in the precision that it runs as."""
    runs = all_run_as(devices, dtype)
    found = np.empty(len(devices))
    for one in np.unique(runs).tolist():
        there = runs == one
        found[there] = devices.kept(
            ("sustained", one, id(parameters)),
            partial(sustained, precision=one, parameters=parameters),
        )[there]
    return found


def sustained_flop_per_s(device: Device, precision: str, parameters: DeviceParameters) -> float:
    """Return the same of one device in a precision that it runs.

    Raises ValueError if the device does not run the precision: ask ``runs_as`` first.
    """
    if not peak_flop_per_s(device, precision):
        raise ValueError(f"{device.name} does not run {precision}")
    return float(sustained(_alone(device), precision, parameters)[0])


def log_rates(devices: Devices) -> Floats:
    """Return the logarithms of vector peak, 16-bit peak and memory bandwidth, shape (n, 3)."""
    single, half = devices.fact("fp32_flop_per_s"), half_peaks(devices)
    half = np.where(np.isfinite(half), half, 0.0)
    vector = np.where(single > 0, single, np.where(half > 0, half, 1.0))
    rates = [vector, np.where(half > 0, half, vector), devices.fact("memory_bytes_per_s")]
    return np.asarray(np.log(np.stack(rates, axis=1)))


def distances_from_fitted(
    devices: Devices, fitted: tuple[tuple[float, float, float], ...]
) -> Floats:
    """Return how far devices' rates lie from the nearest fitted one's, in logarithms."""
    if not fitted:
        return np.zeros(len(devices))
    apart = log_rates(devices)[:, None, :] - np.array(fitted)
    return np.asarray(np.sqrt(np.square(apart).sum(axis=2)).min(axis=1))


def shares_of_rates(devices: Devices, parameters: DeviceParameters) -> Floats:
    """Return the share of its rates that a GPU older than Maxwell reaches, 1 for all others."""
    return np.asarray(parameters.kepler_fraction ** generations_before_maxwell(devices))


def generations_before_maxwell(devices: Devices) -> Floats:
    """Return 1 for Kepler GPUs (and what is older), 0 for all others.

    Kepler's units need two independent instructions of a thread at a time, and its boards protect
    their memory within the bandwidth. Maxwell's schedulers each feed units of their own (NVIDIA,
    "Maxwell tuning guide", section 1.4.1), as those of Pascal's after it: the same share.
    """
    age = devices.by_word("architecture", _AGES, 0.0)
    return np.asarray(age * (devices.word("kind") == "gpu"))


_AGES: Final[Mapping[str, float]] = {"Fermi": 1.0, "Kepler": 1.0}


def run_on_matrix_units(devices: Devices, precision: NDArray[np.str_]) -> Booleans:
    """Whether large products of a precision that each device has run on its matrix units."""
    is_narrow = (devices.word("kind") == "gpu") & (vector_units(devices) == "single")
    return np.asarray(~is_narrow & (precision != "fp32") & (precision != "fp64"))


_UNITS: Final = ("single", "shared", "separate")


def vector_units(devices: Devices) -> NDArray[np.str_]:
    """Return how GPUs' fp32 units are built, read off their peaks."""
    single, half = devices.fact("fp32_flop_per_s"), devices.fact("fp16_flop_per_s")
    tf32, most = devices.fact("tf32_flop_per_s"), 3 * np.where(single > 0, single, 1.0)
    has_tf32 = tf32 > 0
    return np.select([~has_tf32 & (half < most), has_tf32 & (tf32 < most)], _UNITS[:2], _UNITS[2])


def measured_rates(devices: Devices, precision: str) -> Floats:
    """Return the sheet's sustained rates in proportion of the peaks, 0 where not measured."""
    if precision in ("fp32", "fp64"):
        share = 1.0 if precision == "fp32" else double_shares(devices)
        return np.asarray(devices.fact("sustained_fp32_flop_per_s") * share)
    half = devices.fact("sustained_fp16_flop_per_s")
    return np.asarray(half * peaks(devices, precision) / half_peaks(devices))


def are_measured(devices: Devices, precision: str) -> Booleans:
    """Whether the rate of products is measured in the precision that ``precision`` runs as."""
    runs = all_run_as(devices, precision)
    found = np.zeros(len(devices), dtype=bool)
    for one in np.unique(runs).tolist():
        found |= (runs == one) & (measured_rates(devices, one) > 0)
    return found


def measured_flop_per_s(device: Device, precision: str) -> float | None:
    """Return one device's measured rate, None where it was not measured."""
    return float(measured_rates(_alone(device), precision)[0]) or None


def unmeasured(device: Device) -> Device:
    """Return the device with nothing measured on it known: specifications alone."""
    return replace(device, sustained_fp32_flop_per_s=None, sustained_fp16_flop_per_s=None)


def half_peaks(devices: Devices) -> Floats:
    """Return the 16-bit peaks, infinite where there is none. [flop/s]."""
    half, brain = devices.fact("fp16_flop_per_s"), devices.fact("bf16_flop_per_s")
    return np.select([half > 0, brain > 0], [half, brain], np.inf)


# Of each kind of operators: the first whose pattern matches counts.
_PATTERNS: Final = tuple(
    (cast("OperatorKind", kind), re.compile("|".join(patterns)))
    for kind, patterns in tomllib.loads(
        Path(__file__).with_name("operators.toml").read_text("utf-8")
    ).items()
)


@cache
def convolution_kind(shapes: str, flop: float) -> OperatorKind:
    """Return the class of a convolution by the shapes of its operands.

    - ``"depthwise"``: grouped, fewer than ``_WIDE_GROUP`` channels a group. Each group is too
      narrow for matrix units and reads nearly as much as it computes.
    - ``"winograd"``: 3 x 3 of stride one, which libraries compute by minimal filtering with up to
      2.25 times fewer products (A. Lavin, S. Gray, CVPR 2016, section 4.1).
    - ``"convolution"``: any other, and where the shapes do not say.

    ``shapes``: of the operands as the collector writes them: ``"8x64x56x56,64x64x3x3"``, or with
    the gradient in front; ``flop``: of one call forward; of a gradient's call any number [flop].

    Examples
    --------
    >>> convolution_kind("8x32x56x56,32x1x3x3", 0.0)
    'depthwise'
    >>> convolution_kind("8x64x56x56,64x64x3x3", 2.0 * 8 * 56**2 * 64 * 64 * 9)
    'winograd'
    >>> convolution_kind("8x256x28x28,256x128x3x3", 0.0)
    'convolution'
    """
    told = _operands(shapes)
    if told is None:
        return "convolution"
    gradients, data, weight = told
    if data[1] != weight[1]:
        is_narrow = weight[1] < _WIDE_GROUP
        return "depthwise" if _is_grouped(*told) and is_narrow else "convolution"
    if weight[2:] != [3, 3]:
        return "convolution"
    if gradients:
        return "winograd" if gradients[0][2:] == data[2:] else "convolution"
    made = flop / (2.0 * math.prod(weight[1:]))
    kept = data[0] * weight[0] * math.prod(data[2:])
    return "winograd" if made > _UNPADDED * kept else "convolution"


def is_of_wide_groups(shapes: str) -> bool:
    """Whether a convolution's gradient is of one in groups as wide as products need.

    >>> is_of_wide_groups("8x256x28x28,8x256x28x28,256x64x3x3")
    True
    >>> is_of_wide_groups("8x64x28x28,8x64x28x28,64x64x3x3")
    False
    """
    told = _operands(shapes)
    return told is not None and told[2][1] >= _WIDE_GROUP and _is_grouped(*told)


_Sizes = list[int]


def _operands(shapes: str) -> tuple[list[_Sizes], _Sizes, _Sizes] | None:
    """Return the sizes of a gradient, if there is one, the data and the weight."""
    sizes = [[int(n) for n in one.split("x")] for one in shapes.split(",") if _SIZES.match(one)]
    maps = [one for one in sizes if len(one) == len(sizes[0]) >= 3]
    if len(maps) < 2:
        return None
    *gradients, data, weight = maps[:3]
    return gradients, data, weight


def _is_grouped(gradients: list[_Sizes], data: _Sizes, weight: _Sizes) -> bool:
    # A transposed one has its channels in front of the weight, (in, out / groups, ...). From the
    # operands of a forward call alone it is told by having few channels more inside.
    if data[1] == weight[1]:
        return False
    return gradients[0][1] == weight[0] if gradients else data[1] >= 8 * weight[1]


# Channels of a group from which its products fill a matrix unit's tile, which has 16 to 32 columns
# (NVIDIA, "CUDA C++ Programming Guide", warp matrix functions; cuDNN's kernels take 32).
_WIDE_GROUP: Final = 32
# What is left of a small image by a 3 x 3 filter of stride one without padding, at least (a
# stride of two leaves a quarter).
_UNPADDED: Final = 0.5
_SIZES: Final = re.compile(r"\d+(x\d+)+$")


@cache
def kernels_in_call(name: str, shapes: str) -> float:
    """Return how many kernels one recorded call starts, one after another: 1 but for recurrence.

    A recurrent layer is one call of oneDNN's for all time steps, but each step waits for the last.
    The products with the input run for all steps at once; what is left of a step is one product
    with the hidden state and one fused kernel for the gates (J. Appleyard, T. Kocisky, P. Blunsom,
    "Optimizing Performance of Recurrent Neural Networks on GPUs", 2016, section 3). A packed
    batch has no time axis: 1. So are cuDNN's calls: what is recorded on a GPU is anchored there.

    ``shapes``: of the operands as the collector writes them: first the input, (time steps, batch,
    ...).

    Examples
    --------
    >>> kernels_in_call("aten::mkldnn_rnn_layer", "35x20x128,512x128,512x128,512,512,20x128")
    70.0
    """
    if not name.split("::")[-1].startswith("mkldnn_rnn_layer"):
        return 1.0
    steps = _SEQUENCES.match(shapes)
    return float(_KERNELS_PER_TIME_STEP * int(steps[1])) if steps else 1.0


@cache
def kernels_of_layers(shapes: str, flop: float, batch: int) -> float:
    """Return how many kernels one call starts that runs all layers of a recurrence, as cuDNN's.

    Those of ``kernels_in_call`` for each layer. As many layers as the operations are times those
    of the second, whose weights follow the first one's; of the input's first two sizes one is the
    batch, the other the time steps. A packed batch has no time axis: 1.

    ``flop``: of the call's forward products [flop]; ``batch``: samples of the call.

    Examples
    --------
    >>> kernels_of_layers("35x20x128,512x128,512x128,512,512,512x128,512x128,512", 367001600, 20)
    140.0
    """
    sizes = [[int(n) for n in one.split("x")] for one in shapes.split(",") if one]
    weights = [math.prod(one) for one in sizes[1:] if len(one) == 2]
    if len(weights) < 2 or len(sizes[0]) != 3:
        return 1.0
    data = sizes[0]
    of_sample = flop / (2 * data[0] * data[1])
    later = sum(weights[2:4]) or sum(weights[:2])
    layers = 1 + max(round((of_sample - sum(weights[:2])) / later), 0)
    steps = data[1] if data[0] == batch else data[0]
    return float(_KERNELS_PER_TIME_STEP * steps * layers)


def fused_calls(calls: Mapping[str, float], products: Mapping[str, float]) -> dict[str, float]:
    """Return how many of each pass's calls are left where recurrent layers are fused, as a share.

    A layer whose time steps were recorded operator by operator (a GRU on a processor) has one
    product forward for each time step, and one for the input of all; libraries of accelerators
    run that and one kernel for the gates. Backward there are two products for each: the gradient
    of the hidden state waits for the next step's, with its gates, those of the weights run at once
    for all steps: two kernels a time step again (Appleyard et al., section 3).

    ``calls``, ``products``: by phase, all recorded calls of such layers, and the products among
    them.

    Examples
    --------
    >>> fused_calls({"forward": 300.0, "backward": 500.0}, {"forward": 30.0, "backward": 60.0})
    {'forward': 0.2, 'backward': 0.12}
    """
    each = {"forward": float(_KERNELS_PER_TIME_STEP), "backward": _KERNELS_PER_TIME_STEP / 2}
    return {
        phase: min(each[phase] * products[phase] / calls[phase], 1.0)
        for phase in each
        if calls.get(phase) and products.get(phase)
    }


_SEQUENCES: Final = re.compile(r"(\d+)x\d+x\d+(,|$)")
_KERNELS_PER_TIME_STEP: Final = 2


def operator_kind(name: str) -> OperatorKind:
    """Return the class of an operator by its framework name.

    Classes of the device model by the framework's operator names.

    The names are PyTorch's dispatcher names (``"aten::mm"``), also without the name space and with
    an overload (``"mm.default"``). What is not known by name is ``"other"``: it counts by its
    traffic.

    Examples
    --------
    >>> operator_kind("aten::convolution_backward"), operator_kind("aten::_foreach_add_.List")
    ('convolution', 'optimizer')
    """
    bare = name.split("::")[-1].split(".")[0].lower()
    for kind, pattern in _PATTERNS:
        if pattern.search(bare):
            return kind
    return "other"
