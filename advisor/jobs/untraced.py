"""Jobs of programs without a traced step: rounds of frameworks, and what has no steps at all.

Rounds are steps that nobody saw into: their time is scaled by the speed and number of cores, as
that of a program seen from outside. How many there are makes a partial run say the whole.
"""

from __future__ import annotations

import math
from typing import Final

from advisor.collectors.derive import (
    REACH,
    length_log_sd,
    shortfall_of,
    step_log_sd,
    with_correction,
)
from advisor.collectors.format import Recording, Rounds, StepTime
from advisor.errors import NotKnownError, RunError, UsageError
from advisor.jobs.job import RUN_LOG_SD, Feed, Job, Lengths, Measured, Program

_NO_GPU: Final = (
    "a GPU is not used: nothing that was seen of {kind} tells what one would make of it"
)


def whole_program(recording: Recording, *, is_length_given: bool) -> Job:
    """Take all of a program without steps as one step, which must have been seen to its end.

    Raises RunError if it was not, or somebody says how many steps it has.
    """
    if is_length_given:
        raise RunError(
            f"run {recording.run_id} has no training steps to count",
            hint="leave out --epochs, --total-steps and --total-samples for this run",
        )
    if recording.status != "finished" and recording.startup_s is not None:
        raise RunError(
            f"run {recording.run_id} saw one training step, and none after it to time or to trace",
            hint="compute nothing: advisor profile --rehearse SCRIPT answers for GPUs; or profile "
            "for longer: advisor profile --for 10m SCRIPT",
        )
    if recording.status != "finished":
        raise RunError(
            f"run {recording.run_id} has no training steps and was not seen to its end",
            hint="without steps it is answered for processors, never for a GPU: let it finish "
            "(advisor profile --continue), or mark its steps with advisor.step(); advisor advise "
            "answers from what was seen",
        )
    return program_so_far(recording)


def program_so_far(recording: Recording) -> Job:
    """Take what was seen of a program without steps as one step: all of it where it finished."""
    is_whole = recording.status == "finished"
    busy_s = recording.duration_s if recording.busy_s is None else recording.busy_s
    cpu_s = recording.readings[-1].cpu_s if recording.readings else busy_s
    return Job(
        name=recording.run_id,
        work=None,
        program=Program(duration_s=busy_s, cpu_s=cpu_s, parallelism=max(cpu_s / busy_s, 0.05)),
        global_batch=1,
        total_steps=1.0,
        total_source="the run finished by itself (certain)"
        if is_whole
        else "as long as it was recorded: it was stopped",
        feed=Feed(),
        measured=_measured(recording, busy_s),
        peak_rss_bytes=recording.peak_rss_bytes,
        recorded_batch=1,
    )


def rounds_job(
    recording: Recording, step: StepTime, rounds: Rounds, lengths: Lengths, startup_log_sd: float
) -> Job:
    """Take the rounds of a framework without torch's optimizers as steps.

    Raises RunError if they ran on a GPU, or nobody knows how many there are. Raises NotKnownError
    if a round is not known well enough to answer from.
    """
    if rounds.device != "cpu":
        raise RunError(
            f"run {recording.run_id} trained {rounds.kind} on a GPU, where no step was traced",
            hint="profile it on processors; what another GPU makes of it is not known",
        )
    is_given = any(length is not None for length in lengths)
    has_finished = recording.status == "finished" and recording.exit_code == 0
    is_whole = not is_given and has_finished and recording.ending_s is not None
    if not is_whole and (missing := shortfall_of(recording, is_length_given=is_given)):
        raise NotKnownError(missing[0], hint=missing[1])
    total, source = _length(recording, rounds, lengths)
    seen = step.steps + step.warmup_steps
    log_sd = None if is_whole else _log_sd(step, rounds, max(0.0, 1.0 - seen / total))
    batch, ends = max(1, round(recording.step_samples or 1)), _ends(recording, total)
    return Job(
        name=recording.run_id,
        work=None,
        program=_program(recording, step, rounds),
        global_batch=batch,
        total_steps=total,
        total_source=source,
        feed=Feed(),
        measured=_measured(recording, step.corrected_s, log_sd),
        peak_rss_bytes=recording.peak_rss_bytes,
        recorded_batch=batch,
        startup_s=_beside_s(recording, step, total, ends, is_whole=is_whole),
        startup_log_sd=startup_log_sd,
        epochs=ends,
        epoch_end_steps=(recording.boundary_s or 0.0) / step.corrected_s,
        length_log_sd=length_log_sd(recording, is_given),
        assumptions=(_NO_GPU.format(kind=rounds.kind),),
        limits=recording.limits,
    )


