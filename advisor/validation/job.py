"""Protocol ``job``: a job is known by its steps on other GPUs; it is asked on one it was never on.

PROFET's and trainpred's networks on AWS's instances. Known of a job (a network and its images) are
its steps at any batch on the other instances, as ``--runs`` takes them; the instance that is asked
for is left out with all its jobs, and so are published steps on it (``known_jobs``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from advisor.domain import REACH_90
from advisor.errors import ModelError
from advisor.measurements import PROFET, TRAINPRED
from advisor.records import RunRecord
from advisor.validation.device_cells import CellTable, cell_table
from advisor.validation.known_jobs import SEEN, left_out
from advisor.validation.scores import THE_PRODUCT, Group, Scores, Validation, compare, score

Floats = NDArray[np.float64]


def run(data: Path) -> Validation:
    """Ask for every job of both collections, of those that are under ``data``.

    Raises
    ------
    ModelError
        If neither is there.
    """
    table = cell_table(cells(data))
    frame = table.frame
    mean, log_sd = left_out(table, frame["device"].to_numpy())
    rows = np.isfinite(mean)
    value, measured = np.exp(mean), np.exp(table.cells.log_throughput)
    low, high = (np.exp(mean + sign * REACH_90 * log_sd) for sign in (-1, 1))
    simple, beside = compare(_rules(table), value, measured)
    suite = frame["collection"].to_numpy(str)
    labels = np.array([f"{s} on {gpu}" for s, gpu in zip(suite, frame["gpu"], strict=True)])

    def scored(mask: NDArray[np.bool_]) -> Scores:
        kept = rows & mask
        return score(value[kept], measured[kept], low=low[kept], high=high[kept])

    return Validation(
        protocol="job",
        description="samples/s of a job known by its steps on other GPUs, the GPU left out",
        form="none chosen",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=scored(np.ones(len(frame), bool)),
        groups=[
            *[Group(group=name, scores=scored(suite == name)) for name in np.unique(suite)],
            *[Group(group=name, scores=scored(labels == name)) for name in np.unique(labels)],
        ],
        baselines=simple,
        beside=beside,
        notes=(
            "asked as `--runs`: the job's steps at every batch on the other GPUs, the batch asked",
            "trainpred's small networks wait for their input and for Python, which runs alone do "
            "not tell from computing",
            *table.notes,
        ),
    )


def cells(data: Path) -> pd.DataFrame:
    """Return samples/s by GPU, job and batch: means of the repeats.

    Raises
    ------
    ModelError
        If neither collection is there.
    """
    found = []
    if PROFET.has("jobs", data):
        found += list(_steps("PROFET", PROFET.read_runs("jobs", data)))
    if TRAINPRED.is_in(data):
        found += list(_steps("trainpred", TRAINPRED.read_runs("epochs", data)))
    if not found:
        raise ModelError(
            f"neither {PROFET.title} nor {TRAINPRED.title} are in {data}",
            hint="lay it out like shared/data",
        )
    steps = pd.DataFrame(found).drop_duplicates()
    keys = ["collection", "gpu", "model", "batch"]
    mean = steps.groupby(keys)["step_s"].agg(["mean", "size"]).reset_index()
    mean["throughput"] = mean["batch"] / mean["mean"]
    return mean.rename(columns={"size": "count"}).assign(precision="fp32")


def _steps(collection: str, runs: list[RunRecord]) -> Iterator[dict[str, str | float]]:
    """Yield the step of every run, and of the run on the anchor beside it."""
    for run in runs:
        facts = {k: v for k, v in run.job.facts.items() if isinstance(v, float)}
        batch = facts["batch"]
        steps = np.ceil(facts.get("epoch_samples", batch) / batch)
        size = "-".join(f"{facts[n]:g}" for n in ("image_pixels", "epoch_samples") if n in facts)
        timed = [(run.configuration[0].accelerator, run.time_s)]
        if run.anchor is not None:
            timed.append((run.anchor.machines.accelerator, run.anchor.time_s))
        for gpu, seconds in timed:
            yield {
                "collection": collection, "gpu": str(gpu), "batch": batch,
                "model": f"{collection} {run.job.family} {size}",
                "step_s": float(seconds or np.nan) / steps,
            }  # fmt: skip


def _rules(table: CellTable) -> dict[str, Floats]:
    """Return what simpler rules make of the cells, by runs at the same batch [samples/s]."""
    frame, cells = table.frame, table.cells
    jobs = np.unique(frame["model"] + " " + frame["batch"].astype(str), return_inverse=True)[1]
    log_rate, speed = cells.log_throughput, 0.5 * np.log(cells.peak * cells.bandwidth)
    nearest, constant, linear = np.full((3, len(frame)), np.nan)
    for device in np.unique(cells.device):
        out = cells.device == device
        slope = _slope(jobs[~out], speed[~out], log_rate[~out])
        for i in np.flatnonzero(out):
            others = np.flatnonzero(~out & (jobs == jobs[i]))
            if others.size:
                nearest[i] = log_rate[others[np.argmin(np.abs(speed[others] - speed[i]))]]
                constant[i] = log_rate[others].mean()
                linear[i] = constant[i] + slope * (speed[i] - speed[others].mean())
    return {
        "nearest run": np.exp(nearest),
        "mean of the runs": np.exp(constant),
        "log-linear in peak and bandwidth": np.exp(linear),
    }


def _slope(jobs: NDArray[np.int64], x: Floats, y: Floats) -> float:
    """Return the slope of y over x that is common to all jobs, each with its own level."""
    count = np.bincount(jobs)[jobs].astype(float)
    within = [values - (np.bincount(jobs, values)[jobs] / count) for values in (x, y)]
    return float(within[0] @ within[1] / max(within[0] @ within[0], 1e-12))
