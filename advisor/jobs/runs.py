"""Real runs of recorded jobs on rented machines: measured steps, times and bills.

They stand in the journal (``jobs.journal``) and narrow the estimates of that job, or of any job
recorded from the same run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from advisor.answer import from_record, to_record
from advisor.collectors import bounded
from advisor.collectors.errors import printable
from advisor.errors import UsageError
from advisor.jobs import journal
from advisor.jobs.journal import Entry
from advisor.planners.core import Layout, Precision, TrainingSetup, Transformer
from advisor.quantities import parse_count, parse_seconds

PART: Final = "actual"
# Above all that ever ran, and far below what arithmetic on columns can hold.
_LONGEST_STEP_S: Final = 1e7
_MOST_MACHINES: Final = 10**6
_MOST_SAMPLES: Final = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Actual:
    """One measured step of a job elsewhere."""

    # the recorded run whose job it was, or the job's name in a table of several jobs' runs
    run: str
    # provider, instance_type: a type of the catalogue; or, of no provider, a type or an
    # accelerator
    provider: str
    instance_type: str
    count: int
    step_s: float  # mean optimizer step [s]
    # time_h, cost_usd: of the whole job, where it was made to its end. [h], [USD]
    time_h: float | None = None
    cost_usd: float | None = None
    batch: int | None = None  # samples of the step over all devices; the job's own where None

    def __post_init__(self) -> None:
        if not 0 < self.step_s <= _LONGEST_STEP_S:
            raise UsageError(
                f"the step time is out of range: {self.step_s:g} s", hint="give e.g. 310ms"
            )
        if not self.instance_type:
            raise UsageError("the run names no machine", hint="name the type or the accelerator")
        if not 1 <= self.count <= _MOST_MACHINES:
            raise UsageError(
                f"the number of machines is out of range: {self.count:g}",
                hint=f"give 1 to {_MOST_MACHINES:,}",
            )
        if self.batch is not None and not 1 <= self.batch <= _MOST_SAMPLES:
            raise UsageError(
                f"the batch is out of range: {self.batch:g}", hint=f"give 1 to {_MOST_SAMPLES:g}"
            )


# Of an entry, what its steps alone took and cost: its ``time_s`` is None where that is not known.
STEPS: Final = "steps"


def from_entry(entry: Entry) -> Actual:
    """Return the measured step in an entry of the journal."""
    return from_row(entry[PART])


def from_row(row: Any) -> Actual:
    """Return a measured step from its JSON form; ``ValueError`` where it is none."""
    return from_record(Actual, row, where=PART)


def append_actual(root: Path, actual: Actual, **parts: object) -> Path:
    """Note a measurement beside the runs in ``root``, with what else is known; return the file."""
    return journal.note(root, {PART: to_record(actual), **parts})


def read_actuals(root: Path, run: str) -> tuple[Actual, ...]:
    """Return the measured steps of ``run``, in the order in which they were added.

    A note of a whole job that is mostly no steps measured none. Lines that cannot be read cost no
    others: ``unread_lines`` names them.
    """
    noted = journal.journal_entries(root, PART, lambda entry: (from_entry(entry), entry))
    return tuple(
        one
        for one, entry in noted
        if one.run == run and (entry.get(STEPS) or {"time_s": 0.0})["time_s"] is not None
    )


def unread_lines(root: Path) -> tuple[str, ...]:
    """Return what is wrong with each line that is no measurement, by file and line."""
    return journal.unread(root, PART, from_entry)


def read_runs(path: Path) -> tuple[Actual, ...]:
    """Read a table of a job's runs.

    Raises UsageError if it cannot be read, has no run, or a value makes no sense; the message
    names the line.

    Parameters
    ----------
    path : Path
        CSV with the columns ``machine`` (an instance type or an accelerator) and ``step`` (a time
        with its unit, ``310ms``); ``batch``, ``count``, ``provider`` and ``job`` may be there
        too, and their empty cells mean what their absence means: the table's one job.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(bounded.csv_tables(file))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the runs {path}: {error}", hint=_RUNS_HINT) from error
    if not rows:
        raise UsageError(f"{path} has no run", hint=_RUNS_HINT)
    return tuple(_from_row(path, number, row) for number, row in enumerate(rows, start=2))


