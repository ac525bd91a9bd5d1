"""The layout model after three rows of a table are a user's own runs, against before.

Of each table three rows are drawn by several seeds, noted as ``advisor runs actual`` notes them,
and the others asked again: constants fitted without the table, then calibrated on the three
(``ways.own_layouts``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from advisor.domain import REACH_90
from advisor.planners.core.layer_latency import Floats
from advisor.train.layout_model import is_dense_training
from advisor.train.layout_rows import LayoutRows
from advisor.validation.asked_layouts import measured_layouts, predictor
from advisor.validation.scores import Scores, score
from advisor.ways.layout_model import LayoutModel
from advisor.ways.own_layouts import MeasuredLayout, OwnLayouts, calibrated_problem, own_layouts

KNOWN: Final = 3
SEEDS: Final = 9
# A table of less is not split; of more than the second number so many are drawn for scoring.
_ENOUGH_ROWS: Final = 6
_MOST_ROWS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterRuns:
    """One table: the mean error before and after by seed, and all rows scored after.

    Attributes
    ----------
    table, gpu : str
        ``gpu`` is the first row's.
    before, after : ndarray of shape (seeds,)
        MAPE of the rows that were not drawn, as fractions.
    scores : Scores
        Of all seeds' rows after the runs.
    """

    table: str
    gpu: str
    before: Floats
    after: Floats
    scores: Scores

    @property
    def gain(self) -> float:
        """What the runs take off the error: the median over seeds."""
        return float(np.median(self.before - self.after))


def after_runs(rows: LayoutRows, model: LayoutModel, *, seeds: int = SEEDS) -> list[AfterRuns]:
    """Score every table of enough dense rows before and after three of them are known."""
    return list(_tables(rows, model, seeds))


def calibrated(runs: Sequence[MeasuredLayout], model: LayoutModel) -> OwnLayouts:
    """Calibrate as the product does for a user's runs."""
    return own_layouts(runs, model.log_spread(), predictor().constants.calibration)


def asked_after(run: MeasuredLayout, own: OwnLayouts, log_sd: float = 0.0) -> tuple[float, float]:
    """Return the step of a run after others are known [s], and the deviation of its logarithm."""
    problem = calibrated_problem(run.problem, own, run.device)
    step_s = float(problem.times(run.layout).step_s)
    return step_s, own.log_sd(problem, run.layout, run.device, log_sd)


def _tables(rows: LayoutRows, model: LayoutModel, seeds: int) -> Iterator[AfterRuns]:
    dense = is_dense_training(rows)
    for table in dict.fromkeys(rows.table[dense]):
        here = np.flatnonzero(dense & (rows.table == table))
        if here.size < _ENOUGH_ROWS:
            continue
        drawn = [np.random.default_rng(seed).permutation(here.size) for seed in range(seeds)]
        drawn = [order[: KNOWN + _MOST_ROWS] for order in drawn]
        asked, places = np.unique(np.concatenate(drawn), return_inverse=True)
        drawn = np.split(places, seeds)
        runs = measured_layouts(rows.take(here[asked]), model.without(table))
        yield _scored(table, str(rows.gpu[here[0]]), runs, drawn, model)


def _scored(
    table: str, gpu: str, runs: list[MeasuredLayout], drawn: list[np.ndarray], model: LayoutModel
) -> AfterRuns:
    measured = np.array([run.step_s for run in runs])
    bare = np.array([float(run.problem.times(run.layout).step_s) for run in runs])
    generation = int(runs[0].problem.machines.generation)
    published = model.log_half_width(generation, 0.9, without=table) / REACH_90
    before, after, found, told = [], [], [], []
    for order in drawn:
        own = calibrated([runs[i] for i in order[:KNOWN]], model)
        rest = order[KNOWN:]
        answers = np.array([asked_after(runs[i], own, published) for i in rest])
        before.append(score(bare[rest], measured[rest]).mape_fraction)
        after.append(score(answers[:, 0], measured[rest]).mape_fraction)
        found.append(answers)
        told.append(measured[rest])
    value, log_sd = np.concatenate(found).T
    width = np.exp(REACH_90 * log_sd)
    return AfterRuns(
        table=table,
        gpu=gpu,
        before=np.array(before),
        after=np.array(after),
        scores=score(value, np.concatenate(told), low=value / width, high=value * width),
    )
