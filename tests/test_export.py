"""An export holds the answer's numbers, and its file reads back as what was meant."""

import contextlib
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from exporting import row_on
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor import api
from advisor.answer import Recommendation
from advisor.ask import Constraints, Question
from advisor.cli.program import app
from advisor.errors import UsageError
from advisor.estimate.predictor import Predictor
from advisor.export.launch import NotRunnableError
from advisor.export.pick import NothingToExportError, read_pick
from advisor.export.targets import TARGETS, export_to
from advisor.jobs.job import Job
from advisor.rank.ranking import recommend

MakeJob = Callable[..., Job]


@pytest.fixture(scope="module")
def job(make_job: MakeJob) -> Job:
    return make_job()


@pytest.fixture(scope="module")
def answer(job: Job, predictor: Predictor) -> Recommendation:
    return recommend(job, Constraints(providers=("aws",), region="us-east-1"), predictor=predictor)


@pytest.fixture(scope="module")
def record(answer: Recommendation) -> dict[str, Any]:
    return dict(json.loads(json.dumps(answer.to_record())))


def rented_from(record: dict[str, Any], provider: str) -> dict[str, Any]:
    """The record, its rows' machines those of another provider."""
    changed: dict[str, Any] = json.loads(json.dumps(record))
    for row in changed["front"]:
        for part in row["configuration"]:
            part["provider"] = provider
    return changed


def test_the_default_row_is_the_best_value(record: dict[str, Any]) -> None:
    assert read_pick(record).rank == record["picks"]["best_value"]


def test_a_row_reads_back_as_it_was_written(record: dict[str, Any]) -> None:
    for row in record["front"]:
        pick = read_pick(record, row["rank"])
        assert pick.layout.to_record() == row["layout"]
        assert pick.cost_usd.to_record() == row["cost_usd"]
        assert pick.training_time_h.to_record() == row["training_time_h"]
        assert pick.configuration.price_usd_per_h == sum(
            part["count"] * part["price_usd_per_h"] for part in row["configuration"]
        )


def test_a_time_limit_is_never_below_the_interval(record: dict[str, Any]) -> None:
    for row in record["front"]:
        limit_s = read_pick(record, row["rank"]).longest_s
        high_s = row["training_time_h"]["high"] * 3600
        assert high_s + 600 <= limit_s < high_s + 601  # ten minutes to install


def test_an_answer_without_rows_exports_nothing(record: dict[str, Any]) -> None:
    with pytest.raises(NothingToExportError) as caught:
        read_pick({**record, "front": [], "picks": {}})
    assert caught.value.exit_code == 3
    assert caught.value.hint


@given(st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8,
))  # fmt: skip
def test_what_is_no_answer_is_refused(value: Any) -> None:
    with pytest.raises(UsageError):
        read_pick(value)


@given(data=st.data())
def test_a_damaged_row_is_refused_or_read(data: st.DataObject, record: dict[str, Any]) -> None:
    row = dict(record["front"][0])
    name = data.draw(st.sampled_from(sorted(row)))
    row[name] = data.draw(st.none() | st.integers() | st.text() | st.floats() | st.just({}))
    with_damage = {**record, "front": [row], "picks": {"best_value": 1}}
    with contextlib.suppress(UsageError):  # and nothing else
        assert read_pick(with_damage).configuration.parts


@pytest.fixture
def stored(record: dict[str, Any], tmp_path: Path) -> str:
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(row_on(record, "aws", count=2)))
    return str(path)


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["export", *words])


def test_the_verb_prints_the_file_alone(stored: str) -> None:
    said = run("1", "--to", "skypilot", "--from", stored)
    assert said.exit_code == 0
    assert yaml.safe_load(said.stdout)["num_nodes"] == 2
    assert "run: sky launch" in said.stderr


def test_the_record_and_the_files_are_the_same_export(stored: str, tmp_path: Path) -> None:
    words = ("--to", "sagemaker", "--from", stored, "--set", "role=arn:aws:iam::1:role/x")
    made = json.loads(run(*words, "--json").stdout)
    assert run(*words, "-o", str(tmp_path / "job.json")).exit_code == 0
    for name, text in made["files"].items():
        assert (tmp_path / name).read_text() == text
    assert json.loads(made["files"]["job.json"])["RoleArn"] == "arn:aws:iam::1:role/x"


@pytest.mark.parametrize(("words", "code"), [
    (("--to", "nowhere"), 2),
    (("7", "--to", "skypilot"), 2),
    (("--to", "skypilot", "--set", "image"), 2),
    (("--to", "skypilot", "--set", "image=x"), 2),
    (("1", "--to", "vertex"), 1),
])  # fmt: skip
def test_what_cannot_be_exported_says_what_to_do(
    stored: str, words: tuple[str, ...], code: int
) -> None:
    error = run(*words, "--from", stored).exception
    assert (error.exit_code, bool(error.hint)) == (code, True)


def test_a_file_that_holds_no_answer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    for text in ("[]", "{}", "nothing", '{"front": 3}'):
        path.write_text(text)
        assert run("--to", "dstack", "--from", str(path)).exception.exit_code == 2


def test_a_described_jobs_layout_has_its_launch_arguments() -> None:
    shape = {"layers": 16, "hidden": 1024, "heads": 16, "sequence": 1024, "vocabulary": 32000}
    asked = Question.read(
        {**shape, "batch": 64, "tokens": "100M", "cloud": "aws", "region": "us-east-1"}
    )
    described = api.job_of(asked.job)
    found = api.answer(asked)
    values = {"framework": "trainer", "script": "src/train.py --data x"}
    made = export_to(found, "skypilot", job=described, values=values)
    task = yaml.safe_load(next(iter(made.files.values())))
    assert "src/train.py --data x --" in task["run"] or "pretrain_gpt.py" in task["run"]
    layout = read_pick(found.to_record()).layout
    assert f"--per_device_train_batch_size {layout.micro_batch}" in task["run"] or (
        f"--micro-batch-size {layout.micro_batch}" in task["run"]
    )


def test_the_command_to_type_names_the_file_that_was_written(stored: str, tmp_path: Path) -> None:
    at = tmp_path / "my task.yaml"
    said = run("1", "--to", "skypilot", "--from", stored, "-o", str(at))
    assert said.exit_code == 0
    command = said.stderr.rpartition("run: ")[2]
    assert shlex.split(command)[-1] == str(at)


def test_help_names_every_target() -> None:
    said = " ".join(run("--help").output.split())
    listed = said.partition("Tool to write for: ")[2].partition(".")[0]
    assert listed.replace(" or ", ", ").split(", ") == list(TARGETS)


def test_a_target_is_asked_for_rows_of_its_own_clouds() -> None:
    """Where no row of the answer will do, the question is asked of what the target rents."""
    words = ("--to", "vertex", "--layers", "4", "--hidden", "256", "--heads", "4",
             "--sequence", "128", "--batch", "64", "--tokens", "1B")  # fmt: skip
    said = run(*words)
    assert said.exit_code == 0, said.exception
    assert "this is the best row of its own clouds" in said.stderr
    assert "--region=" in said.stderr


def test_a_layout_that_nothing_runs_is_refused(record: dict[str, Any], job: Job) -> None:
    one = row_on(record, "aws", count=2)
    one["front"][0]["layout"] |= {"tp": 2, "pp": 2, "dp": 2}
    with pytest.raises(NotRunnableError) as caught:
        export_to(one, "skypilot", job=job)
    assert caught.value.exit_code == 3
    assert caught.value.hint
