"""Error of the device model as a Gaussian process over jobs and devices, given measured steps.

The error e = ln(T measured / T of the step-time equation) of job j on device g is

    e ~ N(0, K),   K = q q' p(j, j') (w(j, j') h h' a_j^2 + [same job] a_o^2)
                     + [same job] p(j, j') (f(g, g') + [same chip family]) a_k^2 / 2
                     + w(j, j') a_d^2 [same device]
                     + a_n^2 [the very step on the very device and host] + s s' [same host]
                     + a_m^2 [same machine, recorded scripts] + r r' a_u^2 [both of the job asked]

so that a job's own runs carry over to all cards, most of all to kindred ones, while from other
jobs a card without rows hears only what jobs made like it have in common on several cards, and a
job unlike any that was measured nothing. A job is told by one sample of it: its error is the same
at every batch, so that a larger one takes no less and no answer bends with the batch. Published
steps (``SeenErrors``) and the user's own runs of the job are rows of the same process:

    E[e_t] = K_ts (K_ss + N)^-1 e_s,      V[e_t] = K_tt - K_ts (K_ss + N)^-1 K_st

| here                 | paper | meaning                                                          |
|----------------------|-------|------------------------------------------------------------------|
| kernel of jobs       | w     | exp(-d^2 / 2 l^2) of ``job_features``                            |
| kernel of devices    | f     | the same of the logarithms of a device's rates and memory        |
| ``heard``            | h     | 1, and 0 for a row that only its own card hears of, and a job    |
|                      |       | that was run itself (``all_heard``)                              |
| ``precision``        | p     | 1, and ``other_precision`` between two precisions                |
| ``amplitudes``       | a     | deviations of ln(seconds), fitted by evidence                    |
| ``recorded_share``   | q     | 1, and for a recorded script, whose operators are known, less    |
| ``_OF_RECORDED``     | r     | 1, and 0.3 for a recorded script                                 |
| ``host_log_sd``      | s     | deviation of ln(seconds) by the speed of the host (``device``)   |
| ``machine_log_sd``   | a_m   | the same by the card and software of one machine                 |
| ``unknown_log_sd``   | a_u   | the same of a job of a source that nobody knows                  |

Sources: C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", 2006,
eqs. 2.23-2.24; coregionalisation of jobs as in E. Bonilla et al., NIPS 2007. What a job's
own measured steps say on other devices is ``calibrated_work``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import Device, Work
from advisor.planners.step.device_rates import Devices, all_run_as, are_measured, peaks

Floats = NDArray[np.float64]
AMPLITUDES: Final = ("job", "own", "kin", "device", "noise")
CLOCK_LOG_SD: Final = 0.02  # scatter of a measured step around its own mean [ln]
_WIDTHS: Final = {"fp16": "half", "bf16": "half", "fp8": "half", "fp4": "half"}
_CONVOLUTIONS: Final = frozenset({"convolution", "winograd", "depthwise"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPoints:
    """Jobs on devices as columns of shape (n,): where errors are, or are asked for."""

    # device, architecture, precision: precision is what the products run as there; all of 16 bits
    # or less are ``"half"``, and ``"stored half"`` where a device computes them in 32
    device: NDArray[np.str_]
    architecture: NDArray[np.str_]
    precision: NDArray[np.str_]
    # (n, 4); ln of peak in that precision, bandwidth, memory, fp32 peak. [flop/s], [bytes/s],
    # [bytes]
    rates: Floats
    name: NDArray[np.str_]  # of the job; no two suites have one in common
    job: Floats  # (n, 6); ``job_features``
    # host, host_log_sd: the machine whose host started the calls, and what not knowing that host
    # adds to ln(step); empty and 0 where nobody says, or calls are no limit
    host: NDArray[np.str_]
    host_log_sd: Floats
    recorded: Floats  # 1 for a recorded script, 0 for a described job or one known by its runs
    # 1; 0 where the job errs alike on too few cards for any other card to hear of it
    heard: Floats

    def __len__(self) -> int:
        return len(self.device)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeenErrors:
    """Errors of the equation on published steps, shape (n,)."""

    points: ErrorPoints
    # of_peaks, of_rates: e by specifications alone, and with the measured rates of the devices
    # that have any
    of_peaks: Floats
    of_rates: Floats
    # deviation of each row around its own mean: wider where its model is doubted
    scatter: Floats | float = CLOCK_LOG_SD


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResidualParameters:
    """The process: shapes set, amplitudes fitted."""

    amplitudes: Mapping[str, float]  # by the names of ``AMPLITUDES``
    # job_length, device_length: over which errors are alike: of ``job_features``, and of standard
    # deviations of the rates
    job_length: float
    device_length: float
    other_precision: float  # correlation of a job's error between two precisions
    recorded_share: float  # deviation of a recorded script's own error over a described job's
    machine_log_sd: float  # of all recorded scripts on one machine
    # what a job that is asked for has to itself on all cards, beyond those of the suites
    unknown_log_sd: float
    # spread, recorded_spread: by which the deviations are multiplied to cover what was left out,
    # of described jobs and of recorded scripts
    spread: float
    recorded_spread: float
    # standard deviations of ``ErrorPoints.rates`` over devices
    rate_scales: tuple[float, float, float, float]
    seen: SeenErrors


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedErrors:
    """What published steps say of errors: their mean (n,) and covariance (n, n)."""

    mean: Floats
    covariance: Floats

    @property
    def log_sd(self) -> Floats:
        """One standard deviation of each error."""
        return np.sqrt(np.maximum(np.diagonal(self.covariance), 1e-9))


def at_batch(work: Work, micro_batch: int) -> Work:
    """Return the same step over another micro-batch: what grows with it in proportion."""
    scale = micro_batch / work.micro_batch
    if scale == 1:
        return work
    made = work.operators
    operators = replace(
        made,
        flop=np.where(made.is_update, made.flop, scale * made.flop),
        bytes=np.where(made.is_update, made.bytes, made.fixed_bytes + scale * made.grown_bytes),
    )
    return replace(work, operators=operators, micro_batch=micro_batch)


def job_features(work: Work) -> Floats:
    """Return how one sample of a step is made up, shape (6,), device left aside.

    Logarithms of work a call, of intensity and of calls, each in a unit near its standard
    deviation, and the shares of convolutions and fused attention among operations and of
    reductions in traffic.
    """
    operators = work.operators
    grown = np.where(operators.is_update, 1.0, 1.0 / work.micro_batch)
    flop, moved = grown * operators.flop, operators.fixed_bytes + grown * operators.grown_bytes
    calls = max(float(operators.kernels.sum()), 1.0)

    def share(of: Floats, kinds: Collection[str]) -> float:
        return float(of[np.isin(operators.kind, list(kinds))].sum() / max(of.sum(), 1.0))

    whole, traffic = max(float(flop.sum()), 1.0), max(float(moved.sum()), 1.0)
    return np.array([
        math.log(whole / calls) / _CALL_SCALE,
        math.log(whole / traffic) / _INTENSITY_SCALE,
        2.0 * share(flop, _CONVOLUTIONS),
        2.0 * share(flop, ("attention",)),
        3.0 * share(moved, ("reduction",)),
        math.log(calls) / _COUNT_SCALE,
    ])  # fmt: skip


# Standard deviations of the three logarithms over the described suites (2026-11-22).
_CALL_SCALE: Final = 1.50
_INTENSITY_SCALE: Final = 0.76
_COUNT_SCALE: Final = 0.76


def error_points(
    works: Sequence[Work], devices: Sequence[Device], hosts: Sequence[str] = (),
    host_log_sd: Sequence[float] = (), names: Sequence[str] = (),
) -> ErrorPoints:  # fmt: skip
    """Return the points of jobs on devices, one each; hosts where they are known.

    ``names``: of the jobs; by default each work is one.
    """
    found = {key: job_features(work) for key, work in {id(w): w for w in works}.items()}
    table, asked = Devices.of(devices), np.array([work.precision for work in works], np.str_)
    label, rates = np.empty(len(table), dtype="U16"), np.empty((len(table), 4))
    for precision in np.unique(asked).tolist():
        rows = np.flatnonzero(asked == precision)
        label[rows], rates[rows] = _in_precision(table.take(rows), precision)
    numbers = {key: f"work {number}" for number, key in enumerate(found)}
    return ErrorPoints(
        device=table.word("name"),
        architecture=table.word("architecture"),
        precision=label,
        rates=rates,
        name=np.array(names or [numbers[id(work)] for work in works], dtype=np.str_),
        job=np.array([found[id(work)] for work in works]).reshape(-1, 6),
        host=np.array(hosts or [""] * len(works), dtype=np.str_),
        host_log_sd=np.array(host_log_sd or [0.0] * len(works), dtype=float),
        recorded=np.array([work.call_s is not None for work in works], dtype=float),
        heard=np.ones(len(works)),
    )


def _in_precision(devices: Devices, precision: str) -> tuple[NDArray[np.str_], Floats]:
    """Return what devices run a precision as, by its width, and four rates' logarithms (n, 4)."""
    runs = all_run_as(devices, precision)
    label, peak = np.empty(len(devices), dtype="U16"), np.ones(len(devices))
    for one in np.unique(runs).tolist():
        there = runs == one
        is_widened = precision in _WIDTHS and one == "fp32"
        label[there] = "stored half" if is_widened else _WIDTHS.get(one, one)
        peak[there] = peaks(devices, one)[there]
    single = devices.fact("fp32_flop_per_s")
    single = np.where(single > 0, single, peak)
    memory = devices.fact("memory_bytes_per_s"), devices.fact("memory_bytes")
    return label, np.log(np.stack([peak, *memory, single], axis=1))


