"""A script runs in the Python in which its user would run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from collecting import ROOT, remember_benchmark

from advisor.collectors.run.interpreter import interpreter_for, missing_modules

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

WHICH = "import json, sys\nprint(json.dumps([sys.prefix, sys.argv[1:]]))\n"


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two real virtual environments, ``project`` and ``other``."""
    folder = tmp_path_factory.mktemp("environments")
    for name in ("project", "other"):
        venv.create(folder / name, with_pip=False, symlinks=True)
    return folder


def searched(*environments: Path) -> str:
    return os.pathsep.join([*(str(one / "bin") for one in environments), os.environ["PATH"]])


def script(folder: Path, text: str = WHICH, first_line: str = "", mode: int = 0o644) -> Path:
    path = folder / "train.py"
    path.write_text(first_line + text)
    path.chmod(mode)
    return path


def profiled(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in ``folder`` with these variables and no others of an environment."""
    cache = folder / "cache"
    remember_benchmark(cache)
    kept = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    return subprocess.run(
        [sys.executable, "-m", "advisor.cli", "profile", *words],
        cwd=folder, env={**kept, "PYTHONPATH": ROOT, "XDG_CACHE_HOME": str(cache), **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_profile_runs_a_script_in_the_activated_environment(
    tmp_path: Path, environments: Path, variable: str
) -> None:
    script(tmp_path)
    active = environments / "project"
    variables = {variable: str(active), "PATH": searched(active)}
    done = profiled(tmp_path, "-q", "train.py", "--lr", "1", **variables)
    assert json.loads(done.stdout) == [str(active), ["--lr", "1"]], done.stderr


def test_an_interpreter_on_the_command_line_is_the_users_word(
    tmp_path: Path, environments: Path
) -> None:
    script(tmp_path)
    named, active = environments / "other", environments / "project"
    variables = {"VIRTUAL_ENV": str(active), "PATH": searched(active)}
    done = profiled(tmp_path, "-q", "--", str(named / "bin/python"), "train.py", **variables)
    assert json.loads(done.stdout)[0] == str(named), done.stderr


def test_of_two_environments_the_one_first_on_the_path_is_active(
    tmp_path: Path, environments: Path
) -> None:
    """``base`` of conda stays set while a virtual environment is activated inside it."""
    inner, outer = environments / "project", environments / "other"
    for variables in (("VIRTUAL_ENV", "CONDA_PREFIX"), ("CONDA_PREFIX", "VIRTUAL_ENV")):
        set_ = dict(zip(variables, (str(inner), str(outer)), strict=True))
        chosen = interpreter_for(script(tmp_path), {**set_, "PATH": searched(inner, outer)})
        assert chosen.path == str(inner / "bin/python")


def test_an_environment_that_is_gone_is_not_active(tmp_path: Path) -> None:
    gone = {"VIRTUAL_ENV": str(tmp_path / "gone"), "PATH": os.environ["PATH"]}
    chosen = interpreter_for(script(tmp_path), gone, own="/own/python", prefix=str(tmp_path))
    assert chosen.path == "/own/python"


@pytest.mark.parametrize(
    ("first_line", "mode", "is_named"),
    [
        ("#!{python}\n", 0o755, True),
        ("#!{python} -u\n", 0o755, True),
        ("#!/usr/bin/env -S {python} -u\n", 0o755, True),
        ("#!{python}\n", 0o644, False),  # nobody can run it by its name
        ("#!/usr/bin/env python3\n", 0o755, False),  # says nothing of which
        ("#!/bin/sh\n", 0o755, False),
        ("#!/nowhere/python3\n", 0o755, False),
        ("#!'\n", 0o755, False),
    ],
)
def test_the_first_line_counts_where_it_names_a_particular_python(
    tmp_path: Path, environments: Path, first_line: str, mode: int, is_named: bool
) -> None:
    python = str(environments / "other" / "bin" / "python3")
    path = script(tmp_path, first_line=first_line.format(python=python), mode=mode)
    nothing_active = {"PATH": os.environ["PATH"]}
    chosen = interpreter_for(path, nothing_active, own="/own/python", prefix=str(tmp_path))
    assert chosen.path == (python if is_named else "/own/python")
    active = environments / "project"
    chosen = interpreter_for(path, {"VIRTUAL_ENV": str(active), "PATH": searched(active)})
    assert chosen.path == str(active / "bin/python"), "an activated environment comes first"


@pytest.mark.parametrize("receipt", ["pipx_metadata.json", "uv-receipt.toml"])
def test_a_tools_own_environment_is_not_the_users(
    tmp_path: Path, environments: Path, receipt: str
) -> None:
    tool = tmp_path / "tool"
    tool.mkdir()
    (tool / receipt).write_text("{}")
    on_path = environments / "other"
    variables = {"PATH": searched(on_path)}
    chosen = interpreter_for(script(tmp_path), variables, own="/tool/python", prefix=str(tool))
    assert chosen.path == str(on_path / "bin/python3")
    none = interpreter_for(script(tmp_path), {"PATH": "/nowhere"}, own="/own", prefix=str(tool))
    assert none.path == "/own"


def test_a_package_missing_in_the_chosen_python_is_named_with_that_python(
    tmp_path: Path, environments: Path
) -> None:
    script(tmp_path, "import json\nimport advisor_has_no_such_package.nn as nn\n")
    active = environments / "project"
    variables = {"VIRTUAL_ENV": str(active), "PATH": searched(active)}
    done = profiled(tmp_path, "train.py", **variables)
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr, "the script's own traceback stands"
    (hint,) = [line for line in done.stderr.splitlines() if line.startswith("hint: ")]
    assert f"advisor_has_no_such_package is not installed in {active}/bin/python" in hint
    assert "the active virtual environment" in hint


def test_only_what_is_missing_is_missing(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("")
    path = script(
        tmp_path, "from __future__ import annotations\nimport os.path, beside, nowhere_\n"
    )
    assert missing_modules(sys.executable, path) == ["nowhere_"]
    assert missing_modules(sys.executable, script(tmp_path, "import (")) == []
    assert missing_modules(str(tmp_path / "no python"), path) == []
