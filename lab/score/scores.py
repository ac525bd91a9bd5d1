"""The metrics of every accuracy figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.learned.evaluation import Errors, metrics

Column = NDArray[np.float64]
WORDS: Final = {
    "rows": "rows", "MAPE": "mape_fraction", "median APE": "median_ape_fraction", "bias": "bias",
    "coverage": "coverage",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores(Errors):
    """Errors of a protocol's answers.

    ``pairs`` holds what was predicted and what was measured, for ``--plot``; the record does not.
    """

    pairs: tuple[Column, Column] | None = field(default=None, repr=False, compare=False)

    def record(self) -> dict[str, Any]:
        """Return what ``validate --json`` says of the errors."""
        return {one.name: getattr(self, one.name) for one in fields(Errors)}

    def named(self, of: str, *words: str) -> dict[str, float]:
        """Return statistics as figures: ``of``, and each word of ``WORDS`` behind it."""
        return {f"{of}{word}": float(getattr(self, WORDS[word]) or 0.0) for word in words}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Scores of one left-out group, and of baselines on the same rows."""

    group: str
    scores: Scores
    baselines: Mapping[str, Scores] = field(default_factory=dict)


Form = Literal["chosen with these rows in sight", "nested", "none chosen"]
FORMS: Final[tuple[Form, ...]] = get_args(Form)
# What is better of a figure: less, more, as near as can be to a number (what an interval promises,
# a ratio of one); of a count, where one more or less tells; or it stands beside, and nothing is.
Sense = Literal["lower", "higher", "fewer", "more", "neutral"] | float
# Figures in the words of ``Scores.named``, and others that mean the same everywhere -> sense.
USUAL_SENSES: Final[Mapping[str, Sense]] = {
    "rows without an answer": "fewer", "*rows": "more",
    "*MAPE": "lower", "*_mape_fraction": "lower",
    "*median APE": "lower", "*median error": "lower", "*median_ape_fraction": "lower",
    "*coverage*": 0.9, "*half-width*": "lower", "*width*": "lower", "*regret*": "lower",
    "*bias": "neutral", "*median ratio": "neutral", "*_rmse": "lower", "*_r2": "higher",
}  # fmt: skip
THE_PRODUCT: Final = "the product"
STATISTICS: Final = ("mape_fraction", "median_ape_fraction", "p90_ape_fraction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blind:
    """The same protocol with everything fitted or chosen again without the scored group.

    ``changed`` is what was fitted or chosen again: empty where the protocol leaves the group out
    of everything that is fitted, so that both are the same. ``still_seen`` had these rows in sight
    all the same; ``kept`` could be fitted again, but not within a reasonable time.
    """

    overall: Scores
    groups: Sequence[Group] = ()
    changed: Sequence[str] = ()
    still_seen: Sequence[str] = ()
    kept: Sequence[str] = ()


def score(
    predicted: ArrayLike,
    measured: ArrayLike,
    *,
    low: ArrayLike | None = None,
    high: ArrayLike | None = None,
) -> Scores:
    """Score predictions of positive quantities.

    ``predicted``, ``measured``: (n,); in the same unit, positive; ``low``, ``high``: (n,); bounds
    of the prediction intervals.

    Raises ValueError if there is nothing to score or the shapes differ.

    Examples
    --------
    >>> score([1.1, 2.0], [1.0, 2.0]).mape_fraction
    0.05
    """
    p, m = np.asarray(predicted, float), np.asarray(measured, float)
    if p.shape != m.shape or p.ndim != 1 or p.size == 0:
        raise ValueError(f"cannot score shapes {p.shape} and {m.shape}")
    bounds = None
    if low is not None and high is not None:
        bounds = np.column_stack([np.asarray(low, float), np.asarray(high, float)])
    found = metrics(p, m, bounds)
    rounded = {one.name: getattr(found, one.name) for one in fields(Errors)}
    for name in set(rounded) - {"rows", "coverage", "width"}:
        rounded[name] = None if rounded[name] is None else round(rounded[name], 6)
    return Scores(**rounded, pairs=(p, m))
