"""What ``advisor train`` learned from the user's own runs, on top of what ships.

It knows by how much noted runs of whole jobs left the answers that were given without any, and
shares that out to jobs and machines like theirs (``learned.pooled``), in the regions in which it
did better on runs that were left out (``learned.regions``). A job with noted runs of its own
starts from these instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor import data
from advisor.answer import fitted
from advisor.catalogue import TypeColumns
from advisor.collectors.errors import counted
from advisor.estimate.time_columns import TimeColumns
from advisor.jobs import Job
from advisor.learned import PROCESSORS, Lessons, Places, alike, kind_of
from advisor.machines import model_day
from advisor.planners.core import GIB, Work
from advisor.planners.step import job_features
from advisor.records import program_of

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
OWN_SCHEMA: Final = 2
_MOST_NAMES: Final = 3  # of runs' jobs, in one line
_CONVOLUTIONS: Final = ("convolution", "winograd", "depthwise")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModel:
    """A user's runs beside the answers, and where they are heard."""

    learned_at: str  # ISO 8601, UTC
    device_model: str  # the day of the device model whose answers they stand beside
    lessons: Lessons

    @classmethod
    def default(cls) -> OwnModel | None:
        """Return the user's; None where there is none, or of another version's answers.

        Raises ModelError if its file cannot be read.
        """
        file = data.own_runs_file(data.own_models())
        if not file.is_file():
            return None
        found = fitted(cls, file, train="models", version=OWN_SCHEMA)
        return found if found.device_model == model_day() else None

    def may_correct(self, job: Job) -> bool:
        """Whether there are machines on which it is heard for the job."""
        if job.work is None or job.actuals:
            return False
        known = self.lessons.residuals.places
        kept = [one.region for one in self.lessons.kept]
        is_of_kind = np.isin(known.region, kept) & (known.kind == _kind(job.work))
        return bool((is_of_kind | (known.job == program_of(job.name))).any())

    def corrected(self, job: Job, fleet: TypeColumns, columns: TimeColumns) -> TimeColumns:
        """Return the columns with steps corrected, and intervals narrower, where it is heard."""
        rows, _, error, spread = self._heard(job, fleet, columns)
        if not rows.size:
            return columns
        step_s, log_sd = columns.step_s.copy(), columns.log_sd.copy()
        step_s[rows] *= np.exp(error)
        log_sd[rows] *= spread
        before = columns.is_learned
        is_learned = np.zeros(len(step_s), bool) if before is None else before.copy()
        is_learned[rows] = True
        return replace(columns, step_s=step_s, log_sd=log_sd, is_learned=is_learned)

    def words(self, job: Job, fleet: TypeColumns, columns: TimeColumns) -> str:
        """Return the runs behind the only row's correction, in words; empty without."""
        rows, at, _, _ = self._heard(job, fleet, columns)
        if not rows.size:
            return ""
        known = self.lessons.residuals.places
        heard = alike(at, known)[0] > 0
        jobs = sorted(set(known.job[heard].tolist()))
        named = ", ".join(jobs[:_MOST_NAMES]) + (", ..." if len(jobs) > _MOST_NAMES else "")
        runs = counted(int(heard.sum()), "run")
        return f"{runs} of yours, of {named}, learned {self.learned_at[:10]}"

    def _heard(
        self, job: Job, fleet: TypeColumns, columns: TimeColumns
    ) -> tuple[Integers, Places, Floats, Floats]:
        """Return rows that are corrected, where they are, the errors, and what is left of them."""
        rows = np.flatnonzero((columns.status == 0) & np.isfinite(columns.step_s))
        if job.work is None or not self.may_correct(job) or fleet.is_recorded:
            return rows[:0], self.lessons.residuals.places, np.zeros(0), np.zeros(0)
        at = places_of_rows(job, job.work, fleet, columns.type_index[rows], columns.count[rows])
        error, spread, heard = self.lessons.expected(at)
        return rows[heard], at.take(heard), error[heard], spread[heard]


def places_of_rows(
    job: Job, work: Work, fleet: TypeColumns, type_index: Integers, count: Integers
) -> Places:
    """Return a job with steps on machines of a fleet, rows aligned; devices are known."""
    devices = fleet.devices.take(fleet.device[type_index])
    is_cpu = devices.word("kind") == "cpu"
    several = np.where(is_cpu, count, count * fleet.per_node[type_index]) > 1
    rows = len(type_index)
    operators = work.operators
    times = np.where(operators.is_update, 1.0, job.global_batch / work.micro_batch)
    # beside an accelerator cores and memory say little
    cores = np.where(is_cpu, count * fleet.vcpus[type_index], 1.0)
    memory = np.where(is_cpu, fleet.memory_bytes[type_index] / GIB, 1.0)
    has = np.c_[np.full(rows, job.global_batch), count, cores, memory]
    return Places(
        job=np.full(rows, program_of(job.name)),
        machine=np.where(is_cpu, PROCESSORS, devices.word("name")).astype(np.str_),
        architecture=np.where(is_cpu, PROCESSORS, devices.word("architecture")).astype(np.str_),
        is_several=several,
        kind=np.full(rows, _kind(work)),
        flop=np.full(rows, float((operators.flop * times).sum())),
        features=np.tile(job_features(work), (rows, 1)),
        amounts=np.log(np.where(has > 0, has, 1.0)),
    )


def _kind(work: Work) -> str:
    flop = work.operators.flop
    total = max(float(flop.sum()), 1.0)
    kinds = np.where(np.isin(work.operators.kind, _CONVOLUTIONS), "convolution",
                     work.operators.kind)  # fmt: skip
    shares = {str(kind): float(flop[kinds == kind].sum()) / total for kind in np.unique(kinds)}
    return kind_of(shares, is_transformer=work.transformer is not None)
