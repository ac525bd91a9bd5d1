"""From a recording to a job: what the planners need to know, or in words what is missing."""

from __future__ import annotations

import math

from advisor.collectors.derive import (
    Resources,
    length_hint,
    length_log_sd,
    resources_of,
    shortfall_of,
    step_log_sd,
    with_correction,
)
from advisor.collectors.errors import duration_text
from advisor.collectors.format import DeepStep, Loading, Recording, Saves, StepTime, TotalWork
from advisor.errors import NotKnownError, RunError, UsageError
from advisor.jobs.job import Feed, Job, Lengths, Measured, recorded_data
from advisor.jobs.model_facts import recognised, recorded_heads
from advisor.jobs.recorded_work import recorded_precision, recorded_setup, whole_work
from advisor.planners.core import PlanningError
from advisor.planners.step import idle_s_per_sample
from advisor.planners.systems import (
    FEWEST_STEPS,
    NoiseScale,
    RankSpread,
    measured_noise,
    measured_spread,
    own_times,
)
from advisor.quantities import REACH_90

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
    recording: Recording, *, epochs: float | None = None, total_steps: float | None = None,
    total_samples: float | None = None, global_batch: int | None = None,
) -> Job:  # fmt: skip
    """Turn a recording into a job.

    ``epochs``, ``total_steps``, ``total_samples``: the length of the job, where the user knows
    better than the recording; at most one; ``global_batch``: train with this many samples per step
    instead of the recorded number; the job keeps its number of samples.

    Raises RunError if the recording lacks what a prediction needs: steps, a batch size, the job's
    length. Raises NotKnownError if what it has is too uncertain to answer from
    (``collectors.derive.certainty``) and no step was traced on a processor. Raises UsageError if a
    given length or batch makes no sense.
    """
    lengths: Lengths = epochs, total_steps, total_samples
    _check_lengths(*lengths, global_batch)
    is_length_given = any(length is not None for length in lengths)
    step = recording.step_time
    if step is None and recording.rehearsal is None and recording.deep_step is None:
        from advisor.jobs.untraced import whole_program

        return whole_program(recording, is_length_given=is_length_given)
    startup_log_sd = with_correction(
        _STARTUP_LOG_SD, recording.startup_half_width_s, recording.startup_s
    )
    if recording.rounds is not None and step is not None:
        if global_batch is not None:
            raise UsageError(
                f"run {recording.run_id} has no traced step: its batch cannot be changed here",
                hint="change it in the script and profile again",
            )
        from advisor.jobs.untraced import rounds_job

        return rounds_job(recording, step, recording.rounds, lengths, startup_log_sd)
    missing = shortfall_of(recording, is_length_given=is_length_given)
    # Other machines are asked about a processor's traced step, whatever the clock here said; the
    # machine of the recording, which it does enter, is refused (``StepCase.status``).
    if missing and (recording.deep_step is None or recording.deep_step.device != "cpu"):
        why, hint = missing
        if recording.deep_step is None:  # what needs no clock
            hint += "; or compute nothing: advisor profile --rehearse SCRIPT answers for GPUs"
        raise NotKnownError(why, hint=hint)
    if recording.deep_step is None and step is None:
        raise RunError(
            f"the rehearsal {recording.run_id} saw no whole training step",
            hint="let it run until its second step: advisor profile --for 10m SCRIPT",
        )
    if recording.deep_step is None:
        raise RunError(
            f"run {recording.run_id} has step times but no traced step",
            hint="profile for longer (advisor profile --for 120s), so that one step can be traced",
        )
    loading, deep = recording.loading, recording.deep_step
    local_batch = _local_batch(recording, deep, loading)
    if deep.elsewhere:
        raise RunError(
            f"the run {recording.run_id} shows one rank's part alone: others run {deep.elsewhere}",
            hint="profile the script with one stage and all experts on a rank, or describe the "
            "model: --model config.json",
        )
    recorded_global = local_batch * (recording.world_size // deep.ranks)
    steps, source = _recorded_length(recording, recorded_global, lengths)
    batch = global_batch or recorded_global
    saves = _checkpoints(recording.saves, deep.parameter_bytes)
    used = resources_of(recording)
    ends, end_steps = _epoch_ends(recording, step, steps, recorded_global)
    samples = loading.dataset_samples if loading else None
    has_epochs = bool(samples) and steps * recorded_global >= 2 * float(samples or 1)
    has_unseen_ends = has_epochs and recording.boundary_s is None
    job = Job(
        name=recording.run_id,
        work=whole_work(recording, deep),
        program=None,
        global_batch=batch,
        heads=recorded_heads(deep.operators),
        total_steps=steps * recorded_global / batch,
        total_source=source,
        feed=_feed(recording, step, local_batch, used),
        measured=_measured(recording, step, deep),
        peak_rss_bytes=recording.peak_rss_bytes,
        recorded_batch=local_batch,
        # Once each, whatever the number of steps: the start, and the end after the last step.
        startup_s=(recording.startup_s or 0.0) + (recording.ending_s or 0.0),
        epochs=ends,
        epoch_end_steps=end_steps * recorded_global / batch,
        resources=used,
        transfers=recorded_data(samples, loading.sample_bytes if loading else None),
        checkpoint_bytes=None if saves is None else saves.size_bytes,
        checkpoint_s=None if saves is None or step is None else saves.seconds,
        assumptions=_assumed(recording),
        is_rehearsed=recording.rehearsal is not None,
        fallback=recording.fallback_words,
        told=recording.told,
        limits=recording.limits,
        unread=() if missing is None and step is not None else _unclocked(recording),
        length_log_sd=length_log_sd(recording, is_length_given),
        startup_log_sd=startup_log_sd,
        epoch_end_log_sd=with_correction(
            _ENDS_LOG_SD / math.sqrt(max(recording.boundaries, 1)),
            recording.boundary_half_width_s,
            recording.boundary_s,
        ),
        unseen_log_sd=_UNSEEN_ENDS_LOG_SD if has_unseen_ends else 0.0,
        spread=rank_spread(recording),
        noise=gradient_noise(recording),
    )
    return recognised(job)


def _unclocked(recording: Recording) -> tuple[str, ...]:
    """Return what is said of a step whose operators are known and whose time here is not."""
    step = recording.step_time
    if recording.rehearsal is not None:
        return ()
    seen = "no step but the traced one was seen to its end"
    if step is not None:
        least = f"{duration_text(step.low_s)} to " if step.low_s > 0 else "up to "
        number = f"{step.steps} step{'s' * (step.steps != 1)}"
        seen = f"a step took {least}{duration_text(step.high_s)} over {number}"
        if step.warmup_steps:
            seen += f", {step.warmup_steps} before to warm up"
    return (
        f"the time of a step on the machine of the recording is not known ({seen}): times are the "
        "device model's, from the traced operators, and their ranges are wider",
    )


def _assumed(recording: Recording) -> tuple[str, ...]:
    """Return what a rehearsal leaves open, or an environment takes, in words."""
    rehearsal, loading, found = recording.rehearsal, recording.loading, []
    if loading is not None and loading.is_environment:
        found.append(
            f"the environment takes {duration_text(loading.wait_s)} of a step on one core here, "
            "more or less on slower or faster ones"
        )
    if rehearsal is None:
        return tuple(found)
    found = [rehearsal.words, *found, *rehearsal.notes]
    deep = recording.deep_step
    if deep is not None and deep.least_operators:
        least, most = (sum(o["flop"]) / 1e9 for o in (deep.least_operators, deep.operators))
        found.append(
            f"the network decides sizes: a step is {least:,.3g} to {most:,.3g} Gflop, and the "
            "range of the answers covers both"
        )
    if rehearsal.has_decided:
        found.append("the length is a bound: a made-up value decides how long training lasts")
    return tuple(found)


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


def _recorded_length(recording: Recording, batch: int, lengths: Lengths) -> tuple[float, str]:
    """Return the steps of the whole job and where that number comes from."""
    epochs, total_steps, total_samples = lengths
    if total_steps is not None:
        return total_steps, "given: --total-steps"
    if total_samples is not None:
        return max(total_samples / batch, 1.0), "given: --total-samples"
    if epochs is not None:
        return epochs * _steps_per_epoch(recording, batch), "given: --epochs"
    work: TotalWork | None = recording.total_work
    if work is None:
        what = f"how long the job of run {recording.run_id} is could not be found"
        if recording.endless:
            what = f"the job of run {recording.run_id} is {recording.endless}"
        raise RunError(what, hint=f"say how long to train: {length_hint(recording)}")
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
    recording: Recording, step: StepTime | None, steps: float, batch: int
) -> tuple[float, float]:
    """Return how many epochs end in the whole job, and what each end takes in steps."""
    loading = recording.loading
    if (
        recording.boundary_s is None
        or step is None
        or loading is None
        or not loading.dataset_samples
    ):
        return 0.0, 0.0
    return steps * batch / loading.dataset_samples, recording.boundary_s / step.corrected_s


