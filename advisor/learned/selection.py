"""Selection of the estimator to keep: the one whose choices on left-out jobs cost least.

A fitted stack holds every member's answers to rows whose job was left out. The stack's own
answers to a job use weights that were fitted without that job; intervals likewise use the errors
on other jobs (all others, where there are no more than ``_MOST_FOLDS``). So nothing that is
scored has been seen, and no further fit is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.learned.evaluation import Floats, Metrics, metrics
from advisor.learned.guarded import Guarded
from advisor.learned.intervals import calibrate
from advisor.learned.problem import COSTS, Problem
from advisor.learned.quick import QUICK
from advisor.learned.regrets import Regret, regret
from advisor.learned.splits import group_folds
from advisor.learned.stack import Stack, convex_weights

STACK: Final = "stack"
_MOST_FOLDS: Final = 12  # of whole groups: a fold for each of our programs, and few of thousands
_COVERAGE: Final = 0.9  # of the intervals that are scored
_CLOSE: Final = 0.005  # regrets that differ by less are equal whatever their scatter


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """How one candidate did on left-out jobs."""

    name: str
    metrics: Metrics
    regret: Regret | None


def contest(problem: Problem, stack: Stack) -> list[Contest]:
    """Score a fitted stack and each of its members on left-out jobs."""
    known = stack._remove(problem._given(stack), problem.offset)
    names = [name for name, _ in stack._named()]
    answers = dict(zip(names, stack.left_out_.T, strict=True))
    answers[STACK] = _nested_stack(stack.left_out_, known, problem.groups)
    return [_scored(problem, stack, name, a, known) for name, a in answers.items()]


def best_of(results: list[Contest]) -> str:
    """Return the name with the least regret; the smaller error among equals.

    Equal is what lies within one standard error of the least (Breiman et al. 1984, section 3.4.3).
    Other members must err less than trees by more than nothing (``_CLOSE``), since trees alone are
    asked without seconds of imports; a stack, which needs every member, less than each of them by
    as much.
    """
    regrets = {c.name: c.regret.top1 if c.regret else 1.0 for c in results}
    least = min(results, key=lambda c: regrets[c.name])
    close_by = max(_CLOSE, least.regret.top1_error if least.regret else 0.0)
    close = [c for c in results if regrets[c.name] <= regrets[least.name] + close_by]

    def error(contest: Contest) -> float:
        weight = 0.0 if contest.name in QUICK else 2.0 if contest.name == STACK else 1.0
        return contest.metrics.median_ape_fraction + weight * _CLOSE

    return min(close, key=error).name


def keep_only(guarded: Guarded, stack: Stack, problem: Problem, name: str) -> None:
    """Give one member all the weight, and calibrate the intervals to it."""
    stack.weights_ = np.array([float(n == name) for n, _ in stack._named()])
    known = stack._remove(problem._given(stack), problem.offset)
    guarded.calibration_ = stack._calibrate(problem.X, known, problem.groups, problem.is_censored)


def _nested_stack(left_out: Floats, known: Floats, groups: NDArray[Any]) -> Floats:
    """Stack each group with weights from other groups."""
    if np.unique(groups).size < 2:
        return np.asarray(left_out.mean(axis=1))
    answer = np.empty(len(known))
    for others, inside in group_folds(groups, _MOST_FOLDS):
        answer[inside] = left_out[inside] @ convex_weights(left_out[others], known[others])
    return answer


def _scored(problem: Problem, stack: Stack, name: str, answer: Floats, known: Floats) -> Contest:
    errors = stack._errors(answer, known)
    half = np.empty(len(answer))
    seen = ~problem.is_censored
    for train, inside in group_folds(problem.groups, _MOST_FOLDS):
        others = train[seen[train]]
        found = calibrate(
            problem.X[others], errors[others], problem.groups[others],
            is_adaptive=stack.is_adaptive,
        )  # fmt: skip
        half[inside] = found.half_width(problem.X[inside], _COVERAGE)
    low, high = stack._spread(answer, half)
    middle, lines = (
        problem._back(stack, stack._add(part, problem.offset)) for part in (answer, low)
    )
    bounds = np.column_stack([lines, problem._back(stack, stack._add(high, problem.offset))])
    return Contest(
        name=name,
        metrics=metrics(middle[seen], problem.truth[seen], bounds[seen]),
        regret=regret(problem.records, middle, is_cost=problem.target in COSTS),
    )
