"""A real run is compared with its prediction, narrows the next one, and is learned from."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from everywhere import replace_everywhere
from typer.testing import CliRunner

from advisor.ask import Constraints
from advisor.cli.program import app
from advisor.errors import RunError, UsageError
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.jobs.runs import FILE_NAME, read_actuals
from advisor.rank.ranking import recommend
from advisor.records.files import to_line
from advisor.records.noted import left_aside
from advisor.records.noted import read_journal as read_records
from advisor.train import feedback
from advisor.train.labelled import read_runs

MakeJob = Callable[..., Job]
RUN = "20261121-120948-resnet50-1"
runner = CliRunner()


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor(learned=None)


@pytest.fixture
def runs(make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs whose one run is the job of the tests."""
    folder = tmp_path / RUN

    def load(path: str | Path) -> Job:
        return replace(make_job(name=RUN), actuals=read_actuals(tmp_path, RUN))

    replace_everywhere(
        monkeypatch, "advisor.collectors.derive.store", "find_run", lambda name: folder
    )
    monkeypatch.setattr(feedback, "load_job", load)
    return tmp_path


def test_predicted_stands_beside_actual(
    runs: Path, predictor: Predictor, make_job: MakeJob
) -> None:
    before = predictor.predict(make_job(), "g5.xlarge")
    time_h = 1.25 * before.training_time_h.value
    found = feedback.note_run(RUN, "g5.xlarge", time_h=time_h, cost_usd=20.0, predictor=predictor)
    assert found.predicted_h == before.training_time_h
    assert found.error_fraction == pytest.approx(1 / 1.25 - 1)
    assert found.actual.step_s == pytest.approx(1.25 * before.step_time_s.value)
    assert found.to_record()["actual"] == {
        "training_time_h": time_h, "cost_usd": 20.0, "step_time_s": found.actual.step_s,
    }  # fmt: skip


def test_the_next_prediction_starts_from_the_real_run(runs: Path, predictor: Predictor) -> None:
    first = feedback.note_run(RUN, "g5.xlarge", step_s=2.0, predictor=predictor)
    second = feedback.note_run(RUN, "g5.xlarge", step_s=2.0, predictor=predictor)
    assert abs(second.error_fraction) < abs(first.error_fraction)
    assert second.is_inside


def test_every_run_becomes_a_record_to_learn_from(runs: Path, predictor: Predictor) -> None:
    for time_h in (90.0, 95.0):
        feedback.note_run(RUN, "g5.xlarge", time_h=time_h, cost_usd=100.0, predictor=predictor)
    found = read_records(runs / FILE_NAME)
    first, second = (r.time_s or 0.0 for r in found)
    assert 0.0 < first < second < 95.0 * 3600
    assert [r.replicate for r in found] == [0, 1]
    assert {r.job.family for r in found} == {"resnet50"}
    # What the run is compared with is physics without the runs noted before.
    assert found[0].facts["analytic_time_s"] == found[1].facts["analytic_time_s"]
    assert read_runs([runs / FILE_NAME]) == found


@pytest.mark.parametrize("factor", [1.0, 1.3, 3.0])
def test_steps_and_physics_are_one_quantity(
    runs: Path, predictor: Predictor, make_job: MakeJob, factor: float
) -> None:
    """A step that is noted, or the job's time with such a step, is that many times physics."""
    step_s = factor * predictor.predict(make_job(), "g5.xlarge").step_time_s.value
    by_step = feedback.note_run(RUN, "g5.xlarge", step_s=step_s, predictor=predictor)
    (first,) = read_records(runs / FILE_NAME)
    (runs / FILE_NAME).unlink()
    by_time = feedback.note_run(RUN, "g5.xlarge", time_h=by_step.time_h, predictor=predictor)
    assert by_time.actual.step_s == pytest.approx(step_s, rel=1e-9)
    (second,) = read_records(runs / FILE_NAME)
    for one in (first, second):
        physics_s = one.facts["analytic_time_s"]
        assert isinstance(physics_s, float)
        assert one.time_s == pytest.approx(factor * physics_s, rel=1e-9)
    assert by_step.time_h * 3600 > first.time_s  # type: ignore[operator]


