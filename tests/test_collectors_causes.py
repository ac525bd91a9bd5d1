"""Why a script ended before its first step: named where the cause has a cure, with the cure."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from collecting import advisor, record
from hypothesis import given
from hypothesis import strategies as st

from advisor.collectors.derive.causes import early_end, install_hint
from advisor.collectors.hooks.ending import cause_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

# What strangers' scripts do, and what the hint must say.
ENDS = {
    "package": ("import einops_of_nobody", "-m pip install einops_of_nobody"),
    "in a function": ("def load():\n    import cv2_of_nobody.x\nload()", "install cv2_of_nobody"),
    "told otherwise": (
        "try:\n    import nobody_\nexcept ImportError as e:\n    raise RuntimeError('install it')",
        "pip install nobody_",
    ),
    "by name": (
        "raise ImportError('Foo needs bar: `pip install foo-bar`')",
        "pip install foo-bar",
    ),
    "exit": (
        "import sys\nsys.exit('please pip install \"lightning\" first')",
        "install lightning",
    ),
    "printed by a framework": (
        "import sys\ntry:\n    import nobody_\nexcept ImportError:\n    sys.exit(1)",
        "pip install nobody_",
    ),
    "file": ("open('/data/nowhere/input.txt')", "/data/nowhere/input.txt"),
    "host": (
        "import urllib.request\nurllib.request.urlopen('http://data.nowhere.invalid/x.gz')",
        "data.nowhere.invalid",
    ),
    "download": (
        "raise RuntimeError('Dataset not found. You can use download=True to download it')",
        "download",
    ),
    "arguments": (
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--data-dir', required=True)\np.parse_args()",
        "after the script",
    ),
    "a setting of Hydra's": (
        "class MissingMandatoryValue(Exception):\n    pass\n"
        "raise MissingMandatoryValue('Missing mandatory value: data\\n    full_key: data')",
        "after the script",
    ),
    "memory": ("raise MemoryError", "--rehearse"),
    "killed": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "--rehearse"),
    "its own": ("def f():\n    return 1 / 0\nf()", "fix train.py"),
}


@pytest.mark.parametrize("kind", ENDS)
def test_the_hint_names_the_cause(tmp_path: Path, kind: str) -> None:
    source, cure = ENDS[kind]
    seen = record(tmp_path, source)
    assert seen.step_time is None
    what, hint = early_end(seen)
    assert "before its first step" in what
    assert cure in hint
    assert "\n" not in what + hint
    assert "without the advisor" not in hint


def test_the_line_of_the_script_is_named_not_the_librarys(tmp_path: Path) -> None:
    seen = record(tmp_path, "import json\n\n\ndef read():\n    json.loads('{')\n\n\nread()\n")
    assert seen.ended is not None
    assert re.fullmatch(r"\w+\.py:5", seen.ended.where)
    assert seen.ended.cause == "error"
    assert seen.ended.what.startswith("JSONDecodeError: ")


def test_a_package_of_ones_own_that_is_not_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "lib.py").write_text("")
    (tmp_path / "tools" / "train.py").write_text("import lib\n")
    done = advisor(tmp_path, "profile", "tools/train.py")
    assert done.returncode == 1
    assert "PYTHONPATH=. advisor profile tools/train.py" in done.stderr.splitlines()[-1]


def test_a_missing_argument_is_said_and_the_parsers_own_words_stand(tmp_path: Path) -> None:
    source, _ = ENDS["arguments"]
    (tmp_path / "train.py").write_text(source)
    done = advisor(tmp_path, "profile", "train.py")
    error, hint = done.stderr.splitlines()[-2:]
    assert done.returncode == 2
    assert "--data-dir" in error
    assert hint == "hint: give them after the script: advisor profile train.py ..."
    assert "usage: train.py" in done.stderr


def test_a_script_that_goes_on_after_an_error_has_not_ended_with_it(tmp_path: Path) -> None:
    seen = record(tmp_path, "try:\n    import nobody_\nexcept ImportError:\n    pass\n")
    assert seen.ended is None
    assert seen.status == "finished"


@given(name=st.from_regex(r"[a-z_][a-z0-9_]{2,10}", fullmatch=True))
def test_whatever_package_is_missing_it_is_the_one_that_is_named(name: str) -> None:
    """However it is told: by Python, by runpy's message, or in place of another error."""
    told = ModuleNotFoundError(f"No module named '{name}_x.y'", name=f"{name}_x.y")
    assert cause_of(told) == ("package", f"{name}_x")
    assert cause_of(SystemExit(f"python: No module named {name}_x")) == ("package", f"{name}_x")
    instead = RuntimeError("no backend")
    instead.__cause__ = told
    assert cause_of(instead) == ("package", f"{name}_x")
    assert f"pip install {name}_x" in install_hint("python3", [f"{name}_x"])


def test_an_error_after_one_that_was_handled_is_its_own() -> None:
    """An optional package that is absent is not the cause of a mistake in the code after it."""
    mistake = TypeError("unsupported operand")
    mistake.__context__ = ModuleNotFoundError("No module named 'tqdm_'", name="tqdm_")
    assert cause_of(mistake) == ("error", "TypeError: unsupported operand")
