"""Whole training runs: the law of what they add, its fit, and the protocol that scores it."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor import data
from advisor.catalogue import Catalogue
from advisor.errors import ModelError, UsageError
from advisor.estimate import completion as shipped
from advisor.estimate.completion import (
    Rent,
    checkpoint_s,
    on_demand,
    on_spot,
    save_of_rows_s,
    whole_run,
)
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.lab.data.campaigns import (
    PUBLISHED,
    convert,
    packaged_path,
    read_campaigns,
    read_packaged,
    without_repetitions,
)
from advisor.lab.fit.campaigns import CampaignColumns, divisible_batch, fit, folds
from advisor.lab.score import run
from advisor.lab.score.harness import Validation
from advisor.lab.score.runs import predict
from advisor.lab.score.tables import score_table
from advisor.planners.goodput import MACHINE_DAY_H, STEPS_ALONE, CampaignLaw

LAW = CampaignLaw(growth=0.03, per_year=0.15, sd=0.2, sd_measured=0.05)
sizes = st.floats(1e-3, 1e9)


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    """Return a predictor on the bundled catalogue."""
    return Predictor(Catalogue.load())


@given(sizes, sizes, st.floats(0, 10))
def test_a_whole_run_is_never_shorter_than_its_steps_and_grows_with_its_size(
    one: float, other: float, years: float
) -> None:
    small, large = sorted((one, other))
    assert 0 <= LAW.log_factor(small) <= LAW.log_factor(large)
    assert LAW.log_factor(small) <= LAW.log_factor(small, years)
    assert 0 <= LAW.log_sd(small) <= LAW.log_sd(large)
    assert LAW.log_sd(small, is_measured=True) <= LAW.log_sd(small)


@given(sizes, st.floats(-2, 2), st.floats(0, 0.6), st.floats(0, 1))
def test_what_is_usual_draws_a_run_and_never_makes_it_shorter_than_its_steps(
    device_h: float, usual: float, step_log_sd: float, share: float
) -> None:
    law = replace(LAW, history=share, usual={"": 0.0})
    factor, plain = law.log_factor(device_h, 0.0, usual), LAW.log_factor(device_h)
    assert factor >= 0
    assert (factor - plain) * usual >= 0
    assert factor - plain <= max(share * usual, 0.0) + 1e-12
    known = law.log_sd(device_h, step_log_sd=step_log_sd, log_usual=usual)
    assert known <= LAW.log_sd(device_h, step_log_sd=step_log_sd) + 1e-12
    # Nobody knows: nothing is drawn.
    assert law.log_factor(device_h) == plain


def test_a_laptop_job_is_no_campaign() -> None:
    law = shipped.campaign_law()
    assert law.growth > 0
    assert law.sd > law.sd_measured > 0
    assert float(np.exp(law.log_factor(1.0))) < 1.001
    assert float(law.log_sd(1.0)) < 0.04
    # In the limit both vanish with the size: the factor like x, the deviation like its root.
    for device_h in (1e-3, 1e-5):
        x = device_h / MACHINE_DAY_H
        assert float(law.log_factor(device_h)) == pytest.approx(law.growth * x, rel=1e-4)
        assert float(law.log_sd(device_h)) == pytest.approx(law.sd * x**0.5, rel=1e-4)


def test_the_size_of_a_run_counts_devices_and_hours_alike() -> None:
    assert LAW.log_factor(64 * 10.0) == LAW.log_factor(8 * 80.0)


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf")])
def test_a_law_that_shortens_runs_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        CampaignLaw(growth=bad, per_year=0.1, sd=0.1)


def test_what_is_paid_once_or_waited_for_once_is_added_once(
    make_job: Callable[..., Job], predictor: Predictor
) -> None:
    job = make_job(total_steps=1e6)
    row = predictor.catalogue.instance_type("p5.48xlarge").index
    columns = predictor.step_columns(job, np.array([row]), np.array([1]))
    found = on_demand(job, columns, 0.9, law=STEPS_ALONE)
    hours = found.time_h(0, 0.9)
    bare, more = (
        found.cost_usd(0, Rent(price_usd_per_h=30.0, egress_usd=once), 0.9) for once in (0.0, 7.0)
    )
    assert bare.value == pytest.approx(30.0 * hours.value)
    for had, has in ((bare.low, more.low), (bare.value, more.value), (bare.high, more.high)):
        assert has == pytest.approx(had + 7.0)
    # A machine that starts an hour later, or reads its data for an hour, ends an hour later.
    for once in ("startup_s", "data_in_s"):
        later = replace(columns, **{once: getattr(columns, once) + 3600.0})
        gap_h = on_demand(job, later, 0.9, law=STEPS_ALONE).finish_h[0, 1] - found.finish_h[0, 1]
        assert 1.0 <= gap_h < 1.05  # restarts after failures wait for it too
    least_h = columns.step_s * job.paid_steps + columns.startup_s + columns.data_in_s
    assert found.finish_h[0, 1] >= float(least_h[0]) / 3600


def test_the_term_is_told_apart_from_steps_checkpoints_and_failures(
    make_job: Callable[..., Job], predictor: Predictor
) -> None:
    job = make_job(total_steps=1e7)
    row = predictor.catalogue.instance_type("p5.48xlarge").index
    columns = predictor.step_columns(job, np.array([row, row]), np.array([1, 8]))
    without = on_demand(job, columns, 0.9, law=STEPS_ALONE)
    whole = on_demand(job, columns, 0.9, law=LAW)
    start_h = (columns.startup_s + columns.data_in_s) / 3600
    factor, _ = whole_run(job, columns, LAW)
    assert (factor > 1.01).all()
    np.testing.assert_allclose(
        whole.finish_h[:, 1] - start_h, (without.finish_h[:, 1] - start_h) * factor
    )
    np.testing.assert_allclose(sum(whole.parts_s.values()) / 3600, whole.finish_h[:, 1])
    added = whole.finish_h[:, 1] - without.finish_h[:, 1]
    np.testing.assert_allclose(whole.parts_s["whole_run"] / 3600, added)
    for name in ("steps", "checkpoints", "interruptions"):
        found, bare = (one.parts_s[name] for one in (whole, without))
        np.testing.assert_allclose(found, bare, atol=1e-5)
    assert not without.parts_s["whole_run"].any()

    def width(found: Any) -> Any:
        return np.log(found.finish_h[:, 2] - start_h) - np.log(found.finish_h[:, 0] - start_h)

    device_h = columns.step_s * job.paid_steps / 3600 * columns.workers
    sd = np.hypot(columns.log_sd, LAW.log_sd(device_h, is_measured=job.measured is not None))
    np.testing.assert_allclose(width(whole), 2 * 1.644854 * sd)
    np.testing.assert_allclose(width(without), 2 * 1.644854 * columns.log_sd)


def test_spot_machines_do_not_make_a_whole_run_shorter(
    make_job: Callable[..., Job], predictor: Predictor
) -> None:
    job = make_job(total_steps=1e7)
    row = predictor.catalogue.instance_type("p5.48xlarge").index
    columns = predictor.step_columns(job, np.array([row]), np.array([8]))
    with_term, without = (
        on_spot(job, columns, np.array([0]), np.array([1.0]), 0.9, law=law)
        for law in (LAW, STEPS_ALONE)
    )
    factor, _ = whole_run(job, columns, LAW)
    np.testing.assert_allclose(with_term.finish_h[:, 1], without.finish_h[:, 1] * factor)
    np.testing.assert_allclose(with_term.billed_h[:, 1], without.billed_h[:, 1] * factor)
    np.testing.assert_allclose(with_term.overhead_fraction, without.overhead_fraction)


def test_every_machine_saves_the_shards_that_it_holds(
    make_job: Callable[..., Job], predictor: Predictor
) -> None:
    job = make_job(checkpoint_s=None)
    row = predictor.catalogue.instance_type("p5.48xlarge").index
    columns = predictor.step_columns(job, np.array([row]), np.array([4]))

    def save_s(**layout: int) -> float:
        given = {name: np.array([value]) for name, value in layout.items()}
        there = replace(columns, layouts=replace(columns.layouts, **given))
        return float(save_of_rows_s(job, there)[0])

    alone = checkpoint_s(job)
    assert save_s(dp=32, tp=1, pp=1, cp=1, zero_stage=0) == alone
    assert save_s(dp=4, tp=8, pp=1, cp=1, zero_stage=0) == alone  # a replica on every machine
    assert save_s(dp=2, tp=8, pp=2, cp=1, zero_stage=0) == pytest.approx(alone / 2)
    assert save_s(dp=32, tp=1, pp=1, cp=1, zero_stage=1) == pytest.approx(alone / 4)
    assert save_s(dp=1, tp=8, pp=4, cp=1, zero_stage=0) == pytest.approx(alone / 4)


def test_a_large_run_says_what_it_adds(make_job: Callable[..., Job], predictor: Predictor) -> None:
    short, long = (
        predictor.predict(make_job(total_steps=steps), "p5.48xlarge", count=8)
        for steps in (100.0, 1e8)
    )
    assert not any(reason.startswith("evaluation, stalls") for reason in short.reasons)
    assert any(reason.startswith("evaluation, stalls") for reason in long.reasons)
    assert short.breakdown["whole_run"].time_h < 0.001 * short.training_time_h.value


@given(st.integers(1, 5000), st.integers(1, 20_000))
def test_a_rounded_batch_stays_near_and_is_shared(batch: int, devices: int) -> None:
    found = divisible_batch(batch, devices)
    assert abs(found - batch) <= 0.1 * batch
    assert np.gcd(found, devices) >= np.gcd(batch, devices) or (
        np.gcd(found, devices) >= max(devices / 8, min(devices, 8))
    )


def _made_up(rows: int, law: CampaignLaw, seed: int) -> CampaignColumns:
    """Draw runs from a law: synthetic, not measured."""
    rng = np.random.default_rng(seed)
    steps_h = np.exp(rng.uniform(np.log(1e2), np.log(1e7), rows))
    years = rng.integers(0, 4, rows).astype(float)
    is_whole = rng.random(rows) < 0.7
    log_sd = np.hypot(0.05, law.log_sd(steps_h))
    log_factor = law.log_factor(np.where(is_whole, steps_h, 0.0), years)
    return CampaignColumns(
        family=np.array([f"family {i % 12}" for i in range(rows)]),
        published_h=steps_h * np.exp(log_factor + log_sd * rng.standard_normal(rows)),
        estimated_h=steps_h,
        steps_h=steps_h,
        software_years=years,
        is_whole_run=is_whole,
        step_log_sd=np.full(rows, 0.05),
        rate_h=np.full(rows, np.nan),
        architecture=np.full(rows, "Ampere"),
        needed_h=np.full(rows, np.nan),
    )


def test_the_fit_finds_the_law_that_drew_the_runs() -> None:
    found = fit(_made_up(400, LAW, seed=1))
    assert found.growth == pytest.approx(LAW.growth, abs=0.006)
    assert found.per_year == pytest.approx(LAW.per_year, abs=0.03)
    assert found.sd == pytest.approx(LAW.sd, rel=0.15)


def test_intervals_of_families_left_out_cover_what_they_say() -> None:
    rows = _made_up(200, LAW, seed=2)
    value, log_sd = predict(rows, rows)
    inside = np.abs(value - np.log(rows.published_h)) <= 1.644854 * log_sd
    assert 0.84 <= inside.mean() <= 0.96  # three standard deviations of 200 draws at 0.9


def test_a_family_is_predicted_without_its_own_hours() -> None:
    rows = _made_up(60, LAW, seed=3)
    own = rows.family == "family 3"
    shifted = replace(rows, published_h=np.where(own, 50 * rows.published_h, rows.published_h))
    for before, after in zip(predict(rows, rows), predict(shifted, shifted), strict=True):
        np.testing.assert_array_equal(before[own], after[own])
        assert (before[~own] != after[~own]).any()
    assert folds(rows)["family 3"] == folds(shifted)["family 3"]


def test_hours_of_steps_alone_do_not_teach_what_whole_runs_add() -> None:
    rows = _made_up(60, LAW, seed=4)
    assert fit(replace(rows, is_whole_run=np.zeros(len(rows), bool))).growth == 0


def test_a_published_rate_of_steps_shows_the_spread_of_a_measured_job() -> None:
    rows = _made_up(400, LAW, seed=5)
    rng = np.random.default_rng(6)
    x = np.log1p(rows.steps_h / MACHINE_DAY_H)
    beyond = LAW.growth * x + 0.05 * np.sqrt(np.minimum(x, 1.0)) * rng.standard_normal(len(rows))
    found = fit(replace(rows, rate_h=rows.published_h / np.exp(beyond)))
    assert found.sd_measured == pytest.approx(0.05, rel=0.25)


@pytest.fixture(scope="module")
def scored() -> Validation:
    """Return the packaged protocol's result."""
    return run("campaigns", data.root("datasets"))


