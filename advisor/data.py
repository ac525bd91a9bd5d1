"""Where the packaged data lies: the same answer in a wheel, an editable install and a checkout."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from advisor.errors import UsageError


@cache
def root(folder: str) -> Path:
    """Return the path of a data folder, ``"datasets"`` or ``"trained_models"``.

    A clone without symbolic links (Windows) keeps the folders beside the package.
    """
    package = Path(__file__).parent
    inside = package / folder
    return inside if inside.is_dir() else package.parent / folder


def own_models() -> Path:
    """Return the folder of models that the user fitted: ``$XDG_DATA_HOME/advisor/models``."""
    named = Path(os.environ.get("XDG_DATA_HOME", ""))
    if named.is_absolute():  # the specification says to ignore a relative one
        return named / "advisor" / "models"
    return Path(os.path.expanduser("~")) / ".local" / "share" / "advisor" / "models"


def shared() -> Path | None:
    """Return the folder of public measurements, or None where there is none.

    ``ADVISOR_SHARED`` names it; otherwise ``../shared`` beside the checkout is looked for. Fitting
    and validation read it; nothing else needs it.
    """
    named = os.environ.get("ADVISOR_SHARED")
    path = Path(named) if named else Path(__file__).resolve().parents[2] / "shared"
    return path if (path / "data").is_dir() else None


def measurements(folder: Path | None = None) -> Path:
    """Return the folder of measurements that a command reads: the one named, or the shared one.

    Raises
    ------
    UsageError
        If none is named and none is there.
    """
    if folder is not None:
        return folder
    found = shared()
    if found is None:
        raise UsageError(
            "the measurements are not here",
            hint="name their folder with --data, or set ADVISOR_SHARED",
        )
    return found / "data"
