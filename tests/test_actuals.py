"""Real runs narrow the estimates of their job, and nothing written down is lost."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import UsageError
from advisor.estimate.predictor import Predictor
from advisor.jobs import runs as journal
from advisor.jobs.job import Job
from advisor.jobs.runs import FILE_NAME, Actual, append_actual, read_actuals, unread_lines


def actual(step_s: float = 0.5, run: str = "resnet50", name: str = "g5.xlarge") -> Actual:
    return Actual(run=run, provider="aws", instance_type=name, count=1, step_s=step_s)


@given(st.lists(st.floats(1e-6, 1e6), max_size=5))
def test_what_is_appended_is_read_back(tmp_path_factory: object, times: list[float]) -> None:
    root = tmp_path_factory.mktemp("runs")  # type: ignore[attr-defined]
    for step_s in times:
        append_actual(root, actual(step_s))
        append_actual(root, actual(step_s, run="another"))
    assert read_actuals(root, "resnet50") == tuple(actual(step_s) for step_s in times)


_BAD = [
    '{"run": "resnet50"}', "[" * 100_000, "torn {", "\x00", "[]", "5", "null",
    '{"run": [1], "provider": {}, "instance_type": 3, "count": 1, "step_s": 1}',
    '{"run": "resnet50", "provider": "a", "instance_type": "b", "count": "x", "step_s": 1}',
    '{"run": "resnet50", "provider": "a", "instance_type": "b", "count": 1, "step_s": NaN}',
]  # fmt: skip


@pytest.mark.parametrize("is_earlier", [False, True])
@pytest.mark.parametrize("bad", _BAD)
def test_a_broken_line_is_named_and_costs_no_other(
    tmp_path: Path, bad: str, is_earlier: bool
) -> None:
    if is_earlier:  # a file of versions before the journal
        first = json.dumps(asdict(actual(1.0)))
        (tmp_path / "actuals.jsonl").write_text(f"{first}\n{bad}\n")
    else:
        append_actual(tmp_path, actual(1.0))
        entry = '{"schema_version": 1, "actual": ' + bad + "}"
        with (tmp_path / FILE_NAME).open("a") as file:
            file.write(entry + "\n")
    append_actual(tmp_path, actual(2.0))
    assert [one.step_s for one in read_actuals(tmp_path, "resnet50")] == [1.0, 2.0]
    (told,) = unread_lines(tmp_path)
    assert f"{FILE_NAME}, line 2 is not a measurement" in told
    assert told.isprintable()
    assert len(told) < 400


@pytest.mark.parametrize("step_s", [0.0, -1.0, math.inf, math.nan])
def test_nonsense_times_are_refused(step_s: float) -> None:
    with pytest.raises(UsageError):
        actual(step_s)


def test_a_measured_step_moves_and_narrows_the_estimate_there(
    make_job: Callable[..., Job],
) -> None:
    predictor, job = Predictor(), make_job()
    before = predictor.predict(job, "g5.xlarge").step_time_s
    measured = 1.7 * before.value
    after = predictor.predict(replace(job, actuals=(actual(measured),)), "g5.xlarge").step_time_s
    assert abs(math.log(after.value / measured)) < abs(math.log(before.value / measured))
    assert after.high / after.low < before.high / before.low


def test_a_measured_step_helps_on_other_cards_too(make_job: Callable[..., Job]) -> None:
    predictor, job = Predictor(), make_job()
    before = predictor.predict(job, "g4dn.xlarge").step_time_s
    known = replace(job, actuals=(actual(predictor.predict(job, "g5.xlarge").step_time_s.value),))
    after = predictor.predict(known, "g4dn.xlarge").step_time_s
    assert after.high / after.low < before.high / before.low


@pytest.mark.parametrize("name", [FILE_NAME, "actuals.jsonl"])
def test_a_file_that_cannot_be_read_is_named_and_fails_no_answer(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    assert read_actuals(tmp_path, "resnet50") == ()
    (told,) = unread_lines(tmp_path)
    assert f"{name} cannot be read" in told


def test_what_earlier_versions_noted_becomes_the_journal_once(tmp_path: Path) -> None:
    row = {"run": "r", "provider": "aws", "instance_type": "g5.xlarge", "count": 1, "step_s": 0.5}
    earlier = tmp_path / "actuals.jsonl"
    earlier.write_text(json.dumps(row) + "\n")
    assert [one.step_s for one in read_actuals(tmp_path, "r")] == [0.5]
    assert (tmp_path / FILE_NAME).exists()
    assert earlier.read_text() == json.dumps(row) + "\n"
    append_actual(tmp_path, Actual(**row, time_h=1.0, cost_usd=2.0))  # type: ignore[arg-type]
    assert [one.time_h for one in read_actuals(tmp_path, "r")] == [None, 1.0]


def test_noting_before_reading_loses_nothing_of_earlier_versions(tmp_path: Path) -> None:
    (tmp_path / "actuals.jsonl").write_text(json.dumps(asdict(actual(1.0))) + "\n")
    append_actual(tmp_path, actual(2.0))
    assert [one.step_s for one in read_actuals(tmp_path, "resnet50")] == [1.0, 2.0]


def test_folders_that_may_only_be_read_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    (tmp_path / "actuals.jsonl").write_text(json.dumps(asdict(actual(1.0))) + "\n")
    monkeypatch.setattr(journal, "_create", refuse)
    assert [one.step_s for one in read_actuals(tmp_path, "resnet50")] == [1.0]
    assert not (tmp_path / FILE_NAME).exists()


def test_a_journal_that_another_process_made_is_kept(tmp_path: Path) -> None:
    (tmp_path / "actuals.jsonl").write_text(json.dumps(asdict(actual(1.0))) + "\n")
    append_actual(tmp_path, actual(2.0))
    before = (tmp_path / FILE_NAME).read_bytes()
    journal._create(tmp_path / FILE_NAME, b"older\n")
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_another_versions_entries_are_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"schema_version": 2, "actual": {}}\n')
    assert read_actuals(tmp_path, "r") == ()
    assert "another version" in unread_lines(tmp_path)[0]
