"""Gradient-boosted trees (XGBoost), stopped when a left-out group gains nothing more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from advisor.errors import ModelError
from advisor.learned.base import Floats, RunRegressor, State
from advisor.learned.splits import group_folds

_STOP_FOLDS: Final = 5  # one fifth of the groups decides when to stop
_LEAST_TO_STOP: Final = 5  # with fewer groups one fifth says too little: all rounds are made


@dataclass(kw_only=True, eq=False, repr=False)
class Boosting(RunRegressor):
    """Boosted regression trees on absolute or squared errors."""

    rounds: int = 400
    depth: int = 5
    learning_rate: float = 0.05
    # row_fraction, feature_fraction: share of rows and features that a tree sees
    row_fraction: float = 0.8
    feature_fraction: float = 0.6
    least_weight: float = 1.0  # rows in a leaf at least
    # XGBoost's objective; ``"reg:squarederror"`` or ``"reg:absoluteerror"``
    objective: str = "reg:squarederror"
    # rounds without gain on the left-out fifth of the groups before it stops; None never stops
    patience: int | None = None

    def _learn(self, X: Floats, r: Floats, groups: Any) -> None:
        import xgboost as xgb

        self.rounds_ = self.rounds
        if self.patience is not None and np.unique(groups).size >= _LEAST_TO_STOP:
            train, test = next(iter(group_folds(groups, _STOP_FOLDS, self.random_state)))
            trial = xgb.train(
                self._settings(),
                xgb.DMatrix(X[train], r[train]),
                self.rounds,
                evals=[(xgb.DMatrix(X[test], r[test]), "left out")],
                early_stopping_rounds=self.patience,
                verbose_eval=False,
            )
            self.rounds_ = int(trial.best_iteration) + 1
        self.booster_ = xgb.train(self._settings(), xgb.DMatrix(X, r), self.rounds_)

    def _settings(self) -> dict[str, Any]:
        return {
            "objective": self.objective,
            "max_depth": self.depth,
            "learning_rate": self.learning_rate,
            "subsample": self.row_fraction,
            "colsample_bytree": self.feature_fraction,
            "min_child_weight": self.least_weight,
            "seed": self.random_state,
            "nthread": self._threads(),
            "verbosity": 0,
        }

    def _threads(self) -> int:
        from joblib import effective_n_jobs

        return int(effective_n_jobs(self.n_jobs))

    def _answer(self, X: Floats) -> Floats:
        answer = self.booster_.inplace_predict(np.ascontiguousarray(X, np.float32), missing=np.nan)
        return np.asarray(answer, float)

    def state(self) -> State:
        """Return what was learned as plain data and arrays; the trees as XGBoost's UBJSON."""
        return {"booster": bytes(self.booster_.save_raw("ubj")), "rounds": self.rounds_}

    def restore(self, state: State) -> None:
        """Take on what was learned."""
        import xgboost as xgb

        self.booster_ = xgb.Booster({"nthread": self._threads()})
        try:
            self.booster_.load_model(bytearray(state["booster"]))
        except xgb.core.XGBoostError as error:
            raise ModelError(
                "the boosted trees cannot be read", hint="fit the model again"
            ) from error
        if self.booster_.num_features() != self.n_features_in_:
            raise ModelError(
                f"the boosted trees know {self.booster_.num_features()} features, not "
                f"{self.n_features_in_}",
                hint="fit the model again",
            )
        self.rounds_ = int(state["rounds"])
