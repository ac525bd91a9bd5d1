"""Gradient-boosted trees (XGBoost), stopped when a left-out group gains nothing more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.learned.base import Floats, RunRegressor, State
from advisor.learned.intervals import group_folds
from advisor.learned.quick import Trees

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


# Extremely randomised trees, and bagged trees: averages of many, saved as plain arrays.
#
# A saved tree is the arrays of its nodes; what is read back is checked before scikit-learn's
# compiled code walks it, so that a changed file can neither loop nor read outside.


_NODE_FIELDS: Final = (
    "left_child", "right_child", "feature", "threshold", "missing_go_to_left",
)  # fmt: skip


@dataclass(kw_only=True, eq=False, repr=False)
class Forest(RunRegressor):
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
        self.unknown_ = _below(X)
        model.fit(self._filled(X), r)
        self.forest_ = [tree.tree_ for tree in model.estimators_]
        self.n_features_in_ = X.shape[1]
        self.restore(self.state())  # rounded as when saved: both answer the same

    def _filled(self, X: Floats) -> NDArray[np.float32]:
        return np.where(np.isnan(X), self.unknown_, X).astype(np.float32)

    def _answer(self, X: Floats) -> Floats:
        from joblib import Parallel, delayed

        rows = self._filled(X)
        parts = Parallel(n_jobs=self.n_jobs, prefer="threads")(
            delayed(tree.predict)(rows) for tree in self.forest_
        )
        return np.asarray(np.mean([part[:, 0] for part in parts], axis=0))

    def state(self) -> State:
        """Return what was learned as plain data and arrays."""
        sizes = [tree.node_count for tree in self.forest_]
        state: State = {"sizes": np.array(sizes), "unknown": self.unknown_}
        nodes = [tree.__getstate__()["nodes"] for tree in self.forest_]
        for name in _NODE_FIELDS:
            state[name] = np.concatenate([part[name] for part in nodes])
        for name in ("left_child", "right_child", "feature"):
            state[name] = state[name].astype(np.int32)
        values = [tree.value[:, 0, 0] for tree in self.forest_]
        state["value"] = np.concatenate(values).astype(np.float32)
        return state

    def restore(self, state: State) -> None:
        """Take on what was learned; refuse arrays that are no trees."""
        try:
            looked_at = Trees.of_forest(state).features
        except ValueError as error:
            raise ModelError(str(error), hint=_HINT) from error
        if looked_at > self.n_features_in_:
            raise ModelError("the forest looks at columns that no row has", hint=_HINT)
        self.unknown_ = float(state["unknown"])
        ends = np.cumsum(state["sizes"])
        starts = ends - state["sizes"]
        self.forest_ = [
            _tree({name: state[name][a:b] for name in (*_NODE_FIELDS, "value")},
                  self.n_features_in_)
            for a, b in zip(starts, ends, strict=True)
        ]  # fmt: skip


_HINT: Final = "the file was changed or cut: fit the model again"


def _below(X: Floats) -> float:
    known = X[np.isfinite(X)]
    return float(np.min(known) - 1e3) if known.size else 0.0


def _tree(part: dict[str, Any], features: int) -> Any:
    """Return a scikit-learn tree made of checked arrays."""
    from sklearn.tree._tree import NODE_DTYPE, Tree

    count = part["value"].size
    nodes = np.zeros(count, dtype=NODE_DTYPE)
    for name in _NODE_FIELDS:
        nodes[name] = part[name]
    tree = Tree(features, np.array([1], dtype=np.intp), 1)
    values = part["value"].astype(float).reshape(-1, 1, 1)
    tree.__setstate__({"max_depth": count, "node_count": count, "nodes": nodes, "values": values})
    return tree
