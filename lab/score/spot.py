"""Protocols of spot machines: ``spot`` (when a job ends) and ``spot-plan`` (what it pays).

A job of 10 h (restart 5 min, checkpoints every 30 min) is submitted in the second half of each
trace. Known: the trace up to that day, of which the last fortnight is used as ``simulate spot``
does; the first halves of the other traces; and at submission whether the zone is up and since
when.

``spot``: at each hour. A start that the trace's end cuts off is a miss if the upper bound has
passed by then, and undecided (left out) otherwise. Coverage and width are means over traces. Of a
trace of several nodes every smaller number together is asked too.

``spot-plan``: at times spread over the half, with deadlines of 12 to 30 h and a spot price of 0.3
of the on-demand price; the plan is looked up again every third day. Beside it stands the least
bill of somebody who knows the trace (``clairvoyant_usd``), by a plan that can be carried
out. MAPE is bill over least bill, less 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.errors import UsageError
from advisor.lab.data import SPOT
from advisor.lab.score.harness import Answers, Bools, Floats, Protocol, Questions, Rule, by
from advisor.lab.score.scores import Scores, score
from advisor.planners.core.errors import HOUR_S
from advisor.planners.spot.availability import Column, Spells, SpotJob, SpotTrace, replay
from advisor.planners.spot.forecast import (
    RECENT_DAYS,
    Forecast,
    ForecastParameters,
    Library,
    finish_runner,
    forecast_of,
    library,
    state_at,
)
from advisor.planners.spot.last_safe_moment import FallbackRun, replay_with_fallback
from advisor.planners.spot.policy import (
    IDLE,
    ON_DEMAND,
    ON_SPOT,
    SpellHazards,
    SpotPolicy,
    with_saves_s,
)
from advisor.planners.spot.policy_replay import Choose, replay_policy
from advisor.records.traces import read_spot_traces

MINIMUM_DAYS: Final = 4.0
JOB: Final = SpotJob(work_s=10 * HOUR_S, restart_s=300.0, checkpoint_interval_s=1800.0)
DEADLINES_H: Final = (12.0, 15.0, 20.0, 30.0)
SPOT_PRICE: Final = 0.3  # relative to on demand


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """One trace cut in the middle: ``known`` is of the first half, ``future`` of the whole.

    ``start_s`` are submissions in the second half, ``age_s`` how long the zone has been up or down
    then, ``is_up`` 1 where it is up; all of shape (n,).
    """

    trace: SpotTrace
    nodes: int  # that have to be up together
    known: Spells
    future: Spells
    start_s: Column
    is_up: Column
    age_s: Column

    @property
    def name(self) -> str:
        """The trace's, and of how many of its nodes."""
        few = self.nodes < self.trace.nodes
        return f"{self.trace.name}, {self.nodes} of them" if few else self.trace.name

    @classmethod
    def of(cls, trace: SpotTrace, nodes: int | None = None) -> Half:
        """Cut a trace, submissions an hour apart in its second half; all its nodes by default."""
        middle, nodes = trace.end_s / 2, nodes or trace.nodes
        whole = trace.spells(nodes)
        start = np.arange(middle, trace.end_s - 1.0, HOUR_S)
        is_up, age = state_at(whole, start)
        return cls(
            trace=trace,
            nodes=nodes,
            known=trace.between(0.0, middle).spells(nodes),
            future=whole,
            start_s=start,
            is_up=is_up.astype(float),
            age_s=age,
        )


