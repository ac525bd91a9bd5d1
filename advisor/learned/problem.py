"""From records to what an estimator is given: rows, target, offset, groups, bounds.

target             y on the estimator's scale       offset
over_analytic      ln T                             ln T_analytic, else ln T_anchor
over_anchor        ln T                             ln T_anchor
cost_over_anchor   ln cost                          ln(T_anchor x price of the machines)
time               T [h]                            -
cost               cost [USD]                       -

``time`` and ``cost`` are the thesis's own targets; ``cost_over_anchor`` predicts the cost as
directly, without a time in between, but for jobs and machines of any size. Estimators of positive
quantities (Poisson loss) take T itself under every target, and multiply by the exponential of the
offset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError, UsageError
from advisor.learned import features
from advisor.learned.features import RunColumns
from advisor.planners.core import HOUR_S
from advisor.records import RunRecord

if TYPE_CHECKING:
    from advisor.learned.base import RunRegressor
    from advisor.learned.quick import QuickModel

Floats = NDArray[np.float64]

Target = Literal["over_analytic", "over_anchor", "cost_over_anchor", "time", "cost"]
TARGETS: Final[tuple[Target, ...]] = get_args(Target)
COSTS: Final = ("cost", "cost_over_anchor")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInputs:
    """What an estimator is asked about, as arrays, rows aligned."""

    target: Target
    X: Floats  # (n, features)
    offset: Floats  # (n,)
    channels: int = 0  # of the partial runs' course, behind the features in ``X``; 0 without

    @classmethod
    def of(cls, runs: RunColumns, target: Target, channels: int) -> ModelInputs:
        """Return some runs as a question; the offset is nan where they lack what it needs."""
        X = runs.features
        if target in ("over_analytic", "cost_over_anchor"):
            X = features.as_asked(X)
        elif target == "over_anchor":
            X = features.without_length_and_price(X)
        if channels:
            X = np.hstack([X, runs.course(channels)])
        with np.errstate(divide="ignore"):
            offset = np.log(_base(runs, target))
        return cls(target=target, X=X, offset=offset, channels=channels)

    def predict(self, model: RunRegressor | QuickModel, rows: NDArray[np.intp] | slice) -> Floats:
        """Return predictions in the unit of ``truth``, shape (rows,)."""
        return self._back(model, model.predict(self.X[rows], offset=self.offset[rows]))

    def predict_band(
        self,
        model: RunRegressor | QuickModel,
        rows: NDArray[np.intp] | slice,
        coverage: float = 0.9,
    ) -> Floats:
        """Return low, prediction and high in the unit of ``truth``, shape (rows, 3)."""
        band = model.predict_band(self.X[rows], coverage, offset=self.offset[rows])
        return self._back(model, band)

    @property
    def _is_direct(self) -> bool:
        return self.target in ("time", "cost")

    @property
    def _unit(self) -> float:
        """Truth in the estimator's unit: hours, as the thesis, or seconds."""
        return HOUR_S if self.target == "time" else 1.0

    def _back(self, model: RunRegressor | QuickModel, answer: Floats) -> Floats:
        if self._is_direct or model._is_multiplicative:
            return np.maximum(answer * self._unit, np.finfo(float).tiny)
        return np.exp(answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ModelInputs):
    """Runs with a label as arrays: what an estimator is fitted on."""

    records: tuple[RunRecord, ...]  # the runs that have a label: ``ok`` and ``censored``
    truth: Floats  # (n,); times [s], or costs [USD] where they are the target
    groups: NDArray[Any]  # (n,); families
    is_censored: NDArray[np.bool_]  # (n,)

    def fit(self, model: RunRegressor, rows: NDArray[np.intp] | slice) -> RunRegressor:
        """Fit an estimator on some rows."""
        return model.fit(
            self.X[rows],
            self._given(model)[rows],
            groups=self.groups[rows],
            offset=self.offset[rows],
            is_censored=self.is_censored[rows],
        )

    def _given(self, model: RunRegressor) -> Floats:
        if self._is_direct or model._is_multiplicative:
            return self.truth / self._unit
        return np.log(self.truth)


def problem_of(
    records: Sequence[RunRecord], target: Target = "over_analytic", *, has_series: bool = False
) -> Problem:
    """Return the labelled runs among ``records`` as arrays.

    Raises ModelError if no run has what the target needs; UsageError if there is no such target.

    Parameters
    ----------
    records : sequence of RunRecord
        Failed runs are left out here: they have no time. So are those that their collector calls
        noisy: other programs made their time.
    """
    if target not in TARGETS:
        raise UsageError(f"no target named {target!r}", hint=f"one of: {', '.join(TARGETS)}")
    labelled = [r for r in records if _is_labelled(r) and (target not in COSTS or r.cost_usd)]
    known = RunColumns.of(labelled) if labelled else None
    kept = np.zeros(0, bool) if known is None else ~np.isnan(_base(known, target))
    if known is None or not kept.any():
        raise ModelError(
            f"none of {len(records)} runs has what the target {target!r} needs",
            hint="costs need cost_usd, over_anchor a partial run; see docs/formats.md",
        )
    runs = tuple(r for r, is_kept in zip(labelled, kept, strict=True) if is_kept)
    taken = features.channels_of(runs) if has_series else 0
    asked = ModelInputs.of(known.take(kept), target, taken)
    return Problem(
        target=target, X=asked.X, offset=asked.offset, channels=taken, records=runs,
        truth=np.array([r.cost_usd if target in COSTS else r.time_s for r in runs], float),
        groups=np.array([r.job.family for r in runs]),
        is_censored=np.array([r.status == "censored" for r in runs]),
    )  # fmt: skip


def _is_labelled(record: RunRecord) -> bool:
    """Return whether a run has a time that its collector stands by."""
    is_spoilt = record.facts.get("is_noisy") == 1.0
    return record.status in ("ok", "censored") and record.time_s is not None and not is_spoilt


def _base(runs: RunColumns, target: Target) -> Floats:
    """Return what the target is relative to [s or USD]: 1 where to nothing, nan if unknown."""
    if target in ("time", "cost"):
        return np.ones(len(runs))
    if target == "over_analytic":
        return runs.physics_s
    if target == "over_anchor":
        return runs.anchor_s
    # A cost all the same: what the anchor's time would have been billed there.
    price = np.where(runs.price_usd_per_h > 0, runs.price_usd_per_h, math.nan)
    return np.asarray(runs.anchor_s * price / HOUR_S)
