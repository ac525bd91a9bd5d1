"""Predicted against actual over time: kept, read again, and judged by the binomial law."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from everywhere import replace_everywhere
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor.answer import Estimate
from advisor.cli.program import app
from advisor.estimate.predictor import Predictor
from advisor.jobs import runs as journal
from advisor.jobs.job import Job
from advisor.jobs.runs import Actual, read_actuals
from advisor.train import feedback
from advisor.train.drifting import LEAST_PROBABILITY, at_least, drift

MakeJob = Callable[..., Job]
RUN = "20261121-120948-resnet50-1"
START = datetime(2026, 11, 22, tzinfo=UTC)
runner = CliRunner()


def keep(folder: Path, actual_h: float, *, now: datetime, run: str = RUN) -> None:
    """Note a run whose interval was a fifth to either side of an hour."""
    ran = Actual(run=run, provider="aws", instance_type="g5.xlarge", count=1, step_s=1.0,
                 time_h=actual_h)  # fmt: skip
    predicted = Estimate(value=1.0, low=1 / 1.2, high=1.2)
    said = feedback.Comparison(actual=ran, predicted_h=predicted).predicted
    journal.note(folder, {"actual": asdict(ran), "predicted": said}, now=now)


def kept(folder: Path, times_h: list[float]) -> tuple[feedback.Comparison, ...]:
    for day, time_h in enumerate(times_h):
        keep(folder, time_h, now=START + timedelta(days=day))
    return feedback.read(folder)


def test_what_was_kept_is_read_oldest_first(tmp_path: Path) -> None:
    keep(tmp_path, 2.0, now=START + timedelta(days=1))
    keep(tmp_path, 1.1, now=START)
    found = feedback.read(tmp_path)
    assert [one.time_h for one in found] == [1.1, 2.0]
    assert [one.is_inside for one in found] == [True, False]
    assert found[1].error_fraction == pytest.approx(-0.5)
    assert feedback.read(tmp_path / "nowhere") == ()


@pytest.mark.parametrize("line", [
    "", "{", "[]", "{}", '{"schema_version": 1, "predicted": 1}',
    '{"schema_version": 1, "predicted": {}}', '{"schema_version": 1, "comparison": {"run": 1}}',
])  # fmt: skip
def test_a_line_that_cannot_be_read_costs_no_other(tmp_path: Path, line: str) -> None:
    kept(tmp_path, [1.0])
    with (tmp_path / journal.FILE_NAME).open("a") as file:
        file.write(line + "\n")
    assert len(feedback.read(tmp_path)) == 1
    assert len(kept(tmp_path, [1.0])) == 2


@given(p=st.floats(0.01, 0.99), n=st.integers(0, 12), k=st.integers(0, 12))
def test_the_probability_is_the_binomial_tail(p: float, n: int, k: int) -> None:
    tail = sum(math.comb(n, m) * p**m * (1 - p) ** (n - m) for m in range(k, n + 1))
    assert at_least(k, [p] * n) == pytest.approx(tail, abs=1e-12)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000))
def test_intervals_that_hold_are_rarely_called_drifting(seed: int) -> None:
    """A false alarm in at most one of twenty runs of ten, and little less often than that."""
    generator = np.random.default_rng(seed)
    alarms = [
        at_least(int((generator.random(10) < 0.1).sum()), [0.1] * 10) < LEAST_PROBABILITY
        for _ in range(400)
    ]
    assert np.mean(alarms) <= LEAST_PROBABILITY


def test_errors_that_leave_the_interval_are_drift_and_few_are_not(tmp_path: Path) -> None:
    steady = kept(tmp_path / "a", [1.0, 1.1, 0.9, 1.5, 1.0, 1.05, 0.95, 1.0, 1.0, 1.0])
    assert not drift(steady).is_drifting
    drifting = kept(tmp_path / "b", [1.0] * 20 + [1.5] * 4)
    found = drift(drifting)
    assert found.is_drifting
    assert (found.looked_at, found.outside) == (10, 4)
    assert found.median_error == pytest.approx(0.0)
    mended = drift(kept(tmp_path / "c", [1.5] * 4 + [1.0] * 10))
    assert not mended.is_drifting  # a drift that is over is not shown for ever
    nothing = drift(())
    assert not nothing.is_drifting
    assert nothing.to_record()["median_error_fraction"] is None


@pytest.fixture
def runs(make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs whose one run is the job of the tests."""

    def load(path: str | Path) -> Job:
        return replace(make_job(name=RUN), actuals=read_actuals(tmp_path, RUN))

    replace_everywhere(
        monkeypatch, "advisor.collectors.derive.store", "find_run", lambda name: tmp_path / RUN
    )
    monkeypatch.setattr(feedback, "load_job", load)
    monkeypatch.setenv("ADVISOR_RUNS", str(tmp_path))
    return tmp_path


