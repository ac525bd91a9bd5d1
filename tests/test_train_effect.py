"""What runs of one's own change: the table of `advisor train`, against errors reckoned by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from advisor import data
from advisor.learned import problem_of
from advisor.learned.evaluation import evaluate
from advisor.learned.linear import Ridge
from advisor.records import RunRecord
from advisor.train.effect import by_folder, table
from advisor.train.labelled import read_each

MINUTES = data.root("datasets") / "minutes"


def build() -> Ridge:
    return Ridge(strengths=(1.0,), calibration_folds=0)


@pytest.fixture(scope="module")
def folders() -> dict[str, list[RunRecord]]:
    ((_, records),) = read_each([MINUTES]).items()
    of_machine: dict[str, list[RunRecord]] = {"one": [], "other": []}
    for record in records:
        of_machine["other" if record.facts.get("machine") else "one"].append(record)
    return of_machine


def test_errors_are_those_of_programs_left_out(folders: dict[str, list[RunRecord]]) -> None:
    asked = problem_of([*folders["one"], *folders["other"]])
    rows = {row["folder"]: row for row in by_folder(asked, build, folders)}
    assert sum(row["runs"] for row in rows.values()) == len(asked.records)
    whole = evaluate(asked, build, "job", has_intervals=False)
    of_other = {record.record_id for record in folders["other"]}
    is_other = np.array([asked.records[i].record_id in of_other for i in whole.rows])
    errors = np.abs(whole.predicted / asked.truth[whole.rows] - 1.0)[is_other]
    assert rows["other"]["with_mape_fraction"] == pytest.approx(float(np.mean(errors)), abs=1e-6)


def test_without_a_folder_only_the_others_runs_are_fitted(
    folders: dict[str, list[RunRecord]],
) -> None:
    asked = problem_of([*folders["one"], *folders["other"]])
    said = by_folder(asked, build, folders)[1]
    others = problem_of(folders["one"])
    errors = []
    for record in problem_of(folders["other"]).records:
        keep = np.flatnonzero(others.groups != record.job.family)
        one = problem_of([record])
        model = others.fit(build(), keep)
        errors.append(abs(one.predict(model, slice(None))[0] / one.truth[0] - 1.0))
    assert said["without_mape_fraction"] == pytest.approx(float(np.mean(errors)), rel=1e-4)


def test_runs_that_nothing_is_left_to_fit_without_have_no_error(
    folders: dict[str, list[RunRecord]],
) -> None:
    everything = [*folders["one"], *folders["other"]]
    (row,) = by_folder(problem_of(everything), build, {"all": everything})
    assert "without_mape_fraction" not in row
    assert row["with_mape_fraction"] > 0


def test_the_table_has_a_line_for_each_folder_and_none_for_one() -> None:
    row = {"folder": "a", "runs": 3, "with_mape_fraction": 0.1234, "with_median_ape_fraction": 0.1}
    assert table([row]) == []
    lines = table([row, {**row, "folder": "b" * 40, "without_mape_fraction": 0.2,
                         "without_median_ape_fraction": 0.15}])  # fmt: skip
    assert len(lines) == 4
    assert lines[2].split() == ["a", "3", "-", "12.3", "/", "10.0"]
    assert lines[3].split() == ["b" * 40, "3", "20.0", "/", "15.0", "12.3", "/", "10.0"]
    assert len({len(line) for line in lines[1:]}) == 1


def test_folders_are_read_apart_and_a_run_only_once(tmp_path: Path) -> None:
    each = read_each([MINUTES, data.root("datasets") / "runs"])
    assert [path.name for path in each] == ["minutes", "runs"]
    assert all(each.values())
