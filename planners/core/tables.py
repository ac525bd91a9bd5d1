"""Tables of published facts, which lie as TOML beside the module that reads them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def read_table(path: Path) -> Any:
    """Return a table of TOML with tuples for its arrays, so that it can be shared."""
    return _frozen(tomllib.loads(path.read_text(encoding="utf-8")))


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _frozen(one) for name, one in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