def shapes(a: ErrorPoints, b: ErrorPoints, parameters: ResidualParameters) -> Floats:
    """Return the kernels before their amplitudes, in the order of ``AMPLITUDES``, (5, n, m)."""
    job = _near(a.job / parameters.job_length, b.job / parameters.job_length)
    scale = np.array(parameters.rate_scales) * parameters.device_length
    is_same, device = _same(a.precision, b.precision), _same(a.device, b.device)
    alike = parameters.other_precision + (1 - parameters.other_precision) * is_same
    own = _same(a.name, b.name) * alike
    kin = (_near(a.rates / scale, b.rates / scale) + _same(a.architecture, b.architecture)) / 2
    very = (own > 0) * (job > 1 - 1e-9) * device * is_same * _same(a.host, b.host)
    return np.array([job * alike * np.outer(a.heard, b.heard), own, own * kin, job * device, very])


def covariance(a: ErrorPoints, b: ErrorPoints, parameters: ResidualParameters) -> Floats:
    """Return the prior covariance of errors, shape (n, m)."""
    return _amplified(a, b, shapes(a, b, parameters), parameters)


def prior(at: ErrorPoints, parameters: ResidualParameters) -> Floats:
    """Return the same of errors that are asked for, nothing of them known, shape (n, n)."""
    unknown = parameters.unknown_log_sd * np.where(at.recorded > 0, _OF_RECORDED, 1.0)
    of_job = np.outer(unknown, unknown) * _same(at.name, at.name)
    return np.asarray(covariance(at, at, parameters) + of_job)


