"""Folders of what the catalogue fetched."""

from __future__ import annotations

from pathlib import Path

from advisor.collectors import user_folders
from advisor.collectors.user_folders import config_folder

__all__ = ["cache_folder", "config_folder"]


def cache_folder() -> Path:
    """Return the folder of updated snapshots and downloads: all of it can be fetched again."""
    return user_folders.cache_folder() / "catalogue"
