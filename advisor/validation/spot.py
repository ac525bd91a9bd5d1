"""Second halves of spot traces, predicted from what was known when the job was submitted.

A job of 10 h (restart 5 min, checkpoints every 30 min) is submitted at each hour of a trace's
second half. Known: the trace up to that day, of which the last fortnight is used as ``simulate
spot`` does; the first halves of the other traces; and at submission whether the zone is up and
since when. As a baseline stands the forecast that knows nothing beyond the first half. A start
that the trace's end cuts off is a miss if the upper bound has passed by then, and undecided (left
out) otherwise. Coverage and width are means over traces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.errors import UsageError
from advisor.lab.data import SPOT
from advisor.planners.core.units import HOUR_S
from advisor.planners.spot.availability import Column, Spells, SpotJob, SpotTrace, replay
from advisor.planners.spot.fallback import replay_with_fallback
from advisor.planners.spot.forecast import (
    RECENT_DAYS,
    Forecast,
    ForecastParameters,
    Library,
    finish_runner,
    forecast,
    library,
    state_at,
)
from advisor.records.traces import read_spot_traces
from advisor.validation.scores import THE_PRODUCT, Group, Scores, Validation, score

MINIMUM_DAYS: Final = 4.0
JOB: Final = SpotJob(work_s=10 * HOUR_S, restart_s=300.0, checkpoint_interval_s=1800.0)
DEADLINES_H: Final = (12.0, 15.0, 20.0, 30.0)
SPOT_PRICE: Final = 0.3  # relative to on demand
SEEN: Final = (
    "the form of the forecast: from a trial that had seen second halves",
    "drift, share of other zones and scale of the levels: chosen on first halves, of the scored "
    "trace too",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """One trace cut in the middle, with the state at each start of the second half.

    Attributes
    ----------
    trace : SpotTrace
    known, future : Spells
        Of the first half, and of the whole.
    start_s, age_s : ndarray of shape (n,)
        Submissions, and how long the zone has been up or down then. [s]
    is_up : ndarray of shape (n,)
        1 where it is up.
    """

    trace: SpotTrace
    known: Spells
    future: Spells
    start_s: Column
    is_up: Column
    age_s: Column

    @classmethod
    def of(cls, trace: SpotTrace) -> Half:
        """Cut a trace, submissions an hour apart in its second half."""
        middle = trace.end_s / 2
        whole = trace.spells(trace.nodes)
        start = np.arange(middle, trace.end_s - 1.0, HOUR_S)
        is_up, age = state_at(whole, start)
        return cls(
            trace=trace,
            known=trace.between(0.0, middle).spells(trace.nodes),
            future=whole,
            start_s=start,
            is_up=is_up.astype(float),
            age_s=age,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """Finish times of one trace's starts against their forecast."""

    finish_s: Column
    elapsed_s: Column
    low_s: Column
    middle_s: Column
    high_s: Column

    @property
    def is_over(self) -> NDArray[np.bool_]:
        """Starts whose job ended within the trace."""
        over: NDArray[np.bool_] = np.isfinite(self.finish_s)
        return over

    @property
    def coverage(self) -> float:
        """Share of decided starts whose finish lies in the closed interval."""
        is_late = ~self.is_over & (self.elapsed_s > self.high_s)
        slack = 1e-6  # ties at restart + work are real
        inside = (self.finish_s >= self.low_s - slack) & (self.finish_s <= self.high_s + slack)
        decided = int(np.sum(self.is_over) + np.sum(is_late))
        return float(np.sum(inside) / decided) if decided else float("nan")


