"""Arithmetic of a device: the precision that runs, and the rate that large products sustain."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Final

from advisor.planners.core import Device, OperatorKind, PlanningError, refused

# ------------------------------------------------------------------------------------------
# The constants of the step-time equation (``step.device``), fitted by ``advisor train``.


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
    # ones; Maxwell its root
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
    # handed_bytes_per_s, handed_log_sd: the same script's batches reach the device at so many
    # bytes a second, taken from a loader and copied from pageable memory; the deviation of its
    # logarithm over hosts
    handed_bytes_per_s: float
    handed_log_sd: float
    # widened_fraction, widened_depthwise_fraction: share of their rate in 32 bits that products
    # and depthwise convolutions reach on tensors stored in 16, on devices without matrix units
    widened_fraction: float
    widened_depthwise_fraction: float
    # split_gain, split_s: how much more than its share of all cores a core does alone, and what a
    # call that is split over cores waits for its threads [s]: fitted to steps with one thread and
    # two (``python -m advisor.lab.experiments.threads``)
    split_gain: float
    split_s: float
    # compiled_launch_fraction, compiled_traffic_fraction: what ``torch.compile`` leaves of the
    # launches, and of the traffic of pointwise classes
    compiled_launch_fraction: float
    compiled_traffic_fraction: float
    # chip families whose measurements the constants have seen
    fitted_architectures: frozenset[str]
    # ``device_rates.log_rates`` of every device whose measurements the constants have seen
    fitted_rates: tuple[tuple[float, float, float], ...]
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


LogRates = tuple[float, float, float]

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


def peak_flop_per_s(device: Device, precision: str) -> float | None:
    """Return the dense datasheet peak, None where the device does not run the precision."""
    if precision == "fp64":
        return (device.fp32_flop_per_s or 0.0) * double_share(device) or None
    peak: float | None = getattr(
        device, f"{'fp8' if precision == 'int8' else precision}_flop_per_s"
    )
    return peak


_FEW: Final = 0.1
_UNKNOWN_SHARE: Final = 1 / 32  # of a GPU: most have some units for compatibility's sake


def double_share(device: Device) -> float:
    """Return the rate of products in double precision over that in single; 0 where there is none.

    Examples
    --------
    >>> rtx_3090 = Device(name="RTX-3090", kind="gpu", memory_bytes=24e9, fp64_share=1 / 64,
    ...     memory_bytes_per_s=936e9, fp32_flop_per_s=35.6e12, tf32_flop_per_s=35.6e12)
    >>> 1 / double_share(rtx_3090)
    64.0
    """
    if device.fp64_share is not None:
        return device.fp64_share
    if device.kind == "cpu":
        return 0.5  # vectors of half as many numbers
    return _UNKNOWN_SHARE if device.kind == "gpu" else 0.0


def runs_as(device: Device, precision: str) -> str:
    """Return the precision that ``precision`` becomes on the device.

    Raises PlanningError if the precision is unknown, or the device has no arithmetic for it at
    all.

    Examples
    --------
    >>> v100 = Device(name="V100", kind="gpu", memory_bytes=16e9, memory_bytes_per_s=9e11,
    ...               fp32_flop_per_s=15.7e12, fp16_flop_per_s=125e12)
    >>> runs_as(v100, "fp8"), runs_as(v100, "tf32")
    ('fp16', 'fp32')
    """
    if precision not in FALLBACKS:
        raise refused(f"unknown precision {precision!r}", f"one of: {', '.join(FALLBACKS)}")
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

    Raises ValueError if the device does not run the precision: ask ``runs_as`` first.
    """
    peak = peak_flop_per_s(device, precision)
    if not peak:
        raise ValueError(f"{device.name} does not run {precision}")
    measured = measured_flop_per_s(device, precision)
    if measured is not None:
        return measured
    if precision == "fp64":
        # Few units that never run out of power; on others as much as single precision takes.
        single = sustained_flop_per_s(device, "fp32", parameters) * double_share(device)
        return single if double_share(device) > _FEW else peak * share_of_rates(device, parameters)
    is_vector = precision == "fp32"
    if device.kind == "gpu" and vector_units(device) == "single" and device.fp32_flop_per_s:
        # Frameworks accumulate in fp32, which runs at the vector units' rate on such chips.
        is_vector, peak = True, device.fp32_flop_per_s
    # Of fp4 products no measurement is among those fitted: they are taken to reach what fp8 does.
    kind = "fp8" if precision == "fp4" else precision
    arithmetic = peak * parameters.sustained_fraction[device.kind][kind]
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
    return precision not in ("fp32", "fp64")


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
    if precision in ("fp32", "fp64"):
        share = 1.0 if precision == "fp32" else double_share(device)
        return (device.sustained_fp32_flop_per_s or 0.0) * share or None
    if device.sustained_fp16_flop_per_s and peak:
        return device.sustained_fp16_flop_per_s * peak / _half_peak(device)
    return None


