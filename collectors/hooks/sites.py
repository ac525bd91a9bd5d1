"""The line of the user's script that calls into a framework, and the loops around it."""

from __future__ import annotations

import os

from .total_work import _is_library, _is_ours, _loops, find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any


def of_user(frame: FrameType | None) -> str:
    """Return ``file:line`` of the innermost frame that is neither a library's nor ours."""
    while frame is not None:
        filename = frame.f_code.co_filename
        if not _is_library(filename) and not _is_ours(filename):
            return "%s:%d" % (os.path.basename(filename), frame.f_lineno)
        frame = frame.f_back
    return ""


def user_loops(frame: FrameType | None) -> list[dict[str, Any]]:
    """Return the loops of the user's code around a call, innermost first; see ``total_work``.

    A library that calls the user's code back in a loop of its own (an optimisation of
    hyper-parameters) is a loop whose turns nobody knows.
    """
    loops: list[dict[str, Any]] = []
    for candidate in find(frame):
        loops = loops or candidate.get("loops", [])
    return loops + _library_loops(frame)


def _library_loops(frame: FrameType | None) -> list[dict[str, Any]]:
    """Return the loops of libraries that stand outside of the user's own frames."""
    has_seen_user = False
    while frame is not None:
        filename = frame.f_code.co_filename
        is_library = _is_library(filename)
        if is_library and has_seen_user and not filename.startswith("<"):
            found = [dict(loop, turns=None) for loop in _loops(frame)]
            if found:
                return found[:1]
        has_seen_user |= not is_library and not _is_ours(filename)
        frame = frame.f_back
    return []
