"""Estimators keep scikit-learn's contract and their laws: offsets, bounds, coverage, saving."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.utils.estimator_checks import parametrize_with_checks

from advisor.errors import ModelError
from advisor.lab.learned.sequence import SequenceNetwork
from advisor.learned import registry
from advisor.learned.base import RunRegressor
from advisor.learned.gaussian import GaussianProcess, _distances, _kernel, _negative_log_posterior
from advisor.learned.guarded import Guarded
from advisor.learned.intervals import Scaling, calibrate
from advisor.learned.linear import Poisson, Ridge
from advisor.learned.splits import group_folds
from advisor.learned.stack import Stack, convex_weights
from advisor.learned.trees import Boosting, Forest

Floats = NDArray[np.float64]

SMALL_STACK = Stack((("ridge", Ridge()), ("boosting", Boosting(rounds=5))), folds=2)
SMALL: dict[str, RunRegressor] = {
    "ridge": Ridge(),
    "poisson": Poisson(),
    "gp": GaussianProcess(most_rows=60),
    "forest": Forest(trees=8),
    "bagged forest": Forest(trees=8, is_extra=False),
    "boosting": Boosting(rounds=20),
    "stack": SMALL_STACK,
    "guarded": Guarded(SMALL_STACK),
    "network": SequenceNetwork(epochs=5, width=4, calibration_folds=0),
    "gru": SequenceNetwork(channels=2, readings=3, epochs=2, width=4, calibration_folds=0),
    "tcn": SequenceNetwork(
        channels=2, readings=3, epochs=2, width=4, branch="tcn", calibration_folds=0
    ),
}


def jobs(count: int = 240, groups: int = 12, seed: int = 0) -> tuple[Floats, Floats, Any]:
    """Rows of some jobs: a smooth law, an effect of the job, noise of one run."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0.5, 2.0, (count, 8))
    group = rng.integers(0, groups, count)
    effect = rng.normal(0, 0.1, groups)[group]
    y = np.log(X[:, 0]) + 0.3 * X[:, 1] ** 2 + effect + rng.normal(0, 0.05, count)
    return X, y - y.min() + 0.1, group


def checked() -> list[RunRegressor]:
    return [
        Ridge(calibration_folds=2),
        Poisson(calibration_folds=2),
        GaussianProcess(most_rows=30, calibration_folds=0),
        Forest(trees=3, calibration_folds=2),
        Boosting(rounds=30, calibration_folds=2),
    ]


@parametrize_with_checks(checked())  # type: ignore[untyped-decorator]
def test_the_contract_of_scikit_learn_is_kept(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("name", SMALL)
def test_a_saved_model_answers_the_same(name: str, tmp_path: Path) -> None:
    X, y, groups = jobs(120)
    X[::7, 3] = np.nan
    model = SMALL[name].fit(X, y, groups=groups)
    registry.save(tmp_path / "m", model, features={"names": []}, metrics={"a": 1}, card="card")
    again, features, metrics = registry.load(tmp_path / "m")
    has_boosting = name in ("boosting", "stack", "guarded")  # added up in single precision
    near = partial(np.testing.assert_allclose, atol=1e-5 if has_boosting else 0.0)
    near(model.predict(X), again.predict(X))
    if model.calibration_ is not None:
        near(model.predict_band(X, 0.8), again.predict_band(X, 0.8))
    assert (features, metrics) == ({"names": []}, {"a": 1})
    assert (tmp_path / "m" / "card.md").read_text() == "card"


@pytest.mark.parametrize("name", ["ridge", "gp", "forest", "boosting", "network"])
def test_the_same_data_and_seed_give_the_same_model(name: str) -> None:
    X, y, groups = jobs(80)
    a, b = (SMALL[name]._bare().fit(X, y, groups=groups).predict(X) for _ in range(2))
    assert np.array_equal(a, b)


@pytest.mark.parametrize("name", ["ridge", "gp", "forest", "boosting"])
def test_what_the_offset_knows_need_not_be_learned(name: str) -> None:
    X, y, groups = jobs()
    known = 7.0 * X[:, 5]
    plain = SMALL[name]._bare().fit(X, y, groups=groups)
    shifted = SMALL[name]._bare().fit(X, y + known, groups=groups, offset=known)
    assert np.allclose(shifted.predict(X, offset=known), plain.predict(X) + known, atol=1e-6)


def test_an_offset_multiplies_a_poisson_mean() -> None:
    X, y, _ = jobs()
    plain = Poisson(calibration_folds=0).fit(X, y)
    doubled = Poisson(calibration_folds=0).fit(X, 2 * y, offset=np.full(len(y), np.log(2.0)))
    assert np.allclose(doubled.predict(X, offset=np.full(len(y), np.log(2.0))),
                       2 * plain.predict(X), rtol=1e-4)  # fmt: skip


def test_intervals_hold_the_truth_of_unseen_jobs_as_often_as_they_say() -> None:
    # 40 jobs to calibrate on, 200 unseen ones: the share inside scatters by about 3 %.
    X, y, groups = jobs(2000, 40, seed=1)
    model = Ridge(calibration_folds=10).fit(X, y, groups=groups)
    inside = []
    for seed in range(200, 220):
        X2, y2, _ = jobs(100, 10, seed=seed)
        shift = y2.mean() - model.predict(X2).mean()  # ``jobs`` moves y by its minimum
        low, high = model.predict_interval(X2, 0.9).T + shift
        inside.append(np.mean((low <= y2) & (y2 <= high)))
    assert 0.84 < np.mean(inside) < 0.96


@given(st.integers(1, 30), st.floats(0.5, 0.99))
def test_equal_groups_give_the_plain_quantile(groups: int, coverage: float) -> None:
    rng = np.random.default_rng(groups)
    errors = rng.normal(size=groups * 4)
    found = calibrate(np.zeros((len(errors), 1)), errors, np.repeat(np.arange(groups), 4))
    level = min(coverage * (len(errors) + 1) / len(errors), 1.0)
    place = min(int(np.ceil(level * len(errors) - 1e-9)) - 1, len(errors) - 1)
    expected = np.sort(np.abs(errors))[max(place, 0)]
    assert found.half_width(np.zeros((1, 1)), coverage)[0] == pytest.approx(expected)


def test_a_large_job_counts_no_more_than_a_small_one() -> None:
    errors = np.concatenate([np.full(1000, 1.0), np.full(2, 5.0)])
    groups = np.concatenate([np.zeros(1000), np.ones(2)])
    found = calibrate(np.zeros((1002, 1)), errors, groups)
    assert found.half_width(np.zeros((1, 1)), 0.6)[0] == 5.0


def test_adaptive_intervals_are_wider_where_errors_are() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (600, 1))
    errors = rng.normal(size=600) * (0.1 + X[:, 0])
    found = calibrate(X, errors, np.arange(600) % 20, is_adaptive=True)
    narrow, wide = found.half_width(np.array([[0.0], [1.0]]), 0.9)
    assert wide > 2 * narrow


