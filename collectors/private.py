"""Folders that nobody but their owner can look into, whatever the umask."""

from __future__ import annotations

from pathlib import Path

OWNER_ONLY = 0o700


def private_folder(path: Path) -> Path:
    """Make a folder, and those above it that are missing, for its owner alone; return it.

    A folder that is there already keeps its permissions: somebody chose them.
    """
    missing = []
    at = path
    while not at.is_dir():
        missing.append(at)
        at = at.parent
    for folder in reversed(missing):
        folder.mkdir(mode=OWNER_ONLY, exist_ok=True)
        folder.chmod(OWNER_ONLY)
    return path
