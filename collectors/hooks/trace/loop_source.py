"""How often a loop turns, by its source and the variables around it, and where it breaks off."""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Iterator
from typing import Any

from ..loaders import length_of
from .expressions import dotted, is_count, value_of

_TURNS_TRIED = 1000  # of a condition that is no straight line, such as ``i % 50 == 49``


class Exits:
    """What the conditions say under which a loop leaves itself by ``break`` or ``return``.

    Attributes
    ----------
    bound : dict or None
        The least bound: ``limit``, ``counter`` (its value now), ``is_own``, ``reset``. Of the
        loop's own variable (``is_own``) the limit is the turns in which the line is reached that
        runs now; of another counter it is the value at which the loop is left, and ``reset`` says
        where it begins anew: ``"loop"`` (in a loop around, in this function), ``"call"`` (in this
        function) or ``""``.
    """

    def __init__(self, loop: Any, owner: Any, scope: dict[str, Any], line: int) -> None:
        self.bound: dict[str, Any] | None = None
        self.may_end = False
        self._loop = loop
        self._owner = owner
        self._scope = scope
        self._variable = own_variable(loop, scope)
        self._assigned = _assigned_in(loop)
        for tests, exit_line in _ways_out(loop):
            self._take([*map(self._meaning, tests)], reached=int(line < exit_line))
        if isinstance(loop, ast.While):
            for test in _conjunction(loop.test):
                if (bound := self._counted(ast.UnaryOp(ast.Not(), test))) is not None:
                    self._keep(bound)

    def _take(self, tests: list[Any], reached: int) -> None:
        """Take in one way out: all ``tests`` must hold."""
        # Maybe nothing changes a lone comparison, maybe a function that is called here counts.
        is_open = len(tests) == 1 and value_of(tests[0], self._scope) is False
        if is_open and not self._is_own(tests[0]):
            bound = self._counted(tests[0])
            if bound is not None:
                self._keep(bound)
                return
        open_ = [test for test in tests if not self._is_constant(test)]
        if any(self._is_constant(test) and not value_of(test, self._scope) for test in tests):
            return
        if not open_:
            if reached:
                self._keep({"limit": 1, "counter": 0, "is_own": True, "reset": ""})
            return
        if len(open_) == 1:
            (test,) = open_
            bound = self._own(test, reached) or self._counted(test)
            if bound is not None:
                self._keep(bound)
                return
        self.may_end = True

    def _meaning(self, test: Any) -> Any:
        """Return the comparison of two names that a flag stands for, where it is set once."""
        if not isinstance(test, ast.Name):
            return test
        set_to = [
            node.value for node in ast.walk(self._loop)
            if isinstance(node, ast.Assign) and dotted(node.targets[0]) == test.id
        ]  # fmt: skip
        if len(set_to) != 1 or not isinstance(set_to[0], ast.Compare):
            return test
        sides = set_to[0].left, *set_to[0].comparators
        return set_to[0] if all(map(dotted, sides)) else test

    def _keep(self, bound: dict[str, Any]) -> None:
        if self.bound is None or bound["limit"] < self.bound["limit"]:
            self.bound = bound

    def _is_constant(self, test: Any) -> bool:
        """Return whether a condition is known and nothing in the loop changes it."""
        names = {dotted(node) for node in ast.walk(test)} - {""}
        if names & self._assigned:
            return False
        value = value_of(test, self._scope)
        is_missing = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot)
        return isinstance(value, (bool, int, float, str)) or is_missing

    def _is_own(self, test: Any) -> bool:
        name = self._variable[0] if self._variable else None
        return name in {dotted(node) for node in ast.walk(test)}

    def _own(self, test: Any, reached: int) -> dict[str, Any] | None:
        if self._variable is None or not self._is_own(test):
            return None
        name, start, stride = self._variable
        turn = _first_turn(test, name, (start, stride), self._scope)
        if turn is None:
            return None
        counter = value_of_counter(self._loop, self._scope) or 0
        return {"limit": turn + reached, "counter": counter, "is_own": True, "reset": ""}

    def _counted(self, test: Any) -> dict[str, Any] | None:
        """Return the bound on a counter that something else than the loop counts."""
        counter, limit = _at_least(test)
        if counter is None:
            return None
        now, most = value_of(counter, self._scope), value_of(limit, self._scope)
        if not is_count(now) or not is_count(most):
            return None
        reset = _reset(counter, self._owner, self._loop)
        return {"limit": most, "counter": now, "is_own": False, "reset": reset}


