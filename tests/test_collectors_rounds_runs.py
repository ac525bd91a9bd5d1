"""Frameworks without torch's optimizers, unchanged scripts: rounds, batches, fits, total work.

Real runs of the real libraries; where one is not installed its tests are skipped, and say so.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from collecting import only_advisor, record

from advisor.collectors.format.recording import Recording, Rounds

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
]

DATA = """
import os, sys
import numpy as np
random = np.random.default_rng(0)
x = random.normal(size=(1000, 10))
y = (x[:, 0] + x[:, 1] ** 2 > 0.5).astype(int)
"""


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.setenv("PYTHONPATH", only_advisor(tmp_path))
    monkeypatch.chdir(tmp_path)


def needs(library: str) -> None:
    """Skip where a framework is not installed; finding out must not import it."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


def rounds(seen: Recording) -> Rounds:
    assert seen.rounds is not None
    assert not [text for text in seen.warnings if "hooks failed" in text]
    return seen.rounds


def steps(seen: Recording) -> int:
    """All steps of a recording that saw the script to its end."""
    assert seen.total_work is not None
    assert seen.total_work.confidence == "certain"
    return seen.total_work.steps


def output(source: str, folder: Path) -> str:
    """What the script prints when nobody records."""
    script = folder / "plain.py"
    script.write_text(source)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, env=os.environ
    )
    return done.stdout


LIGHTGBM = (
    DATA
    + """
import lightgbm
data = lightgbm.Dataset(x, y)
options = {"objective": "binary", "verbosity": -1, "num_threads": 1, "deterministic": True}
model = lightgbm.train(options, data, num_boost_round=40)
print(model.model_to_string(), file=open(os.environ.get("MODEL", os.devnull), "w"))
"""
)
XGBOOST = (
    DATA
    + """
import xgboost
model = xgboost.XGBClassifier(n_estimators=40, n_jobs=1).fit(x, y)
print(model.get_booster().get_dump(), file=open(os.environ.get("MODEL", os.devnull), "w"))
"""
)
CATBOOST = (
    DATA
    + """
import catboost
model = catboost.CatBoostClassifier(
    iterations=40, thread_count=1, verbose=0, allow_writing_files=False
)
model.fit(x, y)
print(model.predict_proba(x).tolist(), file=open(os.environ.get("MODEL", os.devnull), "w"))
"""
)
BOOSTING = pytest.mark.parametrize(
    ("library", "kind", "unit", "source"),
    [
        ("lightgbm", "LightGBM", "round", LIGHTGBM),
        ("xgboost", "XGBoost", "round", XGBOOST),
        ("catboost", "CatBoost", "iteration", CATBOOST),
    ],
    ids=["lightgbm", "xgboost", "catboost"],
)


@BOOSTING
def test_boosting_rounds_count_and_the_model_is_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    library: str,
    kind: str,
    unit: str,
    source: str,
) -> None:
    needs(library)
    monkeypatch.setenv("MODEL", str(tmp_path / "plain"))
    output(source, tmp_path)
    monkeypatch.setenv("MODEL", str(tmp_path / "recorded"))
    seen = record(tmp_path, source)
    assert (seen.exit_code, steps(seen)) == (0, 40)
    what = rounds(seen)
    assert (what.kind, what.unit, what.cores) == (kind, unit, 1.0)
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "recorded").read_bytes()


@BOOSTING
def test_a_part_of_the_rounds_says_the_whole(
    tmp_path: Path, library: str, kind: str, unit: str, source: str
) -> None:
    needs(library)
    seen = record(tmp_path, source.replace("40", "4000"), limit_steps=12)
    assert (seen.status, seen.exit_code) == ("stopped", 0)
    assert seen.total_work is not None
    assert (seen.total_work.steps, seen.total_work.confidence) == (4000, "certain")
    assert seen.total_work.source.startswith(f"{kind}: 4000 {unit}s")
    assert seen.step_time is not None
    assert seen.step_time.steps + seen.step_time.warmup_steps == 11


def test_fits_in_a_loop_multiply_and_early_stopping_is_said(tmp_path: Path) -> None:
    needs("xgboost")
    source = (
        DATA
        + """
import xgboost
for seed in range(3):
    xgboost.XGBClassifier(n_estimators=500, random_state=seed, early_stopping_rounds=400).fit(
        x, y, eval_set=[(x, y)], verbose=False
    )
"""
    )
    seen = record(tmp_path, source, limit_steps=12)
    assert seen.total_work is not None
    assert (seen.total_work.steps, seen.total_work.confidence) == (1500, "weak")
    assert "at most 500 rounds" in seen.total_work.source
    assert "range(3)" in seen.total_work.source


