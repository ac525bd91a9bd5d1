"""Advice on short real runs, as `advisor recommend --probe` gives it."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from advisor.answer import Recommendation
from advisor.ask import Constraints
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.rank.ranking import recommend
from advisor.words.recommendation import show_probes

MakeJob = Callable[..., Job]


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor(learned=None)


@pytest.fixture(scope="module")
def dear(make_job: MakeJob, predictor: Predictor) -> Recommendation:
    """A job of hundreds of dollars, where minutes on another card cost little in comparison."""
    return recommend(
        make_job(total_steps=4.5e6), Constraints(deadline_h=1200.0, with_probes=True),
        predictor=predictor,
    )  # fmt: skip


def test_a_dear_job_is_worth_a_probe_that_costs_less_than_it_saves(dear: Recommendation) -> None:
    assert 1 <= len(dear.probes) <= 2
    for probe in dear.probes:
        assert 0 < probe.price_usd < probe.gain_usd
        assert probe.log_sd_after <= probe.log_sd_before
        assert probe.price_usd == pytest.approx(probe.offer.price_usd_per_h * probe.minutes / 60)
    assert [p["gain_usd"] for p in dear.to_record()["probes"]] == [p.gain_usd for p in dear.probes]


def test_a_job_of_cents_is_not(make_job: MakeJob, predictor: Predictor) -> None:
    cheap = make_job(total_steps=50.0)
    answer = recommend(cheap, Constraints(with_probes=True), predictor=predictor)
    assert answer.probes == ()


def test_probes_are_made_only_where_asked_for(make_job: MakeJob, predictor: Predictor) -> None:
    assert recommend(make_job(), Constraints(), predictor=predictor).probes == ()


@pytest.mark.parametrize("width", [80, 120])
def test_the_advice_says_what_to_run_and_what_to_do_with_it(
    dear: Recommendation, width: int
) -> None:
    out = io.StringIO()
    show_probes(dear.to_record(), Console(file=out, width=width))
    text = " ".join(out.getvalue().split())
    assert f"6 min on 1 x {dear.probes[0].offer.instance_type}" in text
    assert f"advisor runs actual resnet50 {dear.probes[0].offer.instance_type}" in text
    assert max(len(line) for line in out.getvalue().splitlines()) <= width