def test_a_noted_run_is_compared_with_what_was_predicted_before(
    runs: Path, make_job: MakeJob
) -> None:
    predictor = Predictor(learned=None)
    before = predictor.predict(make_job(), "g5.xlarge").training_time_h
    feedback.note_run(RUN, "g5.xlarge", time_h=2 * before.value, predictor=predictor)
    narrowed = feedback.note_run(RUN, "g5.xlarge", time_h=2 * before.value, predictor=predictor)
    first, second = feedback.read(runs)
    assert first.predicted_h == before
    assert first.error_fraction == pytest.approx(-0.5)
    # The second was predicted from the first.
    assert second.predicted_h == narrowed.predicted_h
    assert abs(second.error_fraction) < abs(first.error_fraction)


def test_the_verb_shows_each_and_warns_of_drift(runs: Path) -> None:
    kept(runs, [1.0, 1.0])
    calm = runner.invoke(app, ["runs", "compare"])
    assert calm.exit_code == 0, calm.output
    assert "warning" not in calm.output
    kept(runs, [3.0, 3.0, 3.0])
    done = runner.invoke(app, ["runs", "compare"])
    lines = done.output.splitlines()
    assert sum(line.endswith("outside") for line in lines) == 3
    assert "3 of the last 5 real runs" in done.output
    assert "too short" in done.output
    assert "advisor train" in lines[-1]
    told = json.loads(runner.invoke(app, ["runs", "compare", "--json"]).output)
    assert [one["inside"] for one in told["runs"]].count(False) == 3
    assert told["drift"]["drifting"] is True


def test_recommending_warns_where_the_latest_drift(runs: Path) -> None:
    words = ["recommend", "--layers", "4", "--hidden", "256", "--heads", "4", "--tokens", "10M"]
    words += ["--gpus", "A100:1"]
    kept(runs, [1.0] * 3)
    assert "real runs ended outside" not in runner.invoke(app, words).output
    kept(runs, [3.0] * 4)
    done = runner.invoke(app, words)
    assert "of the last 7 real runs ended outside" in done.stderr
    assert "advisor train" in done.stderr


def test_one_run_alone_can_be_compared(runs: Path) -> None:
    kept(runs, [1.0])
    keep(runs, 1.0, run="another", now=START)
    told = json.loads(runner.invoke(app, ["runs", "compare", RUN, "--json"]).output)
    assert [one["run"] for one in told["runs"]] == [RUN]


def test_nothing_noted_says_how_to_note(runs: Path) -> None:
    done = runner.invoke(app, ["runs", "compare"])
    assert done.exit_code == 0
    assert "advisor runs actual" in done.output


def test_noting_a_run_warns_where_the_latest_drift(runs: Path) -> None:
    kept(runs, [3.0] * 4)
    arguments = ["runs", "actual", RUN, "g5.xlarge", "--time", "900h"]
    done = runner.invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "of the last 5 real runs ended outside" in done.output
