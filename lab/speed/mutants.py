"""How many small faults the tests notice: a sample of changed operators, comparisons and numbers.

    python -m advisor.lab.speed.mutants [--mutants 12] [--seed WEEK] [--from N] [--at-least 0.5]
    python -m advisor.lab.speed.mutants --again FILE      # once more what survived in a kept run

What decides (planners, ranking, ways of training, completion, the recorder) is copied to a
temporary folder; one place of the copy is changed, and the tests that come nearest to it
(``related_tests``) run until one fails. A test that fails on the unchanged copy too is no
evidence. The order of the places is drawn by the week; where in it a run begins, by the number of
commits, so that a week's submissions look at different places. What survived is printed with
file, line, before and after; ``--append`` keeps every answer, a JSON line each.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from advisor.lab import frame
from advisor.lab.speed.related_tests import Related, functions

CHANGED: Final = (
    "planners", "advisor/rank", "advisor/estimate/ways", "advisor/estimate/completion.py",
    "advisor/estimate/spot.py", "collectors",
)  # fmt: skip
# What only the tests of `make test-frameworks` see, and what a child process runs once.
LEFT_OUT: Final = ("inject", "frameworks")
PRODUCT: Final = ("planners", "collectors", *(
    f"advisor/{room}" for room in (
        "ask", "jobs", "machines", "catalogue", "records", "learned", "estimate", "rank", "advice",
        "simulate", "answer", "words", "show", "report", "ui", "export", "gate", "train", "cli",
    )
))  # fmt: skip
SWAPS: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
OTHER_CALLS: Final = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "ceil": "floor",
    "floor": "ceil", "any": "all", "all": "any", "argmin": "argmax", "argmax": "argmin",
}  # fmt: skip
TOLERANCE: Final = 1e-6
LIMITS: Final = {"max", "min", "maximum", "minimum", "isclose", "allclose"}
LONG_TEXT: Final = 40  # characters: an error's own words, a line of a log
# Functions and arguments that take a seed, seconds to wait, or how much is read or kept at a time.
UNHEARD: Final = {
    "default_rng", "Random", "seed", "random_state", "sleep", "timeout", "timeout_s", "read",
    "read1", "recv", "stacklevel", "maxsize", "maxlen", "indent", "rtol", "atol", "rel_tol",
    "abs_tol",
}  # fmt: skip
EQUIVALENT: Final = Path(__file__).with_name("equivalent_mutants.txt")
FEWEST: Final = 10  # settled mutants that a score can fail by: fewer say nothing
LIMIT_S: Final = 600.0  # for the tests of one mutant that wait; what computes has its own limits
TESTED: Final = ("datasets", "lab", "examples", "docs", "tests", "advisor", "planners",
                 "collectors", "trained_models", "pyproject.toml", "README.md", "CHANGELOG.md",
                 "predictor.py", "mkdocs.yml", "Makefile", ".ci")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one expression; ``start`` and ``end`` count characters of the file."""

    file: str
    line: int
    owner: str  # the class of a method, or nothing
    function: str
    start: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.before} -> {self.after}"

    @property
    def name(self) -> str:
        """What stays when lines move."""
        return f"{self.file} {self.function}: {self.before} -> {self.after}"


def changed(node: ast.AST) -> ast.AST | None:
    """Return an expression with one fault; None for what is left alone."""
    other = copy.copy(node)
    match other:
        case ast.BinOp() if _is_text(other):
            return None
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign() if type(other.op) in SWAPS:
            other.op = SWAPS[type(other.op)]()  # type: ignore[assignment]
        case ast.Compare() if type(other.ops[0]) in SWAPS:
            other.ops = [SWAPS[type(other.ops[0])](), *other.ops[1:]]  # type: ignore[list-item]
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            other.value = number * 2 if number else 1
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return other.operand
        case ast.Call(func=ast.Name(id=name)) if name in OTHER_CALLS:
            other.func = ast.Name(OTHER_CALLS[name])
        case ast.Call(func=ast.Attribute(attr=name) as method) if name in OTHER_CALLS:
            other.func = ast.Attribute(method.value, OTHER_CALLS[name])
        case _:
            return None
    return other


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(one, ast.JoinedStr)
        or (isinstance(one, ast.Constant) and isinstance(one.value, str))
        for one in sides
    )


def looked_at(node: ast.AST, left: tuple[ast.AST, ...] = ()) -> Iterator[ast.AST]:
    """Yield what is computed under a node: no annotations, no words of errors and answers.

    Nor numbers that change no answer when they are doubled (``of_no_matter``).
    """
    yield node
    left = (*left, *of_no_matter(node))
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for one in value if isinstance(value, list) else [value]:
            is_words = not isinstance(one, ast.AST) or isinstance(one, ast.Raise | ast.JoinedStr)
            if not is_words and not any(one is other for other in left):
                yield from looked_at(one, left)


