"""The suite's own rules: what it may run where, and what it leaves alone."""

import ast
import functools
import os
import re
import tomllib
from pathlib import Path

from conftest import _LONG

TESTS = Path(__file__).parent
PROJECT = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
FILES = sorted(TESTS.glob("test_*.py"))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def libraries(*groups: str) -> set[str]:
    """Return what the extras' packages are imported as."""
    names = {re.split(r"[\[>=<;]", one)[0].strip() for name in groups for one in EXTRAS[name]}
    renamed = {"tensorflow-cpu": "tensorflow", "scikit-learn": "sklearn", "dask": "distributed"}
    return {renamed.get(one, one) for one in names}


def marks(nodes: list[ast.expr]) -> set[str]:
    """Return the names after ``pytest.mark`` in decorators or a list of marks."""
    return set(re.findall(r"pytest\.mark\.(\w+)", " ".join(map(ast.unparse, nodes))))


def asked_for(function: ast.FunctionDef) -> set[str]:
    """Return the libraries without which a test is skipped."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    return {
        str(call.args[0].value)
        for call in calls
        if ast.unparse(call.func) in ("pytest.importorskip", "needs")
        and isinstance(call.args[0], ast.Constant)
    }


def test_what_needs_a_framework_is_marked_so() -> None:
    """`make test` has none of them: a test without the mark would be skipped in silence."""
    frameworks = libraries("frameworks", "clusters")
    for tree in map(tree_of, FILES):
        of_file: set[str] = set()
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                of_file = marks([node.value])
        for inner in ast.walk(tree):
            if isinstance(inner, ast.FunctionDef) and inner.name.startswith("test_"):
                asked = asked_for(inner) & frameworks
                assert not asked or "frameworks" in of_file | marks(inner.decorator_list), (
                    inner.name
                )


def test_what_people_install_is_looked_at_in_every_run() -> None:
    """`make test` leaves nothing of these files out."""
    for name in ("test_installed.py", "test_packaging.py", "test_habits.py"):
        assert not re.search(
            r"mark\.(slow|frameworks|browser|exports|needs_root)\b", (TESTS / name).read_text()
        ), name


def test_every_dependency_has_a_lowest_version() -> None:
    """`make test-lowest` installs them; one without a bound would be tested at its newest."""
    for requirement in (*PROJECT["dependencies"], *EXTRAS["test"]):
        assert re.fullmatch(r"[A-Za-z0-9_.-]+>=[0-9.]+", requirement), requirement


def test_make_test_installs_no_framework() -> None:
    names = libraries("test")
    assert not names & libraries("frameworks", "clusters")
    make = (TESTS.parent / "Makefile").read_text()
    (needs,) = re.findall(r"^test: (.*)$", make, re.MULTILINE)
    assert needs == "$(VENV)/.testing"
    assert '--editable ".[test]"' in make


def test_the_longest_files_are_there() -> None:
    """They are named to come first: one by an old name would come last."""
    assert {f"test_{name}" for name in _LONG} <= {path.stem for path in FILES}


def test_nothing_of_the_users_is_read_or_written() -> None:
    own = {os.environ[f"XDG_{kind}_HOME"] for kind in ("DATA", "CACHE", "CONFIG")}
    assert len(own) == 3
    assert all("advisor-tests-" in folder for folder in own)


def test_parameters_are_the_same_in_every_process() -> None:
    """pytest -n compares the names that its processes collect: nothing of now stands in them."""
    moving = re.compile(r"gzip\.compress\((?![^()]*mtime)|time\.time\(|uuid|os\.getpid\(")
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef):
                for one in node.decorator_list:
                    assert not moving.search(ast.unparse(one)), (path.name, node.name)
