"""The course of a partial run: channels of the whole job, and of its ranks where it had some."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.collectors.derive.resources import Resources, of_ranks
from advisor.collectors.format.recording import RankSeries
from advisor.lab.learned.sequence import SequenceNetwork
from advisor.learned.features import (
    RANK_CHANNELS,
    SEQUENCE_CHANNELS,
    SEQUENCE_READINGS,
    channels_of,
    sequences,
)
from advisor.learned.problem import problem_of
from advisor.learned.quick import Hull
from advisor.learned.trained import TrainedModel, describe_features
from advisor.records import AnchorRun, Instances, JobFacts, RunRecord
from advisor.records.profiled import _series

STEPS = st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=600)


def rank(number: int, step_s: list[float], wait_s: list[float], sent: float | None) -> RankSeries:
    return RankSeries(
        rank=number, pid=number + 1, step_s=tuple(step_s), wait_s=tuple(wait_s),
        sent_bytes_per_step=sent, received_bytes_per_step=sent, payload_bytes_per_step=None,
    )  # fmt: skip


@given(STEPS, STEPS)
def test_the_mean_of_the_ranks_is_no_more_than_the_slowest(
    one: list[float], other: list[float]
) -> None:
    found = of_ranks([rank(0, one, one, 1e6), rank(1, other, other, 2e6)])
    mean, most = found["rank_mean"], found["rank_max"]
    assert mean.keys() == most.keys() == {
        "step_s", "wait_s", "network_sent_bytes_per_s", "network_received_bytes_per_s",
    }  # fmt: skip
    for name, values in mean.items():
        assert len(values) == len(most[name]) == min(len(one), len(other), 240)
        assert all(a <= b * (1 + 1e-9) for a, b in zip(values, most[name], strict=True))


@given(st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=240))
def test_short_runs_keep_every_step(steps: list[float]) -> None:
    found = of_ranks([rank(0, steps, [], None), rank(1, steps, [], None)])
    assert found["rank_mean"]["step_s"] == pytest.approx(tuple(steps))
    assert found["rank_interval_s"] == pytest.approx(fmean(steps))
    assert "wait_s" not in found["rank_mean"]  # nobody read it


def test_one_process_has_no_ranks() -> None:
    assert of_ranks([rank(0, [0.1, 0.1], [], 5.0)]) == {}
    assert of_ranks([]) == {}


def run(family: int, replicate: int, waits: float, time_s: float, *, is_seen: bool) -> RunRecord:
    """Return a run of a job whose ranks wait for a share of each step."""
    channels = {"cpu_cores": (1.0,) * 20, "memory_bytes": (1e8,) * 20}
    step_s, ranks = 0.1, {}
    if is_seen:
        ranks = of_ranks([
            rank(0, [step_s] * 30, [waits * step_s] * 30, 1e6),
            rank(1, [step_s] * 30, [0.0] * 30, 1e6),
        ])  # fmt: skip
    used = Resources(
        interval_s=0.5, channels=channels, busy_cores=1.0, cpu_s_per_step=step_s, **ranks
    )
    return RunRecord(
        record_id=f"{family}-{replicate}", source="test",
        job=JobFacts(job_id=f"f{family}-{replicate}", family=f"f{family}", facts={"batch": 8.0}),
        configuration=(Instances(provider="p", instance_type="two", count=2, vcpus=1.0),),
        layout={"workers": 2.0, "servers": 0.0, "threads": 1.0}, time_s=time_s, time_kind="job",
        anchor=AnchorRun(
            machines=Instances(provider="p", instance_type="core", vcpus=1.0), time_s=100.0,
            facts={"step_time_s": step_s}, series=_series(used),
        ),
    )  # fmt: skip


def runs(*, is_seen: bool) -> list[RunRecord]:
    """Return runs of nine programs that are alike but for how long their ranks wait."""
    rng = np.random.default_rng(5)
    return [
        run(family, i, waits, 50.0 * (1 + 4 * waits), is_seen=is_seen)
        for family in range(9)
        for i, waits in enumerate(rng.uniform(0.0, 0.6, 8))
    ]


def left_out_error(records: list[RunRecord]) -> float:
    """Return the mean error of ln(time) on three programs that were not fitted."""
    asked = problem_of(records, has_series=True)
    is_new = np.isin(asked.groups, ["f0", "f1", "f2"])
    network = SequenceNetwork(
        channels=asked.channels, readings=SEQUENCE_READINGS, branch="tcn", width=16, epochs=60,
        batch=16, learning_rate=5e-3,
        patience=None, calibration_folds=0,
    )  # fmt: skip
    asked.fit(network, np.flatnonzero(~is_new))
    answer = asked.predict(network, np.flatnonzero(is_new))
    return float(np.mean(np.abs(np.log(answer / asked.truth[is_new]))))


def test_the_network_learns_from_what_only_the_ranks_show() -> None:
    assert left_out_error(runs(is_seen=True)) < 0.5 * left_out_error(runs(is_seen=False))


def test_records_without_ranks_have_the_four_channels_of_the_thesis() -> None:
    plain, seen = runs(is_seen=False)[:3], runs(is_seen=True)[:3]
    own, all_of_them = len(SEQUENCE_CHANNELS), len(SEQUENCE_CHANNELS) + len(RANK_CHANNELS)
    assert channels_of(plain) == own
    assert channels_of([*plain, *seen]) == all_of_them
    mixed = sequences([plain[0], seen[0]]).reshape(2, all_of_them, -1)
    assert np.array_equal(mixed[0, :own], mixed[1, :own])
    assert not mixed[0, own:].any()
    assert mixed[1, own:].all(axis=1).sum() >= 3


def test_a_saved_network_takes_the_channels_it_was_fitted_on(tmp_path: Path) -> None:
    records = runs(is_seen=True)
    asked = problem_of(records, has_series=True)
    network = SequenceNetwork(
        channels=asked.channels, readings=SEQUENCE_READINGS, branch="tcn", width=4, epochs=1,
        patience=None, calibration_folds=2,
    )  # fmt: skip
    asked.fit(network, slice(None))
    hull = Hull.of(asked.X[:, :3])
    about = describe_features(asked, hull=hull)
    kept = TrainedModel(
        name="n", estimator=network, target=asked.target, channels=asked.channels, about=about,
        metrics={},
    )  # fmt: skip
    kept.save(tmp_path / "n", "card")
    read = TrainedModel.load(tmp_path / "n")
    assert read.channels == asked.channels
    for some in (records[:2], runs(is_seen=False)[:2]):  # also of a job without ranks
        assert read.predict(some).value == pytest.approx(kept.predict(some).value)
