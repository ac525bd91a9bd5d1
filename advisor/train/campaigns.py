"""Fit what a whole run adds to its steps, on published training runs, one family left out.

``ln(published / estimated hours)`` of every run is explained by ``planners.goodput.campaign``:
its size where the published hours are of a run as it was, and the age of its software. The fit
minimises, over constants of 0 or more,

    sum over runs  n_f^-1/2 rho((growth x + per_year y - r) / 0.15)
    + sum over constants  (constant / 0.3)^2 / 2

with rho the soft absolute value and n_f the runs of a family, so that neither five sizes of one
model nor one contested figure decides. The spread is the one at which 90 % intervals, the step's
own error included, hold 90 % of the errors of families that were left out (every family weighing
the root of its runs). The form is the one that errs least on families left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.domain import QUANTILES
from advisor.errors import ModelError
from advisor.planners.goodput.campaign import CampaignLaw, efolds
from advisor.predict import Predictor
from advisor.predict.campaign import CampaignModel, record
from advisor.records import reads
from advisor.records.campaigns import packaged_path, read_campaigns
from advisor.train.campaign_rows import COVERAGE, CampaignAnswer, answers
from advisor.train.few_groups import widening
from advisor.train.fits import FittedFolder

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Year of the newest software among the measured layouts (NeMo 24, torchtitan).
SOFTWARE_YEAR: Final = 2024
# Below it errors count squared, above it absolutely: the median error of the step on new tables.
_NOISE: Final = 0.15
# Of each constant around 0: a factor of 1.35 an e-fold or a year would be news.
_PRIOR_SD: Final = 0.3
_ITERATIONS: Final = 60
# Below a machine-hour every run counts as one: a spread cannot be read off a run without size.
_LEAST_EFOLDS: Final = 0.04
# Fewer whole runs with a published rate of steps than this show no spread.
_FEWEST_RATES: Final = 3
# Which of (size, age of the software) a form has.
FORMS: Final = {
    "nothing": (False, False),
    "size": (True, False),
    "software": (False, True),
    "size and software": (True, True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignColumns:
    """Published runs and what the estimate says of them, shape (n,)."""

    family: NDArray[np.str_]
    # published_h, estimated_h, steps_h: device-hours; estimated without the whole-run term, and in
    # steps alone [h]
    published_h: Floats
    estimated_h: Floats
    steps_h: Floats
    software_years: Floats  # by which the software is older than that of the measured layouts
    is_whole_run: Bools  # the published hours are of a run as it was
    step_log_sd: Floats
    rate_h: Floats  # device-hours at the published rate of the steps; nan without one [h]

    def __len__(self) -> int:
        return self.family.size

    def select(self, rows: Bools) -> CampaignColumns:
        """Return some rows."""
        return CampaignColumns(**{name: getattr(self, name)[rows] for name in self.__slots__})

    @property
    def weight(self) -> Floats:
        """Every family's root of its runs, shared by them."""
        _, place, count = np.unique(self.family, return_inverse=True, return_counts=True)
        return np.asarray(count[place] ** -0.5)

    @property
    def target(self) -> Floats:
        """Return ln(published / estimated hours)."""
        return np.log(self.published_h / self.estimated_h)

    def log_factor(self, law: CampaignLaw) -> Floats:
        """Return what a law adds to the logarithm of the estimated hours."""
        size_h = np.where(self.is_whole_run, self.steps_h, 0.0)
        return law.log_factor(size_h, self.software_years)

    def log_sd(self, law: CampaignLaw) -> Floats:
        """Return the deviation of the hours' logarithm: the step's and the whole run's."""
        return np.hypot(self.step_log_sd, law.log_sd(self.steps_h))


def columns(found: Sequence[CampaignAnswer]) -> CampaignColumns:
    """Return answers as columns.

    Raises ModelError if there is none.
    """
    if not found:
        raise ModelError(
            "no published run can be put to the estimate",
            hint="a run needs a transformer's dimensions, its tokens and a known accelerator",
        )
    runs = [a.question.campaign for a in found]
    return CampaignColumns(
        family=np.array([c.family for c in runs]),
        published_h=np.array([c.device_h for c in runs]),
        estimated_h=np.array([a.device_h for a in found]),
        steps_h=np.array([a.steps_device_h for a in found]),
        software_years=np.array([max(SOFTWARE_YEAR - c.year, 0) for c in runs], float),
        is_whole_run=np.array([c.is_whole_run for c in runs]),
        step_log_sd=np.array([a.log_sd for a in found]),
        rate_h=np.array([a.published_rate_device_h or np.nan for a in found]),
    )


