"""Values of a script's expressions, found without running any of its code again."""

from __future__ import annotations

import ast
import math
import operator
from typing import Any

_ARITHMETIC: dict[type, Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_SMALL_POWER = 64  # a larger one could take for ever

_COMPARISONS: dict[type, Any] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_PURE: dict[str, Any] = {
    "len": len, "int": int, "float": float, "min": min, "max": max, "abs": abs, "round": round,
}  # fmt: skip
_OF_MODULES: dict[str, Any] = {"ceil": math.ceil, "floor": math.floor}
# What a tensor or an array says of itself without computing anything.
_SHAPE_CALLS = frozenset(["size", "numel", "dim"])
_SHAPES = frozenset(["shape", "ndim", "size"])


def value_of(node: Any, scope: dict[str, Any]) -> Any:
    """Evaluate constants, names, attributes, items, arithmetic, comparisons and sizes.

    None for anything else: nothing of the script's may run twice.
    """
    evaluate = _EVALUATED.get(type(node))
    if evaluate is None:
        return None
    try:
        return evaluate(node, scope)
    except Exception:  # not evaluable
        return None


def is_count(value: Any) -> bool:
    """Return whether ``value`` can count something."""
    return isinstance(value, int) and not isinstance(value, bool)


def dotted(node: Any) -> str:
    """Return ``a.b.c`` of a name or a chain of attributes; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return owner + "." + node.attr if owner else ""
    return ""


def _plain(node: Any, scope: dict[str, Any]) -> Any:
    """Return the value if it is a plain number or text: nothing else's operators may run."""
    value = value_of(node, scope)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()
    if type(value) not in (int, float, bool, str):
        raise TypeError(type(value))
    return value


def _binary(node: Any, scope: dict[str, Any]) -> Any:
    left, right = _plain(node.left, scope), _plain(node.right, scope)
    if isinstance(node.op, ast.Pow):
        return left**right if abs(right) < _SMALL_POWER and abs(left) < 1e6 else None
    return _ARITHMETIC[type(node.op)](left, right)


def _unary(node: Any, scope: dict[str, Any]) -> Any:
    value = _plain(node.operand, scope)
    return not value if isinstance(node.op, ast.Not) else -value


def _compare(node: Any, scope: dict[str, Any]) -> Any:
    (operation,), (other,) = node.ops, node.comparators
    if isinstance(operation, (ast.Is, ast.IsNot)) and getattr(other, "value", 0) is None:
        # Unknown and None look alike here: a test of either says nothing.
        is_known = value_of(node.left, scope) is not None
        return isinstance(operation, ast.IsNot) if is_known else None
    return _COMPARISONS[type(operation)](_plain(node.left, scope), _plain(other, scope))


def _both(node: Any, scope: dict[str, Any]) -> Any:
    value: Any = None
    for part in node.values:
        value = _plain(part, scope)
        if bool(value) is isinstance(node.op, ast.Or):
            return value
    return value


def _choice(node: Any, scope: dict[str, Any]) -> Any:
    return value_of(node.body if _plain(node.test, scope) else node.orelse, scope)


def _item(node: Any, scope: dict[str, Any]) -> Any:
    place = node.slice  # Python 3.8 wraps it
    place = getattr(place, "value", place) if type(place).__name__ == "Index" else place
    owner, key = value_of(node.value, scope), value_of(place, scope)
    return owner[key] if isinstance(owner, (dict, list, tuple)) else None


def _call(node: Any, scope: dict[str, Any]) -> Any:
    values = [value_of(argument, scope) for argument in node.args]
    if isinstance(node.func, ast.Name):
        return _PURE[node.func.id](*values)
    owner, name = value_of(node.func.value, scope), node.func.attr
    if name in _SHAPE_CALLS and _is_tensor(owner):
        return getattr(owner, name)(*values)
    if name in _OF_MODULES and getattr(owner, "__name__", "") in ("math", "numpy"):
        return _OF_MODULES[name](_plain(node.args[0], scope))
    if name == "get" and isinstance(owner, dict) and type(owner).get is dict.get:
        return dict.get(owner, *values)
    return None


_TENSORS = ("torch.Tensor", "torch.nn.parameter.Parameter", "numpy.ndarray",
            "torch._subclasses.fake_tensor.FakeTensor")  # fmt: skip


def _is_tensor(value: Any) -> bool:
    """Return whether this is a tensor or array, and of no class that runs code of its own."""
    kind = type(value)
    name = kind.__module__ + "." + kind.__name__
    return name in _TENSORS


def _attribute(node: Any, scope: dict[str, Any]) -> Any:
    """Return a stored attribute; a property is not run, it could do anything."""
    owner, name = value_of(node.value, scope), node.attr
    if owner is None:
        return None
    if name in _SHAPES and _is_tensor(owner):
        return getattr(owner, name)
    stored = getattr(owner, "__dict__", {})
    if name in stored:
        return stored[name]
    if isinstance(owner, dict):  # settings that are read as attributes
        return dict.get(owner, name)
    if type(owner).__module__.startswith("omegaconf"):
        return getattr(owner, name)
    kind = getattr(type(owner), name, None)
    if isinstance(kind, (int, float, str)):
        return kind
    slots = type(kind).__name__ == "member_descriptor"
    return getattr(owner, name) if slots else None


_EVALUATED: dict[type, Any] = {
    ast.Constant: lambda node, scope: node.value,
    ast.Name: lambda node, scope: scope.get(node.id),
    ast.Attribute: _attribute,
    ast.Subscript: _item,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _both,
    ast.IfExp: _choice,
    ast.Call: _call,
}
