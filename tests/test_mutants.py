"""Mutants: one change each that compiles, and tests that really come near the changed function."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import asdict
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
    return Related(
        ROOT,
        (
            "planners/links",
            "planners/layouts",
            "planners/memory",
            "planners/step",
            "collectors/hooks",
        ),
    )


def test_every_operator_number_and_choice_is_changed_once_and_no_words() -> None:
    found = {f"{one.before} -> {one.after}" for one in mutants.mutants_of(CODE, "f.py")}
    assert found == {
        "2 -> 4", "not a < b and a != 0 -> (not a < b or a != 0)", "not a < b -> (a < b)",
        "a < b -> (a >= b)", "a != 0 -> (a == 0)", "0 -> 1", "a += 3.5 -> a -= 3.5", "3.5 -> 7.0",
        "max(a, -b) / 4 -> (max(a, -b) * 4)", "max(a, -b) -> (min(a, -b))", "-b -> (b)", "4 -> 8",
    }  # fmt: skip


def test_numbers_that_change_no_answer_are_left_out_and_no_others() -> None:
    """Tolerances, seeds, waits, sizes of reads and where a text is cut: by where they stand."""
    code = """
def f(x, rate):
    sleep(2)
    draw = numpy.random.default_rng(5)
    text = file.read(1 << 20)[:90] + text.split(None, 3)[0] + join(timeout=7)
    return max(x + 1e-9, 1e-6) < 1e-12, seed(x + 11)
"""
    assert not {one.before for one in mutants.mutants_of(code, "f.py")} & {
        "2", "5", "1", "20", "90", "3", "7", "1e-9", "1e-6", "1e-12",
    }  # fmt: skip
    told = "x * 1e-6 + 0.1; y[:3]; z.split(None, 4)[1]; w.split(None, 6); v * 1e-9; seed(q[8])"
    found = {one.before for one in mutants.mutants_of(f"def f():\n    {told}", "f.py")}
    assert {"1e-6", "0.1", "3", "4", "1", "6", "1e-9", "8"} <= found


def test_what_survived_is_found_again_where_lines_have_moved(tmp_path: Path) -> None:
    before = list(mutants.mutants_of(CODE, "f.py"))
    kept = tmp_path / "kept.jsonl"
    verdicts = ["survived" if one.before == "a < b" else "killed" for one in before]
    rows = [asdict(one) | {"verdict": said} for one, said in zip(before, verdicts, strict=True)]
    kept.write_text("".join(json.dumps(row) + "\n" for row in rows))
    after = list(mutants.mutants_of("\n\n" + CODE, "f.py"))
    (found,) = mutants.survivors(kept, after)
    assert found.before == "a < b"
    assert found.line == 6


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
    (LINKS, "tensor_parallel_s", "tests/test_units_of_a_transformer.py::"),
    ("collectors/hooks/trace/whole.py", "_by_sums", "tests/test_rehearsal.py::"),
    ("collectors/hooks/gradient_norms.py", "_norm2", "tests/test_gradient_noise.py::"),
    ("collectors/hooks/loaders.py", "_note", "tests/test_collectors_waiting.py::"),
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


def test_a_warm_process_sees_a_change_wherever_it_stands_and_nothing_of_the_last_one(
    tmp_path: Path,
) -> None:
    """Bodies, nested functions, methods, defaults, calls kept at import; the file comes back."""
    code = (
        "import functools\n\n\n"
        "def f(a, b=2):\n    inner = lambda: a * b\n    return inner() + 3\n\n\n"
        "class C:\n    @functools.cache\n    def m(self):\n        return 7\n\n\n"
        "KEPT = C()\nKEPT.m()\n"
    )
    (tmp_path / "thing.py").write_text(code)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_thing.py").write_text(
        "import subprocess, sys\nimport thing\n\n\n"
        "def test_f():\n    assert thing.f(5) == 13\n\n\n"
        "def test_m():\n    assert thing.KEPT.m() == 7\n\n\n"
        "def test_other_program():\n    said = 'import thing; print(thing.f(1))'\n"
        "    done = subprocess.run([sys.executable, '-c', said], capture_output=True)\n"
        "    assert done.stdout == b'5\\n'\n"
    )
    orders = [("a * b", "a / b"), ("b=2", "b=4"), ("7", "8"), ("3", "4"), ("", "")]
    asked = [
        {"file": "thing.py", "start": code.index(old), "end": code.index(old) + len(old),
         "after": new, "tests": [f"tests/test_thing.py::{test}"], "limit_s": 60.0}
        for test in ("test_f", "test_m", "test_other_program") for old, new in orders
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "advisor.lab.speed.warm_tests"], cwd=tmp_path, check=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"},
        input="".join(json.dumps(one) + "\n" for one in asked), capture_output=True, text=True,
    )  # fmt: skip
    codes = [json.loads(line)[0] for line in done.stdout.splitlines()[1:]]
    assert codes == [*(1, 1, 0, 1, 0), *(0, 0, 1, 0, 0), *(1, 1, 0, 1, 0)]
    assert (tmp_path / "thing.py").read_text() == code