def test_cut_runs_count_as_bounds() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (400, 2))
    truth = 3 * X[:, 0] + rng.normal(0, 0.2, 400)
    cut = truth > 1.8
    seen = np.minimum(truth, 1.8)
    told = Ridge(calibration_folds=0).fit(X, seen, is_censored=cut).predict(X)
    untold = Ridge(calibration_folds=0).fit(X, seen).predict(X)
    dropped = Ridge(calibration_folds=0).fit(X[~cut], seen[~cut]).predict(X)
    error = np.abs(told - 3 * X[:, 0]).mean()
    assert error < 0.5 * np.abs(untold - 3 * X[:, 0]).mean()
    assert error < 0.5 * np.abs(dropped - 3 * X[:, 0]).mean()


@given(st.lists(st.integers(0, 6), min_size=2, max_size=40), st.integers(2, 8))
def test_a_fold_never_splits_a_group(groups: list[int], folds: int) -> None:
    labels = np.array(groups)
    if len(set(groups)) < 2:
        with pytest.raises(ModelError, match="only one group"):
            list(group_folds(labels, folds))
        return
    seen = []
    for train, test in group_folds(labels, folds):
        assert not set(labels[train]) & set(labels[test])
        seen += test.tolist()
    assert sorted(seen) == list(range(len(groups)))


def test_ridge_without_penalty_is_least_squares() -> None:
    X, y, _ = jobs(60)
    y = 2.0 * X[:, 0] - X[:, 4] + 1.0  # exact: no row loses weight
    model = Ridge(strengths=(1e-10,), calibration_folds=0).fit(X, y)
    assert np.allclose(model.predict(X), y, atol=1e-6)


def test_the_gradient_of_the_process_is_that_of_finite_differences() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 3)), rng.normal(size=20)
    at = np.array([-0.3, 0.2, 0.1, -1.0])
    distances, products = _distances(X, X), X @ X.T
    _, gradient = _negative_log_posterior(at, distances, products, y)
    for i in range(4):
        step = np.eye(4)[i] * 1e-5
        up, _ = _negative_log_posterior(at + step, distances, products, y)
        down, _ = _negative_log_posterior(at - step, distances, products, y)
        assert gradient[i] == pytest.approx((up - down) / 2e-5, rel=1e-4, abs=1e-6)


def test_the_process_answers_its_closed_form() -> None:
    X, y, groups = jobs(50)
    model = GaussianProcess(calibration_folds=0).fit(X, y, groups=groups)
    rows = model.rows_
    covariance = _kernel(model.log_parameters_, _distances(rows, rows), rows @ rows.T)
    noise = np.exp(model.log_parameters_[3]) + 1e-8
    weights = np.linalg.solve(covariance, (y - y.mean()) / y.std())
    mean = (covariance - noise * np.eye(50)) @ weights
    assert np.allclose(model.predict(X), y.mean() + y.std() * mean, atol=1e-6)


