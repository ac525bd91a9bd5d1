"""Workers that join and leave beside a fixed number, as text, record and charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from advisor.planners.core.units import HOUR_S
from advisor.planners.elastic.hydrozoa import (
    Billing,
    ElasticPlan,
    Phase,
    Schedule,
    WorkerScaling,
    elastic_plan,
)
from advisor.shown.charts import Chart, Series


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
) -> ElasticQuestion:
    """Return equal phases whose noise scale grows geometrically from first to last.

    Communication is taken to grow by ``sync_per_doubling_s`` with each doubling of the workers.
    """
    scales = [None] * phases if noise is None else np.geomspace(*noise, phases).tolist()
    counts = sorted(set(workers))
    return ElasticQuestion(
        phases=[Phase(samples=samples, noise_batch=scale) for scale in scales],
        scaling=WorkerScaling(
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
    )


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