def _feed(recording: Recording, step: StepTime | None, samples: int, used: Resources) -> Feed:
    seen = recording.loading
    if seen is None:
        return Feed(unseen="" if recording.rehearsal is None else "samples")
    idle_s = 0.0 if step is None else idle_s_per_sample(
        step_s=step.corrected_s,
        wait_s=seen.wait_s,
        cpu_s=seen.cpu_s_per_sample,
        samples=samples,
        workers=seen.workers,
        busy_cores=(used.busy_cores or 0.0) + _cores_waited_for(recording),
        cores=recording.host.cpu_limit or recording.host.logical_cpus,
    )  # fmt: skip
    return Feed(
        **{name: getattr(seen, name) for name in Loading.__slots__}, idle_s_per_sample=idle_s
    )


def _cores_waited_for(recording: Recording) -> float:
    """Return how many cores the job's processes would have used beside those they had [cores].

    Loaders that stand still for want of a core load as fast as any where there is one.
    """
    started_s = recording.startup_raw_s or recording.startup_s or 0.0
    seen = [one for one in recording.readings if one.t_s >= started_s]
    if len(seen) < 2 or seen[-1].t_s <= seen[0].t_s:
        return 0.0
    delayed_s = seen[-1].run_delay_s - seen[0].run_delay_s
    return max(delayed_s, 0.0) / (seen[-1].t_s - seen[0].t_s)


# A clock that says nothing of a step: a 90 % interval of a factor of a hundred either way.
_MOST_LOG_SD = math.log(100.0) / REACH_90


def _measured(recording: Recording, step: StepTime | None, deep: DeepStep) -> Measured | None:
    """Return the clock's word on a step; None where nothing was computed."""
    step_s = sum(deep.operators["time_s"]) if step is None else step.corrected_s
    if recording.rehearsal is not None or step_s <= 0:
        return None
    return Measured(
        step_s=step_s,
        log_sd=_MOST_LOG_SD if step is None else min(step_log_sd(step), _MOST_LOG_SD),
        host=recording.host,
        threads=recording.threads,
        device=deep.device,
        processes=recording.world_size,
        exchange_s=(recording.communication or {}).get("exchange_s_per_step", 0.0),
        precision=recorded_precision(deep),
        setup=recorded_setup(
            deep, recording.optimizers, recording.told.loss if recording.told else ""
        ),
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