def runs_of(
    path: Path, runs: tuple[Actual, ...], name: str | None = None
) -> tuple[tuple[Actual, ...], tuple[Actual, ...]]:
    """Return the runs of the job that is asked for, and those of other jobs.

    ``path``: the table that they were read from; ``name``: the job's in the column ``job``; by
    default the rows without a name, or those of the one name that there is.

    Raises UsageError if no run has the name, or several jobs are named and none is asked for.
    """
    names = list(dict.fromkeys(one.run for one in runs))
    named = [one for one in names if one != str(path)]
    asked = name or (str(path) if str(path) in names else named[0])
    said = ", ".join(printable(one) for one in named[:_MOST_NAMES])
    said += ", ..." if len(named) > _MOST_NAMES else ""
    if asked not in names:
        raise UsageError(f"{path} has no run of a job {asked!r}", hint=f"one of: {said or 'none'}")
    if name is None and str(path) not in names and len(named) > 1:
        raise UsageError(
            f"{path} has runs of {len(named)} jobs: {said}", hint=f"say which: --runs-of {asked}"
        )
    own = tuple(one for one in runs if one.run == asked)
    return own, tuple(one for one in runs if one.run != asked)


_MOST_NAMES: Final = 8  # that a message lists
_RUNS_HINT = "a CSV with the columns machine,step,batch: g5.xlarge,310ms,32"


def _from_row(path: Path, number: int, row: dict[str, str]) -> Actual:
    try:
        machine, step = ((row[name] or "").strip() for name in ("machine", "step"))
        count, batch = ((row.get(name) or "").strip() for name in ("count", "batch"))
        return Actual(
            run=(row.get("job") or "").strip() or str(path),
            provider=(row.get("provider") or "").strip(),
            instance_type=machine,
            count=_whole(count, "count") if count else 1,
            step_s=parse_seconds(step, option="step", needs_unit=True),
            batch=_whole(batch, "batch") if batch else None,
        )
    except KeyError as error:
        raise UsageError(f"{path} has no column {error}", hint=_RUNS_HINT) from error
    except (ValueError, TypeError, UsageError) as error:
        why = printable(str(error))[:200]
        hint = getattr(error, "hint", None) or _RUNS_HINT
        raise UsageError(f"{path}, line {number}: {why}", hint=hint) from error


def _whole(text: str, name: str) -> int:
    number = parse_count(text, option=name)
    if not number.is_integer():
        raise UsageError(f"{name}: {text} is not a whole number", hint="write e.g. 32")
    return int(number)


# Steps that were measured of transformers in known layouts: what calibrates the layout model.
#
# ``advisor runs actual --model ... --cluster ...`` adds them to the journal (``jobs.journal``).
# They need not be of the model that is asked for: machines, network and software are the same.


LAYOUT_RUNS_PART: Final = "layout_run"
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
    return from_record(LayoutRun, entry[LAYOUT_RUNS_PART], where="run", is_strict=True)


def append_layout_run(root: Path, run: LayoutRun) -> Path:
    """Add a measurement to those beside the runs in ``root``; return the file."""
    return journal.note(root, {LAYOUT_RUNS_PART: to_record(run)})


def read_layout_runs(root: Path) -> tuple[LayoutRun, ...]:
    """Return the latest measurements, the oldest first; broken lines cost no others."""
    return journal.journal_entries(root, LAYOUT_RUNS_PART, _run)[-MOST_RUNS:]


def unread_layout_runs(root: Path) -> tuple[str, ...]:
    """Return what is wrong with each line that is no measurement, by file and line."""
    return journal.unread(root, LAYOUT_RUNS_PART, _run)
