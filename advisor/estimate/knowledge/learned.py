"""Corrections learned from runs, on top of physics where they cover the job.

A model covers a candidate if the known features of the job, of its profile and of the machines
lie no farther from the runs that it was fitted on than left-out programs do (``learned.quick``),
some of them on the same accelerator; the physical estimate stays everywhere else. Whether it
covers anything is asked of ``features.json`` alone: the trees themselves, and the packages that
they need, are loaded only where there is something to correct.
What real runs of the job itself say (``advisor runs actual``) stands on top of its answer
(``Predictor``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor import data
from advisor.answer import Estimate
from advisor.catalogue import Catalogue, Offers
from advisor.collectors import atomic
from advisor.estimate.time_columns import TimeColumns
from advisor.estimate.ways.beside import is_beside
from advisor.jobs import Job
from advisor.learned import (
    FEATURES,
    LEAST_ROWS,
    NAMES,
    Hull,
    RunColumns,
    as_asked,
    features_of,
    require_same,
)
from advisor.planners.core import GIB
from advisor.quantities import REACH_90
from advisor.records import Instances, Profile, machines_of, profile, record

if TYPE_CHECKING:
    from advisor.estimate.knowledge.own_model import OwnModel
    from advisor.learned import TrainedModel

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

OWN_RUNS: Final = "runs"
COST: Final = "runs_cost"  # what is asked for the cost itself
_COVERAGE: Final = 0.9


@dataclass(frozen=True)
class Learned:
    """A folder of a trained model, read as far as it is needed."""

    folder: Path
    about: dict[str, Any]  # its ``features.json``
    # of the user's own model: what answers beyond the regions in which it is kept
    shipped: Learned | None = None

    @classmethod
    def open(cls, folder: Path) -> Learned:
        """Read what a model covers.

        Raises ModelError if the folder was changed, or was fitted on other features than this
        version's.
        """
        about = features_of(folder)
        require_same(about, str(folder))
        return cls(folder, about)

    @classmethod
    def default(cls, name: str = OWN_RUNS) -> Learned | None:
        """Return the user's own model, else the one that ships; None where there is neither."""
        own, shipped = data.own_models() / name, data.root("trained_models") / name
        found = cls.open(shipped) if (shipped / "model.json").is_file() else None
        if (atomic.current_folder(own) / "model.json").is_file():
            return replace(cls.open(own), shipped=found)
        return found

    @cached_property
    def hull(self) -> Hull:
        """What the model has seen."""
        return Hull.from_record(self.about["hull"])

    @cached_property
    def model(self) -> TrainedModel:
        """The model itself."""
        from advisor.learned import TrainedModel

        return TrainedModel.load(self.folder)

    @property
    def words(self) -> str:
        """Which model it is, and of how many runs."""
        whose = "ships" if self.shipped is None else "was fitted on your runs too"
        return f"{self.folder.name} that {whose}, {self.about['records']:,} runs"

    def covers_accelerators_of(self, job: Job) -> bool:
        """Whether it may correct the job on accelerators: a user's own model may know some."""
        is_there = any(self._accelerators) and self.may_correct(job)
        return is_there or (self.shipped is not None and self.shipped.covers_accelerators_of(job))

    def may_correct(self, job: Job) -> bool:
        """Whether there is a machine on which it may correct the job."""
        known = profile(job)
        return known is not None and (
            self._covers_job(known) or (self.shipped is not None and self.shipped.may_correct(job))
        )

    def covers(self, runs: RunColumns) -> NDArray[np.bool_]:
        """Return for each run whether it lies in what was seen, shape (n,)."""
        is_outside = self.hull.is_outside(as_asked(runs.features))
        is_inside = np.isin(runs.accelerator, self._accelerators) & ~is_outside
        if (regions := self.about.get("regions")) is not None:  # of a user's own model
            from advisor.learned import places_of_runs

            nameless = np.full(len(runs), "")
            is_inside &= np.isin(places_of_runs(runs, nameless).region, regions)
        return np.asarray(is_inside)

    @property
    def _accelerators(self) -> list[str]:
        """Accelerators with runs enough, ``""`` for none."""
        seen: dict[str, int] = self.about["accelerators"]
        return [name for name, number in seen.items() if number >= LEAST_ROWS]

    def corrected(self, job: Job, catalogue: Catalogue, columns: TimeColumns) -> TimeColumns:
        """Return the columns with the steps of the candidates that are covered corrected."""
        base = columns
        if self.shipped is not None:
            base = self.shipped.corrected(job, catalogue, columns)
        rows = self._promising(job, catalogue, columns)
        if rows.size == 0:
            return base
        asked = candidate_runs(job, catalogue, columns, rows)
        inside = self.covers(asked)
        rows = rows[inside]
        if rows.size == 0:
            return base
        found = self.model.predict(asked.take(inside), _COVERAGE)
        step_s, log_sd = base.step_s.copy(), base.log_sd.copy()
        step_s[rows] = found.value / job.total_steps
        # The model's runs were all on one processor: how far another one is off comes on top.
        log_sd[rows] = np.hypot(
            np.log(found.high / found.low) / (2 * REACH_90), columns.log_sd[rows]
        )
        before = base.is_learned
        is_learned = np.zeros(len(step_s), bool) if before is None else before.copy()
        is_learned[rows] = True
        return replace(base, step_s=step_s, log_sd=log_sd, is_learned=is_learned)

    def effects(
        self, job: Job, catalogue: Catalogue, columns: TimeColumns
    ) -> list[dict[str, float]]:
        """Return for each column the factor ``effect_GROUP`` of each group of features.

        nan where the model does not cover the candidate (see ``TrainedModel.explain``).
        """
        groups = dict.fromkeys(f"effect_{f.group}" for f in FEATURES)
        found = [dict.fromkeys(groups, math.nan) for _ in columns.count]
        rows = self._promising(job, catalogue, columns)
        if not rows.size:
            return found
        asked = candidate_runs(job, catalogue, columns, rows)
        inside = self.covers(asked)
        if inside.any():
            told = self.model.explain(asked.take(inside))
            for place, row in enumerate(rows[inside].tolist()):
                found[row] = {f"effect_{g}": float(np.exp(v[place])) for g, v in told.items()}
        return found

    def _promising(self, job: Job, catalogue: Catalogue, columns: TimeColumns) -> Integers:
        """Return the rows that may be covered: looks at the job once, then at accelerators."""
        known = profile(job)
        if known is None or not self._covers_job(known):
            return np.zeros(0, dtype=np.int64)
        names = np.asarray(catalogue.types.accelerator)[columns.type_index]
        is_known = (columns.status == 0) & ~is_beside(columns)
        return np.flatnonzero(is_known & np.isin(names, self._accelerators))

    def _covers_job(self, known: Profile) -> bool:
        """Whether what is the same on all candidates lies in what was seen on some machines."""
        bare = record(
            known, Instances(provider="", instance_type="any"), record_id="any", workers=1,
            physics_s=known.anchor.time_s,
        )  # fmt: skip
        row = as_asked(RunColumns.of([bare]).features)
        shared = [i for i, f in enumerate(FEATURES)
                  if f.group not in ("job", "anchor", "series")]  # fmt: skip
        row[:, shared] = math.nan
        kinds = np.repeat(row, 4, axis=0)  # one machine or several, with accelerators or without
        kinds[1::2, NAMES.index("instances")] = math.log(2.0)
        kinds[2:, NAMES.index("accelerators")] = 1.0
        is_beyond = self.hull.is_beyond_reach(kinds, ignored=shared)
        return bool((~is_beyond & self.hull.has_rows_of(kinds)).any())