KERAS = """
import os
os.environ["KERAS_BACKEND"] = "{backend}"
import keras, numpy as np
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse"{compiled})
x = np.random.rand(464, 16).astype("float32")
history = model.fit(x, x.sum(1), epochs={epochs}, batch_size=16, verbose=0)
print(history.history)
"""


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_keras_batches_are_steps(tmp_path: Path, backend: str) -> None:
    needs("keras")
    needs(backend)
    seen = record(tmp_path, KERAS.format(backend=backend, epochs=3, compiled=""))
    assert (seen.exit_code, steps(seen)) == (0, 3 * 29)
    what = rounds(seen)
    assert (what.kind, what.unit) == ("Keras", "batch")
    assert seen.step_samples == 16
    assert seen.total_work is not None
    assert seen.total_work.epochs == 3
    assert seen.boundaries == 2  # the ends of two epochs are no ordinary steps
    assert what.compile_s is not None
    assert what.compile_s > 0


def test_keras_several_batches_an_execution_count_each(tmp_path: Path) -> None:
    needs("tensorflow")
    source = KERAS.format(backend="tensorflow", epochs=40, compiled=", steps_per_execution=4")
    seen = record(tmp_path, source, limit_steps=60)
    assert seen.total_work is not None
    assert (seen.total_work.steps, seen.total_work.confidence) == (40 * 29, "certain")


JAX = """
import sys
import jax, jax.numpy as jnp, optax
optimizer = optax.adam(1e-2)
def loss(weights, x, y):
    return jnp.mean((x @ weights - y) ** 2)
{decorator}
def update(weights, state, x, y):
    value, gradient = jax.value_and_grad(loss)(weights, x, y)
    change, state = optimizer.update(gradient, state)
    return optax.apply_updates(weights, change), state, value
@jax.jit
def accuracy(weights, x, y):
    return loss(weights, x, y)
x, y, weights = jnp.ones((32, 16)), jnp.ones((32, 1)), jnp.zeros((16, 1))
state = optimizer.init(weights)
for number in range(60):
    weights, state, value = update(weights, state, x, y)
    for _ in range(2):
        accuracy(weights, x, y)
print(value)
"""


@pytest.mark.parametrize("decorator", ["@jax.jit", ""], ids=["jitted", "eager"])
def test_optax_updates_are_steps_and_evaluations_are_not(tmp_path: Path, decorator: str) -> None:
    needs("jax")
    needs("optax")
    seen = record(tmp_path, JAX.format(decorator=decorator))
    assert (seen.exit_code, steps(seen)) == (0, 60)
    assert rounds(seen).kind == "JAX"


PMAP = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, jax.numpy as jnp, optax
optimizer = optax.sgd(0.1)
def update(weights, state, x):
    gradient = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(weights)
    change, state = optimizer.update(jax.lax.pmean(gradient, "devices"), state)
    return optax.apply_updates(weights, change), state
update = jax.pmap(update, axis_name="devices")
weights = jnp.stack([jnp.ones((8, 1))] * 2)
state = jax.pmap(optimizer.init)(weights)
for number in range(25):
    weights, state = update(weights, state, jnp.ones((2, 16, 8)))
"""


def test_an_update_that_is_mapped_over_devices_counts(tmp_path: Path) -> None:
    needs("jax")
    needs("optax")
    seen = record(tmp_path, PMAP)
    assert (seen.exit_code, steps(seen)) == (0, 25)
    assert rounds(seen).kind == "JAX"


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_a_cross_validation_updates_a_booster_a_fold(tmp_path: Path, library: str) -> None:
    needs(library)
    data = "lightgbm.Dataset(x, y)" if library == "lightgbm" else "xgboost.DMatrix(x, y)"
    call = f"""
import {library}
options = {{"verbosity": -1}} if "{library}" == "lightgbm" else {{"nthread": 1}}
{library}.cv(options, {data}, num_boost_round=30, nfold=3)
"""
    seen = record(tmp_path, DATA + call)
    assert (seen.exit_code, steps(seen)) == (0, 90)
    partial = record(tmp_path, DATA + call.replace("30", "3000"), limit_steps=40)
    assert partial.total_work is not None
    assert partial.total_work.steps == 9000


def test_a_jitted_update_without_optax_is_known_by_its_state(tmp_path: Path) -> None:
    needs("jax")
    source = """
