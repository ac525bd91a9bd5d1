"""Every format that ``advisor runs import`` reads: its name, module and what it is."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from advisor import data
from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.records.nouns import Instances, RunRecord

_PUBLISHED: Final = "advisor.lab.data.public_runs:read_"  # tables that the laboratory reads
_READERS: Final = "advisor.records.importers."
_TRACKER: Final = f"{_READERS}trackers:read_"
# Format -> (module and its function from a path to a list of RunRecord, what it is): imported when
# it is asked for.
FORMATS: Final[dict[str, tuple[str, str]]] = {
    "records": (
        "advisor.records.files:read_own",
        "our own .jsonl or .jsonl.gz, or a folder of them",
    ),
    "journal": ("advisor.records.noted:read_journal", "journal.jsonl of advisor runs actual"),
    "minicloud": (
        "advisor.records.importers.minicloud:read_minicloud",
        "runs.jsonl(.gz) of advisor collect",
    ),
    "profet": (f"{_PUBLISHED}profet", "PROFET's anchor_*.parquet"),
    "trainpred": (
        f"{_PUBLISHED}trainpred", "cloud-hw-trainpred's nvidiasmi_devicequery_all.csv",
    ),
    "hivemind": (f"{_PUBLISHED}hivemind", "hivemind-multi-cloud's experiments, nodes and series"),
    "ibm": (f"{_PUBLISHED}ibm", "IBM's multi-cloud-configuration.csv"),
    "scout": (f"{_PUBLISHED}scout", "scout's runs.csv"),
    "trimtuner": (f"{_PUBLISHED}trimtuner", "TrimTuner's cnn.csv and rnn.csv"),
    "coastline": (f"{_PUBLISHED}coastline", "Coastline's run_database.csv"),
    "gpu-power": (
        f"{_PUBLISHED}gpu_power", "gpu_power_benchmark's mfu_aggregated_per_config_*.csv",
    ),
    "minicloud-sample": (
        "advisor.lab.data.first_trial:read_first_trial",
        "one-process runs of the first trial, .jsonl",
    ),
    "huggingface": (f"{_TRACKER}huggingface", "a Trainer's trainer_state.json with its metrics"),
    "wandb": (
        f"{_TRACKER}wandb", "Weights & Biases: offline runs (.wandb), or exported files of runs",
    ),
    "mlflow": (f"{_TRACKER}mlflow", "MLflow: an mlruns folder, or its SQLite database"),
    "tensorboard": (
        f"{_TRACKER}tensorboard", "TensorBoard: folders of event files, one run per folder",
    ),
    "trace": (f"{_READERS}profilers:read_trace", "torch.profiler: a Chrome trace, .json or .gz"),
    "nsys": (f"{_READERS}profilers:read_nsys", "Nsight Systems: what nsys stats prints, or CSV"),
    "nvidia-smi": (
        f"{_READERS}gauges:read_nvidia_smi", "nvidia-smi dmon, or --query-gpu in CSV",
    ),
    "pidstat": (f"{_READERS}gauges:read_pidstat", "sysstat's pidstat -r -u -d"),
    "log": (f"{_READERS}training_log:read_log", "a training log that says what steps took"),
    "csv": (f"{_TRACKER}table", "a CSV table with a column time_s, or W&B's; one run per row"),
}  # fmt: skip
# Formats of trackers: they know little of machines and nothing of prices, so that a user may say
# them. Their functions take ``machines`` too.
TRACKERS: Final = frozenset(
    {"huggingface", "wandb", "mlflow", "tensorboard", "csv", "trace", "nsys", "nvidia-smi",
     "pidstat", "log"}
)  # fmt: skip


def read_runs_as(name: str, path: Path, machines: Instances | None = None) -> list[RunRecord]:
    """Read the runs of a file or folder in a named format.

    ``name``: a key of ``FORMATS``; ``machines``: what the runs ran on, with its price, where the
    format (one of ``TRACKERS``) does not know.

    Raises UsageError if there is no such format or path, or the format names its machines itself.
    Raises RunError if a row makes no sense: file, row and column are named.
    """
    if name not in FORMATS:
        near = difflib.get_close_matches(name.lower(), FORMATS, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"no format named {name!r}", hint=f"{meant}one of: {', '.join(FORMATS)}")
    if not path.exists():
        raise UsageError(f"there is nothing at {path}", hint="name a file or folder")
    if machines is not None and name not in TRACKERS:
        raise UsageError(
            f"runs in the format {name!r} name their own machines and prices",
            hint="leave --machine and --price out",
        )
    module, _, function = FORMATS[name][0].partition(":")
    reader = getattr(data.laboratory(module), function)
    records: list[RunRecord] = reader(path, machines) if name in TRACKERS else reader(path)
    return records