def of_no_matter(node: ast.AST) -> Sequence[ast.AST]:
    """Return the numbers under a node that could as well be twice as large.

    Tolerances (up to a millionth, added, compared, or the least or most of something), seeds,
    how long something waits and how much is read at a time, after how many characters a text is
    cut off, and how often a text is split of which the first part alone is taken.
    """
    match node:
        case ast.BinOp(op=ast.Add() | ast.Sub(), left=a, right=b):
            return [one for one in (a, b) if _is_tolerance(one)]
        case ast.Compare(left=a, comparators=others):
            return [one for one in (a, *others) if _is_tolerance(one)]
        case ast.Call(
            func=ast.Name(id=name) | ast.Attribute(attr=name), args=args, keywords=named
        ):
            found = [one for one in args if name in LIMITS and _is_tolerance(one)]
            found += [one for one in args if name in UNHEARD]
            found += [one.value for one in named if name in UNHEARD or one.arg in UNHEARD]
            return [
                one for one in found if not any(isinstance(x, ast.Name) for x in ast.walk(one))
            ]
        case ast.Subscript(value=ast.Call(func=ast.Attribute(attr="split" | "rsplit")) as call):
            is_first = isinstance(node.slice, ast.Constant) and node.slice.value == 0
            return call.args[1:] if is_first else []
        case ast.Subscript(slice=ast.Slice(lower=None, upper=ast.Constant(value=int() as end))):
            return [node.slice] if end >= LONG_TEXT else []
    return []


def _is_tolerance(node: ast.AST) -> bool:
    is_number = isinstance(node, ast.Constant) and isinstance(node.value, float)
    return is_number and 0 < node.value <= TOLERANCE  # type: ignore[attr-defined]


def mutants_of(text: str, file: str) -> Iterator[Mutant]:
    """Yield every change of a file's functions, in the order of their places."""
    tree = ast.parse(text)
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    raw = text.encode()
    for owner, node in functions(tree):
        for one in looked_at(node):
            other = changed(one)
            if other is None:
                continue
            at = starts[one.lineno - 1] + one.col_offset  # type: ignore[attr-defined]
            to = starts[one.end_lineno - 1] + one.end_col_offset  # type: ignore[attr-defined]
            after = ast.unparse(other)
            if not isinstance(one, ast.Constant | ast.AugAssign):
                after = f"({after})"
            yield Mutant(
                file=file, line=one.lineno, owner=owner,  # type: ignore[attr-defined]
                function=node.name, start=at, end=to,
                before=" ".join(raw[at:to].decode().split()), after=after,
            )  # fmt: skip


def population(tree: Path) -> list[Mutant]:
    """Return every mutant of what decides, but for those listed as no change at all."""
    left = equivalent()
    found: list[Mutant] = []
    for place in CHANGED:
        paths = [tree / place] if place.endswith(".py") else sorted((tree / place).rglob("*.py"))
        for path in paths:
            name = path.relative_to(tree)
            if not set(LEFT_OUT) & set(name.parts):
                found += mutants_of(path.read_text(encoding="utf-8"), name.as_posix())
    return [one for one in found if one.name not in left]


