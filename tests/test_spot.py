"""Spot columns against the replay they interpolate."""

from __future__ import annotations

import numpy as np
import pytest

from advisor import data
from advisor.planners import PlanningError
from advisor.planners.spot.availability import (
    BANDS,
    Rental,
    Spells,
    SpotJob,
    hazard_of_band,
    replay,
)
from advisor.planners.spot.history import (
    STARTS,
    RentalColumns,
    SpotHistory,
    copies_of,
    cut,
    scaled_records,
    spot_completion,
    starts_s,
    unsaved_billed_s,
)
from advisor.records.traces import packaged_spot_history, trace_rows

HOUR = 3600.0


def heavy_tailed(seed: int, spells: int = 300) -> Spells:
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.normal([7.5, 8.5], [1.0, 1.4], (spells, 2))).ravel()
    edges = np.cumsum(lengths)
    return Spells(up_start_s=edges[0::2], up_length_s=lengths[1::2], end_s=float(edges[-1]))


HISTORY = SpotHistory(spells=(heavy_tailed(1), heavy_tailed(2)), nodes=(1, 1), source="drawn")


def test_columns_equal_the_quantiles_of_the_replays() -> None:
    job = SpotJob(
        work_s=10 * HOUR, restart_s=300.0, checkpoint_interval_s=1800.0, checkpoint_s=0.0
    )
    samples = []
    for spells in HISTORY.spells:
        starts = (np.arange(2000) + 0.5) / 2000 * spells.end_s
        samples.append(replay(spells.tiled(3), job, starts))
    finish = np.concatenate([s.finish_s for s in samples])
    billed = np.concatenate([s.rented_s for s in samples])
    table = spot_completion(
        np.array([10 * HOUR, 4 * HOUR, 40 * HOUR]), history=HISTORY, checkpoint_s=0.0,
        restart_s=300.0, checkpoint_interval_s=1800.0, deadline_s=15 * HOUR,
    )  # fmt: skip
    # 240 starts against 4,000 and times rounded by up to 5 %: a tenth is sampling.
    np.testing.assert_allclose(table.finish_s[0], np.quantile(finish, [0.1, 0.5, 0.9]), rtol=0.1)
    np.testing.assert_allclose(table.billed_s[0], np.quantile(billed, [0.1, 0.5, 0.9]), rtol=0.1)
    assert table.billed_mean_s[0] == pytest.approx(billed.mean(), rel=0.05)
    assert table.miss_probability[0] == pytest.approx(np.mean(finish > 15 * HOUR), abs=0.05)


@pytest.mark.parametrize("work_h", [3.0, 30.0])
def test_a_column_is_the_replays_of_scaled_records_sorted(work_h: float) -> None:
    """Four nodes of records of two, under twice the hazard: spells of 1 / (sqrt(2) 2)."""
    history = SpotHistory(spells=HISTORY.spells, nodes=(2, 2), source="drawn")
    restart, interval = 1.1**60, 1.1**80  # of the steps that times are rounded to
    job = SpotJob(work_s=work_h * HOUR, restart_s=restart, checkpoint_interval_s=interval)
    finish, billed = [], []
    for spells in history.spells:
        short = spells.scaled(up=2**-0.5 / 2)
        starts = (np.arange(STARTS) + 0.5) / STARTS * short.end_s
        run = replay(short.tiled(40), job, starts)
        finish.append(run.finish_s)
        billed.append(run.rented_s)
    late = np.sort(np.concatenate(finish))
    deadline = float(np.median(late)) * 1.05
    found = spot_completion(
        np.array([work_h * HOUR]), history=history, nodes=4.0, hazard=2.0, checkpoint_s=0.0,
        restart_s=restart, checkpoint_interval_s=interval, deadline_s=deadline,
    )  # fmt: skip
    at = [round(q * (late.size - 1)) for q in (0.1, 0.5, 0.9)]
    np.testing.assert_allclose(found.finish_s[0], late[at], rtol=1e-9)
    np.testing.assert_allclose(found.billed_s[0], np.sort(np.concatenate(billed))[at], rtol=1e-9)
    assert found.billed_mean_s[0] == pytest.approx(np.concatenate(billed).mean(), rel=1e-9)
    # Between two of forty levels, on a line in the logarithm.
    levels = late[np.round(np.arange(41) / 40 * (late.size - 1)).astype(int)]
    share = 1 - np.interp(np.log(deadline), np.log(levels), np.arange(41) / 40)
    assert found.miss_probability[0] == pytest.approx(share, abs=1e-9)
    assert share == pytest.approx(np.mean(late > deadline), abs=1 / 40)
    for limit, chance in ((late[0] * 0.9, 1.0), (late[-1] * 1.1, 0.0), (np.inf, 0.0)):
        found = spot_completion(
            np.array([work_h * HOUR]), history=history, nodes=4.0, hazard=2.0, checkpoint_s=0.0,
            restart_s=restart, checkpoint_interval_s=interval, deadline_s=limit,
        )  # fmt: skip
        assert found.miss_probability[0] == chance


