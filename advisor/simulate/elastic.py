"""Workers that join and leave beside a fixed number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from advisor.api import recording_of
from advisor.catalogue import Catalogue, container_billing
from advisor.collectors import RecordingError
from advisor.collectors.format import on_accelerators
from advisor.errors import UsageError
from advisor.estimate import (
    JobFigures,
    PhaseRun,
    Predictor,
    constants,
    figures_of,
    job_of,
    noise_over,
    phase_runs,
    phases_of,
)
from advisor.jobs import load_job
from advisor.planners.core import GIB, HOUR_S, PlanningError
from advisor.planners.systems import (
    Billing,
    ElasticPlan,
    Phase,
    Schedule,
    WorkerScaling,
    elastic_plan,
)
from advisor.quantities import parse_cores_and_memory
from advisor.show import Chart, Series
from advisor.simulate.questions import Simulated, SimulateElastic

# How the phases of a schedule are started.
Runs = Callable[[Sequence[Phase], Schedule], Sequence[PhaseRun]]


def answer(asked: SimulateElastic) -> Simulated:
    """Plan when workers join and leave, from the figures of a job or those that are given."""
    spec = asked.question.job
    if spec.names_a_job or spec.runs is not None:
        return planned(asked, *_known(asked))
    by_hand = {
        "--samples": asked.samples, "--phases": asked.phases, "--batch": spec.batch,
        "--sample-time": asked.sample_time, "--price": asked.price,
    }  # fmt: skip
    counts = _counts(asked)
    if missing := [flag for flag, value in by_hand.items() if value is None]:
        raise UsageError(
            f"missing: {', '.join(missing)}",
            hint="give them, or take them from a recording: --run latest --on g5.xlarge",
        )
    if asked.on is not None:
        raise UsageError("--on needs a job", hint="name one: --run latest --on g5.xlarge")
    return planned(asked, JobFigures(
        samples=0.0, phases=0, batch=float(spec.batch or 0), price_usd_per_h=0.0,
        startup_s=0.0, source="", scaling=_scaling(asked, counts),
    ))  # fmt: skip


def _known(asked: SimulateElastic) -> tuple[JobFigures, Runs | None]:
    """Return what the one estimate says of the job on these machines, and how it is started."""
    counts = _counts(asked)
    if asked.on is None:
        raise UsageError("a job needs machines", hint="name a worker's type: --on g5.xlarge")
    question = asked.question
    predictor = Predictor(Catalogue.load(question.catalogue, overrides=question.overrides))
    job = job_of(question.job, question.setup, catalogue=lambda: predictor.catalogue)
    known = figures_of(
        predictor, job, asked.on, counts, _numbers("--batches", asked.batches)
    )  # fmt: skip
    recording = recording_of(question.job)
    script = () if recording is None else recording.command

    script = on_accelerators(script, job.told)
    runs = partial(phase_runs, predictor, job, known, script=script)
    if asked.sample_time is not None:
        return replace(known, scaling=_scaling(asked, counts)), None
    return known, runs


def _scaling(asked: SimulateElastic, counts: Sequence[int]) -> WorkerScaling:
    """Return how the job scales by the figures that are given, none of them estimated."""
    assert asked.sample_time is not None
    counts = sorted(set(counts))
    return WorkerScaling(
        workers=tuple(counts), step_s=asked.step_time, sample_s=asked.sample_time,
        sync_s=tuple(asked.sync_time * float(np.log2(max(n, 1))) for n in counts),
        spread_fraction=constants().scaling.straggler_sd_fraction,
    )  # fmt: skip


def planned(asked: SimulateElastic, known: JobFigures, runs: Runs | None = None) -> Simulated:
    """Plan a schedule of a job with these figures, and draw it; options replace single figures.

    Raises PlanningError if nothing meets the limit.
    """
    phases, scaling = _phases(asked, known), known.scaling
    if asked.spread is not None:
        scaling = replace(scaling, spread_fraction=asked.spread, told_s={})
    price = known.price_usd_per_h if asked.price is None else asked.price
    startup_s = asked.startup or known.startup_s
    rented = Billing(price_usd_per_h=price, quantum_s=asked.quantum, startup_s=startup_s)
    billing, words = _billed(asked, known, rented)
    deadline_s = None if asked.deadline is None else asked.deadline * HOUR_S
    plan_for = partial(
        elastic_plan, phases, scaling, batch=known.batch,
        batches=_numbers("--batches", asked.batches), resize_s=asked.resize,
        deadline_s=deadline_s, budget_usd=asked.budget,
    )  # fmt: skip
    plan, on_machines = plan_for(billing=billing), None
    if words:
        with suppress(PlanningError):  # nothing that is rented whole meets the limit
            on_machines = plan_for(billing=rented)
    record = {
        "schema_version": 1,
        "source": known.source or "given",
        "batch": known.batch,
        **_phase_record(asked, known, phases),
        "price_usd_per_h": billing.price_usd_per_h,
        "scaling": asdict(replace(scaling, told_s={})),
        "step_s": scaling.steps_s(np.array([known.batch]))[0].tolist(),
        "deadline_h": None if deadline_s is None else deadline_s / HOUR_S,
        "budget_usd": asked.budget,
        "fixed": _schedule(plan.fixed),
        "elastic": _schedule(plan.elastic),
        "constant": _schedule(plan.constant),
        "saving_fraction": plan.saving_fraction,
        "batch_saving_fraction": plan.batch_saving_fraction,
        "containers": words,
        "on_machines": None if on_machines is None else {
            "price_usd_per_h": rented.price_usd_per_h,
            "fixed": _schedule(on_machines.fixed),
            "elastic": _schedule(on_machines.elastic),
        },
        "runs": [asdict(one) for one in (runs(phases, plan.elastic) if runs else ())],
        "front": [{"time_h": s.time_s / HOUR_S, "cost_usd": s.cost_usd} for s in plan.front],
    }  # fmt: skip
    return Simulated(record=record, charts=_charts(plan, deadline_s))


def _phases(asked: SimulateElastic, known: JobFigures) -> list[Phase]:
    """Return the phases: the job's own (``phases_of``), or those of given samples.

    Without ``--noise`` the scale is that of the recorded gradients, else the one that is assumed.
    """
    own = replace(known, samples=known.samples or 1.0)
    found = phases_of(own, _points(asked, known), asked.phases)
    each = asked.samples
    return found if each is None else [replace(one, samples=each) for one in found]


def _points(asked: SimulateElastic, known: JobFigures) -> tuple[float, ...]:
    """Return the noise scale at points of the training; one alone grows as asked."""
    points = _noise(asked.noise)
    if points is None:
        return noise_over(known, asked.noise_growth)
    return (*points, *[one * asked.noise_growth for one in points if len(points) == 1])


def _phase_record(
    asked: SimulateElastic, known: JobFigures, phases: Sequence[Phase]
) -> dict[str, Any]:
    measured = None if asked.noise is not None else known.noise
    source = "given" if asked.noise is not None else "recorded"
    if asked.noise is None and measured is None:
        source = "assumed" if known.assumed_noise else "unknown"
    return {
        "phases": len(phases),
        "samples_per_phase": phases[0].samples,
        "noise_scale_samples": [phase.noise_batch for phase in phases],
        "noise_scale_source": source,
        "noise_scale_recorded": None if measured is None else asdict(measured),
    }


def _billed(asked: SimulateElastic, known: JobFigures, rented: Billing) -> tuple[Billing, str]:
    """Return the bill of workers, and what containers they run in: ``""`` for rented machines.

    Containers are by default as large as the machine that workers compute as.
    """
    if asked.container is None:
        if asked.coordinator is not None:
            raise UsageError("--coordinator is of containers", hint="add --container aws-fargate")
        return rented, ""
    beside = None
    if asked.coordinator is not None:
        cores, memory_bytes = parse_cores_and_memory(asked.coordinator, option="--coordinator")
        beside = cores, memory_bytes / GIB
    return container_billing(
        asked.container, vcpus=known.vcpus, gib=known.gib, accelerator=known.accelerator,
        coordinator=beside, startup_s=rented.startup_s,
    )  # fmt: skip


def _counts(asked: SimulateElastic) -> list[int]:
    return [int(count) for count in _numbers("--workers", asked.workers)]


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UsageError(
            f"{option}: cannot read {text!r} as a list of numbers", hint="write e.g. 1,2,4"
        ) from None


def _noise(text: str | None) -> tuple[float, ...] | None:
    """Return the noise scale at some points: numbers, or runs whose gradients were recorded."""
    if text is None:
        return None
    found = tuple(_noise_at(part) for part in text.replace(",", ":").split(":"))
    if not found or min(found) <= 0:
        raise UsageError(
            f"--noise: cannot read {text!r} as a noise scale", hint="write e.g. 500:20000"
        )
    return found


def _noise_at(part: str) -> float:
    try:
        return float(part)
    except ValueError:
        pass
    try:
        job = load_job(part.strip())
    except RecordingError as error:
        raise UsageError(
            f"--noise: {part!r} is neither a noise scale nor a recorded run",
            hint="write e.g. 500:20000, or the runs of several points: early:late",
        ) from error
    if job.noise is None:
        raise UsageError(
            f"--noise: the gradients of {job.name} show no noise scale",
            hint="record it with accumulation or on two workers, or give the number",
        )
    return job.noise.samples


def _schedule(schedule: Schedule | None) -> dict[str, Any] | None:
    if schedule is None:
        return None
    record = asdict(schedule)
    record["phase_h"] = [s / HOUR_S for s in record.pop("phase_s")]
    record["time_h"] = record.pop("time_s") / HOUR_S
    record["resizes"] = schedule.resizes
    return record


def _charts(plan: ElasticPlan, deadline_s: float | None) -> list[Chart]:
    # The schedule last: where both have the same workers it should be seen.
    both = [("elastic", plan.elastic)]
    if plan.fixed is not None:
        both.insert(0, ("fixed", plan.fixed))
    workers = [
        Series(
            name=f"{name}: {s.cost_usd:.2f} USD",
            x=[0.0, *(np.cumsum(s.phase_s) / HOUR_S).tolist()],
            y=[*s.workers, s.workers[-1]],
            shape="steps",
        )
        for name, s in both
    ]
    front = plan.front
    points = [
        Series(
            name="schedules that no other beats",
            x=[s.time_s / HOUR_S for s in front],
            y=[s.cost_usd for s in front],
        )
    ]
    if deadline_s is not None:
        points.append(Series(name="deadline", x=[deadline_s / HOUR_S], shape="vertical"))
    return [
        Chart(title="Workers over the job", x_label="hours", y_label="workers", series=workers),
        Chart(
            title="Time against bill",
            x_label="hours (logarithmic)",
            y_label="USD",
            series=points,
            is_x_logarithmic=True,
            x_range=(0.9 * front[0].time_s / HOUR_S, 1.1 * front[-1].time_s / HOUR_S),
        ),
    ]
