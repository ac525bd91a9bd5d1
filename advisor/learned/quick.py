"""A saved model's answers without scikit-learn and XGBoost, which take seconds to import.

Only for what ships: a guard around boosted trees, alone or as the members of a stack that have any
weight. The numbers are those of ``registry.load``, which serves every other model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.learned.boosted_trees import BoostedTrees
from advisor.learned.conformal import Calibration
from advisor.learned.hull import Hull

Floats = NDArray[np.float64]
_OBJECTIVE: Final = "reg:squarederror"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickModel:
    """What ``Guarded`` answers, of trees whose weights sum to one."""

    hull: Hull
    level: float
    # weight and trees; they see the first columns only
    trees: tuple[tuple[float, BoostedTrees], ...]
    inside: Calibration
    outside: Calibration
    columns: int

    _is_multiplicative = False

    @classmethod
    def of(
        cls, description: Mapping[str, Any], learned: Mapping[str, Any], columns: int
    ) -> Self | None:
        """Return the model of ``model.json`` and its arrays, None where it is of another kind.

        Raises ValueError if the trees cannot be read.
        """
        state = learned["learned"]
        if description["name"] != "guarded" or "calibration" not in learned:
            return None
        if "outside" not in state or description["settings"].get("member") is None:
            return None
        found = _weighted(description["settings"]["member"], state["member"])
        if found is None:
            return None
        return cls(
            hull=Hull.from_state(state["hull"]),
            level=float(state["level"]),
            trees=tuple((weight, BoostedTrees.read(blob)) for weight, blob in found),
            inside=Calibration.from_state(learned["calibration"]),
            outside=Calibration.from_state(state["outside"]),
            columns=columns,
        )

    def is_outside(self, X: ArrayLike) -> NDArray[np.bool_]:
        """Return for each row whether it leaves what was seen, shape (n,)."""
        return self.hull.is_outside(self._checked(X))

    def predict(self, X: ArrayLike, *, offset: ArrayLike | None = None) -> Floats:
        """Return the prediction of each row, shape (n,)."""
        rows = self._checked(X)
        return self._answer(rows, self.hull.is_outside(rows), offset)

    def predict_band(
        self, X: ArrayLike, coverage: float = 0.9, *, offset: ArrayLike | None = None
    ) -> Floats:
        """Return low, prediction and high of each row, shape (n, 3)."""
        rows = self._checked(X)
        is_outside = self.hull.is_outside(rows)
        half = self.inside.half_width(rows, coverage)
        wide = np.maximum(self.outside.half_width(rows, coverage), half)
        half = np.where(is_outside, wide, half)
        middle = self._answer(rows, is_outside, offset)
        return np.column_stack([middle - half, middle, middle + half])

    def _answer(
        self, rows: Floats, is_outside: NDArray[np.bool_], offset: ArrayLike | None
    ) -> Floats:
        answer = np.zeros(len(rows))
        for weight, trees in self.trees:
            answer += weight * trees.answer(rows[:, : trees.features])
        known = 0.0 if offset is None else np.asarray(offset, float)
        return np.where(is_outside, self.level, answer) + known

    def _checked(self, X: ArrayLike) -> Floats:
        rows = np.asarray(X, float)
        if rows.ndim != 2 or rows.shape[1] != self.columns:
            raise ValueError(f"expected rows of {self.columns} features, got {rows.shape}")
        return rows


def _weighted(
    member: Mapping[str, Any], state: Mapping[str, Any]
) -> list[tuple[float, bytes]] | None:
    """Return weight and booster of the members that count, None where one is no booster."""
    if member["name"] == "boosting":
        parts = [(1.0, member, state)]
    elif member["name"] == "stack" and isinstance(state.get("members"), Mapping):
        described = member["settings"].get("members") or ()
        parts = [
            (float(weight), about, state["members"][name])
            for weight, (name, about) in zip(state["weights"], described, strict=True)
            if weight > 0
        ]
    else:
        return None
    plain = all(
        about["name"] == "boosting" and about["settings"].get("objective") == _OBJECTIVE
        for _, about, _ in parts
    )
    return [(weight, bytes(s["booster"])) for weight, _, s in parts] if plain and parts else None
