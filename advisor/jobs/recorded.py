"""From a recording to a job: what the planners need to know, or in words what is missing."""

from __future__ import annotations

import math

from advisor.collectors.certainty import (
    shortfall,
    step_log_sd,
    with_correction,
)
from advisor.collectors.recording import (
    DeepStep,
    Loading,
    Recording,
    StepTime,
    TotalWork,
)
from advisor.collectors.resources import Resources, resources
from advisor.collectors.saves import Saves
from advisor.collectors.work import length_hint
from advisor.domain import REACH_90
from advisor.errors import NotKnownError, RunError, UsageError
from advisor.jobs.job import Feed, Job, Measured
from advisor.jobs.programs import length_log_sd, rounds_job, whole_program
from advisor.jobs.recognised import recognised, recorded_heads
from advisor.jobs.recorded_work import recorded_precision, recorded_setup, recorded_work
from advisor.jobs.transfers import recorded_data
from advisor.planners.core.errors import PlanningError
from advisor.planners.elastic.noise import NoiseScale, measured_noise
from advisor.planners.step.input_pipeline import idle_s_per_sample
from advisor.planners.stragglers.spread import (
    FEWEST_STEPS,
    RankSpread,
    measured_spread,
    own_times,
)

# A start repeated on one machine: imports from a warm or a cold page cache. Ends of epochs: the
# first does what later ones need not, so their mean is no better known than this over the root
# of their number. Priors: one recording holds one start, and few ends.
_STARTUP_LOG_SD = 0.15
_ENDS_LOG_SD = 0.2
# What ends of epochs that were not seen may add to the steps, a fifth of whose data at most is
# validated on, forwards only, a third of a step: a 90 % bound, as a deviation.
_UNSEEN_ENDS_LOG_SD = 0.2 / 3 / REACH_90
# Neighbours on the recording machine make ranks unlike that would be alike on one of their own.
_CALM = 0.1


def job_from_recording(
    recording: Recording,
    *,
    epochs: float | None = None,
    total_steps: float | None = None,
    total_samples: float | None = None,
    global_batch: int | None = None,
) -> Job:
    """Turn a recording into a job.

    ``epochs``, ``total_steps``, ``total_samples``: the length of the job, where the user knows
    better than the recording; at most one; ``global_batch``: train with this many samples per step
    instead of the recorded number; the job keeps its number of samples.

    Raises RunError if the recording lacks what a prediction needs: steps, a batch size, the job's
    length. Raises NotKnownError if what it has is too uncertain to answer from
    (``collectors.certainty``). Raises UsageError if a given length or batch makes no sense.
    """
    lengths = (epochs, total_steps, total_samples)
    _check_lengths(*lengths, global_batch)
    is_length_given = any(length is not None for length in lengths)
    if recording.step_time is None:
        return whole_program(recording, is_length_given=is_length_given)
    startup_log_sd = with_correction(
        _STARTUP_LOG_SD, recording.startup_half_width_s, recording.startup_s
    )
    if recording.rounds is not None:
        if global_batch is not None:
            raise UsageError(
                f"run {recording.run_id} has no traced step: its batch cannot be changed here",
                hint="change it in the script and profile again",
            )
        return rounds_job(
            recording,
            recording.step_time,
            recording.rounds,
            epochs=epochs,
            total_steps=total_steps,
            total_samples=total_samples,
            startup_log_sd=startup_log_sd,
        )
    if missing := shortfall(recording, is_length_given=is_length_given):
        raise NotKnownError(missing[0], hint=missing[1])
    if recording.deep_step is None:
        raise RunError(
            f"run {recording.run_id} has step times but no traced step",
            hint="profile for longer (advisor profile --for 120s), so that one step can be traced",
        )
    loading = recording.loading
    local_batch = _local_batch(recording, recording.deep_step, loading)
    recorded_global = local_batch * recording.world_size
    steps, source = _length(recording, recorded_global, epochs, total_steps, total_samples)
    batch = global_batch or recorded_global
    saves = _checkpoints(recording.saves, recording.deep_step.parameter_bytes)
    used = resources(recording)
    ends, end_steps = _epoch_ends(recording, recording.step_time, steps, recorded_global)
    job = Job(
        name=recording.run_id,
        work=recorded_work(recording.deep_step, loading, recording.optimizers),
        program=None,
        global_batch=batch,
        heads=recorded_heads(recording.deep_step.operators),
        total_steps=steps * recorded_global / batch,
        total_source=source,
        feed=_feed(recording, recording.step_time, local_batch, used),
        measured=_measured(recording, recording.step_time, recording.deep_step),
        peak_rss_bytes=recording.peak_rss_bytes,
        recorded_batch=local_batch,
        # Once each, whatever the number of steps: the start, and the end after the last step.
        startup_s=(recording.startup_s or 0.0) + (recording.ending_s or 0.0),
        epochs=ends,
        epoch_end_steps=end_steps * recorded_global / batch,
        resources=used,
        transfers=recorded_data(
            loading.dataset_samples if loading else None, loading.sample_bytes if loading else None
        ),
        checkpoint_bytes=None if saves is None else saves.size_bytes,
        checkpoint_s=None if saves is None else saves.seconds,
        told=recording.told,
        limits=recording.limits,
        length_log_sd=length_log_sd(recording, is_length_given),
        startup_log_sd=startup_log_sd,
        epoch_end_log_sd=with_correction(
            _ENDS_LOG_SD / math.sqrt(max(recording.boundaries, 1)),
            recording.boundary_half_width_s,
            recording.boundary_s,
        ),
        unseen_log_sd=_unseen_log_sd(recording, steps, recorded_global),
        spread=rank_spread(recording),
        noise=gradient_noise(recording),
    )
    return recognised(job)


