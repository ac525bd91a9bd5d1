"""A saved model's answers without scikit-learn and XGBoost, which take seconds to import.

Only for what ships: a guard around trees, boosted or a forest, alone or as the members of a stack
that have any weight. The numbers are those of the estimators, which serve every other model.
What a model covers is its ``Hull``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.answer import Recorded
from advisor.learned.intervals import Calibration

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """All trees' nodes in one table; shape (nodes,), but for ``roots`` (trees,)."""

    # left, right: children; -1 in a leaf
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float32]  # smaller values go left; in a leaf its value
    is_left_unknown: NDArray[np.bool_]  # unknown values (nan) go left
    roots: NDArray[np.int64]
    base: float  # what the trees add to
    features: int  # columns of a row that are looked at
    share: float = 1.0  # of each tree in the answer: boosted ones add up, a forest is their mean

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """Return the trees of what ``Forest`` or ``Boosting`` saved.

        In a forest a value that is not above the threshold goes left, and the unknown is a number
        below all others. Raises ValueError where the arrays are no trees.
        """
        names = ("left_child", "right_child", "feature", "threshold", "value")
        left, right, feature, threshold, value = (np.asarray(state[name]) for name in names)
        sizes, is_forest = np.asarray(state["sizes"], np.int64), "unknown" in state
        lengths = {len(state[name]) for name in (*names, "missing_go_to_left")}
        if lengths != {int(sizes.sum())} or not sizes.size or (sizes < 1).any():
            raise ValueError("not trees: their arrays have different lengths")
        roots = np.cumsum(sizes) - sizes
        shift, end = np.repeat(roots, sizes), np.repeat(roots + sizes, sizes)
        inner = left != -1
        here = np.flatnonzero(inner)
        children = np.concatenate([(left + shift)[inner], (right + shift)[inner]])
        if not (
            np.array_equal(inner, right != -1)
            # A child comes after its parent and has one: no walk goes round.
            and (children > np.tile(here, 2)).all()
            and (children < np.tile(end[inner], 2)).all()
            and np.unique(children).size == children.size
            and (feature[inner] >= 0).all()
            and np.isfinite(value).all()
        ):
            raise ValueError("not trees: one is damaged")
        bound = threshold.astype(np.float32)
        is_left_unknown = np.asarray(state["missing_go_to_left"], bool)
        if is_forest:
            bound = np.where(bound > threshold, bound, np.nextafter(bound, np.float32(np.inf)))
            is_left_unknown = np.float32(state["unknown"]) < bound
        return cls(
            left=np.where(inner, left + shift, -1).astype(np.int64),
            right=np.where(inner, right + shift, -1).astype(np.int64),
            feature=np.where(inner, feature, 0).astype(np.int64),
            threshold=np.where(inner, bound, value).astype(np.float32),
            is_left_unknown=is_left_unknown,
            roots=roots,
            base=float(state.get("base", 0.0)),
            features=int(feature[inner].max(initial=-1)) + 1,
            share=1.0 / sizes.size if is_forest else 1.0,
        )

    def answer(self, X: Floats) -> Floats:
        """Return what the leaves that each row falls into say together, shape (n,)."""
        rows = np.arange(len(X))[:, None]
        known = np.asarray(X, np.float32)
        node = np.broadcast_to(self.roots, (len(X), self.roots.size))
        while (inner := self.left[node] >= 0).any():
            value = known[rows, self.feature[node]]
            is_left = np.where(
                np.isnan(value), self.is_left_unknown[node], value < self.threshold[node]
            )
            below = np.where(is_left, self.left[node], self.right[node])
            node = np.where(inner, below, node)
        leaves: Floats = self.threshold[node].sum(axis=1, dtype=float)
        return self.base + self.share * leaves


LEAST_ROWS: Final = 10  # fewer say nothing of a range
_LEFT_OUT_SHARE: Final = 0.9  # of the rows of left-out groups that lie within the reach
_ALONE: Final = 0.1  # reach where no group can be left out: a tenth of a feature's range


