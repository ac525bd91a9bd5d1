"""The job that a user means: a recorded run, a job file, or a described model."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from advisor.answer import from_record, object_in, to_record
from advisor.ask import JobSpec, SetupRequest
from advisor.collectors import atomic
from advisor.collectors.derive import find_run, latest_run, local_folder, read_recording
from advisor.collectors.errors import RecordingError
from advisor.collectors.format import PROFILER_FILE
from advisor.errors import AdvisorError, RunError, UsageError
from advisor.jobs.describe import (
    described_defaults,
    described_job,
    model_name,
    model_work,
    read_content,
    read_model,
    sequence_notes,
    unseen_input,
)
from advisor.jobs.from_recording import job_from_recording
from advisor.jobs.job import BOOT_S, Job
from advisor.jobs.model_facts import described_anew, recognised, restacked, with_setup
from advisor.jobs.recorded_work import CALL_S
from advisor.jobs.runs import Actual, read_actuals, read_layout_runs, unread_lines
from advisor.planners import step
from advisor.planners.core import DEFAULT_SETUP, Precision, Transformer, Work
from advisor.planners.layouts import check_sizes
from advisor.planners.step import PRODUCTS, in_precision

if TYPE_CHECKING:
    from advisor.planners.step import DescribedModel


SCHEMA_VERSION: Final = 1
KIND: Final = "advisor-job"
_HINT: Final = "write it again: advisor predict ... --save-job FILE"


def write_job(job: Job, path: Path) -> None:
    """Write a job; the file is whole or not there.

    Raises RunError if it cannot be written.
    """
    # Runs in known layouts are the user's, not the job's: they stand beside the recorded runs.
    own = to_record(replace(job, layout_runs=()))
    del own["layout_runs"]
    record = {"schema_version": SCHEMA_VERSION, "kind": KIND, "job": own}
    try:
        atomic.write_text(path, json.dumps(record, indent=1) + "\n")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}", hint="choose another place") from error


def read_job(path: Path) -> Job:
    """Read a job.

    A job file is one JSON object, ``{"schema_version": 1, "kind": "advisor-job", "job": {...}}``,
    whose fields are those of ``advisor.jobs.job.Job`` and of the nouns inside it. Everything is
    checked: nothing of another version, no missing or unknown field, no impossible size.

    Raises RunError if the file cannot be read, is of another version, or a value in it makes no
    sense; the message names the field.
    """
    record = object_in(path, "the job file", error=RunError, hint=_HINT)
    if record.get("kind") != KIND:
        raise RunError(f"{path} is not a job file", hint=_HINT)
    version = record.get("schema_version")
    if version != SCHEMA_VERSION:
        raise RunError(
            f"{path} has schema version {version}; this advisor reads {SCHEMA_VERSION}",
            hint="write it again with this version, or use the advisor that wrote it",
        )
    try:
        known = _grouped(_today(record.get("job")))
        job = from_record(Job, known, where="job", is_strict=True)
        _check(job)
    except ValueError as error:
        raise RunError(
            f"{path}: {error}", hint="correct the field, or write the file again"
        ) from error
    return job


def _today(job: Any) -> Any:
    """Return a job as it is written today.

    Older files say only whether it ``is_compiled``, that a call takes what it was thought to, and
    where adapters stand that nobody trains.
    """
    work = job.get("work") if isinstance(job, dict) else None
    if not isinstance(work, dict):
        return job
    if work.get("call_s") in _ONCE_USUAL_S:
        work = work | {"call_s": CALL_S}
        job = job | {"work": work}
    for name in ("work", "measured"):
        holder = job.get(name)
        setup = holder.get("setup") if isinstance(holder, dict) else None
        if isinstance(setup, dict) and setup.get("adapter_rank") is None:
            setup = {field: value for field, value in setup.items() if field != "adapter_targets"}
            job = job | {name: holder | {"setup": setup}}
    if "setup" in work or "is_compiled" not in work:
        return job
    rest = {name: value for name, value in work.items() if name != "is_compiled"}
    kernels = "compiled" if work["is_compiled"] is True else "eager"
    return job | {"work": rest | {"setup": {"kernels": kernels}}}


# On a processor without a driver; by the major versions of PyTorch; before zeroing was a call.
_ONCE_USUAL_S: Final = (11e-6, 100e-6, 52e-6, 65e-6)
# Operators from which on equal ones become one: what a recording writes is grouped already.
_MANY_OPERATORS: Final = 1000
# What all calls of an operator sum up to.
_SUMMED: Final = ("count", "flop", "bytes", "fixed_bytes", "listed")


def _grouped(job: Any) -> Any:
    """Return a job with many operators as one that has each of the equal ones once.

    An operator stands for all its calls of the same sizes: of n equal ones, for n times as many.
    """
    work = job.get("work") if isinstance(job, dict) else None
    rows = work.get("operators") if isinstance(work, dict) else None
    if not isinstance(work, dict) or not isinstance(rows, list) or len(rows) < _MANY_OPERATORS:
        return job
    found: dict[tuple[Any, ...], tuple[Any, int]] = {}
    for place, row in enumerate(rows):
        # What is no table of plain values is left for the reader to refuse.
        is_plain = isinstance(row, dict) and not any(
            isinstance(v, list | dict) for v in row.values()
        )
        key = tuple(row.items()) if is_plain else (place,)
        found[key] = row, found.get(key, (row, 0))[1] + 1
    merged = [row if number == 1 else _times(row, number) for row, number in found.values()]
    return job | {"work": work | {"operators": merged}}


def _times(row: dict[str, Any], number: int) -> dict[str, Any]:
    """Return an operator with so many times its calls; what is no number stays to be refused."""
    plain = {name: row.get(name) for name in _SUMMED}
    return row | {
        name: number * value
        for name, value in plain.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _check(job: Job) -> None:
    if job.work is None and job.program is None:
        raise ValueError("job has neither work nor program")
    for name, value in (
        ("global_batch", job.global_batch), ("total_steps", job.total_steps),
        ("recorded_batch", job.recorded_batch),
    ):  # fmt: skip
        if not value > 0:
            raise ValueError(f"job.{name} must be positive, got {value}")
    if job.work is None:
        return
    for operator in job.work.operators:
        if operator.kind in PRODUCTS and operator.flop == 0:
            raise ValueError(
                f"operator {operator.name!r} ({operator.phase}) is a {operator.kind} without flop"
            )


_DESCRIBED_SEQUENCE: Final = 2048
_DESCRIBED_VOCABULARY: Final = 50_304


def load_job(run: str | Path | None = None, **length: Any) -> Job:
    """Read a recorded run as a job.

    ``run``: name or folder of a run; the latest where None; ``**length``: ``epochs``,
    ``total_steps``, ``total_samples``, ``global_batch``: see
    ``advisor.jobs.from_recording.job_from_recording``.

    Raises RecordingError if there is no such run, or it cannot be read. Raises RunError if it
    lacks what a prediction needs.
    """
    path = latest_run() if run is None else find_run(str(run))
    recording = read_recording(path)
    job = job_from_recording(recording, **length)
    root = path.parent
    noted = read_actuals(root, path.name)

    elsewhere = recorded_elsewhere(path, recording.command, job)
    unread = (*job.unread, *unread_lines(root))
    return replace(_booting(job), actuals=(*noted, *elsewhere), unread=unread)


def job_from_spec(
    spec: JobSpec, setup: SetupRequest | None = None, *, job: Job | None = None,
    actuals: tuple[Actual, ...] = (),
) -> Job:  # fmt: skip
    """Return the job that is meant: recorded, saved, described, or the one given, changed.

    ``spec``: its table of runs is for others to read (``estimate.knowledge``); ``setup``: what the
    user says about the training software; ``job``: the job meant, in place of one that ``spec``
    names; ``actuals``: runs of the job, beside those that it has.

    Raises UsageError if several jobs are named, or a value makes no sense. Raises PlanningError if
    a model cannot be described.
    """
    asked = setup or SetupRequest()
    if job is not None and spec.names_a_job:
        raise UsageError("two jobs are given", hint="give one of them")
    if job is None and spec.is_described:
        found = _sized(_described(spec, asked), replace(spec, batch=None))
    else:
        if job is None:
            job, spec = _recorded_or_saved(spec)
        if spec.precision is not None and job.work is not None:
            asked_for, is_autocast = cast(Precision, spec.precision), asked.weights != "bf16"
            job = replace(job, work=in_precision(job.work, asked_for, is_autocast=is_autocast))
        if spec.call_s is not None and job.work is not None:
            job = replace(job, work=_started_in(job.work, spec.call_s))
        found = with_setup(_sized(job, spec), asked)
        found = found if spec.heads is None else recognised(found, heads=spec.heads)
    found = replace(found, actuals=(*found.actuals, *actuals))
    found = _starting_from(found, spec)
    return _surrounded(_booting(with_layout_runs(found), spec.boot_h), spec)


def _started_in(work: Work, call_s: float) -> Work:
    """Return recorded work whose calls take so long to start on its machines."""
    if work.call_s is None:
        raise UsageError(
            "--call goes with a job that was recorded on a processor, or rehearsed",
            hint="leave it out: calls of other jobs are the device model's",
        )
    return replace(work, call_s=call_s, is_host_known=True)


def _booting(job: Job, boot_h: float | None = None) -> Job:
    """Return the job with the time that rented machines take to start; what it has is kept."""
    boot_s = job.transfers.boot_s if boot_h is None else 3600.0 * boot_h
    boot_s = BOOT_S if boot_s is None else boot_s
    return replace(job, transfers=replace(job.transfers, boot_s=boot_s))


# Bytes of a parameter as model hubs keep weights: 16-bit floats, quantized after the download.
_HUB_BYTES: Final = 2.0


def _starting_from(job: Job, spec: JobSpec) -> Job:
    """Return the job with the weights that it starts from, which machines download.

    A described model whose weights are frozen in part starts from them; of others nothing is
    known, and a recording's start has it.
    """
    weights, work = spec.download_bytes, job.work
    if weights is None and spec.is_described and work is not None:
        is_tuned = work.setup.has_adapters or work.setup.frozen_fraction > 0
        weights = _HUB_BYTES * work.parameters if is_tuned else None
    if weights is None:
        return job
    return replace(job, transfers=replace(job.transfers, weights_bytes=weights))


def with_layout_runs(job: Job, root: Path | None = None) -> Job:
    """Return a transformer with the steps that the user measured of any, in known layouts.

    ``job``: any other job is returned as it is, and one that has such runs, or steps of its own
    that were measured elsewhere.
    """
    if job.work is None or job.work.transformer is None or job.actuals or job.layout_runs:
        return job
    place = local_folder(root)
    return replace(
        job,
        layout_runs=read_layout_runs(place),
        unread=tuple(dict.fromkeys((*job.unread, *unread_lines(place, of_layouts=True)))),
    )


def _recorded_or_saved(spec: JobSpec) -> tuple[Job, JobSpec]:
    """Return the job as it was, and what remains to be changed of it.

    A recording is told its length, where it may not have found one; it knows what an epoch is.
    """
    if spec.job_file is not None:
        return read_job(Path(spec.job_file)), spec
    run = None if spec.run == "latest" else spec.run
    is_said = spec.total_steps or spec.total_samples or spec.tokens
    # The length itself is set by _sized: here any will do.
    job = load_job(run, epochs=spec.epochs, total_steps=1.0 if is_said else None)
    return job, replace(spec, epochs=None)


def _described(spec: JobSpec, setup: SetupRequest) -> Job:
    """Return the job of a model that was never run, one step long."""
    if spec.cnn is not None:
        model: DescribedModel = step.parse_network(spec.cnn)
    elif spec.model is not None:
        model = read_model(Path(spec.model), sequence=spec.sequence, image=spec.image)
    else:
        model = _transformer(spec)
    training = restacked(DEFAULT_SETUP, setup.given)
    batch, assumptions = described_defaults(model, training, batch=spec.batch)
    config = None if spec.model is None else read_content(Path(spec.model))
    if spec.sequence is None and spec.cnn is None:
        longest = None if config is None else step.longest_sequence(config)
        assumptions += sequence_notes(model, longest)
    work = model_work(
        model,
        micro_batch=batch,
        precision=cast(Precision, spec.precision or "bf16"),
        setup=training,
    )
    name = "cnn" if spec.cnn is not None else "transformer"
    if spec.model is not None:
        name = model_name(Path(spec.model))
    job = described_job(work, name=name, assumptions=assumptions, unseen=unseen_input(model))
    return job if config is None else replace(job, left_out=step.config_notes(config, model))


def _transformer(spec: JobSpec) -> Transformer:
    if spec.layers is None or spec.hidden is None or spec.heads is None:
        raise UsageError(
            "a transformer's dimensions are incomplete", hint="give --layers, --hidden and --heads"
        )
    names = ("kv_heads", "ffn", "is_gated", "experts", "experts_per_token")
    shape = Transformer(
        layers=spec.layers,
        hidden=spec.hidden,
        heads=spec.heads,
        vocabulary=_DESCRIBED_VOCABULARY if spec.vocabulary is None else spec.vocabulary,
        sequence=spec.sequence or _DESCRIBED_SEQUENCE,
        has_tied_embeddings=spec.is_tied is not False,
        **{n: value for n in names if (value := getattr(spec, n)) is not None},
    )
    check_sizes(shape, 1, 1)  # before its layers are written out one by one
    return shape


def _sized(job: Job, spec: JobSpec) -> Job:
    """Return the job with another batch, and as long as is said; of the same epochs otherwise."""
    if spec.batch is not None and spec.batch != job.global_batch:
        job = _in_batch(job, spec.batch)
    length = _length(job, spec)
    if length is None:
        return job
    if job.work is None:
        raise UsageError(f"{job.name} has no training steps to count", hint="leave its length out")
    steps, source = length
    epochs = job.epochs * steps / job.total_steps
    return replace(
        job, total_steps=steps, total_source=f"given: {source}", epochs=epochs, length_log_sd=0.0
    )


def _in_batch(job: Job, batch: int) -> Job:
    """Return the job with another global batch, over the same samples."""
    ratio = job.global_batch / batch
    changed = replace(
        job,
        global_batch=batch,
        total_steps=job.total_steps * ratio,
        epoch_end_steps=job.epoch_end_steps * ratio,
        assumptions=tuple(note for note in job.assumptions if "--batch" not in note),
    )
    if job.work is None or job.work.transformer is None or job.measured is not None:
        return changed
    work = described_anew(job.work, micro_batch=batch)
    return replace(changed, work=work, recorded_batch=batch)


def _length(job: Job, spec: JobSpec) -> tuple[float, str] | None:
    """Return the steps that the user says, and by which option; None where nothing is said."""
    if spec.total_steps is not None:
        return spec.total_steps, "--total-steps"
    samples, option = spec.total_samples, "--total-samples"
    if samples is None and spec.tokens is not None:
        samples, option = spec.tokens / _sequence(job, spec), "--tokens"
    if samples is not None:
        steps = samples / job.global_batch
        return (steps, option) if steps >= 1.0 else (1.0, f"{option}, less than a step")
    if spec.epochs is None:
        return None
    if job.feed.dataset_samples is None:
        raise UsageError(
            "how many samples an epoch has is unknown",
            hint="give --total-steps or --total-samples",
        )
    return spec.epochs * math.ceil(job.feed.dataset_samples / job.global_batch), "--epochs"


def _sequence(job: Job, spec: JobSpec) -> int:
    """Return the tokens of a sample, which --tokens needs."""
    shape = None if job.work is None else job.work.transformer
    sequence = spec.sequence or (None if shape is None else shape.sequence)
    if sequence is None:
        raise UsageError(
            f"how many tokens a sample of {job.name} has is unknown",
            hint="add --sequence 2048, or give --total-samples in place of --tokens",
        )
    return sequence


def _surrounded(job: Job, spec: JobSpec) -> Job:
    """Return the job with what is moved before, during and after it, and its validation."""
    moved = job.transfers
    if spec.data_bytes is not None:
        moved = replace(moved, data_bytes=spec.data_bytes, data_source="given: --data")
    for flag, name in (("--data-rate", "data_bytes_per_s"),
                       ("--checkpoint-rate", "checkpoint_bytes_per_s")):  # fmt: skip
        rate = getattr(spec, name)
        if rate is not None and rate <= 0:
            raise UsageError(f"{flag}: nothing moves at 0 bytes/s", hint="use 100MB/s")
        moved = moved if rate is None else replace(moved, **{name: rate})
    if spec.result_bytes is not None:
        moved = replace(moved, result_bytes=spec.result_bytes)
    if spec.validation_fraction is not None:
        epochs = job.epochs or 1.0
        steps = spec.validation_fraction * job.total_steps / epochs
        job = replace(
            job, epochs=epochs, epoch_end_steps=steps, epoch_end_log_sd=0.0, unseen_log_sd=0.0
        )
    return replace(job, transfers=moved)


MOST: Final = 8  # recordings looked into, the newest first: each takes some 10 ms
_SAME_FLOP: Final = 0.01  # of a sample: kernels of another device are counted a little differently


def recorded_elsewhere(path: Path, command: tuple[str, ...], job: Job) -> tuple[Actual, ...]:
    """Return the steps of a recorded job that were recorded on other machines' GPUs.

    They lie beside one another where runs are kept (``ADVISOR_RUNS``, a folder or URL that
    machines share). Two recordings are of one job if their commands are, interpreter aside, and a
    sample takes as many operations in the same precision.
    """
    name = _script(path)
    beside = sorted(path.parent.glob(f"*-{name}-*"), reverse=True)
    others = [
        one for one in beside
        if one.name != path.name and _script(one) == name and (one / PROFILER_FILE).is_file()
    ]  # fmt: skip
    found = (_read(one, command) for one in others[:MOST])
    return tuple(noted for one in found if one is not None and (noted := step_of(one, job)))


def step_of(other: Job, job: Job) -> Actual | None:
    """Return another recording's step as a run of the job; None where it is none on a GPU."""
    seen, here = other.measured, job.measured
    if seen is None or not seen.device.startswith("cuda") or not seen.host.gpus:
        return None
    is_here = here is not None and here.device.startswith("cuda")
    if is_here and here is not None and here.host.gpus[:1] == seen.host.gpus[:1]:
        return None  # it anchors itself
    if not _are_one(other, job):
        return None
    return Actual(
        run=other.name,
        provider="",
        instance_type=seen.host.gpus[0],
        count=seen.processes,
        step_s=seen.step_s,
        batch=other.recorded_batch * seen.processes,
    )


def _are_one(other: Job, job: Job) -> bool:
    if other.work is None or job.work is None or other.work.precision != job.work.precision:
        return False
    flop = [float(w.operators.flop.sum()) / w.micro_batch for w in (other.work, job.work)]
    return abs(flop[0] - flop[1]) <= _SAME_FLOP * max(flop)


def _read(path: Path, command: tuple[str, ...]) -> Job | None:
    """Return the job of a recording of that command; None where there is none to read."""
    try:
        recording = read_recording(path)
        if recording.command[1:] != command[1:]:
            return None
        return job_from_recording(recording, total_steps=1.0)
    except (RecordingError, AdvisorError):
        return None  # killed, too short, of another version: no run to learn from


def _script(path: Path) -> str:
    """Return the script's name in a run's: 20261122-000349-train-d610 recorded train."""
    return "-".join(path.name.split("-")[2:-1])
