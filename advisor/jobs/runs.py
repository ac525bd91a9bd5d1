"""Real runs of jobs on rented machines, and the journal that keeps them beside the recorded runs.

They narrow the estimates of that job, or of any job recorded from the same run; steps of
transformers in known layouts calibrate the layout model, whichever model is asked for: machines,
network and software are the same.

``advisor runs actual`` adds one JSON object a line to ``journal.jsonl``, in one write. Its parts
are what was measured (``actual``) with what had been predicted (``predicted``) and what ``advisor
train`` learns from (``record``, without time and cost, which are those of ``actual``); or a
transformer's step in a known layout (``layout_run``). Everything else is derived when it is read.
What earlier versions kept in several files becomes the journal when it is first looked for; those
files stay.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from advisor.answer import from_record, to_record
from advisor.collectors import atomic, bounded
from advisor.collectors.errors import printable
from advisor.errors import UsageError
from advisor.planners.core import Layout, Precision, TrainingSetup, Transformer
from advisor.quantities import parse_count, parse_seconds

FILE_NAME: Final = "journal.jsonl"
SCHEMA_VERSION: Final = 1
# File of an earlier version -> the part that each of its lines is.
EARLIER: Final = {
    "actuals.jsonl": "actual",
    "layouts.jsonl": "layout_run",
    "comparisons.jsonl": "comparison",
    "records.jsonl": "record",
}
Entry = Mapping[str, Any]
Part = TypeVar("Part")


def note(folder: Path, parts: Mapping[str, object], *, now: datetime | None = None) -> Path:
    """Add an entry of these parts to the journal in ``folder``; return its file.

    Raises OSError if it cannot be written; the file is as before then.
    """
    path = folder / FILE_NAME
    if not path.exists() and (earlier := _earlier(folder)):
        _create(path, earlier)
    noted_at = (now or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds")
    entry = {"schema_version": SCHEMA_VERSION, "noted_at": noted_at, **parts}
    atomic.append_line(path, json.dumps(entry).encode() + b"\n")
    return path


def journal_entries(folder: Path, part: str, parse: Callable[[Entry], Part]) -> tuple[Part, ...]:
    """Return the entries that have ``part``, in the order in which they were added.

    Parameters
    ----------
    parse : callable
        From an entry; raises ``ValueError``, ``KeyError``, ``TypeError`` or ``UsageError`` where
        it is none. A line that cannot be read costs no other.
    """
    return tuple(found for found, _ in _parsed(folder, part, parse) if found is not None)


def unread(folder: Path, part: str, parse: Callable[[Entry], object]) -> tuple[str, ...]:
    """Return what is wrong with each line that is no entry, or whose ``part`` is none."""
    return tuple(why for found, why in _parsed(folder, part, parse) if found is None)


def file_in(folder: Path) -> Path | None:
    """Return the journal's file, made now where an earlier version noted something; else None."""
    with contextlib.suppress(OSError, ValueError):
        _content(folder)
    path = folder / FILE_NAME
    return path if path.is_file() else None


def _parsed(
    folder: Path, part: str, parse: Callable[[Entry], Part]
) -> Iterator[tuple[Part | None, str]]:
    """Yield the part of each entry that has it, or why a line is none."""
    try:
        lines = _content(folder).decode(errors="replace").split("\n")
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        name = Path(getattr(error, "filename", None) or FILE_NAME).name
        yield None, f"{name} cannot be read and is left out ({_words(error)})"
        return
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = _entry(line)
            if part in entry:
                yield parse(entry), ""
        except (ValueError, KeyError, TypeError, UsageError) as error:
            where = f"{FILE_NAME}, line {number}"
            yield None, f"{where} is not a measurement and is left out ({_words(error)})"


def _entry(line: str) -> Entry:
    entry = bounded.parse_json(line)
    if entry["schema_version"] != SCHEMA_VERSION:
        raise ValueError("written by another version of advisor")
    return cast(Entry, entry)


def _content(folder: Path) -> bytes:
    path = folder / FILE_NAME
    if not path.exists() and (earlier := _earlier(folder)):
        with contextlib.suppress(OSError):  # a folder that may only be read
            _create(path, earlier)
        if not path.exists():
            return earlier
    return _bytes(path)


def _earlier(folder: Path) -> bytes:
    """Return what earlier versions noted as lines of a journal, broken ones as they are."""
    found = []
    for name, part in EARLIER.items():
        try:
            lines = _bytes(folder / name).split(b"\n")
        except FileNotFoundError:
            continue
        found += [_as_entry(line.strip(), part) for line in lines if line.strip()]
    return b"".join(line + b"\n" for line in found)


def _as_entry(line: bytes, part: str) -> bytes:
    try:
        value = bounded.parse_json(line)
        if not isinstance(value, dict):
            return line
    except ValueError:
        return line
    when = {"noted_at": value["noted_at"]} if "noted_at" in value else {}
    return json.dumps({"schema_version": SCHEMA_VERSION, **when, part: value}).encode()


def _create(path: Path, content: bytes) -> None:
    """Write the journal unless another process has: its lines may be newer than ours."""
    try:
        with atomic.drafting_folder(path) as draft:
            atomic.write_bytes(draft / FILE_NAME, content)
            os.link(draft / FILE_NAME, path)
    except FileExistsError:
        return
    except OSError:  # a file system without links
        atomic.write_bytes(path, content)


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return bytes(bounded.read_bytes(file))


def _words(error: Exception) -> str:
    return printable(str(error) or type(error).__name__)[:200]


PART: Final = "actual"
# A user's own measurement of a step: its scatter from run to run on one machine, as for repeated
# cloud measurements with the same software (reference: H100 nodes 0.7 %, same round 3 %).
ACTUAL_LOG_SD: Final = 0.03
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
    """Return the measured step in an entry of the journal; ``ValueError`` where it is none."""
    return from_record(Actual, entry[PART], where=PART)


def append_actual(root: Path, actual: Actual, **parts: object) -> Path:
    """Note a measurement beside the runs in ``root``, with what else is known; return the file."""
    return note(root, {PART: to_record(actual), **parts})


def read_actuals(root: Path, run: str) -> tuple[Actual, ...]:
    """Return the measured steps of ``run``, in the order in which they were added.

    A note of a whole job that is mostly no steps measured none. Lines that cannot be read cost no
    others: ``unread_lines`` names them.
    """
    noted = journal_entries(root, PART, lambda entry: (from_entry(entry), entry))
    return tuple(
        one
        for one, entry in noted
        if one.run == run and (entry.get(STEPS) or {"time_s": 0.0})["time_s"] is not None
    )


def unread_lines(root: Path, *, of_layouts: bool = False) -> tuple[str, ...]:
    """Return what is wrong with each line that is no measurement, by file and line.

    ``of_layouts``: of a transformer in a known layout.
    """
    return unread(root, LAYOUT_RUNS_PART, _run) if of_layouts else unread(root, PART, from_entry)


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
    return note(root, {LAYOUT_RUNS_PART: to_record(run)})


def read_layout_runs(root: Path) -> tuple[LayoutRun, ...]:
    """Return the latest measurements, the oldest first; broken lines cost no others."""
    return journal_entries(root, LAYOUT_RUNS_PART, _run)[-MOST_RUNS:]
