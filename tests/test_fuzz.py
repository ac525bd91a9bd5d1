"""Hostile input: every reader answers or refuses in one line with a hint; the search can find."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from advisor.errors import UsageError
from advisor.lab.speed import fuzz

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
    # A hundred inputs here; `make fuzz` looks at millions.
    assert fuzz.drawn(targets[name], 100, random.randrange(1 << 30), tmp_path) is None


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