def own_model() -> OwnModel | None:
    """Return what the user's own runs taught; None without, and nothing is imported for it."""
    if not data.own_runs_file(data.own_models()).is_file():
        return None
    from advisor.estimate.knowledge.own_model import OwnModel

    return OwnModel.default()


def candidate_runs(
    job: Job, catalogue: Catalogue, columns: TimeColumns, rows: Integers,
    price_usd_per_h: float = math.nan,
) -> RunColumns:  # fmt: skip
    """Return candidates as a model is asked about them: one record, and columns of machines.

    ``rows``: at least one; ``price_usd_per_h``: of one machine, unknown by default.

    Raises ValueError if the job was not profiled on processors.
    """
    known = profile(job)
    if known is None:
        raise ValueError(f"job {job.name} was not profiled on processors")
    types, at, count = catalogue.types, columns.type_index[rows], columns.count[rows]
    physics_s = columns.step_s[rows] * job.total_steps
    first = record(
        known, machines_of(catalogue, int(at[0]), int(count[0])), record_id=str(rows[0]),
        workers=int(columns.dp[rows[0]]), physics_s=float(physics_s[0]),
    )  # fmt: skip
    vcpus, names = np.asarray(types.vcpus, float)[at], np.asarray(types.accelerator)[at]
    cards = np.maximum(np.ceil(np.nan_to_num(types.accelerator_count[at])), 1.0) * (names != "")
    network = types.network_bytes_per_s[at] * 8e-9
    network = np.where((count > 1) & (network > 0), network, math.nan)
    return RunColumns.like(
        first,
        names.tolist(),
        {
            "instances": count.astype(float),
            "accelerators": cards * count,
            "vcpus": vcpus,
            "total_vcpus": vcpus * count,
            "memory_gib": types.memory_bytes[at] / GIB,
            "network_gbit_per_s": network,
            "slowest_gbit_per_s": network,
            "price_usd_per_h": price_usd_per_h * count.astype(float),
            "workers": columns.dp[rows].astype(float),
            "threads": np.where(vcpus > 0, vcpus, 1.0),
            "analytic_time_s": physics_s,
        },
    )


