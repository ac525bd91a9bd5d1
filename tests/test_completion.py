"""From a step to a finish and a bill, term by term: sums, conservation, closed forms by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from advisor.answer import COMPLETIONS
from advisor.catalogue import Catalogue
from advisor.estimate.completion import (
    CHECKPOINTS_KEPT,
    Completion,
    Rent,
    SideCosts,
    checkpoint_s,
    on_demand,
    on_recorded_machine,
    on_spot,
    restart_s,
    save_of_rows_s,
    side_prices,
    whole_run,
    widened,
)
from advisor.estimate.time_columns import WAITS, TimeColumns, integer_layouts
from advisor.jobs import RUN_LOG_SD, VOLUME_BYTES_PER_S
from advisor.jobs.job import Job, Transfers
from advisor.planners.core import GIB
from advisor.planners.goodput import MACHINE_DAY_H, CampaignLaw, expected_completion
from advisor.planners.spot import BANDS, hazard_of_band, spot_completion
from advisor.quantities import QUANTILES
from advisor.records import packaged_spot_history

MakeJob = Callable[..., Job]
LAW = CampaignLaw(growth=0.05, per_year=0.0, sd=0.2)
STEP_S = np.array([0.5, 2.0, 4.0])
COUNT = np.array([1, 4, 16])
DEVICES = 8 * COUNT


def rows(**more: Any) -> TimeColumns:
    """Three clusters of machines with eight devices."""
    size = {"dp": DEVICES} | more.pop("layout", {})
    given: dict[str, Any] = {
        "type_index": np.arange(3), "count": COUNT, "status": np.zeros(3, np.int64),
        "way": np.zeros(3, np.int64), "step_s": STEP_S, "log_sd": np.array([0.1, 0.2, 0.05]),
        "shares": {name: np.zeros(3) for name in WAITS}, "layouts": integer_layouts(3, **size),
        "memory_bytes": np.zeros(3), "host_bytes": np.zeros(3),
        "startup_s": np.array([60.0, 90.0, 120.0]), "data_in_s": np.array([600.0, 300.0, 0.0]),
        "is_extrapolating": np.zeros(3, bool),
    }  # fmt: skip
    return TimeColumns(**given | more)


@pytest.fixture
def job(make_job: MakeJob) -> Job:
    """A day on one machine, a save of a second, epochs that end with a test."""
    return make_job(
        total_steps=50_000.0,
        epochs=10.0,
        epoch_end_steps=40.0,
        startup_log_sd=0.4,
        length_log_sd=0.15,
    )


def hours(done: Completion) -> dict[str, np.ndarray]:
    """Return the parts of the time by name, one row a cluster [h]."""
    return {name: part / 3600 for name, part in done.parts_s.items()}


def done_by(way: str, job: Job) -> Completion:
    if way == "on-demand":
        return on_demand(job, rows(), 0.9, law=LAW)
    return on_spot(job, rows(), np.arange(3), np.array([0.0, 2.0, np.nan]), 0.9, law=LAW)


def test_on_demand_is_start_data_and_the_expected_time_times_the_whole_runs_factor(
    job: Job,
) -> None:
    columns, done = rows(), done_by("on-demand", job)
    work_s = STEP_S * (50_000 + job.epochs * 40)
    save_s = job.state_bytes / VOLUME_BYTES_PER_S  # one copy of the state, one writer
    expected = expected_completion(
        work_s, devices=DEVICES, nodes=COUNT, checkpoint_s=save_s,
        restart_s=columns.startup_s + columns.data_in_s,
    )  # fmt: skip
    size = work_s / 3600 * DEVICES / MACHINE_DAY_H
    factor = (1 + size) ** 0.05
    whole_s = expected.expected_s * factor
    value = whole_s + columns.startup_s + columns.data_in_s
    assert done.finish_h[:, 1] == pytest.approx(value / 3600)
    # Either side: work and start, each log-normal, in quadrature; the length's error is work's.
    share = 0.2 if job.measured is None else LAW.sd_measured
    of_run = np.hypot(share * np.sqrt(np.minimum(np.log1p(size), 1)), job.paid_steps_log_sd)
    reach = QUANTILES[0.9]
    work, start = np.exp(reach * np.hypot(columns.log_sd, of_run)), np.exp(reach * 0.4)
    above = np.hypot(whole_s * (work - 1), columns.startup_s * (start - 1))
    below = np.hypot(whole_s * (1 - 1 / work), columns.startup_s * (1 - 1 / start))
    assert done.finish_h[:, 2] == pytest.approx((value + above) / 3600)
    assert done.finish_h[:, 0] == pytest.approx((value - below) / 3600)
    parts = hours(done)
    assert parts["steps"] == pytest.approx(STEP_S * 50_000 / 3600)
    assert parts["epoch_ends"] == pytest.approx(STEP_S * job.epochs * 40 / 3600)
    assert parts["whole_run"] == pytest.approx(expected.expected_s * (factor - 1) / 3600)
    assert parts["start_up"] + parts["data_in"] == pytest.approx(
        (columns.startup_s + columns.data_in_s) / 3600
    )
    assert parts["checkpoints"] == pytest.approx(expected.checkpoints * save_s / 3600)


@pytest.mark.parametrize("way", ["on-demand", "spot", "spot-with-fallback", "elastic-spot"])
def test_parts_add_up_to_the_time_and_the_bill(way: str, job: Job) -> None:
    """Hours, machines' money, storage, results: nothing is counted twice, nothing is left out."""
    done = done_by("on-demand" if way == "on-demand" else "spot", job)
    if way not in ("on-demand", "spot"):  # machines or prices that change on the way
        done = replace(done, way=np.full(3, COMPLETIONS.index(way)), billed_h=done.billed_h * 0.7)
    for row in range(3):
        for billing in ((0.0, 0.0), (0.0, 1.0), (500.0, 0.0)):
            rent = Rent(
                price_usd_per_h=30.0, storage_usd_per_h=0.4, egress_usd=12.0, billing=billing
            )
            parts = done.breakdown(row, rent)
            time_h, cost = done.time_h(row, 0.9), done.cost_usd(row, rent, 0.9)
            assert sum(one.time_h for one in parts.values()) == pytest.approx(time_h.value)
            assert sum(one.cost_usd or 0.0 for one in parts.values()) == pytest.approx(cost.value)
            assert time_h.low <= time_h.value <= time_h.high
            assert cost.low <= cost.value <= cost.high
        ends = done.cost_usd(row, Rent(price_usd_per_h=2.0, egress_usd=5.0), 0.9)
        low, _, high = (done.billed_h[row] * 2 + 5).tolist()
        assert (ends.low, ends.high) == pytest.approx((low, high))
        steps_h, paid = hours(done)["steps"][row], done.breakdown(row, Rent(price_usd_per_h=30.0))
        # Where machines or their price change on the way, every hour costs the mean.
        mean = done.billed_h[row, 1] / done.finish_h[row, 1] if "-with-" in way or (
            way.startswith("elastic")
        ) else 1.0  # fmt: skip
        assert paid["steps"].cost_usd == pytest.approx(30.0 * steps_h * mean)
    nan = float("nan")
    unpriced = Rent(price_usd_per_h=30.0, storage_usd_per_h=nan, egress_usd=nan)
    unknown = done.breakdown(0, unpriced)
    assert unknown["storage"].cost_usd is None
    assert unknown["results_out"].cost_usd is None


