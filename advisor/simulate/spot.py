"""A job on spot nodes: by strategy, with a deadline, against on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.errors import UsageError
from advisor.planners.core import HOUR_S, PlanningError
from advisor.planners.spot import (
    RECENT_DAYS,
    STRATEGIES,
    Column,
    ForecastParameters,
    Library,
    SpellHazards,
    SpotHistory,
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
from advisor.quantities import parse_seconds
from advisor.records import packaged_spot_history, read_spot_traces
from advisor.show import Chart, Series
from advisor.simulate.questions import Simulated, SimulateSpot
from advisor.simulate.samples import ended, finite, named, sample_percentiles

STARTS = 200  # submissions that are replayed, spread over the record
# A record is repeated until it is this many times as long as the job, so that jobs can end.
REPEATS = 40
MAXIMUM_REPEATS = 400
PLANNED: Final = "spot, on demand or waiting"
# A way of running the job, as the record has it, and the hours of its replays in order.
Way = tuple[dict[str, Any], Sequence[float]]


def answer(asked: SimulateSpot) -> Simulated:
    """Replay a job in every way, on demand first: on a trace, or on all packaged ones.

    Raises PlanningError if the job saves no checkpoints, the trace never has its nodes, or no plan
    meets the deadline.
    """
    is_banded = asked.interruptions is not None and bool(asked.hazard)
    if is_banded and asked.trace is not None:
        raise UsageError("--interruptions does not go with --trace", hint="leave one of them out")
    return _on_packaged(asked) if asked.trace is None else _on_trace(asked, asked.trace)


def _on_packaged(asked: SimulateSpot) -> Simulated:
    """Answer where the user has no trace: the interval spans zones."""
    history, job = packaged_spot_history(), asked.job
    if asked.deadline_s is not None:
        check_deadline(job, asked.deadline_s)
    ways = [_on_demand(asked), _restart_anywhere(history, asked)]
    if asked.deadline_s is not None:
        ways.append(_way(PLANNED, *plan_anywhere(history, asked), asked))
    lengths = np.array([spells.end_s for spells in history.spells])
    up = np.array([spells.availability for spells in history.spells])
    days = float(lengths.sum()) / HOUR_S / 24
    return Simulated(record=_record(history.source, days, float(up.mean()), asked, ways))


def _on_trace(asked: SimulateSpot, path: Path) -> Simulated:
    """Replay the job from starts spread over a zone's trace; other zones help to forecast."""
    unit_s = parse_seconds(f"1{asked.time_unit}", option="--time-unit")
    trace, others = _chosen(path, asked.zone, unit_s)
    job, nodes = asked.job, asked.nodes
    spells = trace.spells(nodes)
    has_all = bool(spells.up_start_s.size)
    if int(trace.available.max()) < asked.least or (asked.least == nodes and not has_all):
        raise PlanningError(
            f"trace {trace.name!r} never has the {asked.least} nodes that the job needs",
            hint="ask for fewer nodes, or take another trace",
            exit_code=3,
        )
    if asked.no_checkpoints:
        refuse_without_checkpoints(
            SpotHistory(spells=(spells,), nodes=(nodes,), source=trace.name),
            work_s=job.work_s, restart_s=job.restart_s, nodes=nodes,
            spot_price_usd_per_h=asked.spot_price,
        )  # fmt: skip
    if asked.deadline_s is not None:
        check_deadline(job, asked.deadline_s)
    repeats = min(int(np.ceil(REPEATS * job.wall_s / trace.end_s)) + 1, MAXIMUM_REPEATS)
    long = trace.repeated(repeats)
    start = (np.arange(STARTS) + 0.5) / STARTS * trace.end_s
    ways = [_on_demand(asked), *_strategies(long, asked, start)]
    if asked.deadline_s is not None and has_all:
        run = replay_with_fallback(long.spells(nodes), job, start, deadline_s=asked.deadline_s)
        cost = run.cost_usd(*_usd_per_h(asked))
        ways.append(_way("restart, on demand in time", run.finish_s, cost, asked))
        ways.append(_way(PLANNED, *plan_on_trace(trace, others, asked, long, start), asked))
    if has_all:
        ways.append(_from_now(trace, asked, others))
    days = trace.end_s / HOUR_S / 24
    return Simulated(
        record=_record(trace.name, days, spells.availability, asked, ways),
        charts=_charts(trace, ways, asked),
    )


