"""How long the whole job is, read from the frames under a step: never guessed, always sourced.

From the step outwards every enclosing loop is looked at: a framework's loop says it itself (see
``frameworks``); a plain ``for`` or ``while`` is evaluated from its source and its frame's
variables, as far as that needs no call with effects. Loops multiply; how many turns of the
innermost loop make one step is what the recording shows later.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys

from . import frameworks
from .bounds import break_bound
from .expressions import value_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_HOOKS = os.path.dirname(os.path.abspath(__file__))
_MAX_FRAMES = 60
_CO_OPTIMIZED = 1  # a function's: its variables are no dict, see inspect.CO_OPTIMIZED


def find(frame: FrameType | None) -> list[dict[str, Any]]:
    """Return what the frames say, best first.

    Each candidate has ``source`` and ``confidence`` and either ``steps`` (framework state) or
    ``loops``, innermost first: ``turns`` (None: unknown), ``text``, ``where``, ``is_loader``
    (turns are batches), ``variable`` (value of the loop's counter now, where there is one) and
    ``bound`` (where it breaks off, see ``bounds``).
    """
    candidates = []
    loops: list[dict[str, Any]] = []
    schedules: list[dict[str, Any]] = []
    depth = 0
    while frame is not None and depth < _MAX_FRAMES:
        if os.path.dirname(os.path.abspath(frame.f_code.co_filename)) != _HOOKS:
            stated = frameworks.state(frame)
            if stated is not None:
                candidates.append(stated)
            if not _is_library(frame.f_code.co_filename):
                loops += _loops(frame)
                schedules += _schedules(frame)
        _forget(frame)
        frame = frame.f_back
        depth += 1
    if loops:
        candidates.append({"loops": loops, "confidence": "likely", "source": _source(loops)})
    return candidates + schedules[:1]


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


def _is_library(filename: str) -> bool:
    return "site-packages" in filename or "dist-packages" in filename or filename.startswith("<")


def _source(loops: list[dict[str, Any]]) -> str:
    return "%s, %s" % (" in ".join(loop["text"] for loop in loops), loops[-1]["where"])


def _loops(frame: FrameType) -> list[dict[str, Any]]:
    """Return the loops around the line that ``frame`` is at, innermost first."""
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    if not source:
        return []
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    around = []
    for node in _body_of(tree, frame):
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            body = node.body
            last = getattr(body[-1], "end_lineno", None) or node.lineno
            if body[0].lineno <= frame.f_lineno <= last:
                around.append(node)
    around.sort(key=lambda node: node.lineno, reverse=True)
    return [_loop(node, frame, source) for node in around]


def _body_of(tree: ast.AST, frame: FrameType) -> list[ast.AST]:
    """Return the nodes of the function (or module) that the frame runs, not of inner ones."""
    owner = tree
    first = frame.f_code.co_firstlineno
    if frame.f_code.co_name != "<module>":
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                starts = [node.lineno] + [d.lineno for d in node.decorator_list]
                if node.name == frame.f_code.co_name and first in starts:
                    owner = node
    found = []
    pending = list(ast.iter_child_nodes(owner))
    while pending:
        node = pending.pop()
        found.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            pending += ast.iter_child_nodes(node)
    return found


def _loop(node: Any, frame: FrameType, source: str) -> dict[str, Any]:
    where = "%s:%d" % (os.path.basename(frame.f_code.co_filename), node.lineno)
    scope = dict(frame.f_globals)
    scope.update(frame.f_locals)
    if isinstance(node, ast.While):
        turns, variable = _while(node.test, scope)
        text, is_loader = ast.get_source_segment(source, node.test) or "while", False
    else:
        turns, is_loader = _turns(node.iter, scope)
        variable = _counter(node, scope)
        text = ast.get_source_segment(source, node.iter) or "for"
    return {
        "turns": turns,
        "bound": break_bound(node, scope),
        "text": " ".join(text.split())[:80],
        "where": where,
        "is_loader": is_loader,
        "variable": variable,
    }


def _counter(loop: Any, scope: dict[str, Any]) -> int | None:
    """Return how many turns came before this one, by the loop's variable if it counts.

    That is ``i``, or the first of ``i, batch``; a range may count in strides.
    """
    target = loop.target
    if isinstance(target, ast.Tuple) and target.elts:
        target = target.elts[0]
    value = scope.get(target.id) if isinstance(target, ast.Name) else None
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    bounds = _range_bounds(loop.iter, scope)
    return (value - bounds[0]) // bounds[2] if bounds and len(bounds) == 3 else value


def _range_bounds(node: Any, scope: dict[str, Any]) -> list[int]:
    """Return the arguments of a call of ``range``, empty where it is none or they are unknown."""
    if not isinstance(node, ast.Call) or _called(node) not in ("range", "trange"):
        return []
    bounds = [value_of(argument, scope) for argument in node.args]
    return bounds if all(isinstance(bound, int) for bound in bounds) else []


def _called(node: Any) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else _name(node.func)


def _while(test: Any, scope: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return (bound, counter) of ``counter < bound``; (None, None) for any other condition."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for part in test.values:
            bound, counter = _while(part, scope)
            if bound is not None:
                return bound, counter
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = value_of(test.left, scope), value_of(test.comparators[0], scope)
        if isinstance(left, int) and isinstance(right, int):
            if isinstance(test.ops[0], (ast.Lt, ast.NotEq)):
                return right, left
            if isinstance(test.ops[0], ast.LtE):
                return right + 1, left
    return None, None


# Calls that hand on their first argument's elements one by one.
_TRANSPARENT = frozenset(["enumerate", "tqdm", "iter", "list", "reversed", "sorted", "track",
                          "prefetch", "cycle", "progress_bar"])  # fmt: skip


def _turns(node: Any, scope: dict[str, Any]) -> tuple[int | None, bool]:
    """Return how often a ``for`` over this expression turns, and whether it is over a loader."""
    if isinstance(node, ast.Call):
        name = _called(node)
        if name in ("range", "trange"):
            bounds = _range_bounds(node, scope)
            return (len(range(*bounds)) if bounds else None), False
        if name == "zip":
            inner = [_turns(argument, scope) for argument in node.args]
            known = [turns for turns, _ in inner if turns is not None]
            return (min(known) if known else None), any(is_loader for _, is_loader in inner)
        if name == "islice" and len(node.args) == 2:
            bound = value_of(node.args[1], scope)
            return (bound if isinstance(bound, int) else None), False
        if name in _TRANSPARENT and node.args:
            return _turns(node.args[0], scope)
        return None, False
    if isinstance(node, (ast.List, ast.Tuple)):
        return len(node.elts), False
    value = value_of(node, scope)
    if value is None:
        return None, False
    is_loader = any("DataLoader" in base.__name__ for base in type(value).__mro__)
    is_sized = is_loader or isinstance(value, (list, tuple, range, dict, str))
    if not is_sized and hasattr(value, "iterable"):  # a progress bar around something
        return _length(value.iterable), "DataLoader" in type(value.iterable).__name__
    return (_length(value) if is_sized or hasattr(value, "__len__") else None), is_loader


def _name(node: Any) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except Exception:  # somebody's __len__ may raise anything
        return None


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