def fit(rows: CampaignColumns) -> CampaignLaw:
    """Fit the law, form and spread chosen on the rows' own families left out."""
    errors = {form: left_out_errors(rows, form) for form in FORMS}
    form = min(errors, key=lambda f: mean_error(rows, errors[f]))
    growth, per_year = _constants(rows, form)
    spread = _spread(rows, errors[form])
    return CampaignLaw(
        growth=growth,
        per_year=per_year,
        sd_per_root=spread,
        sd_per_root_measured=min(_spread_of_measured(rows, growth), spread),
    )


def left_out_errors(rows: CampaignColumns, form: str) -> Floats:
    """Return ln(predicted / published) with each family's constants fitted on the others."""
    errors = np.zeros(len(rows))
    for family in np.unique(rows.family):
        own = rows.family == family
        growth, per_year = _constants(rows.select(~own), form)
        law = CampaignLaw(growth=growth, per_year=per_year, sd_per_root=0.0)
        left_out = rows.select(own)
        errors[own] = left_out.log_factor(law) - left_out.target
    return errors


def mean_error(rows: CampaignColumns, errors: Floats) -> float:
    """Return the weighted mean of absolute log errors."""
    return float(np.average(np.abs(errors), weights=rows.weight))


def folds(rows: CampaignColumns) -> dict[str, CampaignLaw]:
    """Return the law without each family in turn."""
    return {str(f): fit(rows.select(rows.family != f)) for f in np.unique(rows.family)}


def _constants(rows: CampaignColumns, form: str) -> tuple[float, float]:
    """Return (growth, per_year): reweighted least squares, each step on constants >= 0."""
    from scipy.optimize import nnls

    has = np.flatnonzero(FORMS[form])
    size = np.where(rows.is_whole_run, efolds(rows.steps_h), 0.0)
    design = np.stack([size, rows.software_years], axis=1)[:, has]
    found, target = np.zeros(has.size), rows.target
    for _ in range(_ITERATIONS if has.size and len(rows) else 0):
        z = (design @ found - target) / _NOISE
        root = np.sqrt(rows.weight / np.sqrt(1 + z * z)) / _NOISE
        prior = np.eye(has.size) / _PRIOR_SD
        found, _ = nnls(
            np.concatenate([design * root[:, None], prior]),
            np.concatenate([target * root, np.zeros(has.size)]),
        )
    both = np.zeros(2)
    both[has] = found
    return float(both[0]), float(both[1])


def _spread(rows: CampaignColumns, errors: Floats) -> float:
    """Return the deviation a root of an e-fold at which 90 % intervals hold 90 % of the errors."""
    if len(rows) == 0:
        return 0.0
    beyond = np.maximum((errors / QUANTILES[COVERAGE]) ** 2 - rows.step_log_sd**2, 0.0)
    wanted = beyond / np.maximum(efolds(rows.steps_h), _LEAST_EFOLDS)
    order = np.argsort(wanted)
    share = np.cumsum(rows.weight[order]) / rows.weight.sum()
    place = min(int(np.searchsorted(share, COVERAGE - 1e-9)), len(rows) - 1)
    return float(np.sqrt(wanted[order][place]))


def beyond_rate(rows: CampaignColumns) -> tuple[Floats, Floats]:
    """Return sizes of whole runs with a published rate of steps, and ln(hours / at that rate)."""
    known = rows.is_whole_run & np.isfinite(rows.rate_h)
    beyond = np.log(rows.published_h[known] / rows.rate_h[known])
    return efolds(rows.rate_h[known]), beyond


def _spread_of_measured(rows: CampaignColumns, growth: float) -> float:
    """Return the deviation a root of an e-fold of whole runs beyond their own published rate.

    Few publish both: the root mean square, times Student's quantile over the normal one.
    """
    size, beyond = beyond_rate(rows)
    if size.size < _FEWEST_RATES:
        return np.inf
    root_mean_square = np.sqrt(np.mean((beyond - growth * size) ** 2 / size))
    return float(widening(size.size) * root_mean_square)


def metrics(rows: CampaignColumns) -> dict[str, Any]:
    """Return what the forms err on families left out: weighted mean of |ln(ours / published)|."""
    return {
        "runs": len(rows),
        "families": int(np.unique(rows.family).size),
        "left_out_mean_log_error": {
            form: round(mean_error(rows, left_out_errors(rows, form)), 4) for form in FORMS
        },
    }


def fitted(given: Path | None, day: str) -> FittedFolder:
    """Fit what a whole training run adds to its steps."""
    source = given or packaged_path()
    reads.note_file("campaigns/runs", source)
    found, left_out = answers(read_campaigns(source), Predictor())
    rows = columns(found)
    model = CampaignModel(version=day, law=fit(rows), folds=folds(rows))
    written = record(model) | {"fitted_on": {"runs": len(rows), "left_out": left_out}}
    return FittedFolder(
        files={"parameters.json": json.dumps(written, indent=1) + "\n"},
        metrics=metrics(rows),
        told=f"{model.law}, {len(rows)} runs of {len(model.folds)} families",
    )
