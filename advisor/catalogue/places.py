"""Where the user's own files lie: the XDG folders."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of updated snapshots and downloads: all of it can be fetched again."""
    return _base("XDG_CACHE_HOME", ".cache") / "advisor" / "catalogue"


def config_folder() -> Path:
    """Return the folder of the user's ``overrides.csv``."""
    return _base("XDG_CONFIG_HOME", ".config") / "advisor"


def _base(variable: str, default: str) -> Path:
    """Return an XDG base folder; the specification says to ignore a relative one."""
    named = Path(os.environ.get(variable, ""))
    if named.is_absolute():
        return named
    try:
        return Path.home() / default
    except RuntimeError:  # nobody's home: a container that runs as a bare number
        return Path(tempfile.gettempdir()) / default
