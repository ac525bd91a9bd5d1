"""The error that a script's process ends with, in the few words that say what to do about it.

The traceback is the script's own and stays where it was printed. What is kept is its cause, where
it is one of those that have a cure: a package that is not installed, data that are not there or
have to be downloaded, an argument that was not given, an accelerator, memory.
"""

from __future__ import annotations

import os
import re
import sys

from . import format as fmt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .session import Session

_MISSING = re.compile(r"No module named '?([\w.]+)'?")
_PIP = re.compile(r"pip3? install (?:-U |--upgrade |-q )*[\"'`]?([A-Za-z][\w.\[\],-]*)")
_URL = re.compile(r"https?://([\w.-]+)")
_HOST = re.compile(r"\bhost='([\w.-]+)'")  # urllib3's pools name it in their message
_GPU = re.compile(r"compiled with CUDA|NVIDIA driver|CUDA GPUs|CUDA-capable|is_available\(\) is F")
_MEMORY = re.compile(r"not enough memory|out of memory|Unable to allocate", re.IGNORECASE)
_DOWNLOAD = re.compile(r"\bdownload", re.IGNORECASE)
# Classes, by name: of http clients that need not be installed, and of hubs.
_CONNECTING = frozenset([
    "URLError", "HTTPError", "gaierror", "ConnectionError", "ConnectError", "ConnectTimeout",
    "ClientConnectorError", "MaxRetryError", "LocalEntryNotFoundError", "OfflineModeIsEnabled",
    "ProxyError",
])  # fmt: skip
_REHEARSED = "a rehearsal opens no connection"  # ``rehearsal.overlay`` says so
# What somebody raises in place of the error that he was told.
_PASSED_ON = (ImportError, OSError, RuntimeError, SystemExit, ValueError)
_MOST_CAUSES = 10
_LONGEST = 200


def watch(session: Session) -> None:
    """Keep what this process ends with, if it ends with an error."""
    excepthook, leave = sys.excepthook, sys.exit

    def failed(kind: Any, error: Any, trace: Any) -> None:
        keep(session, error)
        excepthook(kind, error, trace)

    def left(status: Any = None) -> None:
        if status not in (None, 0):  # frameworks print an error themselves and leave
            error = sys.exc_info()[1]
            if error is not None and not isinstance(error, SystemExit):
                keep(session, error)
            elif isinstance(status, str):
                keep(session, SystemExit(status))
        leave(status)

    sys.excepthook, sys.exit = failed, left  # type: ignore[assignment]


def keep(session: Session, error: BaseException) -> None:
    """Keep the cause of an error as a fact."""
    try:
        cause, what = cause_of(error)
        note(session, cause, what, _where(error))
    except Exception as own:
        session.failed("ending", own)


def note(session: Session, cause: str, what: str, where: str = "") -> None:
    """Keep a cause that is known."""
    session.fact("ended_by", cause=cause, what=what[:_LONGEST], where=where, python=sys.executable)


def cause_of(error: BaseException) -> tuple[str, str]:
    """Return the kind of an error's cause, and what is missing.

    Kinds are package, distribution, own package, file, network, offline, download, accelerator and
    memory; "error" where none of them is known.

    >>> cause_of(ModuleNotFoundError("No module named 'cv2.gapi'", name="cv2.gapi"))
    ('package', 'cv2')
    """
    for one in _chain(error):
        found = _known(one)
        if found is not None:
            return found
    said = str(error).strip().split("\n")[0]
    return "error", type(error).__name__ + (": " + said if said else "")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and those that it was raised in place of."""
    for _ in range(_MOST_CAUSES):
        yield error
        earlier = error.__cause__
        if earlier is None and isinstance(error, _PASSED_ON) and not error.__suppress_context__:
            earlier = error.__context__
        if earlier is None:
            return
        error = earlier


def _known(error: BaseException) -> tuple[str, str] | None:
    text = str(error)
    if isinstance(error, (ImportError, RuntimeError, SystemExit)):
        # ``runpy`` leaves with the message alone; a worker's traceback is a message, too.
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        found = _MISSING.search(text)
        name = missing or (found.group(1) if found else "")
        if name:
            return _package(name)
        asked = _PIP.search(text)
        if asked:
            return "distribution", asked.group(1)
    if _REHEARSED in text:
        return "offline", _host(error, text)
    if any(kind.__name__ in _CONNECTING for kind in type(error).__mro__):
        # Hubs refuse by themselves: a rehearsal tells them that they are offline.
        cause = "offline" if fmt.is_kept_offline() else "network"
        return cause, _host(error, text)
    if isinstance(error, (FileNotFoundError, NotADirectoryError)) and error.filename is not None:
        return "file", os.fsdecode(error.filename) if _is_path(error.filename) else ""
    if type(error).__name__ == "MissingMandatoryValue":  # of OmegaConf, which Hydra reads
        return "arguments", text.strip().split("\n")[0]
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and _MEMORY.search(text)
    ):
        return "memory", text
    if isinstance(error, (AssertionError, RuntimeError)) and _GPU.search(text):
        return "accelerator", text
    if isinstance(error, (OSError, RuntimeError)) and _DOWNLOAD.search(text):
        return "download", text.strip().split("\n")[0]
    return None


def _package(name: str) -> tuple[str, str]:
    """Return the package above a module, and whether it lies in the working folder."""
    top = name.partition(".")[0]
    if os.path.isdir(top) or os.path.isfile(top + ".py"):
        return "own package", name
    return "package", top


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, bytes, os.PathLike))


def _host(error: BaseException, text: str) -> str:
    """Return the host that was not reached: by the message, else by whoever connected to it."""
    found = _HOST.search(text) or _URL.search(text)
    if found:
        return found.group(1)
    host = ""
    for one in _chain(error):
        trace = one.__traceback__
        while trace is not None:
            variables = trace.tb_frame.f_locals
            for name in ("host", "url"):
                value = variables.get(name)
                if isinstance(value, str) and value:
                    found = _URL.match(value)
                    if found or not value.startswith("/"):  # the path at a host says nothing
                        host = found.group(1) if found else value
            trace = trace.tb_next
        if host:
            break
    return host


def _where(error: BaseException) -> str:
    """Return the last line of the script itself that the error went through."""
    from .trace.frames import is_library, is_ours

    where, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not is_library(name) and not is_ours(name):
            where = "%s:%d" % (os.path.basename(name), trace.tb_lineno)
        trace = trace.tb_next
    return where
