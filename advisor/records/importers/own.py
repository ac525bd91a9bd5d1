"""Our own records, a file or a folder of files."""

from __future__ import annotations

from pathlib import Path

from advisor.errors import RunError
from advisor.records import RunRecord, read_records


def read(path: Path) -> list[RunRecord]:
    """Read a ``.jsonl`` or ``.jsonl.gz`` file, or every such file of a folder in order.

    Raises RunError naming file, row and column of a bad value, or a folder without records.
    """
    if path.is_file():
        return read_records(path)
    files = sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")])
    if not files:
        raise RunError(f"no .jsonl or .jsonl.gz in {path}", hint="name the folder of the records")
    return [record for file in files for record in read_records(file)]
