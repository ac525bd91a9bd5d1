"""A ``Recording`` derived from the raw files of a run; everything here can be derived again."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from advisor.collectors.derive.certainty import SETTLED, waited_for
from advisor.collectors.derive.deep_step import deep_step
from advisor.collectors.derive.profiler_log import (
    ProfilerLog,
    process_series,
    read_profiler_log,
    throttling,
)
from advisor.collectors.derive.ranks import (
    communication_of,
    corrected_together,
    ranks_of,
    unshared_data,
    wrapping_of,
)
from advisor.collectors.derive.resources import peak_memory_bytes
from advisor.collectors.derive.timing import Times, Tree, times
from advisor.collectors.derive.work import (
    GivenWork,
    as_it_ended,
    batches_per_step,
    endless_loop,
    rounds_of,
    steps_per_epoch,
    total_work,
    unused,
)
from advisor.collectors.errors import RecordingError, printable
from advisor.collectors.format import (
    EVENT_FILES,
    PROFILER_FILE,
    Corrected,
    DeepStep,
    Events,
    Host,
    Loading,
    Recording,
    StepClock,
    StepTime,
    ended_of,
    gradient_norms,
    limits_of,
    noun,
    rehearsed_of,
    routing_of,
    saves_of,
    sheet_of,
    take_all,
    told_of,
)
from advisor.collectors.hooks.format import CLOCKS

_CONTENDED = 0.2
_MOST_PLAYED = 0.95  # of a step
_CONTRADICTIONS = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError
)  # fmt: skip


def read_events(path: Path) -> Events:
    """Read one process's event file, as far as it is readable."""
    events = Events()
    try:
        data = path.read_bytes()
    except OSError:
        return events
    take_all(events, data)
    return events


def recording(run: Path) -> Recording:
    """Derive the recording of the run in folder ``run``.

    Raises RecordingError if there is none, or it is empty, unreadable, or says what no recording
    can say.
    """
    try:
        return _derive(run)
    except RecordingError:
        raise
    except _CONTRADICTIONS as error:
        # Facts are JSON of somebody's making: checked by using them, refused as a whole.
        raise RecordingError(
            f"the recording {run.name} contradicts itself: {error!r}",
            hint="profile again; `advisor runs rm` removes this one",
        ) from error


def _derive(run: Path) -> Recording:
    log = read_profiler_log(run / PROFILER_FILE)
    processes = [read_events(path) for path in sorted(run.glob(EVENT_FILES))]
    trainer = trainer_of(processes) or Events()
    world_size = world_size_of(processes)
    tree = Tree(log, _end_ns(log, processes))
    pid = log.header.get("pid", 0)
    timed = times(trainer, tree, profiler_pid=pid, world_size=world_size)
    found = [one for one in map(rehearsed_of, [trainer, *processes]) if one is not None]
    rehearsal = found[0] if found else None
    # The time of a rehearsed step is that of making fakes: nobody is told it.
    step_time = None if rehearsal is not None else _step_time(trainer, log, timed)
    if step_time is not None:
        step_time = corrected_together(step_time, trainer, processes)
    loading = _loading(trainer, timed) or _environment(trainer, step_time)
    waits_s = 0.0 if loading is None else loading.wait_s
    computing_s = None if step_time is None else step_time.corrected_s - waits_s
    facts = trainer.facts
    deep = deep_step(
        facts.get("deep_step", []), computing_s, facts.get("updates", []),
        trainer.fact("least_step").get("operators", ()),
    )  # fmt: skip
    device = None if deep is None else deep.device
    per_step = _samples_per_step(trainer, None if deep is None else deep.samples)
    # Ranks that divide the work of a sample train on the same ones.
    replicas = world_size // (1 if deep is None else deep.ranks)
    samples = None if per_step is None else per_step * replicas
    options = log.header.get("options", {})
    given = noun(GivenWork, options.get("given", {}))
    whole = timed.whole
    ranks = ranks_of(processes, trainer)
    start_ns = int(log.header["t_ns"])
    host = _host(log, trainer)
    passes = _accumulation_steps(trainer, deep)
    if deep is not None and passes == 1 and trainer.intervals:
        deep = replace(deep, micro_batches=1)  # several losses of one batch are one pass
    length = total_work(
        trainer, given, samples_per_step=samples or 0.0, is_finished=_is_finished(log)
    )
    derived = noun(
        Recording,
        {**options, **log.header, **log.end},
        run_id=printable(run.name),
        path=run,
        folder=str(log.header.get("cwd", "")),
        duration_s=whole.raw_s,
        host=host,
        readings=tuple(log.readings),
        step_time=step_time,
        deep_step=deep,
        loading=loading,
        total_work=as_it_ended(length, trainer, given) if _is_finished(log) else length,
        threads=trainer.fact("torch").get("threads"),
        world_size=world_size,
        accumulation_steps=passes,
        peak_rss_bytes=peak_memory_bytes(log.readings, int(log.end.get("max_rss_bytes", 0))),
        warnings=(),
        ending_s=_ending_s(trainer, log, timed),
        boundaries=len(trainer.steps.boundaries()),
        **_spelt("startup", timed.startup),
        **_spelt("boundary", timed.boundary),
        busy_s=whole.corrected_s,
        contention=1.0 - whole.corrected_s / whole.raw_s if whole.raw_s else 0.0,
        contention_half_width=whole.half_width_s / whole.corrected_s if whole.corrected_s else 0.0,
        step_samples=samples,
        optimizers=tuple(one["kind"] for one in trainer.fact("optimizers").get("optimizers", [])),
        communication=communication_of(processes, ranks),
        gradients=gradient_norms(processes, samples=samples, passes=passes, ranks=world_size),
        saves=saves_of(trainer.facts.get("saved", []), trainer.steps.kept_share),
        rounds=rounds_of(trainer, step_time, log.readings, start_ns),
        ranks=ranks,
        processes=process_series(log.processes, start_ns, {one.pid: one.rank for one in ranks}),
        throttling=throttling(log.readings),
        wrapping=wrapping_of(processes),
        touched=tuple(log.touched),
        routing=routing_of(trainer.fact("routers"), trainer.facts.get("routes", [])),
        limits=limits_of(trainer.fact("limits"), host.logical_cpus, host.cpu_limit),
        told=told_of(trainer, device, log.header.get("command", ()), world_size),
        rehearsal=rehearsal,
        ended=ended_of(processes),
        endless=endless_loop(trainer) if length is None else "",
        fallbacks=tuple(
            dict.fromkeys(
                str(one["package"])
                for events in processes
                for one in events.facts.get("fallback", ())
            )
        ),
    )
    idle = unused(given, derived.total_work, derived) if step_time is not None else ""
    warnings = (*log.warnings, *_warnings(derived, processes), *([idle] if idle else []))
    return replace(derived, warnings=warnings)


