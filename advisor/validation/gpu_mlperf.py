"""Protocol ``gpu-mlperf``: MLPerf's throughput per accelerator, whole accelerator types left out.

Submissions are tuned by different organisations and rounds, so that errors belong to software more
than to devices. Every cell is asked of the product as a job that is known by its runs on the other
accelerators (``known_jobs``).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from advisor.domain import REACH_90
from advisor.lab.data import MLPERF
from advisor.machines.devices import suite_device
from advisor.validation.device_cells import cell_table, ratio_baselines
from advisor.validation.known_jobs import SEEN, left_out
from advisor.validation.scores import THE_PRODUCT, Group, Scores, Validation, score

# Tinygrad's submissions: 2 to 2.4 times slower than the boards' other software.
UNUSUAL_SOFTWARE = frozenset({"RTX-4090", "RX-7900XTX", "MI325X"})


def run(data: Path) -> Validation:
    """Ask the product for every cell of the entries under ``data``, its accelerator left out.

    Raises
    ------
    ModelError
        If the table is not there or has other columns.
    """
    table = cell_table(cells(MLPERF.read("entries", data)))
    mean, sd = left_out(table, table.frame["device"].to_numpy())
    gpu = table.frame["gpu"]
    rows = np.isfinite(mean)
    predicted, measured = np.exp(mean), np.exp(table.cells.log_throughput)
    low, high = (np.exp(mean + sign * REACH_90 * sd) for sign in (-1, 1))

    def scored(mask: np.ndarray) -> Scores:
        return score(predicted[mask], measured[mask], low=low[mask], high=high[mask])

    plain = scored(rows & ~gpu.isin(UNUSUAL_SOFTWARE).to_numpy())
    simple, beside = ratio_baselines(table, mean)
    groups = []
    for name in sorted(gpu.unique()):
        mask = rows & (gpu == name).to_numpy()
        if mask.any():
            groups.append(Group(group=str(name), scores=scored(mask)))
    return Validation(
        protocol="gpu-mlperf",
        description="samples/s per accelerator of known jobs, each accelerator type left out",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=scored(rows),
        groups=groups,
        baselines=simple,
        beside=beside,
        figures={
            "without boards of unusual software, median APE": plain.median_ape_fraction,
            "without boards of unusual software, MAPE": plain.mape_fraction,
        },
        notes=(
            "GPUs of stated type; TPU, IPU, Gaudi and accelerators of unknown size are not scored",
            "asked as `--runs`: the same job's steps on the other accelerators",
            *table.notes,
        ),
    )


def cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the median throughput per accelerator of small systems by (accelerator, model).

    Parameters
    ----------
    rows : DataFrame
        ``measurements.MLPERF``'s entries.
    """
    rows = rows[
        (rows["division"] == "closed")
        & rows["accelerators"].between(2, 16)
        & (rows["samples_per_s_per_accelerator"] > 0)
    ]
    rows = rows.assign(batch=rows["global_batch"] / rows["accelerators"])
    found = rows.groupby(["accelerator", "model"]).agg(
        throughput=("samples_per_s_per_accelerator", "median"),
        batch=("batch", "median"),
        count=("samples_per_s_per_accelerator", "size"),
    )
    found = found.reset_index().rename(columns={"accelerator": "gpu"}).assign(precision="fp16")
    return found[[_is_gpu(name) for name in found["gpu"]]].reset_index(drop=True)


def _is_gpu(name: str) -> bool:
    device = suite_device(name)
    return "?" not in name and (device is None or device.kind == "gpu")
