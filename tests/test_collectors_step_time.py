"""Step times and the stop rule on clocks whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.collectors.hooks import format as fmt
from advisor.collectors.step_time import Steps, mean
from advisor.collectors.stop_rule import StopRule, judge

MS = 1_000_000


def ticked(
    times_ms: np.ndarray, delays_ms: np.ndarray | None = None, flags: list[int] | None = None
) -> Steps:
    """Return the steps of a clock that takes ``times_ms``, ``delays_ms`` of each waiting."""
    steps = Steps()
    now, waited = 10**12, 0.0
    steps.add(now, 0, 0)
    for index, time_ms in enumerate(times_ms):
        now += int(time_ms * MS)
        waited += 0.0 if delays_ms is None else delays_ms[index] * MS
        steps.add(now, int(waited), 0 if flags is None else flags[index])
    return steps


def test_a_steady_clock_gives_its_period() -> None:
    now = mean(ticked(np.full(200, 12.5)))
    assert now is not None
    assert now.corrected_s == now.raw_s == pytest.approx(0.0125)
    assert now.half_width_s == pytest.approx(0.0, abs=1e-12)
    assert (now.steps, now.warmup_steps, now.delay_fraction) == (200, 0, 0.0)


@settings(max_examples=50)
@given(st.lists(st.floats(0.0, 3.0), min_size=40, max_size=80))
def test_waiting_for_a_core_is_taken_out(shares: list[float]) -> None:
    """However the waiting is spread over the steps, the corrected time is the idle machine's."""
    work_ms = 8.0
    delays = work_ms * np.array(shares)
    now = mean(ticked(work_ms + delays, delays))
    assert now is not None
    assert now.corrected_s == pytest.approx(work_ms / 1e3, rel=1e-5)
    assert now.raw_s == pytest.approx((work_ms + delays.mean()) / 1e3, rel=1e-5)


def test_a_compiling_first_step_is_warm_up() -> None:
    now = mean(ticked(np.array([25_000.0, 30.0, 9.0] + [4.0] * 100)))
    assert now is not None
    assert now.warmup_steps == 3
    assert now.corrected_s == pytest.approx(0.004)


def test_traced_steps_and_epoch_ends_are_left_out() -> None:
    times = np.full(100, 5.0)
    flags = [0] * 100
    for index, flag in ((20, fmt.FLAG_DEEP), (21, fmt.FLAG_AFTER_DEEP), (50, fmt.FLAG_BOUNDARY)):
        times[index], flags[index] = 500.0, flag
    steps = ticked(times, flags=flags)
    now = mean(steps)
    assert now is not None
    assert now.corrected_s == pytest.approx(0.005)
    assert [one.end_ns - one.begin_ns for one in steps.boundaries()] == [500 * MS]
    assert (steps.count, steps.ticks) == (97, 101)


def test_the_slowest_thread_of_a_pool_counts() -> None:
    """The main thread waits 1 ms a step, another of its pool 3: two more are to be taken off."""
    steps = ticked(np.full(100, 10.0), np.full(100, 1.0))
    for done in (0, 50, 100):
        steps.others.take_pool(steps.first_ns + done * 10 * MS, 3 * done * MS, done * MS)
    now = mean(steps)
    assert now is not None
    assert now.corrected_s == pytest.approx(0.007)


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_the_interval_covers_the_true_mean_as_often_as_it_says(correlation: float) -> None:
    """Batch means against autocorrelated noise: 90 % nominal, 300 recordings."""
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(300):
        shocks = rng.normal(0, 1, 1000)
        noise = np.zeros(1000)
        for index in range(1, 1000):
            noise[index] = correlation * noise[index - 1] + shocks[index]
        now = mean(ticked(10.0 + noise * 0.5))
        assert now is not None
        covered += abs(now.corrected_s - 0.010) <= now.half_width_s
    # Binomial noise of 300 draws is 1.7 points; correlation leaves ten batches a little short.
    assert 0.84 <= covered / 300 <= 0.95


def rule_says(steps: Steps, **settings: float) -> str:
    rule = StopRule(**settings)  # type: ignore[arg-type]
    return judge(steps, rule, epoch_steps=None, epochs_begun=1).waiting_for


def test_a_steady_clock_settles_after_the_least_steps_and_seconds() -> None:
    assert rule_says(ticked(np.full(20, 100.0))) == "30 steps"
    assert rule_says(ticked(np.full(60, 100.0))) == "10 s after warm-up"
    verdict = judge(ticked(np.full(120, 100.0)), StopRule(), epoch_steps=None, epochs_begun=1)
    assert verdict.is_settled
    assert verdict.mean is not None


def test_a_short_epoch_is_waited_for() -> None:
    steps = ticked(np.full(150, 100.0))
    wanted = judge(steps, StopRule(), epoch_steps=200, epochs_begun=1)
    assert wanted.waiting_for == "the end of an epoch"
    assert judge(steps, StopRule(), epoch_steps=200, epochs_begun=2).is_settled
    # An epoch of more than half a minute is not.
    assert judge(steps, StopRule(), epoch_steps=2000, epochs_begun=1).is_settled


def test_noise_and_drift_do_not_pass() -> None:
    rng = np.random.default_rng(3)
    noisy = ticked(np.abs(rng.normal(100, 120, 130)) + 1)
    assert rule_says(noisy) == "±5 %"
    drifting = ticked(np.concatenate([np.full(400, 100.0), np.full(80, 112.0)]))
    assert rule_says(drifting, half_width_fraction=1.0) == "two stretches in agreement"
    assert rule_says(ticked(rng.normal(100, 15, 130)), half_width_fraction=0.001) == "±0 %"


def test_nothing_is_known_before_the_second_step() -> None:
    steps = Steps()
    assert mean(steps) is None
    assert rule_says(steps) == "the first steps"
    steps.add(10**12, 0, 0)
    assert mean(steps) is None
