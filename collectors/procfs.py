"""A small file of the kernel's that is read again and again through one descriptor."""

from __future__ import annotations

import os
from pathlib import Path

# Larger than any file read here; the kernel makes the content up to this size at once.
_SIZE = 1 << 14


class KeptFile:
    """Reads a file under ``/proc`` or ``/sys`` from its start, opened once.

    A file that is not there reads as empty, always.
    """

    __slots__ = ("_fd",)

    def __init__(self, path: str | Path) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def read(self) -> bytes:
        """Return the content now; empty if it cannot be read any more."""
        if self._fd < 0:
            return b""
        try:
            return os.pread(self._fd, _SIZE, 0)
        except OSError:
            return b""

    def close(self) -> None:
        """Let go of the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
