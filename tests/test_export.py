"""An export holds the answer's numbers, and its file reads back as what was meant."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.domain import Recommendation
from advisor.errors import UsageError
from advisor.export.pick import NothingToExportError, read_pick
from advisor.jobs.job import Job
from advisor.predict import Predictor
from advisor.ranking import Request, recommend

MakeJob = Callable[..., Job]


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor()


@pytest.fixture(scope="module")
def job(make_job: MakeJob) -> Job:
    return make_job()


@pytest.fixture(scope="module")
def answer(job: Job, predictor: Predictor) -> Recommendation:
    return recommend(job, Request(providers=("aws", "gcp", "azure")), predictor=predictor)


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
        assert pick.price_usd_per_h == sum(
            part["count"] * part["price_usd_per_h"] for part in row["configuration"]
        )


def test_a_time_limit_is_never_below_the_interval(record: dict[str, Any]) -> None:
    for row in record["front"]:
        limit_s = read_pick(record, row["rank"]).longest_s
        high_s = row["training_time_h"]["high"] * 3600
        assert high_s <= limit_s < high_s + 1


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
        assert read_pick(with_damage).machines
