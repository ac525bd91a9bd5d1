"""MLPerf Training: throughput of every published submission, v0.5 to v5.1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from advisor.measurements.dataset import Dataset, Upstream
from advisor.measurements.table import PublishedTable

if TYPE_CHECKING:
    import pandas as pd

_ROUNDS: Final = {
    "v0.5": "c71f2e7c", "v0.6": "f312518c", "v0.7": "0a8a85a2", "v1.0": "50619b5d",
    "v1.1": "ebe92f81", "v2.0": "8437fbb7", "v2.1": "158189d4", "v3.0": "63e326c4",
    "v3.1": "d06288b2", "v4.0": "6fe95437", "v4.1": "b87b9e39", "v5.0": "0fdc28f0",
    "v5.1": "441d65f4",
}  # fmt: skip
_COLUMNS: Final = {
    "round": "round",
    "organisation": "org",
    "system": "system",
    "benchmark": "benchmark",
    "model": "model",
    "division": "division",
    "accelerator": "accelerator",
    "accelerators": "n_accelerators",
    "global_batch": "global_batch_size",
    "samples_per_s": "samples_per_s",
    "samples_per_s_per_accelerator": "samples_per_s_per_acc",
}


def _tidy(rows: pd.DataFrame) -> pd.DataFrame:
    """Leave out the repetitions of an earlier entry."""
    return rows[rows["duplicate_of"].isna()]


MLPERF: Final = Dataset(
    name="mlperf",
    title="MLPerf Training's results",
    upstream=tuple(
        Upstream(repository=f"mlcommons/training_results_{name}", commit=commit)
        for name, commit in _ROUNDS.items()
    ),
    licence="Apache-2.0",
    ships=True,
    tables={
        "entries": PublishedTable(
            file="mlperf/entries.csv.gz",
            published="measurements/mlperf/mlperf_entries.csv",
            columns=_COLUMNS | {"duplicate_of": "dup_of"},
            form=tuple(_COLUMNS),
            optional=frozenset({"model", "system", "division", "dup_of", "samples_per_s_per_acc"}),
            tidy=_tidy,
            tell=frozenset({"accelerator", "model", "samples_per_s_per_acc", "division"}),
        )
    },
)
