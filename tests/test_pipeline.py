from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.planners.core.errors import PlanningError
from advisor.planners.core.setup import Schedule
from advisor.planners.layouts.pipeline import bubble_fraction, device_order, replay_s


def simulate(
    forward: list[float],
    backward: list[float],
    micro_batches: int,
    schedule: Schedule,
    send: list[float],
    virtual: int,
) -> float:
    """Simulate the schedule in time: every device starts its next pass once its input is there."""
    stages = len(forward)
    orders = [device_order(schedule, r, stages, micro_batches, virtual) for r in range(stages)]
    arrived: dict[tuple[bool, int, int], float] = {
        (False, m, 0): 0.0 for m in range(micro_batches)
    }  # (is backward, micro-batch, global stage) -> when its input is there
    free = [0.0] * stages
    last = stages * virtual - 1
    while any(orders):
        # The event that happens first: among the devices' next passes the earliest start.
        candidates = []
        for r, order in enumerate(orders):
            if order:
                is_backward, m, chunk = order[0]
                key = (is_backward, m, chunk * stages + r)
                if key in arrived:
                    candidates.append((max(free[r], arrived[key]), r))
        start, r = min(candidates)
        is_backward, m, chunk = orders[r].pop(0)
        stage = chunk * stages + r
        end = start + (backward[r] if is_backward else forward[r]) / virtual
        free[r] = end
        if not is_backward and stage < last:
            arrived[False, m, stage + 1] = end + (send[r] if stages > 1 else 0.0)
        elif not is_backward:
            arrived[True, m, stage] = end
        elif stage > 0:
            sender = (stage - 1) % stages
            arrived[True, m, stage - 1] = end + (send[sender] if stages > 1 else 0.0)
    return max(free)


times = st.floats(0.1, 10.0)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_replay_equals_a_simulation_in_time(data: st.DataObject) -> None:
    p = data.draw(st.integers(1, 5))
    schedule: Schedule = data.draw(st.sampled_from(["gpipe", "1f1b", "interleaved"]))
    v = data.draw(st.integers(1, 3)) if schedule == "interleaved" else 1
    m = p * data.draw(st.integers(1, 3)) if v > 1 else data.draw(st.integers(1, 9))
    forward = data.draw(st.lists(times, min_size=p, max_size=p))
    backward = data.draw(st.lists(times, min_size=p, max_size=p))
    send = data.draw(st.lists(st.floats(0.0, 3.0), min_size=p, max_size=p))
    expected = simulate(forward, backward, m, schedule, send, v)
    found = replay_s(forward, backward, m, schedule=schedule, send_s=send, virtual_stages=v)
    assert float(found) == pytest.approx(expected, rel=1e-12)


@given(st.integers(1, 6), st.integers(1, 12), times, times)
def test_even_stages_follow_the_bubble_law(
    p: int, m: int, forward: float, backward: float
) -> None:
    expected = (m + p - 1) * (forward + backward)
    for schedule in ("gpipe", "1f1b"):
        found = replay_s([forward] * p, [backward] * p, m, schedule=schedule)
        assert float(found) == pytest.approx(float(expected))


@given(st.integers(2, 5), st.integers(1, 4), st.integers(2, 4), times)
def test_interleaving_divides_the_bubble(p: int, rounds: int, v: int, forward: float) -> None:
    m = p * rounds
    found = replay_s([forward] * p, [2 * forward] * p, m, schedule="interleaved", virtual_stages=v)
    expected = m * (1 + float(bubble_fraction(p, m, v))) * 3 * forward
    assert float(found) == pytest.approx(float(expected))


def test_published_bubbles() -> None:
    # Narayanan et al. 2021, section 2.2: (p-1)/m, and 1/v of it interleaved.
    assert float(bubble_fraction(8, 64)) == pytest.approx(7 / 64)
    assert float(bubble_fraction(8, 64, 4)) == pytest.approx(7 / 256)


@given(st.lists(times, min_size=1, max_size=5), st.integers(1, 8), st.integers(0, 4), times)
def test_a_slower_stage_never_speeds_the_step_up(
    forward: list[float], m: int, place: int, more: float
) -> None:
    backward = [2 * f for f in forward]
    slower = list(forward)
    slower[place % len(forward)] += more
    before = float(replay_s(forward, backward, m))
    assert float(replay_s(slower, backward, m)) >= before * (1 - 1e-12)
    assert before >= m * max(f + b for f, b in zip(forward, backward, strict=True)) * (1 - 1e-12)


def test_interleaving_needs_whole_rounds() -> None:
    with pytest.raises(PlanningError, match="multiple of 4"):
        replay_s([1.0] * 4, [1.0] * 4, 6, schedule="interleaved", virtual_stages=2)
    with pytest.raises(PlanningError, match="interleaved"):
        replay_s([1.0] * 4, [1.0] * 4, 8, virtual_stages=2)
    with pytest.raises(PlanningError, match="at least 1"):
        replay_s([1.0], [1.0], 0)
