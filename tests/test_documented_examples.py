"""The examples in docstrings give what they show."""

import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from collecting import ROOT


def _with_examples() -> Iterator[str]:
    """Yield the modules whose text has an example: read, not imported, until a test runs it."""
    for room in ("advisor", "planners", "collectors"):
        for path in sorted(Path(ROOT, room).rglob("*.py")):
            inside = path.relative_to(ROOT).with_suffix("")
            below_a_link = any(folder.is_symlink() for folder in path.parents)
            if not below_a_link and ">>> " in path.read_text():
                yield ".".join(inside.parts if room == "advisor" else ("advisor", *inside.parts))


@pytest.mark.parametrize("name", sorted(_with_examples()))
def test_the_examples_of_a_module_are_true(name: str) -> None:
    done = doctest.testmod(importlib.import_module(name))
    assert done.attempted > 0
    assert done.failed == 0
