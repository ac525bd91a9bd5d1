"""Choosing nodes by what will be free: a slow twin, all choices, and forecasts of known series."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from typer.testing import CliRunner

from advisor import data
from advisor.cli import simulate
from advisor.lab import score
from advisor.lab.score import clusters
from advisor.planners import PlanningError
from advisor.planners.systems import node_choices
from advisor.planners.systems.free_shares import futures, learn
from advisor.planners.systems.node_choices import (
    BEST,
    LEARNED,
    RANDOM,
    WAYS,
    Arrival,
    arrivals,
    judge,
    learned_policy,
)
from advisor.planners.systems.sas import (
    LEAST_SHARE,
    choose,
    completion_slots,
    enough,
    groups,
    placement,
)
from advisor.records.importers.node_shares import NodeShares, read_node_shares
from advisor.records.traces import TraceError
from advisor.simulate.availability import nodes_of
from advisor.simulate.questions import SimulateAvailability

share = st.floats(0.0, 1.0).map(lambda x: round(x, 3))
possible = arrays.arrays(float, (3, 8, 5), elements=share)
work = st.floats(0.1, 12.0)
BIT = 1 + 1e-9
ASKED = SimulateAvailability(workers=2, hours=6.0)


def played(shares: np.ndarray, work: float) -> float:
    """Return the slots of one future by going through them [slow]."""
    left, progress = work, shares.min(axis=1)
    for slot, step in enumerate(progress):
        if left <= step:
            return slot + (left / step if step else 0.0)
        left -= step
    return len(progress) + left / max(float(progress.mean()), LEAST_SHARE)


@given(possible, work)
def test_a_job_is_played_slot_by_slot(shares: np.ndarray, length: float) -> None:
    found = completion_slots(shares, [0, 2, 3], length)
    assert found == pytest.approx([played(one[:, [0, 2, 3]], length) for one in shares], rel=1e-6)


@given(possible, work)
def test_another_worker_never_ends_the_job_sooner(shares: np.ndarray, length: float) -> None:
    few = completion_slots(shares, [0, 1], length)
    assert np.all(completion_slots(shares, [0, 1, 2], length) * BIT >= few)
    assert np.all(completion_slots(shares, [0, 1], 2 * length) >= few)
    assert np.all(few * BIT >= length)


@given(possible, work, st.integers(1, 5))
@settings(max_examples=40)
def test_no_swap_betters_the_choice(shares: np.ndarray, length: float, workers: int) -> None:
    chosen = choose(shares, workers=workers, work=length)
    assert len(set(chosen.nodes)) == workers
    assert chosen.slots <= chosen.p95_slots * 3 * BIT
    assert 0.0 <= chosen.straggler_loss < 1.0
    for out, other in itertools.product(chosen.nodes, set(range(5)) - set(chosen.nodes)):
        swapped = [*(set(chosen.nodes) - {out}), other]
        assert placement(shares, swapped, length).slots * BIT >= chosen.slots


def test_the_choice_is_near_the_best_of_all() -> None:
    draw = np.random.default_rng(4)
    ratios = []
    for _ in range(30):
        shares = draw.beta(2, 2, size=(20, 12, 6))
        every = [placement(shares, c, 4.0).slots for c in itertools.combinations(range(6), 3)]
        ratios.append(choose(shares, workers=3, work=4.0).slots / min(every))
    assert np.mean(ratios) < 1.005
    assert max(ratios) < 1.05


@given(possible, st.integers(1, 5))
def test_groups_part_the_nodes(shares: np.ndarray, count: int) -> None:
    found = groups(shares, count)
    assert len(found) == count
    assert sorted(k for one in found for k in one) == list(range(5))


def test_nodes_alike_are_grouped() -> None:
    shares = np.array([0.9, 0.2, 0.88, 0.22, 0.91])[None, None, :].repeat(6, axis=1)
    assert sorted(groups(shares, 2)) == [(0, 2, 4), (1, 3)]


def test_a_day_that_repeats_is_forecast_exactly() -> None:
    day = np.random.default_rng(0).uniform(0.1, 0.9, size=(24, 3))
    history = learn(np.tile(day, (5, 1)), day_slots=24)
    assert history.forecast(day[7], 7, 24) == pytest.approx(np.roll(day, -8, axis=0))
    drawn = futures(history, day[7], slot=7, horizon=24, draws=5, seed=1)
    assert drawn == pytest.approx(np.broadcast_to(np.roll(day, -8, axis=0), (5, 24, 3)))


def test_a_departure_fades_as_it_did() -> None:
    draw = np.random.default_rng(2)
    apart = np.zeros(6000)
    for t in range(1, apart.size):
        apart[t] = 0.8 * apart[t - 1] + 0.05 * draw.normal()
    history = learn(np.clip(0.5 + apart, 0, 1)[:, None], day_slots=4)
    assert history.persistence[0] == pytest.approx(0.8, abs=0.03)
    ahead = history.forecast([0.9], 0, 20)[:, 0] - 0.5
    assert ahead[0] == pytest.approx(0.8 * 0.4, abs=0.03)
    assert abs(ahead[-1]) < 0.03


def test_futures_hold_what_nodes_do_together() -> None:
    draw = np.random.default_rng(3)
    one = draw.uniform(0, 1, size=2000)
    history = learn(np.stack([one, one], axis=1), day_slots=10)
    drawn = futures(history, [0.5, 0.5], slot=0, horizon=6, draws=50, seed=0)
    assert drawn[:, :, 0] == pytest.approx(drawn[:, :, 1])
    assert drawn.min() >= 0.0
    assert drawn.max() <= 1.0


def test_records_and_jobs_without_sense_are_refused() -> None:
    good = learn(np.full((48, 2), 0.5), day_slots=24)
    shares = np.full((1, 2, 3), 0.5)
    for call in (
        lambda: learn(np.full((47, 2), 0.5), day_slots=24),
        lambda: learn(np.full((48, 2), 1.5), day_slots=24),
        lambda: learn(np.full((48, 2), np.nan), day_slots=24),
        lambda: futures(good, [0.5, 0.5], slot=0, horizon=48, draws=1, seed=0),
        lambda: choose(shares, workers=4, work=1.0),
        lambda: choose(shares, workers=1, work=0.0),
    ):
        with pytest.raises(PlanningError):
            call()


# --- ways of choosing, judged on days that were not seen ---


def repeated(days: int, nodes: int = 6, seed: int = 5) -> np.ndarray:
    """Return free shares of days that repeat, twelve slots each."""
    return np.tile(np.random.default_rng(seed).uniform(0.05, 0.95, size=(12, nodes)), (days, 1))


@given(st.integers(0, 2**16), st.integers(1, 5), st.floats(0.5, 6.0))
@settings(max_examples=15)
def test_every_way_names_as_many_nodes_as_there_are_workers(
    seed: int, workers: int, length: float
) -> None:
    shares = np.random.default_rng(seed).uniform(size=(12 * 8, 5))
    history = learn(shares, day_slots=12)
    one = Arrival.at(history, shares[-1], slot=95, workers=workers, work=length, draws=4)
    for way in WAYS.values():
        nodes = way(one)
        assert len(set(nodes)) == workers
        assert set(nodes) <= set(range(5))


def test_jobs_of_the_past_took_what_was_really_free() -> None:
    shares = np.random.default_rng(6).uniform(0.05, 0.95, size=(12 * 20, 5))
    history, later = learn(shares[:120], day_slots=12), shares[120:]
    took = judge(history, later, workers=2, work=3.0)
    jobs = list(arrivals(history, later, workers=2, work=3.0))
    for number in (0, 17, len(jobs) - 1):
        one, path = jobs[number]
        assert later[one.slot - 120] == pytest.approx(one.now)
        every = [played(path[:, list(c)], 3.0) for c in itertools.combinations(range(5), 2)]
        assert took[BEST][number] == pytest.approx(min(every))
        assert took[RANDOM][number] == pytest.approx(np.mean(every))
        for name, way in WAYS.items():
            assert took[name][number] == pytest.approx(played(path[:, list(way(one))], 3.0))
            assert took[name][number] >= took[BEST][number] - 1e-9


def test_days_that_repeat_are_chosen_for_and_told_exactly() -> None:
    shares = repeated(12)
    record = NodeShares(source="x", names=tuple("abcdef"), slot_s=7200.0, shares=shares)
    found = nodes_of(record, ASKED).record
    said = {way["name"]: way for way in found["ways"]}["groups and swaps"]
    # Every future is the day that comes: what is said is what it takes.
    assert said["expected_h"] == pytest.approx(said["p95_h"])
    path = np.tile(shares[:12], (6, 1))
    nodes = ["abcdef".index(name) for name in said["nodes"]]
    assert said["expected_h"] == pytest.approx(2.0 * played(path[:, nodes], 3.0))
    means = {name: past["mean_h"] for name, past in found["past"].items()}
    assert means["groups and swaps"] <= means[RANDOM]
    assert means[BEST] <= min(means[name] for name in WAYS) + 1e-9
    assert sorted(name for one in found["groups"] for name in one["nodes"]) == list("abcdef")
    short = replace(record, shares=shares[:36])
    assert nodes_of(short, ASKED).record["past"] == {}


def test_enough_is_counted_slot_by_slot_until_the_job_is_done() -> None:
    possible = np.array([[[1.0, 0.4], [0.6, 0.6], [0.6, 0.6], [0.1, 0.1]]])
    # Two slots of work: 0.4 + 0.6 + 0.6 are done after three slots and more; the last one counts.
    assert enough(possible, [0, 1], 1.5, 0.5) == pytest.approx(2 / 3)
    assert enough(possible, [0, 1], 1.5, 0.3) == 1.0
    assert enough(possible, [0], 1.0, 0.5) == 1.0


def test_a_learned_policy_finds_what_the_reward_pays_for() -> None:
    """Nodes that are free by turns of half a day: who looks at now alone is wrong after a slot."""
    day = np.zeros((12, 6))
    day[:6, :3], day[6:, 3:] = 1.0, 1.0
    shares = np.clip(np.tile(day, (20, 1)) + 0.05, 0.0, 1.0)
    history = learn(shares[:120], day_slots=12)
    way = learned_policy(history, workers=2, work=3.0)
    took = judge(history, shares[120:], workers=2, work=3.0, others={LEARNED: way})
    assert took[LEARNED].mean() <= 1.1 * took["freest by forecast"].mean()
    assert took[LEARNED].mean() < 0.9 * took[RANDOM].mean()
    with pytest.raises(PlanningError, match="too few to learn"):
        learned_policy(learn(shares[:24], day_slots=12), workers=2, work=30.0)


def test_the_way_is_the_best_on_days_left_out_and_the_policy_among_them() -> None:
    record = NodeShares(source="x", names=tuple("abcdef"), slot_s=7200.0, shares=repeated(12))
    found = nodes_of(record, ASKED).record
    means = {way["name"]: way["past"]["mean_h"] for way in found["ways"]}
    assert "learned policy" in means
    assert means[found["chosen"]] == min(means.values())
    # Days that repeat: what was said of past jobs is what they had.
    told = found["enough_of_past_jobs"]
    assert told["said"] == pytest.approx(told["was"], abs=0.02)


def test_nodes_are_read_by_name_or_as_pools_and_hold_their_value(tmp_path: Path) -> None:
    long = tmp_path / "nodes.csv"
    long.write_text(
        "time,node,free_fraction\n0,a,0.5\n0,b,1\n5400,a,0.25\n1800,b,0\n3600,b,0.75\n5400,b,0.75\n"
    )
    found = read_node_shares(long)
    assert found.names == ("a", "b")
    assert found.shares.tolist() == [[0.5, 1.0], [0.5, 0.0], [0.5, 0.75], [0.25, 0.75]]
    pools = tmp_path / "pools.csv"
    pools.write_text("timestamp,a,b\n0,4,1\n1800,2,0\n3600,0,1\n")
    assert read_node_shares(pools).shares.tolist() == [[1.0, 1.0], [0.5, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("time,node,free_fraction\n0,a,0.5\n0,b,1.5\n", "line 3: a free share of 1.5"),
        ("time,node,free_fraction\n60,a,0.5\n0,a,0.5\n", "goes back by 60 s"),
        ("time,node,free_fraction\n0,a,x\n", "no number in column 'free_fraction'"),
        ("time,node,free_fraction\n0,a,1\n60,a,1\n", "one node"),
        ("time,node,free_fraction\n0,a,1\n60,b,1\n", "0 s in common"),
        ("time,node,free_fraction\n", "no rows"),
        ("x,y\n1,2\n", "no known form"),
    ],
)
def test_tables_of_nodes_without_sense_are_refused(text: str, match: str, tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=match) as refused:
        read_node_shares(path)
    assert refused.value.exit_code == 2
    assert refused.value.hint


def test_the_verb_names_nodes_of_the_users_own_record(tmp_path: Path) -> None:
    shares = repeated(10, nodes=4)
    path = tmp_path / "nodes.csv"
    rows = [
        f"{7200 * slot},{'abcd'[node]},{share:.6f}"
        for slot, row in enumerate(shares) for node, share in enumerate(row)
    ]  # fmt: skip
    path.write_text("\n".join(["time,node,free_fraction", *rows]) + "\n")
    asked = ["availability", "--trace", str(path), "--slot", "2h", "--workers", "2",
             "--hours", "6h"]  # fmt: skip
    result = CliRunner().invoke(simulate.app, [*asked, "--json"], catch_exceptions=False)
    record = json.loads(result.stdout)
    chosen = next(way for way in record["ways"] if way["name"] == record["chosen"])
    assert len(chosen["nodes"]) == 2
    assert chosen["expected_h"] >= 6.0
    assert record["days"] == pytest.approx(10.0)
    text = CliRunner().invoke(simulate.app, asked, catch_exceptions=False).stdout
    assert all(name in text for name in chosen["nodes"])
    with pytest.raises(PlanningError, match="out of range"):
        CliRunner().invoke(simulate.app, [*asked, "--workers", "9"], catch_exceptions=False)


def test_the_protocol_plays_the_later_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "_KINDS", [(2, 3.0)])
    monkeypatch.setattr(node_choices, "MOST_ARRIVALS", 12)
    found = score.run("availability", data.measurements(None))
    assert found.overall.rows == 12
    name = "2 workers, 3 h"
    assert found.figures[f"{name}, {BEST}: mean h"] >= 3.0
    chosen = found.figures[f"{name}, {clusters.CHOSEN_BY_PAST}: mean h"]
    assert chosen < found.figures[f"{name}, {RANDOM}: mean h"]