def own_variable(loop: Any, scope: dict[str, Any]) -> tuple[str, int, int] | None:
    """Return (name, first value, stride) of what a ``for`` counts with, where it is known."""
    name = dotted(_target(loop))
    known = _counting(getattr(loop, "iter", None), scope)
    return None if not name or known is None else (name, known[0], known[1])


_HANDED_ON = frozenset(["tqdm", "track", "progress_bar", "iter", "list", "zip", "islice"])


def _counting(node: Any, scope: dict[str, Any]) -> tuple[int, int] | None:
    """Return (first value, stride) of the counter that iterating over ``node`` gives."""
    if not isinstance(node, ast.Call):
        return None
    name = dotted(node.func).rpartition(".")[2]
    values = [value_of(argument, scope) for argument in node.args]
    if name in ("range", "trange") and values and all(is_count(value) for value in values):
        steps = range(*values)
        return (steps.start, steps.step)
    if name == "enumerate" and values:
        named = [value_of(one.value, scope) for one in node.keywords if one.arg == "start"]
        start = ([0, *values[1:]][-1:] + named)[-1]
        return (start, 1) if is_count(start) else None
    if name == "count" and all(is_count(value) for value in values):
        start, stride = ([*values, 0, 1] if not values else [*values, 1])[:2]
        return (start, stride)
    return _counting(node.args[0], scope) if name in _HANDED_ON and node.args else None


def value_of_counter(loop: Any, scope: dict[str, Any]) -> int | None:
    """Return how many turns came before this one, by the loop's variable if it counts.

    That is ``i``, or the first of ``i, batch``; a range may count in strides.
    """
    value = value_of(_target(loop), scope)
    if not is_count(value):
        return None
    known = own_variable(loop, scope)
    return int(value) if known is None else int(value - known[1]) // known[2]


def _target(loop: Any) -> Any:
    target = getattr(loop, "target", None)
    return target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target


class _Put(ast.NodeTransformer):
    def __init__(self, name: str, value: int) -> None:
        self._name = name
        self._value = value

    def visit(self, node: Any) -> Any:
        if dotted(node) == self._name:
            return ast.copy_location(ast.Constant(self._value), node)
        return self.generic_visit(node)


def _first_turn(
    test: Any, name: str, counts: tuple[int, int], scope: dict[str, Any]
) -> int | None:
    """Return the first turn, from 0, at which ``test`` holds; None where that is unknown."""
    start, stride = counts

    def at(node: Any, turn: int) -> Any:
        return value_of(_Put(name, start + turn * stride).visit(copy.deepcopy(node)), scope)

    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        difference = ast.BinOp(test.left, ast.Sub(), test.comparators[0])
        values = [at(difference, turn) for turn in range(3)]
        if all(isinstance(value, (int, float)) for value in values):
            slope = values[1] - values[0]
            if slope and values[2] - values[1] == slope:
                zero = max(0, math.ceil(-values[0] / slope))
                near = [max(0, zero - 1), zero, zero + 1]
                return next((turn for turn in near if at(test, turn) is True), None)
    first = at(test, 0)
    if not isinstance(first, bool):
        return None
    return next((turn for turn in range(_TURNS_TRIED) if at(test, turn) is True), None)


def _at_least(test: Any) -> tuple[Any, Any]:
    """Return (counter, limit) of a condition that holds from ``counter >= limit`` on."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = test.operand
        opposite = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.NotEq: ast.Eq, ast.Gt: ast.LtE,
                    ast.GtE: ast.Lt}  # fmt: skip
        if not isinstance(inner, ast.Compare) or type(inner.ops[0]) not in opposite:
            return None, None
        other = opposite[type(inner.ops[0])]()
        return _at_least(ast.Compare(inner.left, [other], inner.comparators))
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None, None
    operation, left, right = test.ops[0], test.left, test.comparators[0]
    if isinstance(operation, (ast.Lt, ast.LtE)):  # limit <= counter
        left, right = right, left
        operation = ast.Gt() if isinstance(operation, ast.Lt) else ast.GtE()
    if isinstance(operation, ast.Gt):
        return left, ast.BinOp(right, ast.Add(), ast.Constant(1))
    return (left, right) if isinstance(operation, (ast.GtE, ast.Eq)) else (None, None)


def _conjunction(test: Any) -> list[Any]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [one for value in test.values for one in _conjunction(value)]
    return [test]


def _alternatives(test: Any) -> list[list[Any]]:
    """Return the lists of conditions of which one list must hold."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return [one for value in test.values for one in _alternatives(value)]
    return [_conjunction(test)]


