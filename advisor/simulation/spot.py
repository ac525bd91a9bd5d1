"""A job on spot nodes: by strategy, with a deadline, against on demand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.planners.core.errors import PlanningError
from advisor.planners.core.units import HOUR_S
from advisor.planners.spot.availability import Column, SpotJob, SpotTrace, replay
from advisor.planners.spot.fallback import check_deadline, replay_with_fallback
from advisor.planners.spot.forecast import (
    RECENT_DAYS,
    ForecastParameters,
    Library,
    finish_runner,
    forecast,
    library,
    state_at,
)
from advisor.planners.spot.replay import SpotHistory, refuse_without_checkpoints, spot_completion
from advisor.planners.spot.strategies import STRATEGIES, replay_strategy, strategy
from advisor.records.traces import packaged_spot_history
from advisor.simulation.spot_outcome import SpotAnswer, SpotOutcome, charts_of, outcome
from advisor.simulation.spot_plan import PLANNED, plan_anywhere, plan_on_trace
from advisor.simulation.spot_question import STARTS, SpotQuestion

# A record is repeated until it is this many times as long as the job, so that jobs can end.
REPEATS = 40
MAXIMUM_REPEATS = 400


def spot_answer(
    trace: SpotTrace, question: SpotQuestion, others: Sequence[SpotTrace] = ()
) -> SpotAnswer:
    """Replay a job on a trace in every way, from starts spread over it.

    Parameters
    ----------
    trace : SpotTrace
        Of the zone where the job would run.
    others : sequence of SpotTrace
        Of other zones: they take part in the forecast from now on.

    Raises
    ------
    PlanningError
        If the job saves no checkpoints, the trace never has its nodes, or no plan meets the
        deadline.
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

    Raises
    ------
    PlanningError
        If the job saves no checkpoints, or no plan meets the deadline.
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
    finish = forecast(
        past(trace), elsewhere, is_up, age, parameters, levels=levels, floor=job.wall_s
    ).quantiles[0]
    state = "up" if is_up[0] else "down"
    return outcome(f"restart, submitted now ({state} for {age[0] / HOUR_S:.1f} h)", finish, None,
                question)  # fmt: skip
