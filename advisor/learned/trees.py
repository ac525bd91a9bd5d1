"""Boosted trees (XGBoost), and extremely randomised or bagged ones: averages of many.

A saved tree is the arrays of its nodes; what is read back is checked before it is walked, so that
a changed file can neither loop nor read outside.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from advisor.errors import ModelError
from advisor.learned.base import Floats, RunRegressor, State
from advisor.learned.quick import Trees
from advisor.learned.splits import group_folds

_STOP_FOLDS: Final = 5  # one fifth of the groups decides when to stop
_LEAST_TO_STOP: Final = 5  # with fewer groups one fifth says too little: all rounds are made
_HINT: Final = "the file was changed or cut: fit the model again"
_NODE_FIELDS: Final = (
    "left_child", "right_child", "feature", "threshold", "missing_go_to_left",
)  # fmt: skip
# A leaf's threshold is its value.
_XGBOOST: Final = {
    "left_child": ("left_children", np.int32),
    "right_child": ("right_children", np.int32),
    "feature": ("split_indices", np.int32),
    "threshold": ("split_conditions", np.float32),
    "missing_go_to_left": ("default_left", bool),
}


@dataclass(kw_only=True, eq=False, repr=False)
class _Saved(RunRegressor):
    """Trees that are kept as the arrays of their nodes, and checked when they are read back."""

    def _answer(self, X: Floats) -> Floats:
        return self.trees_.answer(X)

    def state(self) -> State:
        """Return what was learned as plain data and arrays."""
        return self.learned_

    def restore(self, state: State) -> None:
        """Take on what was learned; refuse arrays that are no trees."""
        try:
            self.trees_ = Trees.of(state)
        except ValueError as error:
            raise ModelError(str(error), hint=_HINT) from error
        if self.trees_.features > self.n_features_in_:
            raise ModelError("the trees look at columns that no row has", hint=_HINT)
        self.learned_ = state


@dataclass(kw_only=True, eq=False, repr=False)
class Boosting(_Saved):
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

        rounds = self.rounds
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
            rounds = int(trial.best_iteration) + 1
        self.booster_: Any = xgb.train(self._settings(), xgb.DMatrix(X, r), rounds)

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
        if self.booster_ is None:
            return super()._answer(X)
        answer = self.booster_.inplace_predict(np.ascontiguousarray(X, np.float32), missing=np.nan)
        return np.asarray(answer, float)

    def state(self) -> State:
        """Return what was learned as plain data and arrays."""
        if self.booster_ is None:
            return super().state()
        model = json.loads(self.booster_.save_raw("json"))["learner"]
        trees = model["gradient_booster"]["model"]["trees"]
        state: State = {
            name: np.concatenate([np.asarray(tree[theirs], kind) for tree in trees])
            for name, (theirs, kind) in _XGBOOST.items()
        }
        base = np.ravel(model["learner_model_param"]["base_score"])[0]
        sizes = np.array([len(tree["left_children"]) for tree in trees])
        return state | {
            "value": state["threshold"], "sizes": sizes, "base": float(base.strip("[]")),
        }  # fmt: skip

    def restore(self, state: State) -> None:
        """Take on what was learned; refuse arrays that are no trees."""
        super().restore(state)
        self.booster_ = None


@dataclass(kw_only=True, eq=False, repr=False)
class Forest(_Saved):
    """Mean of randomised regression trees."""

    trees: int = 200
    least_leaf: int = 3  # rows in a leaf at least
    feature_fraction: float = 0.5  # share of the features that a split looks at
    # draw thresholds at random (Geurts et al. 2006) and use every row; else bag the rows and
    # search thresholds (Breiman 2001).
    is_extra: bool = True

    def _learn(self, X: Floats, r: Floats, groups: Any) -> None:
        from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor

        kind = ExtraTreesRegressor if self.is_extra else RandomForestRegressor
        model = kind(
            n_estimators=self.trees,
            min_samples_leaf=self.least_leaf,
            max_features=self.feature_fraction,
            n_jobs=self.n_jobs,
            random_state=self.random_state,
        )
        # Unknown becomes far below anything known: a split can single it out.
        known = X[np.isfinite(X)]
        unknown = float(np.min(known) - 1e3) if known.size else 0.0
        model.fit(np.where(np.isnan(X), unknown, X).astype(np.float32), r)
        trees = [tree.tree_ for tree in model.estimators_]
        nodes = [tree.__getstate__()["nodes"] for tree in trees]
        state = {name: np.concatenate([part[name] for part in nodes]) for name in _NODE_FIELDS}
        for name in ("left_child", "right_child", "feature"):
            state[name] = state[name].astype(np.int32)
        state["value"] = np.concatenate([t.value[:, 0, 0] for t in trees]).astype(np.float32)
        self.n_features_in_ = X.shape[1]
        sizes = np.array([tree.node_count for tree in trees])
        self.restore({"sizes": sizes, "unknown": unknown, **state})