def _checkpoints(saves: Saves | None, parameter_bytes: float) -> Saves | None:
    """Return the checkpoints that were seen, if they may hold the parameters."""
    # Stored in 16 bits they are half as large; a shard or a small file says nothing of a whole.
    if saves is None or (saves.size_bytes or 0) < 0.45 * parameter_bytes:
        return None
    return saves


def _check_lengths(*given: float | None) -> None:
    *lengths, _ = given
    if sum(value is not None for value in lengths) > 1:
        raise UsageError(
            "the job's length is given twice",
            hint="use one of --epochs, --total-steps, --total-samples",
        )
    for value in given:
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"not a length or batch: {value}", hint="give a positive number")


def _local_batch(recording: Recording, deep: DeepStep, loading: Loading | None) -> int:
    """Return the samples of one process in one optimizer step."""
    if deep.samples > 0:
        return deep.samples
    if loading is not None and loading.batch:
        return loading.batch * recording.accumulation_steps
    raise RunError(
        f"the batch size of run {recording.run_id} could not be seen",
        hint="profile a script that feeds its model through a DataLoader or tensors batched first",
    )


def _length(
    recording: Recording,
    batch: int,
    epochs: float | None,
    total_steps: float | None,
    total_samples: float | None,
) -> tuple[float, str]:
    """Return the steps of the whole job and where that number comes from."""
    if total_steps is not None:
        return total_steps, "given: --total-steps"
    if total_samples is not None:
        return max(total_samples / batch, 1.0), "given: --total-samples"
    if epochs is not None:
        return epochs * _steps_per_epoch(recording, batch), "given: --epochs"
    work: TotalWork | None = recording.total_work
    if work is None:
        raise RunError(
            f"how long the job of run {recording.run_id} is could not be found",
            hint=f"say so: {length_hint(recording)}",
        )
    return float(work.steps), f"{work.source} ({work.confidence})"


def _steps_per_epoch(recording: Recording, batch: int) -> float:
    loading = recording.loading
    if loading is not None and loading.dataset_samples:
        return math.ceil(loading.dataset_samples / batch)
    if loading is not None and loading.batches_per_epoch:
        return math.ceil(loading.batches_per_epoch / recording.accumulation_steps)
    work = recording.total_work
    if work is not None and work.epochs:
        return work.steps / work.epochs
    raise RunError(
        f"how many steps an epoch of run {recording.run_id} has could not be seen",
        hint=f"instead of --epochs give {length_hint(recording)}",
    )


def _epoch_ends(
    recording: Recording, step: StepTime, steps: float, batch: int
) -> tuple[float, float]:
    """Return how many epochs end in the whole job, and what each end takes in steps."""
    loading = recording.loading
    if recording.boundary_s is None or loading is None or not loading.dataset_samples:
        return 0.0, 0.0
    return steps * batch / loading.dataset_samples, recording.boundary_s / step.corrected_s


def _unseen_log_sd(recording: Recording, steps: float, batch: int) -> float:
    """Return what ends of epochs add that the job has and the recording has not."""
    samples = recording.loading.dataset_samples if recording.loading else None
    has_ends = bool(samples) and steps * batch >= 2 * float(samples or 1)
    return _UNSEEN_ENDS_LOG_SD if has_ends and recording.boundary_s is None else 0.0


def _feed(recording: Recording, step: StepTime, samples: int, used: Resources) -> Feed:
    seen = recording.loading
    if seen is None:
        return Feed(
            workers=0, cpu_s_per_sample=None, wait_s=0.0, sample_bytes=None, dataset_samples=None
        )
    return Feed(
        workers=seen.workers,
        cpu_s_per_sample=seen.cpu_s_per_sample,
        wait_s=seen.wait_s,
        sample_bytes=seen.sample_bytes,
        dataset_samples=seen.dataset_samples,
        idle_s_per_sample=idle_s_per_sample(
            step_s=step.corrected_s,
            wait_s=seen.wait_s,
            cpu_s=seen.cpu_s_per_sample,
            samples=samples,
            workers=seen.workers,
            busy_cores=used.busy_cores or 0.0,
            cores=recording.host.cpu_limit or recording.host.logical_cpus,
        ),
    )


def _measured(recording: Recording, step: StepTime, deep: DeepStep) -> Measured:
    return Measured(
        step_s=step.corrected_s,
        log_sd=step_log_sd(step),
        host=recording.host,
        threads=recording.threads,
        device=deep.device,
        processes=recording.world_size,
        exchange_s=(recording.communication or {}).get("exchange_s_per_step", 0.0),
        precision=recorded_precision(deep),
        setup=recorded_setup(deep),
    )


def gradient_noise(recording: Recording) -> NoiseScale | None:
    """Return the noise scale of the recorded gradients; None where two norms do not tell it."""
    seen = recording.gradients
    if seen is None:
        return None
    try:
        return measured_noise(
            seen.small_batch, seen.small_norm2, seen.large_batch, seen.large_norm2
        )
    except PlanningError:  # all noise, or none
        return None


def rank_spread(recording: Recording) -> RankSpread | None:
    """Return how unlike the recorded ranks computed; None where that is not known."""
    if recording.contention > _CALM or len(recording.ranks) < 2:
        return None
    own_s = own_times(recording.steps_by_rank, recording.wait_by_step)
    if len(own_s) < FEWEST_STEPS or (own_s.mean(axis=0) <= 0).any():
        return None
    return measured_spread(own_s)
