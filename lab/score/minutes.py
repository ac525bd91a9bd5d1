"""Protocol ``minutes``: whole jobs of about a minute, known from at most 5 % of each.

Every program is left out in turn; whoever answers is fitted to the others' runs of seconds and of
minutes. Beside what ships (``trained_models/runs``) stand physics, physics times the
configuration's median ratio, each estimator alone, the sequence network with and without its
network channels, stacks, and *chosen by the others*: for each program the candidate that errs
least on the other programs, which is how a choice among them would have gone (nested); and what
the rule of ``advisor train`` would have taken there (``best_of``). What choosing machines by each
would cost is a figure of its own.

The curves say what a longer recording would have told: the step's time is that of the first share
of the job on the anchor, everything else stays. Up to 2 % come from the partial run, made minutes
before; longer shares from the whole run on the anchor itself, in blocks of a 48th. The rows are
the runs on other configurations of jobs that have such a run on the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.lab.score.harness import Answers, Bools, Floats, Protocol, Questions
from advisor.lab.score.runs import (
    CONFIGURATION,
    as_shipped,
    by_configuration,
    costs,
    network_of,
    own_folder,
    placed,
    read_own,
    rows_of_runs,
    shipped_choice,
    split_answers,
)
from advisor.learned.base import RunRegressor
from advisor.learned.evaluation import SplitScores, evaluate, metrics
from advisor.learned.features import SEQUENCE_CHANNELS, SEQUENCE_READINGS
from advisor.learned.problem import Problem, problem_of
from advisor.learned.regrets import regret
from advisor.learned.selection import Contest, best_of
from advisor.records import RunRecord
from advisor.records.collected import Row, machine_of, named_on, nearest, unpack
from advisor.train.models import predictor

PHYSICS: Final = "physics alone"
MEDIAN: Final = next(iter(CONFIGURATION))
CHOSEN: Final = "chosen by the others"
RULED: Final = "chosen by the others, by the rule of advisor train"
Answer = Callable[[Bools], str]  # of some rows -> who answers best
_ALONE: Final = ("ridge", "gp", "forest", "boosting", "stack")
_NETWORK: Final = "sequence network"
_WITHOUT: Final = "sequence network, no network channels"
_WITH_ALL: Final = "stack with the network"
# Share of the job -> what was recorded of it.
FROM_PARTIAL: Final = (0.01, 0.02)
FROM_WHOLE: Final = (1 / 48, 2 / 48, 4 / 48, 1.0)


def read_minutes(data: Path) -> Questions:
    """Return the runs of minutes as questions, with those of seconds to fit on."""
    seconds, minutes = read_own(data), read_own(data, "minutes")
    names = {record.record_id for record in minutes}
    asked = problem_of([*seconds, *minutes])
    rows = rows_of_runs(asked, np.array([r.record_id in names for r in asked.records]))
    return replace(rows, facts=replace(rows.facts, steps=steps_on_the_anchor(data)))


def _answers(rows: Questions) -> Answers:
    asked, tested = rows.facts.asked, rows.facts.tested
    splits = _candidates(rows)
    own = splits[shipped_choice()]
    seconds = evaluate(
        asked, partial(as_shipped, shipped_choice()), "job",
        tested=tested, fitted=~tested, has_intervals=False,
    )  # fmt: skip
    answers = {name: split_answers(split, rows) for name, split in splits.items()}
    answers[PHYSICS] = Answers(value=placed(own, rows, own.simple["roofline"]))
    answers[MEDIAN] = Answers(value=by_configuration(rows, tested))
    errors = {name: _relative(rows, one) for name, one in answers.items()}
    nested, names = _nested(rows, answers, _least_error(errors))
    ruled, by_rule = _nested(rows, answers, _the_rule(rows, answers))
    beside = {name: placed(own, rows, own.simple[name]) for name in ("mean", "anchor x ratio")}
    others = {
        **{name: one for name, one in answers.items() if name not in (shipped_choice(), MEDIAN)},
        CHOSEN: nested, RULED: ruled, **beside, "fitted to jobs of seconds alone": placed(
            seconds, rows, seconds.predicted
        ),
    }  # fmt: skip
    return split_answers(
        own, rows, others=others,
        figures=_figures(rows, own) | _regrets(splits) | _beside_ours(rows, errors)
        | _curves(rows) | costs(asked, own, partial(as_shipped, shipped_choice()), tested)
        | {f"times chosen, {name}": float(names.count(name)) for name in set(names)}
        | {f"times chosen by the rule, {n}": float(by_rule.count(n)) for n in set(by_rule)},
    )  # fmt: skip


def _candidates(rows: Questions) -> dict[str, SplitScores]:
    """Return what each candidate says of every program that it was not fitted to."""
    asked, tested = rows.facts.asked, rows.facts.tested
    found = {
        name: evaluate(asked, partial(as_shipped, name), "job", tested=tested) for name in _ALONE
    }
    seen = problem_of(asked.records, asked.target, has_series=True)

    def with_all() -> RunRegressor:
        stack: RunRegressor = predictor("all", channels=seen.channels, folds=3)
        return stack

    for name, problem, build, has_intervals in (
        (_NETWORK, seen, partial(network_of, seen), False),
        (_WITHOUT, without_network(seen), partial(network_of, seen), False),
        (_WITH_ALL, seen, with_all, True),
    ):
        found[name] = evaluate(problem, build, "job", tested=tested, has_intervals=has_intervals)
    return found


def without_network(seen: Problem) -> Problem:
    """Return a problem whose series say nothing of the network."""
    X = seen.X.copy()
    first = X.shape[1] - seen.channels * SEQUENCE_READINGS
    for place, name in enumerate(SEQUENCE_CHANNELS):
        if name.startswith("network"):
            X[:, first + place * SEQUENCE_READINGS : first + (place + 1) * SEQUENCE_READINGS] = 0
    return replace(seen, X=X)


def _relative(rows: Questions, answers: Answers) -> Floats:
    """Return the relative error of each row, nan where there is none."""
    return np.abs(answers.value / rows.truth - 1.0)


def _least_error(errors: Mapping[str, Floats]) -> Answer:
    """Choose who errs least in the mean."""
    return lambda some: min(errors, key=lambda name: float(np.nanmean(errors[name][some])))


def _the_rule(rows: Questions, answers: Mapping[str, Answers]) -> Answer:
    """Choose among the members that the product has as ``advisor train`` does."""

    def best(some: Bools) -> str:
        records = [rows.facts.asked.records[i] for i in np.flatnonzero(some)]
        said = {name: answers[name].value[some] for name in _ALONE}
        return best_of([
            Contest(
                name=name, metrics=metrics(value, rows.truth[some]), regret=regret(records, value)
            )
            for name, value in said.items()
        ])  # fmt: skip

    return best


def _nested(
    rows: Questions, answers: Mapping[str, Answers], best: Answer
) -> tuple[Answers, list[str]]:
    """Return each program's answers by whoever is best on the others, and who that was.

    The others' answers come from fits that saw the program's runs, as the weights of a stack do.
    """
    asked, tested = rows.facts.asked, rows.facts.tested
    value, low, high = (np.full(rows.truth.size, np.nan) for _ in range(3))
    names = []
    for program in np.unique(asked.groups[tested]):
        here = tested & (asked.groups == program)
        names.append(best(tested & ~here & np.isfinite(rows.truth)))
        theirs = answers[names[-1]]
        for column, told in ((value, theirs.value), (low, theirs.low), (high, theirs.high)):
            if told is not None:
                column[here] = told[here]
    if not np.isfinite(low[tested & np.isfinite(value)]).all():  # one that has no intervals
        return Answers(value=value), names
    return Answers(value=value, low=low, high=high), names


def _regrets(splits: Mapping[str, SplitScores]) -> dict[str, float]:
    """Return the cost of each job's choice over the best, by who chooses."""
    found = {}
    for name, split in splits.items():
        if split.top1_regret is not None:
            found[f"cost of choosing, {name}"] = split.top1_regret.top1
            found[f"standard error, cost of choosing, {name}"] = split.top1_regret.top1_error
            found["cost of choosing, always the same"] = split.top1_regret.constant
            found["cost of choosing, by chance"] = split.top1_regret.random
    return found


