"""What ``advisor train`` learned from the user's own runs, on top of what ships.

It knows by how much noted runs of whole jobs left the answers that were given without any, and
shares that out to jobs and machines like theirs (``learned.pooled``), in the regions in which it
did better on jobs that were left out. A job with noted runs of its own starts from these instead.
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
from advisor.learned import PROCESSORS, Places, Residuals, alike, kind_of
from advisor.machines import model_day
from advisor.planners.core import Work
from advisor.planners.step import job_features

Integers = NDArray[np.int64]
_MOST_NAMES: Final = 3  # of runs' jobs, in one line
_CONVOLUTIONS: Final = ("convolution", "winograd", "depthwise")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModel:
    """A user's runs beside the answers, and where they are heard."""

    learned_at: str  # ISO 8601, UTC
    device_model: str  # the day of the device model whose answers they stand beside
    kept: tuple[str, ...]  # regions of ``Places``
    residuals: Residuals

    @classmethod
    def default(cls) -> OwnModel | None:
        """Return the user's; None where there is none, or of another version's answers.

        Raises ModelError if its file cannot be read.
        """
        file = data.own_runs_file(data.own_models())
        found = fitted(cls, file, train="models") if file.is_file() else None
        return found if found is not None and found.device_model == model_day() else None

    def may_correct(self, job: Job) -> bool:
        """Whether there are machines on which it is heard for the job."""
        if job.work is None or job.actuals:
            return False
        known = self.residuals.places
        return bool((np.isin(known.region, self.kept) & (known.kind == _kind(job.work))).any())

    def corrected(self, job: Job, fleet: TypeColumns, columns: TimeColumns) -> TimeColumns:
        """Return the columns with steps corrected, and intervals narrower, where it is heard."""
        rows, at = self._heard(job, fleet, columns)
        if not rows.size:
            return columns
        step_s, log_sd = columns.step_s.copy(), columns.log_sd.copy()
        error, left = self.residuals.expected(at)
        step_s[rows] *= np.exp(error)
        log_sd[rows] *= np.sqrt(left)
        before = columns.is_learned
        is_learned = np.zeros(len(step_s), bool) if before is None else before.copy()
        is_learned[rows] = True
        return replace(columns, step_s=step_s, log_sd=log_sd, is_learned=is_learned)

    def words(self, job: Job, fleet: TypeColumns, columns: TimeColumns) -> str:
        """Return the runs behind the only row's correction, in words; empty without."""
        rows, at = self._heard(job, fleet, columns)
        if not rows.size:
            return ""
        heard = alike(at, self.residuals.places)[0] > 0
        jobs = sorted(set(self.residuals.job[heard].tolist()))
        named = ", ".join(jobs[:_MOST_NAMES]) + (", ..." if len(jobs) > _MOST_NAMES else "")
        runs = counted(int(heard.sum()), "run")
        return f"{runs} of yours, of {named}, learned {self.learned_at[:10]}"

    def _heard(
        self, job: Job, fleet: TypeColumns, columns: TimeColumns
    ) -> tuple[Integers, Places]:
        rows = np.flatnonzero((columns.status == 0) & np.isfinite(columns.step_s))
        if job.work is None or not self.may_correct(job) or fleet.is_recorded:
            return rows[:0], self.residuals.places
        at = places_of_rows(job, job.work, fleet, columns.type_index[rows], columns.count[rows])
        inside = np.isin(at.region, self.kept)
        return rows[inside], at.take(inside)


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
    return Places(
        machine=np.where(is_cpu, PROCESSORS, devices.word("name")).astype(np.str_),
        architecture=np.where(is_cpu, PROCESSORS, devices.word("architecture")).astype(np.str_),
        is_several=several,
        kind=np.full(rows, _kind(work)),
        flop=np.full(rows, float((operators.flop * times).sum())),
        features=np.tile(job_features(work), (rows, 1)),
    )


def _kind(work: Work) -> str:
    flop = work.operators.flop
    total = max(float(flop.sum()), 1.0)
    kinds = np.where(np.isin(work.operators.kind, _CONVOLUTIONS), "convolution",
                     work.operators.kind)  # fmt: skip
    shares = {str(kind): float(flop[kinds == kind].sum()) / total for kind in np.unique(kinds)}
    return kind_of(shares, is_transformer=work.transformer is not None)
