"""Time of one training step on a device: a roofline over the operators of the step.

Every operator takes the larger of its arithmetic and its memory traffic, plus the part of the
smaller one that the kernel cannot hide; the device starts kernels no faster than the host hands
them over:

    t_k = max(C_k, M_k) + rho min(C_k, M_k) + n_k l
    C_k = (F_k + n_k F_0) / R,  M_k = B_k / W
    t   = max(sum_k t_k, sum_k n_k h)

A recorded script's calls are started by a host that nobody has seen: h is log-normal around the
median that the work has (``Work.call_s``) on a usual host, over the speed of a core of this one,
with deviation ``host_log_sd``; half of that where a call was measured there. What a phase takes is
exp E[ln t], and the deviation of ln t over hosts stands in ``StepColumns.host_log_sd``. Python
makes the calls of the forward pass one by one; those of the backward pass come from the
framework's engine, those of the update from its lists, and those of a recurrent layer's time steps
from a library, at ``engine_call_fraction`` of h.
Where such a script takes its batches from a loader, they reach the device before the pass. From
pageable memory a batch is copied into a pinned buffer of the driver's first, then over the link;
the host waits, and so does the device for the host to start anew:

    I (1 / S + 1 / L) + min(p / 8, 1) f

Loading processes hand a batch over by a queue and a socket, and hold cores that the loop and
autograd's engine wait for whenever they wake; a loop that loads inline does neither.

From pinned memory it is I / L; where the copy is queued besides (``non_blocking``), the host goes
on, and the device copies in the order of its stream: busy with it, as with an operator (CUDA C++
Programming Guide, 3.2.8.5, "Streams").

On a processor C and M are those of all its cores. A call of few elements leaves cores idle
(``_idle_cores``), and one that is split waits n_k s for its threads to meet.

| here                    | paper | meaning, unit                                              |
|-------------------------|-------|------------------------------------------------------------|
| ``flop``                | F     | operations of all calls of an operator [flop]              |
| ``bytes``               | B     | traffic of all calls; the activations grow with the batch  |
| rate of products        | R     | sustained products x efficiency of the class [flop/s]      |
| rate of memory          | W     | memory bandwidth x efficiency of the class [bytes/s]       |
| ``count``               | n     | calls                                                      |
| ``winograd_fill_flop``  | F_0   | of a 3 x 3 convolution on vector units: what idles while   |
|                         |       | few tiles fill a card, whatever the batch; 0 of all others |
| ``latency_s``           | l     | what a call takes on the device however small [s]          |
| ``dispatch_s``          | h     | what a call takes on the host [s]                          |
| a batch's inputs        | I     | what the loader hands over for a micro-batch [bytes]       |
| ``staged_bytes_per_s``  | S     | rate of a core's copy into the driver's buffer [bytes/s]   |
| ``host_bytes_per_s``    | L     | rate of the link from pinned memory [bytes/s]              |
| ``loaders``             | p     | loading processes; 0 where the loop loads inline           |
| ``fed_step_s``          | f     | what eight or more of them add to a step [s]               |
| ``unhidden_fraction``   | rho   | 0: perfect overlap, 1: none                                |
| ``split_s``             | s     | what a call split over cores waits for its threads [s]     |

A constant time per call is the same law as a size-dependent efficiency x / (x + R l) in the
operations x of the call, so that ``t(micro_batch)`` is t0 + t1 x micro_batch up to the maxima.

Sources: S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009, eq. 1; the
constants are fitted by ``advisor train device-model`` and come in as ``DeviceParameters``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import (
    PRECISION_BYTES,
    Device,
    OperatorKind,
    Operators,
    PlanningError,
    Work,
    refused,
)
from advisor.planners.step.device_rates import (
    DeviceParameters,
    Devices,
    all_run_as,
    all_sustained,
    are_measured,
    distances_from_fitted,
    run_on_matrix_units,
    shares_of_rates,
    vector_units,
)

Floats = NDArray[np.float64]

KINDS: Final[tuple[str, ...]] = get_args(OperatorKind)
# Products run in the precision that the job asks for; the other classes keep their tensors' type.
PRODUCTS: Final = frozenset({"matmul", "convolution", "winograd", "attention", "recurrent"})

_CONVOLUTIONS: Final = frozenset({"convolution", "winograd"})
_STORED_HALF: Final = frozenset({"fp16", "bf16", "fp8"})


# PyTorch gives a thread no fewer elements than this (ATen/Parallel.h, GRAIN_SIZE).
GRAIN: Final = 32_768
_FP32_BYTES: Final = 4.0
_LOADERS: Final = 8  # processes of the loader that ``fed_step_s`` was fitted to


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """Step times of one job on many devices."""

    # micro_batch_s, backward_s: (n_devices, n_batches); forward and backward of one micro-batch,
    # and the backward part of it [s]
    micro_batch_s: NDArray[np.float64]
    backward_s: NDArray[np.float64]
    # optimizer_s, optimizer_launch_s: (n_devices,); once per optimizer step, and the part of it
    # that is starting kernels [s]
    optimizer_s: NDArray[np.float64]
    optimizer_launch_s: NDArray[np.float64]
    # compute_s, memory_s, launch_s, copy_s: (n_devices, n_batches); what bounds
    # ``micro_batch_s``; they sum to it [s]
    compute_s: NDArray[np.float64]
    memory_s: NDArray[np.float64]
    launch_s: NDArray[np.float64]
    copy_s: NDArray[np.float64]
    # (n_devices, n_batches); of ``micro_batch_s``, how long the host has nothing to start [s]
    idle_s: NDArray[np.float64]
    # (n_devices,); one standard deviation of ln(error), before any calibration
    log_sd: NDArray[np.float64]
    # (n_devices, n_batches); what not knowing the host that starts the calls adds to ln(step)
    host_log_sd: NDArray[np.float64]
    # (n_devices,); the chip family or the classes of operators were not among the measurements
    is_extrapolating: NDArray[np.bool_]


def step_time(
    work: Work, devices: Sequence[Device], micro_batches: ArrayLike, parameters: DeviceParameters,
    host_speed: ArrayLike = 1.0,
) -> StepColumns:  # fmt: skip
    """Estimate a training step on each device at each micro-batch.

    ``work``: operators of one optimizer step over ``work.micro_batch`` samples; ``micro_batches``:
    (n_batches,); samples, positive; ``host_speed``: (n_devices,); of one core of each device's
    host over that of the usual one, which starts a recorded script's calls.

    Raises PlanningError if the work has no forward operators, a micro-batch is not positive, or a
    precision is unknown.
    """
    batches, devices = np.atleast_1d(np.asarray(micro_batches, float)), Devices.of(devices)
    _check(work, batches)
    scale = batches / work.micro_batch  # (n_batches,)
    rates = _Rates.of(work, devices, parameters, np.asarray(host_speed, float))
    phases = [
        _phase(work.operators, rates, phase, scale if phase != "optimizer" else np.ones(1))
        for phase in ("forward", "backward", "optimizer")
    ]
    forward, backward, optimizer = (parts for parts, *_ in phases)
    compute, memory, launch, copy = (f + b for f, b in zip(forward, backward, strict=True))
    on_hosts = phases[0][1] + phases[1][1] + phases[2][1]
    starting_s = phases[0][2] + phases[1][2]
    micro_batch_s = compute + memory + launch + copy
    log_sd, is_extrapolating = _uncertainty(work, devices, parameters)
    return StepColumns(
        micro_batch_s=micro_batch_s,
        backward_s=np.sum(backward, axis=0),
        optimizer_s=np.sum(optimizer, axis=0)[:, 0],
        optimizer_launch_s=optimizer[2][:, 0],
        compute_s=compute,
        memory_s=memory,
        launch_s=launch,
        copy_s=copy,
        idle_s=np.maximum(micro_batch_s - copy - starting_s, 0.0),
        log_sd=log_sd,
        host_log_sd=_over_hosts(on_hosts)[1],
        is_extrapolating=is_extrapolating,
    )


def _check(work: Work, batches: NDArray[np.float64]) -> None:
    if "forward" not in work.operators.phase:
        raise PlanningError(
            "the job has no forward operators to estimate from",
            hint="profile it again, or describe the model (advisor.planners.step.describe)",
        )
    if batches.ndim != 1 or not np.all(batches > 0):
        raise refused(f"micro-batches must be positive, got {batches.tolist()}")


def _dtype(dtype: str, kind: str, work: Work) -> str:
    """Return the precision that an operator asks for: products follow the job's.

    PyTorch lets convolutions in 32 bits run as TF32 where a device has it, and products not,
    unless the script says otherwise (``torch.backends.cudnn.allow_tf32``): so does a recording.
    """
    if kind in _CONVOLUTIONS and work.precision == "fp32" and work.call_s is not None:
        return "tf32"
    if kind in PRODUCTS:
        return work.precision
    return dtype if dtype in PRECISION_BYTES else "fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """Rates of each operator on each device, shape (n_devices, n_operators) unless said."""

    compute: NDArray[np.float64]
    memory: NDArray[np.float64]
    fill_s: NDArray[np.float64]  # of a call, whatever its size [s]
    latency_s: NDArray[np.float64]  # (n_devices,)
    dispatch_s: NDArray[np.float64]  # (n_devices,)
    host_log_sd: NDArray[np.float64]  # (n_devices,); of ``dispatch_s``
    # copy_s, fed_s: (n_devices,); to copy a recorded micro-batch to the device, and what loading
    # processes add to a step; the copy may be queued behind the device's work
    copy_s: NDArray[np.float64]
    fed_s: NDArray[np.float64]
    fed_log_sd: float
    is_queued: bool
    engine_share: NDArray[np.float64]  # (n_devices,); of it, for calls that Python does not make
    cores: NDArray[np.float64]  # (n_devices,); 1 for accelerators, which split calls finely
    is_cpu: NDArray[np.bool_]  # (n_devices,)
    unhidden: float
    split_gain: float
    split_s: float

    @classmethod
    def of(
        cls, work: Work, devices: Devices, parameters: DeviceParameters,
        host_speed: NDArray[np.float64],
    ) -> _Rates:  # fmt: skip
        asked = [
            (kind, _dtype(dtype, kind, work))
            for kind, dtype in zip(work.operators.kind, work.operators.dtype, strict=True)
        ]
        pairs = tuple(sorted(set(asked)))
        column = {pair: i for i, pair in enumerate(pairs)}
        index = [column[pair] for pair in asked]
        by_pair = np.stack([
            devices.kept(
                ("rates", kind, dtype, work.is_compiled, id(parameters)),
                partial(_class_rates, kind=kind, dtype=dtype, is_compiled=work.is_compiled,
                        parameters=parameters),
            ).T
            for kind, dtype in pairs
        ])  # fmt: skip
        launches = parameters.compiled_launch_fraction if work.is_compiled else 1.0
        is_cpu, call_s = devices.word("kind") == "cpu", devices.fact("call_s")
        # A recorded script's calls are started by a host whose speed nobody measured.
        is_recorded = ~is_cpu & (work.call_s is not None)
        usual_s = devices.by_word("kind", parameters.dispatch_s, np.nan)
        # A small call that was measured on the host says how fast its Python is.
        slower = np.broadcast_to(1.0 / np.where(is_cpu, 1.0, host_speed), call_s.shape).copy()
        np.divide(call_s, usual_s, out=slower, where=(call_s > 0) & (usual_s > 0))
        known = 0.5 if work.is_host_known else np.where(call_s > 0, 0.5, 1.0)
        if work.call_s:
            usual_s = np.where(is_cpu, usual_s, work.call_s)
        busy = min(work.loaders, _LOADERS) / _LOADERS
        return cls(
            compute=by_pair[index, 0].T,
            memory=by_pair[index, 1].T,
            fill_s=by_pair[index, 2].T,
            latency_s=devices.by_word("kind", parameters.latency_s, np.nan) * launches,
            dispatch_s=np.where(is_recorded | (call_s > 0), usual_s * slower, usual_s) * launches,
            host_log_sd=np.where(is_recorded, parameters.host_log_sd * known, 0.0),
            copy_s=np.where(is_recorded, copy_s(work, devices, parameters), 0.0),
            fed_s=np.where(is_recorded, parameters.fed_step_s * busy * slower, 0.0),
            fed_log_sd=parameters.fed_step_log_sd,
            is_queued=work.is_pinned and work.is_queued,
            engine_share=np.where(is_recorded, parameters.engine_call_fraction, 1.0),
            cores=np.where(is_cpu, np.maximum(devices.fact("cores"), 1.0), 1.0),
            is_cpu=is_cpu,
            unhidden=parameters.unhidden_fraction,
            split_gain=parameters.split_gain,
            split_s=parameters.split_s,
        )


def copy_s(work: Work, devices: Devices, parameters: DeviceParameters) -> Floats:
    """Return what it takes to copy the work's micro-batch to each device [s]."""
    link = devices.fact("host_bytes_per_s")
    each_s = 1.0 / np.where(link > 0, link, parameters.link_bytes_per_s)
    if not work.is_pinned:
        each_s = each_s + 1.0 / parameters.staged_bytes_per_s
    return np.asarray(work.micro_batch * work.input_bytes_per_sample * each_s, float)