# Of a recorded script, whose operators are known: the errors of one network on two hosts' cards
# correlate by 0.05 to 0.11 (torchvision's 444 rows), so that a run elsewhere says little.
_OF_RECORDED: Final = 0.3


def _amplified(
    a: ErrorPoints, b: ErrorPoints, kernels: Floats, parameters: ResidualParameters
) -> Floats:
    variances = np.array([parameters.amplitudes[name] ** 2 for name in AMPLITUDES])
    q, r = _shares(a, parameters), _shares(b, parameters)
    of_jobs, rest = np.tensordot(variances[:2], kernels[:2], 1), kernels[2:]
    found = np.outer(q, r) * of_jobs + np.tensordot(variances[2:], rest, 1)
    return np.asarray(found) + of_hosts(a, b, parameters)


def _shares(at: ErrorPoints, parameters: ResidualParameters) -> Floats:
    return np.where(at.recorded > 0, parameters.recorded_share, 1.0)


def of_hosts(a: ErrorPoints, b: ErrorPoints, parameters: ResidualParameters) -> Floats:
    """Return the covariance that jobs have by the machine that they are on, shape (n, m)."""
    is_same = _same(a.host, b.host)
    if not is_same.any():
        return is_same
    scripts = parameters.machine_log_sd**2 * np.outer(a.recorded, b.recorded)
    of_calls = np.outer(a.host_log_sd, b.host_log_sd)
    return np.asarray(is_same * (of_calls + scripts * _same(a.device, b.device)))