def test_a_refusals_bill_is_of_all_nodes_and_of_their_shorter_spells() -> None:
    """Without a spell that is long enough the mean bill is memoryless: M (e^(T/M) - 1)."""
    up = Spells(up_start_s=np.arange(4.0) * HOUR, up_length_s=np.full(4, 900.0), end_s=4 * HOUR)
    history = SpotHistory(spells=(up,), nodes=(1,), source="made")
    mean = 900 * 4**-0.5 / 3  # of four nodes, under three times the hazard
    wall = 2 * mean + 100
    hours = mean * (np.exp(wall / mean) - 1) / HOUR
    with pytest.raises(PlanningError) as refused:
        spot_completion(
            2 * mean, history=history, checkpoint_s=None, restart_s=100.0, nodes=4.0, hazard=3.0,
            spot_price_usd_per_h=100.0,
        )  # fmt: skip
    assert f"billed {hours:.1f} h ({100 * 4 * hours:,.2f} USD)" in str(refused.value)
    assert f"{2 * mean / HOUR:.1f} h of work" in str(refused.value)
    # Some spells are: those that are not are paid in vain, E[min(u, T)] / P(u >= T).
    mixed = SpotHistory(
        spells=(Spells(up_start_s=np.arange(4.0) * HOUR, end_s=4 * HOUR,
                       up_length_s=np.array([100.0, 200.0, 900.0, 1000.0])),),
        nodes=(1,), source="made",
    )  # fmt: skip
    assert unsaved_billed_s(mixed, 500.0) == pytest.approx((100 + 200 + 500 + 500) / 4 / 0.5)
    assert unsaved_billed_s(mixed, 250.0, 0.5) == unsaved_billed_s(mixed, 500.0) / 2
    (half,) = scaled_records(mixed, 4.0, 0.5)
    np.testing.assert_allclose(half.up_length_s, mixed.spells[0].up_length_s * 4**-0.5 / 0.5)


