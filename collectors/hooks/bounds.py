"""Where a loop breaks off: ``if counter >= bound: break`` inside it."""

from __future__ import annotations

import ast

from .expressions import value_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_EXTRA: dict[type, int] = {ast.GtE: 0, ast.Eq: 0, ast.Gt: 1}


def break_bound(loop: Any, scope: dict[str, Any]) -> dict[str, Any] | None:
    """Return the least bound at which ``loop`` is left by a ``break`` or ``return`` of its own.

    Returns
    -------
    dict or None
        ``limit``, ``counter`` (its value now) and ``is_own``: the counter is the loop's own
        variable, which bounds this loop and not the job.
    """
    found = []
    own = _targets(loop)
    for test in _leaving_tests(loop):
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1):
            continue
        extra = _EXTRA.get(type(test.ops[0]))
        counter, limit = value_of(test.left, scope), value_of(test.comparators[0], scope)
        if extra is None or not _is_count(counter) or not _is_count(limit):
            continue
        is_own = isinstance(test.left, ast.Name) and test.left.id in own
        found.append({"limit": limit + extra, "counter": counter, "is_own": is_own})
    return min(found, key=lambda bound: bound["limit"]) if found else None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _leaving_tests(loop: Any) -> Iterator[Any]:
    """Yield the conditions under which the loop itself is left; inner loops leave themselves."""
    pending = list(loop.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If):
            if any(isinstance(inner, (ast.Break, ast.Return)) for inner in node.body):
                yield node.test
            pending += node.body + node.orelse
        elif isinstance(node, (ast.With, ast.Try)):
            pending += node.body


def _targets(loop: Any) -> set[str]:
    """Return the names that the loop itself counts with."""
    target = getattr(loop, "target", None)
    return (
        {node.id for node in ast.walk(target) if isinstance(node, ast.Name)} if target else set()
    )
