"""The Python that a script runs in: the user's, not the one that the advisor is installed in."""

from __future__ import annotations

import ast
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Files that an installer leaves in an environment that holds one tool and its dependencies.
_RECEIPTS: Final = ("pipx_metadata.json", "uv-receipt.toml")
_NAMES: Final = ("python3", "python")
_LONGEST_LINE: Final = 4096
_LOOKING_S: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python, and in words why it was chosen."""

    path: str
    reason: str


def interpreter_for(
    script: Path, environment: Mapping[str, str], *, own: str = sys.executable,
    prefix: str = sys.prefix,
) -> Interpreter:  # fmt: skip
    """Return the Python in which the user would run ``script``.

    In the order in which a user would expect it:

    1. the activated environment (``VIRTUAL_ENV``, ``CONDA_PREFIX``); of two, the one whose
       programs come first on ``PATH``, as the shell would take them
    2. the interpreter that the script names itself (``#!``), where the script is executable and
       names a particular one: ``#!/usr/bin/env python3`` says no more than ``PATH`` does
    3. the advisor's own, unless pipx or ``uv tool`` installed it apart from everything else
    4. ``python3`` or ``python`` on ``PATH``
    5. the advisor's own

    A command that names its interpreter itself (``-- python3.12 train.py``) never comes here.
    """
    searched = environment.get("PATH", os.defpath)
    active = _active(environment, searched.split(os.pathsep))
    found = active or _named_by(script, searched)
    if found is not None:
        return found
    if not any(Path(prefix, receipt).exists() for receipt in _RECEIPTS):
        return Interpreter(path=own, reason="the advisor's own environment")
    for name in _NAMES:
        if (path := shutil.which(name, path=searched)) is not None:
            return Interpreter(path=path, reason=f"the {name} on PATH")
    return Interpreter(path=own, reason="the advisor's own, as no other Python was found")


def _active(environment: Mapping[str, str], searched: list[str]) -> Interpreter | None:
    """Return the activated environment's Python; of two, the one that comes first on PATH."""
    found: list[tuple[int, Interpreter]] = []
    known = (("VIRTUAL_ENV", "virtual environment"), ("CONDA_PREFIX", "conda environment"))
    for variable, kind in known:
        folder = environment.get(variable, "")
        if not folder:
            continue
        programs = Path(folder, "bin")
        paths = [programs / name for name in ("python", "python3")]
        path = next((str(path) for path in paths if os.access(path, os.X_OK)), None)
        if path is not None:
            place = searched.index(str(programs)) if str(programs) in searched else len(searched)
            found.append((place, Interpreter(path=path, reason=f"the active {kind}")))
    return min(found, key=lambda one: one[0])[1] if found else None


def _named_by(script: Path, searched: str) -> Interpreter | None:
    """Return the interpreter of the script's first line, where the user would run it by that."""
    if not os.access(script, os.X_OK):
        return None
    try:
        with script.open("rb") as file:
            line = file.readline(_LONGEST_LINE).decode("utf-8", "replace")
        words = shlex.split(line[2:]) if line.startswith("#!") else []
    except (OSError, ValueError):
        return None
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        if words and words[0] in _NAMES:
            return None
    if not words or not Path(words[0]).name.startswith("python"):
        return None
    path = shutil.which(words[0], path=searched)
    return None if path is None else Interpreter(path=path, reason="the script's first line")


def missing_modules(python: str, script: Path) -> list[str]:
    """Return the packages that ``script`` imports and ``python`` does not find, in order.

    Only what the file itself imports outside of functions and conditions; nothing is imported.
    Empty where either cannot be read.
    """
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    names: dict[str, None] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            names.update((alias.name.split(".")[0], None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names[node.module.split(".")[0]] = None
    names.pop("__future__", None)
    code = (
        "import sys, json; from importlib.util import find_spec; sys.path.insert(0, sys.argv[1]); "
        "names = [name for name in sys.argv[2:] if name not in sys.modules]; "
        "print(json.dumps([name for name in names if not find_spec(name)]))"
    )
    command = [python, "-c", code, str(script.resolve().parent), *names]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LOOKING_S, check=True)
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return [str(name) for name in found]
