"""The command that looks for flakes: it finds what is tried again, and what is simply broken."""

from __future__ import annotations

from pathlib import Path

from advisor.lab.speed import flakes

TESTS = """
from pathlib import Path
import pytest

SEEN = Path(__file__).with_name("seen")

@pytest.mark.flaky(reruns=2)
def test_second_try():
    tries = len(SEEN.read_text()) if SEEN.exists() else 0
    SEEN.write_text("x" * (tries + 1))
    assert tries % 2  # fails first, every time

def test_once():
    other = SEEN.with_name("failed")
    if not other.exists():
        other.touch()
        pytest.fail("the first time only")

def test_broken():
    assert False

def test_sound():
    assert True
"""


def test_what_was_tried_again_what_failed_once_and_what_is_broken_are_told_apart(
    tmp_path: Path,
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    file = tmp_path / "test_some.py"
    file.write_text(TESTS)
    seen = flakes.rounds(tmp_path, [file], [1, 2], burners=1)
    assert flakes.told(seen, 2) == [
        "test_some.py::test_broken: failed in every round, which is not a flake",
        "test_some.py::test_once: failed in 1 of 2 rounds (seeds 1)",
        "test_some.py::test_second_try: tried again in 2 of 2 rounds (seeds 1, 2)",
    ]


def test_days_come_round_to_every_file_before_one_is_seen_again() -> None:
    files = [Path(f"test_{i}.py") for i in range(10)]
    days = [flakes.drawn(files, 700_000 + day, 5) for day in range(4)]
    assert set(days[0]) | set(days[1]) == set(files)
    assert days[0] == days[2]
    assert days[1] == days[3]