def test_replays_of_joined_records_are_cut_where_the_next_one_begins() -> None:
    begin = np.array([0.0, 100.0, 300.0])
    starts = starts_s(begin, np.array([60.0, 120.0]))
    assert starts.shape == (2 * STARTS,)
    np.testing.assert_allclose(np.diff(starts[:STARTS]), 60 / STARTS)
    np.testing.assert_allclose(starts[[0, STARTS]], [30 / STARTS, 100 + 60 / STARTS])
    left = np.repeat(begin[1:], STARTS) - starts
    finish = left + np.tile([-1.0, 0.0, 1.0], 2 * STARTS // 3)
    run = Rental(finish_s=finish, spot_s=finish, on_demand_s=finish, rented_s=finish,
                 changes=finish)  # fmt: skip
    ended = cut(run, starts, begin)
    assert np.array_equal(np.isnan(ended.finish_s), finish > left)
    assert np.array_equal(np.isnan(ended.changes), finish > left)
    job = SpotJob(work_s=100.0, restart_s=1.0, checkpoint_interval_s=1e9)
    assert copies_of(job, [30.0, 1000.0, 0.0]) == [3 + 2, 0 + 2, 200 + 2]


def test_shown_quantiles_are_replays_and_what_never_ends_is_the_longest() -> None:
    some = np.arange(11.0)[::-1].copy()
    never = np.where(some > 8, np.nan, some)
    runs = [
        Rental(finish_s=one, spot_s=one, on_demand_s=2 * one, rented_s=one, changes=one)
        for one in (some, never)
    ]
    found = RentalColumns.of(runs, np.array([0.5, 0.25]), np.array([7.0, 8.0]))
    np.testing.assert_array_equal(found.finish_s, [[1, 5, 9], [1, 5, np.inf]])
    np.testing.assert_array_equal(found.billed_s[0], [2.5, 12.5, 22.5])
    np.testing.assert_array_equal(found.billed_mean_s, [12.5, np.inf])
    np.testing.assert_array_equal(found.mean.on_demand_s, [10, np.inf])
    np.testing.assert_array_equal(found.checkpoint_interval_s, [7, 8])


def test_time_and_bill_are_ordered_and_never_below_the_work() -> None:
    work = np.geomspace(600, 1000 * HOUR, 200)
    table = spot_completion(
        work, history=HISTORY, checkpoint_s=10.0, restart_s=120.0, deadline_s=2 * work
    )
    assert np.all(np.diff(table.finish_s, axis=1) >= 0)
    assert np.all(table.billed_s[:, 0] >= work)
    assert np.all(table.finish_s >= table.billed_s * (1 - 1e-9))
    assert np.all((table.miss_probability >= 0) & (table.miss_probability <= 1))


def test_more_nodes_and_more_hazard_take_longer() -> None:
    work = np.full(3, 20 * HOUR)
    by_nodes = spot_completion(
        work, nodes=np.array([1, 4, 16]), history=HISTORY, checkpoint_s=10.0, restart_s=120.0
    )
    by_hazard = spot_completion(
        work, hazard=np.array([0.1, 1.0, 4.0]), history=HISTORY, checkpoint_s=10.0, restart_s=120.0
    )
    for table in (by_nodes, by_hazard):
        assert np.all(np.diff(table.finish_s[:, 1]) > 0)
        assert np.all(np.diff(table.billed_mean_s) > 0)


def test_nodes_that_never_go_cost_restart_and_saves_only() -> None:
    calm = SpotHistory(
        spells=(Spells(up_start_s=np.zeros(1), up_length_s=np.array([1e7]), end_s=1e7),),
        nodes=(1,), source="calm",
    )  # fmt: skip
    table = spot_completion(
        10 * HOUR, history=calm, checkpoint_s=0.0, checkpoint_interval_s=1800.0, restart_s=300.0,
        deadline_s=11 * HOUR,
    )  # fmt: skip
    np.testing.assert_allclose(table.finish_s[0, :2], 10 * HOUR + 300, rtol=2e-3)
    assert table.miss_probability[0] < 0.01


def test_spot_without_checkpoints_is_refused_with_the_expected_bill() -> None:
    with pytest.raises(PlanningError, match=r"billed [\d,.]+ h \([\d,.]+ USD\)") as refused:
        spot_completion(
            100 * HOUR, history=HISTORY, checkpoint_s=None, restart_s=300.0,
            spot_price_usd_per_h=0.9,
        )  # fmt: skip
    assert refused.value.exit_code == 3
    assert "checkpoint" in refused.value.hint


def test_expected_bill_without_checkpoints_equals_a_simulation() -> None:
    rng = np.random.default_rng(0)
    up = np.concatenate([s.up_length_s for s in HISTORY.spells])
    wall, bills = 3 * HOUR, []
    for _ in range(4000):
        billed = 0.0
        while (spell := rng.choice(up)) < wall:
            billed += spell
        bills.append(billed + wall)
    error = np.std(bills) / np.sqrt(len(bills))
    assert abs(unsaved_billed_s(HISTORY, wall) - np.mean(bills)) < 4 * error


def test_bands_order_the_hazard() -> None:
    hazards = [hazard_of_band(b) for b in BANDS]
    assert hazards == sorted(hazards)
    assert hazards[-1] == 1.0
    with pytest.raises(PlanningError, match="no interruption band"):
        hazard_of_band("50%")


def test_packaged_history_keeps_the_recorded_availability() -> None:
    history = packaged_spot_history()
    assert len(history.spells) == len(history.nodes) >= 10
    availability = [s.availability for s in history.spells]
    # The traces span dry zones and easy ones: 0.17 to 0.89.
    assert min(availability) < 0.25
    assert max(availability) > 0.85


def test_packaged_spells_are_as_long_as_their_counts_in_the_recorded_days_allow() -> None:
    """Hours up are ``availability`` of the days, spread over the spells that were counted."""
    path = data.root("datasets") / "availability" / "spell_quantiles.csv"
    of_gpus = [row for _, row in trace_rows(path) if row["is_gpu"] == "1"]
    up, down = ([row for row in of_gpus if row["spell"] == kind] for kind in ("up", "down"))
    for spells, risen, gone in zip(packaged_spot_history().spells, up, down, strict=True):
        hours, share = float(risen["days"]) * 24, float(risen["availability"])
        mean_up_h = hours * share / float(risen["count"])
        mean_down_h = hours * (1 - share) / float(gone["count"])
        assert spells.up_length_s.mean() / HOUR == pytest.approx(mean_up_h, rel=0.1)
        whole_h = spells.end_s / HOUR / spells.up_length_s.size
        assert whole_h == pytest.approx(mean_up_h + mean_down_h, rel=0.1)


@pytest.mark.parametrize("bad", [{"work_s": -1.0}, {"nodes": 0}, {"restart_s": -5.0}])
def test_values_without_sense_are_refused(bad: dict[str, float]) -> None:
    values = {"work_s": 10.0, "nodes": 1.0, "restart_s": 1.0} | bad
    work = values.pop("work_s")
    with pytest.raises(PlanningError) as refused:
        spot_completion(
            work, history=HISTORY, checkpoint_s=1.0, nodes=values["nodes"],
            restart_s=values["restart_s"],
        )  # fmt: skip
    assert refused.value.exit_code == 2
