"""Labelled runs of a public collection: ours are run records, one a line of JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from advisor.measurements.table import FOLDER
from advisor.records import RunRecord
from advisor.records.files import read_records, write_records


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """Labelled runs in two forms: as published, and our run records, which ship.

    Attributes
    ----------
    file : str
        Of our form, under ``measurements/``: ``DATASET/NAME.jsonl.gz``.
    published : str
        File or folder under one laid out like ``shared/data``.
    collect : callable
        Makes our records of the published form.
    """

    file: str
    published: str
    collect: Callable[[Path], list[RunRecord]]

    def path_under(self, root: Path) -> Path | None:
        """Return what there is of them under a folder, the published form first."""
        for place in (self.published, f"{FOLDER}/{self.file}"):
            if (root / place).exists():
                return root / place
        return None

    def read_under(self, root: Path) -> list[RunRecord] | None:
        """Read what there is of them under a folder, None where there is nothing.

        Raises
        ------
        RunError
            If a row makes no sense.
        """
        path = self.path_under(root)
        if path is None:
            return None
        return self.collect(path) if path == root / self.published else read_records(path)

    def write(self, records: Iterable[RunRecord], path: Path) -> None:
        """Write our form, the same bytes for the same records."""
        write_records(path, records)
