"""From a recording to a job: what the planners need to know, or in words what is missing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, get_args

from advisor.collectors.derive import (
    LENGTH_LOG_SD,
    REACH,
    Resources,
    length_hint,
    resources_of,
    shortfall_of,
    step_log_sd,
    with_correction,
)
from advisor.collectors.errors import counted, duration_text
from advisor.collectors.format import (
    DeepStep,
    Loading,
    OperatorCount,
    Recording,
    Rounds,
    Saves,
    StepTime,
    TotalWork,
)
from advisor.errors import NotKnownError, RunError, UsageError
from advisor.jobs.describe import recognised, recorded_heads
from advisor.jobs.job import RUN_LOG_SD, Feed, Job, Measured, Program, recorded_data
from advisor.planners.core import (
    PRECISION_BYTES,
    Layer,
    Moment,
    Operator,
    OperatorKind,
    Optimizer,
    PlanningError,
    Precision,
    StoredWeights,
    TrainingSetup,
    Work,
)
from advisor.planners.memory import cast_parameters, excess_bytes
from advisor.planners.step import (
    OVER_LISTS,
    convolution_kind,
    fused_calls,
    idle_s_per_sample,
    kernels_in_call,
    kernels_of_layers,
    operator_kind,
    over_lists,
)
from advisor.planners.systems import (
    FEWEST_STEPS,
    NoiseScale,
    RankSpread,
    measured_noise,
    measured_spread,
    own_times,
)
from advisor.quantities import REACH_90

# Programs without a traced step: rounds of frameworks other than torch, and what has no steps.
#
# Rounds are steps that nobody saw into: their time is scaled by the speed and number of cores, as
# that of a program seen from outside. How many there are makes a partial run say the whole.


_NO_FEED: Final = Feed(
    workers=0, cpu_s_per_sample=None, wait_s=0.0, sample_bytes=None, dataset_samples=None
)
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
        feed=_NO_FEED,
        measured=Measured(
            step_s=busy_s,
            log_sd=with_correction(RUN_LOG_SD, recording.contention_half_width, 1.0),
            host=recording.host,
            threads=recording.threads,
            device="cpu",
        ),
        peak_rss_bytes=recording.peak_rss_bytes,
        recorded_batch=1,
    )


def rounds_job(
    recording: Recording,
    step: StepTime,
    rounds: Rounds,
    *,
    epochs: float | None,
    total_steps: float | None,
    total_samples: float | None,
    startup_log_sd: float,
) -> Job:
    """Take the rounds of a framework without torch's optimizers as steps.

    ``epochs``, ``total_steps``, ``total_samples``: the length, where the user says it.

    Raises RunError if they ran on a GPU, or nobody knows how many there are. Raises NotKnownError
    if a round is not known well enough to answer from.
    """
    if rounds.device != "cpu":
        raise RunError(
            f"run {recording.run_id} trained {rounds.kind} on a GPU, where no step was traced",
            hint="profile it on processors; what another GPU makes of it is not known",
        )
    lengths = (epochs, total_steps, total_samples)
    is_given = any(length is not None for length in lengths)
    is_whole = not is_given and _is_seen_to_its_end(recording)
    if not is_whole and (missing := shortfall_of(recording, is_length_given=is_given)):
        raise NotKnownError(missing[0], hint=missing[1])
    total, source = _length(recording, rounds, *lengths)
    seen = step.steps + step.warmup_steps
    log_sd = _log_sd(step, rounds, max(0.0, 1.0 - seen / total))
    if is_whole:
        log_sd = with_correction(RUN_LOG_SD, recording.contention_half_width, 1.0)
    batch, ends = max(1, round(recording.step_samples or 1)), _ends(recording, total)
    return Job(
        name=recording.run_id,
        work=None,
        program=_program(recording, step, rounds),
        global_batch=batch,
        total_steps=total,
        total_source=source,
        feed=_NO_FEED,
        measured=Measured(
            step_s=step.corrected_s,
            log_sd=log_sd,
            host=recording.host,
            threads=recording.threads,
            device="cpu",
        ),
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


def _is_seen_to_its_end(recording: Recording) -> bool:
    has_finished = recording.status == "finished" and recording.exit_code == 0
    return has_finished and recording.ending_s is not None


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


def _length(
    recording: Recording,
    rounds: Rounds,
    epochs: float | None,
    total_steps: float | None,
    total_samples: float | None,
) -> tuple[float, str]:
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


def length_log_sd(recording: Recording, is_given: bool) -> float:
    """Return the deviation of ln(steps) of a job whose length was told, or found."""
    work = recording.total_work
    return 0.0 if is_given or work is None else LENGTH_LOG_SD[work.confidence]


# From a traced step's memory to the moments that the planners replay.


def moments_of(deep: DeepStep) -> tuple[Moment, ...]:
    """Return the moments of a traced step that are its peak for some micro-batch.

    What is fixed at a moment is weights, optimizer state, autocast's copies of the weights (which
    the planners count by themselves), then gradients as far as there can be some, then what was
    computed from these alone.
    """
    if deep.samples < 1:
        return ()
    micro_batch = max(deep.samples // max(deep.micro_batches, 1), 1)
    cast = cast_parameters(recorded_precision(deep), deep.parameters, deep.parameter_bytes)
    model_bytes = (
        deep.parameter_bytes + deep.optimizer_state_bytes + PRECISION_BYTES["bf16"] * cast
    )
    found = []
    updates = ((False, deep.memory_frontier), (True, deep.update_frontier))
    for is_update, (fixed, growing, blocks) in ((u, m) for u, many in updates for m in many):
        beside = float(max(fixed - model_bytes, 0))
        gradients = min(beside, float(deep.gradient_bytes))
        if deep.shards > 1:  # of its own shards a rank's moments say nothing of the whole
            gradients = beside = float(deep.gradient_bytes)
        found.append(
            Moment(
                gradient_bytes=gradients,
                temporary_bytes=beside - gradients,
                growing_bytes_per_sample=growing / micro_batch,
                blocks=blocks,
                is_update=is_update,
            )
        )
    if found and (deep.shards > 1 or not deep.update_frontier):
        # Whatever updated them where they were recorded.
        update = Moment(
            gradient_bytes=float(deep.gradient_bytes),
            temporary_bytes=float(deep.gradient_bytes),
            growing_bytes_per_sample=0.0, is_update=True,
        )  # fmt: skip
        found.append(update)
    return tuple(found)


def input_bytes(loading: Loading | None, micro_batch: int) -> float:
    """Return what is loaded for a pass over ``micro_batch`` samples [bytes].

    A loader's batch at least: several passes may share one (the losses of a GAN).
    """
    if loading is None or loading.sample_bytes is None:
        return 0.0
    return loading.sample_bytes * max(micro_batch, loading.batch or 0)


# The work of a recorded job: the traced step's operators, layers, software, for the planners.


# What a call that Python makes takes on a host with a GPU, its driver included, by the major
# version of PyTorch; calls of autograd's engine and of updates over lists take a fifth of it
# (``DeviceParameters.engine_call_fraction``). Under PyTorch 1 as fitted to the steps of 32
# networks on seven hosts (lab/fit/hosts.py); under 2 a prior: today's hosts need 25 to 30 us over
# all calls of a ResNet-50. A processor without a driver takes 9 to 14 here
# (lab/experiments/eager_calls.py), which is nobody's GPU.
_CALL_S: Final = {1: 100e-6, 2: 52e-6}
# Traced as one call already, or no work at all.
_KERNELS_OF_LISTS = ("aten::_foreach", "aten::_fused", "profiler::")


def _kind(row: OperatorCount) -> OperatorKind:
    """Return the class of a recorded operator: by its name, a convolution by its shapes too."""
    if row.phase == "optimizer":
        return "optimizer"
    kind = operator_kind(row.name)
    return convolution_kind(row.shapes, row.flop / row.count) if kind == "convolution" else kind


def call_s(torch_version: str | None) -> float:
    """Return what a call that Python makes takes on an unseen host [s].

    >>> call_s("1.12.1+cu113") > call_s("2.9.0") == call_s(None)
    True
    """
    major = (torch_version or "2").split(".")[0]
    return _CALL_S[1 if major in ("0", "1") else 2]


def recorded_work(
    deep: DeepStep, loading: Loading | None, optimizers: Collection[str] = (),
    torch_version: str | None = None, is_rehearsed: bool = False,
) -> Work:  # fmt: skip
    """Divide the traced step by its passes: one micro-batch without accumulation.

    ``optimizers`` are the classes' names; ``torch_version``: of the software, which will start
    the calls elsewhere too; ``is_rehearsed``: nothing was computed, so that no measured step holds
    what the host's calls and those of an accelerator's library take.
    """
    passes = max(deep.micro_batches, 1)
    shrinks = _over_lists(deep, optimizers)
    fused = _fused(deep)
    micro_batch = max(deep.samples // passes, 1)
    batch = micro_batch if is_rehearsed else 0
    counted = partial(_operator, passes=passes, shrinks=shrinks, fused=fused, batch=batch)
    return Work(
        operators=tuple(counted(o) for o in deep.operators),
        least_operators=tuple(counted(o) for o in deep.least_operators),
        micro_batch=micro_batch,
        parameters=deep.parameters,
        trainable_parameters=deep.trainable_parameters,
        parameter_bytes=deep.parameter_bytes,
        optimizer_state_bytes=deep.optimizer_state_bytes,
        buffer_bytes=float(deep.buffer_bytes),
        saved_bytes_per_sample=deep.saved_bytes / micro_batch,
        input_bytes_per_sample=input_bytes(loading, micro_batch) / micro_batch,
        layers=tuple(
            Layer(
                name=layer.name,
                parameters=layer.parameters,
                forward_flop_per_sample=layer.forward_flop / deep.samples,
                backward_flop_per_sample=layer.backward_flop / deep.samples,
                output_bytes_per_sample=layer.output_bytes / deep.samples,
                saved_bytes_per_sample=layer.saved_bytes / deep.samples,
                forward_s=layer.forward_s / passes,
                backward_s=layer.backward_s / passes,
                kind=layer.kind,
            )
            for layer in deep.layers
        ),
        precision=recorded_precision(deep),
        setup=recorded_setup(deep),
        call_s=call_s(torch_version) if deep.device == "cpu" or is_rehearsed else None,
        moments=moments_of(deep),
    )


def _operator(
    row: OperatorCount, passes: int, shrinks: Mapping[str, float], fused: Mapping[str, float],
    batch: int,
) -> Operator:  # fmt: skip
    """Return a row of the traced step, divided by its passes; an update is one for all.

    ``batch``: of a pass that was rehearsed, 0 of one that was computed.
    """
    each = 1 if row.phase == "optimizer" else passes
    return Operator(
        name=row.name,
        kind=_kind(row),
        phase=row.phase,
        count=row.count * _kernels(row, batch) / each,
        listed=_listed(row, passes, shrinks, fused),
        flop=row.flop / each,
        bytes=row.bytes / each,
        fixed_bytes=row.fixed_bytes / each,
        dtype=row.dtype,
    )


def _kernels(row: OperatorCount, batch: int) -> float:
    """Return how many kernels a call starts, one after another."""
    if batch and row.name.removesuffix("_backward").endswith("_cudnn_rnn"):
        forward = row.flop / row.count / (1 if row.phase == "forward" else 2)
        return kernels_of_layers(row.shapes, forward, batch)
    return kernels_in_call(row.name, row.shapes)


def _over_lists(deep: DeepStep, optimizers: Collection[str]) -> dict[str, float]:
    """Return which operators an accelerator would run over lists, and how many calls are left.

    Traced on an accelerator they are as they were.
    """
    if deep.device != "cpu" or not optimizers or not OVER_LISTS.issuperset(optimizers):
        return {}
    calls: Counter[str] = Counter()
    for o in deep.operators:
        if o.phase == "optimizer" and not o.name.startswith(_KERNELS_OF_LISTS):
            calls[o.name] += o.count
    return over_lists(calls)


def _fused(deep: DeepStep) -> dict[str, float]:
    """Return by phase which share of the calls of recurrent layers an accelerator would start.

    Traced on an accelerator they are as they were; a library's own recurrence is no product here.
    """
    if deep.device != "cpu":
        return {}
    calls: Counter[str] = Counter()
    products: Counter[str] = Counter()
    for o in deep.operators:
        if o.fused_by:
            calls[o.phase] += o.count
            products[o.phase] += o.count * (operator_kind(o.name) == "matmul")
    return fused_calls(calls, products)


def _listed(
    row: OperatorCount, passes: int, shrinks: Mapping[str, float], fused: Mapping[str, float]
) -> float | None:
    """Return how often an accelerator calls what a processor called more often; None: as often."""
    if row.phase == "optimizer":
        return shrinks[row.name] * row.count if row.name in shrinks else None
    return fused[row.phase] * row.count / passes if row.fused_by and row.phase in fused else None


def recorded_precision(deep: DeepStep) -> Precision:
    """Return what most products were computed in."""
    return deep.precision if deep.precision in get_args(Precision) else "fp32"  # type: ignore[return-value]


def recorded_setup(deep: DeepStep) -> TrainingSetup:
    """Return what the recording shows of the software: by bytes and operators, not by names."""
    weights: StoredWeights = "bf16" if deep.parameter_bytes < 3 * deep.parameters else "fp32"
    of_weights = 0.5 if weights == "bf16" else 1.0
    kept = deep.optimizer_state_bytes / max(deep.trainable_parameters, 1) / of_weights
    known: tuple[tuple[float, Optimizer], ...] = (
        (6.0, "adamw"), (3.0, "sgd-momentum"), (1.0, "adamw-8bit"), (0.0, "sgd"),
    )  # fmt: skip
    is_flash = any(operator_kind(o.name) == "attention" for o in deep.operators)
    has_scores = any("softmax" in o.name and o.phase == "backward" for o in deep.operators)
    return TrainingSetup(
        kernels="compiled" if deep.is_compiled else "eager",
        attention="unfused" if has_scores and not is_flash else "flash",
        optimizer=next(name for least, name in known if kept >= least),
        weights=weights,
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
    (``collectors.derive.certainty``) and no step was traced on a processor. Raises UsageError if a
    given length or batch makes no sense.
    """
    lengths = (epochs, total_steps, total_samples)
    _check_lengths(*lengths, global_batch)
    is_length_given = any(length is not None for length in lengths)
    step = recording.step_time
    if step is None and recording.rehearsal is None and recording.deep_step is None:
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
        return rounds_job(
            recording,
            step,
            recording.rounds,
            epochs=epochs,
            total_steps=total_steps,
            total_samples=total_samples,
            startup_log_sd=startup_log_sd,
        )
    missing = shortfall_of(recording, is_length_given=is_length_given)
    if missing and not _is_traced_on_processor(recording):
        raise NotKnownError(missing[0], hint=_or_rehearse(missing[1], recording))
    if recording.deep_step is None and step is None:
        raise RunError(
            f"the rehearsal {recording.run_id} saw no whole training step",
            hint="rehearse for longer: advisor profile --rehearse --for 10m SCRIPT",
        )
    if recording.deep_step is None:
        raise RunError(
            f"run {recording.run_id} has step times but no traced step",
            hint="profile for longer (advisor profile --for 120s), so that one step can be traced",
        )
    loading = recording.loading
    local_batch = _local_batch(recording, recording.deep_step, loading)
    deep = recording.deep_step
    if deep.elsewhere:
        raise RunError(
            f"the run {recording.run_id} shows one rank's part alone: others run {deep.elsewhere}",
            hint="profile the script with one stage and all experts on a rank, or describe the "
            "model: --model config.json",
        )
    recorded_global = local_batch * (recording.world_size // deep.ranks)
    steps, source = _recorded_length(
        recording, recorded_global, epochs, total_steps, total_samples
    )
    batch = global_batch or recorded_global
    saves = _checkpoints(recording.saves, recording.deep_step.parameter_bytes)
    used = resources_of(recording)
    ends, end_steps = _epoch_ends(recording, step, steps, recorded_global)
    job = Job(
        name=recording.run_id,
        work=_work(recording, recording.deep_step),
        program=None,
        global_batch=batch,
        heads=recorded_heads(recording.deep_step.operators),
        total_steps=steps * recorded_global / batch,
        total_source=source,
        feed=_feed(recording, step, local_batch, used),
        measured=_measured(recording, step, recording.deep_step),
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
        unseen_log_sd=_unseen_log_sd(recording, steps, recorded_global),
        spread=rank_spread(recording),
        noise=gradient_noise(recording),
    )
    return recognised(job)


def _is_traced_on_processor(recording: Recording) -> bool:
    """Whether other machines are asked about the traced step alone, whatever the clock here said.

    The machine of the recording, which the clock does enter, is refused
    (``estimate.case.StepCase.status``).
    """
    return recording.deep_step is not None and recording.deep_step.device == "cpu"


def _or_rehearse(hint: str, recording: Recording) -> str:
    """Return the hint with the way that needs no clock, where no step could be traced."""
    if recording.deep_step is not None:
        return hint
    return f"{hint}; or compute nothing: advisor profile --rehearse SCRIPT answers for GPUs"


def _unclocked(recording: Recording) -> tuple[str, ...]:
    """Return what is said of a step whose operators are known and whose time here is not."""
    step = recording.step_time
    if recording.rehearsal is not None:
        return ()
    seen = "no step but the traced one was seen to its end"
    if step is not None:
        low, high = duration_text(step.low_s), duration_text(step.high_s)
        seen = f"a step took {low} to {high} over {step.steps} step{'s' * (step.steps != 1)}"
    return (
        f"the time of a step on the machine of the recording is not known ({seen}): times are the "
        "device model's, from the traced operators, and their ranges are wider",
    )


def _work(recording: Recording, deep: DeepStep) -> Work:
    """Return the work of the traced step; a rehearsed one is called by the host like any other."""
    is_rehearsed = recording.rehearsal is not None
    work = recorded_work(
        deep, recording.loading, recording.optimizers, recording.host.torch_version,
        is_rehearsed=is_rehearsed,
    )  # fmt: skip
    if not is_rehearsed:
        return work
    return replace(
        _with_segments(work, deep),
        operators=_computed_by_one(work.operators, deep.shards),
        least_operators=_computed_by_one(work.least_operators, deep.shards),
    )


def _with_segments(work: Work, deep: DeepStep) -> Work:
    """Return the work with what the allocator's segments lose, where they were replayed.

    A line over the batch, through the script's own.
    """
    lost = dict(deep.lost)
    if 1.0 not in lost:
        return work
    own, b = lost.pop(1.0), work.micro_batch
    rise = sum((times - 1) * (size - own) for times, size in lost.items())
    growing = min(max(rise / sum((times - 1) ** 2 for times in lost), 0.0), own)
    excess = float(excess_bytes(work, b, accumulates=deep.micro_batches > 1))
    moving = b * (work.saved_bytes_per_sample + work.input_bytes_per_sample) + max(excess, 0.0)
    if moving <= 0:
        return work
    return replace(work, slack=1.0 + growing / moving, lost_bytes=own - growing)


def _computed_by_one(operators: Sequence[Operator], shards: float) -> tuple[Operator, ...]:
    """Return what one device computes that has the model alone.

    It updates all ``shards``, and exchanges nothing.
    """
    return tuple(
        replace(o, flop=o.flop * times, bytes=o.bytes * times, fixed_bytes=o.fixed_bytes * times)
        for o in operators
        if "c10d" not in o.name
        for times in (shards if o.phase == "optimizer" else 1.0,)
    )


def _assumed(recording: Recording) -> tuple[str, ...]:
    """Return what a rehearsal leaves open, in words; empty for what was run for real."""
    rehearsal = recording.rehearsal
    if rehearsal is None:
        return ()
    found = [rehearsal.words, *rehearsal.notes]
    deep = recording.deep_step
    if deep is not None and deep.least_operators:
        least, most = (
            sum(one.flop for one in operators) / 1e9
            for operators in (deep.least_operators, deep.operators)
        )
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


def _recorded_length(
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
        what = f"how long the job of run {recording.run_id} is could not be found"
        if recording.endless:
            what = f"the job of run {recording.run_id} is endless ({recording.endless})"
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


def _unseen_log_sd(recording: Recording, steps: float, batch: int) -> float:
    """Return what ends of epochs add that the job has and the recording has not."""
    samples = recording.loading.dataset_samples if recording.loading else None
    has_ends = bool(samples) and steps * batch >= 2 * float(samples or 1)
    return _UNSEEN_ENDS_LOG_SD if has_ends and recording.boundary_s is None else 0.0


def _feed(recording: Recording, step: StepTime | None, samples: int, used: Resources) -> Feed:
    seen = recording.loading
    if seen is None:
        return _NO_FEED if recording.rehearsal is None else replace(_NO_FEED, unseen="samples")
    return Feed(
        workers=seen.workers,
        cpu_s_per_sample=seen.cpu_s_per_sample,
        wait_s=seen.wait_s,
        sample_bytes=seen.sample_bytes,
        dataset_samples=seen.dataset_samples,
        idle_s_per_sample=0.0
        if step is None
        else idle_s_per_sample(
            step_s=step.corrected_s,
            wait_s=seen.wait_s,
            cpu_s=seen.cpu_s_per_sample,
            samples=samples,
            workers=seen.workers,
            busy_cores=(used.busy_cores or 0.0) + _cores_waited_for(recording),
            cores=recording.host.cpu_limit or recording.host.logical_cpus,
        ),
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
    step_s = sum(o.time_s for o in deep.operators) if step is None else step.corrected_s
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


# Notes on what a recorded script needs for the machines of an answer: once, not on every row.


# Statistics of fewer samples than these are noise to batch normalisation: ResNet-50's error on
# ImageNet is 23.6 % at 32 images a device, 24.8 % at 8, 27.3 % at 4 and 34.7 % at 2
# (Wu and He, Group Normalization, 2018, table 2).
_FEWEST_SAMPLES = 8


def script_notes(job: Job, placed: Iterable[tuple[bool, int]]) -> tuple[str, ...]:
    """Return what to change in the script, and what spreading its batch does.

    ``placed``: of every candidate shown: whether it has accelerators, and its devices.
    """
    rows = list(placed)
    notes = []
    told = job.told
    if told is not None and told.change and any(is_accelerated for is_accelerated, _ in rows):
        notes.append(f"on accelerators the script needs a change ({told.reason}): {told.change}")
    most = max((devices for _, devices in rows), default=1)
    if job.told is not None and most > 1 and not job.told.spreads:
        notes.append(
            "rows of several devices need DDP or FSDP in the script, and none was seen "
            "(advisor plan prints the lines to add)"
        )
    if job.work is not None and most > 1:
        notes += _spread(job, most)
    return tuple(notes)


def _spread(job: Job, devices: int) -> list[str]:
    """Return what few samples a device do to the model and to the devices."""
    each = job.global_batch / devices
    if job.work is None or each >= _FEWEST_SAMPLES or job.told is None:
        return []
    kinds = {layer.kind for layer in job.work.layers}
    batch = counted(job.global_batch, "sample")
    samples = f"on {counted(devices, 'device')} each sees {each:.3g} of the {batch} a step"
    if any(kind.startswith("BatchNorm") for kind in kinds):
        return [
            f"{samples}: batch normalisation over so few changes what is learned "
            "(torch.nn.SyncBatchNorm, or a larger --batch)"
        ]
    return [f"{samples}; a larger --batch uses them better, with its learning rate tuned again"]
