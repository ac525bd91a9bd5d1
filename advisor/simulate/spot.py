"""A job on spot nodes: by strategy, with a deadline, against on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from advisor.planners.core import HOUR_S, PlanningError
from advisor.planners.spot import (
    RECENT_DAYS,
    STRATEGIES,
    Column,
    ForecastParameters,
    Library,
    SpellHazards,
    SpotHistory,
    SpotJob,
    SpotPolicy,
    SpotTrace,
    check_deadline,
    finish_runner,
    forecast_of,
    library,
    refuse_without_checkpoints,
    replay,
    replay_plan,
    replay_policy,
    replay_strategy,
    replay_with_fallback,
    scaled_records,
    spot_completion,
    state_at,
    strategy,
)
from advisor.records import packaged_spot_history
from advisor.show import Chart, Series
from advisor.simulate.samples import ended, finite, named, sample_percentiles

# A question about a job on spot nodes.


STARTS = 200  # submissions that are replayed, spread over the record


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotQuestion:
    """A job on spot nodes, its prices and limits.

    Prices are of one node; the job's checkpoint interval is inf where it saves nothing;
    ``least_nodes`` can still run it; ``hazard`` is that of a removal, relative to the packaged
    records.
    """

    job: SpotJob
    nodes: int = 1
    deadline_s: float | None = None
    price_usd_per_h: float = 1.0
    spot_price_usd_per_h: float = 0.3
    least_nodes: int = 1
    hazard: float = 1.0

    @property
    def saves_checkpoints(self) -> bool:
        """Say whether there is anything to start from after a removal."""
        return bool(np.isfinite(self.job.checkpoint_interval_s))

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form: one row of figures."""
        record = asdict(self)
        job: dict[str, Any] = record.pop("job")
        if not self.saves_checkpoints:
            job["checkpoint_interval_s"] = None
        return job | record


