r"""Protocol ``series-mlperf``: the smallest submission of a series is known; predict the others.

Pairs of one round, organisation, benchmark and accelerator; one benchmark left out at a time.

.. math::
    step \propto l / l_0 + u + a \log_2 n, \qquad
    rate = n l / step \cdot (n / n_0)^{-b}

with n accelerators, local batch l, and 0 marking the smallest submission: a share of the step
that does not shrink with the local batch (u), one that grows with the reduction's depth (a), and
what is lost with size besides (b).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.measurements import MLPERF
from advisor.validation.scores import Blind, Group, Scores, Validation, score

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
SERIES = ["round", "organisation", "benchmark", "accelerator"]
COVERAGE = 0.9
# What the formula may have: (u, a, b).
_TERMS: Final = {
    "u, a and b": (True, True, True), "u and a": (True, True, False),
    "u and b": (True, False, True), "a and b": (False, True, True),
    "u": (True, False, False), "a": (False, True, False), "b": (False, False, True),
}  # fmt: skip
SEEN: Final = ("the formula: chosen after seeing its residuals",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Smallest (0) and larger (1) submission of a series, as columns."""

    benchmark: NDArray[np.str_]
    small: Array
    large: Array
    small_rate: Array
    large_rate: Array
    small_batch: Array
    large_batch: Array

    def take(self, rows: NDArray[np.bool_]) -> Pairs:
        """Return the chosen rows."""
        return Pairs(**{name: getattr(self, name)[rows] for name in Pairs.__slots__})

    @property
    def growth(self) -> Array:
        """Times as many accelerators."""
        return self.large / self.small


def run(data: Path) -> Validation:
    """Score throughput of larger systems in the entries under ``data``, benchmarks left out.

    Raises
    ------
    ModelError
        If the table is missing, lacks a column or holds fewer than two benchmarks with a series.
    """
    pairs = read_pairs(data)
    names = sorted(set(pairs.benchmark.tolist()))
    if len(names) < 2:
        raise ModelError(f"series of at least two benchmarks are needed, got {names}")
    predicted, width = np.zeros_like(pairs.large), np.zeros_like(pairs.large)
    for name in names:
        out = pairs.benchmark == name
        predicted[out], width[out] = _predict(pairs.take(~out), pairs.take(out))
    low, high = predicted * np.exp(-width), predicted * np.exp(width)
    measured, growth = pairs.large_rate, pairs.growth

    def scored(rows: NDArray[np.bool_]) -> Any:
        return score(predicted[rows], measured[rows], low=low[rows], high=high[rows])

    bands = [(1, 2), (2, 4), (4, 8), (8, 32), (32, np.inf)]
    return Validation(
        protocol="series-mlperf",
        description="samples/s of a larger system from the smallest one, one benchmark left out",
        form="chosen with these rows in sight",
        scores="a formula of three constants fitted here, which no verb asks",
        seen=SEEN,
        overall=scored(np.ones(growth.size, bool)),
        groups=[
            *[Group(group=name, scores=scored(pairs.benchmark == name)) for name in names],
            *[
                Group(group=f"size x {low:g} to {high:g}", scores=scored(rows))
                for low, high in bands
                if (rows := (growth > low) & (growth <= high)).any()
            ],
        ],
        baselines={"linear": score(pairs.small_rate * growth, measured)},
        notes=[
            "closed division, no duplicates; the formula was chosen after seeing its residuals"
        ],
    )


def blind(data: Path, shipped: Validation) -> Blind:
    """Score the formula whose terms are chosen on the other benchmarks, one left out at a time.

    Raises
    ------
    ModelError
        As ``run``.
    """
    pairs = read_pairs(data)
    predicted, width, chosen = nested(pairs)

    def scored(rows: NDArray[np.bool_]) -> Scores:
        low, high = (predicted[rows] * np.exp(sign * width[rows]) for sign in (-1, 1))
        return score(predicted[rows], pairs.large_rate[rows], low=low, high=high)

    return Blind(
        overall=scored(np.ones(pairs.large.size, bool)),
        groups=[
            Group(group=str(name), scores=scored(pairs.benchmark == name))
            for name in np.unique(pairs.benchmark)
        ],
        changed=(
            "the terms of the formula, chosen on the other benchmarks: "
            + "; ".join(
                f"{terms} for {', '.join(name for name, t in chosen.items() if t == terms)}"
                for terms in dict.fromkeys(chosen.values())
            ),
        ),
        still_seen=("which terms there are to choose from",),
    )