def halves_of(data: Path) -> list[Half]:
    """Return every trace that is long enough, cut in the middle.

    Raises UsageError if the table holds no trace of four days with nodes in both halves.
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


# spot


@dataclass(frozen=True, slots=True, kw_only=True)
class _Starts:
    """The traces of the rows, and how long each trace goes on after each start [s]."""

    halves: Sequence[Half]
    elapsed_s: Column
    trace: NDArray[np.str_]


def read_spot(data: Path) -> Questions:
    """Return every start in the second half of every trace, on each number of its nodes."""
    halves = halves_of(data)
    fewer = [Half.of(h.trace, nodes) for h in halves for nodes in range(1, h.nodes)]
    return starts_of([*halves, *fewer])


def starts_of(halves: Sequence[Half]) -> Questions:
    """Return every start; the truth is nan where the trace ends before the job."""
    names = [h.name for h in halves for _ in h.start_s]
    truth = np.concatenate([replay(h.future, JOB, h.start_s).finish_s for h in halves])
    return Questions(
        questions=[f"seconds until a 10 h job ends in {name}" for name in names],
        truth=np.where(np.isfinite(truth), truth, np.nan),
        unseen=[f"{name} after the day of the start" for name in names],
        groups=by(names, is_sorted=False),
        facts=_Starts(
            halves=halves,
            elapsed_s=np.concatenate([h.trace.end_s - h.start_s for h in halves]),
            trace=np.array(names),
        ),
    )


def _spot_scores(rows: Questions, answers: Answers, among: Bools) -> Scores:
    """Score errors over the starts that end within their trace, coverage as mean over traces."""
    assert answers.low is not None
    assert answers.high is not None
    shown = replace(answers, high=np.minimum(answers.high, 1e9))
    covered = [
        _coverage(rows, answers, mask) for mask in rows.groups.values() if (mask & among).any()
    ]
    return replace(shown.scores(rows.truth, among), coverage=float(np.nanmean(covered)))


def _coverage(rows: Questions, answers: Answers, mask: Bools) -> float:
    """Return the share of decided starts whose finish lies in the closed interval."""
    is_over = np.isfinite(rows.truth) & mask
    is_late = ~np.isfinite(rows.truth) & mask & (rows.facts.elapsed_s > answers.high)
    slack = 1e-6  # ties at restart + work are real
    assert answers.low is not None
    assert answers.high is not None
    inside = (rows.truth >= answers.low - slack) & (rows.truth <= answers.high + slack) & is_over
    decided = int(np.sum(is_over) + np.sum(is_late))
    return float(np.sum(inside) / decided) if decided else float("nan")


def _banded(tables: Sequence[Column]) -> Answers:
    """Return quantiles, shape (n, 3) a trace, as answers with 80 % intervals."""
    low, value, high = np.concatenate(tables).T
    return Answers(value=value, low=low, high=high)


def _libraries(
    halves: Sequence[Half], runner: Callable[..., Column], parameters: ForecastParameters
) -> list[Library]:
    return [
        library(h.known, runner, JOB.attempt_s, JOB.kept_s(h.known.up_length_s), parameters)
        for h in halves
    ]


def _spot_answers(rows: Questions) -> Answers:
    halves, parameters = rows.facts.halves, ForecastParameters()
    libraries = _libraries(halves, finish_runner(JOB), parameters)
    answers = _banded([_rolling(k, halves, libraries, parameters) for k in range(len(halves))])
    still = _banded(
        [_forecast(k, halves, libraries, parameters).quantiles for k in range(len(halves))]
    )
    return replace(
        answers,
        others={"the first half alone": still},
        figures=_spot_figures(rows, answers) | _cost_errors(halves, parameters),
    )


def _spot_figures(rows: Questions, answers: Answers) -> dict[str, float]:
    assert answers.low is not None
    assert answers.high is not None
    masks = rows.groups.values()
    width = (answers.high - answers.low) / answers.value
    covered = [_coverage(rows, answers, mask) for mask in masks]
    ended = [mask for mask in masks if (mask & np.isfinite(rows.truth)).any()]
    undecided = ~np.isfinite(rows.truth) & (rows.facts.elapsed_s <= answers.high)
    medians = [_spot_scores(rows, answers, mask).median_ape_fraction for mask in ended]
    by_nodes: dict[int, list[float]] = {}
    for half, one in zip(rows.facts.halves, covered, strict=True):
        by_nodes.setdefault(half.nodes, []).append(one)
    return {
        **{f"coverage of {n} together": float(np.mean(v)) for n, v in sorted(by_nodes.items())},
        "traces": sum(half.nodes == half.trace.nodes for half in rows.facts.halves),
        "interval_width_median_over_traces": float(
            np.median([np.median(width[m]) for m in masks])
        ),
        "traces_with_coverage_70_to_90": int(sum(0.7 <= one <= 0.9 for one in covered)),
        "median_ape_mean_over_traces": float(np.mean(medians)),
        "undecided_fraction": float(np.mean([np.mean(undecided[m]) for m in masks])),
    }


def _rolling(
    at: int, halves: Sequence[Half], libraries: Sequence[Library], parameters: ForecastParameters,
    days: float = RECENT_DAYS,
) -> Column:  # fmt: skip
    """Return the quantiles of each day's starts from the ``days`` before that day."""
    half, runner, tables = halves[at], finish_runner(JOB), []
    others = _of_others(at, halves, libraries)
    day = ((half.start_s - half.start_s[0]) // (24 * HOUR_S)).astype(int)
    for number in range(int(day[-1]) + 1):
        rows, nodes = day == number, half.nodes
        past = half.trace.between(0.0, float(half.start_s[rows][0]))
        spells = past.recent(days, nodes).spells(nodes)
        own = library(spells, runner, JOB.attempt_s, JOB.kept_s(spells.up_length_s), parameters)
        seen = forecast_of(own, others, half.is_up[rows], half.age_s[rows], parameters)
        tables.append(seen.quantiles)
    return np.concatenate(tables)


def _of_others(at: int, halves: Sequence[Half], libraries: Sequence[Library]) -> list[Library]:
    """Return the libraries of the other traces, each of all its nodes."""
    return [
        lib
        for half, lib in zip(halves, libraries, strict=True)
        if half.trace.name != halves[at].trace.name and half.nodes == half.trace.nodes
    ]


def _forecast(
    at: int, halves: Sequence[Half], libraries: Sequence[Library], parameters: ForecastParameters
) -> Forecast:
    others, half = _of_others(at, halves, libraries), halves[at]
    return forecast_of(libraries[at], others, half.is_up, half.age_s, parameters)


def _by_trace(quantiles: Callable[[Half], Column]) -> Rule:
    return lambda rows, _: _banded([quantiles(half) for half in rows.facts.halves])


def _known(half: Half) -> Column:
    """Return the quantiles, shape (n, 3), of somebody who knows the second half's spells [s].

    Not the times at which they come: what is left of the error is the luck of each start.
    """
    middle, none = half.trace.end_s / 2, replace(ForecastParameters(), drift=0.0, starts=600)
    spells = half.trace.between(middle, half.trace.end_s).spells(half.nodes)
    if not spells.up_start_s.size:
        return np.full((half.start_s.size, 3), np.nan)
    kept = JOB.kept_s(spells.up_length_s)
    own = library(spells, finish_runner(JOB), JOB.attempt_s, kept, none)
    return forecast_of(own, [], half.is_up, half.age_s, none).quantiles


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


def _cost_errors(halves: Sequence[Half], parameters: ForecastParameters) -> dict[str, float]:
    """Return the error of the expected cost with fall-back, mean over traces, by deadline."""
    errors = {}
    for deadline_h in DEADLINES_H:
        deadline_s = deadline_h * HOUR_S

        def cost(spells: Spells, start_s: Column, deadline_s: float = deadline_s) -> Column:
            run = replay_with_fallback(spells, JOB, start_s, deadline_s=deadline_s)
            return run.cost_usd(SPOT_PRICE, 1.0) / (JOB.work_s / HOUR_S)

        libraries = _libraries(halves, cost, parameters)
        apes = []
        for k, half in enumerate(halves):
            rows = half.start_s + deadline_s <= half.trace.end_s
            if rows.any():
                expected = _forecast(k, halves, libraries, parameters).mean[rows].mean()
                apes.append(abs(expected / cost(half.future, half.start_s[rows]).mean() - 1))
        errors[f"fallback_cost_ape_deadline_{deadline_h:g}_h"] = float(np.mean(apes))
    errors["fallback_cost_ape"] = float(np.mean(list(errors.values())))
    return errors


FINISH: Final = Protocol(
    name="spot",
    description="finish time of a 10 h job, 80 % intervals",
    senses={
        "traces*": "more",
        "*coverage*": 0.8,
        "undecided_fraction": "neutral",
        "fallback_cost*": "lower",
        "median_ape*": "lower",
    },
    rows=read_spot,
    answer=_spot_answers,
    seen=(
        "the form of the forecast: from a trial that had seen second halves",
        "drift, share of other zones and scale of the levels: chosen on first halves, of the "
        "scored trace too",
    ),
    fitted_on=("drift, share of other zones and scale of the levels: the scored trace too",),
    baselines={
        "who knows the spells to come": _by_trace(_known),
        "memoryless, same means": _by_trace(_memoryless),
        "mean rate: W (1 + rate x loss) / availability": _by_trace(_mean_rate),
    },
    scorer=_spot_scores,
    notes=(
        "coverage is the mean over traces; errors are of starts that end within the trace",
        "constants were chosen on first halves only (lab/experiments/spot_constants.py); the form "
        "of the forecast came from a trial that had seen the second",
    ),
)


# spot-plan

STARTS: Final = 16  # of each trace and deadline: 1,024 replays of 16 traces
NOTICE_S: Final = 120.0  # what AWS gives before it takes a spot machine away
_DAYS: Final = 3.0  # after which the plan is made again
PRICES: Final[Mapping[str, Any]] = {"spot_price_usd_per_h": SPOT_PRICE, "price_usd_per_h": 1.0}
_NOTICED: Final = replace(JOB, warning_s=NOTICE_S)
Modes = NDArray[np.intp]
Flags = NDArray[np.bool_]
# Of the number of a trace, the trace, submissions [s], the job and the deadline [s].
Replay = Callable[[int, Half, Column, SpotJob, float], FallbackRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bills:
    """What is asked: a trace and its number, submissions [s] and deadline [h]."""

    halves: list[Half]
    cells: list[tuple[int, Half, Column, float]]

    @property
    def deadline_h(self) -> Floats:
        """The deadline of every row."""
        return np.concatenate([np.full(start.size, hours) for _, _, start, hours in self.cells])

    def paid(self, rule: Replay, job: SpotJob) -> tuple[Floats, int]:
        """Return the bill of every row [USD], and how many ended late."""
        bills, late = [], 0
        for number, half, starts, deadline_h in self.cells:
            found = rule(number, half, starts, job, deadline_h * HOUR_S)
            bills.append(found.cost_usd(SPOT_PRICE, 1.0))
            late += int(np.sum(~(found.finish_s <= deadline_h * HOUR_S + 1e-3)))
        return np.concatenate(bills), late


def read_plan(data: Path) -> Questions:
    """Return submissions by trace and deadline; the truth is the least possible bill."""
    halves = halves_of(data)
    cells = [
        (number, half, starts, deadline_h)
        for number, half in enumerate(halves)
        for starts in [_starts_s(half)]
        for deadline_h in (DEADLINES_H if starts.size else ())
    ]
    least = [
        clairvoyant_usd(half.future, JOB, starts, deadline_s=deadline_h * HOUR_S, **PRICES)
        for _, half, starts, deadline_h in cells
    ]
    told = [(half.trace.name, hours) for _, half, starts, hours in cells for _ in starts]
    return Questions(
        questions=[f"the bill of a 10 h job in {name} within {hours:g} h" for name, hours in told],
        truth=np.concatenate(least),
        unseen=[f"{name} after the start, but for every third day" for name, _ in told],
        groups=by((name for name, _ in told), is_sorted=False),
        facts=Bills(halves=halves, cells=cells),
    )


def _starts_s(half: Half) -> Column:
    """Return submissions spread over the second half, early enough for every deadline [s]."""
    able = half.start_s[half.start_s + max(DEADLINES_H) * HOUR_S <= half.trace.end_s]
    starts: Column = able[np.unique(np.linspace(0, able.size - 1, STARTS).astype(int))]
    return starts


def _plans(halves: Sequence[Half], job: SpotJob) -> Replay:
    """Return the product's plan, made again every third day from what is known then."""
    made: dict[tuple[int, int], SpotPolicy] = {}

    def plan(number: int, half: Half, begin_s: float, day: int) -> SpotPolicy:
        if (number, day) not in made:
            nodes = half.nodes
            past = half.trace.between(0.0, begin_s).recent(RECENT_DAYS, nodes).spells(nodes)
            others = [other.known for k, other in enumerate(halves) if k != number]
            hazards = SpellHazards.of(past, others)
            longest_s = max(DEADLINES_H) * HOUR_S
            made[number, day] = SpotPolicy.of(hazards, job, deadline_s=longest_s, **PRICES)
        return made[number, day]

    def replayed(
        number: int, half: Half, starts: Column, job: SpotJob, deadline_s: float
    ) -> FallbackRun:
        days = ((starts - starts[0]) // (_DAYS * 24 * HOUR_S)).astype(int)
        parts = [
            _replayed(half, starts[days == day], job, deadline_s,
                      plan(number, half, float(starts[days == day][0]), int(day)).choose)
            for day in np.unique(days)
        ]  # fmt: skip
        return FallbackRun(
            **{name: np.concatenate([getattr(p, name) for p in parts])
               for name in FallbackRun.__slots__}
        )  # fmt: skip

    return replayed


def _replayed(
    half: Half, starts: Column, job: SpotJob, deadline_s: float, choose: Choose
) -> FallbackRun:
    return replay_policy(half.future, job, starts, deadline_s=deadline_s, choose=choose)


def _uniform(
    _number: int, half: Half, starts: Column, job: SpotJob, deadline_s: float
) -> FallbackRun:
    """Keep up with work in proportion to time: on demand when behind it, or little ahead."""

    def choose(to_go_s: float, rest_s: Column, mode: Modes, is_up: Flags, age_s: Column) -> Modes:
        ahead_s = job.attempt_s * to_go_s / deadline_s - rest_s
        stays = (mode == ON_DEMAND) & (ahead_s < 2.0 * job.restart_s)
        wanted = np.where((ahead_s < 0.0) | stays, ON_DEMAND, IDLE)
        return np.where(is_up, ON_SPOT, wanted)

    return _replayed(half, starts, job, deadline_s, choose)


def _on_demand(
    _number: int, _half: Half, starts: Column, job: SpotJob, _deadline_s: float
) -> FallbackRun:
    wall = np.full(starts.shape, job.wall_s)
    return FallbackRun(finish_s=wall, spot_s=np.zeros(starts.shape), on_demand_s=wall)


RULES: Final[Mapping[str, Replay]] = {
    "spot until the last safe moment": lambda _, half, starts, job, deadline_s: (
        replay_with_fallback(half.future, job, starts, deadline_s=deadline_s)
    ),
    "uniform progress": _uniform,
    "always on demand": _on_demand,
}


def _plan_answers(rows: Questions) -> Answers:
    facts: Bills = rows.facts
    ours, late = facts.paid(_plans(facts.halves, JOB), JOB)
    on_notice, late_on_notice = facts.paid(_plans(facts.halves, _NOTICED), _NOTICED)
    simple = {name: facts.paid(rule, JOB)[0] for name, rule in RULES.items()}
    figures = {
        "replays": float(rows.truth.size),
        "deadlines missed": float(late),
        "deadlines missed, saved on notice": float(late_on_notice),
        "saved on notice: bill over least, mean": 1.0 + score(on_notice, rows.truth).mape_fraction,
    }
    # Mean bill over the mean least bill, traces weighing alike.
    for deadline_h in DEADLINES_H:
        here = facts.deadline_h == deadline_h
        masks = [mask & here for mask in rows.groups.values() if (mask & here).any()]
        least = np.mean([rows.truth[mask].mean() for mask in masks])
        for name, paid in {"ours": ours, "ours, saved on notice": on_notice, **simple}.items():
            label = f"{name}: mean bill over mean least bill, deadline {deadline_h:g} h"
            figures[label] = float(np.mean([paid[mask].mean() for mask in masks]) / least)
    return Answers(value=ours, others=simple, figures=figures)


PLAN: Final = Protocol(
    name="spot-plan",
    description="Bill of a 10 h job by a deadline over the least possible one.",
    senses={
        "replays": "more",
        "deadlines missed*": "fewer",
        "saved on notice: bill*": "lower",
        "ours*": "lower",
        "*mean bill*": "neutral",
    },
    rows=read_plan,
    answer=_plan_answers,
    seen=(
        "the form of the plan, bins of age and weight of other zones: not tuned, but written with "
        "these traces in sight",
    ),
    by_group=True,
    notes=(
        f"saved on notice: the job saves within the {NOTICE_S:g} s that AWS gives",
        "most of what is lost without notice is work since the last save, which who knows the "
        "trace never loses",
        "no interval: a bill has none here",
    ),
)


# The least that a job on spot and on-demand nodes can cost by a deadline, the future known.
#
# =========================  =====================================================================
# here                       meaning, unit
# =========================  =====================================================================
# slot                       the grid's step; a node is there in a slot or not. [s]
# ``U(t, p, m)``             least bill from slot t on with p slots of work done, on m. [slots]
# ``optimistic``             count a slot as up where the node is there for a part of it.
# =========================  =====================================================================
#
# Who knows the future saves before each removal and loses nothing, so work only grows:
#
#     U(t, p, m) = min( price_m + U(t + 1, p + 1, m),  U(t, p, nothing) )
#     U(t, p, nothing) = min( U(t + 1, p, nothing),  price_m r + U(t + r, p, m) )
#
# with r slots of restart, and m spot or on demand. Slots that are up throughout make a plan that
# can be carried out: its bill is at least the optimum. Slots that are up in part make one that is
# at most the optimum, so the two bracket it. Saves count at intervals alone, those before a move
# are free. The program is our own; it is the yardstick of ``planners.spot.policy`` and no part of
# it.


def clairvoyant_usd(
    spells: Spells,
    job: SpotJob,
    start_s: Column,
    *,
    deadline_s: float,
    spot_price_usd_per_h: float,
    price_usd_per_h: float,
    slot_s: float = 150.0,
    is_optimistic: bool = False,
) -> Column:
    """Return the least bill of each start; inf where no plan meets the deadline [USD].

    ``start_s``: (n,); submissions [s]; ``spot_price_usd_per_h``, ``price_usd_per_h``: of all nodes
    together [USD/h]; ``slot_s``: restart and work are rounded up to whole slots, or down where
    optimistic [s].
    """
    rounded = np.floor if is_optimistic else np.ceil
    work, restart = (int(rounded(s / slot_s)) for s in (with_saves_s(job), job.restart_s))
    slots = int(deadline_s / slot_s + 1e-9)
    is_up = _is_up(spells, start_s, slots, slot_s, is_optimistic)
    per_slot = np.array([spot_price_usd_per_h, price_usd_per_h]) * slot_s / HOUR_S
    return _least(is_up, work, restart, per_slot)


def _is_up(
    spells: Spells, start_s: Column, slots: int, slot_s: float, is_optimistic: bool
) -> NDArray[np.bool_]:
    """Return where a node is there, shape (starts, slots)."""
    begin, end = spells.up_start_s, spells.up_start_s + spells.up_length_s
    first = start_s[:, None] + np.arange(slots) * slot_s
    if not begin.size:
        return np.zeros(first.shape, bool)
    if is_optimistic:
        at = np.minimum(np.searchsorted(end, first, side="right"), end.size - 1)
        return (end[at] > first) & (begin[at] < first + slot_s)
    at = np.searchsorted(begin, first + 1e-6, side="right") - 1
    return (at >= 0) & (first + slot_s <= end[np.maximum(at, 0)] + 1e-6)


def _least(is_up: NDArray[np.bool_], work: int, restart: int, per_slot: Column) -> Column:
    """Return the least bill from the first slot with nothing done and on nothing."""
    starts, slots = is_up.shape
    done = np.full((starts, work + 1), np.inf)
    done[:, work] = 0.0
    lasting = np.zeros((starts, slots + 1), np.int64)  # slots that spot goes on from each
    for t in range(slots - 1, -1, -1):
        lasting[:, t] = np.where(is_up[:, t], lasting[:, t + 1] + 1, 0)
    nothing = done
    # Values on spot and on demand of the last ``restart + 1`` slots looked at.
    later: dict[int, tuple[Column, Column]] = {slots: (done, done)}
    for t in range(slots - 1, -1, -1):
        if t + restart <= slots and restart > 0:
            spot, on_demand = later[t + restart]
            begun = np.where((lasting[:, t] >= restart)[:, None], spot, np.inf)
            nothing = np.minimum(nothing, restart * per_slot[0] + begun)
            nothing = np.minimum(nothing, restart * per_slot[1] + on_demand)
        on = [
            _on(later[t + 1][kind], per_slot[kind], ok)
            for kind, ok in enumerate((is_up[:, t], np.ones(starts, bool)))
        ]
        if restart == 0:
            nothing = np.minimum(nothing, np.minimum(*on))
        later[t] = (np.minimum(on[0], nothing), np.minimum(on[1], nothing))
        later.pop(t + restart + 1, None)
    least: Column = nothing[:, 0]
    return least


def _on(ahead: Column, price: float, can: NDArray[np.bool_]) -> Column:
    """Return the bill of computing for a slot."""
    found = np.full(ahead.shape, np.inf)
    found[:, :-1] = np.where(can[:, None], price + ahead[:, 1:], np.inf)
    found[:, -1] = 0.0
    return found
