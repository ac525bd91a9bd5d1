"""Hostile input: every reader answers or refuses in one line with a hint; the search can find."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from advisor.errors import RunError, UsageError
from advisor.lab.speed import fuzz
from advisor.records.formats import read_runs_as

NAMES = (
    "job file", "question", "settings", "configuration", "cluster", "cluster text", "overrides",
    "spot", "nodes", "jobs", "runs of a job", "records", "import csv", "import huggingface",
    "import wandb", "submission", "batch script", "recording", "gpus", "amounts",
)  # fmt: skip


@pytest.fixture(scope="module")
def targets() -> dict[str, fuzz.Target]:
    return fuzz.targets()


def test_every_reader_is_tried(targets: dict[str, fuzz.Target]) -> None:
    assert set(NAMES) == set(targets)


@pytest.mark.parametrize("name", NAMES)
def test_what_documents_show_and_the_program_writes_is_read(
    targets: dict[str, fuzz.Target], name: str, tmp_path: Path
) -> None:
    target = targets[name]
    for number, seed in enumerate(target.seeds):
        path = tmp_path / f"{number}{target.suffix}"
        path.write_bytes(seed)
        target.read(path)


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_or_an_error_with_a_hint(
    targets: dict[str, fuzz.Target], name: str, tmp_path: Path
) -> None:
    # The same hundred inputs each time; `make fuzz` looks at millions, and at others each night.
    assert fuzz.drawn(targets[name], 100, 1, tmp_path) is None


def broken(kind: str) -> fuzz.Target:
    def read(path: Path) -> None:
        data = path.read_bytes()
        if b"nan" in data:
            if kind == "traceback":
                raise KeyError("nan")
            if kind == "no hint":
                raise UsageError("no", hint="")
            while True:
                pass

    return fuzz.Target(read=read, suffix=".csv", seeds=(b"t,available\n0,1\n5,2\n",))


def test_a_heading_of_several_lines_is_quoted_in_one(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_bytes(b'run,program,",status\n10\n,a,b\n')
    with pytest.raises(RunError, match="no column 'time_s'; found run, ") as refused:
        read_runs_as("csv", table)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["traceback", "no hint", "hang"])
def test_a_reader_that_fails_is_found(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = fuzz.drawn(broken(kind), 2000, 1, tmp_path)
    assert found is not None
    assert b"nan" in found
    expected = {"traceback": "KeyError", "no hint": "a hint", "hang": "TooSlowError"}
    assert expected[kind] in capsys.readouterr().err


def test_mutations_come_again_and_keep_their_bound() -> None:
    seed = b"trace,t,available\na,0,3\na,10,2\n"
    first = [fuzz.mutated(seed, random.Random(n), 20) for n in range(50)]
    assert first == [fuzz.mutated(seed, random.Random(n), 20) for n in range(50)]
    assert max(map(len, first)) <= 20
    assert len(set(first)) > 25