def equivalent() -> set[str]:
    """Return the mutants that change no answer: a line each, the reason behind ``#``."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    return {line.partition("  #")[0].strip() for line in lines if not line.startswith("#")}


def drawn(mutants: Sequence[Mutant], seed: int, start: int, count: int) -> list[Mutant]:
    """Return ``count`` mutants of the seed's order, from a place in it.

    The order is that of hashes of seed and name: whatever else a commit changes, the rest stay in
    the order that they had.
    """
    order = sorted(mutants, key=lambda one: hashlib.sha256(f"{seed} {one.name}".encode()).digest())
    return [order[(start + at) % len(order)] for at in range(min(count, len(order)))]


def survivors(kept: Path, mutants: Sequence[Mutant]) -> list[Mutant]:
    """Return those of today's mutants that survived in a kept run: by name, lines may have moved.

    A name that stands in several places brings them all.
    """
    rows = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    names = {
        f"{row['file']} {row['function']}: {row['before']} -> {row['after']}"
        for row in rows if row["verdict"] == "survived"
    }  # fmt: skip
    return [one for one in mutants if one.name in names]


class Bench:
    """A copy of the tree in which one place at a time is wrong."""

    def __init__(self, tree: Path, place: Path) -> None:
        self.place = place
        for name in TESTED:
            if (tree / name).is_dir():
                skip = shutil.ignore_patterns("*.egg-info", ".hypothesis")
                shutil.copytree(tree / name, place / name, symlinks=True, ignore=skip)
            elif (tree / name).is_file():
                shutil.copy2(tree / name, place / name)
        self.related = Related(place, PRODUCT)
        self.sound: dict[str, bool] = {}
        self.warm = _warm(place)

    def judge(self, mutant: Mutant) -> tuple[str, str]:
        """Return ``killed``, ``survived`` or ``unsettled``, and by which test or why."""
        tests = self.related.of(self.place / mutant.file, mutant.function, mutant.owner)
        if not tests:
            return "survived", "no test comes near"
        done, said = self._run(mutant, tests)
        if done == 0:
            return "survived", f"{len(tests)} tests"
        failed = re.search(r"^(?:FAILED|ERROR) (tests/\S+)", said, re.MULTILINE)
        if failed is None:
            return ("killed", "nothing could be imported") if done > 1 else ("unsettled", "no end")
        name = failed[1].partition("[")[0]
        if name not in self.sound:
            self.sound[name] = (
                self._run(replace(mutant, end=mutant.start, after=""), [name])[0] == 0
            )
        return ("killed", name) if self.sound[name] else ("unsettled", f"{name} fails without")

    def _run(self, mutant: Mutant, tests: Sequence[str]) -> tuple[int, str]:
        """Run tests until one fails; -1 where time ran out."""
        order = {"file": mutant.file, "start": mutant.start, "end": mutant.end,
                 "after": mutant.after, "tests": tests, "limit_s": LIMIT_S}  # fmt: skip
        assert self.warm.stdin is not None
        assert self.warm.stdout is not None
        self.warm.stdin.write(json.dumps(order) + "\n")
        self.warm.stdin.flush()
        done, said = json.loads(self.warm.stdout.readline())
        return done, said

    def close(self) -> None:
        """End the process that ran tests."""
        self.warm.communicate()


def _warm(tree: Path) -> subprocess.Popen[str]:
    """Start what runs the tests of a tree (``warm_tests``), and wait until it has imported all."""
    given = os.environ | {
        "PYTHONPATH": str(tree),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    given.pop("PYTHONDONTWRITEBYTECODE", None)  # every fork would compile its tests again
    started = subprocess.Popen(
        [sys.executable, "-m", "advisor.lab.speed.warm_tests"], cwd=tree, env=given,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert started.stdout is not None
    started.stdout.readline()
    return started


def week(now: datetime) -> int:
    """Return the seed of a week: 202648 in the week of 24 November 2026."""
    year, number, _ = now.isocalendar()
    return year * 100 + number


def commits() -> int:
    """Return how many commits there are; 0 outside a repository."""
    asked = ["git", "-C", str(frame.ROOT), "rev-list", "--count", "HEAD"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Draw, change, test, print what survived and the score; 1 below ``--at-least``."""
    asked = frame.options(__doc__, {
        "--mutants": (12, "how many places are changed"),
        "--seed": (week(datetime.now(UTC)), "of the order of places; this week's unless given"),
        "--from": (-1, "where in that order to begin; by the number of commits unless given"),
        "--seconds": (600.0, "no mutant is begun after so many seconds"),
        "--at-least": (0.0, "the share killed under which the command fails"),
        "--append": Path,
        "--within": ("", "change only files whose path contains this"),
        "--again": Path,
    }, argv)  # fmt: skip
    began, answers = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="advisor-mutants-") as place:
        bench = Bench(frame.ROOT, Path(place))
        mutants = [one for one in population(bench.place) if asked.within in one.file]
        start = vars(asked)["from"]
        start = commits() * asked.mutants if start < 0 else start
        print(f"{len(mutants)} places; seed {asked.seed}, from {start}", flush=True)
        chosen = drawn(mutants, asked.seed, start, asked.mutants)
        if asked.again:
            chosen = survivors(asked.again, mutants)
        for one in chosen:
            if time.monotonic() - began > asked.seconds:
                break
            at = time.monotonic()
            verdict, by = bench.judge(one)
            answers.append(verdict)
            print(f"{verdict:9} {one}  [{by}; {time.monotonic() - at:.0f} s]", flush=True)
            if asked.append:
                with asked.append.open("a", encoding="utf-8") as kept:
                    kept.write(json.dumps(asdict(one) | {"verdict": verdict, "by": by}) + "\n")
        bench.close()
    return score(answers, asked.at_least)


def score(answers: Sequence[str], least: float) -> int:
    """Print how many of the settled mutants were killed; return 1 where too few were."""
    killed, survived = answers.count("killed"), answers.count("survived")
    share = killed / max(killed + survived, 1)
    print(f"killed {killed} of {killed + survived} ({100 * share:.0f} %); "
          f"not settled {answers.count('unsettled')}")  # fmt: skip
    return int(killed + survived >= FEWEST and share < least)


if __name__ == "__main__":
    sys.exit(main())
