"""The frames under a step: the length of the whole job, always sourced, and the user's own line.

From the step outwards every enclosing loop is looked at: a framework's loop says it itself (see
``libraries``); a plain ``for`` or ``while`` is evaluated from its source and its frame's
variables, as far as that needs no call with effects. Loops multiply; how many turns of the
innermost loop make one step is what the recording shows later.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys
from types import FrameType
from typing import Any

from .. import format as fmt
from .expressions import dotted
from .libraries import NOT_COUNTED, stated_length
from .loop_source import Exits, is_endless, turns_of_for, turns_of_while, value_of_counter

_HOOKS = os.path.dirname(os.path.abspath(fmt.__file__)) + os.sep
_STANDARD = os.path.dirname(os.path.abspath(os.__file__))
_MAX_FRAMES = 60
_CO_OPTIMIZED = 1  # a function's: its variables are no dict, see inspect.CO_OPTIMIZED


def find(frame: FrameType | None) -> list[dict[str, Any]]:
    """Return what the frames say, best first.

    Each candidate has ``source`` and ``confidence`` and either ``steps`` (framework state) or
    ``loops``, innermost first: ``turns`` (None: unknown), ``text``, ``where``, ``is_loader``
    (turns are batches), ``variable`` (value of the loop's counter now, where there is one),
    ``bound`` (where it breaks off), ``may_end`` (it may break off elsewhere; see ``Exits``) and
    ``is_endless`` (it would not end by itself).
    """
    candidates = []
    loops: list[dict[str, Any]] = []
    inside: list[dict[str, Any]] = []  # loops of a package that the script calls
    schedules: list[dict[str, Any]] = []
    depth = 0
    while frame is not None and depth < _MAX_FRAMES:
        if not is_ours(frame.f_code.co_filename):
            stated = stated_length(frame)
            if stated is not None:
                candidates.append(stated)
            if is_library(frame.f_code.co_filename):
                inside += _loops(frame) if _is_counted(frame) else []
            else:
                around = _loops(frame)
                if inside or around:
                    _begun_anew_by_calls(loops)
                loops += inside + around
                inside = []
                schedules += _schedules(frame)
        _forget(frame)
        frame = frame.f_back
        depth += 1
    for loop in loops:
        if loop["bound"] is not None and loop["bound"]["reset"] == "call":
            loop["bound"]["reset"] = ""  # called once: it counts through the job
    if loops:
        source = "%s, %s" % (" in ".join(loop["text"] for loop in loops), loops[-1]["where"])
        candidates.append({"loops": loops, "confidence": "likely", "source": source})
    return candidates + schedules[:1]


# What scripts call the object that has their settings.
_UNMISTAKABLE = fmt.LENGTH_NAMES - {"steps", "iterations", "num_steps"}  # counters are, too
_SETTINGS = ("args", "arguments", "cfg", "conf", "config", "hparams", "opt", "options", "FLAGS")


def named_lengths(frame: FrameType | None) -> dict[str, float]:
    """Return the numbers in the user's own frames that are called like a job's length.

    They are variables, fields of settings, or of the object whose method runs; inner frames count
    first.
    """
    found: dict[str, float] = {}
    depth = 0
    while frame is not None and depth < _MAX_FRAMES:
        name = frame.f_code.co_filename
        if not is_ours(name) and not is_library(name):
            variables = frame.f_locals
            _take_lengths(found, variables)
            for holder in (*_SETTINGS, "self"):
                own = variables.get(holder)
                is_mapping = hasattr(own, "keys") and hasattr(own, "__getitem__")
                _take_lengths(found, own if is_mapping else getattr(own, "__dict__", {}))
        _forget(frame)
        frame = frame.f_back
        depth += 1
    return found


def _take_lengths(found: dict[str, float], variables: Any) -> None:
    for name in _UNMISTAKABLE.intersection(variables):
        value = variables[name]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found.setdefault(name, value)


def _forget(frame: FrameType) -> None:
    """Empty the copy of its variables that Python before 3.13 makes of a frame that is looked at.

    It would live as long as the frame: a batch and what was computed from it, all through the
    training. What the script itself holds (``locals()`` gives the same copy) stays.
    """
    if sys.version_info >= (3, 13) or not frame.f_code.co_flags & _CO_OPTIMIZED:
        return
    copied = frame.f_locals
    if sys.getrefcount(copied) <= 3:  # the frame's, this name's and the call's own
        copied.clear()


def _begun_anew_by_calls(loops: list[dict[str, Any]]) -> None:
    """Note that the functions of these loops are called again and again."""
    for loop in loops:
        if loop["bound"] is not None and loop["bound"]["reset"] == "call":
            loop["bound"]["reset"] = "loop"


def is_ours(filename: str) -> bool:
    """Whether a file is the hooks' own."""
    return os.path.abspath(filename).startswith(_HOOKS)


def is_library(filename: str) -> bool:
    """Whether a file is an installed package's or the standard library's, or no file."""
    if "site-packages" in filename or "dist-packages" in filename or filename.startswith("<"):
        return True
    return os.path.dirname(os.path.abspath(filename)).startswith(_STANDARD)


def _is_counted(frame: FrameType) -> bool:
    """Return whether a package's loop may repeat steps: a trainer's, not an optimizer's."""
    filename = frame.f_code.co_filename
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    is_installed = "site-packages" in filename or "dist-packages" in filename
    return is_installed and package not in NOT_COUNTED


def _loops(frame: FrameType) -> list[dict[str, Any]]:
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    if not source:
        return []
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    around = []
    owner = _owner_of(tree, frame)
    for node in _body_of(owner):
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            body = node.body
            last = getattr(body[-1], "end_lineno", None) or node.lineno
            if body[0].lineno <= frame.f_lineno <= last:
                around.append(node)
    around.sort(key=lambda node: node.lineno, reverse=True)
    return [_loop(node, owner, frame, source) for node in around]


def _owner_of(tree: ast.AST, frame: FrameType) -> ast.AST:
    owner = tree
    first = frame.f_code.co_firstlineno
    if frame.f_code.co_name != "<module>":
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                starts = [node.lineno] + [d.lineno for d in node.decorator_list]
                if node.name == frame.f_code.co_name and first in starts:
                    owner = node
    return owner


def _body_of(owner: ast.AST) -> list[ast.AST]:
    """Return the nodes of a function or module, not of inner ones."""
    found = []
    pending = list(ast.iter_child_nodes(owner))
    while pending:
        node = pending.pop()
        found.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            pending += ast.iter_child_nodes(node)
    return found


_TEXT = re.compile(r"([\"'])((?:\\.|(?!\1).)*)\1", re.DOTALL)


def without_texts(source: str, *, keeps: str = "") -> str:
    r"""Return source text with the texts in it left out: a key may stand in one.

    >>> without_texts("login(key='x', on=\"cpu\")", keeps="cpu")
    'login(key=\'...\', on="cpu")'
    """
    return _TEXT.sub(
        lambda found: found[0] if found[2] == keeps else found[1] + "..." + found[1], source
    )


def _loop(node: Any, owner: Any, frame: FrameType, source: str) -> dict[str, Any]:
    where = "%s:%d" % (os.path.basename(frame.f_code.co_filename), node.lineno)
    scope = dict(frame.f_globals)
    scope.update(frame.f_locals)
    exits = Exits(node, owner, scope, frame.f_lineno)
    if isinstance(node, ast.While):
        turns, variable = turns_of_while(node, owner, scope)
        text, is_loader = ast.get_source_segment(source, node.test) or "while", False
    else:
        turns, is_loader = turns_of_for(node.iter, scope)
        variable = value_of_counter(node, scope)
        text = ast.get_source_segment(source, node.iter) or "for"
    if exits.bound is not None and isinstance(owner, ast.Module):
        exits.bound["reset"] = exits.bound["reset"].replace("call", "")
    return {
        "turns": turns,
        "bound": exits.bound,
        "may_end": exits.may_end,
        "is_endless": isinstance(node, ast.While) or is_endless(node.iter),
        "text": " ".join(without_texts(text).split())[:80],
        "target": dotted(getattr(node, "target", None)),
        "where": where,
        "is_loader": is_loader,
        "variable": variable,
    }


def _schedules(frame: FrameType) -> list[dict[str, Any]]:
    """Return what a learning-rate scheduler among the frame's variables was made for."""
    found = []
    for value in list(frame.f_locals.values()):
        if any(base.__name__ in ("LRScheduler", "_LRScheduler") for base in type(value).__mro__):
            total = getattr(value, "total_steps", None)
            if isinstance(total, int) and total > 0:
                kind = type(value).__name__
                found.append(
                    {"steps": total, "confidence": "weak", "source": kind + ".total_steps"}
                )
    return found


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that is neither a library's nor ours."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_library(name) and not is_ours(name):
            return frame
        frame = frame.f_back
    return None


def of_user(frame: FrameType | None) -> str:
    """Return ``file:line`` of the innermost frame that is neither a library's nor ours."""
    own = user_frame(frame)
    return "%s:%d" % (os.path.basename(own.f_code.co_filename), own.f_lineno) if own else ""


def user_loops(frame: FrameType | None) -> list[dict[str, Any]]:
    """Return the loops of the user's code around a call, innermost first; see ``find``.

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
        is_of_others = is_library(filename)
        if is_of_others and has_seen_user and not filename.startswith("<"):
            found = [dict(loop, turns=None) for loop in _loops(frame)]
            if found:
                return found[:1]
        has_seen_user |= not is_of_others and not is_ours(filename)
        frame = frame.f_back
    return []