def _class_rates(
    devices: Devices, kind: str, dtype: str, is_compiled: bool, parameters: DeviceParameters
) -> Floats:
    """Return R [flop/s], W [bytes/s of the recorded traffic], F_0 / R [s] of a class, (n, 3)."""
    runs, on_gpu = all_run_as(devices, dtype), devices.word("kind") == "gpu"
    products = all_sustained(devices, dtype, parameters)
    compute, memory = _efficiencies(devices, kind, parameters)
    if kind in _CONVOLUTIONS:
        # Matrix units take a 3 x 3 convolution as a product; only vector units gain by Winograd's.
        on_matrix = _efficiencies(devices, "matrix_convolution", parameters)
        is_matrix = run_on_matrix_units(devices, runs)
        compute, memory = (
            np.where(is_matrix, there, usual)
            for there, usual in zip(on_matrix, (compute, memory), strict=True)
        )
    rate = products
    if kind not in PRODUCTS:  # Pointwise classes run on the vector units: the fp32 peak.
        single = devices.fact("fp32_flop_per_s")
        rate = np.where(single > 0, single, products / 16)
    rate = rate * _widened(devices, kind, dtype, parameters) * compute
    if kind not in PRODUCTS - _CONVOLUTIONS:
        is_convolved = kind in _CONVOLUTIONS
        double = _DOUBLE_CONVOLUTION * products if is_convolved else np.minimum(rate, products)
        rate = np.where((runs == "fp64") & on_gpu, double, rate)
    memory = devices.fact("memory_bytes_per_s") * memory * shares_of_rates(devices, parameters)
    if is_compiled and kind not in PRODUCTS:
        memory = memory / parameters.compiled_traffic_fraction
    is_filtered = on_gpu & (kind == "winograd") & ~run_on_matrix_units(devices, runs)
    fill_s = np.where(is_filtered & (runs != "fp64"), parameters.winograd_fill_flop / rate, 0.0)
    return np.stack([rate, memory, fill_s], axis=1)


