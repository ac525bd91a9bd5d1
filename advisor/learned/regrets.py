"""Regret of a choice: the cost of what looks best over the cost of what is best.

For each job with runs on several configurations: price of the chosen run over the price of the
best. Only completed runs can be chosen; where every run of a job has a cost the price is the
cost, else the time. Beside it stand the constant answer (the configuration that is best on
average over the other families) and the random one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.answer import Recorded
from advisor.records import RunRecord

Floats = NDArray[np.float64]

_LEAST_SHARE: Final = 0.3  # a constant answer must have run for this share of the other jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret(Recorded):
    """Mean over jobs of (price of the choice / best price); 1 is perfect.

    ``constant`` and ``random`` answer without looking at the job; ``top1_error`` is the standard
    error of ``top1`` over the jobs.
    """

    renamed: ClassVar[Mapping[str, str]] = {"top1": "model", "top1_error": ""}
    digits: ClassVar[int] = 6

    jobs: int
    top1: float
    constant: float
    random: float
    top1_error: float = 0.0


def regret(
    records: Sequence[RunRecord], predicted: ArrayLike, *, is_cost: bool = False
) -> Regret | None:
    """Return the regret of choosing by predicted price; None where no job leaves a choice.

    ``predicted``: (n,); predicted times of the runs [s], in any common unit; nan is never chosen.
    """
    jobs = sorted({r.job.job_id for r in records})
    prices, guesses = _priced(records, np.asarray(predicted, float), jobs, is_cost)
    empty = np.isnan(prices).all(axis=1)
    prices[empty], guesses[empty] = 1.0, np.nan  # no completed run: no choice
    ratios = prices / np.nanmin(prices, axis=1, keepdims=True)
    families = _families(records, jobs)
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


def _families(records: Sequence[RunRecord], jobs: Sequence[str]) -> NDArray[Any]:
    families = {record.job.job_id: record.job.family for record in records}
    return np.array([families.get(job, "") for job in jobs], dtype=object)


def _means(
    records: Sequence[RunRecord], values: Sequence[Sequence[float] | None], jobs: Sequence[str],
    width: int = 1,
) -> Floats:  # fmt: skip
    """Return the means of what runs tell by job and cell, shape (jobs, cells, width).

    ``values``: of each run; None of one that tells nothing. nan where no run tells anything.
    """
    place_job = {name: i for i, name in enumerate(jobs)}
    place_cell = {name: i for i, name in enumerate(sorted({cell(r) for r in records}))}
    sums = np.zeros((len(jobs), len(place_cell), width))
    counts = np.zeros((len(jobs), len(place_cell), 1))
    for record, value in zip(records, values, strict=True):
        if value is not None and record.job.job_id in place_job:
            at = place_job[record.job.job_id], place_cell[cell(record)]
            sums[at] += value
            counts[at] += 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(sums / counts)


def _priced(
    records: Sequence[RunRecord], predicted: Floats, jobs: Sequence[str], is_cost: bool
) -> tuple[Floats, Floats]:
    """Return price and predicted price by job and cell; nan where nothing completed."""
    without_cost = {r.job.job_id for r in records if r.status == "ok" and not r.cost_usd}

    def pair(record: RunRecord, guess: float) -> tuple[float, float] | None:
        if record.status != "ok" or record.time_s is None:
            return None
        if record.cost_usd is None or record.job.job_id in without_cost:
            return record.time_s, guess
        return record.cost_usd, guess * (1.0 if is_cost else record.cost_usd / record.time_s)

    pairs = [pair(r, float(guess)) for r, guess in zip(records, predicted, strict=True)]
    prices, guesses = np.moveaxis(_means(records, pairs, jobs, width=2), -1, 0)
    return prices, guesses
