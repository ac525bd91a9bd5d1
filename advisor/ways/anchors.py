"""Measured steps against what the model says of them: the host's own, and real runs elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from advisor.jobs.job import Job
from advisor.machines.host import host_device
from advisor.planners.core.nouns import Device, Work
from advisor.planners.step.calibration import calibrate
from advisor.planners.step.device import step_time
from advisor.ways.constants import Constants

Floats = NDArray[np.float64]

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
    """

    core_speed: float | None
    predicted_s: tuple[float, ...] = ()
    measured_s: tuple[float, ...] = ()
    measured_log_sd: tuple[float, ...] = ()
    device_log_sd: tuple[float, ...] = ()
    devices: tuple[Device, ...] = ()
    host: Device | None = None

    def calibration(
        self, targets: Sequence[Device], log_sd: Floats, constants: Constants
    ) -> tuple[Floats, Floats]:
        """Return what to add to ln(predicted) on each target, and the error that remains."""
        if not self.devices:
            return np.zeros(len(targets)), log_sd
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

    def with_actual(
        self, device: Device, predicted_s: float, measured_s: float, device_log_sd: float
    ) -> Anchors:
        """Return the anchors with one more: a real run on ``device``."""
        return replace(
            self,
            predicted_s=(*self.predicted_s, predicted_s),
            measured_s=(*self.measured_s, measured_s),
            measured_log_sd=(*self.measured_log_sd, _ACTUAL_LOG_SD),
            device_log_sd=(*self.device_log_sd, device_log_sd),
            devices=(*self.devices, device),
        )


def host_anchor(job: Job, work: Work, constants: Constants) -> Anchors:
    """Set the job's measured step on the host beside the model's.

    A step on a card that the device sheet does not know anchors nothing, nor does one that only
    waited for data or for other ranks: none of it was computing.
    """
    if job.measured is None:
        return Anchors(core_speed=None)
    at = job.measured
    device = host_device(at.host, at.threads, at.device)
    if device is None:
        return Anchors(core_speed=host_core_speed(job))
    passes = max(round(job.recorded_batch / work.micro_batch), 1)
    columns = step_time(work, [device], [work.micro_batch], constants.device)
    computing_s = job.measured.step_s - job.feed.wait_s - job.measured.exchange_s
    if computing_s <= 0:
        return Anchors(core_speed=host_core_speed(job), host=device)
    return Anchors(
        core_speed=host_core_speed(job),
        predicted_s=(float(columns.micro_batch_s[0, 0] * passes + columns.optimizer_s[0]),),
        measured_s=(computing_s,),
        measured_log_sd=(job.measured.log_sd,),
        device_log_sd=(float(columns.log_sd[0]),),
        devices=(device,),
        host=device,
    )


def host_core_speed(job: Job) -> float | None:
    """Return the speed of one core of the host, None where it was not measured. [1/s]."""
    benchmark = job.measured.host.benchmark if job.measured else None
    return None if benchmark is None else benchmark.scalar_score
