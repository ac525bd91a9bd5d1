"""Measured steps against what the model says of them: the host's own, and real runs elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from advisor.jobs.job import Job
from advisor.machines.host import host_device
from advisor.planners.core.nouns import Device, Work
from advisor.planners.step.calibration import calibrate
from advisor.planners.step.device import step_time
from advisor.planners.step.device_rates import measured_flop_per_s, runs_as
from advisor.planners.step.from_runs import is_known_by_runs
from advisor.planners.step.other_jobs import OtherJobs, errors_on, expected_error, features
from advisor.planners.step.residual import ExpectedErrors, conditioned, expected_errors
from advisor.ways.constants import Constants

Floats = NDArray[np.float64]
Law = Literal["operators", "transformer shapes"]

# A user's own measurement of a step: its scatter from run to run on one machine, as for repeated
# cloud measurements with the same software (reference: H100 nodes 0.7 %, same round 3 %).
_ACTUAL_LOG_SD = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchors:
    """Measured steps beside the model's predictions of them, one entry a measurement.

    Attributes
    ----------
    core_speed : float or None
        CoreMark per virtual CPU of the recorded host; None where it was not measured. [1/s]
    predicted_s, measured_s : tuple of float
        Step on the device, without waiting for data. [s]
    measured_log_sd, device_log_sd : tuple of float
        Errors of their logarithms.
    devices : tuple of Device
        Where each was measured.
    host : Device or None
        What the recorded job computed on.
    workers : tuple of int
        Devices that shared each step, of a job that is known by its runs alone.
    work : Work or None
        The job's: what published steps of jobs like it say of GPUs is heard. None for the bare
        model.
    others : OtherJobs or None
        Other jobs' runs, where the job is known by its runs alone.
    """

    core_speed: float | None
    predicted_s: tuple[float, ...] = ()
    measured_s: tuple[float, ...] = ()
    measured_log_sd: tuple[float, ...] = ()
    device_log_sd: tuple[float, ...] = ()
    devices: tuple[Device, ...] = ()
    host: Device | None = None
    work: Work | None = None
    workers: tuple[int, ...] = ()
    others: OtherJobs | None = None

    @property
    def are_of_several(self) -> bool:
        """Whether a job that is known by its runs alone ran on several devices at once."""
        return max(self.workers, default=1) > 1

    def size_log_sd(self, workers: NDArray[np.int64]) -> Floats:
        """Return what other numbers of devices than those of the runs add to ln(step)'s error.

        Zero unless the job is known by its runs alone.
        """
        if not self.workers:
            return np.zeros(len(workers))
        doublings = np.abs(np.log2(np.asarray(workers)[:, None] / np.array(self.workers)))
        return np.asarray(_OF_A_DOUBLING * doublings.min(axis=1))

    def calibration(
        self,
        targets: Sequence[Device],
        log_sd: Floats,
        constants: Constants,
        law: Law = "operators",
    ) -> tuple[Floats, Floats]:
        """Return what to add to ln(predicted) on each target, and the error that remains.

        On GPUs by the process of the device model's errors: published steps of jobs like this
        one, and this job's own steps on other GPUs. On all other devices by the steps measured.

        Parameters
        ----------
        targets : sequence of Device
        log_sd : ndarray of shape (n_targets,)
            Of the bare law.
        constants : Constants
        law : {"operators", "transformer shapes"}
            Which was asked: published steps say how far the operators' law is off, not the other.
        """
        factor, left = np.zeros(len(targets)), np.array(log_sd, dtype=float)
        is_heard = np.array([d.kind == "gpu" for d in targets], bool) & (self.work is not None)
        rest, gpus = np.flatnonzero(~is_heard), np.flatnonzero(is_heard)
        if self.devices and rest.size:
            on = [targets[int(i)] for i in rest]
            factor[rest], left[rest] = self._by_kind(on, left[rest], constants)
        if gpus.size:
            on = [targets[int(i)] for i in gpus]
            found = self._by_process(on, left[gpus], constants, law)
            # The last bits depend on which other devices are asked about: one has one answer.
            factor[gpus], left[gpus] = (np.round(one, _DECIMALS) for one in found)
        self._hear_others(targets, factor, left)
        return factor, left

    def _hear_others(self, targets: Sequence[Device], factor: Floats, left: Floats) -> None:
        """Put what other jobs' runs on a target say in place of what is thought without them."""
        if self.others is None or self.work is None:
            return
        for row, target in enumerate(targets):
            seen = errors_on(self.others, target.name)
            if seen is not None:
                at = features(self.work, self.work.micro_batch, self.others.known)
                factor[row], left[row] = expected_error(at, seen, float(factor[row]))

    def _by_kind(
        self, targets: Sequence[Device], log_sd: Floats, constants: Constants
    ) -> tuple[Floats, Floats]:
        """Return the same on other devices, by the steps measured and the kinds of devices."""
        return calibrate(
            self.predicted_s,
            self.measured_s,
            self.measured_log_sd,
            self.devices,
            self.device_log_sd,
            targets,
            log_sd,
            constants.calibration,
        )

    def _by_process(
        self, targets: Sequence[Device], log_sd: Floats, constants: Constants, law: Law
    ) -> tuple[Floats, Floats]:
        """Return the same on GPUs, by published steps and by the steps measured on GPUs."""
        assert self.work is not None
        seen = [i for i, d in enumerate(self.devices) if d.kind == "gpu"]
        devices = [*targets, *(self.devices[i] for i in seen)]
        bare_sd = np.r_[log_sd, [self.device_log_sd[i] for i in seen]]
        prior = expected_errors(self.work, devices, constants.residual)
        if law == "operators":
            prior = _widened(prior, self.work, devices, bare_sd, constants)
            if is_known_by_runs(self.work):
                prior = _fitted_to(prior, len(targets), [d.name for d in devices])
        else:
            scale = bare_sd / prior.log_sd
            prior = ExpectedErrors(
                mean=np.zeros(len(devices)), covariance=prior.covariance * np.outer(scale, scale)
            )
        errors = np.log([self.measured_s[i] / self.predicted_s[i] for i in seen])
        noise = np.array([self.measured_log_sd[i] for i in seen])
        return conditioned(prior, len(targets), errors, noise)

    def with_actual(
        self, device: Device, predicted_s: float, measured_s: float, device_log_sd: float,
        workers: int | None = None,
    ) -> Anchors:  # fmt: skip
        """Return the anchors with one more: a real run on ``device``, or on ``workers`` of it."""
        return replace(
            self,
            workers=self.workers if workers is None else (*self.workers, workers),
            predicted_s=(*self.predicted_s, predicted_s),
            measured_s=(*self.measured_s, measured_s),
            measured_log_sd=(*self.measured_log_sd, _ACTUAL_LOG_SD),
            device_log_sd=(*self.device_log_sd, device_log_sd),
            devices=(*self.devices, device),
        )


