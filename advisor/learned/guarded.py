"""Physics where the data end: outside what was seen the learned correction is not trusted.

A row is outside where it lies farther from what was seen than left-out groups do, or differs
where all training rows agreed (``quick.Hull``). There the answer is physics alone (the offset
plus the usual correction), and the interval is that of physics alone on left-out jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.learned.base import Floats, RunRegressor, State
from advisor.learned.intervals import Calibration, calibrate
from advisor.learned.quick import Hull
from advisor.learned.stack import Stack


@dataclass(kw_only=True, eq=False, repr=False)
class Guarded(RunRegressor):
    """An estimator that answers only where it has seen runs, and physics elsewhere.

    Attributes
    ----------
    level_ : float
        Median of what physics leaves over.
    outside_ : Calibration or None
        Errors of physics alone.
    """

    # unfitted; None takes a ``Stack``
    member: RunRegressor | None = field(default=None, kw_only=False)
    guarded_columns: Sequence[int] | None = None  # the columns that are watched; None watches all
    # rows where such a column is positive, and the others, have ranges of their own: single
    # machines say nothing of clusters, and processors nothing of accelerators
    parted_columns: Sequence[int] = ()

    def is_outside(self, X: ArrayLike) -> NDArray[np.bool_]:
        """Return for each row whether it leaves what was seen, shape (n,)."""
        return self.hull_.is_outside(self._checked(X))

    def _learn(self, X: Floats, r: Floats, groups: Any) -> None:
        self.hull_ = Hull.of(X, self.parted_columns, self.guarded_columns, groups)
        self.level_ = float(np.median(r))
        self.member_ = self._twin().blank(X.shape[1])
        self.member_._learn(X, r, groups)
        self.outside_: Calibration | None = None

    def _calibrate(self, X: Floats, r: Floats, groups: Any, bounds: Any) -> Calibration:
        seen = ~bounds
        physics = self._errors(np.full(len(r), self.level_), r)
        self.outside_ = calibrate(X[seen], physics[seen], groups[seen])
        self.member_.calibration_folds = self.calibration_folds
        return self.member_._calibrate(X, r, groups, bounds)

    def _twin(self) -> RunRegressor:
        twin = (Stack() if self.member is None else self.member)._bare()
        twin.set_params(
            is_adaptive=self.is_adaptive, n_jobs=self.n_jobs, random_state=self.random_state
        )
        return twin

    def _answer(self, X: Floats) -> Floats:
        return np.where(self.hull_.is_outside(X), self.level_, self.member_._answer(X))

    def _half_width(self, X: Floats, coverage: float) -> Floats:
        inside = super()._half_width(X, coverage)
        if self.outside_ is None:
            return inside
        wide = np.maximum(self.outside_.half_width(X, coverage), inside)
        return np.where(self.hull_.is_outside(X), wide, inside)

    @property
    def _is_multiplicative(self) -> bool:  # type: ignore[override]
        return self.member is not None and self.member._is_multiplicative

    def _named(self) -> Sequence[tuple[str, RunRegressor]]:
        return [("member", Stack() if self.member is None else self.member)]

    def state(self) -> State:
        """Return what was learned as plain data and arrays."""
        state: State = {
            "hull": self.hull_.state(), "level": self.level_, "member": self.member_.state(),
        }  # fmt: skip
        return state if self.outside_ is None else state | {"outside": self.outside_.state()}

    def restore(self, state: State) -> None:
        """Take on what was learned."""
        self.hull_ = Hull.from_state(state["hull"])
        self.level_ = float(state["level"])
        outside = state.get("outside")
        self.outside_ = None if outside is None else Calibration.from_state(outside)
        self.member_ = self._twin().blank(self.n_features_in_)
        self.member_.restore(state["member"])
