"""Every format that ``advisor runs import`` reads: its name, module and what it is."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.records import RunRecord

# Format -> (module in advisor.records.importers with ``read(path) -> list[RunRecord]``, what it
# is)
FORMATS: Final[dict[str, tuple[str, str]]] = {
    "records": ("own", "our own .jsonl or .jsonl.gz, or a folder of them"),
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
    "wandb": ("wandb", "Weights & Biases: summary with exported system metrics"),
    "mlflow": ("mlflow", "an MLflow run folder with system metrics"),
}


def read(name: str, path: Path) -> list[RunRecord]:
    """Read the runs of a file or folder in a named format.

    Raises
    ------
    UsageError
        If there is no such format or path.
    RunError
        If a row makes no sense: file, row and column are named.
    """
    if name not in FORMATS:
        raise UsageError(f"no format named {name!r}", hint=f"one of: {', '.join(FORMATS)}")
    if not path.exists():
        raise UsageError(f"there is no {path}", hint="name a file or folder")
    module = importlib.import_module(f"advisor.records.importers.{FORMATS[name][0]}")
    records: list[RunRecord] = module.read(path)
    return records
