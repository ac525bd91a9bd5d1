"""The tables of keys beside this file, read once: tools, their facts, words and what they mean."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from advisor.collectors import bounded


@cache
def tables() -> Mapping[str, Any]:
    """Return ``tables.toml``."""
    return bounded.read_toml(Path(__file__).with_name("tables.toml"))


def tools() -> Mapping[str, Any]:
    """Return the tools by the names that ``--as`` takes."""
    found: Mapping[str, Any] = tables()["tools"]
    return found


def meanings(name: str) -> Mapping[str, str]:
    """Return what the words of a table mean."""
    found: Mapping[str, str] = tables()["words"][name]
    return found


@cache
def is_elsewhere(tool: str) -> re.Pattern[str]:
    """Return the pattern of keys of a tool that change no step."""
    words = "|".join(tables()["elsewhere"].split())
    same = "|".join(fnmatch.translate(one) for one in tools()[tool]["same"].split())
    return re.compile(rf"{same}|.*?(?:^|(?<=[._]))(?:{words})(?:[._].*)?\Z", re.S)