def _chosen(path: Path, zone: str | None, unit_s: float) -> tuple[SpotTrace, list[SpotTrace]]:
    """Return the trace to replay on, and the others of the file."""
    traces = read_spot_traces(path, unit_s=unit_s)
    fitting = [t for t in traces if zone is None or zone in t.name]
    if len(fitting) != 1:
        names = ", ".join(t.name for t in (fitting or traces)[:8])
        raise UsageError(
            f"{len(fitting)} of {len(traces)} traces in {path.name} fit --zone {zone or '(none)'}",
            hint=f"name one with --zone: {names}",
        )
    return fitting[0], [t for t in traces if t is not fitting[0]]


def _record(
    trace: str, days: float, availability: float, asked: SimulateSpot, ways: Sequence[Way]
) -> dict[str, Any]:
    """Return the JSON record; what never ends is null."""
    job = asdict(asked.job)
    if asked.no_checkpoints:
        job["checkpoint_interval_s"] = None
    job |= {"nodes": asked.nodes, "deadline_s": asked.deadline_s, "price_usd_per_h": asked.price,
            "spot_price_usd_per_h": asked.spot_price, "least_nodes": asked.least,
            "hazard": asked.hazard}  # fmt: skip
    return {
        "schema_version": 1,
        "trace": trace,
        "days": days,
        "availability_fraction": availability,
        "job": job,
        "ways": [row for row, _ in ways],
    }


def _way(name: str, finish_s: Column, cost: Column | None, asked: SimulateSpot) -> Way:
    """Return one way of running the job from its replays: time [s] and cost [USD] of each."""
    hours = np.where(np.isnan(finish_s), np.inf, finish_s) / HOUR_S
    return _row(
        name, sample_percentiles(hours), None if cost is None else sample_percentiles(cost),
        None if cost is None else float(cost.mean()),
        None
            if asked.deadline_s is None
            else float(np.mean(hours > asked.deadline_s / HOUR_S)),
    ), np.sort(hours).tolist()  # fmt: skip


def _row(
    name: str, finish_h: Sequence[float], cost_usd: Sequence[float] | None,
    mean_usd: float | None, late: float | None,
) -> dict[str, Any]:  # fmt: skip
    return {
        "name": name,
        "finish_h": named(finish_h),
        "cost_usd": None if cost_usd is None else named(cost_usd),
        "mean_cost_usd": finite(mean_usd),
        "miss_probability": late,
    }


def _charts(trace: SpotTrace, ways: Sequence[Way], asked: SimulateSpot) -> list[Chart]:
    """Return the nodes that were there over time, and the share of replays that have ended."""
    days = np.append(trace.start_s, trace.end_s) / HOUR_S / 24
    counts = np.append(trace.available, trace.available[-1])
    shown = [(row["name"], samples) for row, samples in ways if len(samples) > 1]
    ends = [h for _, samples in shown for h in samples if np.isfinite(h)]
    curves = [ended(name, samples) for name, samples in shown]
    if asked.deadline_s is not None:
        at = asked.deadline_s / HOUR_S
        curves.append(Series(name="deadline", x=[at], shape="vertical"))
        ends.append(at)
    low, high = min(ends, default=1.0), max(ends, default=10.0)
    return [
        Chart(
            title=f"Nodes available: {trace.name}",
            x_label="days",
            y_label="nodes",
            series=[Series(name="up", x=days.tolist(), y=counts.tolist(), shape="area")],
        ),
        Chart(
            title="Share of replays that have ended",
            x_label="hours since submission (logarithmic)",
            y_label="share",
            series=curves,
            x_range=(0.9 * low, 1.1 * max(high, 1.01 * low)),
            y_range=(0.0, 1.0),
            is_x_logarithmic=True,
            notes=[f"{STARTS} starts spread over the trace; curves that stay below 1: not ended"],
        ),
    ]


def plan_on_trace(
    trace: SpotTrace, others: Sequence[SpotTrace], asked: SimulateSpot, repeated: SpotTrace,
    start_s: Column,
) -> tuple[Column, Column]:  # fmt: skip
    """Replay the plan that a zone's last fortnight and other zones suggest.

    ``repeated``: the same record several times, for jobs that outlast it; ``start_s``: (n,);
    submissions [s].

    Returns
    -------
    finish_s, cost_usd : ndarray of shape (n,)
        From submission and of all nodes. [s], [USD]
    """
    past = trace.recent(RECENT_DAYS, asked.nodes).spells(asked.nodes)
    hazards = SpellHazards.of(past, [other.spells(asked.nodes) for other in others])
    job, deadline_s = asked.job, asked.deadline_s or 0.0
    spot_usd, usd = _usd_per_h(asked)
    policy = SpotPolicy.of(
        hazards, job, deadline_s=deadline_s, spot_price_usd_per_h=spot_usd, price_usd_per_h=usd
    )
    spells = repeated.spells(asked.nodes)
    run = replay_policy(spells, job, start_s, deadline_s=deadline_s, choose=policy.choose)
    return run.finish_s, run.cost_usd(spot_usd, usd)


