"""No circle of imports, and one meaning for every class name.

The import contracts (``[tool.importlinter]``) hold the layers; this holds what they cannot see:
circles inside a room, those hidden in functions and behind ``TYPE_CHECKING`` included.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from advisor.lab.score import PROTOCOLS

ROOT = Path(__file__).parents[1]
GROUND = ("collectors", "planners")
LINKS = (*GROUND, "lab", "datasets", "trained_models")

# Programs that are run by hand: a world each.
PROGRAMS = tuple(f"advisor.lab.{room}." for room in ("experiments", "speed"))

Graph = dict[str, set[str]]


@cache
def modules() -> dict[str, ast.Module]:
    """Every module by its name, parsed; the links of the checkout are followed once."""
    found = {}
    for top in ("advisor", "lab", *GROUND):
        for file in sorted((ROOT / top).rglob("*.py")):
            parts = list(file.relative_to(ROOT).with_suffix("").parts)
            if top == "advisor" and len(parts) > 1 and parts[1] in LINKS:
                continue
            found[_name(parts)] = ast.parse(file.read_text(), str(file))
    return found


def _name(parts: list[str]) -> str:
    if parts[-1] == "__init__":
        parts = [*parts[:-1], ""]
    if parts[0] != "advisor":
        parts = ["advisor", *parts]
    return ".".join(parts)  # a package ends in a dot: it is told from its modules


def imports() -> Graph:
    graph = {}
    for name, tree in modules().items():
        inside = name.rpartition(".")[0].split(".")
        graph[name] = {
            target
            for node in ast.walk(tree)
            for full in _targets(node, inside)
            if (target := _resolved(full))
        }
    return graph


def _targets(node: ast.AST, inside: list[str]) -> Iterator[str]:
    """Return what one statement imports, as far as names go; ``inside`` is its package."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = inside[: len(inside) - node.level + 1]
            base = ".".join([*above, base] if base else above)
        yield from (f"{base}.{alias.name}" for alias in node.names)


def _resolved(full: str) -> str:
    """Return the module that ``a.b.c`` is or lies in."""
    for name in (full, f"{full}.", full.rpartition(".")[0], full.rpartition(".")[0] + "."):
        if name in modules():
            return name
    return ""


def circles(graph: Graph) -> list[tuple[str, ...]]:
    """Return the strongly connected components of more than one module (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(tuple(sorted(stack[at:])))
            del stack[at:]

    for node in graph:
        if node not in index:
            visit(node)
    return found


def test_a_circle_is_found() -> None:
    chain = {"a": {"b"}, "b": {"c"}, "c": set()}
    assert circles(chain) == []
    assert circles({**chain, "c": {"b"}}) == [("b", "c")]


def test_the_graph_has_what_only_some_statements_show() -> None:
    graph = imports()
    # Inside a function, relative, of a package, and behind TYPE_CHECKING.
    assert "advisor.simulate." in graph["advisor.cli.simulate"]
    assert "advisor.collectors.hooks.session" in graph["advisor.collectors.hooks.boot"]
    assert "advisor.collectors.hooks.state" in graph["advisor.collectors.hooks.chores"]
    assert "advisor.catalogue." in graph["advisor.cli.catalogue"]


def test_no_circle_of_imports() -> None:
    # A package's __init__ offers its modules' names: what is imported through it, by a module of
    # its own, is a circle too.
    assert circles(imports()) == []


def room(module: str) -> str:
    """Return the room that a module lies in; those beside the rooms are open to all."""
    parts = module.split(".")
    depth = 3 if parts[1] in GROUND else 2
    return ".".join(parts[:depth]) if len(parts) > depth else ""


def test_rooms_are_entered_by_their_doors() -> None:
    """A room's face is what its ``__init__.pyi`` lists; the rest is its own.

    The laboratory fits and scores what lies inside. The hooks run in the script's interpreter,
    where they are loaded by path: their modules are their doors.
    """
    open_to_all = ("advisor.lab", "advisor.collectors.hooks")
    wrong = [
        f"{name} imports {target}"
        for name, targets in imports().items()
        for target in sorted(targets)
        if not name.startswith("advisor.lab")
        and not target.endswith(".")
        and not target.startswith(open_to_all)
        and room(target)
        and room(target) != room(name)
    ]
    assert wrong == []


def test_faces_list_what_is_there() -> None:
    """Every name of every face can be had."""
    stubs = [stub for top in ("advisor", *GROUND) for stub in (ROOT / top).glob("*/__init__.pyi")]
    assert len(stubs) > 25
    for stub in stubs:
        if stub.parent.name in LINKS:
            continue
        found = importlib.import_module(_name([*stub.parent.relative_to(ROOT).parts]))
        for listed in found.__all__:
            assert hasattr(found, listed), (found.__name__, listed)
            # Once it is imported, a module stands in its room by its own name.
            assert not (stub.parent / f"{listed}.py").exists(), (found.__name__, listed)


def test_a_class_name_means_one_thing() -> None:
    places = defaultdict(list)
    for name, tree in modules().items():
        if name.startswith(PROGRAMS):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    assert {k: v for k, v in places.items() if len(v) > 1} == {}


def test_the_map_of_the_planners_names_what_is_there() -> None:
    """Files, public names, tests and protocols of ``planners/README.md``; every room."""
    text = (ROOT / "planners" / "README.md").read_text()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.count("|") == 5]
    systems = [row for row in rows if "/" in row[1]]
    assert len(systems) > 20
    for system, files, calls, checks in systems:
        defined: set[str] = set()
        for file in re.findall(r"`([\w/]+\.py)`", files):
            tree = ast.parse((ROOT / "planners" / file.removeprefix("planners/")).read_text())
            defined |= {
                node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)
            }
        for call in re.findall(r"`(\w+)(?:\(.*?\))?`", calls.split("(`")[0]):
            assert call in defined, f"{system}: no {call} in {files}"
        for test in re.findall(r"`(tests/\w+\.py)`", checks):
            assert (ROOT / test).exists(), f"{system}: no {test}"
        for protocol in re.findall(r"`advisor validate (\S+?)`", checks):
            assert protocol in PROTOCOLS, f"{system}: no protocol {protocol}"
    rooms = {p.parent.name for p in (ROOT / "planners").glob("*/__init__.py")}
    assert rooms <= set(re.findall(r"`(\w+)/`", text))


def test_recommend_loads_what_it_uses() -> None:
    """For a recorded script, with the answer shown: as many of our modules as can be read."""
    run = ROOT / "tests" / "golden" / "run-schema-1"
    code = (
        "import sys\nfrom advisor.cli import main\n"
        f"sys.argv = ['advisor', 'recommend', '--run', {str(run)!r}, '--cloud', 'gcp']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sum(name.partition('.')[0] == 'advisor' for name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stderr.split()[-1]) <= 189