def _beside_ours(rows: Questions, errors: Mapping[str, Floats]) -> dict[str, float]:
    """Return how much more each candidate errs than what ships, and how sure that is.

    Both are of the programs' mean errors: runs of one program err alike.
    """
    by_program = {
        name: np.array([np.nanmean(error[here]) for here in rows.groups.values()])
        for name, error in errors.items()
    }
    ours = by_program.pop(shipped_choice())
    found = {}
    for name, theirs in by_program.items():
        more = theirs - ours
        found[f"error beyond ours, {name}"] = float(np.mean(more))
        found[f"standard error, error beyond ours, {name}"] = float(
            np.std(more, ddof=1) / np.sqrt(more.size)
        )
    return found


def _figures(rows: Questions, own: SplitScores) -> dict[str, float]:
    """Return how much of each job the partial run saw, and the error by where it ran."""
    asked = rows.facts.asked
    records = [asked.records[i] for i in own.rows]
    seen = [_share_seen(record) for record in records]
    figures = {"partial_run_share": float(np.median(seen)), "largest_partial_run_share": max(seen)}
    is_alone = np.array([r.instances == 1 for r in records])
    errors = np.abs(own.predicted / asked.truth[own.rows] - 1.0)
    for name, some in (("alone", errors[is_alone]), ("together", errors[~is_alone])):
        if some.size:
            figures |= _errors(name, some)
    return figures


def _errors(name: str, errors: Floats) -> dict[str, float]:
    return {
        f"{name}_rows": float(errors.size),
        f"{name}_mape_fraction": float(np.mean(errors)),
        f"{name}_median_ape_fraction": float(np.median(errors)),
    }


def _share_seen(record: RunRecord) -> float:
    """Return how long the partial run was, over the whole job at its pace."""
    assert record.anchor is not None  # every collected run has one
    course = record.anchor.series[0]
    return course.readings * course.interval_s / record.anchor.time_s


