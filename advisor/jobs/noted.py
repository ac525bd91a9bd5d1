"""Journals of what users note beside their recorded runs: one JSON object a line, append-only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from advisor.collectors import atomic, bounded
from advisor.collectors.printable import printable
from advisor.errors import UsageError

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedFile(Generic[Entry]):
    """A file of entries; a line that cannot be read costs no other.

    Attributes
    ----------
    name : str
        Of the file.
    parse : callable
        Makes an entry of a JSON value; raises ``ValueError``, ``KeyError``, ``TypeError`` or
        ``UsageError`` where it is none.
    """

    name: str
    parse: Callable[[Any], Entry]

    def append(self, folder: Path, record: Mapping[str, Any]) -> Path:
        """Add a record to the file in ``folder``; return the file.

        Raises
        ------
        OSError
            If it cannot be written; the file is as before then.
        """
        path = folder / self.name
        atomic.append_line(path, json.dumps(record).encode() + b"\n")
        return path

    def read(self, folder: Path) -> tuple[Entry, ...]:
        """Return the entries in ``folder`` in the order in which they were added."""
        return tuple(entry for entry, _ in self._lines(folder) if entry is not None)

    def unread(self, folder: Path) -> tuple[str, ...]:
        """Return what is wrong with each line that is no entry, by file and line."""
        return tuple(why for entry, why in self._lines(folder) if entry is None)

    def _lines(self, folder: Path) -> Iterator[tuple[Entry | None, str]]:
        """Yield the entry in each line, or why there is none."""
        try:
            with (folder / self.name).open("rb") as file:
                lines = bounded.read_bytes(file).decode(errors="replace").split("\n")
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            yield None, f"{self.name} cannot be read and is left out ({_words(error)})"
            return
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield self.parse(bounded.parse_json(line)), ""
            except (ValueError, KeyError, TypeError, UsageError) as error:
                where = f"{self.name}, line {number}"
                yield None, f"{where} is not a measurement and is left out ({_words(error)})"


def _words(error: Exception) -> str:
    return printable(str(error) or type(error).__name__)[:200]
