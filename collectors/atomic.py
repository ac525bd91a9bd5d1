"""The one way in which this project writes a file or a folder that is kept.

A reader sees the old content or the new one, whole, whatever happens to the writer: the new
content is written under another name beside the target, brought to the disk, and takes the
target's place in one system call. What a killed writer left beside the target is removed by the
next one; a lock on it tells a dead writer's draft from a living one's.

Folders are replaced by ``put_in_place``; those of this user (``data_folder`` and its like) are
named here, too.

Standard library only: the profiler's own process, which has no other packages, may import it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

_PARTIAL: Final = ".partial"
_PREVIOUS: Final = ".previous"
_LONGEST_NAME: Final = 48  # characters of the target's name in a draft's: 255 bytes at most
_ABANDONED_S: Final = 86400.0  # where there are no locks: no writer takes a day
_AT_FDCWD: Final = -100  # <fcntl.h>
_RENAME_EXCHANGE: Final = 2  # <linux/fs.h>
_RENAME_SWAP: Final = 2  # <sys/stdio.h>


@contextlib.contextmanager
def writing(path: Path, *, mode: int | None = None) -> Iterator[IO[bytes]]:
    """Open a file to write; it takes its place when the block ends without an error.

    Raises OSError if it cannot be written; the old file is untouched then.

    Parameters
    ----------
    path : Path
        Its folder is made. A link is followed; a device or a pipe is written to directly.
    mode : int or None
        Permissions of the new file; None for those of the old one, or what the umask leaves.
    """
    path = Path(os.path.realpath(path))
    before = _mode_of(path)
    if before is not None and not stat.S_ISREG(before):
        with path.open("wb") as file:
            yield file
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    first = 0o666 if mode is None else mode
    partial, handle = _claim(path, lambda draft: os.open(draft, flags, first))
    try:
        with open(handle, "wb") as file:
            yield file
            wanted = stat.S_IMODE(before) if mode is None and before is not None else mode
            if wanted is not None:
                os.chmod(partial, wanted)
            file.flush()
            os.fsync(handle)
            os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(partial)):
            error.filename = str(path)
        raise
    sync_folder(path.parent)


def write_bytes(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Write a file whole or not at all; see ``writing``."""
    with writing(path, mode=mode) as file:
        file.write(content)


def write_text(path: Path, text: str, *, mode: int | None = None) -> None:
    """Write a UTF-8 file whole or not at all; see ``writing``."""
    write_bytes(path, text.encode(), mode=mode)


def written_once(path: Path, content: bytes, *, mode: int | None = None) -> bytes:
    """Write a file where there is none yet; return what is there, whoever wrote it first.

    Raises OSError if it can be neither read nor written.
    """
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    draft = _draft_name(path, _PARTIAL)
    write_bytes(draft, content, mode=mode)
    try:
        os.link(draft, path)
        draft.unlink()
    except FileExistsError:
        draft.unlink()
    except OSError:  # a file system without links: the last of two that come at once
        os.replace(draft, path)
    return path.read_bytes()


def append_line(path: Path, line: bytes) -> None:
    """Add a line to a journal in one write, on disk on return.

    A line that a killed writer cut short does not swallow this one, and a full disk leaves none
    of it behind.

    Raises OSError if it cannot be written; the file is as before then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = b"\n" + line
        if os.write(handle, line) < len(line):
            os.ftruncate(handle, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Give an empty folder to fill; it takes the place of ``folder`` when the block ends.

    ``folder``: replaced as a whole, files that are not written again included.

    Raises OSError if it cannot be written; the old folder is untouched then.
    """
    with drafting_folder(folder) as made:
        yield made
        put_in_place(made, folder)


@contextlib.contextmanager
def drafting_folder(near: Path) -> Iterator[Path]:
    """Give an empty folder beside ``near`` that is gone at the end, unless ``put_in_place``."""
    near = Path(os.path.realpath(near))
    near.parent.mkdir(parents=True, exist_ok=True)
    _put_back(near)
    _remove_abandoned(near)
    made, lock = _claim(near, _make_folder)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)


def current_folder(folder: Path) -> Path:
    """Return where a folder that ``replacing_folder`` writes is to be read now."""
    if folder.exists():
        return folder
    return next(iter(sorted(_drafts(folder, _PREVIOUS))), folder)


