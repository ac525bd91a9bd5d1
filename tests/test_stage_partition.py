from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.planners.core.errors import GIB, PlanningError
from advisor.planners.layouts.stage_cuts import Partition, partition

amounts = st.integers(1, 9)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_partition_equals_trying_every_cut(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 7))
    stages = data.draw(st.integers(1, min(count, 4)))
    speeds = np.array(data.draw(st.lists(amounts, min_size=stages, max_size=stages)), float)
    layers = np.array(data.draw(st.lists(amounts, min_size=count, max_size=count)), float)
    send = np.array(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), float)
    state = np.array(data.draw(st.lists(amounts, min_size=count, max_size=count)), float)
    caps = np.array(
        data.draw(st.lists(st.integers(5, 40), min_size=stages, max_size=stages)), float
    )
    m = data.draw(st.integers(1, 6))
    held = np.minimum(stages - np.arange(stages), m)

    best = None
    for cuts in itertools.combinations(range(1, count), stages - 1):
        edges = [0, *cuts, count]
        times, fits = [], True
        for i, (a, b) in enumerate(itertools.pairwise(edges)):
            times.append(layers[a:b].sum() / speeds[i] + (send[b - 1] if b < count else 0.0))
            fits &= state[a:b].sum() + held[i] * 0.5 * layers[a:b].sum() <= caps[i]
        value = sum(times) + (m - 1) * max(times)
        if fits and (best is None or value < best):
            best = value

    def cut() -> Partition:
        return partition(
            layers[None, :] / speeds[:, None],
            m,
            stages=stages,
            send_s=send,
            state_bytes=state,
            activation_bytes=0.5 * layers,
            in_flight=held,
            capacity_bytes=caps,
        )

    if best is None:
        with pytest.raises(PlanningError, match="fits"):
            cut()
        return
    found = cut()
    assert found.step_s == pytest.approx(best)
    assert sum(found.layers) == count
    assert all(b <= c for b, c in zip(found.memory_bytes, caps, strict=True))


def test_a_device_twice_as_fast_takes_two_thirds() -> None:
    found = partition(np.ones(12) / np.array([[2.0], [1.0]]), 32, stages=2)
    assert found.layers == (8, 4)


def test_a_heavy_head_shortens_the_last_stage() -> None:
    found = partition([1.0] * 11 + [3.0], 32, stages=2)
    assert found.layers == (7, 5)


def test_a_layer_too_large_for_every_stage_is_named() -> None:
    with pytest.raises(PlanningError, match=r"one layer alone needs 3\.00 GiB more"):
        partition([1.0, 1.0], 4, stages=2, state_bytes=[GIB, 8 * GIB], capacity_bytes=5 * GIB)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(PlanningError, match="cannot be cut"):
        partition([1.0, 1.0], 4, stages=3)
