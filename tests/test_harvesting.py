"""Harvesting: Denning's law on a program whose pages are known, and the loss that is allowed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.planners.core.errors import PlanningError
from advisor.planners.systems.working_set import (
    HEADROOM,
    MOST_LOSS,
    PAGE_BYTES,
    Harvest,
    TouchedWindow,
    borrow,
    curve_of,
    harvest,
)

MIB = float(2**20)


def windows(touched: dict[float, float], resident: float) -> list[TouchedWindow]:
    return [
        TouchedWindow(window_s=length, touched_bytes=size, resident_bytes=resident)
        for length, size in touched.items()
    ]


def test_hot_and_cold_memory_are_told_apart() -> None:
    # As measured of 80 MB hot and 240 MB cold: every window sees the hot part.
    found = harvest(windows({1: 80 * MIB, 2: 80 * MIB, 4: 80 * MIB}, 330 * MIB), fault_s=1e-4)
    assert found is not None
    assert found.loss_fraction == 0.0
    assert found.limit_bytes == pytest.approx(88 * MIB)
    assert found.harvested_bytes == pytest.approx(242 * MIB)


lengths = (1.0, 2.0, 4.0, 8.0, 16.0)
sizes = st.lists(st.floats(0.0, 1e9), min_size=5, max_size=5).map(sorted)


@given(sizes, st.sampled_from([7.5e-6, 1e-4, 5e-3]))
def test_what_is_taken_costs_no_more_than_was_allowed(touched: list[float], fault: float) -> None:
    seen = windows(dict(zip(lengths, touched, strict=True)), resident=2e9)
    found = harvest(seen, fault_s=fault)
    if found is None:
        assert min(curve_of(seen).return_bytes_per_s()) / PAGE_BYTES * fault > MOST_LOSS
        return
    assert found.loss_fraction <= MOST_LOSS
    assert found.touched_bytes <= found.limit_bytes <= found.resident_bytes
    assert found.limit_bytes <= (1 + HEADROOM) * found.touched_bytes
    slower = harvest(seen, fault_s=10 * fault)
    assert slower is None or slower.limit_bytes >= found.limit_bytes


@given(st.integers(0, 20))
def test_the_slope_is_what_a_played_program_brings_back(seed: int) -> None:
    """Denning's law: pages untouched for tau are taken; what returns is the curve's growth."""
    rng = np.random.default_rng(seed)
    pages, ticks = 60, 3000
    weight = rng.exponential(size=pages)
    touches = rng.choice(pages, size=ticks, p=weight / weight.sum())  # one page a second
    last = np.full(pages, -np.inf)
    gaps = np.empty(ticks)
    for at, page in enumerate(touches):
        gaps[at] = at - last[page]
        last[page] = at
    seen = []
    for tau in (8, 16, 32, 64):
        sets = [len(set(touches[b : b + tau])) for b in range(0, ticks - tau, 5)]
        seen += [
            TouchedWindow(
                window_s=tau, touched_bytes=PAGE_BYTES * size, resident_bytes=PAGE_BYTES * pages
            )
            for size in sets
        ]
    curve = curve_of(seen)
    ages = np.append(0.0, curve.window_s)
    for before, tau, slope in zip(ages, ages[1:], curve.return_bytes_per_s(), strict=False):
        # The chord is flatter than the curve at its begin, and steeper than at its end.
        most, least = (float(np.mean(gaps[500:] > age)) * PAGE_BYTES for age in (before, tau))
        assert 0.9 * least <= slope <= 1.1 * most


def test_one_length_does_not_show_that_nothing_else_comes_back() -> None:
    assert harvest(windows({2: 10 * MIB}, 100 * MIB), fault_s=1e-4) is None


def test_a_program_that_touches_more_and_more_is_left_alone() -> None:
    growing = {length: 1e9 * length for length in lengths}
    assert harvest(windows(growing, 2e10), fault_s=1e-4) is None


@given(st.floats(1e-3, 1e3))
def test_nothing_is_taken_of_memory_that_is_all_touched(resident: float) -> None:
    found = harvest(windows(dict.fromkeys(lengths, resident), resident), fault_s=5e-3)
    assert isinstance(found, Harvest)
    assert found.harvested_bytes == 0.0


@pytest.mark.parametrize("fault", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_latencies_are_refused(fault: float) -> None:
    with pytest.raises(PlanningError, match="out of range"):
        harvest(windows({1: 1.0, 2: 1.0}, 2.0), fault_s=fault)


@given(sizes, st.floats(1e6, 3e9), st.floats(1.1, 4.0))
def test_less_memory_or_a_slower_link_never_costs_less(
    touched: list[float], memory: float, factor: float
) -> None:
    seen = windows(dict(zip(lengths, touched, strict=True)), resident=2e9)
    one = borrow(seen, memory, fault_s=1e-4)
    more = borrow(seen, memory * factor, fault_s=1e-4)
    slow = borrow(seen, memory, fault_s=1e-4, bytes_per_s=1e8)
    assert one is not None
    assert more is not None
    assert slow is not None
    assert more.loss_fraction <= one.loss_fraction <= slow.loss_fraction
    assert slow.loss_fraction == pytest.approx(one.loss_fraction * (1 + PAGE_BYTES / 1e8 / 1e-4))
    assert one.borrowed_bytes == max(0.0, 2e9 - memory)
    assert memory < 2e9 or one.loss_fraction == 0.0


@given(st.integers(0, 20), st.sampled_from([8, 16, 24, 32, 40]))
def test_what_is_borrowed_comes_back_as_in_a_cache_of_that_size(seed: int, kept: int) -> None:
    """The kernel as a cache of so many pages that gives up what was touched longest ago."""
    rng = np.random.default_rng(seed)
    pages, ticks = 60, 4000
    weight = rng.exponential(size=pages)
    touches = rng.choice(pages, size=ticks, p=weight / weight.sum()).tolist()
    recent: dict[int, None] = {}
    faults = 0
    for at, page in enumerate(touches):
        faults += page not in recent and at >= 500
        recent.pop(page, None)
        recent[page] = None
        if len(recent) > kept:
            del recent[next(iter(recent))]
    seen = [
        TouchedWindow(
            window_s=tau, touched_bytes=PAGE_BYTES * len(set(touches[b : b + tau])),
            resident_bytes=PAGE_BYTES * pages,
        )
        for tau in (4, 8, 16, 32, 64, 128, 256) for b in range(0, ticks - tau, 7)
    ]  # fmt: skip
    found = borrow(seen, PAGE_BYTES * kept, fault_s=1e-3)
    assert found is not None
    assert found.loss_fraction / 1e-3 == pytest.approx(faults / (ticks - 500), rel=0.3, abs=0.02)


def test_below_the_shortest_window_it_is_said_to_be_the_least() -> None:
    seen = windows({1: 80 * MIB, 2: 90 * MIB}, 330 * MIB)
    below, above = (borrow(seen, size * MIB, fault_s=1e-4) for size in (40, 85))
    assert below is not None
    assert above is not None
    assert below.is_least
    assert not above.is_least
    assert borrow([], 1e9, fault_s=1e-4) is None
