"""How many small faults the tests notice, in two trees of this repository with the same faults.

    python -m advisor.lab.speed.mutants BEFORE AFTER [--mutants 24] [--seed 1]

A function that stands in both trees with the same body is drawn, and one operator, comparison or
number in it is changed; the test files that name the function, or its module, are run until one
fails. Only planners, memory, ranking and recorder are drawn from. Tests that find nothing in
either tree are told by the mutant's place.
"""

from __future__ import annotations

import ast
import copy
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from advisor.lab import frame

FOLDERS = ("planners", "collectors", "advisor/ranking", "advisor/rank", "advisor/ways")
LEFT_OUT = ("inject", "workloads", "minicloud")
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
MOST_FILES = 5
TIMEOUT_S = 240


@dataclass(frozen=True)
class Place:
    """A function in a tree."""

    path: Path
    name: str
    body: str  # its syntax, without the docstring


def plain(node: ast.FunctionDef) -> str:
    """Return a function's syntax without its docstring and annotations."""
    node = copy.deepcopy(node)
    if ast.get_docstring(node) is not None:
        node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(ast.Module(body=node.body, type_ignores=[])) + ast.dump(node.args)


def functions(tree: Path) -> dict[tuple[str, str], Place]:
    """Return the functions of a tree by name and syntax; those that stand twice are left out."""
    found: dict[tuple[str, str], list[Place]] = {}
    for folder in FOLDERS:
        for path in sorted((tree / folder).rglob("*.py")):
            if any(part in LEFT_OUT for part in path.parts):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef) and len(node.body) > 1:
                    place = Place(path, node.name, plain(node))
                    found.setdefault((node.name, place.body), []).append(place)
    return {key: places[0] for key, places in found.items() if len(places) == 1}


def spots(node: ast.FunctionDef) -> Iterator[tuple[ast.AST, str]]:
    """Yield what can be changed in a function: its node and the name of its field."""
    start = 1 if ast.get_docstring(node) is not None else 0
    for part in node.body[start:]:
        for one in ast.walk(part):
            if isinstance(one, ast.BinOp | ast.BoolOp) and type(one.op) in SWAPS:
                yield one, "op"
            elif isinstance(one, ast.Compare) and type(one.ops[0]) in SWAPS:
                yield one, "ops"
            elif isinstance(one, ast.Constant) and type(one.value) in (int, float):
                yield one, "value"


def mutated(place: Place, number: int) -> str | None:
    """Return the file's text with one change in the function; None where nothing can change."""
    tree = ast.parse(place.path.read_text(encoding="utf-8"))
    node = next(
        one for one in ast.walk(tree)
        if isinstance(one, ast.FunctionDef) and one.name == place.name and plain(one) == place.body
    )  # fmt: skip
    changeable = list(spots(node))
    if not changeable:
        return None
    one, field = changeable[number % len(changeable)]
    if field == "op":
        one.op = SWAPS[type(one.op)]()  # type: ignore[attr-defined]
    elif field == "ops":
        one.ops[0] = SWAPS[type(one.ops[0])]()  # type: ignore[attr-defined]
    else:
        one.value += 1  # type: ignore[attr-defined]
    return ast.unparse(tree)


def tests_of(tree: Path, place: Place) -> list[str]:
    """Return the test files that name the function, else its module, those that do most first."""
    texts = {p: p.read_text(encoding="utf-8") for p in sorted((tree / "tests").glob("test_*.py"))}
    module = place.path.stem
    for word in (place.name, f".{module} import", module):
        naming = sorted((-text.count(word), p.name) for p, text in texts.items() if word in text)
        if naming and not (word == place.name and word.startswith("_")):
            return [f"tests/{name}" for _, name in naming[:MOST_FILES]]
    return []


def is_noticed(tree: Path, place: Place, number: int) -> bool | None:
    """Return whether a test fails on the changed function; None where it cannot be changed."""
    text, files = mutated(place, number), tests_of(tree, place)
    if text is None or not files:
        return None
    kept = place.path.read_text(encoding="utf-8")
    place.path.write_text(text, encoding="utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p",
             "no:randomly", "-m", "not slow and not frameworks and not browser", *files],
            cwd=tree, env=os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
            capture_output=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return True
    finally:
        place.path.write_text(kept, encoding="utf-8")
    return done.returncode != 0


def main() -> None:
    """Draw, change, test in both trees, print the two scores."""
    trees = {"nargs": 2, "type": Path, "metavar": "TREE"}
    asked = frame.options(__doc__, {"trees": trees, "--mutants": 24, "--seed": 1})
    before, after = (functions(tree.resolve()) for tree in asked.trees)
    both = sorted(before.keys() & after.keys())
    draw = random.Random(asked.seed)
    draw.shuffle(both)
    print(f"{len(both)} functions stand in both trees", flush=True)
    noticed = [0, 0]
    drawn = 0
    for key in both:
        number = draw.randrange(1000)
        seen = [
            is_noticed(tree.resolve(), places[key], number)
            for tree, places in zip(asked.trees, (before, after), strict=True)
        ]
        if None in seen:
            continue
        drawn += 1
        for at, one in enumerate(seen):
            noticed[at] += bool(one)
        print(f"{after[key].path.name}: {key[0]}: {seen[0]} {seen[1]}", flush=True)
        if drawn == asked.mutants:
            break
    print(f"noticed before {noticed[0]} of {drawn}, after {noticed[1]} of {drawn}")


if __name__ == "__main__":
    main()
