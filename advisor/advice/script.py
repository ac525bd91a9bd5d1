"""The script of a recording, read for what its calls say, and patched as a unified diff."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from advisor.collectors.format import Recording

# A script is read, never run; what is longer than this was not written by hand. [bytes]
_LONGEST: Final = 1_000_000


@dataclass(frozen=True)
class SourceScript:
    """A training script as it lies on disk."""

    path: Path
    source: str
    tree: ast.Module

    @classmethod
    def of(cls, recording: Recording | None) -> SourceScript | None:
        """Return the script that was recorded; None where it is no longer there or unreadable."""
        words = () if recording is None else recording.command
        for word in words:
            if not word.endswith(".py"):
                continue
            path = Path(word)
            try:
                if path.stat().st_size > _LONGEST:
                    return None
                source = path.read_text("utf-8")
                return cls(path, source, ast.parse(source))
            except (OSError, ValueError, SyntaxError, RecursionError):
                return None
        return None

    @cached_property
    def calls(self) -> tuple[ast.Call, ...]:
        """All calls, in the order of the source."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        return tuple(sorted(found, key=lambda call: (call.lineno, call.col_offset)))

    def named(self, *names: str) -> tuple[ast.Call, ...]:
        """Return the calls of functions whose last name is one of these."""
        return tuple(call for call in self.calls if last_name(call.func) in names)

    def mentions(self, *words: str) -> bool:
        """Whether the source has one of these words anywhere."""
        return any(word in self.source for word in words)

    def with_arguments(self, *calls: ast.Call, **given: str) -> str:
        """Return the diff that gives calls these keyword arguments, in place of their own."""
        text = self.source
        spots = [spot for call in calls for spot in self._spots(call, given)]
        for (start, end), words in sorted(spots, reverse=True):
            text = text[:start] + words + text[end:]
        return self._diff(text)

    def _spots(self, call: ast.Call, given: dict[str, str]) -> list[tuple[tuple[int, int], str]]:
        """Return what to write where, for one call."""
        own = {k.arg for k in call.keywords}
        spots = [
            (self._span(k.value), given[k.arg]) for k in call.keywords if k.arg and k.arg in given
        ]
        added = ", ".join(f"{name}={value}" for name, value in given.items() if name not in own)
        if added:
            inside = [*call.args, *(keyword.value for keyword in call.keywords)]
            last = max((self._span(one)[1] for one in inside), default=self._span(call)[1] - 1)
            spots.append(((last, last), f", {added}" if inside else added))
        return spots

    def training_loop(self) -> ast.For | ast.While | None:
        """Return the innermost loop with a call of ``backward()`` in it."""
        loops = [
            node for node in ast.walk(self.tree)
            if isinstance(node, ast.For | ast.While)
            and any(last_name(call.func) == "backward" for call in _calls_in(node))
        ]  # fmt: skip
        return min(loops, key=lambda node: (node.end_lineno or 0) - node.lineno, default=None)

    def each_step(self, wanted: Callable[[ast.Call], bool]) -> tuple[ast.Call, ...]:
        """Return the calls that every turn of the training loop makes: under no condition."""
        loop = self.training_loop()
        if loop is None:
            return ()
        return tuple(call for stmt in loop.body for call in _always(stmt) if wanted(call))

    def _place(self, line: int, column: int) -> int:
        rows = self.source.splitlines(keepends=True)
        own = rows[line - 1].encode("utf-8")[:column].decode("utf-8")
        return sum(map(len, rows[: line - 1])) + len(own)

    def _span(self, node: ast.expr) -> tuple[int, int]:
        """Return where an expression starts and ends in the source."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._place(node.lineno, node.col_offset),
            self._place(node.end_lineno, node.end_col_offset),
        )

    def _diff(self, changed: str) -> str:
        name = self.path.name
        lines = difflib.unified_diff(
            self.source.splitlines(keepends=True), changed.splitlines(keepends=True),
            f"a/{name}", f"b/{name}", n=0,  # no line that does not change: a key may stand in it
        )  # fmt: skip
        return "".join(lines)


def last_name(function: ast.expr) -> str:
    """Return ``DataLoader`` of ``torch.utils.data.DataLoader``; empty for what has no name."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def argument(call: ast.Call, name: str) -> object:
    """Return a keyword argument that is written as a constant; None otherwise."""
    for keyword in call.keywords:
        if keyword.arg == name and isinstance(keyword.value, ast.Constant):
            return keyword.value.value
    return None


def has_argument(call: ast.Call, name: str) -> bool:
    """Whether a call is given a keyword argument, whatever its value."""
    return any(keyword.arg in (name, None) for keyword in call.keywords)


def _calls_in(node: ast.AST) -> Iterator[ast.Call]:
    return (one for one in ast.walk(node) if isinstance(one, ast.Call))


def _always(stmt: ast.stmt) -> Iterator[ast.Call]:
    """Yield the calls that a statement makes under no condition and in no function of its own."""
    if isinstance(stmt, ast.If | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Try):
        return
    if isinstance(stmt, ast.For | ast.While | ast.With):
        for one in stmt.body:
            yield from _always(one)
        return
    yield from _calls_in(stmt)
