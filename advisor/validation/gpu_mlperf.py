"""Protocol ``gpu-mlperf``: MLPerf's throughput per accelerator, whole accelerator types left out.

Submissions are tuned by different organisations and rounds, so that residuals belong to software
more than to devices: the rooflines stand alone, without the Gaussian process (which was tried:
13 %), and a median of many entries counts more than a single one.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from advisor.learned.device_gp import DeviceProcess
from advisor.machines.devices import suite_device
from advisor.measurements import MLPERF
from advisor.validation.device_cells import (
    Variant,
    cell_table,
    left_out,
    nested_choice,
    ratio_baselines,
)
from advisor.validation.scores import Blind, Group, Validation, score

# Tinygrad's submissions: 2 to 2.4 times slower than the boards' other software.
UNUSUAL_SOFTWARE = frozenset({"RTX-4090", "RX-7900XTX", "MI325X"})
SEEN: Final = (
    "that the process stays out and entries weigh n/(n+1): decided on this table",
    "shrinkage and noise: chosen on Lambda's",
)


def run(data: Path) -> Validation:
    """Score the rooflines on the entries under ``data``.

    Raises
    ------
    ModelError
        If the table is not there or has other columns.
    """
    table = cell_table(cells(MLPERF.read("entries", data)))
    process = DeviceProcess(has_process=False, has_step_cost=(False,))
    mean, _ = left_out(process, table, table.frame["device"].to_numpy())
    gpu = table.frame["gpu"]
    rows = np.isfinite(mean)
    predicted, measured = np.exp(mean), np.exp(table.cells.log_throughput)
    usual = rows & ~gpu.isin(UNUSUAL_SOFTWARE).to_numpy()
    plain = score(predicted[usual], measured[usual])
    simple, beside = ratio_baselines(table, mean)
    groups = []
    for name in sorted(gpu.unique()):
        mask = rows & (gpu == name).to_numpy()
        if mask.any():
            groups.append(Group(group=str(name), scores=score(predicted[mask], measured[mask])))
    return Validation(
        protocol="gpu-mlperf",
        description="samples/s per accelerator of known jobs, each accelerator type left out",
        form="chosen with these rows in sight",
        scores="DeviceProcess (advisor.learned.device_gp), which no verb asks",
        seen=SEEN,
        overall=score(predicted[rows], measured[rows]),
        groups=groups,
        baselines=simple,
        beside=beside,
        figures={
            "without boards of unusual software, median APE": plain.median_ape_fraction,
            "without boards of unusual software, MAPE": plain.mape_fraction,
        },
        notes=(
            "GPUs of stated type; TPU, IPU, Gaudi and accelerators of unknown size are not scored",
            "that the process stays out and entries weigh n/(n+1) was decided on this table",
            "no interval: rooflines without a process have none",
            *table.notes,
        ),
    )


# What was decided on this table, and what was decided against.
VARIANTS: Final = tuple(
    Variant(
        name=f"{'with' if has_process else 'without'} a process, "
        f"{'weighted' if has_weights else 'not weighted'}",
        build=partial(DeviceProcess, has_process=has_process, has_step_cost=(False,)),
        has_weights=has_weights,
    )
    for has_process in (False, True)
    for has_weights in (True, False)
)


def blind(data: Path, shipped: Validation) -> Blind:
    """Score the rooflines with what was decided on this table decided on other generations.

    Raises
    ------
    ModelError
        As ``run``.
    """
    table = cell_table(cells(MLPERF.read("entries", data)))
    mean, _, chosen = nested_choice(VARIANTS, table)
    rows = np.isfinite(mean)
    predicted, measured = np.exp(mean), np.exp(table.cells.log_throughput)
    gpu = table.frame["gpu"].to_numpy()
    return Blind(
        overall=score(predicted[rows], measured[rows]),
        groups=[
            Group(group=str(g), scores=score(predicted[mask], measured[mask]))
            for g in np.unique(gpu[rows])
            if (mask := rows & (gpu == g)).any()
        ],
        changed=(
            "the process and the weights, chosen on the other generations: "
            + ", ".join(f"{name} for {generation}" for generation, name in chosen.items()),
        ),
        still_seen=("the form of the rooflines", SEEN[1]),
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
