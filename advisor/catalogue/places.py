"""Folders of what the catalogue fetched."""

from __future__ import annotations

from pathlib import Path

from advisor.collectors.user_folders import base_folder, config_folder

__all__ = ["cache_folder", "config_folder"]


def cache_folder() -> Path:
    """Return the folder of updated snapshots and downloads: all of it can be fetched again."""
    return base_folder("XDG_CACHE_HOME", ".cache") / "advisor" / "catalogue"
