"""What own runs change: the errors of a new model beside those of the one that ships.

Both are asked about runs that they have not heard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor import data
from advisor.estimate import OWN_RUNS, Learned
from advisor.learned import RegionContest, RunColumns, Stack, contests, evaluate, places_of_runs

if TYPE_CHECKING:
    from advisor.learned import Problem, RunRegressor, TrainedModel
    from advisor.records import RunRecord

Floats = NDArray[np.float64]


EVERY: Final = "every program alike"
_MOST_FOLDS: Final = 12  # programs left out in turn: each is another fit


def left_out_answers(
    asked: Problem, own: NDArray[np.bool_], fitted: TrainedModel,
    build: Callable[[], RunRegressor], n_jobs: int = 1,
) -> Floats:  # fmt: skip
    """Return what a new model says of the user's own runs, shape (n,); nan where it is not asked.

    Each program is left out of the fit in turn (twelve of more). Where the runs are of one program
    alone, its answers to the very runs that it was fitted on are all there is. Where half of the
    runs or more are the user's, the folds of the fit itself, of whole groups as ``--split`` says
    and of about a tenth of the runs each, leave most of these in: no further fit is needed.
    """
    stack = getattr(fitted.estimator, "member_", None)
    if 2 * own.sum() >= len(own) and isinstance(stack, Stack):
        left_out = stack.left_out_ @ stack.weights_
        return asked._back(stack, stack._add(left_out, asked.offset))
    answers = np.full(len(asked.records), np.nan)
    if len({record.job.family for record in _some(asked, own)}) < 2:
        answers[own] = asked.predict(fitted.estimator, np.flatnonzero(own))
        return answers
    scores = evaluate(
        asked, build, "job", tested=own, has_intervals=False, n_jobs=n_jobs, most_folds=_MOST_FOLDS
    )
    answers[scores.rows] = scores.predicted
    return answers


def beside_shipped(
    asked: Problem, own: NDArray[np.bool_], fitted: TrainedModel, answers: Floats
) -> list[dict[str, Any]]:
    """Return the errors of the shipped and of a new model on the same runs, a row a program.

    The last row is of all, each program counting the same. No row where no run can be compared.

    What is compared is what would be answered: a model's word where it covers a run, and physics
    elsewhere. The shipped model heard none of these runs. A row's error is that of the mean of
    abs(ln(predicted / measured)), so that half and double are equally wrong.

    Parameters
    ----------
    own : array of shape (n,)
        The runs that the shipped model was not fitted on (``labelled.is_own``).
    answers : array of shape (n,)
        What the new model says of them, each unseen (``left_out_answers``).
    """
    records, logs, covered = _own_errors(asked, own, fitted, answers)
    names = np.array([record.job.family for record in records])
    means = {n: logs[:, names == n].mean(axis=1) for n in np.unique(names).tolist()}
    if not means:
        return []
    found = [_beside(n, covered[names == n], mean) for n, mean in means.items()]
    return [*found, _beside(EVERY, covered, np.mean(list(means.values()), axis=0))]


def by_region(
    asked: Problem, own: NDArray[np.bool_], fitted: TrainedModel, answers: Floats
) -> tuple[RegionContest, ...]:
    """Return the same by region: where the new model errs less than the shipped one."""
    records, logs, _ = _own_errors(asked, own, fitted, answers)
    if not records:
        return ()
    names = np.array([record.job.family for record in records])
    return contests(places_of_runs(RunColumns.of(records), names).region, names, *logs)


def _own_errors(
    asked: Problem, own: NDArray[np.bool_], fitted: TrainedModel, answers: Floats
) -> tuple[list[RunRecord], Floats, NDArray[np.bool_]]:
    """Return the runs that both answer, abs(ln) of the shipped and new errors, what is covered."""
    folder = data.root("trained_models") / fitted.name
    rows = np.flatnonzero(own & ~asked.is_censored)
    if not rows.size or not (folder / "model.json").is_file():
        return [], np.zeros((2, 0)), np.zeros(0, bool)
    records = [asked.records[row] for row in rows]
    runs = RunColumns.of(records)
    physics = runs.physics_s if fitted.name == OWN_RUNS else np.full(len(runs), np.nan)
    shipped = Learned.open(folder)
    old, new = physics.copy(), physics.copy()
    if (seen := shipped.covers(runs)).any():
        old[seen] = shipped.model.predict(runs.take(seen)).value
    covered = Learned(folder, dict(fitted.about)).covers(runs)
    new[covered] = answers[rows][covered]
    logs = np.abs(np.log(np.stack([old, new]) / asked.truth[rows]))
    told = np.isfinite(logs).all(axis=0)
    kept = [records[row] for row in np.flatnonzero(told)]
    return kept, logs[:, told], covered[told]


def _some(asked: Problem, keep: NDArray[np.bool_]) -> list[RunRecord]:
    return [record for record, is_kept in zip(asked.records, keep, strict=True) if is_kept]


def _beside(program: str, covered: NDArray[np.bool_], mean_logs: Floats) -> dict[str, Any]:
    shipped, new = np.expm1(mean_logs).tolist()
    return {"program": program, "runs": covered.size, "covered": int(covered.sum()),
            "shipped_error_fraction": shipped, "error_fraction": new}  # fmt: skip


def beside_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table of ``beside_shipped``."""
    if not rows:
        return []
    width = max(26, *(len(row["program"]) for row in rows))
    return [
        "",
        f"{'own runs, error %':{width}}{'runs':>7}{'shipped model':>15}{'this model':>15}",
        *(f"{row['program']:{width}}{row['runs']:7}{100 * row['shipped_error_fraction']:15.1f}"
          f"{100 * row['error_fraction']:15.1f}" for row in rows),
    ]  # fmt: skip
