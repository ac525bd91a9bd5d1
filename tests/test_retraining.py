"""Retraining does no harm: notes of what was predicted change no answer, honest ones help.

By the commands that a user types, in a home of its own, on the recording of a real script: copies
under other names are other programs, since a program is told by its name.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from advisor import data
from advisor.cli.program import app
from advisor.train.labelled import read_each

GOLDEN = Path(__file__).parent / "golden" / "run-schema-1"
OWN = ("alpha", "beta", "gamma", "delta")  # programs with real runs
OTHER = "other"  # the program that is asked about
MACHINES = ("t3.medium", "c5.large")
runner = CliRunner()


def said(*words: str) -> Any:
    """Return what a command answers in JSON."""
    done = runner.invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def steps_ms() -> list[float]:
    """Return the steps of the program that nothing was noted of."""
    asked = (said("predict", "--run", OTHER, "--on", machine) for machine in MACHINES)
    return [1e3 * one["step_time_s"]["value"] for one in asked]


def note(factor: float, what: str) -> None:
    """Note of each of the user's programs what was predicted, so many times."""
    for name in OWN:
        found = said("predict", "--run", name, "--on", MACHINES[0])
        if what == "step":
            given = ["--step-time", f"{factor * found['step_time_s']['value']!r}s"]
        else:
            given = ["--time", f"{factor * found['training_time_h']['value'] * 3600!r}s"]
        said("runs", "actual", name, MACHINES[0], *given)


def train(*words: str) -> Any:
    """Train on the notes and on the packaged runs of a minute, as quickly as it can be done."""
    return runner.invoke(app, ["train", *words])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A newcomer's home, five programs recorded; a project that says which model to fit."""
    for kind in ("DATA", "CACHE", "CONFIG"):
        monkeypatch.delenv(f"XDG_{kind}_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    runs = tmp_path / ".local" / "share" / "advisor" / "runs"
    for place, name in enumerate((*OWN, OTHER)):
        shutil.copytree(GOLDEN, runs / f"20261121-12094{place}-{name}-4865")
    minutes, journal = data.root("datasets") / "minutes", runs / "journal.jsonl"
    (tmp_path / "advisor.toml").write_text(
        f"[train.models]\nmodel = 'forest'\nquiet = true\ndata = ['{minutes}', '{journal}']\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def models(home: Path) -> Path:
    return home / ".local" / "share" / "advisor" / "models" / "runs"


def test_noting_what_was_predicted_changes_no_answer(home: Path) -> None:
    before = steps_ms()
    note(1.0, "step")
    models(home).mkdir(parents=True)
    (models(home) / "mine").write_text("of an earlier training")
    done = train()
    assert done.exit_code == 1
    assert "errs no less than the shipped one" in str(done.exception)
    table = done.stdout[done.stdout.index("own runs, error %") :].splitlines()
    assert [line.split()[0] for line in table[1:5]] == sorted(OWN)
    assert {line.split()[-2] for line in table[1:5]} == {"0.0"}  # the shipped model's errors
    assert [file.name for file in models(home).iterdir()] == ["mine"]
    assert steps_ms() == pytest.approx(before, rel=1e-9)


def test_short_jobs_by_the_clock_change_no_answer_and_that_is_said(home: Path) -> None:
    """Two minutes of start-up are no step: the label would be hundreds of times physics."""
    before = steps_ms()
    note(1.0, "time")
    done = train()
    assert f"{len(OWN)} of {len(OWN)} noted runs" in done.stderr
    assert "is start-up" in done.stderr
    assert steps_ms() == pytest.approx(before, rel=0.05)


def test_runs_that_all_take_longer_move_the_answer_towards_them(home: Path) -> None:
    before = steps_ms()
    note(1.3, "step")
    done = train("--json")
    assert done.exit_code == 0, done.output
    every = json.loads(done.stdout)["own"][-1]
    assert every["shipped_error_fraction"] == pytest.approx(0.3, rel=1e-6)
    assert every["error_fraction"] < 0.2
    for old, new in zip(before, steps_ms(), strict=True):
        assert 1.0 <= new / old <= 1.4


def test_a_model_that_covers_no_own_run_replaces_nothing(home: Path) -> None:
    note(1.0, "step")
    journal = home / ".local" / "share" / "advisor" / "runs" / "journal.jsonl"
    done = train("models", "--data", str(journal))
    assert done.exit_code == 1
    assert not models(home).exists()


def test_folders_are_read_apart_and_a_run_only_once() -> None:
    each = read_each([data.root("datasets") / name for name in ("minutes", "runs")])
    assert [path.name for path in each] == ["minutes", "runs"]
    assert all(each.values())


def test_the_verbs_are_still_told() -> None:
    told = runner.invoke(app, ["train", "--help"]).stdout
    assert all(verb in told for verb in ("models", "steps", "check", "device-model"))
