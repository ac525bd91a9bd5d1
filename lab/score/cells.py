"""Tables of (device, job) throughputs, and jobs that are known by their runs on other devices.

A cell is asked of the product as a user asks with ``--runs``: the runs of the same job in the same
precision on the other devices are all that it is given (``estimate.knowledge``), and the step on
the device left out, at the batch that was run there, is the answer. Of that device only its
specifications are known, and no published step on it, nor on the devices left out with it, is in
the process of the device model's errors. Where families of jobs are told, those of other families
are known by all of their runs, on the device left out too (``--runs-of``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from advisor.catalogue import Catalogue
from advisor.errors import ModelError
from advisor.estimate.case import Constants, constants
from advisor.estimate.knowledge.known import job_from_runs
from advisor.estimate.predictor import Predictor
from advisor.jobs.runs import Actual
from advisor.lab.fit.described_columns import MeasuredStep, columns
from advisor.lab.fit.device import fit_residual, parameters_of, without
from advisor.lab.fit.efficiencies import StepModel
from advisor.lab.score.asked import step_on
from advisor.machines.devices import suite_device
from advisor.planners.core.nouns import Device
from advisor.planners.core.setup import Precision
from advisor.planners.step.device_rates import unmeasured


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Measured (device, job, precision) cells as columns of shape (n,), in SI units."""

    log_throughput: np.ndarray
    device: np.ndarray
    job: np.ndarray
    precision: np.ndarray
    peak: np.ndarray
    bandwidth: np.ndarray

    @property
    def output(self) -> np.ndarray:
        """A number for each (job, precision)."""
        return np.asarray(self.job * (int(self.precision.max()) + 1) + self.precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTable:
    """The cells as columns, the frame they came from, its table, and what was left out."""

    cells: Cells
    frame: pd.DataFrame
    notes: tuple[str, ...]
    published: pd.DataFrame | None = None


def cell_table(frame: pd.DataFrame) -> CellTable:
    """Join measured cells with the specifications of their devices.

    ``frame``: columns gpu, precision, model, throughput, batch, count.

    Raises ModelError if no row has a known device, or a throughput is not positive.
    """
    bad = frame[~(frame["throughput"] > 0)]
    if len(bad):
        raise ModelError(
            f"throughput is not positive in {bad.iloc[0].to_dict()}",
            hint="correct the row or remove it",
        )
    known = frame["gpu"].map(lambda name: suite_device(name) is not None)
    unknown = sorted(frame.loc[~known, "gpu"].unique())
    frame = frame[known].reset_index(drop=True)
    if frame.empty:
        raise ModelError("no device of the table is in the device sheet", hint="add its row")
    frame["device"] = frame["gpu"]
    frame["chip"] = [chip_family(_device(name)) for name in frame["gpu"]]
    notes = (f"not in the device sheet, left out: {', '.join(unknown)}",) if unknown else ()
    return CellTable(cells=_columns(frame), frame=frame, notes=notes)


def _columns(frame: pd.DataFrame) -> Cells:
    found = [_device(name) for name in frame["gpu"]]
    precision = (frame["precision"] == "fp16").to_numpy().astype(np.int64)
    return Cells(
        log_throughput=np.log(frame["throughput"].to_numpy(float)),
        device=_codes(frame["gpu"]),
        job=_codes(frame["model"]),
        precision=precision,
        peak=np.array([_peak(d, int(p)) for d, p in zip(found, precision, strict=True)]),
        bandwidth=np.array([d.memory_bytes_per_s for d in found]),
    )


def _codes(labels: pd.Series) -> np.ndarray:
    return np.unique(labels.to_numpy(dtype=str), return_inverse=True)[1].astype(np.int64)


def _peak(device: Device, is_half_precision: int) -> float:
    """Return the peak of a framework's defaults: tensor cores for fp32 where there is TF32."""
    half = device.fp16_flop_per_s or device.bf16_flop_per_s
    single = device.tf32_flop_per_s or device.fp32_flop_per_s
    peak = (half or single) if is_half_precision else (single or half)
    if peak is None:
        raise ModelError(f"{device.name} has no peak in the device sheet", hint="add it")
    return peak


# Chip families by a board's name, the first that matches; a board of no pattern is its own.
CHIPS = (
    ("GA100", r"^A100|^A800|^A30$"), ("GH100", r"^H100|^H200|^GH200"),
    ("GB100", r"^B200|^B300|^GB200|^GB300"), ("GV100", r"^V100|TITAN-V"),
    ("TU102", r"RTX-2080-Ti|TITAN-RTX|RTX-[68]000-Turing"),
    ("TU104", r"^T4|RTX-5000-Turing|RTX-2080|RTX-2070-SUPER"),
    ("TU106", r"RTX-2070|RTX-2060"),
    ("GA104", r"RTX-3070|RTX-A4000|RTX-3060-Ti|RTX-3080-(MaxQ|Laptop|Ti-Laptop)"),
    ("GA102", r"RTX-30[89]0|RTX-A[456]\d00|^A40$|^A10G?$"),
    ("AD102", r"RTX-4090|RTX-6000-Ada|^L40"),
)  # fmt: skip


def chip_family(device: Device) -> str:
    """Return the chip on a board, the board's own name where no other carries it."""
    for chip, pattern in CHIPS:
        if re.search(pattern, device.name):
            return chip
    return device.name


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
    constants_of: Callable[[pd.Series], Constants] | None = None,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return mean and deviation of ln(throughput) of each cell, its group of devices left out.

    ``groups`` are left out together: devices, or chips. Of a job at most ``most`` runs are given,
    taken in ``order``. ``families`` are kinds of jobs in one table of runs, "table: family", all
    in one precision: jobs of the others in the table are known as well. nan where the job was run
    on no device outside the group, or is not asked for (``scored``). ``constants_of``: what is
    known without a group's devices; by default what ships, their errors not seen.
    """
    frame = table.frame
    catalogue = Catalogue.load(with_overrides=False)
    mean, log_sd = np.full((2, len(frame)), np.nan)
    asked = np.ones(len(frame), bool) if scored is None else scored
    order = np.arange(len(frame)) if order is None else order
    of_others = _of_other_families(frame, families)
    for group in np.unique(groups[asked]):
        out = groups == group
        known = (constants_of or _without)(frame["device"][out])
        asking = Predictor(catalogue, constants=known, learned=None)
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
    job = job_from_runs(
        tuple(_actual(run) for _, run in runs.iterrows()),
        asking.catalogue,
        asking.constants.device,
        name=str(cell["model"]),
        precision=_PRECISIONS.get(str(cell["precision"]), "tf32"),
        batch=_batch(cell),
        others=others,
    )
    return step_on(asking, job, unmeasured(_device(str(cell["gpu"]))))


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


def _without(gpus: pd.Series) -> Constants:
    """Return the constants without the errors that are seen on some GPUs."""
    shipped = constants()
    seen = np.isin(shipped.residual.seen.points.device, device_names(gpus))
    return replace(shipped, residual=without(shipped.residual, seen))


def device_names(gpus: pd.Series) -> list[str]:
    """Return the names of GPUs in the device sheet."""
    return sorted({_device(str(gpu)).name for gpu in gpus.unique()})


def fitted_on(steps: list[MeasuredStep]) -> Constants:
    """Return the constants, those of the device model and of its errors fitted on some steps.

    Every fit starts from the priors; spreads that were read off left-out errors are as shipped.
    """
    told = columns(steps)
    found = StepModel(told).fit(np.ones(told.log_s.size, bool))
    parameters = parameters_of(found.constants, {}, told)
    return replace(constants(), device=parameters, residual=fit_residual(steps, parameters))