def test_an_interval_holds_its_value_where_the_mean_lies_beyond_a_percentile(job: Job) -> None:
    done = done_by("on-demand", job)
    for ends in ([1.0, 9.0, 5.0], [4.0, 3.0, 5.0]):
        skewed = np.array([ends] * 3)
        done = replace(done, finish_h=skewed, billed_h=skewed)
        both = done.time_h(1, 0.9), done.cost_usd(1, Rent(price_usd_per_h=2.0), 0.9)
        for found, price in zip(both, (1.0, 2.0), strict=True):
            assert found.value == price * ends[1]
            assert (found.low, found.high) == (price * min(ends), price * max(ends))


def test_on_its_own_machine_a_job_takes_its_start_and_its_steps_and_no_two_runs_agree(
    job: Job,
) -> None:
    known = rows(log_sd=np.array([0.001, 0.2, 0.2]))
    found = on_recorded_machine(job, known, 0.9).time_h(0, 0.9)
    steps_s = STEP_S[0] * job.paid_steps
    assert found.value == pytest.approx((steps_s + 60 + 600) / 3600)
    reach = QUANTILES[0.9]
    run = np.exp(reach * np.hypot(RUN_LOG_SD, job.paid_steps_log_sd))
    above = np.hypot(steps_s * (run - 1), 60 * (np.exp(reach * 0.4) - 1))
    assert found.high - found.value == pytest.approx(above / 3600)


