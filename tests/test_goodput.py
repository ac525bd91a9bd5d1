"""Goodput against closed forms, a slow simulation and published figures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import lambertw

from advisor.planners import PlanningError
from advisor.planners.goodput import (
    EDGE_P95,
    LLAMA3,
    EdgeFaultTolerance,
    expected_completion,
    initialisation_s,
    optimal_interval_s,
    segment_s,
)
from advisor.planners.spot.availability import Spells, SpotJob, replay

HOUR = 3600.0


def simulated_s(
    work: float, tau: float, rate: float, save: float, down: float, restart: float, runs: int
) -> tuple[float, float]:
    """Mean and standard error of the wall time, failure by failure (the slow twin)."""
    rng = np.random.default_rng(7)
    totals = []
    for _ in range(runs):
        clock, done, next_failure = 0.0, 0.0, rng.exponential(1 / rate)
        while done < work:
            attempt = min(tau, work - done) + save
            if clock + attempt <= next_failure:
                clock, done = clock + attempt, done + min(tau, work - done)
                continue
            while True:  # fail, wait, restart; the restart can fail too
                clock = next_failure + down
                next_failure = clock + rng.exponential(1 / rate)
                if clock + restart <= next_failure:
                    clock += restart
                    break
        totals.append(clock)
    return float(np.mean(totals)), float(np.std(totals) / np.sqrt(runs))


@pytest.mark.parametrize(
    ("rate", "tau", "save", "down", "restart"),
    [(1 / 900, 300.0, 20.0, 60.0, 45.0), (1 / 5000, 1200.0, 60.0, 0.0, 300.0)],
)
def test_expectation_equals_a_simulation_failure_by_failure(
    rate: float, tau: float, save: float, down: float, restart: float
) -> None:
    work = 6 * tau
    exact = 6 * float(segment_s(tau, rate, save, down, restart))
    mean, error = simulated_s(work, tau, rate, save, down, restart, runs=4000)
    assert abs(exact - mean) < 4 * error
    through = expected_completion(
        work, devices=1, failures_per_device_h=rate * HOUR, checkpoint_s=save, detection_s=down,
        restart_s=restart, checkpoint_interval_s=tau,
    )  # fmt: skip
    assert through.expected_s[0] == pytest.approx(exact)


def test_optimal_interval_is_lamberts_root() -> None:
    rate, save = np.geomspace(1e-9, 1.0, 60), 30.0
    root = (1 + lambertw(-np.exp(-1 - rate * save)).real) / rate
    # 1e-7: the reference itself loses digits near its branch point.
    np.testing.assert_allclose(optimal_interval_s(save, rate), root, rtol=1e-7)


def test_young_and_daly_approach_the_optimum_where_failures_are_rare() -> None:
    rate = 1 / (30 * 24 * HOUR)
    best = float(optimal_interval_s(20.0, rate))
    young = math.sqrt(2 * 20.0 / rate)
    ratio = 20.0 * rate / 2
    daly = young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - 20.0  # his equation 37
    assert daly == pytest.approx(best, rel=1e-5)
    # Young leaves out -C + C/3 of the series.
    assert young == pytest.approx(best + 20 * 2 / 3, rel=1e-5)


@given(
    work=st.floats(60, 1e7),
    per_h=st.floats(1e-6, 2.0),
    save=st.floats(0.1, 600),
    other=st.floats(1.0, 1e6),
)
def test_no_other_interval_beats_the_chosen_one(
    work: float, per_h: float, save: float, other: float
) -> None:
    common: dict[str, Any] = {"devices": 1, "failures_per_device_h": per_h, "restart_s": 30.0}
    best = expected_completion(work, checkpoint_s=save, **common)
    rival = expected_completion(work, checkpoint_s=save, checkpoint_interval_s=other, **common)
    assert best.expected_s[0] <= rival.expected_s[0] * (1 + 1e-9)


@given(work=st.floats(60, 1e6), per_h=st.floats(0, 1.0), save=st.floats(0, 300))
def test_time_is_never_below_work_and_grows_with_the_failure_rate(
    work: float, per_h: float, save: float
) -> None:
    rates = np.array([per_h, 1.5 * per_h + 1e-4])
    both = expected_completion(
        np.full(2, work), devices=1, failures_per_device_h=rates, checkpoint_s=save
    )
    assert both.expected_s[0] >= work * (1 - 1e-12)
    assert both.expected_s[1] >= both.expected_s[0] * (1 - 1e-12)


def test_without_failures_only_the_final_save_is_added() -> None:
    calm = expected_completion(
        1000.0, devices=8, failures_per_device_h=0.0, checkpoint_s=4.0, restart_s=30.0
    )
    assert calm.expected_s[0] == pytest.approx(1004.0)
    assert calm.checkpoints[0] == 1


def test_without_checkpoints_the_time_is_m_times_exp_w_over_m() -> None:
    mtbf_h, work_h = 1 / 0.15, 48.5
    alone = expected_completion(
        work_h * HOUR, devices=1, failures_per_device_h=0.15, checkpoint_s=None,
        restart_s=0.0, detection_s=0.0,
    )  # fmt: skip
    assert alone.expected_s[0] / HOUR == pytest.approx(mtbf_h * np.expm1(work_h / mtbf_h))


def test_a_hopeless_job_takes_for_ever_instead_of_failing() -> None:
    hopeless = expected_completion(1e9, devices=1e6, checkpoint_s=None, restart_s=0.0)
    assert np.isinf(hopeless.expected_s[0])


def test_failure_rate_is_that_of_the_llama_3_table() -> None:
    assert LLAMA3.per_device_h == pytest.approx(1.97e-5, rel=2e-3)
    assert 1 / (LLAMA3.per_device_h * 16_384) == pytest.approx(3.09, rel=2e-3)
    assert LLAMA3.network_fraction == pytest.approx(0.084 + 0.017, abs=2e-3)


def test_llama_3_effective_time_above_90_percent_needs_a_loss_of_18_minutes_a_failure() -> None:
    """Their > 90 % effective training time: at most about 0.1 x 3.09 h lost at each failure."""
    run: dict[str, Any] = {"devices": 16_384, "checkpoint_s": 5.0, "detection_s": 0.0}
    # Half an interval of 10 minutes plus a restart of 12 = 17 minutes: just effective enough.
    ok = expected_completion(54 * 24 * HOUR, restart_s=720.0, checkpoint_interval_s=600.0, **run)
    assert 1 / (1 + ok.overhead_fraction[0]) == pytest.approx(0.90, abs=0.01)
    slow = expected_completion(
        54 * 24 * HOUR, restart_s=1800.0, checkpoint_interval_s=600.0, **run
    )
    assert 1 / (1 + slow.overhead_fraction[0]) < 0.88


def test_thorn_resnet101_stands_still_for_13_minutes_after_one_fault() -> None:
    """Checkpoints every 10 epochs of 80 s, a fault just before one: ten epochs come again."""
    epoch_s = 80.0
    job = SpotJob(work_s=50 * epoch_s, restart_s=0.0, checkpoint_interval_s=10 * epoch_s)
    up = np.array([20 * epoch_s - 1.0, 1e6])
    fault = Spells(up_start_s=np.array([0.0, up[0]]), up_length_s=up, end_s=float(up.sum()))
    plateau_s = float(replay(fault, job, [0.0]).finish_s[0]) - job.work_s
    assert plateau_s / 60 == pytest.approx(13.3, abs=0.1)


def test_edge_fault_tolerance_pays_at_scale_and_not_on_eight_devices() -> None:
    run: dict[str, Any] = {
        "checkpoint_s": 30.0,
        "detection_s": 300.0,
        "checkpoint_interval_s": 1200.0,
    }
    week = 7 * 24 * HOUR

    def gain(devices: int) -> float:
        off = expected_completion(week, devices=devices, **run)
        on = expected_completion(week, devices=devices, edge=EdgeFaultTolerance(), **run)
        return float(off.overhead_fraction[0] - on.overhead_fraction[0])

    # The network's tenth of the failures, less the time on one path (about 1 point at 16,384).
    assert 0.005 < gain(16_384) < 0.025
    assert abs(gain(8)) < 1e-3


def test_published_slowdowns_are_an_exponentials_and_their_mean_is_a_third_of_p95() -> None:
    # Added latency, 90th and 95th percentile (THORN-ML slides). [ms]
    slides = {
        "data-parallel": (5.3, 7.3), "pipeline": (54.9, 76.7), "pipeline-tensor": (729.4, 928.4),
    }  # fmt: skip
    for layout, p95 in EDGE_P95.items():
        p90_ms, p95_ms = slides[layout]
        assert p95_ms * math.log(10) / math.log(20) == pytest.approx(p90_ms, rel=0.08)
        mean = EdgeFaultTolerance.of_layout(layout).slowdown_fraction
        assert mean == pytest.approx(p95 / 3, rel=0.01)
        draws = np.random.default_rng(0).exponential(mean, size=200_000)
        assert np.quantile(draws, 0.95) == pytest.approx(p95, rel=0.02)


def test_whether_a_second_path_pays_depends_on_the_layout() -> None:
    run: dict[str, Any] = {"devices": 16_384, "checkpoint_s": 30.0, "restart_s": 1047.0}
    plain = expected_completion(10 * 24 * HOUR, **run).expected_s[0]
    with_path = {
        layout: expected_completion(
            10 * 24 * HOUR, edge=EdgeFaultTolerance.of_layout(layout), **run
        ).expected_s[0]
        for layout in EDGE_P95
    }
    assert with_path["data-parallel"] < plain < with_path["pipeline-tensor"]
    free = EdgeFaultTolerance(slowdown_fraction=0.0, network_fraction=1.0)
    assert expected_completion(10 * 24 * HOUR, edge=free, **run).overhead_fraction[0] == (
        pytest.approx(30.0 / (10 * 24 * HOUR))  # the last save alone
    )
    with pytest.raises(PlanningError, match="hide"):
        EdgeFaultTolerance(network_fraction=1.2)


def test_initialisation_meets_its_two_points_and_is_flat_outside() -> None:
    np.testing.assert_allclose(initialisation_s([1, 5, 2048, 16_384]), [22.61, 22.61, 1047, 1047])


def test_small_clusters_are_called_negligible_and_large_ones_are_not() -> None:
    table = expected_completion(
        np.full(2, 24 * HOUR), devices=np.array([8, 16_384]), checkpoint_s=2.0
    )
    assert table.is_negligible.tolist() == [True, False]


@pytest.mark.parametrize(
    "bad",
    [
        {"work_s": 0.0},
        {"work_s": float("nan")},
        {"devices": 0},
        {"checkpoint_s": -1.0},
        {"preemptions_per_node_h": -0.1},
        {"checkpoint_interval_s": 0.0},
    ],
)
def test_values_without_sense_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(PlanningError, match=next(iter(bad))) as refused:
        expected_completion(**{"work_s": 10.0, "devices": 1, "checkpoint_s": 1.0, **bad})
    assert refused.value.exit_code == 2
    assert refused.value.hint
