"""Answers in the units of people who train transformers: tokens, utilisation, GPU-hours.

Every function takes a job, the time of its step, and the devices it runs on; all are pure.
"""

from __future__ import annotations

from advisor.answer import TrainingUnits, Utilisation
from advisor.jobs.describe import NO_LENGTH
from advisor.jobs.job import Job
from advisor.planners.core import HOUR_S, Device
from advisor.planners.step import model_flop_per_token, peak_flop_per_s, runs_as


def tokens_per_sample(job: Job) -> int | None:
    """Return the tokens of a sample of text; None for other jobs."""
    model = None if job.work is None else job.work.transformer
    return model.sequence if model is not None and model.vocabulary > 0 else None


def tokens_per_s(job: Job, step_s: float) -> float | None:
    """Return the tokens that all devices together pass in a second [tokens/s]."""
    tokens = tokens_per_sample(job)
    return None if tokens is None else job.global_batch * tokens / step_s


def model_flop_per_step(job: Job) -> float | None:
    """Return what a step needs by the transformer's arithmetic; None for other jobs [flop]."""
    if job.work is None or job.work.transformer is None:
        return None
    model = job.work.transformer
    return job.global_batch * model.sequence * model_flop_per_token(model, job.work.setup)


def utilisation(job: Job, step_s: float, devices: int, device: Device) -> Utilisation | None:
    """Return the model flop utilisation of a step.

    ``step_s`` [s]; ``devices``: that the step runs on, idle ones included.

    Raises ValueError if the time or the number of devices is not positive.
    """
    if not (step_s > 0 and devices > 0):
        raise ValueError(f"need a positive time and number of devices: {step_s}, {devices}")
    flop = model_flop_per_step(job)
    if flop is None or job.work is None:
        return None
    precision = runs_as(device, job.work.precision)
    peak = peak_flop_per_s(device, precision)
    if peak is None:
        return None
    return Utilisation(
        fraction=flop / (step_s * devices * peak), peak_flop_per_s=peak, precision=precision
    )


def accelerator_hours(devices: int, hours: float) -> float:
    """Return accelerators times hours, as clouds and model cards count [h]."""
    return devices * hours


def training_units(
    job: Job, step_s: float, devices: int, device: Device | None, *, hours: float | None = None
) -> TrainingUnits:
    """Return a step and its whole job in users' units.

    ``step_s`` [s]; ``device``: none where the devices are of several kinds: no utilisation is
    given; ``hours``: of the whole job, pauses included; its steps alone where not given [h].

    Raises ValueError if the time or the number of devices is not positive.
    """
    tokens = tokens_per_sample(job)
    has_length = job.total_source != NO_LENGTH
    whole = job.paid_steps * step_s / HOUR_S if hours is None else hours
    return TrainingUnits(
        tokens_per_step=None if tokens is None else float(job.global_batch * tokens),
        tokens_per_s=tokens_per_s(job, step_s),
        utilisation=None if device is None else utilisation(job, step_s, devices, device),
        accelerator_hours=accelerator_hours(devices, whole) if has_length else None,
        total_tokens=None
        if tokens is None or not has_length
        else job.total_steps * job.global_batch * tokens,
    )


def transformer_units(
    job: Job, step_s: float, devices: int, device: Device | None, *, hours: float | None = None
) -> TrainingUnits | None:
    """Return ``training_units`` of a transformer; None for other jobs, whose answers have none."""
    if job.work is None or job.work.transformer is None:
        return None
    return training_units(job, step_s, devices, device, hours=hours)
