"""Job files: what is written is read back, and nothing wrong gets in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advisor.errors import RunError
from advisor.estimate.predictor import Predictor
from advisor.jobs.describe import described_job, model_work
from advisor.jobs.job import Job
from advisor.jobs.load import read_job, write_job
from advisor.planners.core.setup import Transformer

MODEL = Transformer(layers=2, hidden=64, heads=2, sequence=32, vocabulary=100)


@pytest.fixture
def described() -> Job:
    return described_job(
        model_work(MODEL, micro_batch=4, precision="bf16"), name="tiny", steps=2500
    )


def test_a_described_job_survives_the_way_to_disk(tmp_path: Path, described: Job) -> None:
    write_job(described, tmp_path / "job.json")
    assert read_job(tmp_path / "job.json") == described


def test_a_recorded_job_survives_with_its_host(
    tmp_path: Path, make_job: Callable[..., Job]
) -> None:
    job = make_job()
    write_job(job, tmp_path / "job.json")
    assert read_job(tmp_path / "job.json") == job


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    *parents, last = path.split(".")

    def change(record: dict[str, Any]) -> None:
        place: Any = record
        for name in parents:
            place = place[int(name) if name.isdigit() else name]
        place[last] = value

    return change


def _without(path: str) -> Callable[[dict[str, Any]], None]:
    *parents, last = path.split(".")

    def change(record: dict[str, Any]) -> None:
        place: Any = record
        for name in parents:
            place = place[int(name) if name.isdigit() else name]
        del place[last]

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_set("schema_version", 2), "has schema version 2; this advisor reads 1"),
        (_without("schema_version"), "has schema version None"),
        (_set("kind", "recipe"), "is not a job file"),
        (_without("job.work.operators.0.flop"), r"operators\[0\].flop is missing"),
        (_set("job.work.operators.0.flop", 0.0), "'query' .forward. is a matmul without flop"),
        (_set("job.work.operators.0.flop", -1.0), "impossible sizes"),
        (_set("job.work.operators.0.bytes", "much"), "bytes must be float, got \"much\""),
        (_set("job.work.operators.0.kind", "magic"), "kind is \"magic\"; one of: matmul"),
        (_set("job.work.precision", "fp7"), "precision is \"fp7\"; one of"),
        (_set("job.work.micro_batch", 0), "micro_batch must be at least 1"),
        (_set("job.work.parameters", -5), "parameters of -5 is out of range"),
        (_set("job.global_batch", 0), "global_batch must be positive, got 0"),
        (_set("job.total_steps", float("nan")), "NaN is not a finite number"),
        (_set("job.total_steps", 1e300), "total_steps is larger than anything"),
        (_set("job.colour", "red"), "unknown fields: colour"),
        (_set("job.work", None), "neither work nor program"),
        (_set("job", []), "job must be an object"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_the_field(
    tmp_path: Path, described: Job, change: Callable[[dict[str, Any]], None], says: str
) -> None:
    path = tmp_path / "job.json"
    write_job(described, path)
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(RunError, match=says) as caught:
        read_job(path)
    assert caught.value.hint


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text("{")
    with pytest.raises(RunError, match="cannot read"):
        read_job(path)
    with pytest.raises(RunError, match="cannot read"):
        read_job(tmp_path / "nothing.json")


def test_a_hundred_thousand_equal_operators_are_read_as_a_few_that_call_as_often(
    tmp_path: Path, described: Job
) -> None:
    """The same step, whoever lists its calls one by one: counted in operators, not in seconds."""
    path = tmp_path / "job.json"
    write_job(described, path)
    record = json.loads(path.read_text())
    rows = record["job"]["work"]["operators"]
    number = 100_000 // len(rows)
    shares = ("count", "flop", "bytes", "fixed_bytes", "listed")
    one_by_one = [
        row | {name: row[name] / number for name in shares if row.get(name)} for row in rows
    ]
    record["job"]["work"]["operators"] = one_by_one * number
    path.write_text(json.dumps(record))
    found = read_job(path)
    assert found.work is not None
    assert described.work is not None
    assert len(found.work.operators) <= len(rows)
    physics = Predictor(learned=None)
    here = np.array([physics.catalogue.instance_type("g5.12xlarge").index]), np.array([1])
    step_s = [physics.step_columns(job, *here).step_s[0] for job in (found, described)]
    assert step_s[0] == pytest.approx(step_s[1], rel=1e-9)
    record["job"]["work"]["operators"][7] = {"name": ["mm"]}
    path.write_text(json.dumps(record))
    with pytest.raises(RunError, match="operators"):
        read_job(path)
