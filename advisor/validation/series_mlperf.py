"""Protocol ``series-mlperf``: a job is known by its run on a small system; larger ones are asked.

Pairs of MLPerf's submissions of one round, organisation, benchmark and accelerator. The smallest
system's step is all that is known (``--runs`` with ``machine,count,step,batch``); each larger one
is asked of ``Predictor.step_columns`` at the batch that was submitted. Systems with fewer samples
than accelerators are not asked, since what nothing is known of is taken to train data parallel,
nor is one accelerator the smallest system: that says nothing of several.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from advisor.domain import REACH_90
from advisor.errors import ModelError
from advisor.jobs.actuals import Actual
from advisor.lab.data import MLPERF
from advisor.machines.devices import suite_device
from advisor.machines.fleet import lone_fleet
from advisor.planners.core.nouns import Device
from advisor.planners.step.device_rates import unmeasured
from advisor.predict.known_job import job_from_runs
from advisor.validation.asked_layouts import predictor
from advisor.validation.scores import THE_PRODUCT, Group, Scores, Validation, compare, score

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
_COLUMNS: Final = ("accelerators", "global_batch", "samples_per_s")
SERIES: Final = ["round", "organisation", "benchmark", "accelerator"]
BANDS: Final = ((1, 2), (2, 4), (4, 8), (8, 32), (32, np.inf))
SEEN: Final = (
    "how much wider an interval is a doubling of the accelerators",
    "the usual shares of a step that is known by runs: chosen on Lambda's suite",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One submission.

    Attributes
    ----------
    device : Device
    accelerators, batch : int
        Of the whole system; samples of a step.
    samples_per_s : float
    """

    device: Device
    accelerators: int
    batch: int
    samples_per_s: float

    @property
    def step_s(self) -> float:
        """What a step took [s]."""
        return self.batch / self.samples_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The smallest system of a series, and one of its larger ones."""

    benchmark: str
    small: System
    large: System

    @property
    def growth(self) -> float:
        """Times as many accelerators."""
        return self.large.accelerators / self.small.accelerators


def run(data: Path) -> Validation:
    """Ask for the larger systems of the entries under ``data``.

    Raises
    ------
    ModelError
        If the table is missing, lacks a column or holds no series.
    """
    pairs = list(read_pairs(MLPERF.read("entries", data)))
    if not pairs:
        raise ModelError(f"{MLPERF.title} under {data} hold no series of two sizes")
    value, log_sd = np.array([ask(pair) for pair in pairs]).T
    width = np.exp(REACH_90 * log_sd)
    measured = np.array([pair.large.samples_per_s for pair in pairs])
    names, growth = np.array([p.benchmark for p in pairs]), np.array([p.growth for p in pairs])
    simple, beside = compare(_rules(pairs), value, measured)

    def scored(rows: NDArray[np.bool_]) -> Scores:
        return score(
            value[rows],
            measured[rows],
            low=(value / width)[rows],
            high=(value * width)[rows],
        )

    return Validation(
        protocol="series-mlperf",
        description="samples/s of a larger system, known one run of the job on the smallest",
        form="chosen with these rows in sight",
        scores=THE_PRODUCT,
        seen=SEEN,
        overall=scored(np.ones(len(pairs), bool)),
        groups=[
            *[Group(group=str(name), scores=scored(names == name)) for name in np.unique(names)],
            *[
                Group(group=f"size x {least:g} to {most:g}", scores=scored(rows))
                for least, most in BANDS
                if (rows := (growth > least) & (growth <= most)).any()
            ],
        ],
        baselines=simple,
        beside=beside,
        notes=(
            "closed division; asked as `--runs`: nothing is known of the job but one run",
            "not asked: fewer samples than accelerators, one accelerator as the smallest system, "
            "and accelerators without specifications",
        ),
    )


def read_pairs(table: pd.DataFrame) -> Iterator[Pair]:
    """Yield the smallest system of each series with every larger one."""
    table = table[table.division.isna() | (table.division == "closed")]
    table = table[(table[list(_COLUMNS)] > 0).all(axis=1)]
    for (_, _, benchmark, accelerator), series in table.sort_values("accelerators").groupby(
        SERIES
    ):
        device = suite_device(str(accelerator))
        if device is None:
            continue
        systems = [
            System(
                device=device,
                accelerators=int(accelerators),
                batch=int(batch),
                samples_per_s=float(rate),
            )
            for accelerators, batch, rate in series[list(_COLUMNS)].to_numpy(float)
        ]
        systems = [s for s in systems if s.batch >= s.accelerators > 1]
        for large in systems[1:]:
            if large.accelerators > systems[0].accelerators:
                yield Pair(benchmark=str(benchmark), small=systems[0], large=large)


def ask(pair: Pair) -> tuple[float, float]:
    """Return the product's samples/s of the larger system, and the deviation of its logarithm."""
    asking, device = predictor(), pair.large.device
    job = job_from_runs(
        (_noted(pair.small),), asking.catalogue, asking.constants.device, name="j",
        precision="bf16", batch=pair.large.batch,
    )  # fmt: skip
    fleet = lone_fleet(
        unmeasured(device), pair.large.accelerators, asking.catalogue.accelerators.get(device.name)
    )
    columns = asking.step_columns(job, np.array([0]), np.array([1]), fleet=fleet)
    return pair.large.batch / float(columns.step_s[0]), float(columns.log_sd[0])


def _noted(system: System) -> Actual:
    return Actual(
        run="j",
        provider="",
        instance_type=system.device.name,
        count=system.accelerators,
        step_s=system.step_s,
        batch=system.batch,
    )


def _rules(pairs: list[Pair]) -> dict[str, Floats]:
    """Return what simpler rules make of the larger systems [samples/s]."""
    small = np.array([pair.small.samples_per_s for pair in pairs])
    names = np.array([pair.benchmark for pair in pairs])
    growth = np.log([pair.growth for pair in pairs])
    gained = np.log([pair.large.samples_per_s for pair in pairs]) - np.log(small)
    power = np.full(len(pairs), np.nan)
    for name in np.unique(names):
        out = names == name
        if not out.all():
            power[out] = growth[~out] @ gained[~out] / (growth[~out] @ growth[~out])
    return {
        "linear": small * np.exp(growth),
        "one power of the size, other benchmarks'": small * np.exp(power * growth),
        "the small system's": small,
    }