def test_a_job_that_is_mostly_no_steps_is_not_learned_from(
    runs: Path, predictor: Predictor, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(make_job(name=RUN), total_steps=2.0, epochs=0.001)
    monkeypatch.setattr(feedback, "load_job", lambda path: short)
    told = predictor.predict(short, "g5.xlarge")
    time_h = told.training_time_h.value
    found = feedback.note_run(RUN, "g5.xlarge", time_h=time_h, cost_usd=1.0, predictor=predictor)
    assert found.is_learned_from is False
    assert read_records(runs / FILE_NAME) == []
    feedback.note_run(RUN, "g5.xlarge", step_s=1.0, cost_usd=1.0, predictor=predictor)
    (record,) = read_records(runs / FILE_NAME)
    assert record.time_s == pytest.approx(2.0)
    assert record.cost_usd is None
    (why,) = left_aside(runs / FILE_NAME)
    assert "1 of 2 noted runs" in why


def test_the_machine_is_told_from_time_and_cost(
    runs: Path, predictor: Predictor, make_job: MakeJob
) -> None:
    front = recommend(
        make_job(), Constraints(least_gain_fraction=0.0, top=500), predictor=predictor
    ).front
    prices = [c.configuration.price_usd_per_h for c in front]
    alone = [c for c in front if sum(abs(p / c.configuration.price_usd_per_h - 1) < 0.05
                                     for p in prices) == 1]  # fmt: skip
    chosen = alone[-1]
    price = chosen.configuration.price_usd_per_h
    found = feedback.note_run(RUN, time_h=10.0, cost_usd=10.0 * price, predictor=predictor)
    offer, count = chosen.configuration.parts[0]
    assert (found.actual.instance_type, found.actual.count) == (offer.instance_type, count)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({}, "missing"),
        ({"time_h": 1.0, "step_s": 1.0}, "given twice"),
        ({"time_h": -1.0}, "not a time"),
        ({"step_s": 1.0, "cost_usd": float("nan")}, "not a cost"),
    ],
)
def test_nonsense_is_refused_and_nothing_is_kept(
    runs: Path, predictor: Predictor, given: dict[str, float], what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        feedback.note_run(RUN, "g5.xlarge", predictor=predictor, **given)  # type: ignore[arg-type]
    assert not list(runs.iterdir())


def test_without_machine_or_bill_it_asks_which(runs: Path, predictor: Predictor) -> None:
    with pytest.raises(UsageError, match="on which machine"):
        feedback.note_run(RUN, time_h=1.0, predictor=predictor)
    with pytest.raises(UsageError, match="no machine on the list costs that"):
        feedback.note_run(RUN, time_h=1.0, cost_usd=1e6, predictor=predictor)


def test_three_files_of_earlier_versions_say_what_the_journal_said(
    runs: Path, predictor: Predictor, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Measurements, comparisons and records are the same, read from them or from the journal."""
    for time_h in (90.0, 95.0):
        feedback.note_run(RUN, "g5.xlarge", time_h=time_h, cost_usd=100.0, predictor=predictor)
    noted, records = feedback.read(runs), read_records(runs)
    earlier = tmp_path_factory.mktemp("earlier")
    assert not left_aside(runs / FILE_NAME)
    old = {
        "actuals.jsonl": [json.dumps(asdict(one)) for one in read_actuals(runs, RUN)],
        "comparisons.jsonl": [
            json.dumps({**one.to_record(), "noted_at": one.noted_at}) for one in noted
        ],
        "records.jsonl": [to_line(one) for one in records],
    }
    for name, lines in old.items():
        (earlier / name).write_text("\n".join(lines) + "\n")
    assert feedback.read(earlier) == noted
    # What was besides the steps they did not say: nothing is learned from them.
    assert len(records) == 2
    assert read_records(earlier) == []
    (why,) = left_aside(earlier / FILE_NAME)
    assert "2 of 2 noted runs" in why
    assert read_actuals(earlier, RUN) == read_actuals(runs, RUN)
    assert len(list(runs.iterdir())) == 1


def test_the_same_run_in_two_files_is_refused(runs: Path, predictor: Predictor) -> None:
    feedback.note_run(RUN, "g5.xlarge", time_h=90.0, predictor=predictor)
    with pytest.raises(RunError, match="is in the data twice"):
        read_runs([runs / FILE_NAME, runs / FILE_NAME])


def test_the_command_tells_what_was_predicted_and_what_it_took(runs: Path) -> None:
    words = ["runs", "actual", RUN, "g5.xlarge", "--time", "3d2h", "--cost", "80"]
    done = runner.invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "predicted" in done.stdout
    assert "took 3.08 d" in done.stdout
    assert "billed $80.00" in done.stdout