def unmeasured(device: Device) -> Device:
    """Return the device with nothing measured on it known: specifications alone."""
    return replace(device, sustained_fp32_flop_per_s=None, sustained_fp16_flop_per_s=None)


def _half_peak(device: Device) -> float:
    """Return the 16-bit peak, infinite where there is none. [flop/s]."""
    return device.fp16_flop_per_s or device.bf16_flop_per_s or math.inf


# ------------------------------------------------------------------------------------------
# Classes of the device model by the framework's operator names.
#
# The names are PyTorch's dispatcher names (``"aten::mm"``), also without the name space and with
# an overload (``"mm.default"``). What is not known by name is ``"other"``: it counts by its
# traffic.


# First match wins. Views move no data, so that they cost neither traffic nor a launch.
_PATTERNS: Final[tuple[tuple[OperatorKind, str], ...]] = (
    ("attention", r"attention|flash_attn|efficient_attn|fmha"),
    ("convolution", r"conv(olution|_transpose)?(\d?d)?(_|$)|mkldnn_convolution|thnn_conv"),
    ("recurrent", r"(lstm|gru|rnn)(_|$|cell|layer)|_thnn_fused|mkldnn_rnn"),
    ("matmul", r"^(_?scaled_)?(mm|addmm|bmm|baddbmm|addbmm|matmul|linear|dot|mv|addmv|einsum)"
     r"|_int_mm|grouped_mm|tensordot|mkldnn_linear|_trilinear|bilinear$"),
    ("embedding", r"embedding|index_select|^gather|^index$|index_put|scatter|index_add|take"),
    ("normalisation", r"batch_norm|layer_norm|group_norm|instance_norm|rms_norm|local_response"),
    ("optimizer", r"^_?fused_(adam|sgd|adagrad)|^_foreach|adamw?_?$|sgd_?$|addcdiv|addcmul"),
    ("reduction", r"softmax|^(sum|mean|var|std|norm|linalg_vector_norm|max|min|amax|amin|argmax"
     r"|argmin|any|all|cumsum|logsumexp|prod|topk|sort|nll_loss|cross_entropy|median)"
     r"|pool|mse_loss|kl_div|smooth_l1"),
    ("copy", r"copy|clone|contiguous|^_?to$|^_to_copy|^cat$|^_cat$|concat|stack|pad|roll|repeat"
     r"|flip|^(zero|fill|zeros|ones|full|empty)|upsample|interpolate|fold|tril|triu|split_with"),
    ("elementwise", r"^(add|sub|mul|div|neg|exp|log|sqrt|rsqrt|pow|relu|gelu|silu|sigmoid|tanh"
     r"|threshold|dropout|native_dropout|where|masked|clamp|abs|erf|cos|sin|hardtanh|hardswish"
     r"|elu|leaky|bernoulli|eq|ne|lt|gt|le|ge|bitwise|logical|lerp|reciprocal|maximum|minimum"
     r"|sign|floor|round|prelu|mish|softplus|rand|normal|uniform|remainder|square|addc)"),
)  # fmt: skip
_COMPILED: Final = tuple((kind, re.compile(pattern)) for kind, pattern in _PATTERNS)


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

    Examples
    --------
    >>> operator_kind("aten::convolution_backward"), operator_kind("aten::_foreach_add_.List")
    ('convolution', 'optimizer')
    """
    bare = name.split("::")[-1].split(".")[0].lower()
    for kind, pattern in _COMPILED:
        if pattern.search(bare):
            return kind
    return "other"
