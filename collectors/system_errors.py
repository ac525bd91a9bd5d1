"""Refusals of the system (disk, rights, memory, damaged files) as an error and a hint."""

from __future__ import annotations

import errno
import os
from typing import Final

from advisor.collectors.errors import RecordingError

_FOLDERS: Final = (
    "runs go where --runs or ADVISOR_RUNS says, the catalogue where XDG_CACHE_HOME, models where "
    "XDG_DATA_HOME says"
)
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN: Final = {errno.EROFS, errno.EACCES, errno.EPERM}
_EXHAUSTED: Final = {errno.EMFILE, errno.ENFILE, errno.EAGAIN}
_NO_MEMORY_HINT: Final = "raise the limit (ulimit -v, the container's), or ask about less at once"


def explain(error: BaseException) -> RecordingError | None:
    """Return a failure of the system in the words of this project; None for anything else."""
    if isinstance(error, MemoryError) or _is_no_memory(error):
        return RecordingError("out of memory", hint=_NO_MEMORY_HINT)
    if isinstance(error, RecursionError):
        return RecordingError(
            "what was given is nested too deeply", hint="look at the files that you named"
        )
    if isinstance(error, UnicodeError):
        return RecordingError(f"text that is not UTF-8: {error}", hint="write the file in UTF-8")
    if isinstance(error, EOFError) or type(error).__module__ in ("zipfile", "zlib", "gzip"):
        return _damaged(error)
    if isinstance(error, RuntimeError) and "encrypted" in str(error):
        return RecordingError(f"an encrypted archive: {error}", hint="unpack it yourself first")
    return _of_the_system(error) if isinstance(error, OSError) else None


def _of_the_system(error: OSError) -> RecordingError:
    at = f"{error.filename}: " if error.filename is not None else ""
    why = error.strerror or str(error)
    if error.errno == errno.ENOENT and _is_working_folder_gone():
        return RecordingError(
            "the working folder no longer exists", hint="change to another one: cd ~"
        )
    if error.errno in _FULL:
        return RecordingError(
            f"{at}{why}", hint=f"free some space, or write elsewhere: {_FOLDERS}"
        )
    if error.errno in _FORBIDDEN:
        return RecordingError(f"{at}{why}", hint=f"choose a folder that you may use: {_FOLDERS}")
    if error.errno in _EXHAUSTED:
        return RecordingError(
            f"{at}{why}", hint="end other programs, or raise the limits (ulimit)"
        )
    if error.__class__.__name__ == "BadGzipFile":
        return _damaged(error)
    return RecordingError(f"{at}{why}", hint="check the path and the disk, then try again")


def _damaged(error: BaseException) -> RecordingError:
    said = str(error) or "it ends too early"
    return RecordingError(
        f"a damaged file: {said}", hint="get it again; it was changed or cut off"
    )


def _is_no_memory(error: BaseException) -> bool:
    """Tell whether threads, libraries or an extension in C++ found no memory."""
    text = str(error)
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, SystemError):  # C code that found no memory for its own exception
        return "exception set" in text
    if isinstance(error, ImportError):
        return "cannot allocate memory" in text.lower() or "failed to map segment" in text
    return isinstance(error, RuntimeError) and (
        "can't start new thread" in text or "bad_alloc" in text
    )


def _is_working_folder_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False
