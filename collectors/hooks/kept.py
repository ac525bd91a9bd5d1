"""A file that stays open in a process that is not ours.

Numbers of descriptors are the script's to close, also of those that it did not open
(``os.closerange``, as daemonisers do), and the next file that it opens gets the number. So whose a
number is gets looked at before each use: by device and inode, which takes a microsecond.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Out of the way of scripts that close a few dozens, and within the kernel's table of 1,024
# descriptors, which forks copy.
_HIGH = 768


class OwnFile:
    """An open file, and the identity by which it is known again.

    Nothing here raises but the constructor (OSError).

    Attributes
    ----------
    was_lost : bool
        Whether somebody else has closed it since it was opened.
    """

    __slots__ = ("_flags", "_identity", "_number", "path", "was_lost")

    def __init__(self, path: str, flags: int = os.O_RDONLY, mode: int = 0o600) -> None:
        self.path = path
        self.was_lost = False
        self._flags = (flags & ~os.O_CREAT) | getattr(os, "O_CLOEXEC", 0)
        self._number = _moved_high(os.open(path, self._flags | (flags & os.O_CREAT), mode))
        self._identity = _identity(os.fstat(self._number))

    def number(self, *, is_same: bool = False) -> int:
        """Return the descriptor, opened again if it is another's by now; -1 if it cannot be.

        ``is_same``: only if the path still leads to the file that was opened at first.
        """
        if self._is_ours():
            return self._number
        self.was_lost = True
        self._number = -1
        try:
            number = _moved_high(os.open(self.path, self._flags))
            identity = _identity(os.fstat(number))
            if is_same and identity != self._identity:
                os.close(number)
            else:
                self._number, self._identity = number, identity
        except OSError:
            return -1
        return self._number

    def size(self) -> int:
        """Return the file's length in bytes; 0 where it is no longer open."""
        return os.fstat(self._number).st_size if self._is_ours() else 0

    def close(self) -> None:
        """Close the descriptor, if it is still this file's."""
        number, self._number = (self._number if self._is_ours() else -1), -1
        try:
            if number >= 0:
                os.close(number)
        except OSError:  # a network's file system says only now that it is full
            return

    def _is_ours(self) -> bool:
        try:
            return _identity(os.fstat(self._number)) == self._identity
        except OSError:
            return False


def _identity(found: Any) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _moved_high(number: int) -> int:
    """Return a copy of a descriptor with a high number, which is closed; itself where none is."""
    try:
        import fcntl

        most = os.sysconf("SC_OPEN_MAX")
        high = min(_HIGH, most * 3 // 4) if most > 0 else _HIGH
        moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, high)
    except (ImportError, OSError, ValueError):
        return number
    os.close(number)
    return moved
