"""Make the tables that ship from a folder laid out like ``shared/data``.

    python -m advisor.measurements.build FOLDER [OUT]

writes ``OUT/measurements/DATASET/...``; OUT is the packaged ``datasets`` unless it is named. The
same measurements give the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from advisor import data
from advisor.errors import AdvisorError
from advisor.measurements import ALL
from advisor.measurements.dataset import Dataset
from advisor.measurements.table import FOLDER, write_frame


def build(source: Path, out: Path) -> dict[str, int]:
    """Write every table that ships; returns file -> rows.

    Raises
    ------
    AdvisorError
        If a published table is missing or cannot be read.
    """
    return {
        file: rows
        for dataset in ALL
        if dataset.ships
        for file, rows in normalise(dataset, source, out).items()
    }


def normalise(dataset: Dataset, source: Path, out: Path) -> dict[str, int]:
    """Write the tables of one data set in our form; returns file -> rows.

    Raises
    ------
    AdvisorError
        If a published table is missing or cannot be read.
    """
    written: dict[str, int] = {}
    for table in dataset.tables.values():
        if not table.columns:
            continue  # has a writer of its own
        frame = table.read_under(source)
        if frame is None:
            raise dataset.absent(source)
        kept = table.selection(frame) if dataset.ships else frame
        write_frame(kept, out / FOLDER / table.file)
        written[table.file] = len(kept)
    for runs in dataset.runs.values():
        records = runs.read_under(source)
        if records is None:
            raise dataset.absent(source)
        runs.write(records, out / FOLDER / runs.file)
        written[runs.file] = len(records)
    return written


def main(arguments: list[str]) -> int:
    """Build, and print what was written."""
    if len(arguments) not in (1, 2):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    out = Path(arguments[1]) if len(arguments) == 2 else data.root("datasets")
    try:
        for file, rows in build(Path(arguments[0]), out).items():
            sys.stdout.write(f"{rows:7} {file}\n")
    except AdvisorError as error:
        sys.stderr.write(f"error: {error}\nhint: {error.hint}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
