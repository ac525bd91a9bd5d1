"""Which tests look at a function: by the names that they use, and that those whom they call use.

Nothing is run and nothing is kept: a map of coverage would be better at the edges and old after
every commit. A name is followed backwards, from a function to those that use it, a few steps; a
test counts for a name by how few tests use it, and less by every step between.
"""

from __future__ import annotations

import ast
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

# What looks at source, pages or packages alone would tell any change, or none.
BLIND: Final = {
    "test_architecture.py", "test_habits.py", "test_installed.py", "test_packaging.py",
    "test_suite.py", "test_voice.py", "test_docs_examples.py",
    "test_docs_quickstart.py", "test_docs_reference.py", "test_docs_pictures.py", "test_atomic.py",
    "test_zoo.py", "test_accuracy.py", "test_mutants.py", "test_report_browser.py",
    "test_ui_browser.py",
}  # fmt: skip
NOT_HERE: Final = {"slow", "frameworks", "browser", "exports", "needs_root"}
STEPS: Final = 4
FADING: Final = 0.35  # of a test's weight, by every step between it and the function
# Of a name's weight: a test whose file imports the module where the name stands (the function's
# own, or that of one on the way to it) or a name of it, one that imports from its room, and one
# that only uses the same name.
NEAR: Final = (1.0, 0.4, 0.03)
SAME_NAME: Final = 2  # modules with a function of the name: of more, nobody knows which is meant
MOST: Final = 30
LEAST: Final = 0.02
# Hooks run in the processes of recorded scripts: no name leads from a test to them, but the words
# of the scripts do (the names of a framework, of its classes and of what is recorded of them).
OF_RECORDING: Final = ("test_collectors", "test_rehearsal", "test_recorded", "test_main_path",
                       "test_rounds", "test_ranks", "test_gradient_noise", "test_course",
                       "test_certainty", "test_own_steps")  # fmt: skip
WORDS: Final = (3.0, 1.5)  # weights of a function's words and of its module's

Function = ast.FunctionDef | ast.AsyncFunctionDef


def names_in(node: ast.AST) -> set[str]:
    """Return what is named, called or reached into under a node."""
    found = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            found.add(one.id)
        elif isinstance(one, ast.Attribute):
            found.add(one.attr)
        elif isinstance(one, ast.arg):
            found.add(one.arg)  # pytest passes fixtures by the names of arguments
    return found


