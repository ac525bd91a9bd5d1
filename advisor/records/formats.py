"""Every format that ``advisor runs import`` reads: its name, module and what it is."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from advisor import data
from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.records.nouns import Instances, RunRecord

TABLE: Final = tomllib.loads(Path(__file__).with_name("formats.toml").read_text("utf-8"))
FORMATS: Final[Mapping[str, Mapping[str, Any]]] = TABLE["formats"]


def read_runs_as(name: str, path: Path, machines: Instances | None = None) -> list[RunRecord]:
    """Read the runs of a file or folder in a named format.

    ``name``: a key of ``FORMATS``; ``machines``: what the runs ran on, with its price, where the
    format takes that from its user.

    Raises UsageError if there is no such format or path, or the format names its machines itself.
    Raises RunError if a row makes no sense: file, row and column are named.
    """
    if name not in FORMATS:
        near = difflib.get_close_matches(name.lower(), FORMATS, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"no format named {name!r}", hint=f"{meant}one of: {', '.join(FORMATS)}")
    if not path.exists():
        raise UsageError(f"there is nothing at {path}", hint="name a file or folder")
    takes_machines = FORMATS[name].get("takes_machines", False)
    if machines is not None and not takes_machines:
        raise UsageError(
            f"runs in the format {name!r} name their own machines and prices",
            hint="leave --machine and --price out",
        )
    module, _, function = FORMATS[name]["reader"].partition(":")
    reader = getattr(data.laboratory(module), function)
    records: list[RunRecord] = reader(path, machines) if takes_machines else reader(path)
    return records