def direct_cost(
    catalogue: Catalogue, job: Job, columns: TimeColumns, offers: Offers, offer: int,
    coverage: float,
) -> Estimate | None:  # fmt: skip
    """Return the cost of the whole job on the machines of the only row of the columns [USD].

    The Nazari thesis's way: with no time in between. What a job is billed follows from its time
    (``completion``); this is a second opinion beside it: a model whose label was the cost itself,
    relative to what the partial run's time would cost on the machines asked about. It answers
    where it has seen such jobs on such machines, and nowhere else; it knows the steps alone, not
    what a bill has besides (start-up, storage, a shortest bill).

    None for a job that was not profiled on processors, a machine
    without a price, and wherever the model has seen no such runs. Raises ModelError if the model's
    folder was changed, or was fitted on other features than this version's.
    """
    asked = asked_of_cost(catalogue, job, columns, float(offers.price_usd_per_h[offer]))
    if asked is None:
        return None
    model, one = asked
    found = model.model.predict(one, coverage)
    return Estimate(
        value=float(found.value[0]), low=float(found.low[0]), high=float(found.high[0]),
        coverage=coverage,
    )  # fmt: skip


def asked_of_cost(
    catalogue: Catalogue, job: Job, columns: TimeColumns, price: float
) -> tuple[Learned, RunColumns] | None:
    """Return the model of the cost and what it is asked; None where it does not cover that."""
    # Its runs know of no baseline, and of no price beyond one.
    is_bursting = catalogue.types.cpu_baseline[columns.type_index[0]] != 1.0
    if not price > 0 or is_bursting or profile(job) is None:
        return None
    model = Learned.default(COST)
    if model is None:
        return None
    asked = candidate_runs(job, catalogue, columns, np.array([0]), price)
    return (model, asked) if model.covers(asked)[0] else None
