"""A short training run, tracked for real: with Weights & Biases, MLflow and TensorBoard.

``python tests/tracker_runs.py FOLDER`` writes what ``tests/data/trackers`` keeps; the tests of the
importers write it anew where the trackers are installed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from advisor.records.importers.wandb_log import read_log

SETTINGS: Final = {"batch_size": 64, "learning_rate": 0.1, "epochs": 3, "model": "logistic"}
STEPS: Final = 12
_STEP_S: Final = 0.25


def train() -> Iterator[tuple[int, float]]:
    """Fit a line by hand, slowly enough for a tracker to see it; yield step and loss."""
    weight = 0.0
    for step in range(STEPS):
        end = time.monotonic() + _STEP_S
        while time.monotonic() < end:  # one core is busy
            weight += 1e-6 * (1.0 - weight)
        yield step, (1.0 - weight) ** 2


def with_wandb(folder: Path) -> None:
    """Track offline: a folder ``wandb/offline-run-*`` with a ``.wandb`` file."""
    os.environ |= {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(
        mode="offline", x_stats_sampling_interval=0.5, console="off", disable_git=True,
        save_code=False, x_save_requirements=False,
    )  # fmt: skip
    run = wandb.init(project="lines", dir=str(folder), config=dict(SETTINGS), settings=settings)
    for step, loss in train():
        run.log({"loss": loss}, step=step)
    run.finish()
    # Another process writes the log: on a machine that stands still it can be behind.
    (log,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    until = time.monotonic() + 60.0
    while "state" not in read_log(log).metadata and time.monotonic() < until:
        time.sleep(0.1)


def with_mlflow(uri: str, artifacts: Path) -> None:
    """Track into a file store or a database, system metrics included."""
    os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    import mlflow

    mlflow.set_tracking_uri(uri)
    mlflow.set_system_metrics_sampling_interval(1)
    mlflow.set_system_metrics_samples_before_logging(1)
    if mlflow.get_experiment_by_name("lines") is None:
        mlflow.create_experiment("lines", artifact_location=artifacts.as_uri())
    mlflow.set_experiment("lines")
    with mlflow.start_run(run_name="line-fit", log_system_metrics=True):
        mlflow.log_params(dict(SETTINGS))
        for step, loss in train():
            mlflow.log_metric("loss", loss, step=step)


def with_tensorboard(folder: Path) -> None:
    """Write event files as TensorBoard's own writer does."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for step, loss in train():
        value = Summary.Value(tag="train/loss", simple_value=loss)
        writer.add_event(Event(step=step, wall_time=time.time(), summary=Summary(value=[value])))
    writer.close()


def write_all(folder: Path) -> None:
    """Write one run of every kind."""
    folder = folder.resolve()
    writers: dict[str, Callable[[], None]] = {
        "wandb": lambda: with_wandb(folder / "wandb"),
        "mlflow file store": lambda: with_mlflow((folder / "mlruns").as_uri(), folder / "kept"),
        "mlflow database": lambda: with_mlflow(
            f"sqlite:///{folder / 'mlflow.db'}", folder / "kept"
        ),
        "tensorboard": lambda: with_tensorboard(folder / "tensorboard" / "line-fit"),
    }
    for write in writers.values():
        write()


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
