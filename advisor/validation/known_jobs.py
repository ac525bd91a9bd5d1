"""Jobs that are known by their runs on other devices, asked as a user asks (``--runs``).

Every cell of a table is asked of the product: the runs of the same job in the same precision on
the other devices are all that it is given (``predict.known_job``), and the step on the device left
out, at the batch that was run there, is the answer. Of that device only its specifications are
known, and no published step on it, nor on the devices left out with it, is in the process of the
device model's errors. Where families of jobs are told, those of other families are known by all of
their runs, on the device left out too (``--runs-of``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from advisor.catalogue import Catalogue
from advisor.jobs.actuals import Actual
from advisor.machines.devices import suite_device
from advisor.machines.fleet import lone_fleet
from advisor.planners.core.nouns import Device, Precision
from advisor.planners.step.device_rates import unmeasured
from advisor.predict import Predictor
from advisor.predict.known_job import job_from_runs
from advisor.train.residual_fit import without
from advisor.validation.device_cells import CellTable
from advisor.ways.constants import Constants, constants

Floats = NDArray[np.float64]
# What a framework does where fp32 is asked: TF32 where the chip has it.
_PRECISIONS: Final[dict[str, Precision]] = {"fp16": "fp16"}
SEEN: Final = (
    "the usual shares of a step that is known by runs, and what few runs leave open",
    "the constants of the device model: fitted on some rows of these suites among others",
)


def left_out(
    table: CellTable, groups: NDArray[np.str_], scored: NDArray[np.bool_] | None = None,
    most: int | None = None, order: NDArray[np.int64] | None = None,
    families: NDArray[np.str_] | None = None,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return mean and deviation of ln(throughput) of each cell, its group of devices left out.

    Parameters
    ----------
    table : CellTable
    groups : array of shape (n,)
        What is left out together: devices, or chips.
    scored : mask of shape (n,), optional
        Cells that are asked for; all by default.
    most : int, optional
        Runs that are given of a job at most; all by default.
    order : permutation of shape (n,), optional
        In which they are taken.
    families : array of shape (n,), optional
        Kinds of jobs in one table of runs, "table: family", all in one precision: jobs of the
        others in the table are known as well.

    Returns
    -------
    mean, log_sd : arrays of shape (n,)
        nan where the job was run on no device outside the group, or is not asked for.
    """
    frame = table.frame
    catalogue = Catalogue.load(with_overrides=False)
    mean, log_sd = np.full((2, len(frame)), np.nan)
    asked = np.ones(len(frame), bool) if scored is None else scored
    order = np.arange(len(frame)) if order is None else order
    of_others = _of_other_families(frame, families)
    for group in np.unique(groups[asked]):
        out = groups == group
        asking = Predictor(
            catalogue, constants=_without(constants(), frame["device"][out]), learned=None
        )
        for i in np.flatnonzero(out & asked):
            cell = frame.iloc[i]
            same = (frame["model"] == cell["model"]) & (frame["precision"] == cell["precision"])
            given = order[(same & ~out).to_numpy()[order]][:most]
            runs = frame.iloc[np.sort(given)]
            if len(runs):
                others = of_others.get("" if families is None else str(families[i]), ())
                step_s, log_sd[i] = ask(asking, runs, cell, others)
                mean[i] = np.log(_batch(cell) / step_s)
    return mean, log_sd


def _of_other_families(
    frame: pd.DataFrame, families: NDArray[np.str_] | None
) -> dict[str, tuple[Actual, ...]]:
    """Return, for each family, the runs of the jobs of other families in its table."""
    if families is None:
        return {}
    runs = [_actual(run) for _, run in frame.iterrows()]
    table = np.char.partition(families, ":")[:, 0]
    found = {}
    for family in np.unique(families):
        others = (table == family.partition(":")[0]) & (families != family)
        found[str(family)] = tuple(runs[i] for i in np.flatnonzero(others))
    return found


def ask(
    asking: Predictor, runs: pd.DataFrame, cell: pd.Series, others: tuple[Actual, ...] = ()
) -> tuple[float, float]:
    """Return the step on a cell's device, known the runs, and its deviation of logarithms."""
    device = _device(str(cell["gpu"]))
    job = job_from_runs(
        tuple(_actual(run) for _, run in runs.iterrows()),
        asking.catalogue,
        asking.constants.device,
        name=str(cell["model"]),
        precision=_PRECISIONS.get(str(cell["precision"]), "tf32"),
        batch=_batch(cell),
        others=others,
    )
    columns = asking.step_columns(
        job,
        np.array([0]),
        np.array([1]),
        fleet=lone_fleet(unmeasured(device), 1, asking.catalogue.accelerators.get(device.name)),
    )
    return float(columns.step_s[0]), float(columns.log_sd[0])


def _actual(run: pd.Series) -> Actual:
    batch = _batch(run)
    return Actual(
        run=str(run["model"]),
        provider="",
        instance_type=_device(str(run["gpu"])).name,
        count=1,
        step_s=batch / float(run["throughput"]),
        batch=batch,
    )


def _batch(cell: pd.Series) -> int:
    batch = float(cell["batch"])
    return max(int(batch), 1) if np.isfinite(batch) else 1


def _device(name: str) -> Device:
    return cast(Device, suite_device(name))  # ``cell_table`` has left out what is unknown


def _without(known: Constants, gpus: pd.Series) -> Constants:
    names = [_device(str(gpu)).name for gpu in gpus.unique()]
    seen = np.isin(known.residual.seen.points.device, names)
    return replace(known, residual=without(known.residual, seen))
