"""Evaluate an expression of the script's without running any of the script's code again."""

from __future__ import annotations

import ast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ARITHMETIC: dict[type, Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}

_PURE: dict[str, Any] = {"len": len, "int": int, "min": min, "max": max}


def value_of(node: Any, scope: dict[str, Any]) -> Any:
    """Evaluate constants, names, attributes, items, arithmetic, len, int, min and max.

    None for anything else: nothing of the script's may run twice.
    """
    try:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return scope.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = value_of(node.value, scope)
            return None if owner is None else _attribute(owner, node.attr)
        if isinstance(node, ast.Subscript):
            owner, key = value_of(node.value, scope), value_of(_index(node), scope)
            return owner[key] if isinstance(owner, (dict, list, tuple)) else None
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            left, right = value_of(node.left, scope), value_of(node.right, scope)
            return _ARITHMETIC[type(node.op)](left, right)
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in _PURE:
            values = [value_of(argument, scope) for argument in node.args]
            return _PURE[node.func.id](*values)  # type: ignore[attr-defined]
    except Exception:  # not evaluable
        return None
    return None


def _index(node: Any) -> Any:
    """Return a subscript's key; Python 3.8 wraps it."""
    return getattr(node.slice, "value", node.slice) if _is_wrapped(node.slice) else node.slice


def _is_wrapped(node: Any) -> bool:
    return type(node).__name__ == "Index"


def _attribute(owner: Any, name: str) -> Any:
    """Return a stored attribute; a property is not run, it could do anything."""
    stored = getattr(owner, "__dict__", {})
    if name in stored:
        return stored[name]
    kind = getattr(type(owner), name, None)
    if isinstance(kind, (int, float, str)):
        return kind
    slots = type(kind).__name__ == "member_descriptor"
    return getattr(owner, name) if slots else None
