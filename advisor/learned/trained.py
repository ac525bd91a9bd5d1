"""A trained model as it is used: read from its folder, asked about runs."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from advisor.answer import to_record
from advisor.errors import ModelError
from advisor.learned import features, registry
from advisor.learned.features import SEQUENCE_CHANNELS, RunColumns
from advisor.learned.problem import ModelInputs, Problem, Target
from advisor.learned.quick import Hull, QuickModel
from advisor.records import RunRecord, to_line

if TYPE_CHECKING:
    from advisor.learned.base import RunRegressor

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a model says of some runs, rows aligned."""

    # value, low, high: (n,); times [s], or costs [USD]
    value: Floats
    low: Floats
    high: Floats
    # (n,); answered by physics alone: the run leaves what the model was fitted on
    is_extrapolating: NDArray[np.bool_]
    coverage: float  # of [low, high]

    def to_frame(self) -> Any:
        """Return the rows as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame({
            "value": self.value, "low": self.low, "high": self.high,
            "is_extrapolating": self.is_extrapolating,
        })  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """A fitted estimator with the features it takes and what was measured of it."""

    name: str
    estimator: RunRegressor | QuickModel  # the latter where a folder was read that needs no more
    target: Target
    channels: int  # of the partial run's course, which it takes after the features; 0 for none
    about: Mapping[str, Any]  # ``features.json``
    metrics: Mapping[str, Any]  # ``metrics.json``

    @classmethod
    def load(cls, folder: Path) -> TrainedModel:
        """Read a model from its folder.

        Raises ModelError if the folder was changed, or was fitted on other features than this
        version's.
        """
        estimator, about, found = registry.load(folder)
        features.require_same(about, str(folder))
        return cls(
            name=folder.name,
            estimator=estimator,
            target=cast(Target, about["target"]),
            channels=int(about.get("channels", len(SEQUENCE_CHANNELS)))
            * bool(about["has_series"]),
            about=about,
            metrics=found,
        )

    def save(self, folder: Path, card: str) -> None:
        """Write the model as a folder, replacing an older one in one step."""
        if isinstance(self.estimator, QuickModel):
            raise TypeError("a model that was read is saved already: copy its folder")
        registry.save(folder, self.estimator, features=self.about, metrics=self.metrics, card=card)

    def predict(self, runs: RunColumns | Sequence[RunRecord], coverage: float = 0.9) -> Prediction:
        """Predict runs; their labels are not looked at.

        Raises ModelError if a run lacks what the target is relative to (a partial run), or the
        answer is not a number: the weights were not made by training.
        """
        asked = self._inputs(runs)
        low, value, high = asked.predict_band(self.estimator, slice(None), coverage).T
        if not np.isfinite(value).all():
            raise ModelError(
                f"the model {self.name} answers with what is not a number",
                hint="fit it again: advisor train models",
            )
        outside = np.zeros(len(value), bool)
        if hasattr(self.estimator, "is_outside"):
            outside = self.estimator.is_outside(asked.X)
        return Prediction(
            value=value,
            low=np.minimum(low, value),
            high=np.maximum(high, value),
            is_extrapolating=outside,
            coverage=coverage,
        )

    def explain(self, runs: RunColumns | Sequence[RunRecord]) -> dict[str, Floats]:
        """Return what each group of features does to each prediction.

        Returns
        -------
        dict of str to array of shape (n,)
            Group -> change of ln(prediction) against the same run with the group's features at
            their medians in the training data.
        """
        asked = self._inputs(runs)
        medians = np.array([math.nan if v is None else v for v in self.about["medians"]])
        full = np.log(asked.predict(self.estimator, slice(None)))
        found: dict[str, Floats] = {}
        for group in dict.fromkeys(f.group for f in features.FEATURES):
            usual = asked.X.copy()
            columns = [i for i, f in enumerate(features.FEATURES) if f.group == group]
            usual[:, columns] = medians[columns]
            if group == "series" and self.channels:
                usual[:, len(features.FEATURES) :] = 0.0
            answer = self.estimator.predict(usual, offset=asked.offset)
            found[group] = full - np.log(asked._back(self.estimator, answer))
        return found

    def _inputs(self, runs: RunColumns | Sequence[RunRecord]) -> ModelInputs:
        if not len(runs):
            raise ModelError("no runs to predict", hint="hand in at least one")
        runs = runs if isinstance(runs, RunColumns) else RunColumns.of(runs)
        asked = ModelInputs.of(runs, self.target, self.channels)
        lacking = np.flatnonzero(np.isnan(asked.offset))
        if lacking.size:
            raise ModelError(
                f"run {runs.take(lacking[:1]).records[0].record_id!r} has no partial run to start "
                "from",
                hint="profile the job first",
            )
        return asked


def describe_features(asked: Problem, *, hull: Hull) -> dict[str, Any]:
    """Return ``features.json`` of a model that is fitted on ``asked`` and covers ``hull``."""
    static = asked.X[:, : len(features.FEATURES)]
    known = np.isfinite(static)
    medians = [
        float(np.median(column[seen])) if seen.any() else None
        for column, seen in zip(static.T, known.T, strict=True)
    ]
    return {
        "schema_version": features.SCHEMA_VERSION,
        "target": asked.target,
        "has_series": asked.channels > 0,
        **({"channels": asked.channels} if asked.channels else {}),
        "names": list(features.NAMES),
        "features": to_record(features.FEATURES),
        "medians": medians,
        "hull": hull.to_record(),
        "accelerators": dict(
            sorted(Counter(r.configuration[0].accelerator for r in asked.records).items())
        ),
        "data_sha256": data_hash(asked.records),
        "records": len(asked.records),
    }


def data_hash(records: Sequence[RunRecord]) -> str:
    """Return the SHA-256 of some records, whatever their order."""
    lines = sorted(to_line(record) for record in records)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