def run(data: Path) -> Validation:
    """Score the forecast of finish times, and the expected cost with fall-back on demand.

    Raises
    ------
    UsageError
        If the table holds no trace of four days with nodes in both halves.
    """
    halves = halves_of(data)
    parameters = ForecastParameters()
    runner = finish_runner(JOB)
    libraries = [
        library(h.known, runner, JOB.attempt_s, JOB.kept_s(h.known.up_length_s), parameters)
        for h in halves
    ]
    results = [
        _result(h, _rolling(k, halves, libraries, parameters)) for k, h in enumerate(halves)
    ]
    still = [_result(h, _forecast(k, halves, libraries, parameters)) for k, h in enumerate(halves)]
    groups = [
        Group(group=h.trace.name, scores=_scores(r))
        for h, r in zip(halves, results, strict=True)
        if r.is_over.any()
    ]
    costs = _cost_errors(halves, parameters)
    widths = [np.median((r.high_s - r.low_s) / r.middle_s) for r in results]
    return Validation(
        protocol="spot",
        description="finish time of a 10 h job, 80 % intervals",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=_pooled(results),
        groups=groups,
        baselines={
            "the first half alone": _pooled(still),
            "memoryless, same means": _baseline(halves, _memoryless),
            "mean rate: W (1 + rate x loss) / availability": _baseline(halves, _mean_rate),
        },
        figures={
            "traces": len(halves),
            "interval_width_median_over_traces": float(np.median(widths)),
            "traces_with_coverage_70_to_90": int(sum(0.7 <= r.coverage <= 0.9 for r in results)),
            "median_ape_mean_over_traces": float(
                np.mean([g.scores.median_ape_fraction for g in groups])
            ),
            "undecided_fraction": float(
                np.mean([np.mean(~r.is_over & (r.elapsed_s <= r.high_s)) for r in results])
            ),
            **costs,
        },
        notes=[
            "coverage is the mean over traces; errors are of starts that end within the trace",
            "constants were chosen on first halves only (benchmarks/spot_constants.py); the form "
            "of the forecast came from a trial that had seen the second",
        ],
    )


