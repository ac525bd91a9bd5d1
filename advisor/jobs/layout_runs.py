"""Steps that were measured of transformers in known layouts: what calibrates the layout model.

``advisor runs actual --model ... --cluster ...`` adds them to ``layouts.jsonl`` beside the
recorded runs (one JSON object a line, append-only). They need not be of the model that is asked
for: the machines, the network and the software are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from advisor.domain import from_record, to_record
from advisor.errors import UsageError
from advisor.jobs.noted import NotedFile
from advisor.planners.core.nouns import Layout, Precision, TrainingSetup, Transformer

FILE_NAME: Final = "layouts.jsonl"
# The latest are looked at: what was measured years ago was on other software.
MOST_RUNS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRun:
    """One measured step of a transformer.

    Attributes
    ----------
    name : str
        Of the model, as shown.
    transformer : Transformer
    setup : TrainingSetup
    precision : Precision
    machines : str
        As ``--cluster`` takes them, e.g. ``"2x p4d.24xlarge"``.
    layout : Layout
        All of it; its global batch is the step's.
    step_s : float
        Mean optimizer step. [s]
    """

    name: str
    transformer: Transformer
    setup: TrainingSetup
    precision: Precision
    machines: str
    layout: Layout
    step_s: float

    def __post_init__(self) -> None:
        if not (self.step_s > 0 and math.isfinite(self.step_s)):
            raise UsageError(
                f"the step time is out of range: {self.step_s}", hint="give seconds, e.g. 0.25"
            )

    @property
    def words(self) -> str:
        """What was measured, in words."""
        return f"{self.name} on {self.machines}: {self.step_s:g} s"


def _run(value: Any) -> LayoutRun:
    return from_record(LayoutRun, value, where="run", is_strict=True)


_NOTED: Final = NotedFile(name=FILE_NAME, parse=_run)


def append_layout_run(root: Path, run: LayoutRun) -> Path:
    """Add a measurement to those beside the runs in ``root``; return the file."""
    return _NOTED.append(root, to_record(run))


def read_layout_runs(root: Path) -> tuple[LayoutRun, ...]:
    """Return the latest measurements, the oldest first; broken lines cost no others."""
    return _NOTED.read(root)[-MOST_RUNS:]


def unread_layout_runs(root: Path) -> tuple[str, ...]:
    """Return what is wrong with each line that is no measurement, by file and line."""
    return _NOTED.unread(root)
