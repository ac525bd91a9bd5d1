"""The journal of real runs: ``journal.jsonl`` beside the recorded runs.

``advisor runs actual`` adds one JSON object a line, in one write. Its parts are what was measured
(``actual``) with what had been predicted (``predicted``) and what ``advisor train`` learns from
(``record``, without time and cost, which are those of ``actual``); or a transformer's step in a
known layout (``layout_run``). Everything else is derived when it is read. What earlier versions
kept in several files becomes the journal when it is first looked for; those files stay.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from advisor.collectors import atomic, bounded
from advisor.collectors.errors import printable
from advisor.errors import UsageError

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