def test_a_save_takes_what_its_bytes_take_and_no_less_than_was_seen(job: Job) -> None:
    alone_s = job.state_bytes / VOLUME_BYTES_PER_S
    assert checkpoint_s(job) == pytest.approx(alone_s)
    assert checkpoint_s(replace(job, checkpoint_s=alone_s / 2)) == pytest.approx(alone_s)
    assert checkpoint_s(replace(job, checkpoint_s=3 * alone_s)) == pytest.approx(3 * alone_s)


def test_spot_is_the_replays_times_the_whole_runs_factor_and_no_less_than_the_work(
    job: Job,
) -> None:
    columns, done = rows(), done_by("spot", job)
    factor, error = whole_run(job, columns, LAW)
    work_s, again_s = STEP_S * job.paid_steps, restart_s(columns)
    save_s = job.state_bytes / VOLUME_BYTES_PER_S
    bands = [hazard_of_band(BANDS[i]) for i in (0, 2, len(BANDS) - 1)]  # unknown: the worst
    replays = spot_completion(
        work_s, history=packaged_spot_history(), nodes=COUNT, checkpoint_s=save_s,
        restart_s=again_s, hazard=np.array(bands),
    )  # fmt: skip
    least = (work_s + again_s)[:, None]
    finish_s = np.maximum(replays.finish_s, least) * factor[:, None]
    billed_s = np.maximum(replays.billed_s, least) * factor[:, None]
    mean_s = np.maximum(replays.billed_mean_s, least[:, 0]) * factor
    assert done.finish_h * 3600 == pytest.approx(widened(finish_s, finish_s[:, 1], error, 0.9))
    assert done.billed_h * 3600 == pytest.approx(widened(billed_s, mean_s, error, 0.9))
    assert done.overhead_fraction == pytest.approx(finish_s[:, 1] / (work_s * factor) - 1)
    saves_h = work_s / done.checkpoint_interval_s * save_s / 3600
    assert np.all(hours(done)["checkpoints"] <= saves_h * (1 + 1e-9))
    assert np.all(hours(done)["checkpoints"] >= 0)
    assert hours(done)["whole_run"] == pytest.approx(finish_s[:, 1] * (1 - 1 / factor) / 3600)
    assert done.spot_h == pytest.approx(mean_s / 3600)
    assert not done.on_demand_h.any()


def test_spreads_of_replays_and_of_the_step_add_as_variances() -> None:
    """Log-normal on either side of the median, whatever the interval that is asked."""
    low, high, error = np.array([0.3, 0.05]), np.array([0.2, 0.6]), np.array([0.15, 0.0])
    shown, reach = QUANTILES[0.8], QUANTILES[0.95]
    replays = 1e4 * np.exp(np.stack([-shown * low, 0 * low, shown * high], axis=1))
    found = widened(replays, np.array([1e4, 2e4]), error, 0.95)
    assert found[:, 0] == pytest.approx(1e4 * np.exp(-reach * np.hypot(low, error)))
    assert found[:, 1] == pytest.approx([1e4, 2e4])
    assert found[:, 2] == pytest.approx(1e4 * np.exp(reach * np.hypot(high, error)))


