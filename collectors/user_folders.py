"""Folders of a user's own files: the XDG base folders, on every system."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from platformdirs.unix import Unix

# Also on macOS and Windows, where ``platformdirs.user_data_dir`` would name others.
_FOLDERS: Final = Unix("advisor")


def data_folder() -> Path:
    """Return ``$XDG_DATA_HOME/advisor``: recorded runs, fitted models, fetched measurements."""
    return _folder("user_data_path", ".local/share")


def config_folder() -> Path:
    """Return ``$XDG_CONFIG_HOME/advisor``: the user's ``advisor.toml`` and ``overrides.csv``."""
    return _folder("user_config_path", ".config")


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/advisor``: what can be measured, fetched or copied again."""
    return _folder("user_cache_path", ".cache")


def _folder(kind: str, usual: str) -> Path:
    try:
        return Path(getattr(_FOLDERS, kind))
    except RuntimeError:  # nobody's home: a container that runs as a bare number
        import tempfile

        return Path(tempfile.gettempdir()) / usual / "advisor"