# What a longer recording would have told

Steps = Mapping[str, Mapping[str, float]]


def steps_on_the_anchor(data: Path) -> dict[str, dict[str, float]]:
    """Return, by job, the mean step of each share of it on the anchor [s].

    Only of jobs that ran there to the end; the names of shares are ``partial 1 %``, ``whole 8 %``.
    """
    partial_runs: dict[str, list[Row]] = {}
    whole_runs: dict[str, Row] = {}
    for row in unpack(own_folder(data, "minutes") / "runs.jsonl.gz"):
        is_anchor = row["instance"]["name"] == "core-1" and row["layout"]["kind"] == "single"
        if is_anchor and row["status"] == "ok" and not row["is_noisy"]:
            job = named_on(row["job"]["key"], machine_of(row))
            if row["kind"] == "full":
                whole_runs[job] = row
            else:
                partial_runs.setdefault(job, []).append(row)
    found = {}
    for job, row in whole_runs.items():
        if job in partial_runs:
            begun = nearest(partial_runs[job], row)
            shares = {
                f"partial {100 * s:.0f} %": _first(begun, s * row["steps_done"])
                for s in FROM_PARTIAL
            } | {f"whole {100 * s:.0f} %": _first(row, s * row["steps_done"]) for s in FROM_WHOLE}
            found[job] = shares
    return found


def _first(row: Mapping[str, Any], steps: float) -> float:
    """Return the mean of the first steps of a run, of equal blocks of them [s]."""
    blocks = np.asarray(row["nodes"][0]["step_ms"], float) / 1e3
    count = round(steps * blocks.size / row["steps_done"])
    return float(np.mean(blocks[: max(1, min(count, blocks.size))]))


def _curves(rows: Questions) -> dict[str, float]:
    """Return the errors on other configurations by the share of the job that was recorded."""
    asked, steps = rows.facts.asked, rows.facts.steps
    jobs = [_job_of(record) for record in asked.records]
    known = np.array([job in steps for job in jobs]) & rows.facts.tested
    elsewhere = known & np.array([r.instance_key != _anchor_key(r) for r in asked.records])
    if not elsewhere.any():
        return {}
    figures: dict[str, float] = {}
    for share in next(iter(steps.values())):
        records = [
            _recorded(record, steps[job][share]) if is_known else record
            for record, job, is_known in zip(asked.records, jobs, known, strict=True)
        ]
        said = problem_of(records)
        answers = evaluate(
            said, partial(as_shipped, shipped_choice()), "job", tested=elsewhere,
            has_intervals=False,
        )  # fmt: skip
        truth = said.truth[answers.rows]
        for name, values in (("", answers.predicted), ("physics, ", answers.simple["roofline"])):
            figures |= _errors(f"{name}recorded {share}", np.abs(values / truth - 1.0))
    return figures


def _job_of(record: RunRecord) -> str:
    """Return a job's name without its plan, as ``steps_on_the_anchor`` has it."""
    return record.job.job_id.replace(" of minutes", "")


def _anchor_key(record: RunRecord) -> str:
    assert record.anchor is not None
    return replace(record, configuration=(record.anchor.machines,)).instance_key


def _recorded(record: RunRecord, step_s: float) -> RunRecord:
    """Return a run whose job's partial run had such a mean step."""
    anchor = record.anchor
    assert anchor is not None
    steps = record.job.facts["steps"]
    assert isinstance(steps, float)
    facts = {**anchor.facts, "step_time_s": step_s, "step_time_mean_s": step_s}
    return replace(record, anchor=replace(anchor, time_s=step_s * steps, facts=facts))


MINUTES: Final = Protocol(
    name="minutes",
    description="Time of jobs of about a minute, from a partial run of at most 5 %.",
    senses={
        "*partial_run_share": "neutral",
        "times chosen*": "neutral",
        "standard error, *": "neutral",
        "error beyond ours, *": "neutral",
        "*_rows": "neutral",
        "cost of choosing, always the same": "neutral",
        "cost of choosing, by chance": "neutral",
        "cost of choosing, *": "lower",
        "*recorded *": "neutral",
    },
    rows=read_minutes,
    answer=_answers,
    baselines=CONFIGURATION,
    scores=lambda _: (
        "what recommend asks where it covers a job: physics corrected by guarded "
        f"{shipped_choice()}, fitted anew without the left-out program"
    ),
    seen=(
        "features, members and sizes of the estimators: chosen on the runs of seconds, siblings "
        "of these; that DDP hands buffers to all ranks was found in the graph network's rows here",
    ),
    notes=(
        "the sequence network is given the partial run's course, which the trees are not",
        "an instance type is a share of one machine; the price is that of the closest sold",
        f"{CHOSEN}: of all candidates the one that errs least on the other programs; by the rule "
        "of advisor train: the least cost of choosing among those, of equals the least error",
        "recorded 1 %, 2 %: of the partial run; longer: of the whole run on the anchor; physics "
        "from the whole of it would still err by what the machines differ",
    ),
)