def _widened(
    prior: ExpectedErrors, work: Work, devices: Sequence[Device], log_sd: Floats,
    constants: Constants,
) -> ExpectedErrors:  # fmt: skip
    """Return the process's errors, wider by what it has not seen: kinds, families, distances."""
    known = constants.device
    is_guessed = [measured_flop_per_s(d, runs_as(d, work.precision)) is None for d in devices]
    within = known.log_sd**2 + np.where(is_guessed, known.unmeasured_rate_log_sd**2, 0.0)
    beyond = np.sqrt(np.maximum(np.square(log_sd) - within, 0.0))
    names = np.array([d.name for d in devices])
    covariance = prior.covariance * constants.residual.spread**2
    covariance = covariance + np.outer(beyond, beyond) * (names[:, None] == names)
    return ExpectedErrors(mean=prior.mean, covariance=covariance)


_DECIMALS: Final = 9  # of logarithms
# Variance that a step fitted to n runs adds on a device that none was on, times n: what is left
# of errors on Lambda's suite (25 GPUs, one left out) with 1, 2, 3 and 6 runs of a job drawn.
_OF_FEW_RUNS: Final = 0.4
# Deviation of ln(step) that a doubling of the devices adds where nothing but runs is known of a
# job, beside that of scaling: what makes the errors on MLPerf's larger systems likeliest, every
# benchmark counting the same (``python -m benchmarks.experiments.doublings``).
_OF_A_DOUBLING: Final = 0.0755


def _fitted_to(prior: ExpectedErrors, targets: int, names: Sequence[str]) -> ExpectedErrors:
    """Return errors of a step that was fitted to runs, wider where none of them was."""
    runs = names[targets:]
    is_elsewhere = np.array([name not in runs for name in names], dtype=float)
    added = np.diag(is_elsewhere * _OF_FEW_RUNS / max(len(runs), 1))
    return ExpectedErrors(mean=prior.mean, covariance=prior.covariance + added)


def host_anchor(job: Job, work: Work, constants: Constants) -> Anchors:
    """Set the job's measured step on the host beside the model's.

    A step on a card that the device sheet does not know anchors nothing, nor does one that only
    waited for data or for other ranks: none of it was computing.
    """
    if job.measured is None:
        return Anchors(core_speed=None, work=work)
    at = job.measured
    device = host_device(at.host, at.threads, at.device)
    if device is None:
        return Anchors(core_speed=host_core_speed(job), work=work)
    passes = max(round(job.recorded_batch / work.micro_batch), 1)
    columns = step_time(work, [device], [work.micro_batch], constants.device)
    computing_s = job.measured.step_s - job.feed.wait_s - job.measured.exchange_s
    if computing_s <= 0:
        return Anchors(core_speed=host_core_speed(job), host=device, work=work)
    return Anchors(
        core_speed=host_core_speed(job),
        predicted_s=(float(columns.micro_batch_s[0, 0] * passes + columns.optimizer_s[0]),),
        measured_s=(computing_s,),
        measured_log_sd=(job.measured.log_sd,),
        device_log_sd=(float(columns.log_sd[0]),),
        devices=(device,),
        host=device,
        work=work,
    )


def host_core_speed(job: Job) -> float | None:
    """Return the speed of one core of the host, None where it was not measured. [1/s]."""
    benchmark = job.measured.host.benchmark if job.measured else None
    return None if benchmark is None else benchmark.scalar_score
