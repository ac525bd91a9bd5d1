"""The quick answers of a saved model are those of scikit-learn's and XGBoost's own code."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor import data
from advisor.learned import registry
from advisor.learned.guarded import Guarded
from advisor.learned.quick import QuickModel, Trees
from advisor.learned.stack import Stack
from advisor.learned.trees import Boosting, Forest

SHIPPED = data.root("trained_models") / "runs"


def rows(columns: int, seed: int = 3) -> np.ndarray:
    """Rows inside and outside of what the model has seen, some of their values unknown."""
    model = registry._built(SHIPPED, *registry._verified(SHIPPED))
    hull = model.hull_
    part = np.flatnonzero(hull.has_rows)[0]
    # Columns that nobody watches have no ends.
    low = np.nan_to_num(hull.lows[part], posinf=-1.0, neginf=-1.0)
    high = np.nan_to_num(hull.highs[part], posinf=1.0, neginf=1.0)
    rng = np.random.default_rng(seed)
    found: np.ndarray = low + (high - low) * rng.uniform(-0.2, 1.2, (400, columns))
    found[:300] = np.clip(found[:300], low, high)
    found[100:][rng.random((300, columns)) < 0.05] = np.nan
    return found


def test_the_shipped_model_answers_alike() -> None:
    quick, *_ = registry.load(SHIPPED)
    assert isinstance(quick, QuickModel), "what ships must not need seconds of imports"
    slow = registry._built(SHIPPED, *registry._verified(SHIPPED))
    X = rows(slow.n_features_in_)
    offset = np.linspace(-1, 5, len(X))
    np.testing.assert_allclose(
        quick.predict_band(X, 0.9, offset=offset),
        slow.predict_band(X, 0.9, offset=offset),
        atol=1e-5,
    )
    np.testing.assert_allclose(quick.predict(X), slow.predict(X), atol=1e-5)
    outside = slow.is_outside(X)
    np.testing.assert_array_equal(quick.is_outside(X), outside)
    assert 0 < outside.mean() < 1


@settings(deadline=None, max_examples=15)
@given(
    depth=st.integers(1, 6), rounds=st.integers(1, 20), seed=st.integers(0, 99),
    base=st.floats(-3, 3), objective=st.sampled_from(["reg:squarederror", "reg:absoluteerror"]),
)  # fmt: skip
def test_any_booster_answers_alike(
    depth: int, rounds: int, seed: int, base: float, objective: str
) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 5))
    X[rng.random(X.shape) < 0.1] = np.nan
    model = Boosting(
        depth=depth, rounds=rounds, objective=objective, random_state=seed, calibration_folds=0
    ).fit(X, np.nan_to_num(X[:, 0]) + base)
    np.testing.assert_allclose(Trees.of(model.state()).answer(X), model.predict(X), atol=1e-5)


@settings(deadline=None, max_examples=15)
@given(
    trees=st.integers(1, 12), leaf=st.integers(1, 9), seed=st.integers(0, 99),
    is_extra=st.booleans(),
)  # fmt: skip
def test_any_forest_answers_alike(trees: int, leaf: int, seed: int, is_extra: bool) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 5)).round(1)  # many values stand exactly on a threshold
    X[rng.random(X.shape) < 0.1] = np.nan
    forest = Forest(
        trees=trees, least_leaf=leaf, is_extra=is_extra, random_state=seed, calibration_folds=0
    ).fit(X, np.nan_to_num(X[:, 0]))
    quick = Trees.of(forest.state())
    rows = np.concatenate([X, rng.normal(scale=9.0, size=(60, 5))])
    np.testing.assert_allclose(quick.answer(rows), forest.predict(rows), atol=1e-12)


def test_a_stack_of_trees_answers_alike(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 4))
    members = (("forest", Forest(trees=5)), ("boosting", Boosting(rounds=9)))
    model = Guarded(Stack(members, folds=2)).fit(
        X, X[:, 0] + X[:, 1] ** 2, groups=np.arange(80) % 4
    )
    registry.save(tmp_path / "m", model, features={}, metrics={}, card="a card")
    quick, *_ = registry.load(tmp_path / "m")
    assert isinstance(quick, QuickModel)
    assert len(quick.trees) == np.count_nonzero(model.member_.weights_)
    np.testing.assert_allclose(quick.predict(X), model.predict(X), atol=1e-5)
    about, learned = registry._verified(tmp_path / "m")
    with pytest.raises(ValueError, match="columns that no row has"):
        QuickModel.of(about["estimator"], learned, 1)


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(["sizes", "left_child", "right_child", "feature"]),
    place=st.integers(0, 2**30), value=st.integers(-3, 99),
)  # fmt: skip
def test_damaged_trees_are_refused_or_answer(name: str, place: int, value: int) -> None:
    """Nothing but ``ValueError`` comes out, and no walk goes round."""
    state = dict(a_booster())
    state[name] = state[name].copy()
    state[name][place % len(state[name])] = value
    with contextlib.suppress(ValueError):
        trees = Trees.of(state)
        assert np.isfinite(trees.answer(np.zeros((2, trees.features)))).all()


@functools.cache
def a_booster() -> dict[str, Any]:
    X = np.random.default_rng(0).normal(size=(40, 3))
    return Boosting(rounds=4, calibration_folds=0).fit(X, X[:, 0]).state()


def test_the_default_is_asked_without_scikit_learn_and_xgboost(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np\n"
        "from advisor.learned.trained import TrainedModel\n"
        f"model = TrainedModel.load(__import__('pathlib').Path({str(SHIPPED)!r}))\n"
        "model.estimator.predict(np.zeros((1, model.estimator.columns)))\n"
        "heavy = {'sklearn', 'xgboost', 'torch', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
