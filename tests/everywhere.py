"""A name replaced wherever it was imported to: rooms import each other's names, not modules."""

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest


def replace_everywhere(
    monkeypatch: pytest.MonkeyPatch, home: ModuleType | str, name: str, value: Any
) -> None:
    """Replace ``home.name``, and the same object by the same name in our other modules."""
    module = importlib.import_module(home) if isinstance(home, str) else home
    original = getattr(module, name)
    for other in [m for n, m in sys.modules.items() if n.partition(".")[0] == "advisor"]:
        if vars(other).get(name, not original) is original:
            monkeypatch.setattr(other, name, value)