def test_convex_weights_find_the_better_member() -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(size=500)
    good, bad = y + rng.normal(0, 0.05, 500), rng.normal(size=500)
    weights = convex_weights(np.column_stack([bad, good]), y)
    assert weights.sum() == pytest.approx(1.0)
    assert weights[1] > 0.9


def test_convex_weights_average_equal_members() -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(size=2000)
    weights = convex_weights(y[:, None] + rng.normal(0, 0.3, (2000, 2)), y)
    assert np.allclose(weights, 0.5, atol=0.05)


def test_a_row_outside_what_was_seen_is_answered_by_physics_and_flagged() -> None:
    X, y, groups = jobs()
    known = np.log(X[:, 0])
    model = Guarded(SMALL_STACK).fit(X, y, groups=groups, offset=known)
    far = X[:5].copy()
    far[:, 0] = 50.0
    assert model.is_outside(far).all()
    assert not model.is_outside(X).any()
    physics = np.log(far[:, 0])
    assert np.allclose(model.predict(far, offset=physics), physics + np.median(y - known))
    inside = np.diff(model.predict_interval(X[:5]))
    assert np.all(np.diff(model.predict_interval(far)) >= inside - 1e-12)


@settings(max_examples=20)
@given(st.data())
def test_scaling_is_finite_whatever_it_is_given(data: st.DataObject) -> None:
    numbers = st.floats(-1e9, 1e9) | st.just(float("nan"))
    rows = data.draw(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=2, max_size=6))
    X = np.array(rows)
    assert np.isfinite(Scaling.fit(X).apply(X)).all()


def write_signed(folder: Path, about: dict[str, Any]) -> None:
    """Write a description as one who can write all files can: with a fitting hash of its own."""
    about.pop("own_sha256", None)
    about["own_sha256"] = registry._own_sha256(about)
    (folder / "model.json").write_text(json.dumps(about))


class TestBadFolders:
    """A folder that was changed, cut or belongs to other features is refused."""

    def saved(self, tmp_path: Path) -> Path:
        X, y, groups = jobs(60)
        model = Stack((("forest", Forest(trees=3)), ("boosting", Boosting(rounds=3)))).fit(
            X, y, groups=groups
        )
        registry.save(tmp_path / "m", model, features={}, metrics={}, card="a card")
        return tmp_path / "m"

    @pytest.mark.parametrize(
        "name", ["weights.npz", "features.json", "model.json", "metrics.json", "card.md"]
    )
    def test_a_changed_file_is_refused(self, tmp_path: Path, name: str) -> None:
        folder = self.saved(tmp_path)
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(bytes(content))
        with pytest.raises(ModelError, match=r"changed|cannot read"):
            registry.load(folder)

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        folder = self.saved(tmp_path)
        (folder / "weights.npz").unlink()
        with pytest.raises(ModelError, match=r"weights\.npz"):
            registry.load(folder)

    @pytest.mark.parametrize(
        ("field", "value"),
        [("format", 99), ("features_in", 3), ("estimator", {"name": "ridge", "settings": {}})],
    )
    def test_a_wrong_description_is_refused(self, tmp_path: Path, field: str, value: Any) -> None:
        folder = self.saved(tmp_path)
        about = json.loads((folder / "model.json").read_text()) | {field: value}
        write_signed(folder, about)
        with pytest.raises(ModelError):
            registry.load(folder)

    def test_a_tree_that_points_backwards_is_refused(self) -> None:
        X, y, _ = jobs(60)
        model = Forest(trees=2, calibration_folds=0).fit(X, y)
        state = model.state()
        state["left_child"] = state["left_child"].copy()
        state["left_child"][0] = 0  # the root is its own child: an endless walk
        with pytest.raises(ModelError, match="is damaged"):
            model.restore(state)

    def test_a_tree_of_another_width_is_refused(self) -> None:
        X, y, _ = jobs(60)
        model = Forest(trees=2, calibration_folds=0).fit(X, y)
        state = model.state()
        model.n_features_in_ = 1
        with pytest.raises(ModelError, match="columns that no row has"):
            model.restore(state)

    def test_arrays_that_hold_objects_are_refused(self, tmp_path: Path) -> None:
        folder = self.saved(tmp_path)
        np.savez(folder / "weights.npz", a=np.array([object()], dtype=object))
        about = json.loads((folder / "model.json").read_text())
        about["sha256"]["weights.npz"] = registry._sha256(folder / "weights.npz")
        write_signed(folder, about)
        with pytest.raises(ModelError):
            registry.load(folder)


def test_no_intervals_from_one_job_only() -> None:
    X, y, _ = jobs(40)
    model = Ridge().fit(X, y, groups=np.zeros(40))
    with pytest.raises(ValueError, match="one group"):
        model.predict_interval(X)


def test_fewer_rows_than_features_are_learned_from() -> None:
    X, y, groups = jobs(6)
    model = Ridge(calibration_folds=2).fit(X, y, groups=groups)
    assert np.isfinite(model.predict(X)).all()
