"""Regret of a choice: the cost of what looks best over the cost of what is best.

For each job with runs on several configurations: price of the chosen run over the price of the
best. Only completed runs can be chosen; where every run of a job has a cost the price is the
cost, else the time. Beside it stand the constant answer (the configuration that is best on
average over the other families) and the random one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.records import RunRecord

Floats = NDArray[np.float64]

_LEAST_SHARE: Final = 0.3  # a constant answer must have run for this share of the other jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Mean over jobs of (price of the choice / best price); 1 is perfect.

    ``constant`` and ``random`` answer without looking at the job; ``top1_error`` is the standard
    error of ``top1`` over the jobs.
    """

    jobs: int
    top1: float
    constant: float
    random: float
    top1_error: float = 0.0


def regret(
    records: Sequence[RunRecord], predicted: ArrayLike, *, is_cost: bool = False
) -> Regret | None:
    """Return the regret of choosing by predicted price; None where no job leaves a choice.

    Parameters
    ----------
    predicted : array-like of shape (n,)
        Predicted times of the runs [s], in any common unit; nan is never chosen.
    """
    jobs, cells = _cells(records)
    prices, guesses = _matrices(records, np.asarray(predicted, float), jobs, cells, is_cost)
    ratios = prices / np.nanmin(prices, axis=1, keepdims=True)
    families = np.array([_family(records, job) for job in jobs])
    chosen, constants, randoms = [], [], []
    for row in range(len(jobs)):
        usable = np.isfinite(ratios[row]) & np.isfinite(guesses[row])
        if usable.sum() < 2:
            continue
        chosen.append(ratios[row][usable][np.argmin(guesses[row][usable])])
        usual = constant_answer(ratios[families != families[row]])
        constants.append(ratios[row][usable][np.argmin(usual[usable])])
        randoms.append(float(np.mean(ratios[row][usable])))
    if not chosen:
        return None
    return Regret(
        jobs=len(chosen),
        top1=float(np.mean(chosen)),
        constant=float(np.mean(constants)),
        random=float(np.mean(randoms)),
        top1_error=float(np.std(chosen) / np.sqrt(len(chosen))),
    )


def constant_answer(ratios: Floats) -> Floats:
    """Return the mean regret of each configuration over some jobs, shape (configurations,).

    Parameters
    ----------
    ratios : array of shape (jobs, configurations)
        Price over the job's best; nan where it did not run. What hardly ever ran is last.
    """
    if len(ratios) == 0:
        return np.zeros(ratios.shape[1])
    known = np.isfinite(ratios)
    sums = np.where(known, ratios, 0.0).sum(axis=0)
    means = sums / np.maximum(known.sum(axis=0), 1)
    return np.where(known.mean(axis=0) > _LEAST_SHARE, means, 1e6)


def cell(record: RunRecord) -> str:
    """Name what can be chosen: the machines, their count, and the layout."""
    machines = "+".join(f"{m.provider}/{m.instance_type}x{m.count}" for m in record.configuration)
    layout = ",".join(f"{k}={v}" for k, v in sorted(record.layout.items()))
    return f"{machines} {layout}"


def _cells(records: Sequence[RunRecord]) -> tuple[list[str], list[str]]:
    jobs = sorted({r.job.job_id for r in records})
    return jobs, sorted({cell(r) for r in records})


def _family(records: Sequence[RunRecord], job: str) -> str:
    return next(r.job.family for r in records if r.job.job_id == job)


def _matrices(
    records: Sequence[RunRecord],
    predicted: Floats,
    jobs: list[str],
    cells: list[str],
    is_cost: bool,
) -> tuple[Floats, Floats]:
    """Price and predicted price by job and cell, repeats averaged; nan where nothing completed."""
    place_job = {name: i for i, name in enumerate(jobs)}
    place_cell = {name: i for i, name in enumerate(cells)}
    has_cost = dict.fromkeys(jobs, True)
    for record in records:
        if record.status == "ok" and not record.cost_usd:
            has_cost[record.job.job_id] = False
    sums: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for record, guess in zip(records, predicted, strict=True):
        if record.status != "ok" or record.time_s is None:
            continue
        by_cost = has_cost[record.job.job_id]
        price: Any = record.cost_usd if by_cost else record.time_s
        factor = price / record.time_s if by_cost and not is_cost else 1.0
        key = place_job[record.job.job_id], place_cell[cell(record)]
        sums.setdefault(key, []).append((price, guess * factor))
    prices = np.full((len(jobs), len(cells)), np.nan)
    guesses = prices.copy()
    for key, pairs in sums.items():
        prices[key], guesses[key] = np.mean(pairs, axis=0)
    empty = np.isnan(prices).all(axis=1)
    prices[empty] = 1.0  # no completed run: no choice; skipped by the caller
    guesses[empty] = np.nan
    return prices, guesses