def measured_covariance(parameters: ResidualParameters, kernels: Floats | None = None) -> Floats:
    """Return K + N of the errors that were seen, shape (n, n).

    Two rows of one job on one device are two measurements: their own noise is apart.

    ``kernels``: ``shapes`` among them, where they are known.
    """
    seen = parameters.seen
    if kernels is None:
        kernels = shapes(seen.points, seen.points, parameters)
    whole = _amplified(seen.points, seen.points, kernels, parameters)
    whole[np.diag_indices_from(whole)] += np.square(seen.scatter)
    return whole


def doubted(covariance: Floats, errors: Floats) -> Floats:
    """Return what to add to the variances of errors that the others contradict, shape (n,).

    The error that lies most deviations from what all others let expect gets as much more variance
    as puts it at ``_MOST`` of them; then the next, until none is further off. So a wrong run moves
    an answer no more than one that is ``_MOST`` deviations off (Huber's bound, by variance). Of
    fewer than three nobody says which is wrong: 0.
    """
    added = np.zeros(errors.size)
    if errors.size < _LEAST_TO_DOUBT:
        return added
    inverse = np.linalg.inv(covariance)
    for _ in range(_ROUNDS * errors.size):
        variance = 1.0 / np.diagonal(inverse)
        off = (inverse @ errors) * variance  # from the mean of the others
        worst = int(np.argmax(off**2 / variance))
        more = off[worst] ** 2 / _MOST**2 - variance[worst]
        if more <= _LITTLE * variance[worst]:
            break
        added[worst] += more
        column = inverse[:, worst]
        inverse = inverse - np.outer(column, column) * (more / (1 + more * inverse[worst, worst]))
    return added


def shared_variance(covariance: Floats, errors: Floats) -> float:
    """Return what to add to every covariance of a job's errors for what all of them share.

    The equation may misjudge a job by more than any job that was seen. The factor that its
    measurements have in common, by generalised least squares, is then put at ``_SHARED``
    deviations of the prior, and carries over to all devices; 0 where it lies nearer.
    """
    solved = np.linalg.solve(covariance, np.ones(errors.size))
    variance = 1.0 / float(solved.sum())
    shared = variance * float(solved @ errors)
    return max(shared**2 / _SHARED**2 - variance, 0.0)


# Deviations. Of published jobs left out, 1 to 2 err alike; of the same, twice as slow, one run
# leaves 14 % at 1, 17 % at 1.5 and 22 % at 2, three runs 10 to 11 % at each of them.
_SHARED: Final = 1.5
_MOST: Final = 3.0  # deviations
_LEAST_TO_DOUBT: Final = 3
_LITTLE: Final = 1e-3
_ROUNDS: Final = 20  # a row's worth of doubt may change when another's is known


ASKED: Final = "asked"  # what the job is called that an answer is about