def sync_folder(folder: Path) -> None:
    """Bring a folder's entries to the disk, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def exchange(one: Path, other: Path) -> bool:
    """Let two paths trade places in one step; False where the system cannot."""
    import ctypes

    a, b = os.fsencode(one), os.fsencode(other)
    try:
        library = ctypes.CDLL(None)
        if sys.platform == "darwin":
            return bool(library.renamex_np(a, b, _RENAME_SWAP) == 0)
        return bool(library.renameat2(_AT_FDCWD, a, _AT_FDCWD, b, _RENAME_EXCHANGE) == 0)
    except (AttributeError, TypeError):  # a C library without it, Windows
        return False


def put_in_place(made: Path, folder: Path) -> None:
    """Let a finished folder take the place of ``folder``; what was there is then in ``made``.

    A folder trades places with its successor (``renameat2`` with RENAME_EXCHANGE on Linux,
    ``renamex_np`` with RENAME_SWAP on macOS). Where the file system cannot do so, two renames are
    needed and a writer killed between them leaves the old folder under another name, which
    ``current_folder`` finds and the next writer puts back.

    Raises OSError if it cannot; the old folder is untouched then.
    """
    folder = Path(os.path.realpath(folder))
    _sync_tree(made)
    if not folder.exists():
        os.rename(made, folder)
    elif not exchange(made, folder):
        lock = _locked(os.open(folder, os.O_RDONLY))
        try:
            previous = _draft_name(folder, _PREVIOUS)
            os.rename(folder, previous)
            os.rename(made, folder)
            shutil.rmtree(previous, ignore_errors=True)
        finally:
            os.close(lock)
    sync_folder(folder.parent)


def _put_back(folder: Path) -> None:
    """Undo the first of the two renames for a writer that was killed after it."""
    for previous in sorted(_drafts(folder, _PREVIOUS)):
        with _abandoned(previous) as is_abandoned:
            if is_abandoned and not folder.exists():
                os.rename(previous, folder)


def _remove_abandoned(target: Path) -> None:
    for left in [*_drafts(target, _PARTIAL), *_drafts(target, _PREVIOUS)]:
        with _abandoned(left) as is_abandoned, contextlib.suppress(OSError):
            if is_abandoned and left.is_dir():
                shutil.rmtree(left)
            elif is_abandoned:
                left.unlink()


def _drafts(target: Path, ending: str) -> list[Path]:
    start = f".{target.name[:_LONGEST_NAME]}."
    try:
        names = os.listdir(target.parent)
    except OSError:
        return []
    return [target.parent / n for n in names if n.startswith(start) and n.endswith(ending)]


def _draft_name(target: Path, ending: str) -> Path:
    return target.with_name(f".{target.name[:_LONGEST_NAME]}.{os.urandom(6).hex()}{ending}")


def _claim(target: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """Make a draft that is locked, and return it and its descriptor."""
    while True:  # another writer may take it for abandoned before it is locked
        draft = _draft_name(target, _PARTIAL)
        try:
            handle = _locked(make(draft))
        except OSError as error:
            error.filename = str(target)  # the name that the user knows
            raise
        if draft.exists():
            return draft, handle
        os.close(handle)


def _make_folder(path: Path) -> int:
    path.mkdir()
    try:
        return os.open(path, os.O_RDONLY)
    except PermissionError:  # Windows opens no folder
        return os.open(os.devnull, os.O_RDONLY)


def _mode_of(path: Path) -> int | None:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _sync_tree(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        for name in names:
            handle = os.open(os.path.join(root, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        sync_folder(Path(root))


def _locked(handle: int) -> int:
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


@contextlib.contextmanager
def _abandoned(draft: Path) -> Iterator[bool]:
    """Tell whether no living process writes a draft, and keep it so until the block ends."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield time.time() - draft.stat().st_mtime > _ABANDONED_S
        return
    handle = -1
    try:
        handle = os.open(draft, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = True
    except OSError:  # held, gone, or a file system without locks
        is_free = False
    try:
        yield is_free
    finally:
        if handle >= 0:
            os.close(handle)


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