def _efficiencies(
    devices: Devices, kind: str, parameters: DeviceParameters
) -> tuple[Floats, Floats]:
    """Return r and w of a class on each kind of device."""
    usual = "convolution" if kind == "matrix_convolution" else kind
    found = {of: known.get(kind) or known[usual] for of, known in parameters.efficiencies.items()}
    compute = {of: one.compute for of, one in found.items()}
    memory = {of: one.memory for of, one in found.items()}
    return devices.by_word("kind", compute, np.nan), devices.by_word("kind", memory, np.nan)


# Of what products sustain in double precision: convolutions, which libraries filter minimally in
# single precision alone. Set by the steps of image networks in it (``validate recorded``).
_DOUBLE_CONVOLUTION: Final = 0.8


def _widened(devices: Devices, kind: str, dtype: str, parameters: DeviceParameters) -> Floats:
    """Return what a class reaches of its rate in 32 bits on tensors that are stored in 16."""
    is_narrow = (devices.word("kind") == "gpu") & (vector_units(devices) == "single")
    share = parameters.widened_fraction if kind in PRODUCTS else 1.0
    if kind == "depthwise":
        share = parameters.widened_depthwise_fraction
    return np.where(is_narrow & (dtype in _STORED_HALF), share, 1.0)


def _phase(
    table: Operators, rates: _Rates, phase: str, scale: NDArray[np.float64]
) -> tuple[_Parts, NDArray[np.float64], NDArray[np.float64]]:
    """Return compute, memory, launch and copy seconds of a phase, and their sum on each host.

    The parts have shape (n_devices, n_batches), their sums one such array for each of ``_HOSTS``.
    Last what the median host takes to start its calls, (n_devices, 1) [s].
    """
    rows = np.asarray(table.phase == phase, bool)
    flop_s = table.flop[rows] / rates.compute[:, rows]  # at the recorded batch
    filling_s = table.kernels[rows] * rates.fill_s[:, rows]
    grown_s = table.grown_bytes[rows] / rates.memory[:, rows]
    fixed_s = table.fixed_bytes[rows] / rates.memory[:, rows]
    compute = np.empty((len(flop_s), scale.size))
    memory, meeting = np.empty_like(compute), np.empty_like(compute)
    for j, s in enumerate(scale):
        idle, is_split = _idle_cores(table, rows, rates, s)
        meeting[:, j] = rates.split_s * (is_split * table.count[rows]).sum(axis=1)
        c, m = (s * flop_s + filling_s) * idle, (s * grown_s + fixed_s) * idle
        is_compute_bound = c >= m
        t = np.maximum(c, m) + rates.unhidden * np.minimum(c, m)
        compute[:, j] = np.where(is_compute_bound, t, 0.0).sum(axis=1)
        memory[:, j] = np.where(is_compute_bound, 0.0, t).sum(axis=1)
    calls = np.where(rates.is_cpu, table.count[rows].sum(), table.kernels[rows].sum())
    busy = compute + memory + meeting + (calls * rates.latency_s)[:, None]
    dear = table.kernels[rows & ~table.is_recurrent].sum() if phase == "forward" else 0.0
    of_python = dear / max(table.kernels[rows].sum(), 1e-30)
    starting = calls * rates.dispatch_s * (of_python + (1.0 - of_python) * rates.engine_share)
    hosts = np.exp(np.multiply.outer(_HOSTS, rates.host_log_sd))
    is_first = phase == "forward"
    copy = (rates.copy_s * is_first)[:, None] * scale
    # A host that is slow at calls is slow at all that a loop does.
    fed_s = np.multiply.outer(np.exp(_HOSTS * rates.fed_log_sd), rates.fed_s * is_first)
    starts_s = (starting * hosts)[:, :, None]
    if rates.is_queued:
        totals = np.maximum(busy + copy, starts_s + fed_s[:, :, None])
    else:
        totals = np.maximum(busy, starts_s) + fed_s[:, :, None] + copy
    launch = _over_hosts(totals)[0] - compute - memory - copy
    return (compute, memory, launch, copy), totals, starting[:, None]


