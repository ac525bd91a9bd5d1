"""The fitted layout model: its constants, and how far to trust them.

``trained_models/layout_model/parameters.json`` holds the constants fitted on every source table
(``parameters``), the constants fitted without each table in turn (``folds``: what that table is
scored with), and the left-out errors of each table (``errors``: what intervals are made of).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Final

import numpy as np

from advisor import data
from advisor.collectors import bounded
from advisor.domain import Estimate
from advisor.errors import ModelError
from advisor.planners.core.columns import GENERATIONS
from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.layout_parameters import LayoutParameters
from advisor.planners.layouts.own_runs import logarithms

SCHEMA_VERSION: Final = 1
# With fewer left-out tables of a generation than this, those of other generations are taken too.
_ENOUGH_TABLES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TableErrors:
    """Absolute log errors of one left-out table on one generation of GPUs, sorted."""

    table: str
    generation: int
    log_errors: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutModel:
    """Constants and left-out errors.

    Attributes
    ----------
    version : str
    parameters : LayoutParameters
        Fitted on all tables.
    folds : dict of str to LayoutParameters
        Fitted without the named table.
    errors : tuple of TableErrors
    """

    version: str
    parameters: LayoutParameters
    folds: dict[str, LayoutParameters]
    errors: tuple[TableErrors, ...]

    def without(self, table: str) -> LayoutParameters:
        """Return constants that never saw a table: its fold, or all where it is unknown."""
        return self.folds.get(table, self.parameters)

    def log_spread(self) -> Floats:
        """Return how well the tables determine the constants, as deviations of their logarithms.

        The jackknife over whole tables: of n fits, each without one table, (n - 1)/n times the sum
        of squared deviations (B. Efron, C. Stein, "The Jackknife Estimate of Variance," Annals of
        Statistics 9(3), 1981). In the order of ``planners.layouts.own_runs.NAMES``.
        """
        tables = {e.table for e in self.errors}
        fits = np.array([logarithms(p) for name, p in self.folds.items() if name in tables])
        n = len(fits)
        return np.asarray(np.sqrt((n - 1) / n * np.sum((fits - fits.mean(axis=0)) ** 2, axis=0)))

    def log_half_width(
        self, generation: int, coverage: float = 0.9, *, without: str | None = None
    ) -> float:
        """Return the half-width of an interval as a log factor.

        A new source's error is a draw among sources, of which few were seen: Student's quantile
        with as many degrees of freedom as left-out tables but one, times the root of their mean
        squared log errors, every table weighing the same. Where fewer than three tables of the
        generation are known, those of all generations are taken, but their mean square is no less
        than that of the generation's own: one table that errs much says more than many of others.

        Parameters
        ----------
        generation : int
            Index into ``planners.core.columns.GENERATIONS``.
        coverage : float
            Nominal probability.
        without : str, optional
            A table whose errors are not looked at.
        """
        others = [e for e in self.errors if e.table != without]
        of_all = _mean_squares(others)
        own = _mean_squares(e for e in others if e.generation == generation)
        taken = own if len(own) >= _ENOUGH_TABLES else of_all
        mean = float(np.mean(taken))
        if own and taken is of_all:
            mean = max(mean, float(np.mean(own)))
        reach = student_quantile((1 + coverage) / 2, len(taken) - 1)
        return reach * math.sqrt(mean * (1 + 1 / len(taken)))

    def estimate_s(self, step_s: float, generation: int, coverage: float = 0.9) -> Estimate:
        """Return a step time with its prediction interval [s]."""
        factor = math.exp(self.log_half_width(generation, coverage))
        return Estimate(value=step_s, low=step_s / factor, high=step_s * factor, coverage=coverage)


def _mean_squares(errors: Iterable[TableErrors]) -> list[float]:
    """Return the mean squared log error of each table."""
    squares: dict[str, list[float]] = {}
    for e in errors:
        squares.setdefault(e.table, []).extend(np.square(e.log_errors).tolist())
    return [float(np.mean(square)) for square in squares.values()]


def student_quantile(probability: float, freedom: int) -> float:
    """Return a quantile of Student's distribution, by Fisher and Cornish's expansion.

    Within 2 % of the exact value from two degrees of freedom on, for probabilities up to 0.95
    (R. Fisher, E. Cornish, "The Percentile Points of Distributions Having Known Cumulants,"
    Technometrics 2(2), 1960).

    >>> round(student_quantile(0.95, 8), 2), round(student_quantile(0.95, 10_000), 3)
    (1.86, 1.645)
    """
    z, n = NormalDist().inv_cdf(probability), float(max(freedom, 1))
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def path() -> Path:
    """Return where the packaged model lies."""
    return data.root("trained_models") / "layout_model" / "parameters.json"


@cache
def load(file: Path | None = None) -> LayoutModel:
    """Read the packaged model, or another of the same form.

    Raises
    ------
    ModelError
        If the file is missing, not JSON, of another schema or lacks a constant.
    """
    file = file or path()
    try:
        record = bounded.read_json(file)
        if record["schema_version"] != SCHEMA_VERSION:
            raise ModelError(
                f"{file} has schema version {record['schema_version']}, not {SCHEMA_VERSION}",
                hint="run `advisor train layout-model`",
            )
        bounded.check_numbers({n: record[n] for n in ("parameters", "folds")})
        return LayoutModel(
            version=record["version"],
            parameters=LayoutParameters(**record["parameters"]),
            folds={t: LayoutParameters(**p) for t, p in record["folds"].items()},
            errors=tuple(
                TableErrors(
                    table=e["table"],
                    generation=GENERATIONS.index(e["generation"]),
                    log_errors=tuple(e["log_errors"]),
                )
                for e in record["errors"]
            ),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"cannot read the layout model {file}: {error}",
            hint="run `advisor train layout-model`, or install the package again",
        ) from error
