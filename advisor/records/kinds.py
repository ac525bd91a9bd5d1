"""What kind of runs a file or folder holds, told by its name and how it begins.

Of a file the first kilobytes are looked at, and of a folder the names of what is in it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from advisor.errors import UsageError
from advisor.records.files import unpacked
from advisor.records.formats import TABLE

_LOOKED_AT_BYTES: Final = 65_536
_IN_FOLDERS: Final[Mapping[str, Sequence[str]]] = TABLE["in_folders"]
_CALLED: Final[Mapping[str, str]] = TABLE["called"]
_BEGINS: Final[Mapping[str, str]] = TABLE["begins"]


def kind_of(path: Path) -> str:
    """Return the name of the format in which a file or folder holds runs (``FORMATS``).

    A folder of JSON lines, and what is not there, are ``records``: their reader says what is
    wrong. Raises UsageError if a file is none that is known.
    """
    if path.is_dir():
        packed = (path / "runs.jsonl.gz", path / "runs.jsonl")
        if file := next((one for one in packed if one.is_file()), None):
            return kind_of(file)
        holds = (n for n, names in _IN_FOLDERS.items() if any(any(path.glob(g)) for g in names))
        return next(holds, "records")
    if not path.exists():
        return "records"
    called = (name for name, pattern in _CALLED.items() if re.fullmatch(pattern, path.name))
    if kind := next(called, None):
        return kind
    beginning = _beginning(path)
    begins = (name for name, pattern in _BEGINS.items() if re.search(pattern, beginning))
    if kind := next(begins, None):
        return kind
    if ".jsonl" in path.suffixes:
        return "records"
    if path.suffix == ".csv":
        return "csv"
    if not beginning.strip() or "\0" in beginning:
        raise UsageError(
            f"nothing that a run leaves is known in {path}",
            hint="name its format: advisor runs import FORMAT PATH; advisor runs import --help",
        )
    return "log"


def _beginning(path: Path) -> str:
    """Return the beginning of a file, unpacked; of what cannot be read, nothing."""
    try:
        with unpacked(path) as file:
            return file.read(_LOOKED_AT_BYTES).decode(errors="replace").removeprefix("\ufeff")
    except (OSError, EOFError, zlib.error):
        return ""