@dataclass(frozen=True, slots=True, kw_only=True)
class Hull(Recorded):
    """Ranges that count as seen.

    The range of each feature that a model has seen, and how far beyond it a row may lie.

    here        meaning
    low, high   of a feature over the rows that were learned from
    distance    root of the sum of squares of how far a row's known features leave their ranges,
                each in units of its range; 0 inside
    reach       the distance within which nine of ten rows of a left-out group lie from the ranges
                of the others: the errors that the intervals are made of were made so far away
    part        rows that agree on which of the ``parted_columns`` are positive: each has ranges of
                its own, and covers nothing with fewer than ``LEAST_ROWS`` rows

    Needs NumPy alone, so that whoever only asks whether a model covers a run loads nothing heavy.
    """

    # lows, highs: (parts, features); infinite, or nan, where the feature was never known: there is
    # nothing to compare with
    lows: Floats
    highs: Floats
    has_rows: NDArray[np.bool_]  # (parts,); whether a part has enough rows to cover anything
    reach: Floats  # (parts,); distance up to which a row counts as covered
    parted_columns: tuple[int, ...] = ()  # c of them make 2 ** c parts

    @classmethod
    def of(
        cls, X: Floats, parted_columns: Sequence[int] = (), watched: Sequence[int] | None = None,
        groups: NDArray[Any] | None = None,
    ) -> Hull:  # fmt: skip
        """Return the ranges of some rows, shape (n, features); nan is unknown.

        Columns that are not ``watched`` (None: all are) have no bounds. ``groups``, shape (n,),
        are left out in turn for the reach; without two of them it is a tenth of one range.
        """
        parts = hull_parts(X, parted_columns)
        if watched is not None:
            kept = np.full_like(X, np.nan)
            kept[:, list(watched)] = X[:, list(watched)]
            X = kept
        count = 2 ** len(parted_columns)
        labels = np.zeros(len(X)) if groups is None else np.asarray(groups)
        bounds = [_range(X[parts == part]) for part in range(count)]
        return cls(
            lows=np.array([low for low, _ in bounds]),
            highs=np.array([high for _, high in bounds]),
            has_rows=np.bincount(parts, minlength=count) >= LEAST_ROWS,
            reach=np.array([_reach(X[parts == p], labels[parts == p]) for p in range(count)]),
            parted_columns=tuple(parted_columns),
        )

    def is_outside(self, X: Floats) -> NDArray[np.bool_]:
        """Return for each row whether it leaves what was seen; further columns are not watched."""
        return np.asarray(self.is_beyond_reach(X) | ~self.has_rows_of(X))

    def is_beyond_reach(self, X: Floats, ignored: Sequence[int] = ()) -> NDArray[np.bool_]:
        """Return for each row whether it is farther from what was seen than left-out groups are.

        ``ignored`` columns only tell the part.
        """
        parts = hull_parts(X, self.parted_columns)
        width = min(X.shape[1], self.lows.shape[1])
        seen = X[:, :width].copy()
        seen[:, [c for c in ignored if c < width]] = np.nan
        lows, highs = self.lows[parts, :width], self.highs[parts, :width]
        return np.asarray(_distance(seen, lows, highs, highs - lows) > self.reach[parts])

    def has_rows_of(self, X: Floats) -> NDArray[np.bool_]:
        """Return for each row whether its part has enough rows to cover anything."""
        return np.asarray(self.has_rows[hull_parts(X, self.parted_columns)])


def _range(X: Floats) -> tuple[Floats, Floats]:
    if len(X) == 0:
        return np.full(X.shape[1], -np.inf), np.full(X.shape[1], np.inf)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns that are nan throughout
        low, high = np.nanmin(X, axis=0), np.nanmax(X, axis=0)
    # Sums in another order differ in the last digits: that is no distance.
    same = 1e-9 * np.maximum(np.abs(low), np.abs(high)) + 1e-12
    unseen = np.isnan(low)
    return np.where(unseen, -np.inf, low - same), np.where(unseen, np.inf, high + same)


def _reach(X: Floats, groups: NDArray[Any]) -> float:
    """Return how far nine of ten rows lie from the ranges of all groups but their own."""
    found = np.unique(groups)
    if found.size < 2:
        return _ALONE
    low, high = _range(X)
    distances = np.zeros(len(X))
    for group in found:
        out = groups == group
        distances[out] = _distance(X[out], *_range(X[~out]), high - low)
    return float(np.quantile(distances, _LEFT_OUT_SHARE))


def _distance(X: Floats, lows: Floats, highs: Floats, ranges: Floats) -> Floats:
    """Return the distance of each row from ranges, shape (n,); what is unknown adds nothing."""
    with np.errstate(invalid="ignore"):  # inf - inf: a feature that was never seen
        leaves = np.maximum(np.maximum(lows - X, X - highs), 0.0) / ranges
    return np.asarray(np.sqrt((np.nan_to_num(leaves, posinf=np.inf) ** 2).sum(axis=1)), float)


def hull_parts(X: Floats, parted_columns: Sequence[int]) -> NDArray[np.intp]:
    """Return the part of each row: a bit for each of the columns that is positive."""
    parts = np.zeros(len(X), np.intp)
    for place, column in enumerate(parted_columns):
        parts += (np.nan_to_num(X[:, column]) > 0).astype(np.intp) << place
    return parts


QUICK: Final = ("boosting", "forest")  # estimators that are asked so


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickModel:
    """What ``Guarded`` answers, of trees whose weights sum to one."""

    hull: Hull
    level: float
    # weight and trees; they see the first columns only
    trees: tuple[tuple[float, Trees], ...]
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
        if max(trees.features for _, trees in found) > columns:
            raise ValueError("the trees look at columns that no row has")
        return cls(
            hull=Hull.from_state(state["hull"]),
            level=float(state["level"]),
            trees=found,
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
) -> tuple[tuple[float, Trees], ...] | None:
    """Return weight and trees of the members that count, None where one is of another kind."""
    parts = [(1.0, member, state)]
    if member["name"] == "stack" and isinstance(state.get("members"), Mapping):
        described = member["settings"].get("members") or ()
        parts = [
            (float(weight), about, state["members"][name])
            for weight, (name, about) in zip(state["weights"], described, strict=True)
            if weight > 0
        ]
    if not parts or not all(about["name"] in QUICK for _, about, _ in parts):
        return None
    return tuple((weight, Trees.of(learned)) for weight, _, learned in parts)
