"""Every format that ``advisor runs import`` reads: its name, module and what it is."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.records import Instances, RunRecord

# Format -> (module in advisor.records.importers with ``read(path) -> list[RunRecord]``, what it
# is)
FORMATS: Final[dict[str, tuple[str, str]]] = {
    "records": ("own", "our own .jsonl or .jsonl.gz, or a folder of them"),
    "journal": ("journal", "journal.jsonl of advisor runs actual"),
    "minicloud": ("minicloud", "runs.jsonl(.gz) of advisor collect"),
    "profet": ("profet", "PROFET's anchor_*.parquet"),
    "trainpred": ("trainpred", "cloud-hw-trainpred's nvidiasmi_devicequery_all.csv"),
    "hivemind": ("hivemind", "hivemind-multi-cloud's experiments, nodes and series"),
    "ibm": ("ibm", "IBM's multi-cloud-configuration.csv"),
    "scout": ("scout", "scout's runs.csv"),
    "trimtuner": ("trimtuner", "TrimTuner's cnn.csv and rnn.csv"),
    "coastline": ("coastline", "Coastline's run_database.csv"),
    "gpu-power": ("gpu_power", "gpu_power_benchmark's mfu_aggregated_per_config_*.csv"),
    "minicloud-sample": ("minicloud_sample", "one-process runs of the first trial, .jsonl"),
    "huggingface": ("huggingface", "a Trainer's trainer_state.json with its metrics"),
    "wandb": ("wandb", "Weights & Biases: offline runs (.wandb), or exported files of runs"),
    "mlflow": ("mlflow", "MLflow: an mlruns folder, or its SQLite database"),
    "tensorboard": ("tensorboard", "TensorBoard: folders of event files, a run each"),
    "csv": ("table", "a CSV table of your own with a column time_s, a run a row"),
}
# Formats of trackers: they know little of machines and nothing of prices, so that a user may say
# them. Their modules have ``read(path, machines)``.
TRACKERS: Final = frozenset({"huggingface", "wandb", "mlflow", "tensorboard", "csv"})


def read(name: str, path: Path, machines: Instances | None = None) -> list[RunRecord]:
    """Read the runs of a file or folder in a named format.

    ``name``: a key of ``FORMATS``; ``machines``: what the runs ran on, with its price, where the
    format (one of ``TRACKERS``) does not know.

    Raises UsageError if there is no such format or path, or the format names its machines itself.
    Raises RunError if a row makes no sense: file, row and column are named.
    """
    if name not in FORMATS:
        raise UsageError(f"no format named {name!r}", hint=f"one of: {', '.join(FORMATS)}")
    if not path.exists():
        raise UsageError(f"there is nothing at {path}", hint="name a file or folder")
    if machines is not None and name not in TRACKERS:
        raise UsageError(
            f"runs in the format {name!r} name their own machines and prices",
            hint="leave --machine and --price out",
        )
    module = importlib.import_module(f"advisor.records.importers.{FORMATS[name][0]}")
    records: list[RunRecord] = (
        module.read(path, machines) if name in TRACKERS else module.read(path)
    )
    return records