def nested(pairs: Pairs) -> tuple[Array, Array, dict[str, str]]:
    """Predict each benchmark by the terms that err least on the others, left out in turn.

    Returns
    -------
    predicted, width : arrays
        Rates [samples/s], and half the interval of their logarithm.
    chosen : dict of str to str
        Terms by benchmark.
    """
    predicted, width = np.zeros((2, pairs.large.size))
    chosen: dict[str, str] = {}
    for name in np.unique(pairs.benchmark):
        out = pairs.benchmark == name
        known = pairs.take(~out)
        errors = {terms: _inner_error(known, has) for terms, has in _TERMS.items()}
        chosen[str(name)] = terms = min(errors, key=lambda t, of=errors: of[t])  # type: ignore[misc]
        predicted[out], width[out] = _predict(known, pairs.take(out), _TERMS[terms])
    return predicted, width, chosen


def _inner_error(pairs: Pairs, has: tuple[bool, bool, bool]) -> float:
    """Return the mean absolute log error on each benchmark by the others."""
    errors = []
    for name in np.unique(pairs.benchmark):
        out = pairs.benchmark == name
        if not out.all():
            rate, _ = _predict(pairs.take(~out), pairs.take(out), has)
            errors.append(np.abs(np.log(rate / pairs.large_rate[out])))
    return float(np.mean(np.concatenate(errors))) if errors else 0.0


def read_pairs(data: Path) -> Pairs:
    """Pair the smallest submission of each series with each larger one.

    Raises
    ------
    ModelError
        If the table is missing, lacks a column or holds no series.
    """
    import pandas as pd

    table = MLPERF.read("entries", data)
    table = table[table.division.isna() | (table.division == "closed")]
    table = table[(table[["accelerators", "samples_per_s", "global_batch"]] > 0).all(axis=1)]
    rows = [
        _row(series.iloc[0], series.iloc[i])
        for _, series in table.sort_values("accelerators").groupby(SERIES)
        for i in range(1, len(series))
        if series.iloc[i].accelerators > series.iloc[0].accelerators
    ]
    if not rows:
        raise ModelError(f"{MLPERF.title} under {data} hold no series of two sizes")
    columns = pd.DataFrame(rows)
    names = [name for name in Pairs.__slots__ if name != "benchmark"]
    numbers = {name: columns[name].to_numpy(float) for name in names}
    return Pairs(benchmark=columns["benchmark"].to_numpy(str), **numbers)


def _row(small: pd.Series[Any], large: pd.Series[Any]) -> dict[str, Any]:
    return {
        "benchmark": str(small.benchmark),
        "small": small.accelerators,
        "large": large.accelerators,
        "small_rate": small.samples_per_s,
        "large_rate": large.samples_per_s,
        "small_batch": small.global_batch / small.accelerators,
        "large_batch": large.global_batch / large.accelerators,
    }


def _predict(
    known: Pairs, wanted: Pairs, has: tuple[bool, bool, bool] = (True, True, True)
) -> tuple[Array, Array]:
    """Fit on ``known``; return rates of ``wanted`` and the half-width of their logarithm."""
    from scipy.optimize import least_squares

    def residual(theta: Array) -> Array:
        return np.asarray(_log_rate(theta, known, has) - np.log(known.large_rate))

    found = least_squares(residual, [-2.0, -4.0, 0.03], loss="soft_l1", f_scale=0.1)
    # Errors grow with the doublings; the quantile of their ratio is the interval's.
    ratio = np.abs(residual(found.x)) / _spread(known)
    quantile = float(np.quantile(ratio, COVERAGE))
    return np.exp(_log_rate(found.x, wanted, has)), quantile * _spread(wanted)


def _log_rate(theta: Array, pairs: Pairs, has: tuple[bool, bool, bool]) -> Array:
    """Return ln(rate); ``has`` says which of u, a and b the formula has."""
    fixed, depth, loss = np.array([np.exp(theta[0]), np.exp(theta[1]), theta[2]]) * has
    batches = pairs.large_batch / pairs.small_batch
    small = 1.0 + fixed + depth * np.log2(pairs.small)
    large = batches + fixed + depth * np.log2(pairs.large)
    faster = np.log(batches) - np.log(large / small) + (1.0 - loss) * np.log(pairs.growth)
    return np.asarray(np.log(pairs.small_rate) + faster)


def _spread(pairs: Pairs) -> Array:
    return np.asarray(np.log2(pairs.growth) + 0.5)
