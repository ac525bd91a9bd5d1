"""Workers that join and leave beside a fixed number, as text, record and charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor.errors import UsageError
from advisor.jobs.job import Job
from advisor.planners.core.units import HOUR_S
from advisor.planners.elastic.hydrozoa import (
    Billing,
    ElasticPlan,
    Phase,
    Schedule,
    WorkerScaling,
    elastic_plan,
)
from advisor.predict import Predictor
from advisor.shown.chart import Chart, Series


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticQuestion:
    """A job in phases, how it scales, what a worker costs, and the limit."""

    phases: Sequence[Phase]
    scaling: WorkerScaling
    billing: Billing
    batch: float
    batches: Sequence[float] = ()
    resize_s: float = 60.0
    deadline_s: float | None = None
    budget_usd: float | None = None
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticAnswer:
    """The plan and its charts."""

    question: ElasticQuestion
    plan: ElasticPlan
    charts: Sequence[Chart] = field(repr=False, default=())

    def to_record(self) -> dict[str, Any]:
        """Return the JSON record."""
        plan = self.plan
        return {
            "schema_version": 1,
            "source": self.question.source or "given",
            "batch": self.question.batch,
            "phases": len(self.question.phases),
            "samples_per_phase": self.question.phases[0].samples,
            "price_usd_per_h": self.question.billing.price_usd_per_h,
            "scaling": asdict(self.question.scaling),
            "deadline_h": _hours(self.question.deadline_s),
            "budget_usd": self.question.budget_usd,
            "fixed": None if plan.fixed is None else _schedule(plan.fixed),
            "elastic": _schedule(plan.elastic),
            "saving_fraction": plan.saving_fraction,
            "front": [{"time_h": s.time_s / HOUR_S, "cost_usd": s.cost_usd} for s in plan.front],
        }


def question_of(
    *,
    samples: float,
    phases: int,
    noise: tuple[float, float] | None,
    batch: float,
    batches: Sequence[float],
    workers: Sequence[int],
    step_s: float,
    sample_s: float,
    sync_per_doubling_s: float,
    price_usd_per_h: float,
    quantum_s: float,
    startup_s: float,
    resize_s: float,
    deadline_s: float | None,
    budget_usd: float | None,
    scaling: WorkerScaling | None = None,
    source: str = "",
) -> ElasticQuestion:
    """Return equal phases whose noise scale grows geometrically from first to last.

    Communication is taken to grow by ``sync_per_doubling_s`` with each doubling of the workers,
    unless ``scaling`` says what each number of them takes; ``source`` says where that is from.
    """
    scales = [None] * phases if noise is None else np.geomspace(*noise, phases).tolist()
    counts = sorted(set(workers))
    return ElasticQuestion(
        phases=[Phase(samples=samples, noise_batch=scale) for scale in scales],
        scaling=scaling
        or WorkerScaling(
            workers=tuple(counts),
            step_s=step_s,
            sample_s=sample_s,
            sync_s=tuple(sync_per_doubling_s * float(np.log2(max(n, 1))) for n in counts),
        ),
        billing=Billing(price_usd_per_h=price_usd_per_h, quantum_s=quantum_s, startup_s=startup_s),
        batch=batch,
        batches=batches,
        resize_s=resize_s,
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        source=source,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """What a plan of elastic workers needs of a job: as the one estimate says it.

    Attributes
    ----------
    samples : float
        Of a phase. [samples]
    phases : int
        Epochs, where the dataset is known; one otherwise.
    batch : float
        Global batch. [samples]
    scaling : WorkerScaling
    price_usd_per_h, startup_s : float
        Of a worker. [USD/h], [s]
    source : str
        Job and machine, in words.
    """

    samples: float
    phases: int
    batch: float
    scaling: WorkerScaling
    price_usd_per_h: float
    startup_s: float
    source: str


def figures_of(
    predictor: Predictor, job: Job, instance_type: str, workers: Sequence[int]
) -> JobFigures:
    """Return a job's figures on one type of machines: a worker is a machine.

    The step on one worker at two batches gives what does not depend on the batch and what a
    sample takes; what more workers add beyond their share is their exchange.

    Raises
    ------
    UsageError
        If the job has no steps, or the type cannot run it or is not sold on demand.
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
    sync_s = np.maximum(step_s - alone_s - sample_s * batch / counts, 0.0)
    phases = max(round(job.epochs), 1)
    dataset = job.feed.dataset_samples
    if not job.epochs and dataset:
        phases = max(round(job.total_steps * batch / dataset), 1)
    columns = predictor.step_columns(job, np.array([row.index]), np.array([1]))
    return JobFigures(
        samples=job.total_steps * batch / phases,
        phases=phases,
        batch=batch,
        scaling=WorkerScaling(
            workers=tuple(counts[runs].tolist()), step_s=alone_s, sample_s=sample_s,
            sync_s=tuple(sync_s[runs].tolist()),
        ),
        price_usd_per_h=float(offers.price_usd_per_h[place]),
        startup_s=float(columns.startup_s[0] + columns.data_in_s[0]),
        source=f"{job.name} on {row.name} ({row.provider})",
    )  # fmt: skip


def elastic_answer(question: ElasticQuestion) -> ElasticAnswer:
    """Plan a schedule and draw it.

    Raises
    ------
    PlanningError
        If nothing meets the limit.
    """
    plan = elastic_plan(
        question.phases,
        question.scaling,
        question.billing,
        batch=question.batch,
        batches=question.batches,
        resize_s=question.resize_s,
        deadline_s=question.deadline_s,
        budget_usd=question.budget_usd,
    )
    return ElasticAnswer(question=question, plan=plan, charts=_charts(question, plan))


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / HOUR_S


def _schedule(schedule: Schedule) -> dict[str, Any]:
    record = asdict(schedule)
    record["phase_h"] = [s / HOUR_S for s in record.pop("phase_s")]
    record["time_h"] = record.pop("time_s") / HOUR_S
    record["resizes"] = schedule.resizes
    return record


def _charts(question: ElasticQuestion, plan: ElasticPlan) -> list[Chart]:
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
    if question.deadline_s is not None:
        points.append(Series(name="deadline", x=[question.deadline_s / HOUR_S], shape="vertical"))
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
