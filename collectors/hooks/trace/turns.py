"""The turns of a loop, by its source and the variables around it."""

from __future__ import annotations

import ast

from .expressions import dotted, is_count, value_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _called(node: Any) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)


def turns_of_while(loop: Any, owner: Any, scope: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return (turns, counter) of ``while counter < bound`` where the loop itself counts.

    (None, None) for any other condition: what somebody else counts is a bound, see ``bounds``.
    """
    tests = loop.test.values if isinstance(loop.test, ast.BoolOp) else [loop.test]
    if isinstance(loop.test, ast.BoolOp) and not isinstance(loop.test.op, ast.And):
        return None, None
    for test in tests:
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            continue
        left, right = value_of(test.left, scope), value_of(test.comparators[0], scope)
        extra = {ast.Lt: 0, ast.NotEq: 0, ast.LtE: 1}.get(type(test.ops[0]))
        stride = _stride(loop, dotted(test.left))
        if extra is not None and stride and is_count(left) and is_count(right):
            start = _start(owner, dotted(test.left))
            return -((start - right - extra) // stride), (left - start) // stride
    return None, None


def _stride(loop: Any, name: str) -> int | None:
    """Return what every turn of ``loop`` itself adds to a counter."""
    pending, found = list(loop.body), None
    while pending:
        node = pending.pop()
        if isinstance(node, ast.AugAssign) and dotted(node.target) == name:
            added = getattr(node.value, "value", None)
            found = added if isinstance(node.op, ast.Add) and is_count(added) else None
        elif isinstance(node, ast.Assign) and any(dotted(one) == name for one in node.targets):
            added = getattr(getattr(node.value, "right", None), "value", None)
            is_sum = isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add)
            found = added if is_sum and is_count(added) else None
        elif isinstance(node, (ast.With, ast.AsyncWith, ast.Try)):
            pending += node.body
    return found or None


def _start(owner: Any, name: str) -> int:
    """Return the constant that a counter begins with, 0 where none is assigned."""
    for node in ast.walk(owner):
        if isinstance(node, ast.Assign) and any(dotted(one) == name for one in node.targets):
            value = getattr(node.value, "value", None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return 0


# Calls that hand on their first argument's elements one by one.
_TRANSPARENT = frozenset(["enumerate", "tqdm", "iter", "list", "reversed", "sorted", "track",
                          "prefetch", "progress_bar"])  # fmt: skip


def is_endless(node: Any) -> bool:
    """Return whether iterating over this expression never ends: ``count()``, ``cycle(loader)``."""
    if not isinstance(node, ast.Call):
        return False
    if _called(node) == "enumerate" and node.args:
        return is_endless(node.args[0])
    return _called(node) in ("count", "cycle", "repeat")


def turns_of_for(node: Any, scope: dict[str, Any]) -> tuple[int | None, bool]:
    """Return how often a ``for`` over this expression turns, and whether it is over a loader."""
    if isinstance(node, ast.Call):
        name = _called(node)
        if name in ("range", "trange"):
            bounds = [value_of(argument, scope) for argument in node.args]
            is_known = bool(bounds) and all(isinstance(bound, int) for bound in bounds)
            return (len(range(*bounds)) if is_known else None), False
        if name == "zip":
            inner = [turns_of_for(argument, scope) for argument in node.args]
            known = [turns for turns, _ in inner if turns is not None]
            return (min(known) if known else None), any(is_loader for _, is_loader in inner)
        if name == "islice" and len(node.args) == 2:
            bound = value_of(node.args[1], scope)
            return (bound if isinstance(bound, int) else None), False
        if name == "cycle" and node.args:
            return None, turns_of_for(node.args[0], scope)[1]
        if name in _TRANSPARENT and node.args:
            return turns_of_for(node.args[0], scope)
        return None, False
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return len(node.elts), False
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        return None, False
    value = value_of(node, scope)
    if value is None:
        return None, False
    is_loader = any("DataLoader" in base.__name__ for base in type(value).__mro__)
    is_sized = is_loader or isinstance(value, (list, tuple, range, dict, str))
    if not is_sized and hasattr(value, "iterable"):  # a progress bar around something
        return _length(value.iterable), "DataLoader" in type(value.iterable).__name__
    return (_length(value) if is_sized or hasattr(value, "__len__") else None), is_loader


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except Exception:  # somebody's __len__ may raise anything
        return None