_Parts = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
# Gauss-Hermite nodes and weights for a normal variable: hosts slower and faster than the median.
_HOSTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def _over_hosts(totals: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return exp E[ln t] and the deviation of ln t over the first axis; 0 where nothing varies."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(totals)
        mean = np.tensordot(_WEIGHTS, logs, 1)
        spread = np.sqrt(np.tensordot(_WEIGHTS, np.square(logs - mean), 1))
    is_one = totals[0] == totals[-1]
    return np.where(is_one, totals[0], np.exp(mean)), np.where(is_one, 0.0, spread)


def _idle_cores(
    table: Operators, rows: NDArray[np.bool_], rates: _Rates, scale: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return how many times slower a call is than at the rates of all cores, and if it is split.

    A framework splits a call into pieces of ``GRAIN`` elements at least, so that small calls
    leave cores without work. A core that works alone does more than its share of what all do
    together, ``split_gain`` times: its operands are in its own caches. 1 for accelerators. Both
    have shape (n_devices, n_operators).
    """
    moved = scale * table.grown_bytes[rows] + table.fixed_bytes[rows]
    pieces = np.maximum(moved / table.count[rows] / _FP32_BYTES / GRAIN, 1.0)
    cores, gain = rates.cores[:, None], rates.split_gain
    is_split = rates.is_cpu[:, None] & (cores > 1.0) & (pieces > 1.0)
    together = np.maximum(cores / pieces, np.where(cores > 1.0, gain, 1.0)) / gain
    return np.where(rates.is_cpu[:, None], together, 1.0), is_split


def _uncertainty(
    work: Work, devices: Devices, parameters: DeviceParameters
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    table = work.operators
    weight = table.flop / max(table.flop.sum(), 1.0) + table.grown_bytes / max(
        table.grown_bytes.sum(), 1.0
    )
    unseen = ~np.isin(table.kind, list(parameters.fitted_kinds))
    unseen_share = float(weight[unseen].sum() / max(weight.sum(), 1e-300))
    # A rate of large products says nothing of how a new chip family convolves.
    convolved = np.isin(table.kind, list(_CONVOLUTIONS))
    products = weight[convolved | np.isin(table.kind, list(PRODUCTS))].sum()
    unlike = weight[convolved].sum() / max(products, 1e-300)
    is_new, is_unfitted, distance, convolved, is_guessed = devices.kept(
        ("unseen", work.precision, id(parameters)),
        partial(_unseen, precision=work.precision, parameters=parameters),
    ).T
    variance = (
        parameters.log_sd**2
        + is_new * parameters.unseen_architecture_log_sd**2
        + np.maximum(is_guessed, is_new * unlike) * parameters.unmeasured_rate_log_sd**2
        + parameters.distance_log_sd**2 * (distance**2 + unlike * (convolved**2 - distance**2))
        + is_unfitted * parameters.unfitted_device_log_sd**2
        + unseen_share * parameters.unseen_kind_log_sd**2
    )
    return np.sqrt(variance), (is_new > 0) | (unseen_share > 0.5)


def _unseen(devices: Devices, precision: str, parameters: DeviceParameters) -> Floats:
    """Return what of devices was not fitted.

    Family, kind, distances of rates (of all fitted, and with convolutions), measured rates.
    """
    seen = dict.fromkeys(parameters.fitted_architectures, 0.0)
    is_gpu = devices.word("kind") == "gpu"
    # Nor was anything of double precision fitted, but one share.
    is_unfitted = ~is_gpu | (all_run_as(devices, precision) == "fp64")
    return np.stack([
        devices.by_word("architecture", seen, 1.0),
        is_unfitted,
        distances_from_fitted(devices, parameters.fitted_rates) * is_gpu,
        distances_from_fitted(devices, parameters.convolved_rates) * is_gpu,
        ~are_measured(devices, precision),
    ], axis=1)  # fmt: skip