def words_in(node: ast.AST) -> set[str]:
    """Return the words of names and texts under a node, marked as words."""
    texts = [one.value for one in ast.walk(node)
             if isinstance(one, ast.Constant) and isinstance(one.value, str)]  # fmt: skip
    found = re.findall(r"[A-Za-z][a-z]+|[A-Z]{3,}", " ".join([*names_in(node), *texts]))
    return {f"'{word.lower()}" for word in found if len(word) > 3}


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, Function]]:
    """Yield a module's functions and methods, each with the name of its class, or none."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield within, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, node.name)


class Related:
    """The tests of a tree, ranked by how near they come to a function."""

    def __init__(self, tree: Path, folders: Iterable[str]) -> None:
        """``folders``: what the product consists of, below ``tree``."""
        self.tree = tree
        self.users: defaultdict[str, set[str]] = defaultdict(set)
        self.private: defaultdict[str, set[str]] = defaultdict(set)  # by module and name
        self.public: dict[Path, set[str]] = {}
        self.defined: defaultdict[str, set[Path]] = defaultdict(set)
        self.near: dict[tuple[str, Path], float] = {}
        for folder in folders:
            for path in sorted((tree / folder).rglob("*.py")):
                self._read(path, ast.parse(path.read_text(encoding="utf-8")))
        self.tests: dict[str, set[str]] = {}
        self.imports: dict[str, list[tuple[str, set[str]]]] = {}
        shared = self._helpers(tree / "tests" / "conftest.py", {})
        for path in sorted((tree / "tests").glob("test_*.py")):
            if path.name not in BLIND:
                self._read_tests(path, shared)
        self.words = {
            test: sum(name.startswith("'") for name in names) for test, names in self.tests.items()
        }
        self.used_by: defaultdict[str, set[str]] = defaultdict(set)
        for test, names in self.tests.items():
            for name in names:
                self.used_by[name].add(test)

    def _read(self, path: Path, tree: ast.Module) -> None:
        self.public[path] = {path.stem} | {
            node.name for node in tree.body if isinstance(node, Function | ast.ClassDef)
        }
        for node in tree.body:  # a table of functions is how some are called
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        for name in names_in(node.value):
                            self.users[name].add(target.id)
        for owner, node in functions(tree):
            self.defined[node.name].add(path)
            user = owner if owner and (node.name.startswith("__")) else node.name
            for name in names_in(node) - {user}:
                if name.startswith("_"):
                    self.private[f"{path} {name}"].add(user)
                else:
                    self.users[name].add(user)

    @staticmethod
    def _helpers(path: Path, known: dict[str, set[str]]) -> dict[str, set[str]]:
        """Return what every function and constant of a file names, its own helpers followed."""
        tree = ast.parse(path.read_text(encoding="utf-8"))
        direct = dict(known)
        for node in tree.body:
            if isinstance(node, Function | ast.ClassDef):
                direct[node.name] = names_in(node) | words_in(node)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        direct[target.id] = names_in(node.value) | words_in(node.value)
        for _ in range(STEPS):
            direct = {
                name: used.union(*(direct[one] for one in used & direct.keys()))
                for name, used in direct.items()
            }
        return direct

    def _read_tests(self, path: Path, shared: dict[str, set[str]]) -> None:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(f"mark.{one}" in ast.unparse(node) for one in NOT_HERE for node in tree.body
               if isinstance(node, ast.Assign)):  # fmt: skip
            return
        names = self._helpers(path, shared)
        self.imports[path.name] = [
            (node.module or "", {one.name for one in node.names})
            for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        ]  # fmt: skip
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = {names.attr for one in node.decorator_list for names in ast.walk(one)
                         if isinstance(names, ast.Attribute)}  # fmt: skip
                if not marks & NOT_HERE:
                    self.tests[f"tests/{path.name}::{node.name}"] = names[node.name]

    def of(self, path: Path, function: str, owner: str = "") -> list[str]:
        """Return the tests of a function, the nearest first; none where no test comes near."""
        level = {owner} if owner else set()
        if not owner or not (function.startswith("__") or self._is_common(function)):
            level.add(function)
        seen: set[str] = set()
        scores: defaultdict[str, float] = defaultdict(float)
        for step in range(STEPS):
            level -= seen
            for name in level:
                places = {path} | (self.defined[name] if step else set())
                self._score(scores, name, places, FADING**step / math.sqrt(len(level)))
            seen |= level
            level = set().union(
                *(self.private[f"{path} {name}"] if name.startswith("_") else self.users[name]
                  for name in level)
            )  # fmt: skip
            level = {name for name in level if not self._is_common(name)}
        if "collectors" in path.parts or not scores:
            self._score_words(scores, path, function)
        for test in self.tests:  # where no name is told, the module's own file of tests
            scores[test] += 0.2 * self._nearness(test, path)
        ranked = sorted(scores, key=lambda test: (-scores[test], test))
        return [test for test in ranked[:MOST] if scores[test] > LEAST]

    def _is_common(self, name: str) -> bool:
        """Whether so many modules have a function of the name that it leads anywhere."""
        return len(self.defined[name]) > SAME_NAME

    def _score(
        self, scores: defaultdict[str, float], name: str, places: set[Path], weight: float
    ) -> None:
        tests = self.used_by[name]
        rare = math.log((1 + len(self.tests)) / (1 + len(tests)))
        for test in tests:
            near = max(self._nearness(test, one) for one in places)
            scores[test] += weight * rare * near

    def _score_words(self, scores: defaultdict[str, float], path: Path, function: str) -> None:
        """Add what tests have of a function's words and of its module's, rare ones the more."""
        tree = ast.parse(path.read_text(encoding="utf-8"))
        own = [words_in(node) for _, node in functions(tree) if node.name == function]
        for weight, words in zip(WORDS, (set().union(*own), words_in(tree)), strict=True):
            found: defaultdict[str, float] = defaultdict(float)
            for word in words:
                self._score(found, word, {path}, weight / max(len(words), 1))
            for test, score in found.items():
                scores[test] += score * 10 / math.sqrt(self.words[test])

    def _nearness(self, test: str, path: Path) -> float:
        file = test.partition("::")[0].removeprefix("tests/")
        if (file, path) not in self.near:
            self.near[file, path] = self._measured(file, path)
        near = self.near[file, path]
        if near < NEAR[1] and "collectors" in path.parts and file.startswith(OF_RECORDING):
            return NEAR[1] * (2.0 if path.stem.rstrip("s") in test else 1.0)
        return near

    def _measured(self, file: str, path: Path) -> float:
        room = ".".join(path.parts[-3:-1]).removeprefix(f"{self.tree.name}.")
        near = NEAR[2]
        for module, names in self.imports[file]:
            if room in module:
                if module.endswith(f".{path.stem}") or names & self.public[path]:
                    return NEAR[0]
                near = NEAR[1]
        return near
