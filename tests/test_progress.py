"""A long fit says how far it is: a line every few seconds, nothing for programs."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from advisor.lab.learned.sequence import SequenceNetwork
from advisor.learned.tasks import run, supervised
from advisor.train.progress_lines import PERIOD_S, ProgressLines, progress

ROOT = Path(__file__).parents[1]


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def lines(out: io.StringIO) -> list[str]:
    return out.getvalue().splitlines()


def test_a_line_every_period_however_often_one_tells() -> None:
    clock, out = Clock(), io.StringIO()
    told = ProgressLines(out, clock)
    for done in range(1000):
        clock.now_s = done / 10
        told.tell("folds", done, 1000)
    assert len(lines(out)) == int(99.9 // PERIOD_S)
    assert lines(out)[0] == f"folds {10 * PERIOD_S:.0f} of 1000 ({PERIOD_S:.0f} s)"


def test_a_stage_that_ends_is_told_at_once() -> None:
    clock, out = Clock(), io.StringIO()
    told = ProgressLines(out, clock)
    told.tell("folds", 2, 2)
    assert lines(out) == ["folds: 2 of 2 (0 s)"]


def test_a_single_long_call_is_told_of_too() -> None:
    clock, out = Clock(), io.StringIO()
    told = ProgressLines(out, clock)
    clock.now_s = PERIOD_S
    told.tick()
    told.tick()
    assert lines(out) == [f"fitting ({PERIOD_S:.0f} s)"]


def fit(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(20, 3))
    model = SequenceNetwork(epochs=4, width=2, calibration_folds=0)
    return model.fit(X, X.sum(axis=1), groups=np.arange(20) % 4).predict(X)


def test_epochs_are_told_also_inside_of_a_fold() -> None:
    told: list[tuple[str, int, int]] = []
    with supervised(lambda *what: told.append(what)):
        run("folds", fit, [(0,), (1,)], n_jobs=1)
    assert ("folds", 2, 2) in told
    assert [t for t in told if t[0].startswith("epochs")].count(told[1]) >= 1
    assert {t[2] for t in told if t[0].startswith("epochs")} == {4}


def test_programs_see_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(is_quiet=True):
        run("folds", fit, [(0,)], n_jobs=1)
    assert capsys.readouterr().err == ""


def test_a_reader_that_went_away_ends_no_fit() -> None:
    out = io.StringIO()
    out.write = lambda _: (_ for _ in ()).throw(BrokenPipeError())  # type: ignore[method-assign]
    ProgressLines(out, Clock()).tell("folds", 1, 1)


@pytest.mark.frameworks
def test_ray_ended_by_a_time_limit_leaves_no_stack_traces(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    script = (
        "import sys, time\nfrom advisor.cli import main\nfrom advisor.train import models\n"
        "def train(*_, **__):\n    print('begun', file=sys.stderr, flush=True)\n"
        "    time.sleep(60)\n"
        "models.train = train\n"
        "sys.argv = ['advisor', 'train', '--backend', 'ray', '--out', 'm']\nmain()\n"
    )
    done = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stderr is not None
    said = ""
    while "begun" not in said:
        line = done.stderr.readline()
        assert line, said
        said += line
    done.send_signal(signal.SIGTERM)
    rest = done.communicate(timeout=60)[1]
    assert done.returncode == 128 + signal.SIGTERM
    assert "***" not in rest
    assert "Traceback" not in rest
    assert "SIGTERM received" not in rest