def _measured(recording: Recording, step_s: float, log_sd: float | None = None) -> Measured:
    """Return what a step takes; with the error of a whole run where none is given."""
    if log_sd is None:
        log_sd = with_correction(RUN_LOG_SD, recording.contention_half_width, 1.0)
    host, threads = recording.host, recording.threads
    return Measured(step_s=step_s, log_sd=log_sd, host=host, threads=threads, device="cpu")


def _beside_s(
    recording: Recording, step: StepTime, total: float, ends: float, *, is_whole: bool
) -> float:
    """Return what stands before the rounds, and after them where that was seen. [s].

    The first round is one of all. Of a script that was seen to its end the whole is known.
    """
    start_s = max(0.0, (recording.startup_s or 0.0) - step.corrected_s)
    if not is_whole or recording.busy_s is None:
        return start_s + (recording.ending_s or 0.0)
    rounds_s = total * step.corrected_s + ends * (recording.boundary_s or 0.0)
    return max(start_s, recording.busy_s - rounds_s)


def _program(recording: Recording, step: StepTime, rounds: Rounds) -> Program:
    host_cores = recording.host.cpu_limit
    usable = host_cores if rounds.cores is None else min(host_cores, rounds.cores)
    busy = usable if rounds.busy_cores is None else rounds.busy_cores
    parallelism = min(max(busy, 0.05), usable)
    return Program(
        duration_s=step.corrected_s,
        cpu_s=step.corrected_s * parallelism,
        parallelism=parallelism,
        cores=rounds.cores,
        host_cores=host_cores,
        kind=rounds.kind,
        unit=rounds.unit,
    )


def _log_sd(step: StepTime, rounds: Rounds, unseen: float) -> float:
    """Return the error of ln(mean round of the whole job).

    Rounds that were not seen may be as far from the mean as the last ones seen are.
    """
    return math.hypot(step_log_sd(step), unseen * rounds.spread_fraction / REACH)


def _ends(recording: Recording, total: float) -> float:
    """Return how often the whole job has what a round with a new epoch or fit in it has more."""
    if not recording.boundaries or recording.step_time is None:
        return 0.0
    work = recording.total_work
    if work is not None and work.epochs:
        return total * work.epochs / work.steps
    seen = recording.step_time.steps + recording.step_time.warmup_steps + recording.boundaries
    return recording.boundaries * total / (seen + 1)


def _length(recording: Recording, rounds: Rounds, lengths: Lengths) -> tuple[float, str]:
    epochs, total_steps, total_samples = lengths
    work = recording.total_work
    if total_steps is not None:
        return total_steps, "given: --total-steps"
    if total_samples is not None:
        if not recording.step_samples:
            raise UsageError(
                f"how many samples a {rounds.unit} of {rounds.kind} takes is not known",
                hint=f"give --total-steps: the number of {rounds.unit}s",
            )
        return max(total_samples / recording.step_samples, 1.0), "given: --total-samples"
    if epochs is not None:
        if work is None or not work.epochs:
            raise UsageError(
                f"{rounds.kind} has no epochs that were seen",
                hint=f"give --total-steps: the number of {rounds.unit}s",
            )
        return epochs * work.steps / work.epochs, "given: --epochs"
    if work is None:
        raise RunError(
            f"how many {rounds.unit}s of {rounds.kind} the job of run {recording.run_id} makes "
            "could not be found",
            hint=f"give it: --total-steps N, the number of {rounds.unit}s",
        )
    return float(work.steps), f"{work.source} ({work.confidence})"
