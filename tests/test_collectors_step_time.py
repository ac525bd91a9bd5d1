"""Step times and the stop rule on clocks whose truth is known."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.collectors.derive.certainty import waited_for
from advisor.collectors.format.contention import Corrected
from advisor.collectors.format.step_time import Mean, Steps, mean
from advisor.collectors.hooks import format as fmt

MS = 1_000_000
pytestmark = pytest.mark.usefixtures("warm_caches")


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


def rule_says(steps: Steps, epochs_begun: int = 1, **settings: float) -> str:
    epoch_steps = settings.pop("epoch_steps", None)
    return waited_for(
        steps, mean(steps), epoch_steps=epoch_steps, epochs_begun=epochs_begun, **settings
    )


def test_a_steady_clock_settles_after_the_least_steps_and_seconds() -> None:
    assert rule_says(ticked(np.full(20, 100.0))) == "30 steps"
    assert rule_says(ticked(np.full(60, 100.0))) == "10 s after warm-up"
    assert rule_says(ticked(np.full(120, 100.0))) == ""


def test_a_short_epoch_is_waited_for() -> None:
    steps = ticked(np.full(150, 100.0))
    assert rule_says(steps, epoch_steps=200) == "the end of an epoch"
    assert rule_says(steps, 2, epoch_steps=200) == ""
    # An epoch of more than half a minute is not.
    assert rule_says(steps, epoch_steps=2000) == ""


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


# Random clocks against slow twins that follow the definitions word by word.
SECOND = 1000 * MS
ORDINARY, TRACED, AFTER, BOUNDARY = 0, fmt.FLAG_DEEP, fmt.FLAG_AFTER_DEEP, fmt.FLAG_BOUNDARY
KINDS = (ORDINARY, ORDINARY, ORDINARY, TRACED, AFTER, BOUNDARY, TRACED | BOUNDARY)
tick = st.tuples(
    st.integers(1, 400), st.integers(0, 300), st.integers(0, 50), st.integers(0, 40),
    st.sampled_from(KINDS),
)  # fmt: skip


@dataclass
class Clock:
    """Ticks as (wall, delay, wait in the loader, delay in there, flags) [ms], and their steps."""

    ticks: list[tuple[int, int, int, int, int]]
    start: int = 7 * SECOND

    def __post_init__(self) -> None:
        self.ends = [self.start + MS * sum(t[0] for t in self.ticks[: i + 1])
                     for i in range(len(self.ticks))]  # fmt: skip
        self.steps = Steps()
        self.steps.add(self.start, 11 * MS, 0)
        waited = 11
        for (_, delay, wait, inside, flags), end in zip(self.ticks, self.ends, strict=True):
            waited += delay
            self.steps.add(end, MS * waited, flags, MS * wait, MS * inside)

    def ordinary(self) -> list[int]:
        return [i for i, t in enumerate(self.ticks) if t[4] == ORDINARY]


@given(st.lists(tick, min_size=1, max_size=60), st.integers(0, 10))
def test_ordinary_steps_sum_up_as_if_looked_at_one_by_one(
    ticks: list[tuple[int, int, int, int, int]], first: int
) -> None:
    clock = Clock(ticks)
    steps, chosen = clock.steps, clock.ordinary()[first:]
    rates = {"pool": 0.25, "workers": 0.5, "active": 0.75, "chain": 2.0}
    for end in (clock.start - SECOND, clock.ends[-1] + SECOND):
        for name, rate in rates.items():
            getattr(steps.others, name).add(end, rate * end)
        steps.throttled.add(end, 0.125 * end)
        steps.slowest.add(end, 0.75 * end)
    steps.kept_share = 0.5
    seen = steps.ordinary(first)
    wall, delay, wait, inside = (MS * sum(ticks[i][k] for i in chosen) for k in range(4))
    told = (seen.wall_ns, seen.delay_ns, seen.wait_ns, seen.wait_delay_ns)
    assert told == (wall, delay, wait, inside)
    grown = [seen.pool_ns, seen.workers_ns, seen.active_ns, seen.chain_ns]
    assert grown == pytest.approx([rate * wall for rate in rates.values()], abs=1.0)
    awaited = max(0.0, 0.75 * wall - delay)
    assert seen.awaited_ns == pytest.approx(awaited, abs=1.0)
    own = 0.5 * (delay + 0.25 * wall + awaited)
    assert seen.kept_ns == pytest.approx(own + 0.125 * wall, abs=1.0)
    assert steps.count == len(clock.ordinary())
    assert (steps.ticks, steps.first_ns, steps.last_ns) == (
        len(ticks) + 1, clock.start, clock.ends[-1],
    )  # fmt: skip
    # No time is lost: what is not ordinary was left out.
    parts = [steps.ordinary(), *map(steps.of, steps.left_out)]
    assert sum(one.wall_ns for one in parts) == clock.ends[-1] - clock.start
    assert sum(one.delay_ns for one in parts) == steps.last_delay_ns - steps.first_delay_ns
    boundaries = [MS * t[0] for t in ticks if t[4] & BOUNDARY]
    assert [steps.of(one).wall_ns for one in steps.boundaries()] == boundaries


@given(st.lists(tick, min_size=1, max_size=40), st.data())
def test_a_stretch_is_the_mean_of_its_steps(
    ticks: list[tuple[int, int, int, int, int]], data: st.DataObject
) -> None:
    clock = Clock(ticks)
    chosen = [ticks[i] for i in clock.ordinary()]
    if not chosen:
        assert clock.steps.count == 0
        return
    begin = data.draw(st.integers(0, len(chosen) - 1))
    end = data.draw(st.integers(begin + 1, len(chosen)))
    walls = [one[0] / 1e3 for one in chosen[begin:end]]
    own = [(one[0] - one[1]) / 1e3 for one in chosen[begin:end]]
    assert clock.steps.wall(begin, end) == pytest.approx(np.mean(walls))
    assert clock.steps.corrected(begin, end) == pytest.approx(np.mean(own), abs=1e-9)


def test_an_unreadable_delay_and_a_clock_that_stands_count_nothing() -> None:
    steps = Steps()
    for t_ns, delay_ns in ((SECOND, 9), (2 * SECOND, 4), (2 * SECOND, 4), (3 * SECOND, 5)):
        steps.add(t_ns, delay_ns, 0)
    assert (steps.count, steps.ticks) == (2, 4)
    assert (steps.wall_ns[-1], steps.corrected_ns[-1]) == (2 * SECOND, 2 * SECOND - 1)
    assert steps.end_ns == [2 * SECOND, 3 * SECOND]


def test_steps_that_turned_out_to_be_parts_are_left_out_as_one() -> None:
    steps = Steps(first_ns=SECOND, first_delay_ns=3)
    steps.add(4 * SECOND, 10, BOUNDARY)
    steps.add(5 * SECOND, 12, 0)
    (gap,) = steps.left_out
    assert (gap.begin_ns, gap.end_ns, gap.delay_ns) == (SECOND, 4 * SECOND, 7)
    assert (gap.wait_ns, gap.wait_delay_ns, gap.is_boundary) == (0, 0, False)
    assert (steps.first_ns, steps.count, steps.corrected_ns[-1]) == (SECOND, 1, SECOND - 2)


@given(st.lists(st.integers(1, 100), max_size=75))
def test_warm_up_ends_with_the_first_step_like_those_after_it(times: list[int]) -> None:
    def oracle() -> int:
        for first, time in enumerate(times[:50]):
            following = sorted(times[first + 1 : first + 11])
            if len(following) < 2 or time <= 1.5 * following[len(following) // 2]:
                return first
        return min(len(times), 50)

    assert ticked(np.array(times, float)).warmup() == oracle()


def test_warm_up_is_fifty_steps_at_most() -> None:
    falling = 1.2 ** np.arange(80, 0, -1)
    assert ticked(np.array([*(2.0 * falling), *([1.0] * 30)])).warmup() == 50


@given(st.lists(st.integers(50, 100), min_size=1, max_size=99))
def test_the_interval_is_that_of_batch_means(times: list[int]) -> None:
    """By the textbook: t x s / sqrt(n) over ten batches of equal size, the last steps of all."""
    now = mean(ticked(np.array(times, float)))
    assert now is not None
    used = np.array(times[now.warmup_steps :]) / 1e3
    assert now.steps == len(used)
    assert now.corrected_s == pytest.approx(used.mean())
    batches = min(10, len(used))
    if batches == 1:
        assert now.half_width_s == now.corrected_s
        return
    size = len(used) // batches
    means = used[-batches * size :].reshape(batches, size).mean(axis=1)
    quantile = {2: 6.314, 3: 2.920, 4: 2.353, 5: 2.132, 6: 2.015, 7: 1.943, 8: 1.895, 9: 1.860}
    t = quantile.get(batches, 1.833)
    half = t * means.std(ddof=1) / np.sqrt(batches) * used.mean() / means.mean()
    assert now.half_width_s == pytest.approx(min(now.corrected_s, half), rel=1e-3, abs=1e-12)


def test_no_interval_is_wider_than_the_step_itself() -> None:
    now = mean(ticked(np.array([1.0, 1.0, 1.0, 1000.0])))
    assert now is not None
    assert now.half_width_s == now.corrected_s
    # All of it waiting: nothing is left, and nothing is divided by.
    nothing = mean(ticked(np.full(20, 5.0), np.full(20, 5.0)))
    assert nothing is not None
    assert 0.0 <= nothing.half_width_s <= nothing.corrected_s < 1e-4
    assert nothing.delay_fraction == pytest.approx(1.0, abs=0.01)


@given(st.lists(st.sampled_from([1, 10, 100, 999, 1000, 1001, 5000]), max_size=40))
def test_the_pace_is_that_of_the_last_second_or_of_all(times: list[int]) -> None:
    steps = ticked(np.array(times, float))
    if not times:
        assert steps.fastest_per_s() == 0.0
        return
    ends = np.cumsum(times)
    last = int(np.sum(ends >= ends[-1] - 1000))
    assert steps.fastest_per_s() == pytest.approx(max(last, len(times) / (ends[-1] / 1e3)))


def test_each_loader_counts_its_own_workers() -> None:
    others = Steps().others
    others.take_workers(SECOND, 0, (10, 40, 6), 2)
    others.take_workers(2 * SECOND, 1, (3, 9, 3), 3)
    others.take_workers(3 * SECOND, 0, (14, 60, 6), 2)
    others.take_workers(4 * SECOND, 0, (2, 50, 0), 2)  # counts that fell are not told
    assert others.workers.values == [20, 23, 33, 33]
    assert others.active.values == [25, 29, 41, 41]
    assert others.chain.values == [46, 58, 78, 78]
    others.take_pool(SECOND, 50, 20)
    others.take_pool(2 * SECOND, 90, 20)
    assert others.pool.over(SECOND, 2 * SECOND) == 40


def test_a_pool_is_told_by_what_waited_and_who_slept() -> None:
    others = Steps().others
    others.begin_pool(SECOND)
    # A second, of which the main thread waited a quarter and computed a half; another waited 0.4.
    others.take_pool(2 * SECOND, 0, SECOND // 4, 4 * SECOND // 10, cpu_ns=SECOND // 2)
    assert others.pool.over(SECOND, 2 * SECOND) == pytest.approx(0.4 * SECOND)
    assert others.blocked.over(SECOND, 2 * SECOND) == pytest.approx(0.25 * SECOND)


def test_a_step_without_time_waited_for_nothing() -> None:
    time = Corrected(raw_s=0.0, corrected_s=0.0, raw_wait_s=0.0, wait_s=0.0, half_width_s=0.0)
    assert Mean(time=time, half_width_s=0.0, steps=1, warmup_steps=0).delay_fraction == 0.0
    quarter = replace(time, raw_s=4.0, corrected_s=3.0)
    assert Mean(time=quarter, half_width_s=0.0, steps=1, warmup_steps=0).delay_fraction == 0.25


@pytest.mark.parametrize(
    ("steps", "quantile"),
    [(2, 6.3138), (3, 2.92), (4, 2.3534), (5, 2.1318), (6, 2.015), (7, 1.9432), (8, 1.8946),
     (9, 1.8595), (10, 1.8331), (20, 1.8331)],
)  # fmt: skip
def test_few_steps_have_the_quantile_of_their_number(steps: int, quantile: float) -> None:
    """Student's t, 95 % one-sided; source: any table, e.g. NIST's handbook 1.3.6.7.2."""
    times = np.array([100.0, 104.0] * (steps // 2) + [102.0] * (steps % 2))
    clock = ticked(times)
    now = mean(clock)
    assert now is not None
    batches = min(steps, 10)
    means = times.reshape(batches, -1).mean(axis=1) / 1e3
    half = quantile * means.std(ddof=1) / np.sqrt(batches)
    assert now.half_width_s == pytest.approx(half, rel=1e-4)
    assert clock.wait_ns == clock.wait_delay_ns == [0] * (steps + 1)


def test_a_stretch_from_a_later_step_on_holds_those_steps_alone() -> None:
    ticks = [
        (40, 4, 8, 2, ORDINARY),
        (50, 5, 9, 3, BOUNDARY),
        (60, 6, 10, 4, ORDINARY),
        (70, 7, 11, 5, TRACED),
        (80, 8, 12, 6, ORDINARY),
        (90, 9, 9, 7, BOUNDARY),
    ]
    steps = Clock(ticks).steps
    for end in (steps.first_ns, steps.last_ns):
        steps.others.pool.add(end, float(end))
    seen = steps.ordinary(1)
    told = seen.wall_ns, seen.delay_ns, seen.wait_ns, seen.wait_delay_ns, seen.pool_ns
    assert told == (140 * MS, 14 * MS, 22 * MS, 10 * MS, 140 * MS)


def test_the_edges_of_warm_up() -> None:
    assert ticked(np.array([3.0] + [2.0] * 11)).warmup() == 0  # 1.5 times is no more than that
    assert ticked(np.array([100.0, 1.0, 1.0])).warmup() == 1  # two steps say what is usual
    falling = 100.0 * 1.6 ** np.arange(49, 0, -1)
    # The fiftieth is like most of the ten after it, of which the first four are shorter.
    assert ticked(np.array([*falling, 100.0, *[10.0] * 4, *[100.0] * 6])).warmup() == 49


def test_an_interval_is_of_the_steps_after_warm_up() -> None:
    """Five steps after three of warm-up are five batches, twenty-one ten of two."""
    for used in (5, 21):
        times = np.array([1000.0, 800.0, 700.0, *[100.0, 104.0] * (used // 2), 102.0])
        now = mean(ticked(times))
        assert now is not None
        assert (now.warmup_steps, now.steps) == (3, used)
        batches = min(used, 10)
        means = times[-batches * (used // batches) :].reshape(batches, -1).mean(axis=1) / 1e3
        quantile = {5: 2.1318, 10: 1.8331}[batches]
        half = quantile * means.std(ddof=1) / np.sqrt(batches)
        scale = now.corrected_s / means.mean()
        assert now.half_width_s == pytest.approx(half * scale, rel=1e-4)


def test_the_shortest_step_and_the_shortest_wait_count() -> None:
    steps = Steps(first_ns=SECOND, first_delay_ns=3)
    steps.add(2 * SECOND, 3, 0)
    steps.add(2 * SECOND + 1, 3, 0)
    assert (steps.left_out[0].delay_ns, steps.count, steps.wall_ns) == (0, 1, [0, 1])