import functools
import jax, jax.numpy as jnp
class Trainer:
    @functools.partial(jax.jit, static_argnums=0)
    def update(self, weights, x):
        return weights - 0.01 * jax.grad(lambda w: jnp.mean((x @ w - 1.0) ** 2))(weights)
trainer, x, weights = Trainer(), jnp.ones((32, 16)), jnp.zeros((16, 1))
for epoch in range(3):
    for batch in range(20):
        weights = trainer.update(weights, x)
"""
    seen = record(tmp_path, source)
    assert (seen.exit_code, steps(seen)) == (0, 60)
    partial = record(tmp_path, source.replace("range(3)", "range(300)"), limit_steps=30)
    assert partial.total_work is not None
    assert partial.total_work.steps == 300 * 20


ESTIMATORS = {
    "forest": ("ensemble", "RandomForestClassifier(n_estimators=30, n_jobs=2)", "tree", 30, 2.0),
    "stages": ("ensemble", "GradientBoostingClassifier(n_estimators=30)", "stage", 30, 1.0),
    "histogram": ("ensemble", "HistGradientBoostingClassifier(max_iter=30)", "iteration", 30, 1.0),
    "ada": ("ensemble", "AdaBoostClassifier(n_estimators=30)", "estimator", 30, 1.0),
    "perceptron": ("neural_network", "MLPClassifier(max_iter=30)", "epoch", 30, 1.0),
    "search": (
        "model_selection",
        "GridSearchCV(T(), {'max_depth': [2, 3, 4, 5, 6]}, cv=4)", "fit", 21, None,
    ),
    "processes": (
        "model_selection",
        "RandomizedSearchCV(T(), {'max_depth': [2, 3, 4, 5, 6]}, n_iter=9, cv=4, n_jobs=2)",
        "fit", 21, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_scikit_learn(tmp_path: Path, name: str) -> None:
    module, made, unit, count, cores = ESTIMATORS[name]
    source = (
        DATA
        + f"""
from sklearn.{module} import *
from sklearn.{module} import {made.split("(")[0]}
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier as T
{made}.fit(StandardScaler().fit_transform(x), y)
""".replace(f"from sklearn.{module} import *\n", "")
    )
    seen = record(tmp_path, source)
    assert (seen.exit_code, steps(seen)) == (0, count)
    what = rounds(seen)
    assert (what.unit, what.cores) == (unit, cores)


def test_a_search_says_its_fits_from_the_start(tmp_path: Path) -> None:
    source = (
        DATA
        + """
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV
sizes = {"max_depth": [2, 4, 6, 8], "n_estimators": [50, 100]}
GridSearchCV(RandomForestClassifier(n_jobs=1), sizes, cv=5).fit(x, y)
"""
    )
    seen = record(tmp_path, source, limit_steps=6)
    assert (seen.status, seen.exit_code) == ("stopped", 0)
    assert seen.total_work is not None
    assert (seen.total_work.steps, seen.total_work.confidence) == (41, "certain")
    assert rounds(seen).cores == 1.0  # one fit at a time, on one core


def test_whole_fits_in_a_loop_are_steps_and_single_fits_are_not(tmp_path: Path) -> None:
    loop = (
        DATA
        + """
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
x = StandardScaler().fit_transform(x)
for strength in np.logspace(-3, 3, 12):
    LogisticRegression(C=strength).fit(x, y)
"""
    )
    seen = record(tmp_path, loop)
    assert steps(seen) == 12
    assert rounds(seen).unit == "fit"
    single = record(
        tmp_path, loop[: loop.index("for strength")] + "LogisticRegression().fit(x, y)"
    )
    assert (single.step_time, single.total_work) == (None, None)


def test_torch_keeps_the_lead_over_other_rounds(tmp_path: Path) -> None:
    source = (
        DATA
        + """
import torch
from sklearn.ensemble import GradientBoostingClassifier
GradientBoostingClassifier(n_estimators=20).fit(x, y)
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(25):
    optimizer.zero_grad()
    model(torch.ones(4, 10)).sum().backward()
    optimizer.step()
GradientBoostingClassifier(n_estimators=20).fit(x, y)
"""
    )
    seen = record(tmp_path, source)
    assert seen.step_time is not None
    assert seen.step_time.clock == "optimizer"
    assert seen.rounds is None
    assert seen.total_work is not None
    assert seen.total_work.steps == 25
