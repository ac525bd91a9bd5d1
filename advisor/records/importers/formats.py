"""Every format that ``advisor runs import`` reads: its name, module and what it is."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.records import Instances, RunRecord

_HERE: Final = "advisor.records.importers"
# Format -> (module and its function from a path to a list of RunRecord, what it is): imported when
# it is asked for.
FORMATS: Final[dict[str, tuple[str, str]]] = {
    "records": (f"{_HERE}.own:read", "our own .jsonl or .jsonl.gz, or a folder of them"),
    "journal": (f"{_HERE}.journal:read", "journal.jsonl of advisor runs actual"),
    "minicloud": (f"{_HERE}.minicloud:read", "runs.jsonl(.gz) of advisor collect"),
    "profet": (f"{_HERE}.profet:read", "PROFET's anchor_*.parquet"),
    "trainpred": (f"{_HERE}.trainpred:read", "cloud-hw-trainpred's nvidiasmi_devicequery_all.csv"),
    "hivemind": (f"{_HERE}.hivemind:read", "hivemind-multi-cloud's experiments, nodes and series"),
    "ibm": (f"{_HERE}.ibm:read", "IBM's multi-cloud-configuration.csv"),
    "scout": (f"{_HERE}.scout:read", "scout's runs.csv"),
    "trimtuner": (f"{_HERE}.trimtuner:read", "TrimTuner's cnn.csv and rnn.csv"),
    "coastline": (f"{_HERE}.coastline:read", "Coastline's run_database.csv"),
    "gpu-power": (
        f"{_HERE}.gpu_power:read",
        "gpu_power_benchmark's mfu_aggregated_per_config_*.csv",
    ),
    "minicloud-sample": (
        f"{_HERE}.minicloud_sample:read",
        "one-process runs of the first trial, .jsonl",
    ),
    "huggingface": (
        f"{_HERE}.huggingface:read",
        "a Trainer's trainer_state.json with its metrics",
    ),
    "wandb": (
        f"{_HERE}.wandb:read",
        "Weights & Biases: offline runs (.wandb), or exported files of runs",
    ),
    "mlflow": (f"{_HERE}.mlflow:read", "MLflow: an mlruns folder, or its SQLite database"),
    "tensorboard": (
        f"{_HERE}.tensorboard:read",
        "TensorBoard: folders of event files, a run each",
    ),
    "csv": (f"{_HERE}.table:read", "a CSV table of your own with a column time_s, a run a row"),
}
# Formats of trackers: they know little of machines and nothing of prices, so that a user may say
# them. Their functions take ``machines`` too.
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
    module, _, function = FORMATS[name][0].partition(":")
    reader = getattr(importlib.import_module(module), function)
    records: list[RunRecord] = reader(path, machines) if name in TRACKERS else reader(path)
    return records
