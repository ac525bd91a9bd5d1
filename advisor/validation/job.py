"""Protocol ``job``: a job is known by its steps on other GPUs; it is asked on one it was never on.

PROFET's and trainpred's networks on AWS's instances. Known of a job (a network and its images) are
its steps at any batch on the other instances, and of the collection's other jobs those on all
instances, as ``--runs`` and ``--runs-of`` take a team's table; the whole family of networks is
left out of these (every ResNet50, whatever its images), and published steps on the instance that
is asked for are left out of the product's constants (``known_jobs``). Beside it the same without
the other jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from advisor.domain import REACH_90
from advisor.errors import ModelError
from advisor.lab.data import PROFET, TRAINPRED
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
    device, family = frame["device"].to_numpy(), _families(frame)
    alone, alone_sd = left_out(table, device)
    mean, log_sd = left_out(table, device, families=family)
    rows = np.isfinite(mean)
    value, measured = np.exp(mean), np.exp(table.cells.log_throughput)
    low, high = (np.exp(mean + sign * REACH_90 * log_sd) for sign in (-1, 1))
    without = np.exp(alone)
    lowest, highest = (np.exp(alone + sign * REACH_90 * alone_sd) for sign in (-1, 1))
    simple, beside = compare(_rules(table, family), value, measured)
    suite = frame["collection"].to_numpy(str)
    labels = np.array([f"{s} on {gpu}" for s, gpu in zip(suite, frame["gpu"], strict=True)])

    def scored(mask: NDArray[np.bool_]) -> Scores:
        kept = rows & mask
        return score(value[kept], measured[kept], low=low[kept], high=high[kept])

    def scored_alone(mask: NDArray[np.bool_]) -> Scores:
        kept = rows & mask
        return score(without[kept], measured[kept], low=lowest[kept], high=highest[kept])

    everything = np.ones(len(frame), bool)
    return Validation(
        protocol="job",
        description="samples/s of a job known by its steps on other GPUs and by other jobs' there",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=(*SEEN, "five round constants of what other jobs say of a device"),
        overall=scored(everything),
        groups=[
            Group(group="other jobs unknown", scores=scored_alone(everything)),
            *[
                Group(group=f"{name}, other jobs unknown", scores=scored_alone(suite == name))
                for name in np.unique(suite)
            ],
            *[Group(group=name, scores=scored(suite == name)) for name in np.unique(suite)],
            *[Group(group=name, scores=scored(labels == name)) for name in np.unique(labels)],
        ],
        baselines=simple,
        beside=beside,
        notes=(
            "asked as `--runs TABLE --runs-of JOB`: the job's steps at every batch on the other "
            "GPUs, those of jobs of other families on all GPUs, the batch asked",
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


def _families(frame: pd.DataFrame) -> NDArray[np.str_]:
    """Return the kind of network of every row, in its collection."""
    named = zip(frame["collection"], frame["model"], strict=True)
    return np.array([f"{table}: {model.split()[1]}" for table, model in named])


def _rules(table: CellTable, families: NDArray[np.str_]) -> dict[str, Floats]:
    """Return what simpler rules make of the cells, by runs at the same batch [samples/s]."""
    frame, cells = table.frame, table.cells
    jobs = np.unique(frame["model"] + " " + frame["batch"].astype(str), return_inverse=True)[1]
    log_rate, speed = cells.log_throughput, 0.5 * np.log(cells.peak * cells.bandwidth)
    nearest, constant, linear, carried = np.full((4, len(frame)), np.nan)
    ratio = _mean_ratio(jobs, cells.device, log_rate, families)
    for device in np.unique(cells.device):
        out = cells.device == device
        slope = _slope(jobs[~out], speed[~out], log_rate[~out])
        for i in np.flatnonzero(out):
            others = np.flatnonzero(~out & (jobs == jobs[i]))
            if others.size:
                nearest[i] = log_rate[others[np.argmin(np.abs(speed[others] - speed[i]))]]
                constant[i] = log_rate[others].mean()
                linear[i] = constant[i] + slope * (speed[i] - speed[others].mean())
                ratios = [ratio(int(i), int(o)) for o in others]
                carried[i] = np.mean(log_rate[others] + ratios)
    return {
        "nearest run": np.exp(nearest),
        "mean of the runs": np.exp(constant),
        "log-linear in peak and bandwidth": np.exp(linear),
        "mean of the runs, each times the mean ratio of other jobs": np.exp(carried),
    }


def _mean_ratio(
    jobs: NDArray[np.int64], device: NDArray[np.int64], log_rate: Floats,
    families: NDArray[np.str_],
) -> Callable[[int, int], float]:  # fmt: skip
    """Return what gives ln(rate on row i's device / on row o's), of jobs of other families.

    Of those in the table of row i that ran on both at one batch; nan where none did.
    """
    rate = np.full((jobs.max() + 1, device.max() + 1), np.nan)
    rate[jobs, device] = log_rate
    family = np.empty(len(rate), families.dtype)
    family[jobs] = families
    table = np.char.partition(family, ":")[:, 0]

    def ratio(i: int, o: int) -> float:
        heard = (table == families[i].partition(":")[0]) & (family != families[i])
        found = rate[heard, device[i]] - rate[heard, device[o]]
        found = found[np.isfinite(found)]
        return float(found.mean()) if found.size else float("nan")

    return ratio


def _slope(jobs: NDArray[np.int64], x: Floats, y: Floats) -> float:
    """Return the slope of y over x that is common to all jobs, each with its own level."""
    count = np.bincount(jobs)[jobs].astype(float)
    within = [values - (np.bincount(jobs, values)[jobs] / count) for values in (x, y)]
    return float(within[0] @ within[1] / max(within[0] @ within[0], 1e-12))
