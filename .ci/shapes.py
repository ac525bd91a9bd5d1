"""Say what repeats: a function that only forwards, a class that shares five fields with another.

``python .ci/shapes.py`` exits with 1 where it finds one that is not in ``shapes.txt``, where each
exception says why it stays.
"""

from __future__ import annotations

import ast
import itertools
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("advisor", "collectors", "planners", "lab")
SHARED_FIELDS = 5


def modules() -> dict[str, ast.Module]:
    """Return the parsed modules by path; links into the ground are not followed."""
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            inside = path.relative_to(ROOT)
            if any(
                (ROOT / Path(*inside.parts[:n])).is_symlink() for n in range(1, len(inside.parts))
            ):
                continue
            found[str(inside)] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def fields(node: ast.ClassDef) -> dict[str, str]:
    """Return the annotated fields of a class, by name."""
    return {
        item.target.id: ast.unparse(item.annotation)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def is_forwarder(node: ast.FunctionDef) -> str | None:
    """Return what a function forwards to: one call that passes its own parameters in order."""
    body = [
        item
        for item in node.body
        if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))
    ]
    if len(body) != 1 or not isinstance(body[0], ast.Return) or node.decorator_list:
        return None
    call = body[0].value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return None
    given = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    keyword = [a.arg for a in node.args.kwonlyargs]
    passed = [a.id if isinstance(a, ast.Name) else None for a in call.args]
    named = [(k.arg, k.value.id if isinstance(k.value, ast.Name) else None) for k in call.keywords]
    if given and passed == given and named == [(k, k) for k in keyword] and not node.args.defaults:
        return call.func.id
    return None


def findings(trees: dict[str, ast.Module]) -> list[str]:
    """Return a line for every repeated shape."""
    lines, classes = [], {}
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and (target := is_forwarder(node)):
                lines.append(f"{path}::{node.name} only forwards to {target}")
            if isinstance(node, ast.ClassDef) and not node.bases:
                classes[f"{path}::{node.name}"] = set(fields(node).items())
    for (one, a), (other, b) in itertools.combinations(classes.items(), 2):
        if len(a & b) >= SHARED_FIELDS:
            lines.append(f"{one} and {other} share {', '.join(sorted(name for name, _ in a & b))}")
    return lines


def main() -> int:
    """Print what is found and not excepted."""
    allowed: dict[str, Any] = {}
    kept = Path(__file__).with_name("shapes.txt")
    if kept.exists():
        for line in kept.read_text(encoding="utf-8").splitlines():
            what, _, why = line.partition("  # ")
            if what.strip():
                allowed[what.strip()] = why
    found = findings(modules())
    wrong = [line for line in found if not any(line.startswith(what) for what in allowed)]
    print("\n".join(wrong) or f"no repeated shapes ({len(found)} excepted, with reasons)")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
