"""Mutants: one change each that compiles, and tests that really come near the changed function."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from advisor.lab.speed import mutants
from advisor.lab.speed.related_tests import Related

ROOT = Path(__file__).parents[1]
LINKS = "planners/links/collectives.py"

CODE = '''
def f(a, b=2):
    """Says 1 + 1."""
    if not a < b and a != 0:
        raise ValueError(f"{a + 1} " + "words" * 2)
    a += 3.5
    return max(a, -b) / 4
'''


@cache
def related() -> Related:
    return Related(ROOT, ("planners/links", "planners/layouts", "planners/memory"))


def test_every_operator_number_and_choice_is_changed_once_and_no_words() -> None:
    found = {f"{one.before} -> {one.after}" for one in mutants.mutants_of(CODE, "f.py")}
    assert found == {
        "2 -> 4", "not a < b and a != 0 -> (not a < b or a != 0)", "not a < b -> (a < b)",
        "a < b -> (a >= b)", "a != 0 -> (a == 0)", "0 -> 1", "a += 3.5 -> a -= 3.5", "3.5 -> 7.0",
        "max(a, -b) / 4 -> (max(a, -b) * 4)", "max(a, -b) -> (min(a, -b))", "-b -> (b)", "4 -> 8",
    }  # fmt: skip


def test_a_mutant_compiles_and_is_another_program() -> None:
    raw = (ROOT / LINKS).read_bytes()
    kept = ast.dump(ast.parse(raw))
    some = list(mutants.mutants_of(raw.decode(), LINKS))
    assert len(some) > 100
    for one in some[::7]:
        changed = raw[: one.start] + one.after.encode() + raw[one.end :]
        assert ast.dump(ast.parse(changed)) != kept, str(one)


def test_runs_of_a_week_look_at_different_places_in_one_order() -> None:
    some = list(mutants.mutants_of((ROOT / LINKS).read_text(encoding="utf-8"), LINKS))
    whole = mutants.drawn(some, 7, 0, len(some))
    assert mutants.drawn(some, 7, 12, 12) == whole[12:24]
    assert sorted(map(str, whole)) == sorted(map(str, some))
    assert mutants.drawn(some, 8, 0, 12) != whole[:12]


@pytest.mark.parametrize(("path", "function", "test"), [
    (LINKS, "ring_all_reduce_s", "tests/test_collectives.py::"),
    ("planners/layouts/time.py", "offload_s", "tests/test_layout_"),
    ("planners/memory/recorded_steps.py", "_last_that_fits", "tests/test_memory.py::"),
])  # fmt: skip
def test_the_nearest_tests_are_those_of_the_function(path: str, function: str, test: str) -> None:
    nearest = related().of(ROOT / path, function)
    assert nearest[0].startswith(test)
    assert len(nearest) == len(set(nearest))


def test_too_few_killed_fails_and_what_is_not_settled_counts_for_nothing() -> None:
    some = ["killed"] * 6 + ["survived"] * 5 + ["unsettled"] * 9
    assert mutants.score(some, 0.5) == 0
    assert mutants.score([*some, "survived", "survived"], 0.5) == 1
    assert mutants.score([], 0.5) == 0
