"""The folders of a user's own files: the XDG base folders, on every system.

Standard library only: the profiler's own process, which has no other packages, may import it.
"""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """Return ``$XDG_DATA_HOME/advisor``: recorded runs, fitted models, fetched measurements."""
    return base_folder("XDG_DATA_HOME", ".local/share") / "advisor"


def config_folder() -> Path:
    """Return ``$XDG_CONFIG_HOME/advisor``: the user's ``advisor.toml`` and ``overrides.csv``."""
    return base_folder("XDG_CONFIG_HOME", ".config") / "advisor"


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/advisor``: what can be measured, fetched or copied again."""
    return base_folder("XDG_CACHE_HOME", ".cache") / "advisor"


def base_folder(variable: str, default: str) -> Path:
    """Return a base folder; the specification says to ignore a relative one."""
    named = Path(os.environ.get(variable, ""))
    if named.is_absolute():
        return named
    try:
        return Path.home() / default
    except RuntimeError:  # nobody's home: a container that runs as a bare number
        import tempfile

        return Path(tempfile.gettempdir()) / default
