"""What was registered before it was measured: nobody may change it, and it can be scored."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from advisor.lab.predictions import __main__ as predictions

ROOT = Path(__file__).parents[1]


def test_registered_answers_are_those_whose_hash_the_changelog_has() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert predictions.registered()
    for path in predictions.registered():
        assert predictions.digest(path) in changelog


def test_every_question_has_one_answer_with_an_interval_around_it() -> None:
    asked = {one["id"]: " ".join(predictions.words(one)) for one in predictions.questions()}
    assert len(asked) == 50
    record = json.loads(predictions.registered()[-1].read_text(encoding="utf-8"))
    assert [one["id"] for one in record["answers"]] == list(asked)
    for one in record["answers"]:
        assert one["asked"].replace("'", "") == f"advisor {asked[one['id']]}"
        step = one["step_s"]
        assert 0.0 < step["low"] < step["value"] < step["high"]


def test_nobody_has_measured_these_models_on_these_machines_in_what_ships() -> None:
    rows = pd.read_csv(ROOT / "datasets/measurements/layouts/runs.csv.gz")
    known = set(zip(rows["accelerator"].str[:5], rows["hidden"], rows["layers"], strict=True))
    new = {"p6-b300.48xlarge": "B300", "BM.GPU.MI355X.8": "MI355", "g7e.48xlarge": "RTX-P",
           "g7.48xlarge": "RTX-P", "Standard_ND128isr_NDR_GB200_v6": "GB200"}  # fmt: skip
    for one in predictions.questions():
        device = new[one["cluster"].split("x ")[1]]
        assert (device, int(one["hidden"]), int(one["layers"])) not in known


def test_a_measurement_is_scored_by_value_and_interval() -> None:
    answers = [{"id": "a", "step_s": {"value": 2.0, "low": 1.0, "high": 3.0}}]
    rows = predictions.score(answers, [{"id": "a", "step_s": "1.6"}, {"id": "a", "step_s": "4"}])
    assert [row["error"] for row in rows] == pytest.approx([0.25, -0.5])
    assert [row["is_inside"] for row in rows] == [True, False]
    with pytest.raises(KeyError):
        predictions.score(answers, [{"id": "b", "step_s": "1"}])
    with pytest.raises(ValueError, match="a step of"):
        predictions.score(answers, [{"id": "a", "step_s": "nan"}])
