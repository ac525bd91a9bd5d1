"""Loaders, caches and repeated data: laws of the feed, and the published gain of echoing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.planners import PlanningError
from advisor.planners.systems.perfect import (
    MOST_ECHO,
    RHO,
    Feeding,
    best_echo,
    cached,
    freshness,
    repeat_then_fresh_s,
    reuse,
    useful_rate,
)

seconds = st.floats(1e-4, 10.0)
feedings = st.builds(
    Feeding,
    cpu_s=seconds,
    idle_s=seconds,
    compute_s=seconds,
    workers=st.integers(0, 12),
    cores=st.floats(0.5, 64.0),
)
prefetched = feedings.map(lambda one: replace(one, workers=max(one.workers, 1)))
AT_R_6 = Feeding(cpu_s=0.0, idle_s=6.0, compute_s=1.0, workers=1, cores=1.0)
BIT = 1 + 1e-9


def simulated_step_s(feeding: Feeding, echo: int, batches: int = 400) -> float:
    """Return the same by playing it: one producer, a queue that never fills, one consumer."""
    ready = free = 0.0
    for _ in range(batches):
        if feeding.workers == 0:
            ready = free + feeding.batch_s
        else:
            ready += feeding.batch_s
        free = max(ready, free) + echo * feeding.compute_s
    return free / (batches * echo)


@given(feedings, st.integers(1, 20))
def test_a_step_is_as_long_as_the_loop_played_out(feeding: Feeding, echo: int) -> None:
    # The first batch has nothing to hide behind: 1 of 400.
    assert feeding.step_s(echo) == pytest.approx(simulated_step_s(feeding, echo), rel=0.01)


@given(prefetched, st.integers(1, 20))
def test_more_workers_cores_and_echoes_never_slow_a_step(feeding: Feeding, echo: int) -> None:
    step = feeding.step_s(echo)
    assert feeding.compute_s <= step <= feeding.step_s(1)
    assert replace(feeding, workers=feeding.workers + 1).step_s(echo) <= step * BIT
    assert feeding.step_s(echo + 1) <= step * BIT
    assert step <= replace(feeding, workers=0).step_s(echo) * BIT


@given(feedings, st.floats(0.0, 2.0), seconds)
def test_a_cache_helps_as_far_as_the_data_fit_it(
    feeding: Feeding, share: float, copy_s: float
) -> None:
    kept = cached(feeding, dataset_bytes=100.0, memory_bytes=100.0 * share, copy_s=copy_s)
    more = cached(feeding, dataset_bytes=100.0, memory_bytes=101.0 * share, copy_s=copy_s)
    assert feeding.compute_s <= kept.step_s <= feeding.step_s()
    if copy_s <= feeding.cpu_s:
        assert more.step_s <= kept.step_s * BIT


@given(st.integers(1, 30), st.floats(0.0, 1.0))
def test_each_repetition_is_worth_less_but_never_nothing(echo: int, rho: float) -> None:
    assert freshness(1, rho) == 1.0
    worth, next_worth = echo * freshness(echo, rho), (echo + 1) * freshness(echo + 1, rho)
    assert worth * BIT >= 1.0
    assert worth <= next_worth * BIT
    assert freshness(echo + 1, rho) <= freshness(echo, rho) * BIT
    if rho < 0.999:
        assert worth == pytest.approx((1 - rho**echo) / (1 - rho))


@given(prefetched, st.floats(0.1, 0.95))
def test_prefetched_the_best_echo_is_where_updates_cost_nothing(
    feeding: Feeding, rho: float
) -> None:
    best = best_echo(feeding, rho)
    most = min(max(1, int(feeding.ratio)), MOST_ECHO)
    assert best.gain * BIT >= reuse(feeding, most).gain
    assert best.gain >= 1.0 / BIT
    assert best.low <= best.gain * BIT <= best.high * BIT**2
    beyond = int(feeding.ratio) + 2  # one more than R rounded up: the loader hides no more
    rounded_up = useful_rate(feeding, beyond - 1, rho)
    assert useful_rate(feeding, beyond, rho) <= max(rounded_up, useful_rate(feeding, 1, rho)) * BIT


@given(feedings, st.floats(0.1, 0.95))
def test_no_echo_within_the_loaders_pace_gains_more(feeding: Feeding, rho: float) -> None:
    best = best_echo(feeding, rho)
    for echo in range(1, min(max(int(feeding.ratio), 1), MOST_ECHO) + 1):
        assert useful_rate(feeding, echo, rho) <= useful_rate(feeding, best.echo, rho) * BIT


@given(feedings, st.integers(1, 20), st.floats(0.0, 1.0))
def test_repeating_first_lies_between_never_and_always(
    feeding: Feeding, echo: int, share: float
) -> None:
    never, some, always = (
        repeat_then_fresh_s(feeding, updates=100, echo=echo, share=phi) for phi in (0, share, 1)
    )
    assert min(never, always) / BIT <= some <= max(never, always) * BIT
    assert never == pytest.approx(100 * feeding.step_s())
    assert never / always == pytest.approx(reuse(feeding, echo).gain)


def test_echoing_gains_what_was_published() -> None:
    """ResNet-50 over a network, R = 6, e = 5: 3.25 times less wall time (Choi et al.)."""
    gain = reuse(AT_R_6, 5)
    assert gain.gain == pytest.approx(3.25, rel=0.01)
    assert gain.gain == pytest.approx(3.23, abs=0.005)
    assert freshness(5, RHO) == pytest.approx(0.65, abs=0.005)
    assert gain.low < 1.5 < 4.0 < gain.high


def test_a_job_that_is_fed_gains_nothing() -> None:
    fed = Feeding(cpu_s=0.1, idle_s=0.0, compute_s=1.0, workers=2, cores=4.0)
    assert not fed.is_input_bound
    assert best_echo(fed).echo == 1
    assert best_echo(fed).gain == 1.0
    assert AT_R_6.is_input_bound


@pytest.mark.parametrize(
    "bad",
    [{"cpu_s": -1.0}, {"compute_s": 0.0}, {"cores": 0.0}, {"idle_s": float("nan")},
     {"compute_s": float("inf")}],
)  # fmt: skip
def test_amounts_without_sense_are_refused(bad: dict[str, float]) -> None:
    amounts = {"cpu_s": 1.0, "idle_s": 1.0, "compute_s": 1.0, "cores": 1.0} | bad
    with pytest.raises(PlanningError, match="out of range"):
        Feeding(workers=1, **amounts)


def test_echoes_and_shares_without_sense_are_refused() -> None:
    with pytest.raises(PlanningError, match="echo"):
        AT_R_6.step_s(0)
    with pytest.raises(PlanningError, match="echo"):
        freshness(2, 1.5)
    with pytest.raises(PlanningError, match="repeating"):
        repeat_then_fresh_s(AT_R_6, updates=1.0, echo=2, share=1.1)