@pytest.mark.parametrize(
    ("layout", "writers"),
    [
        ({"dp": DEVICES}, (1, 1, 1)),  # every rank has all of it
        ({"dp": DEVICES, "zero_stage": 1}, (1, 4, 16)),
        ({"dp": COUNT, "tp": 8}, (1, 1, 1)),  # divided inside each machine
        ({"dp": COUNT, "tp": 4, "pp": 2}, (1, 1, 1)),
        ({"dp": 1, "tp": 8, "pp": COUNT}, (1, 4, 16)),
        ({"dp": 2, "tp": 4, "pp": COUNT}, (1, 2, 8)),
        ({"dp": COUNT, "cp": 8, "zero_stage": 1}, (1, 4, 16)),
        ({"dp": COUNT, "cp": 8}, (1, 1, 1)),
    ],
)
def test_machines_that_a_state_is_divided_over_write_side_by_side(
    layout: dict[str, Any], writers: tuple[int, ...], job: Job
) -> None:
    columns = rows(layout=layout)
    assert columns.workers.tolist() == DEVICES.tolist()
    alone_s = job.state_bytes / VOLUME_BYTES_PER_S
    assert save_of_rows_s(job, columns) == pytest.approx(alone_s / np.array(writers))
    seen = replace(job, checkpoint_s=alone_s / 3)  # packing is not faster than it was seen
    assert save_of_rows_s(seen, columns) == pytest.approx(
        np.maximum(alone_s / np.array(writers), alone_s / 3)
    )


def test_a_restart_is_noticed_started_and_brings_its_data_in() -> None:
    columns = rows(startup_s=np.array([0.0, np.nan, 30.0]))
    assert restart_s(columns).tolist() == [601.0, 301.0, 30.0]


def test_a_machine_stores_its_data_and_two_checkpoints_by_the_month(job: Job) -> None:
    """Prices of a plain volume and of traffic as the catalogue lists them, each in its region."""
    catalogue = Catalogue.load(with_overrides=False)
    provider, storage, egress = prices = side_prices(catalogue)
    names = np.unique(np.asarray(catalogue.types.provider)).tolist()
    regions = list(catalogue.prices.regions)
    seen = 0
    for one in catalogue.other_prices:
        if one.provider not in names or one.region not in regions:
            continue
        at = names.index(one.provider), regions.index(one.region)
        if one.item in ("block storage gp3", "block storage balanced"):
            assert storage[at] * 730 == pytest.approx(one.price_usd)
            seen += 1
        elif one.item.startswith("internet egress") and one.tier in (
            "up to 10 TiB/month", "0-1 TiB/month",
        ):  # fmt: skip
            assert egress[at] == pytest.approx(one.price_usd)
            seen += 1
    assert seen > 10
    moved = replace(job, transfers=Transfers(data_bytes=50 * GIB, result_bytes=3 * GIB))
    offers = catalogue.select()
    costs = SideCosts.of(moved, catalogue.types, offers, prices)
    place = provider[offers.type_index], offers.region_index
    kept_gib = 50 + CHECKPOINTS_KEPT * job.state_bytes / GIB
    stored = kept_gib * storage[place]
    assert np.array_equal(np.isnan(costs.storage_usd_per_h), np.isnan(stored))
    assert np.nanmax(np.abs(costs.storage_usd_per_h - stored)) == pytest.approx(0.0, abs=1e-12)
    out = 3 * egress[place]
    assert np.nanmax(np.abs(costs.egress_usd - out)) == pytest.approx(0.0, abs=1e-12)
    rented = replace(costs, shortest_bill_h=np.array([0.1, 1.0]), bill_step_h=np.array([0.5, 0.0]))
    together = rented.rent(1.0, (0, 1), (1, 1)).billing
    assert together == (1.0, 0.5)  # together they cost what the stricter one asks
    nothing = replace(job, transfers=Transfers(result_bytes=0.0))
    free = SideCosts.of(nothing, catalogue.types, offers, prices)
    assert not free.egress_usd.any()  # even where no price is known