def _spelt(name: str, time: Corrected | None) -> dict[str, Any]:
    """Return a time as the fields of ``Recording``: corrected, by the clock, and how far off."""
    if time is None:
        return {}
    kinds = (("s", time.corrected_s), ("raw_s", time.raw_s), ("half_width_s", time.half_width_s))
    return {f"{name}_{kind}": value for kind, value in kinds}


def _ending_s(trainer: Events, log: ProfilerLog, timed: Times) -> float | None:
    """Return how long the program took to leave; None where it did not by itself [s]."""
    has_obeyed = bool(trainer.fact("obeyed").get("stops"))
    if timed.tail is None or not (_is_finished(log) or has_obeyed):
        return None
    return timed.tail.corrected_s


def _is_finished(log: ProfilerLog) -> bool:
    return log.end.get("status") == "finished" and log.end.get("exit_code") == 0


def trainer_of(processes: list[Events]) -> Events | None:
    """Return the process that trains: highest clock, most steps; rank 0 among equals."""
    ticking = [one for one in processes if one.clock >= 0 and one.completed > 0]
    if not ticking:
        return None

    def rank(one: Events) -> tuple[int, bool, int]:
        is_first = one.fact("process_group").get("rank", 0) == 0
        if "rehearsal" in one.facts:  # what was recorded before was given up
            return len(CLOCKS), is_first, one.completed
        return one.rank, is_first and one.completed > 1, one.completed

    return max(ticking, key=rank)


def world_size_of(processes: list[Events]) -> int:
    """Return how many processes train together."""
    sizes = [one.fact("process_group").get("world_size", 1) for one in processes]
    return max(sizes, default=1)


def _step_time(trainer: Events, log: ProfilerLog, timed: Times) -> StepTime | None:
    now = timed.step
    if now is None:
        return None
    waits_for = waited_for(
        trainer.steps,
        now,
        epoch_steps=steps_per_epoch(trainer),
        epochs_begun=trainer.epochs_begun,
        half_width_fraction=log.header.get("options", {}).get("half_width_fraction"),
    )
    # On an accelerator waiting for a core and computing overlap: a step is not shorter than there.
    corrected = max(now.corrected_s, _device_step_s(trainer))
    half = math.hypot(now.half_width_s, now.time.half_width_s)
    return StepTime(
        corrected_s=corrected,
        raw_s=now.raw_s,
        low_s=max(0.0, corrected - half),
        high_s=corrected + half,
        steps=now.steps,
        warmup_steps=now.warmup_steps,
        delay_fraction=max(0.0, 1.0 - corrected / now.raw_s),
        clock=cast(StepClock, CLOCKS[trainer.clock]),
        # By what ended the recording, if it did: judged after its last steps, it might not be.
        is_settled=not waits_for or log.end.get("stop_reason") == SETTLED,
        contention_half_width_s=now.time.half_width_s,
    )


