"""Real runs narrow the estimates of their job, and nothing written down is lost."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import UsageError
from advisor.jobs.actuals import FILE_NAME, Actual, append_actual, read_actuals, unread_lines
from advisor.jobs.job import Job
from advisor.predict import Predictor


def actual(step_s: float = 0.5, run: str = "resnet50", name: str = "g5.xlarge") -> Actual:
    return Actual(run=run, provider="aws", instance_type=name, count=1, step_s=step_s)


@given(st.lists(st.floats(1e-6, 1e6), max_size=5))
def test_what_is_appended_is_read_back(tmp_path_factory: object, times: list[float]) -> None:
    root = tmp_path_factory.mktemp("runs")  # type: ignore[attr-defined]
    for step_s in times:
        append_actual(root, actual(step_s))
        append_actual(root, actual(step_s, run="another"))
    assert read_actuals(root, "resnet50") == tuple(actual(step_s) for step_s in times)


@pytest.mark.parametrize(
    "bad",
    [
        '{"run": "resnet50"}', "[" * 100_000, "torn {", "\x00", "[]", "5", "null",
        '{"run": [1], "provider": {}, "instance_type": 3, "count": 1, "step_s": 1}',
        '{"run": "resnet50", "provider": "a", "instance_type": "b", "count": "x", "step_s": 1}',
        '{"run": "resnet50", "provider": "a", "instance_type": "b", "count": 1, "step_s": NaN}',
    ],
)  # fmt: skip
def test_a_broken_line_is_named_and_costs_no_other(tmp_path: Path, bad: str) -> None:
    append_actual(tmp_path, actual(1.0))
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write(bad + "\n")
    append_actual(tmp_path, actual(2.0))
    assert [one.step_s for one in read_actuals(tmp_path, "resnet50")] == [1.0, 2.0]
    (told,) = unread_lines(tmp_path)
    assert "line 2 is not a measurement" in told
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


def test_a_file_that_cannot_be_read_is_named_and_fails_no_answer(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    assert read_actuals(tmp_path, "resnet50") == ()
    (told,) = unread_lines(tmp_path)
    assert f"{FILE_NAME} cannot be read" in told