def expected_errors(
    work: Work, devices: Sequence[Device], parameters: ResidualParameters
) -> ExpectedErrors:
    """Return what published steps say of the equation's error for a job on devices."""
    at = error_points([work] * len(devices), devices, names=[ASKED] * len(devices))
    return errors_at(at, are_measured(Devices.of(devices), work.precision), parameters)


@lru_cache(maxsize=4)
def all_heard(parameters: ResidualParameters) -> ResidualParameters:
    """Return the process where every row that is not doubted is heard on every card.

    What a job ran at itself is to be divided between it and its card. If rows like it on that card
    count as the card's alone, as they do where no run of the job says otherwise (``heard``), they
    explain the run away, and nothing of it is left to carry over.
    """
    seen = parameters.seen
    is_doubted = np.broadcast_to(seen.scatter, len(seen.points)) > CLOCK_LOG_SD
    points = replace(seen.points, heard=np.where(is_doubted, seen.points.heard, 1.0))
    return replace(parameters, seen=replace(seen, points=points))


def errors_at(
    at: ErrorPoints, is_measured: NDArray[np.bool_], parameters: ResidualParameters
) -> ExpectedErrors:
    """Return the same at any points; ``is_measured``: the device's own rates are in T there."""
    alone = prior(at, parameters)
    if not len(parameters.seen.points):
        return ExpectedErrors(mean=np.zeros(len(at)), covariance=alone)
    inverse, of_peaks, of_rates = _solved(parameters)
    cross = covariance(at, parameters.seen.points, parameters)
    near = np.flatnonzero(cross.max(axis=0) > _FAR)
    told = cross[:, near] @ inverse[np.ix_(near, near)] @ cross[:, near].T
    mean = np.where(is_measured, cross @ of_rates, cross @ of_peaks)
    return ExpectedErrors(mean=mean, covariance=alone - 0.5 * (told + told.T))


_FAR: Final = 1e-12  # a covariance below which a seen error says nothing


@lru_cache(maxsize=4)
def _solved(parameters: ResidualParameters) -> tuple[Floats, Floats, Floats]:
    """Return (K + N)^-1 of the published steps, and its products with ``SeenErrors``'s errors."""
    seen = parameters.seen
    inverse = np.asarray(np.linalg.inv(measured_covariance(parameters)), np.float64)
    return inverse, inverse @ seen.of_peaks, inverse @ seen.of_rates


def conditioned(
    prior: ExpectedErrors, targets: int, errors: Floats, log_sd: Floats
) -> tuple[Floats, Floats]:
    """Return mean and deviation of the first ``targets`` errors, the others known.

    ``prior``: of the targets, then of the places measured; ``errors``, ``log_sd``: (n_measured,);
    what was found there, and the deviation of the measurement itself. Errors that all measurements
    share widen the prior (``shared_variance``); what the others contradict counts for less
    (``doubted``).
    """
    off, noise = errors - prior.mean[targets:], np.diag(np.square(log_sd))
    whole = prior.covariance
    if off.size:
        whole = whole + shared_variance(whole[targets:, targets:] + noise, off)
    known = whole[targets:, targets:] + noise
    known = known + np.diag(doubted(known, off))
    gain = np.linalg.solve(known, whole[targets:, :targets]).T
    mean = prior.mean[:targets] + gain @ off
    left = np.diagonal(whole)[:targets] - np.sum(gain * whole[:targets, targets:], axis=1)
    return mean, np.sqrt(np.maximum(left, 1e-6))


def _near(a: Floats, b: Floats) -> Floats:
    squared = np.sum(a * a, axis=1)[:, None] + np.sum(b * b, axis=1) - 2 * a @ b.T
    return np.asarray(np.exp(-0.5 * np.maximum(squared, 0.0)))