def _device_step_s(trainer: Events) -> float:
    """Return the median step on the accelerator, 0 where none was timed. [s]."""
    times = sorted(trainer.device_steps_ns)
    return times[len(times) // 2] / 1e9 if times else 0.0


def _loading(trainer: Events, timed: Times) -> Loading | None:
    fact = trainer.loader_fact()
    number = trainer.training_loader()
    if not fact or number is None:
        return None
    counts = trainer.loaders[number]
    batch = next((f for f in trainer.facts.get("batch", []) if f.get("loader") == number), {})
    workers = fact.get("workers", 0)
    spent_ns = counts.workers_cpu_ns if workers else counts.inside_cpu_ns
    time = None if timed.step is None else timed.step.time
    return noun(
        Loading,
        fact,
        # Without workers the loop does not wait for the samples, it makes them.
        wait_s=0.0 if time is None else time.wait_s,
        raw_wait_s=0.0 if time is None else time.raw_wait_s,
        cpu_s_per_sample=spent_ns / counts.samples / 1e9 if counts.samples and spent_ns else None,
        sample_bytes=batch.get("sample_bytes"),
    )


def _environment(trainer: Events, step: StepTime | None) -> Loading | None:
    """Return an environment as what feeds the loop; None where none was seen."""
    spent_s = float(trainer.fact("environment").get("per_step_s", 0.0))
    samples = _samples_per_step(trainer, trainer.fact("deep_step").get("samples"))
    if spent_s <= 0 or not samples:
        return None
    if step is not None:  # which is without waiting for a core
        spent_s = min(spent_s, _MOST_PLAYED * step.corrected_s)
    return Loading(
        wait_s=spent_s, raw_wait_s=spent_s, cpu_s_per_sample=spent_s / samples,
        is_environment=True,
    )  # fmt: skip


def _samples_per_step(trainer: Events, traced: int | None) -> float | None:
    """Return one process's samples in a step: marked, by the loader, else in the traced step."""
    marked = trainer.fact("marker").get("samples")
    batch = trainer.loader_fact().get("batch")
    if not marked and batch and trainer.training_loader() is not None:
        return float(batch * batches_per_step(trainer))
    if trainer.samples:
        return trainer.samples / trainer.intervals
    return float(marked) if marked else (None if traced is None else float(traced))


def _accumulation_steps(trainer: Events, deep: DeepStep | None) -> int:
    """Return the micro-batches of a step: as many as both backward passes and batches say."""
    optimizers = trainer.fact("optimizers").get("optimizers", [])
    if len(optimizers) > 1 or not trainer.intervals:
        return 1
    backwards = trainer.backwards / trainer.intervals
    if deep is not None and deep.micro_batches == 1:  # LBFGS repeats one batch
        return 1
    if trainer.batches:
        backwards = min(backwards, batches_per_step(trainer))
    return max(1, round(backwards))


def _end_ns(log: ProfilerLog, processes: list[Events]) -> int:
    """Return when the recording ended, or was last heard of [ns]."""
    start = int(log.header["t_ns"])
    last = max((one.steps.last_ns for one in processes), default=0)
    if "t_ns" in log.end:
        last = int(log.end["t_ns"])
    sampled = log.readings[-1].t_s if log.readings else 0.0
    return max(start + int(sampled * 1e9), last, start)


def _host(log: ProfilerLog, trainer: Events) -> Host:
    host, torch = noun(Host, log.header["host"]), trainer.fact("torch")
    return replace(
        host,
        sheets=tuple(map(sheet_of, host.sheets)),
        torch_version=torch.get("version", host.torch_version),
        python_version=trainer.header.get("python", host.python_version),
        gpus=host.gpus or tuple(torch.get("cuda", ())),
    )


def _warnings(seen: Recording, processes: list[Events]) -> list[str]:
    found = []
    if seen.step_time is not None and seen.step_time.delay_fraction > _CONTENDED:
        share = 100 * seen.step_time.delay_fraction
        found.append(f"the machine was busy: steps waited {share:.0f} % of the time for a core")
        if seen.threads is not None and seen.threads >= seen.host.cpu_limit > 1:
            # Threads spin at their barriers until the last of them gets a core: seen to make a
            # step five times slower, which no correction takes out.
            found.append(
                "the script uses every core; set OMP_NUM_THREADS=1 for a steadier measurement"
            )
    if seen.wrapping == "wrapped":
        found += unshared_data(trainer_of(processes) or Events())
    if seen.deep_step is not None:
        found += list(seen.deep_step.flags)
    for one in processes:
        for failure in one.facts.get("failure", []):
            found.append(f"the hooks failed at {failure.get('where')}: {failure.get('error')}")
        if "reopened" in one.facts:
            found.append("the script closed files that it had not opened; recorded all the same")
        lost = one.fact("released").get("lost", 0)
        if lost:
            found.append(f"{lost} records could not be written")
    return list(dict.fromkeys(found))