def test_published_gpu_hours_are_met(scored: Validation) -> None:
    overall = scored.to_record()["overall"]
    assert scored.overall.rows >= 32
    assert 0.85 <= overall["median_ratio"] <= 1.12
    assert 0.82 <= overall["coverage"] <= 0.96
    assert overall["median_ape_fraction"] <= 0.30
    bare = scored.baselines["steps and goodput, no whole-run term"]
    assert bare.coverage is not None
    # A steady step is no campaign, however wide what its software and layout leave open.
    assert bare.coverage < 0.8 < overall["coverage"]
    assert overall["median_ape_fraction"] < bare.median_ape_fraction
    accounted = scored.overall.rows + sum(
        int(note.split()[0]) for note in scored.notes if "rows left out" in note
    )
    assert accounted == len(read_packaged())


def test_the_shipped_constants_are_those_that_the_runs_give_today(scored: Validation) -> None:
    law = shipped.campaign_law()
    for name, value in (
        ("law: growth an e-fold of device-hours", law.growth),
        ("law: growth a year of older software", law.per_year),
        ("law: log-sd", law.sd),
        ("law: log-sd, step measured", law.sd_measured),
    ):
        assert scored.figures[name] == pytest.approx(value, abs=0.01), (
            "run `advisor train campaigns`"
        )