def _same(a: NDArray[np.str_], b: NDArray[np.str_]) -> Floats:
    names, place = np.unique(a, return_inverse=True)  # few: strings compare slowly
    return np.asarray(names[:, None] == b, dtype=float)[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationParameters:
    """Correlations of a job's error between two devices, and where they come from.

    ``same_device`` is below one: the same type measured again differs by its software.
    ``cpu_to_cpu`` and ``cpu_to_accelerator`` are priors until runs of one job on both exist.
    """

    same_device: float
    same_architecture: float
    same_kind: float
    cpu_to_cpu: float
    cpu_to_accelerator: float


def calibrated_work(
    predicted_s: ArrayLike, measured_s: ArrayLike, measured_log_sd: ArrayLike,
    measured_on: Sequence[Device], measured_device_log_sd: ArrayLike, targets: Sequence[Device],
    target_log_sd: ArrayLike, parameters: CalibrationParameters,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """Return what to add to ln(predicted) on each target, and the deviation that remains.

    Calibration: the factor by which a job's measured steps differ, carried to other devices.

    With e = ln(measured / predicted) the error of a job on a device is split into what the job
    takes with it everywhere (miscounted operators, a slow framework path) and what belongs to a
    device:

        e_d = j + g_d,      j ~ N(0, s_j^2),  g_d ~ N(0, s_d^2 - s_j^2)

    Seen once on the host h with error variance s_m^2, the best estimate for device d is (normal
    conditional expectation; Rasmussen and Williams, "Gaussian Processes", 2006, eq. 2.19)

        E[e_d] = k_dh / (s_h^2 + s_m^2) e_h,      V[e_d] = s_d^2 - k_dh^2 / (s_h^2 + s_m^2)

    with k_dh = corr x s_d s_h: near one where host and target are of the same kind, small where
    not.

    ``predicted_s``, ``measured_s``: step time by the model and by the clock, at the same
    micro-batch [s]; ``measured_log_sd``: deviation of ln(measured), noise of the clock;
    ``measured_on``: the host first, further points after; ``measured_device_log_sd``,
    ``target_log_sd``: ``StepColumns.log_sd`` of those devices and of the targets.

    Raises ValueError if a time is not positive.
    """
    predicted, measured = np.atleast_1d(predicted_s), np.atleast_1d(measured_s)
    if np.any(predicted <= 0) or np.any(measured <= 0):
        raise ValueError(f"times must be positive: {predicted}, {measured}")
    sd_h = np.atleast_1d(np.asarray(measured_device_log_sd, float))
    sd_t = np.atleast_1d(np.asarray(target_log_sd, float))
    noise = np.atleast_1d(np.asarray(measured_log_sd, float))
    k_hh = correlations(measured_on, measured_on, parameters) * np.outer(sd_h, sd_h)
    k_th = correlations(targets, measured_on, parameters) * np.outer(sd_t, sd_h)
    gain = np.linalg.solve(k_hh + np.diag(noise**2), k_th.T).T  # (n_targets, n_measured)
    log_factor = gain @ np.log(measured / predicted)
    variance = sd_t**2 - np.sum(gain * k_th, axis=1)
    return log_factor, np.sqrt(np.maximum(variance, noise.min() ** 2))


def correlations(
    rows: Sequence[Device], columns: Sequence[Device], parameters: CalibrationParameters
) -> NDArray[np.float64]:
    """Return how a job's errors on some devices and on others are correlated, as a matrix."""
    table = Devices.of(rows)
    names, families = table.word("name"), table.word("architecture")
    is_cpu = table.word("kind") == "cpu"
    found = np.empty((len(table), len(columns)))
    values = [
        1.0, parameters.cpu_to_cpu, parameters.cpu_to_accelerator, parameters.same_device,
        parameters.same_architecture,
    ]  # fmt: skip
    for column, one in enumerate(columns):
        holds = [
            np.array([row is one for row in table], dtype=bool),
            is_cpu & (one.kind == "cpu"),
            is_cpu | (one.kind == "cpu"),
            names == one.name,
            (families == one.architecture) & (families != ""),
        ]
        found[:, column] = np.select(holds, values, parameters.same_kind)
    return found
