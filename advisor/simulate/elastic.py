"""Workers that join and leave beside a fixed number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import Catalogue, container_billing
from advisor.collectors import RecordingError
from advisor.errors import UsageError
from advisor.estimate import Predictor, TimeColumns, constants, job_of, on_demand
from advisor.jobs import Job, load_job
from advisor.planners.core import GIB, HOUR_S, PlanningError
from advisor.planners.links import straggling
from advisor.planners.systems import (
    Billing,
    ElasticPlan,
    NoiseScale,
    Phase,
    Schedule,
    WorkerScaling,
    elastic_plan,
)
from advisor.quantities import parse_cores_and_memory
from advisor.show import Chart, Series
from advisor.simulate.questions import Simulated, SimulateElastic


def answer(asked: SimulateElastic) -> Simulated:
    """Plan when workers join and leave, from the figures of a job or those that are given."""
    spec = asked.question.job
    if spec.names_a_job or spec.runs is not None:
        return planned(asked, _known(asked))
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


def _known(asked: SimulateElastic) -> JobFigures:
    """Return what the one estimate says of the job on these machines."""
    counts = _counts(asked)
    if asked.on is None:
        raise UsageError("a job needs machines", hint="name a worker's type: --on g5.xlarge")
    question = asked.question
    predictor = Predictor(Catalogue.load(question.catalogue, overrides=question.overrides))
    job = job_of(question.job, question.setup, catalogue=lambda: predictor.catalogue)
    known = figures_of(predictor, job, asked.on, counts)
    if asked.sample_time is not None:
        return replace(known, scaling=_scaling(asked, counts))
    return known


def _scaling(asked: SimulateElastic, counts: Sequence[int]) -> WorkerScaling:
    """Return how the job scales by the figures that are given, none of them estimated."""
    assert asked.sample_time is not None
    counts = sorted(set(counts))
    return WorkerScaling(
        workers=tuple(counts), step_s=asked.step_time, sample_s=asked.sample_time,
        sync_s=tuple(asked.sync_time * float(np.log2(max(n, 1))) for n in counts),
        spread_fraction=constants().scaling.straggler_sd_fraction,
    )  # fmt: skip


def planned(asked: SimulateElastic, known: JobFigures) -> Simulated:
    """Plan a schedule of a job with these figures, and draw it; options replace single figures.

    Raises PlanningError if nothing meets the limit.
    """
    phases, scaling = _phases(asked, known), known.scaling
    if asked.spread is not None:
        scaling = replace(scaling, spread_fraction=asked.spread)
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
        "scaling": asdict(scaling),
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
        "front": [{"time_h": s.time_s / HOUR_S, "cost_usd": s.cost_usd} for s in plan.front],
    }  # fmt: skip
    return Simulated(record=record, charts=_charts(plan, deadline_s))


def _phases(asked: SimulateElastic, known: JobFigures) -> list[Phase]:
    """Return equal phases whose noise scale grows geometrically between the points known of it.

    The whole job's samples at its own batch are divided among them. They are those of the job by
    default; where it has one and its noise grows, as many as there are doublings of it, and one.
    Without ``--noise`` the scale is that of the recorded gradients, growing to
    ``--noise-growth`` times it.
    """
    points = _noise(asked.noise)
    if points is None and known.noise is not None:
        points = (known.noise.samples, known.noise.samples * asked.noise_growth)
    count = asked.phases or known.phases
    if points is not None and asked.phases is None and known.phases == 1:
        count = math.ceil(math.log2(max(points) / min(points))) + 1
    scales = [None] * count if points is None else over_phases(points, count)
    if asked.samples is not None:
        return [Phase(samples=asked.samples, noise_batch=scale) for scale in scales]
    each = known.samples / count
    return [
        Phase(samples=each / (1.0 + known.batch / one if one else 1.0), noise_batch=one)
        for one in scales
    ]


def _phase_record(
    asked: SimulateElastic, known: JobFigures, phases: Sequence[Phase]
) -> dict[str, Any]:
    measured = None if asked.noise is not None else known.noise
    source = "given" if asked.noise is not None else "unknown" if measured is None else "recorded"
    return {
        "phases": len(phases),
        "samples_per_phase": phases[0].samples,
        "noise_scale_samples": [phase.noise_batch for phase in phases],
        "noise_scale_source": source,
        "noise_scale_recorded": None if measured is None else asdict(measured),
    }


def over_phases(points: Sequence[float], phases: int) -> list[float]:
    """Return what is known at some points of a training for each phase, geometrically between.

    >>> [round(one) for one in over_phases((100, 1000, 10000), 5)]
    [100, 316, 1000, 3162, 10000]
    """
    places = np.linspace(0.0, 1.0, len(points)) if len(points) > 1 else np.zeros(1)
    at = np.linspace(0.0, 1.0, phases)
    found: list[float] = np.exp(np.interp(at, places, np.log(np.asarray(points, float)))).tolist()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """Figures of a job for a plan of elastic workers: as the one estimate says them."""

    samples: float  # of the whole job at its own batch [samples]
    phases: int  # epochs, where the dataset is known; one otherwise
    batch: float  # global batch [samples]
    scaling: WorkerScaling
    # price_usd_per_h, startup_s: of a worker. [USD/h], [s]
    price_usd_per_h: float
    startup_s: float
    source: str  # job and machine, in words
    # of the recorded gradients; None where a step had one gradient norm only
    noise: NoiseScale | None = None
    # vcpus, gib, accelerator: of that machine; the name is empty where it has none, or several
    vcpus: float = 0.0
    gib: float = 0.0
    accelerator: str = ""


def figures_of(
    predictor: Predictor, job: Job, instance_type: str, workers: Sequence[int]
) -> JobFigures:
    """Return a job's figures on one type of machines: a worker is a machine.

    The step on one worker at two batches gives what does not depend on the batch and what a
    sample takes; what more workers add beyond their share and the slowest one's is their exchange.

    Raises UsageError if the job has no steps, or the type cannot run it or is not sold on demand.
    """
    provider, _, name = instance_type.rpartition(":")
    row = predictor.catalogue.instance_type(name, provider=provider or None)
    offers, place = predictor.cheapest(row)
    counts = np.array(sorted(set(workers)))
    if job.work is None or place is None:
        what = "no training steps" if job.work is None else f"no on-demand price of {row.name}"
        raise UsageError(f"{job.name}: {what}", hint="give the figures by hand: --sample-time ...")

    def steps_s(asked: Job, on: NDArray[np.int64]) -> NDArray[np.float64]:
        columns = predictor.step_columns(asked, np.full(on.shape, row.index), on)
        return np.asarray(np.where(columns.status == 0, columns.step_s, np.nan))

    batch = float(job.global_batch)
    one_step = float(steps_s(job, np.ones(1, dtype=np.int64))[0])
    double = replace(job, global_batch=2 * job.global_batch, total_steps=job.total_steps / 2)
    two_step = float(steps_s(double, np.ones(1, dtype=np.int64))[0])
    if not (np.isfinite(one_step) and two_step > one_step):
        raise UsageError(
            f"{job.name} cannot be estimated on one {row.name} at twice its batch",
            hint="name another machine with --on, or give the figures by hand",
        )
    sample_s = (two_step - one_step) / batch
    alone_s = max(one_step - sample_s * batch, 0.0)
    sample_s = (one_step - alone_s) / batch
    step_s = steps_s(job, counts)
    runs = np.isfinite(step_s)
    spread = constants().with_spread(job.spread).scaling
    computing_s = (alone_s + sample_s * batch / counts) * straggling(counts, spread)
    sync_s = np.maximum(step_s - computing_s, 0.0)
    phases = max(round(job.epochs), 1)
    dataset = job.feed.dataset_samples
    if not job.epochs and dataset:
        phases = max(round(job.total_steps * batch / dataset), 1)
    columns = predictor.step_columns(job, np.full(counts.shape, row.index), counts)
    done = on_demand(job, columns, 0.9)
    besides = done.from_first_step_s / done.parts_s["steps"] - 1.0
    layouts = tuple(_layout_name(columns, at) for at in np.flatnonzero(runs).tolist())
    # The state goes out as one layout keeps it, and in as the other needs it.
    link = predictor.fleet.network_bytes_per_s[row.index]
    return JobFigures(
        samples=job.total_steps * batch,
        phases=phases,
        batch=batch,
        scaling=WorkerScaling(
            workers=tuple(counts[runs].tolist()), step_s=alone_s, sample_s=sample_s,
            sync_s=tuple(sync_s[runs].tolist()),
            spread_fraction=spread.straggler_sd_fraction,
            layouts=layouts if len(set(layouts)) > 1 else (),
            relayout_s=float(2.0 * job.state_bytes / link) if link > 0 else 0.0,
            besides=tuple(np.maximum(besides[runs], 0.0).tolist()),
        ),
        price_usd_per_h=float(offers.price_usd_per_h[place]),
        startup_s=float(done.before_s[0]),
        source=f"{job.name} on {row.name} ({row.provider})",
        noise=job.noise,
        vcpus=float(row.vcpus or 0.0),
        gib=(row.memory_bytes or 0.0) / GIB,
        accelerator=(row.accelerator or "") if row.accelerator_count else "",
    )  # fmt: skip


def _layout_name(columns: TimeColumns, at: int) -> str:
    """Say how the state lies: what differs between two counts has to be moved."""
    layout = columns.layout(at)
    shards = layout.shard_group or layout.dp if layout.zero_stage else 1
    return f"tp{layout.tp} pp{layout.pp} shards{shards}"


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
