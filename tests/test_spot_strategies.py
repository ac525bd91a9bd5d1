"""Strategies on node counts against hand-made cases, the replay on spells and each other."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from advisor.planners import PlanningError
from advisor.planners.spot.availability import SpotJob, SpotTrace, replay
from advisor.planners.spot.strategies import STRATEGIES, Name, _adjacent, replay_strategy, strategy

HOUR = 3600.0


def trace(times: list[float], counts: list[int], end: float, nodes: int = 4) -> SpotTrace:
    return SpotTrace(
        name="t", nodes=nodes, start_s=np.array(times, float), available=np.array(counts),
        end_s=end,
    )  # fmt: skip


def random_trace(seed: int, nodes: int = 8, changes: int = 400) -> SpotTrace:
    rng = np.random.default_rng(seed)
    counts = np.clip(nodes + np.cumsum(rng.integers(-1, 2, changes)) % (nodes + 1) - 2, 0, nodes)
    times = np.concatenate([[0.0], np.cumsum(rng.exponential(HOUR, changes - 1) + 1.0)])
    return SpotTrace(
        name="r", nodes=nodes, start_s=times, available=counts, end_s=float(times[-1] + HOUR)
    )


@pytest.mark.parametrize("name", STRATEGIES)
def test_with_all_nodes_all_the_time_a_job_takes_start_and_work(name: Name) -> None:
    way = strategy(name, nodes=4, restart_s=75.0)
    run = replay_strategy(trace([0.0], [4], 1e6), way, [0.0, 100.0], work_s=HOUR, nodes=4)
    slow = 1.2 if name == "redundancy" else 1.0
    np.testing.assert_allclose(run.finish_s, 75.0 + HOUR * slow)
    np.testing.assert_allclose(run.node_s, 4 * (75.0 + HOUR * slow))


def test_restart_equals_the_replay_on_spells() -> None:
    counts = random_trace(1)
    start = np.linspace(0, counts.end_s / 2, 60)
    job = SpotJob(work_s=2 * HOUR, restart_s=75.0, checkpoint_interval_s=600.0)
    spells = counts.spells(6)
    plain = replay(spells, job, start)
    run = replay_strategy(
        counts, strategy("restart", nodes=6, restart_s=75.0), start, work_s=2 * HOUR, nodes=6,
        checkpoint_interval_s=600.0,
    )  # fmt: skip
    np.testing.assert_allclose(run.finish_s, plain.finish_s)
    np.testing.assert_allclose(run.node_s, 6 * plain.rented_s)


def test_a_removal_costs_what_each_strategy_says() -> None:
    # 4 nodes for 1,000 s, then 2: 75 s of start, 925 s computed, checkpoints every 500 s.
    counts = trace([0.0, 1000.0], [4, 2], 1e6)
    common: dict[str, Any] = {"work_s": 2000.0, "nodes": 4, "checkpoint_interval_s": 500.0}
    finish = {
        name: float(
            replay_strategy(
                counts,
                replace(strategy(name, nodes=4, restart_s=75.0), overhead_fraction=0.0),
                [0.0],
                **common,
            ).finish_s[0]
        )
        for name in STRATEGIES
    }
    assert np.isnan(finish["restart"])
    # Back to 500, search and restart, then 1,500 at half speed.
    assert finish["replan"] == pytest.approx(1000 + 85 + 1500 / 0.5)
    # Nothing lost but the pause.
    assert finish["template"] == pytest.approx(1000 + 37 + 1075 / 0.5)
    # Two of four on a ring are neighbours in 4 of 6 cases: two thirds of 425 s go, and of 75 s.
    lost = 2 / 3
    assert finish["redundancy"] == pytest.approx(1000 + 25 + 75 * lost + (1075 + 425 * lost) / 0.5)


def test_neighbours_on_a_ring_are_counted_right() -> None:
    for nodes in range(2, 9):
        for removed in range(1, nodes):
            sets = list(combinations(range(nodes), removed))
            bad = sum(any((a + 1) % nodes in chosen for a in chosen) for chosen in map(set, sets))
            assert _adjacent(np.array([nodes]), np.array([removed]))[0] == pytest.approx(
                bad / len(sets)
            )


def test_strategies_that_go_on_with_less_finish_earlier_on_average() -> None:
    counts = random_trace(2, changes=3000)
    start = np.linspace(0, counts.end_s / 2, 100)
    mean = {}
    for name in STRATEGIES:
        way = strategy(name, nodes=8)
        run = replay_strategy(counts, way, start, work_s=5 * HOUR, nodes=8)
        mean[name] = np.nanmean(run.finish_s)
    assert mean["template"] < mean["replan"] < mean["restart"]
    assert mean["redundancy"] < mean["restart"]


def test_checkpoints_cost_their_share() -> None:
    way = strategy("restart", nodes=4, restart_s=75.0)
    run = replay_strategy(
        trace([0.0], [4], 1e7), way, [0.0], work_s=10 * HOUR, nodes=4,
        checkpoint_interval_s=570.0, checkpoint_s=30.0,
    )  # fmt: skip
    assert run.finish_s[0] == pytest.approx(75 + 10 * HOUR * 600 / 570)


def test_a_repeated_trace_is_the_same_again() -> None:
    once = trace([0.0, 10.0], [4, 1], 30.0)
    twice = once.repeated(2)
    assert twice.end_s == 60.0
    assert twice.start_s.tolist() == [0, 10, 30, 40]
    assert twice.available.tolist() == [4, 1, 4, 1]


def test_a_trace_that_never_has_the_nodes_is_refused() -> None:
    with pytest.raises(PlanningError, match="never has the 9 nodes") as refused:
        replay_strategy(
            trace([0.0], [4], 10.0), strategy("restart", nodes=9), [0.0], work_s=1.0, nodes=9
        )
    assert refused.value.exit_code == 3