# Ways of running a job on spot nodes beside one another: numbers and curves.


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotOutcome:
    """One way of running the job.

    ``finish_h`` and ``cost_usd`` are the 10th, 50th and 90th percentile over replays (inf where
    the job did not end); ``miss_probability`` is None without a deadline.
    """

    name: str
    finish_h: tuple[float, ...]
    cost_usd: tuple[float, ...] | None
    mean_cost_usd: float | None
    miss_probability: float | None
    samples_h: Sequence[float] = field(repr=False, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotAnswer:
    """Every way, on demand first, and the trace they were replayed on."""

    trace: str
    days: float
    availability: float
    question: SpotQuestion
    ways: Sequence[SpotOutcome]
    charts: Sequence[Chart] = field(repr=False, default=())

    def to_record(self) -> dict[str, Any]:
        """Return the JSON record; what never ends is null."""
        return {
            "schema_version": 1,
            "trace": self.trace,
            "days": self.days,
            "availability_fraction": self.availability,
            "job": self.question.to_record(),
            "ways": [
                {
                    "name": way.name,
                    "finish_h": named(way.finish_h),
                    "cost_usd": None if way.cost_usd is None else named(way.cost_usd),
                    "mean_cost_usd": finite(way.mean_cost_usd),
                    "miss_probability": way.miss_probability,
                }
                for way in self.ways
            ],
        }


def outcome(
    name: str, finish_s: Column, cost: Column | None, question: SpotQuestion
) -> SpotOutcome:
    """Return one way of running the job from its replays: time [s] and cost [USD] of each."""
    hours = np.where(np.isnan(finish_s), np.inf, finish_s) / HOUR_S
    deadline = question.deadline_s
    return SpotOutcome(
        name=name,
        finish_h=sample_percentiles(hours),
        cost_usd=None if cost is None else sample_percentiles(cost),
        mean_cost_usd=None if cost is None else float(cost.mean()),
        miss_probability=None if deadline is None else float(np.mean(hours > deadline / HOUR_S)),
        samples_h=np.sort(hours).tolist(),
    )


def charts_of(
    trace: SpotTrace, ways: Sequence[SpotOutcome], question: SpotQuestion
) -> list[Chart]:
    """Return the nodes that were there over time, and the share of replays that have ended."""
    days = np.append(trace.start_s, trace.end_s) / HOUR_S / 24
    counts = np.append(trace.available, trace.available[-1])
    return [
        Chart(
            title=f"Nodes available: {trace.name}",
            x_label="days",
            y_label="nodes",
            series=[Series(name="up", x=days.tolist(), y=counts.tolist(), shape="area")],
        ),
        _ended(ways, question),
    ]


def _ended(ways: Sequence[SpotOutcome], question: SpotQuestion) -> Chart:
    shown = [way for way in ways if len(way.samples_h) > 1]
    finite = [h for way in shown for h in way.samples_h if np.isfinite(h)]
    curves = [ended(way.name, way.samples_h) for way in shown]
    if question.deadline_s is not None:
        at = question.deadline_s / HOUR_S
        curves.append(Series(name="deadline", x=[at], shape="vertical"))
        finite.append(at)
    low, high = min(finite, default=1.0), max(finite, default=10.0)
    return Chart(
        title="Share of replays that have ended",
        x_label="hours since submission (logarithmic)",
        y_label="share",
        series=curves,
        x_range=(0.9 * low, 1.1 * max(high, 1.01 * low)),
        y_range=(0.0, 1.0),
        is_x_logarithmic=True,
        notes=[f"{STARTS} starts spread over the trace; curves that stay below 1: not ended"],
    )


# A job on spot nodes by a deadline that moves between spot, on demand and waiting as is best.


PLANNED: Final = "spot, on demand or waiting"


def plan_on_trace(
    trace: SpotTrace, others: Sequence[SpotTrace], job: SpotJob, question: SpotQuestion,
    repeated: SpotTrace, start_s: Column,
) -> tuple[Column, Column]:  # fmt: skip
    """Replay the plan that a zone's last fortnight and other zones suggest.

    ``repeated``: the same record several times, for jobs that outlast it; ``start_s``: (n,);
    submissions [s].

    Returns
    -------
    finish_s, cost_usd : ndarray of shape (n,)
        From submission and of all nodes. [s], [USD]
    """
    past = trace.recent(RECENT_DAYS, question.nodes).spells(question.nodes)
    hazards = SpellHazards.of(past, [other.spells(question.nodes) for other in others])
    deadline_s = question.deadline_s or 0.0
    spot_usd, usd = _usd_per_h(question)
    policy = SpotPolicy.of(
        hazards, job, deadline_s=deadline_s, spot_price_usd_per_h=spot_usd, price_usd_per_h=usd
    )
    spells = repeated.spells(question.nodes)
    run = replay_policy(spells, job, start_s, deadline_s=deadline_s, choose=policy.choose)
    return run.finish_s, run.cost_usd(spot_usd, usd)


def plan_anywhere(
    history: SpotHistory, job: SpotJob, question: SpotQuestion
) -> tuple[Column, Column]:
    """Replay one plan over the records of a history, for a zone without a record of its own.

    Returns
    -------
    finish_s, cost_usd : ndarray
        Of starts spread over all records. [s], [USD]
    """
    records = scaled_records(history, question.nodes, question.hazard)
    spot_usd, usd = _usd_per_h(question)
    run = replay_plan(
        records, job, starts=-(-STARTS // len(records)), deadline_s=question.deadline_s or 0.0,
        spot_price_usd_per_h=spot_usd, price_usd_per_h=usd,
    )  # fmt: skip
    return run.finish_s, run.cost_usd(spot_usd, usd)


def _usd_per_h(question: SpotQuestion) -> tuple[float, float]:
    """Return the spot and the on-demand price of all nodes [USD/h]."""
    spot_usd = question.spot_price_usd_per_h * question.nodes
    return spot_usd, question.price_usd_per_h * question.nodes


# A record is repeated until it is this many times as long as the job, so that jobs can end.
REPEATS = 40
MAXIMUM_REPEATS = 400


def spot_answer(
    trace: SpotTrace, question: SpotQuestion, others: Sequence[SpotTrace] = ()
) -> SpotAnswer:
    """Replay a job on a trace in every way, from starts spread over it.

    ``trace``: of the zone where the job would run; ``others``: of other zones: they take part in
    the forecast from now on.

    Raises PlanningError if the job saves no checkpoints, the trace never has its nodes, or no plan
    meets the deadline.
    """
    spells = trace.spells(question.nodes)
    if int(trace.available.max()) < question.least_nodes or (
        question.least_nodes == question.nodes and not spells.up_start_s.size
    ):
        raise PlanningError(
            f"trace {trace.name!r} never has the {question.least_nodes} nodes that the job needs",
            hint="ask for fewer nodes, or take another trace",
            exit_code=3,
        )
    job = question.job
    if not question.saves_checkpoints:
        refuse_without_checkpoints(
            SpotHistory(spells=(spells,), nodes=(question.nodes,), source=trace.name),
            work_s=job.work_s,
            restart_s=job.restart_s,
            nodes=question.nodes,
            spot_price_usd_per_h=question.spot_price_usd_per_h,
        )
    if question.deadline_s is not None:
        check_deadline(job, question.deadline_s)
    repeats = min(int(np.ceil(REPEATS * job.wall_s / trace.end_s)) + 1, MAXIMUM_REPEATS)
    long = trace.repeated(repeats)
    start = (np.arange(STARTS) + 0.5) / STARTS * trace.end_s
    ways = [_on_demand(job, question), *_strategies(long, job, question, start)]
    if question.deadline_s is not None and spells.up_start_s.size:
        run = replay_with_fallback(
            long.spells(question.nodes), job, start, deadline_s=question.deadline_s
        )
        price, spot = question.price_usd_per_h, question.spot_price_usd_per_h
        cost = run.cost_usd(spot * question.nodes, price * question.nodes)
        ways.append(outcome("restart, on demand in time", run.finish_s, cost, question))
        in_time = plan_on_trace(trace, others, job, question, long, start)
        ways.append(outcome(PLANNED, *in_time, question))
    if spells.up_start_s.size:
        ways.append(_from_now(trace, job, question, others))
    return SpotAnswer(
        trace=trace.name,
        days=trace.end_s / HOUR_S / 24,
        availability=spells.availability,
        question=question,
        ways=ways,
        charts=charts_of(trace, ways, question),
    )


def packaged_answer(question: SpotQuestion) -> SpotAnswer:
    """Answer from the packaged traces where the user has none: the interval spans zones.

    Raises PlanningError if the job saves no checkpoints, or no plan meets the deadline.
    """
    history = packaged_spot_history()
    job = question.job
    if question.deadline_s is not None:
        check_deadline(job, question.deadline_s)
    ways = [_on_demand(job, question), _restart_anywhere(history, question)]
    if question.deadline_s is not None:
        ways.append(outcome(PLANNED, *plan_anywhere(history, job, question), question))
    lengths = np.array([spells.end_s for spells in history.spells])
    up = np.array([spells.availability for spells in history.spells])
    return SpotAnswer(
        trace=history.source,
        days=float(lengths.sum()) / HOUR_S / 24,
        availability=float(up.mean()),
        question=question,
        ways=ways,
    )


def _restart_anywhere(history: SpotHistory, question: SpotQuestion) -> SpotOutcome:
    """Return what restarting takes over all recorded zones."""
    job, saves = question.job, question.saves_checkpoints
    table = spot_completion(
        job.work_s,
        history=history,
        nodes=question.nodes,
        checkpoint_s=job.checkpoint_s if saves else None,
        restart_s=job.restart_s,
        checkpoint_interval_s=job.checkpoint_interval_s if saves else None,
        warning_s=job.warning_s,
        deadline_s=question.deadline_s,
        hazard=question.hazard,
        spot_price_usd_per_h=question.spot_price_usd_per_h,
    )
    dollars = question.nodes * question.spot_price_usd_per_h / HOUR_S
    late = None if question.deadline_s is None else float(table.miss_probability[0])
    return SpotOutcome(
        name="restart",
        finish_h=tuple((table.finish_s[0] / HOUR_S).tolist()),
        cost_usd=tuple((table.billed_s[0] * dollars).tolist()),
        mean_cost_usd=float(table.billed_mean_s[0] * dollars),
        miss_probability=late,
    )


def _on_demand(job: SpotJob, question: SpotQuestion) -> SpotOutcome:
    cost = np.array([job.wall_s / HOUR_S * question.price_usd_per_h * question.nodes])
    return outcome("on demand", np.array([job.wall_s]), cost, question)


def _strategies(
    trace: SpotTrace, job: SpotJob, question: SpotQuestion, start: Column
) -> list[SpotOutcome]:
    """Replay the strategies that make a difference: one node can only restart."""
    ways = []
    for name in STRATEGIES if question.nodes > 1 else STRATEGIES[:1]:
        if name == "restart":
            plain = replay(trace.spells(question.nodes), job, start)
            finish, node_s = plain.finish_s, plain.rented_s * question.nodes
        else:
            run = replay_strategy(
                trace,
                strategy(
                    name,
                    nodes=question.nodes,
                    restart_s=job.restart_s,
                    least_nodes=question.least_nodes,
                ),
                start,
                work_s=job.work_s,
                nodes=question.nodes,
                checkpoint_interval_s=job.checkpoint_interval_s,
                checkpoint_s=job.checkpoint_s,
            )
            finish, node_s = run.finish_s, run.node_s
        cost = node_s / HOUR_S * question.spot_price_usd_per_h
        ways.append(outcome(name, finish, np.where(np.isnan(finish), np.inf, cost), question))
    return ways


def _from_now(
    trace: SpotTrace, job: SpotJob, question: SpotQuestion, others: Sequence[SpotTrace]
) -> SpotOutcome:
    """Forecast a restart strategy submitted at the end of the trace, from its last fortnight."""
    parameters = ForecastParameters()

    def past(of: SpotTrace) -> Library:
        spells = of.recent(RECENT_DAYS, question.nodes).spells(question.nodes)
        kept = job.kept_s(spells.up_length_s)
        return library(spells, finish_runner(job), job.attempt_s, kept, parameters)

    is_up, age = state_at(trace.spells(question.nodes), np.array([trace.end_s - 1.0]))
    elsewhere = [past(t) for t in others if t.spells(question.nodes).up_start_s.size]
    levels = tuple(np.linspace(0.01, 0.99, 99))
    finish = forecast_of(
        past(trace), elsewhere, is_up, age, parameters, levels=levels, floor=job.wall_s
    ).quantiles[0]
    state = "up" if is_up[0] else "down"
    return outcome(f"restart, submitted now ({state} for {age[0] / HOUR_S:.1f} h)", finish, None,
                question)  # fmt: skip
