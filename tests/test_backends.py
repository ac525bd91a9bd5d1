"""The same work on this machine, on a real Dask cluster, on a real Ray cluster."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from joblib import Parallel, delayed

from advisor.errors import ModelError, UsageError
from advisor.models.linear import Ridge
from advisor.train.backends import workers


def fitted() -> np.ndarray:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    y = X[:, 0] + rng.normal(0, 0.1, 60)
    model = Ridge(calibration_folds=4, n_jobs=2).fit(X, y, groups=np.arange(60) % 6)
    return model.predict_interval(X)


def test_an_unknown_backend_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no backend named 'spark'"), workers("spark"):
        pass


@pytest.mark.slow
def test_a_dask_cluster_gives_the_same_model() -> None:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        workers("dask", cluster.scheduler_address),
    ):
        there = fitted()
    assert np.array_equal(there, fitted())


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@pytest.mark.slow
def test_a_dask_cluster_that_goes_away_is_one_clear_error() -> None:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    )
    threading.Timer(3.0, cluster.close).start()
    with (
        pytest.raises(ModelError, match=r"cluster at .* is gone"),
        workers("dask", cluster.scheduler_address),
    ):
        Parallel()(delayed(nap)(1.0) for _ in range(60))


@pytest.mark.slow
def test_a_ray_cluster_gives_the_same_model() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    with workers("ray"):
        there = fitted()
    assert np.array_equal(there, fitted())


def test_a_scheduler_that_is_not_there_is_one_clear_error() -> None:
    pytest.importorskip("distributed", reason="Dask is not installed")
    with pytest.raises(ModelError, match="is gone"), workers("dask", "tcp://127.0.0.1:1"):
        pass
