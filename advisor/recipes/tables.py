"""The tables of keys beside this file, read once: tools, their facts, words and what they mean."""

from __future__ import annotations

import csv
import fnmatch
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from advisor import data
from advisor.collectors import bounded
from advisor.recipes.text import plain


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


@cache
def shipped(tool: str) -> Mapping[str, dict[str, Any]]:
    """Return the recipes that a tool brings with it, by their names, as keys of its files."""
    if (name := tools()[tool].get("ships")) is None:
        return {}
    path = data.root("datasets") / "recipes" / f"{name}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = [{n: plain(v) for n, v in row.items() if v} for row in csv.DictReader(file)]
    return {str(row.pop("recipe")): row for row in rows}
