"""The face of a room: the names that its ``__init__.pyi`` lists, imported when they are used.

Standard library alone: a recording begins in the script's own interpreter, which may have nothing
else.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def face(room: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a room; ``file`` is its ``__init__``.

    Nothing is kept: who looks again is given what the name means now.
    """
    homes: dict[str, str] = {}
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    for node in ast.parse(stub).body:
        if isinstance(node, ast.ImportFrom):
            homes.update((alias.name, f"{room}.{node.module}") for alias in node.names)

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return load, lambda: sorted(homes), sorted(homes)