def plan_anywhere(history: SpotHistory, asked: SimulateSpot) -> tuple[Column, Column]:
    """Replay one plan over the records of a history, for a zone without a record of its own.

    Returns
    -------
    finish_s, cost_usd : ndarray
        Of starts spread over all records. [s], [USD]
    """
    records = scaled_records(history, asked.nodes, asked.hazard)
    spot_usd, usd = _usd_per_h(asked)
    run = replay_plan(
        records, asked.job, starts=-(-STARTS // len(records)), deadline_s=asked.deadline_s or 0.0,
        spot_price_usd_per_h=spot_usd, price_usd_per_h=usd,
    )  # fmt: skip
    return run.finish_s, run.cost_usd(spot_usd, usd)


def _usd_per_h(asked: SimulateSpot) -> tuple[float, float]:
    """Return the spot and the on-demand price of all nodes [USD/h]."""
    return asked.spot_price * asked.nodes, asked.price * asked.nodes


def _restart_anywhere(history: SpotHistory, asked: SimulateSpot) -> Way:
    """Return what restarting takes over all recorded zones."""
    job, saves = asked.job, not asked.no_checkpoints
    table = spot_completion(
        job.work_s, history=history, nodes=asked.nodes,
        checkpoint_s=job.checkpoint_s if saves else None, restart_s=job.restart_s,
        checkpoint_interval_s=job.checkpoint_interval_s if saves else None,
        warning_s=job.warning_s, deadline_s=asked.deadline_s, hazard=asked.hazard,
        spot_price_usd_per_h=asked.spot_price,
    )  # fmt: skip
    dollars = asked.nodes * asked.spot_price / HOUR_S
    return _row(
        "restart",
        (table.finish_s[0] / HOUR_S).tolist(),
        (table.billed_s[0] * dollars).tolist(),
        float(table.billed_mean_s[0] * dollars),
        None if asked.deadline is None else float(table.miss_probability[0]),
    ), ()


def _on_demand(asked: SimulateSpot) -> Way:
    wall_s = asked.job.wall_s
    cost = np.array([wall_s / HOUR_S * asked.price * asked.nodes])
    return _way("on demand", np.array([wall_s]), cost, asked)


def _strategies(trace: SpotTrace, asked: SimulateSpot, start: Column) -> list[Way]:
    """Replay the strategies that make a difference: one node can only restart."""
    job, nodes, ways = asked.job, asked.nodes, []
    for name in STRATEGIES if nodes > 1 else STRATEGIES[:1]:
        if name == "restart":
            plain = replay(trace.spells(nodes), job, start)
            finish, node_s = plain.finish_s, plain.rented_s * nodes
        else:
            run = replay_strategy(
                trace,
                strategy(
                    name, nodes=nodes, restart_s=job.restart_s, least_nodes=asked.least
                ),
                start, work_s=job.work_s, nodes=nodes,
                checkpoint_interval_s=job.checkpoint_interval_s, checkpoint_s=job.checkpoint_s,
            )  # fmt: skip
            finish, node_s = run.finish_s, run.node_s
        cost = np.where(np.isnan(finish), np.inf, node_s / HOUR_S * asked.spot_price)
        ways.append(_way(name, finish, cost, asked))
    return ways


def _from_now(trace: SpotTrace, asked: SimulateSpot, others: Sequence[SpotTrace]) -> Way:
    """Forecast a restart strategy submitted at the end of the trace, from its last fortnight."""
    parameters, job, nodes = ForecastParameters(), asked.job, asked.nodes

    def past(of: SpotTrace) -> Library:
        spells = of.recent(RECENT_DAYS, nodes).spells(nodes)
        kept = job.kept_s(spells.up_length_s)
        return library(spells, finish_runner(job), job.attempt_s, kept, parameters)

    is_up, age = state_at(trace.spells(nodes), np.array([trace.end_s - 1.0]))
    elsewhere = [past(t) for t in others if t.spells(nodes).up_start_s.size]
    levels = tuple(np.linspace(0.01, 0.99, 99))
    finish = forecast_of(
        past(trace), elsewhere, is_up, age, parameters, levels=levels, floor=job.wall_s
    ).quantiles[0]
    state = "up" if is_up[0] else "down"
    return _way(
        f"restart, submitted now ({state} for {age[0] / HOUR_S:.1f} h)", finish, None, asked
    )
