"""Stragglers as advice: said of recorded ranks that are unlike, and of no others."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from advised import recorded

from advisor import api
from advisor.advice import slow_ranks
from advisor.advice.asking import facts_here
from advisor.advice.facts import Facts
from advisor.answer import Configuration
from advisor.ask import Constraints
from advisor.collectors.format.recording import RankSeries
from advisor.estimate.predictor import Predictor
from advisor.jobs.from_recording import rank_spread
from advisor.jobs.job import Job

SYSTEMS = Path(__file__).parent / "golden" / "systems"
MakeJob = Callable[..., Job]


def series(levels: list[float], steps: int = 60) -> tuple[RankSeries, ...]:
    """Ranks that compute for so long: all steps take the slowest one's time."""
    rng = np.random.default_rng(0)
    own = np.array(levels) * (1 + 0.01 * rng.normal(size=(steps, len(levels))))
    whole = own.max(axis=1)
    return tuple(
        RankSeries(
            rank=rank, pid=100 + rank, step_s=tuple(whole), wait_s=tuple(whole - own[:, rank]),
            sent_bytes_per_step=None, received_bytes_per_step=None, payload_bytes_per_step=None,
        )
        for rank in range(len(levels))
    )  # fmt: skip


@pytest.fixture(scope="module")
def facts(make_job: MakeJob) -> Facts:
    found = facts_here(Predictor(), make_job(), constraints=Constraints(here_usd_per_h=1.0))
    assert found is not None
    return found


def test_a_slow_rank_gets_fewer_samples_and_the_job_ends_earlier(facts: Facts) -> None:
    told = recorded(facts, ranks=series([0.1, 0.1, 0.2]), world_size=3)
    found = {one.name: one for one in slow_ranks.advise_stragglers(told)}
    assert {"uneven-batches", "drop-near-duplicates", "asynchronous"} <= set(found)
    # 32 samples each: 38, 38 and 19 or 20 end together; three fifths of 0.2 s.
    even = found["uneven-batches"]
    assert even.time_factor == pytest.approx(0.6, abs=0.03)
    assert even.is_model_kept
    assert "batch = (38, 39, 19)" in even.how.text or "batch = (39, 38, 19)" in even.how.text
    dropped = found["drop-near-duplicates"]
    assert not dropped.is_model_kept
    # The slow rank chooses half as fast as the others.
    assert dropped.details["choosing_s"] > 0
    assert dropped.details["batches"] == pytest.approx([32.0, 32.0, 16.0], abs=1)


def test_ranks_that_are_slow_in_turns_get_a_backup_and_no_other_batches(facts: Facts) -> None:
    ranks, steps = 8, 64
    own = np.full((steps, ranks), 0.1)
    own[np.arange(steps), np.arange(steps) % ranks] = 0.2  # each once in eight steps
    one = series([0.1] * ranks)[0]
    turns = tuple(
        replace(one, rank=rank, pid=100 + rank, step_s=(0.2,) * steps,
                wait_s=tuple(0.2 - own[:, rank]))
        for rank in range(ranks)
    )  # fmt: skip
    found = {
        a.name: a for a in slow_ranks.advise_stragglers(recorded(facts, ranks=turns, world_size=8))
    }
    # The first seven of eight end after 0.1 s: seven eighths of the samples in half the time.
    assert found["backup-worker"].time_factor == pytest.approx(8 / 7 / 2, rel=0.01)
    assert {"uneven-batches", "drop-near-duplicates"}.isdisjoint(found)
    assert "asynchronous" in found


def test_one_odd_step_never_removes_a_cure(facts: Facts) -> None:
    whole = series([0.1, 0.23])
    usual = {a.name: a for a in slow_ranks.advise_stragglers(recorded(facts, ranks=whole))}
    # Waiting is shared out over a few steps: a short step seems to have waited for all of it.
    waits = (whole[0].step_s[0] * 1.01, *whole[0].wait_s[1:])
    odd = (replace(whole[0], wait_s=waits), whole[1])
    found = {a.name: a for a in slow_ranks.advise_stragglers(recorded(facts, ranks=odd))}
    assert usual
    assert set(found) == set(usual)
    for name, one in usual.items():
        assert found[name].time_factor == pytest.approx(one.time_factor, rel=0.02)


def test_choosing_what_costs_more_than_it_saves_is_not_advised(facts: Facts) -> None:
    """A step of a millisecond: the distances between the samples take as long."""
    short = recorded(facts, ranks=series([0.001, 0.0023]), world_size=2)
    assert "drop-near-duplicates" not in {a.name for a in slow_ranks.advise_stragglers(short)}


def test_a_rank_that_sends_less_is_waited_for_less(facts: Facts) -> None:
    told = recorded(facts, ranks=series([0.1, 0.1, 0.1, 0.2]), world_size=4)
    found = {a.name: a for a in slow_ranks.advise_stragglers(told)}
    # Steps of 0.1 s in which one of four computes half as much.
    assert found["fewer-transfers"].details["every"] == [1, 1, 1, 2]
    assert found["fewer-transfers"].time_factor == pytest.approx(0.5 / (7 / 8), abs=0.03)


def test_equal_ranks_and_ranks_elsewhere_get_no_advice(facts: Facts) -> None:
    assert (
        list(slow_ranks.advise_stragglers(recorded(facts, ranks=series([0.1, 0.1]), world_size=2)))
        == []
    )
    assert (
        list(slow_ranks.advise_stragglers(recorded(facts, ranks=series([0.1]), world_size=1)))
        == []
    )
    ((offer, count),) = facts.now.configuration.parts
    rented = Configuration(parts=((replace(offer, pricing="on-demand"), count),))
    away = replace(facts, now=replace(facts.now, configuration=rented))
    assert (
        list(slow_ranks.advise_stragglers(recorded(away, ranks=series([0.1, 0.3]), world_size=2)))
        == []
    )


def test_the_spread_of_ranks_is_read_where_nobody_else_used_the_machine(facts: Facts) -> None:
    unlike = series([0.1, 0.3])
    calm = recorded(facts, ranks=unlike, world_size=2).recording
    assert calm is not None
    found = rank_spread(calm)
    assert found is not None
    # 0.1 and 0.3 are half their mean away from it: a deviation of 1 / sqrt(2).
    assert found.staying_fraction == pytest.approx(0.707, abs=0.02)
    assert rank_spread(replace(calm, contention=0.3)) is None
    assert rank_spread(replace(calm, ranks=unlike[:1])) is None
    assert rank_spread(replace(calm, ranks=series([0.1, 0.3], steps=20))) is None


def test_near_duplicates_are_named_with_the_size_of_a_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a loader a sample is as wide as the widest input of a layer: 512 numbers."""
    monkeypatch.setenv("ADVISOR_RUNS", str(SYSTEMS))
    found = {one.name: one for one in api.advise("pair", on="here")}
    one = found["drop-near-duplicates"]
    assert "samples of 2,048 bytes" in one.condition
    assert max(one.details["batches"]) == 64
