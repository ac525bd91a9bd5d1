"""``advisor collect`` from the outside."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.records.collected import Journal, unpack


def advisor(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "advisor.cli", "collect", *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.parametrize(
    "options", [("--hours", "0"), ("--cap-s", "-1"), ("--limit", "0"), ("--nice", "40")]
)
def test_senseless_values_are_a_usage_error(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = advisor("--out", str(tmp_path), *options)
    assert done.returncode == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="runs are limited by Linux's means")
def test_whoever_ends_the_command_ends_the_collection(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "advisor.cli", "collect", "--out", str(tmp_path)]
    patterns = ["--only", "partial/mlp-w256-b512/core-1/single/*", "--only", "full/mlp-*"]
    with subprocess.Popen([*program, *patterns], stderr=subprocess.PIPE) as started:
        assert started.stderr is not None
        started.stderr.readline()  # what there is to do
        started.stderr.readline()  # one run is written down, the next begins
        started.terminate()
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # others come and go
            assert str(tmp_path).encode() not in line.read_bytes()
    assert len(list(Journal(tmp_path / "runs.jsonl").rows())) >= 1


def test_packing_leaves_damaged_lines_out_and_says_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "runs.jsonl")
    journal.append({"key": "a", "status": "ok", "is_noisy": True})
    journal.append({"key": "c", "status": "censored", "is_noisy": True})
    journal.path.open("a").write('{"key": "b", "crc32": "00000000"}\n')
    target = tmp_path / "packed.jsonl.gz"
    done = advisor("--out", str(tmp_path), "--pack", str(target))
    assert done.returncode == 0
    assert "1 records" in done.stderr
    assert "1 that others kept from ending, 1 damaged lines" in done.stderr
    assert [row["key"] for row in unpack(target)] == ["a"]


def test_packing_nothing_is_a_usage_error(tmp_path: Path) -> None:
    done = advisor("--out", str(tmp_path), "--pack", str(tmp_path / "packed.jsonl.gz"))
    assert done.returncode == 2
    assert "hint: make some: advisor collect" in done.stderr