def _rolling(
    at: int, halves: Sequence[Half], libraries: Sequence[Library],
    parameters: ForecastParameters, days: float = RECENT_DAYS,
) -> Forecast:  # fmt: skip
    """Forecast each day's starts from the ``days`` before that day."""
    half, runner, tables = halves[at], finish_runner(JOB), []
    others = [lib for j, lib in enumerate(libraries) if j != at]
    day = ((half.start_s - half.start_s[0]) // (24 * HOUR_S)).astype(int)
    for number in range(int(day[-1]) + 1):
        rows = day == number
        nodes = half.trace.nodes
        past = half.trace.between(0.0, float(half.start_s[rows][0]))
        spells = past.recent(days, nodes).spells(nodes)
        own = library(spells, runner, JOB.attempt_s, JOB.kept_s(spells.up_length_s), parameters)
        seen = forecast(own, others, half.is_up[rows], half.age_s[rows], parameters)
        tables.append(seen.quantiles)
    table = np.concatenate(tables)
    return Forecast(quantiles=table, mean=table[:, 1])


def halves_of(data: Path) -> list[Half]:
    """Return every trace that is long enough, cut in the middle.

    Raises
    ------
    UsageError
        If the table holds no trace of four days with nodes in both halves.
    """
    path = SPOT.path("intervals", data)
    traces = read_spot_traces(path, left_out=[])
    cuts = [Half.of(t) for t in traces if t.end_s >= MINIMUM_DAYS * 24 * HOUR_S]
    usable = [h for h in cuts if h.known.up_start_s.size]
    if not usable:
        raise UsageError(
            f"{path} has no trace of {MINIMUM_DAYS:g} days with nodes in its first half",
            hint="shorter traces hold too little to learn from",
        )
    return usable


def _forecast(
    at: int, halves: Sequence[Half], libraries: Sequence[Library], parameters: ForecastParameters
) -> Forecast:
    others = [lib for k, lib in enumerate(libraries) if k != at]
    half = halves[at]
    return forecast(libraries[at], others, half.is_up, half.age_s, parameters)


def _result(half: Half, predicted: Forecast) -> _Result:
    low, middle, high = predicted.quantiles.T
    actual = replay(half.future, JOB, half.start_s)
    return _Result(
        finish_s=actual.finish_s,
        elapsed_s=half.trace.end_s - half.start_s,
        low_s=low,
        middle_s=middle,
        high_s=high,
    )


def _joined(results: Sequence[_Result]) -> _Result:
    return _Result(
        **{name: np.concatenate([getattr(r, name) for r in results]) for name in _Result.__slots__}
    )


def _scores(result: _Result, coverage: float | None = None) -> Scores:
    rows = result.is_over & np.isfinite(result.middle_s)
    plain = score(
        result.middle_s[rows],
        result.finish_s[rows],
        low=result.low_s[rows],
        high=np.minimum(result.high_s[rows], 1e9),
    )
    return replace(plain, coverage=result.coverage if coverage is None else coverage)


def _pooled(results: Sequence[_Result]) -> Scores:
    """Return errors over all starts, coverage as the mean over traces."""
    mean = float(np.nanmean([r.coverage for r in results]))
    return _scores(_joined(results), coverage=mean)


def _memoryless(half: Half) -> Column:
    """Return the quantiles, shape (n, 3), with exponential spells of the known means [s]."""
    rng = np.random.default_rng(0)
    up, down = _means(half.known)
    lengths = rng.exponential([down, up], (20_000, 2)).ravel()
    edges = np.cumsum(lengths)
    drawn = Spells(up_start_s=edges[0::2], up_length_s=lengths[1::2], end_s=float(edges[-1]))
    # Memoryless: only the state matters, not its age.
    start = rng.uniform(0, drawn.end_s / 2, 4000)
    is_up, _ = state_at(drawn, start)
    finish = np.nan_to_num(replay(drawn, JOB, start).finish_s, nan=np.inf)
    down_q, up_q = (
        np.quantile(finish[is_up == state], [0.1, 0.5, 0.9]) for state in (False, True)
    )
    quantiles: Column = np.where(half.is_up[:, None] > 0, up_q, down_q)
    return quantiles


def _mean_rate(half: Half) -> Column:
    """Return ``W (1 + rate x loss) / availability`` as all three quantiles, shape (n, 3) [s]."""
    up, _ = _means(half.known)
    loss = JOB.checkpoint_interval_s / 2 + JOB.restart_s
    expected = JOB.work_s * (1 + loss / up) / half.known.availability
    return np.full((half.start_s.size, 3), expected)


def _means(spells: Spells) -> tuple[float, float]:
    """Return the mean up and down spell [s]."""
    up = float(spells.up_length_s.mean())
    return up, max((spells.end_s - spells.up_length_s.sum()) / spells.up_length_s.size, 1.0)


def _baseline(halves: Sequence[Half], quantiles: Callable[[Half], Column]) -> Scores:
    results = []
    for half in halves:
        table = quantiles(half)
        results.append(_result(half, Forecast(quantiles=table, mean=table[:, 1])))
    return _pooled(results)


def _cost_errors(halves: Sequence[Half], parameters: ForecastParameters) -> dict[str, float]:
    """Return the error of the expected cost with fall-back, mean over traces, by deadline."""
    errors = {}
    for deadline_h in DEADLINES_H:
        deadline_s = deadline_h * HOUR_S

        def cost(spells: Spells, start_s: Column, deadline_s: float = deadline_s) -> Column:
            run = replay_with_fallback(spells, JOB, start_s, deadline_s=deadline_s)
            return run.cost_usd(SPOT_PRICE, 1.0) / (JOB.work_s / HOUR_S)

        libraries = [
            library(h.known, cost, JOB.attempt_s, JOB.kept_s(h.known.up_length_s), parameters)
            for h in halves
        ]
        apes = []
        for k, half in enumerate(halves):
            rows = half.start_s + deadline_s <= half.trace.end_s
            if rows.any():
                expected = _forecast(k, halves, libraries, parameters).mean[rows].mean()
                apes.append(abs(expected / cost(half.future, half.start_s[rows]).mean() - 1))
        errors[f"fallback_cost_ape_deadline_{deadline_h:g}_h"] = float(np.mean(apes))
    errors["fallback_cost_ape"] = float(np.mean(list(errors.values())))
    return errors
