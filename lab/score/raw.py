"""Models without physics: what somebody would fit who has a protocol's rows as a spreadsheet.

Nearest rows, an additive model of logarithms and boosted trees, on what is typed and on datasheets
(``RawColumns``): every protocol that has such columns is compared with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
# Takes the columns and ln(truth) that are known, and the columns that are asked.
Fit = Callable[[Floats, Floats, Floats], Floats]
NEAREST: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RawColumns:
    """What a spreadsheet of a protocol's rows would hold: what is typed, and datasheets.

    Models without physics are fitted to them (``PLAIN_MODELS``), rows of one ``fold``
    left out together. Amounts are given as they are: logarithms are taken here.
    """

    x: Floats  # (n, columns); finite
    fold: Sequence[str]  # (n,); what a row may not have seen
    # rows that are known and not asked: (m, columns) and (m,)
    known_x: Floats | None = None
    known: Floats | None = None

    @classmethod
    def of(
        cls, amounts: Mapping[str, Any], fold: Iterable[Any],
        labels: Mapping[str, Any] | None = None, known: Floats | None = None,
    ) -> RawColumns:  # fmt: skip
        """Return positive amounts as logarithms, and a column of zeros and ones a label.

        With ``known``, (m,), the last m rows of every column are those of known rows.
        """
        columns = [np.log(np.maximum(np.asarray(a, float), 1e-9)) for a in amounts.values()]
        for column in (labels or {}).values():
            found = np.array([str(one) for one in column])
            columns += [(found == name).astype(float) for name in np.unique(found)]
        x = np.nan_to_num(np.column_stack(columns))
        asked = len(x) - (0 if known is None else len(known))
        names = [str(one) for one in fold]
        return cls(
            x=x[:asked], fold=names[:asked], known=known,
            known_x=None if known is None else x[asked:],
        )  # fmt: skip

    def plain_models(self, truth: Floats, answered: Bools) -> dict[str, Floats]:
        """Return what models without physics answer to every answered row, each fold left out."""
        return {name: self._answers(fit, truth, answered) for name, fit in PLAIN_MODELS.items()}

    def _answers(self, fit: Fit, truth: Floats, answered: Bools) -> Floats:
        asked = truth.size
        x, y, fold = self.x, np.log(truth), np.array(self.fold, str)
        if self.known_x is not None and self.known is not None:
            x, y = np.vstack([x, self.known_x]), np.r_[y, np.log(self.known)]
            fold = np.r_[fold, np.full(len(self.known), "")]
        found = np.full(asked, np.nan)
        for name in dict.fromkeys(self.fold):
            out = np.flatnonzero((fold[:asked] == name) & answered)
            known = np.flatnonzero((fold != name) & np.isfinite(y))
            if out.size and known.size > NEAREST:
                centre, width = x[known].mean(axis=0), x[known].std(axis=0)
                scaled = np.where(width > 1e-6, x - centre, 0.0) / np.maximum(width, 1e-6)
                # A column that hardly differs among what is known says nothing far from there.
                near = [scaled[known].min(axis=0) - 1.0, scaled[known].max(axis=0) + 1.0]
                found[out] = fit(scaled[known], y[known], np.clip(scaled[out], *near))
        return np.asarray(np.exp(found), float)


def _nearest_rows(x: Floats, y: Floats, asked: Floats) -> Floats:
    from sklearn.neighbors import KNeighborsRegressor

    return np.asarray(KNeighborsRegressor(NEAREST, weights="distance").fit(x, y).predict(asked))


def _additive(x: Floats, y: Floats, asked: Floats) -> Floats:
    """Least squares with a penalty that only settles what the rows leave open."""
    mean = y.mean()
    gram = x.T @ x + 1e-3 * len(x) * np.eye(x.shape[1])
    return np.asarray(mean + asked @ np.linalg.solve(gram, x.T @ (y - mean)))


def _boosted(x: Floats, y: Floats, asked: Floats) -> Floats:
    from sklearn.ensemble import HistGradientBoostingRegressor

    least = min(20, max(2, len(x) // 20))
    return np.asarray(
        HistGradientBoostingRegressor(min_samples_leaf=least, random_state=0)
        .fit(x, y)
        .predict(asked)
    )


PLAIN_MODELS: Final[Mapping[str, Fit]] = {
    f"{NEAREST} nearest rows": _nearest_rows,
    "additive model of logarithms": _additive,
    "boosted trees on raw columns": _boosted,
}
