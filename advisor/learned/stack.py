"""Several estimators in one: weights that would have served best on left-out groups.

min_w sum_i |y_i - sum_m w_m p_im| + pull to equal weights, w >= 0, sum w = 1, where p_im is member
m's prediction of row i with its group left out (Wolpert 1992; Breiman 1996, with his constraint).
Solved as least squares with Huber's weights. Every member sees the same rows and the same folds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from advisor.learned.base import Floats, RunRegressor, State, _fold_answer
from advisor.learned.intervals import Calibration, calibrate
from advisor.learned.splits import group_folds
from advisor.learned.tasks import run

_PULL: Final = 0.1  # towards equal weights, as a share of the rows: few groups tell little
_ROUNDS: Final = 10
_USUAL: Final = 2.0  # errors beyond this many median errors lose weight


@dataclass(kw_only=True, eq=False, repr=False)
class Stack(RunRegressor):
    """Convex combination of estimators.

    Attributes
    ----------
    left_out_ : array of shape (n, members)
        Each member's answers with the row's group left out; not saved.
    """

    # unfitted. None takes ridge, extra trees and boosting.
    members: Sequence[tuple[str, RunRegressor]] | None = field(default=None, kw_only=False)
    folds: int = 10  # folds of whole groups for the weights
    # leading columns that are no series: all that members without a sense for series see
    static_columns: int | None = None

    def _learn(self, X: Floats, r: Floats, groups: Any) -> None:
        bare = [member._bare() for _, member in self._named()]
        bounds = np.zeros(len(r), bool)
        self.weights_ = np.full(len(bare), 1.0 / len(bare))
        if np.unique(groups).size > 1:
            folds = list(group_folds(groups, self.folds, self.random_state))
            tasks = [
                (member._bare(), self._view(member, X), r, groups, bounds, train, test)
                for member in bare
                for train, test in folds
            ]
            answers = run("members on left-out groups", _fold_answer, tasks, self.n_jobs)
            left_out = np.empty((len(r), len(bare)))
            for place, answer in enumerate(answers):
                member, fold = divmod(place, len(folds))
                left_out[folds[fold][1], member] = answer
            self.weights_ = convex_weights(left_out, r)
            self.left_out_ = left_out
        self.members_ = []
        for member in bare:
            rows = self._view(member, X)
            self.members_.append(member.blank(rows.shape[1]))
            self.members_[-1]._learn(rows, r, groups)

    def _view(self, member: RunRegressor, X: Floats) -> Floats:
        """Return the columns that a member takes: series only where it can read them."""
        return X if getattr(member, "channels", 0) else X[:, : self.static_columns]

    def _calibrate(self, X: Floats, r: Floats, groups: Any, bounds: Any) -> Calibration:
        # The errors that the weights were chosen on: some members' few weights cannot flatter
        # hundreds of rows by much, and a second round of folds would cost ten times the fit.
        seen = ~bounds
        errors = self.left_out_ @ self.weights_ - r
        return calibrate(X[seen], errors[seen], groups[seen], is_adaptive=self.is_adaptive)

    def _named(self) -> Sequence[tuple[str, RunRegressor]]:
        if self.members is not None:
            return self.members
        from advisor.learned.linear import Ridge
        from advisor.learned.trees import Boosting, Forest

        return (("ridge", Ridge()), ("forest", Forest(trees=100)), ("boosting", Boosting()))

    def _answer(self, X: Floats) -> Floats:
        used = [(w, m) for w, m in zip(self.weights_, self.members_, strict=True) if w > 0]
        return np.asarray(sum(w * m._answer(self._view(m, X)) for w, m in used))

    def state(self) -> State:
        """Return what was learned as plain data and arrays."""
        names = [name for name, _ in self._named()]
        return {
            "weights": self.weights_,
            "members": {n: m.state() for n, m in zip(names, self.members_, strict=True)},
        }

    def restore(self, state: State) -> None:
        """Take on what was learned."""
        self.weights_ = state["weights"]
        self.members_ = []
        for name, member in self._named():
            own = None if getattr(member, "channels", 0) else self.static_columns
            fitted = member.blank(own or self.n_features_in_)
            fitted.restore(state["members"][name])
            self.members_.append(fitted)


def convex_weights(left_out: Floats, y: Floats) -> Floats:
    """Return weights that are not negative and sum to 1."""
    from scipy.optimize import nnls

    count = left_out.shape[1]
    equal = np.full(count, 1.0 / count)
    errors = left_out - y[:, None]
    scale = max(float(np.median(np.abs(errors))), 1e-300)
    errors = errors / scale
    weights = equal
    # min |E w|^2 under sum w = 1 by a heavy row of ones.
    heavy = 1e3 * np.sqrt(len(y))
    pull = np.sqrt(_PULL * len(y))
    for _ in range(_ROUNDS):
        missed = np.abs(errors @ weights)
        usual = _USUAL * max(float(np.median(missed)), 1e-12)
        root = np.sqrt(np.minimum(1.0, usual / np.maximum(missed, 1e-300)))
        design = np.vstack([errors * root[:, None], pull * np.eye(count), heavy * np.ones(count)])
        target = np.concatenate([np.zeros(len(y)), pull * equal, [heavy]])
        weights, _ = nnls(design, target)
        weights = weights / weights.sum()
    return np.asarray(weights)