def _ways_out(loop: Any) -> Iterator[tuple[list[Any], int]]:
    """Yield (conditions that must all hold, line) for every way out of the loop itself."""
    pending: list[tuple[Any, list[Any]]] = [(node, []) for node in loop.body]
    while pending:
        node, held = pending.pop()
        if isinstance(node, (ast.Break, ast.Return)):
            for alternative in _alternatives(held[-1]) if held else [[]]:
                yield [*(one for test in held[:-1] for one in _conjunction(test)),
                       *alternative], node.lineno  # fmt: skip
        elif isinstance(node, ast.If):
            opposite = ast.UnaryOp(ast.Not(), node.test)
            pending += [(inner, [*held, node.test]) for inner in node.body]
            pending += [(inner, [*held, opposite]) for inner in node.orelse]
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            pending += [(inner, held) for inner in node.body]
        elif isinstance(node, ast.Try):
            pending += [(inner, held) for inner in node.body + node.orelse + node.finalbody]
            unknown = ast.Name("an exception", ast.Load())
            for handler in node.handlers:
                pending += [(inner, [*held, unknown]) for inner in handler.body]
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            for inner in ast.walk(node):  # only a return leaves this loop from in there
                if isinstance(inner, ast.Return):
                    yield [ast.Name("an inner loop", ast.Load())], inner.lineno


def _assigned_in(loop: Any) -> set[str]:
    found = {"an exception", "an inner loop"}
    for node in ast.walk(loop):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            found.add(dotted(node))
    return found


def _reset(counter: Any, owner: Any, loop: Any) -> str:
    """Return where a counter begins anew outside of ``loop``: see ``Exits``."""
    name, found = dotted(counter), ""
    inside = {id(node) for node in ast.walk(loop)}
    around = [
        node
        for node in ast.walk(owner)
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)) and id(node) not in inside
    ]
    for node in ast.walk(owner):
        if not isinstance(node, ast.Assign) or id(node) in inside:
            continue
        sides = [one for target in node.targets for one in getattr(target, "elts", [target])]
        if any(dotted(one) == name for one in sides):
            is_around = any(
                any(node is one for one in ast.walk(outer))
                and any(loop is one for one in ast.walk(outer))
                for outer in around
            )
            found = "loop" if is_around or found == "loop" else "call"
    return found


def _called(node: Any) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)


def turns_of_while(loop: Any, owner: Any, scope: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return (turns, counter) of ``while counter < bound`` where the loop itself counts.

    (None, None) for any other condition: what somebody else counts is a bound: see ``Exits``.
    """
    tests = loop.test.values if isinstance(loop.test, ast.BoolOp) else [loop.test]
    if isinstance(loop.test, ast.BoolOp) and not isinstance(loop.test.op, ast.And):
        return None, None
    for test in tests:
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            continue
        left, right = value_of(test.left, scope), value_of(test.comparators[0], scope)
        extra = {ast.Lt: 0, ast.NotEq: 0, ast.LtE: 1}.get(type(test.ops[0]))
        stride = _stride(loop, dotted(test.left), scope)
        if extra is not None and stride and is_count(left) and is_count(right):
            start = _start(owner, dotted(test.left))
            return -((start - right - extra) // stride), (left - start) // stride
    return None, None


def _stride(loop: Any, name: str, scope: dict[str, Any]) -> int | None:
    """Return what every turn of ``loop`` itself adds to a counter."""
    pending, found = list(loop.body), None
    while pending:
        node = pending.pop()
        if isinstance(node, ast.AugAssign) and dotted(node.target) == name:
            added = value_of(node.value, scope)
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
        return length_of(value.iterable), "DataLoader" in type(value.iterable).__name__
    return (length_of(value) if is_sized or hasattr(value, "__len__") else None), is_loader