def test_a_table_of_known_runs_is_scored_as_if_they_were_unknown(
    tmp_path: Path, scored: Validation
) -> None:
    with packaged_path().open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = tmp_path / "runs.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, [name for name in rows[0] if name != "family"])
        writer.writeheader()
        for row in rows:
            if row.pop("family") == "TinyLlama":
                writer.writerow(row)
    found = score_table(table, None)
    known = {group.group: group.scores for group in scored.groups}
    assert found.overall == known["TinyLlama"]


def test_both_forms_of_a_table_say_the_same(tmp_path: Path) -> None:
    with packaged_path().open(newline="") as file:
        rows = list(csv.DictReader(file))
    published, ours = tmp_path / "published.csv", tmp_path / "ours.csv"
    with published.open("w", newline="") as file:
        renamed = {ours: theirs for ours, (theirs, _) in PUBLISHED.items()}
        writer = csv.writer(file)
        names = [name for name in rows[0] if name != "family"]
        writer.writerow([renamed.get(name, name) for name in names])
        for row in rows:
            texts = []
            for name in names:
                scale = PUBLISHED.get(name, ("", 1.0))[1]
                text = row[name]
                is_scaled = scale != 1.0 and text
                texts.append(f"{float(text) / scale:.12g}" if is_scaled else text)
            writer.writerow(texts)
    assert convert(published, ours) == len(rows)
    family = {c.campaign: c.family for c in read_packaged()}
    packaged = read_packaged()
    assert read_campaigns(published, family) == packaged
    assert [replace(c, family="") for c in read_campaigns(ours)] == [
        replace(c, family="") for c in packaged
    ]


def test_a_run_stated_twice_counts_once() -> None:
    one = next(c for c in read_packaged() if c.campaign.startswith("Llama 3.1 70B"))
    again = replace(one, campaign="the same again")
    other = replace(one, campaign="another", device_h=2 * one.device_h)
    assert without_repetitions([one, again, other]) == [one, other]


def test_a_table_that_cannot_be_read_says_where(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    head = "campaign,model,year,accelerator,accelerators,kind,includes_downtime,gpu_hours\n"
    table.write_text(head + "a,b,2023,A100,many,run,no,10\n")
    with pytest.raises(ModelError, match="row 2, column accelerators: 'many'"):
        read_campaigns(table)
    table.write_text("campaign,model\na,b\n")
    with pytest.raises(UsageError, match="accelerators"):
        read_campaigns(table)
    table.write_text(head + "a,b,2023,A100,8,run,no,10\n")
    with pytest.raises(ModelError, match="no published run can be put"):
        score_table(table, None)
