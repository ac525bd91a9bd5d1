"""Steps that were measured of transformers in known layouts: what calibrates the layout model.

``advisor runs actual --model ... --cluster ...`` adds them to the journal (``jobs.journal``). They
need not be of the model that is asked for: machines, network and software are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from advisor.domain import from_record, to_record
from advisor.errors import UsageError
from advisor.jobs import journal
from advisor.jobs.journal import Entry
from advisor.planners.core.nouns import Layout, Precision, TrainingSetup, Transformer

PART: Final = "layout_run"
# The latest are looked at: what was measured years ago was on other software.
MOST_RUNS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRun:
    """One measured step of a transformer."""

    name: str
    transformer: Transformer
    setup: TrainingSetup
    precision: Precision
    machines: str  # as ``--cluster`` takes them, e.g. ``"2x p4d.24xlarge"``.
    layout: Layout  # all of it; its global batch is the step's
    step_s: float  # mean optimizer step [s]

    def __post_init__(self) -> None:
        if not (self.step_s > 0 and math.isfinite(self.step_s)):
            raise UsageError(
                f"the step time is out of range: {self.step_s}", hint="give seconds, e.g. 0.25"
            )

    @property
    def words(self) -> str:
        """What was measured, in words."""
        return f"{self.name} on {self.machines}: {self.step_s:g} s"


def _run(entry: Entry) -> LayoutRun:
    return from_record(LayoutRun, entry[PART], where="run", is_strict=True)


def append_layout_run(root: Path, run: LayoutRun) -> Path:
    """Add a measurement to those beside the runs in ``root``; return the file."""
    return journal.note(root, {PART: to_record(run)})


def read_layout_runs(root: Path) -> tuple[LayoutRun, ...]:
    """Return the latest measurements, the oldest first; broken lines cost no others."""
    return journal.read(root, PART, _run)[-MOST_RUNS:]


def unread_layout_runs(root: Path) -> tuple[str, ...]:
    """Return what is wrong with each line that is no measurement, by file and line."""
    return journal.unread(root, PART, _run)
