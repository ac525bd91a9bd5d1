"""Lists of configurations: each has a row, the one estimate in it, or the reason for none."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.answer import Candidate, Refused
from advisor.errors import AdvisorError, DoesNotRunError, UsageError
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job

MakeJob = Callable[..., Job]
# A name, two that nobody has, one that several have, one without a spot price, one too small.
ASKED: tuple[str | tuple[str, int], ...] = (
    "g5.xlarge", "nothing.large", "2 x g5.2xlarge", ("g5.xlarge", 4), "0 x g5.xlarge",
    "aws:m5.large", "gcp:m5.large", "t3.nano",
)  # fmt: skip


def numbers(one: Candidate) -> list[float]:
    """Time and cost with their bounds; sums over many rows round differently from one's."""
    both = (one.training_time_h, one.cost_usd)
    return [value for each in both for value in (each.value, each.low, each.high)]


def _alone(predictor: Predictor, job: Job, one: Any, **how: Any) -> Candidate | str:
    """Ask one configuration without the list."""
    try:
        return predictor.predict(job, [one], **how)[0]
    except AdvisorError as error:
        return str(error)


@pytest.mark.parametrize("how", [
    {}, {"pricing": "spot"}, {"pricing": "spot", "completion": "spot-with-fallback"},
    {"provider": "aws", "region": "us-*", "coverage": 0.5},
    {"completion": "spot"},
])  # fmt: skip
def test_a_list_answers_what_each_alone_is_answered(
    make_job: MakeJob, predictor: Predictor, how: dict[str, Any]
) -> None:
    job = make_job()
    found = predictor.predict(job, ASKED, **how)
    assert len(found) == len(ASKED)
    for place, (asked, one) in enumerate(zip(ASKED, found, strict=True)):
        alone = _alone(predictor, job, asked, **how)
        assert one.rank == place + 1
        if isinstance(one, Refused):
            assert one.reason == alone
        else:
            assert isinstance(alone, Candidate)
            assert numbers(one) == pytest.approx(numbers(alone), rel=1e-9)
            assert one.layout == alone.layout


def test_what_cannot_be_answered_has_its_reason_and_the_rest_its_numbers(
    make_job: MakeJob, predictor: Predictor
) -> None:
    found = predictor.predict(make_job(), ASKED)
    assert [one.configuration for one in found.refused] == [
        "1 x nothing.large", "0 x g5.xlarge", "1 x gcp:m5.large", "1 x t3.nano",
    ]  # fmt: skip
    assert "memory" in found.refused[-1].reason
    frame = found.to_frame()
    assert frame["reason"].isna().tolist() == frame["cost_usd"].notna().tolist()
    assert frame["rank"].tolist() == list(range(1, len(ASKED) + 1))
    with pytest.raises(AdvisorError, match="nothing"):
        found[1]


def test_one_configuration_alone_still_raises(make_job: MakeJob, predictor: Predictor) -> None:
    with pytest.raises(UsageError, match="not a number of machines"):
        predictor.predict(make_job(), "g5.xlarge", count=0)
    with pytest.raises(DoesNotRunError, match=r"of main memory, [\d.]+ GiB more than"):
        predictor.predict(make_job(), "t3.nano")


def test_the_whole_catalogue_in_one_call(make_job: MakeJob, predictor: Predictor) -> None:
    """Every type once, twice or eight times, unpriced and unknown ones included."""
    types = sorted(set(predictor.catalogue.types.name.tolist()))
    asked = [*zip(types, itertools.cycle((1, 2, 8))), *((f"unknown-{n}", 1) for n in range(100))]
    found = predictor.predict(make_job(), asked)
    assert len(found) == len(asked) > 3_500
    assert len(found.candidates) + len(found.refused) == len(asked)
    assert len(found.candidates) > 0.8 * len(asked)
    assert all(one.reason and one.hint for one in found.refused)
    bounds = np.array([[c.training_time_h.low, c.training_time_h.high] for c in found.candidates])
    assert (bounds[:, 0] < bounds[:, 1]).all()


def test_intervals_and_explanations_keep_the_places(
    make_job: MakeJob, predictor: Predictor
) -> None:
    bounds = predictor.predict_interval(make_job(), ASKED)
    frame = predictor.explain(make_job(), ASKED).to_frame()
    assert np.isnan(bounds[:, 0]).tolist() == frame["reason"].notna().tolist()
    assert len(frame) == len(ASKED)


@settings(max_examples=6)
@given(order=st.permutations(range(len(ASKED))))
def test_the_order_of_the_list_changes_no_answer(
    make_job: MakeJob, predictor: Predictor, order: Sequence[int]
) -> None:
    job = make_job()
    asked = predictor.predict(job, ASKED)
    again = predictor.predict(job, [ASKED[place] for place in order])
    for place, one in zip(order, again, strict=True):
        first = asked.rows[place]
        if isinstance(one, Candidate):
            assert isinstance(first, Candidate)
            assert numbers(one) == pytest.approx(numbers(first), rel=1e-9)
        else:
            assert isinstance(first, Refused)
            assert one.reason == first.reason


def test_an_empty_list_is_answered(make_job: MakeJob, predictor: Predictor) -> None:
    assert len(predictor.predict(make_job(), [])) == 0
