"""The same work on this machine, on a real Dask cluster, on a real Ray cluster."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from joblib import Parallel, delayed
from typer.testing import CliRunner

from advisor.cli.program import app
from advisor.errors import ModelError, UsageError
from advisor.learned.linear import Ridge
from advisor.learned.trained import TrainedModel
from advisor.records import AnchorRun, Instances, JobFacts, RunRecord, write_records
from advisor.train.backends import workers
from advisor.train.cluster import train_on_dask
from advisor.train.folder import spread_card
from advisor.train.labelled import read_runs


def fitted() -> np.ndarray:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    y = X[:, 0] + rng.normal(0, 0.1, 60)
    model = Ridge(calibration_folds=4, n_jobs=2).fit(X, y, groups=np.arange(60) % 6)
    return model.predict_interval(X)


def test_an_unknown_backend_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no backend named 'spark'"), workers("spark"):
        pass


@pytest.fixture
def dask_cluster() -> Iterator[Any]:
    """Two workers, each a process."""
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster


@pytest.mark.frameworks
def test_a_dask_cluster_gives_the_same_model(dask_cluster: Any) -> None:
    with workers("dask", dask_cluster.scheduler_address):
        there = fitted()
    assert np.array_equal(there, fitted())


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@pytest.mark.frameworks
def test_a_dask_cluster_that_goes_away_is_one_clear_error(dask_cluster: Any) -> None:
    threading.Timer(3.0, dask_cluster.close).start()
    with (
        pytest.raises(ModelError, match=r"cluster at .* is gone"),
        workers("dask", dask_cluster.scheduler_address),
    ):
        Parallel()(delayed(nap)(1.0) for _ in range(60))


def slow_square(number: int, started: Path) -> int:
    """Say which process is at work, then take a while."""
    (started / f"{number}-{os.getpid()}").touch()
    time.sleep(0.3)
    return number * number


def squares_while_a_worker_is_killed(folder: Path) -> list[int]:
    """Kill the first worker that says it is at work, then return the answers."""

    def kill() -> None:
        while not (begun := sorted(folder.iterdir())):
            time.sleep(0.02)
        os.kill(int(begun[0].name.split("-")[1]), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    return list(Parallel(n_jobs=2)(delayed(slow_square)(n, folder) for n in range(16)))


@pytest.mark.frameworks
def test_a_dask_worker_that_is_killed_costs_its_tasks_only(
    tmp_path: Path, dask_cluster: Any
) -> None:
    with workers("dask", dask_cluster.scheduler_address):
        assert squares_while_a_worker_is_killed(tmp_path) == [n * n for n in range(16)]
    assert len(list(tmp_path.iterdir())) > 16  # what it held was begun again


@pytest.mark.frameworks
def test_a_ray_worker_that_is_killed_is_one_clear_error(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    with (
        pytest.raises(ModelError, match="or a worker of it, is gone: The actor died") as told,
        workers("ray"),
    ):
        squares_while_a_worker_is_killed(tmp_path)
    assert "\n" not in str(told.value)
    assert "repeat the command" in (told.value.hint or "")


@pytest.mark.frameworks
def test_a_ray_cluster_gives_the_same_model() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    with workers("ray"):
        there = fitted()
    assert np.array_equal(there, fitted())


def write_runs(folder: Path, files: int = 4) -> list[Path]:
    """Write runs that take 1.2 times physics on average, some programs more; in several files."""
    rng = np.random.default_rng(0)
    made: list[list[RunRecord]] = [[] for _ in range(files)]
    for program in range(20):
        over = 1.2 * math.exp(rng.normal(0, 0.05))
        for run in range(12):
            cores, anchor_s = float(rng.uniform(0.25, 2.0)), float(rng.uniform(1, 100))
            made[program % files].append(RunRecord(
                record_id=f"{program}/{run}", source="made up", time_kind="job",
                job=JobFacts(job_id=f"{program}-{run}", family=f"program-{program}",
                             facts={"batch": float(rng.integers(1, 64)), "steps": 100.0}),
                configuration=(Instances(provider="p", instance_type="m", vcpus=cores),),
                layout={"workers": 1.0, "threads": 2.0},
                time_s=over * anchor_s / min(cores, 2.0) * math.exp(rng.normal(0, 0.02)),
                anchor=AnchorRun(machines=Instances(provider="p", instance_type="c", vcpus=1.0),
                                 time_s=anchor_s, facts={"step_time_s": anchor_s / 100}),
            ))  # fmt: skip
    paths = [folder / f"part-{i}.jsonl" for i in range(files)]
    for path, records in zip(paths, made, strict=True):
        write_records(path, records)
    return paths


@pytest.mark.frameworks
def test_trees_are_grown_where_the_runs_are(tmp_path: Path, dask_cluster: Any) -> None:
    paths = write_runs(tmp_path)
    with workers("dask", dask_cluster.scheduler_address):
        model, found = train_on_dask(paths, rounds=60)
    records = read_runs(paths)
    assert model.about["records"] == len(records)
    answer = model.predict(records)
    ratio = answer.value / np.array([r.time_s for r in records], float)
    assert abs(float(np.mean(ratio)) - 1.0) < 0.05
    assert found["left_out"][0]["overall"]["mape_fraction"] < 0.1
    assert (answer.low < answer.value).all()
    assert not answer.is_extrapolating.any()
    model.save(tmp_path / "m", spread_card(model, len(paths)))
    again = TrainedModel.load(tmp_path / "m").predict(records)
    np.testing.assert_allclose(again.value, answer.value, rtol=1e-6)  # sums of 32-bit leaves


def test_runs_are_left_on_the_workers_of_dask_only() -> None:
    done = CliRunner().invoke(app, ["train", "--spread", "--data", "runs.jsonl"])
    assert isinstance(done.exception, UsageError)
    assert "needs a Dask cluster" in str(done.exception)


@pytest.mark.frameworks
def test_a_scheduler_that_is_not_there_is_one_clear_error() -> None:
    pytest.importorskip("distributed", reason="Dask is not installed")
    with pytest.raises(ModelError, match="is gone"), workers("dask", "tcp://127.0.0.1:1"):
        pass
