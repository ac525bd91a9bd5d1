"""The ledger of a whole job's time: every part has its name, and the time is their sum.

========================  =====================================================================
part                      what it is
========================  =====================================================================
``start_up_s``            booting, and the program's own way to its first step
``data_in_s``             bringing in data and weights
``steps_s``               training steps
``epoch_ends_s``          validation at the ends of epochs
``whole_run_s``           what whole runs take besides: evaluation, stalls, stops by hand
``checkpoints_s``         standing still for saves
``interruptions_s``       failures, removals, work done again, waits for machines
========================  =====================================================================

Answers name the parts so, without the unit (``Answer.breakdown``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from advisor.estimate.time_columns import TimeColumns
from advisor.jobs import Job
from advisor.planners.core import HOUR_S

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What the expected time of a whole job goes to, one row a candidate; nan without one [s]."""

    start_up_s: Floats
    data_in_s: Floats
    steps_s: Floats
    epoch_ends_s: Floats
    whole_run_s: Floats
    checkpoints_s: Floats
    interruptions_s: Floats

    @classmethod
    def of(
        cls, job: Job, columns: TimeColumns, *, whole_run_s: Floats | float = 0.0,
        checkpoints_s: Floats | float = 0.0, interruptions_s: Floats | float = 0.0,
    ) -> Ledger:  # fmt: skip
        """Return the ledger of a job whose steps take what the columns say."""
        step_s = columns.step_s
        zero = np.where(columns.status == 0, 0.0, np.nan)
        return cls(
            start_up_s=columns.startup_s,
            data_in_s=columns.data_in_s,
            steps_s=step_s * job.total_steps,
            epoch_ends_s=step_s * job.epochs * job.epoch_end_steps,
            whole_run_s=whole_run_s + zero,
            checkpoints_s=checkpoints_s + zero,
            interruptions_s=interruptions_s + zero,
        )

    def lasting(self, total_s: Floats, checkpoints_s: Floats) -> Ledger:
        """Return it for a time that was replayed: what is in no other part are interruptions."""
        rest = total_s - self.total_s
        saves_s = np.clip(checkpoints_s, 0.0, np.maximum(rest, 0.0))
        return replace(self, checkpoints_s=saves_s, interruptions_s=rest - saves_s)

    @property
    def total_s(self) -> Floats:
        """The whole time."""
        return reduce(np.add, (getattr(self, part.name) for part in fields(self)))

    @property
    def before_s(self) -> Floats:
        """What is over before the first step."""
        return np.asarray(self.start_up_s + self.data_in_s)

    def hours(self, row: int) -> dict[str, float]:
        """Return the parts of one row by their names [h]."""
        return {
            part.name.removesuffix("_s"): float(getattr(self, part.name)[row]) / HOUR_S
            for part in fields(self)
        }
