"""The range of each feature that a model has seen, and how far beyond it a row may lie.

here        meaning
low, high   of a feature over the rows that were learned from
distance    root of the sum of squares of how far a row's known features leave their ranges, each
            in units of its range; 0 inside
reach       the distance within which nine of ten rows of a left-out group lie from the ranges of
            the others: the errors that the intervals are made of were made at such distances
part        rows that agree on which of the ``parted_columns`` are positive: each has ranges of
            its own, and covers nothing with fewer than ``LEAST_ROWS`` rows

Needs NumPy alone, so that whoever only asks whether a model covers a run loads nothing heavy.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_ROWS: Final = 10  # fewer say nothing of a range
_LEFT_OUT_SHARE: Final = 0.9  # of the rows of left-out groups that lie within the reach
_ALONE: Final = 0.1  # reach where no group can be left out: a tenth of a feature's range


@dataclass(frozen=True, slots=True, kw_only=True)
class Hull:
    """Ranges that count as seen."""

    # lows, highs: (parts, features); infinite where the feature was never known: there is nothing
    # to compare with
    lows: Floats
    highs: Floats
    has_rows: NDArray[np.bool_]  # (parts,); whether a part has enough rows to cover anything
    reach: Floats  # (parts,); distance up to which a row counts as covered
    parted_columns: tuple[int, ...] = ()  # c of them make 2 ** c parts

    @classmethod
    def of(
        cls,
        X: Floats,
        parted_columns: Sequence[int] = (),
        watched: Sequence[int] | None = None,
        groups: NDArray[Any] | None = None,
    ) -> Hull:
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

    def state(self) -> dict[str, Any]:
        """Return the arrays to save."""
        return {
            "lows": self.lows, "highs": self.highs, "has_rows": self.has_rows,
            "reach": self.reach, "parted_columns": list(self.parted_columns),
        }  # fmt: skip

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Hull:
        """Return the hull that ``state`` describes."""
        return cls(
            lows=np.asarray(state["lows"], float),
            highs=np.asarray(state["highs"], float),
            has_rows=np.asarray(state["has_rows"], bool),
            reach=np.asarray(state["reach"], float),
            parted_columns=tuple(int(c) for c in state["parted_columns"]),
        )

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form: infinite bounds are None."""
        return {
            "lows": [[_finite(v) for v in row] for row in self.lows.tolist()],
            "highs": [[_finite(v) for v in row] for row in self.highs.tolist()],
            "has_rows": self.has_rows.tolist(),
            "reach": self.reach.tolist(),
            "parted_columns": list(self.parted_columns),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Hull:
        """Return the hull of a JSON record."""
        lows = [[-np.inf if v is None else v for v in row] for row in record["lows"]]
        highs = [[np.inf if v is None else v for v in row] for row in record["highs"]]
        return cls.from_state({**record, "lows": lows, "highs": highs})


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


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
