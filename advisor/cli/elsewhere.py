"""Verbs that others bring: found by the entry points of ``advisor.verbs``, loaded when called.

An entry point names a module like those of ``advisor.cli``. The laboratory brings its verbs so:
nothing of the product imports it.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from advisor.data import LABORATORY_HINT
from advisor.errors import UsageError

GROUP: Final = "advisor.verbs"


def load(name: str) -> Any:
    """Return the module that an entry point names.

    Raises UsageError if nobody brings it, or something that it needs is not installed.
    """
    found = _by_name().get(name)
    if found is None:
        raise UsageError(f"advisor {name} is not installed", hint=LABORATORY_HINT)
    try:
        return found.load()
    except ModuleNotFoundError as error:
        raise UsageError(
            f"advisor {name} needs {error.name}, which is not installed", hint=LABORATORY_HINT
        ) from error


@cache
def _by_name() -> dict[str, EntryPoint]:
    """Return the entry points by name: those of a checkout, else those of what is installed."""
    checkout = Path(__file__).resolve().parents[2] / "pyproject.toml"
    told = {}
    if checkout.is_file():
        project = tomllib.loads(checkout.read_text(encoding="utf-8")).get("project", {})
        told = project.get("entry-points", {}).get(GROUP, {})
    own = [EntryPoint(name=name, value=value, group=GROUP) for name, value in told.items()]
    return {one.name: one for one in (*entry_points(group=GROUP), *own)}
