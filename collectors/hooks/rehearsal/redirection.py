"""Files of a rehearsal without namespaces: Python's own ways are redirected, others refused."""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sys
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


FREE = ("/dev", "/proc", "/sys/fs/cgroup")


def is_within(path: str, folder: str) -> bool:
    """Whether a path lies in a folder, or is it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


class Redirection:
    """Paths that are written to, each with its copy in a scratch folder."""

    def __init__(self, run_folder: str) -> None:
        self.scratch = tempfile.mkdtemp(prefix="advisor-rehearsal-")
        self._run = os.path.realpath(run_folder)
        self._is_ours = 0
        self._makedirs = os.makedirs

    def install(self) -> None:
        """Put the redirection in front of Python's functions, and the audit hook behind them."""
        import atexit

        atexit.register(self._remove)
        original = builtins.open

        def opened(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
            is_writing = any(letter in mode for letter in "wax+")
            return original(self.place(file, is_writing), mode, *rest, **named)

        modules: tuple[Any, ...] = (builtins, io)
        for module in modules:
            module.open = opened
        for name in ("stat", "lstat", "listdir", "scandir", "access"):
            self._replace(name, is_writing=False)
        for name in ("mkdir", "rmdir", "remove", "unlink", "truncate", "chmod", "utime"):
            self._replace(name, is_writing=True)
        for name in ("rename", "replace", "link", "symlink"):
            self._replace(name, is_writing=True, paths=2)
        self._replace_open()
        sys.addaudithook(self._audit)

    def place(self, path: Any, is_writing: bool) -> Any:
        """Return where a path is to be read or written instead."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return path  # a descriptor
        full = os.path.abspath(os.fsdecode(path))
        if self._is_free(full):
            return path
        copy = os.path.join(self.scratch, full.lstrip("/"))
        self._is_ours += 1
        try:
            if not is_writing:
                return copy if os.path.lexists(copy) else path
            self._makedirs(os.path.dirname(copy), exist_ok=True)
            if os.path.isfile(full) and not os.path.lexists(copy):
                shutil.copy2(full, copy)
            elif os.path.isdir(full):
                self._makedirs(copy, exist_ok=True)
        finally:
            self._is_ours -= 1
        return copy

    def _is_free(self, full: str) -> bool:
        places = (*FREE, self.scratch, self._run)
        return bool(self._is_ours) or any(is_within(full, one) for one in places)

    def _replace(self, name: str, *, is_writing: bool, paths: int = 1) -> None:
        original = getattr(os, name, None)
        if original is None:
            return

        def redirected(*args: Any, **named: Any) -> Any:
            places = [self.place(one, is_writing) for one in args[:paths]]
            return original(*places, *args[paths:], **named)

        setattr(os, name, redirected)

    def _replace_open(self) -> None:
        original = os.open

        def opened(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            is_writing = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            return original(self.place(path, is_writing), flags, *rest, **named)

        os.open = opened

    def _audit(self, event: str, arguments: Any) -> None:
        """Refuse what writes to the disk by another way."""
        if self._is_ours or event not in ("open", "sqlite3.connect", "shutil.rmtree"):
            return
        path = arguments[0]
        if not isinstance(path, (str, bytes)) or path in (":memory:", b":memory:"):
            return
        if event == "open":
            flags = arguments[2] if len(arguments) > 2 else 0
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        if not self._is_free(os.path.abspath(os.fsdecode(path))):
            raise PermissionError("a rehearsal does not write to %s" % os.fsdecode(path))

    def _remove(self) -> None:
        self._is_ours += 1
        shutil.rmtree(self.scratch, ignore_errors=True)
