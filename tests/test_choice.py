"""What to try next for a job: laws of the order, and ``advisor runs choose``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor.cli.program import app
from advisor.errors import UsageError
from advisor.learned.choose import GROWTH, in_order, matrices, next_tries, too_small
from advisor.records import Instances, JobFacts, RunRecord, write_records
from advisor.records.nouns import Status

cells = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(0.0, 10.0), min_size=n, max_size=n),
        st.lists(st.floats(0.1, 10.0), min_size=n, max_size=n),
        st.lists(st.booleans(), min_size=n, max_size=n),
    )
)


@given(cells)
def test_what_failed_comes_last_and_what_is_larger_first(
    drawn: tuple[list[float], list[float], list[bool]],
) -> None:
    answer, prices, failed = (np.array(column) for column in drawn)
    small = too_small(prices, failed)
    order = in_order(answer, small, failed)
    assert sorted(order.tolist()) == list(range(len(answer)))
    left = [c for c in order.tolist() if not failed[c]]
    assert order.tolist()[: len(left)] == left
    if failed.any():
        is_large = [prices[c] > GROWTH * prices[failed].max() * (1 + 1e-6) for c in left]
        assert is_large == sorted(is_large, reverse=True)
    for part in (True, False):
        scores = [answer[c] for c in left if small[c] == part]
        assert scores == sorted(scores)


def run(
    job: str, count: int, *, time_s: float, status: Status = "ok", busy: float = 0.5
) -> RunRecord:
    """Return a run of a job on some machines of one USD an hour."""
    return RunRecord(
        record_id=f"{job}/{count}", source="test",
        job=JobFacts(job_id=job, family=job),
        configuration=(
            Instances(provider="p", instance_type="m", count=count, price_usd_per_h=1.0),
        ),
        time_s=time_s, time_kind="job", cost_usd=count * time_s / 3600.0, status=status,
        facts={"gpu_fraction_mean": busy},
    )  # fmt: skip


def others(jobs: int = 8) -> list[RunRecord]:
    """Return jobs that keep n machines as busy as they are parallel: the busier, the more pays."""
    found = []
    for k in range(jobs):
        busy = (k + 1) / jobs
        for count in (1, 2, 4, 8):
            time_s = 1000.0 * (1.0 - 0.99 * busy + 1.2 * busy / count**1.6)
            found.append(run(f"job{k}", count, time_s=time_s, busy=busy))
    return found


def test_a_run_that_failed_sends_the_job_to_what_costs_more_than_twice_as_much() -> None:
    own = run("mine", 2, time_s=60.0, status="failed")
    found = next_tries([*others(), own], "mine")
    assert found.failed == ["p/mx2"]
    assert found.tries[0].configuration == "p/mx8"
    assert [one.is_too_small for one in found.tries] == [False, True, True]
    assert not found.looks_at_job


def test_once_a_job_has_completed_a_failure_elsewhere_bounds_nothing() -> None:
    own = [run("mine", 8, time_s=60.0, status="failed"), run("mine", 2, time_s=600.0)]
    found = next_tries([*others(), *own], "mine")
    assert not any(one.is_too_small for one in found.tries)
    assert next(one for one in found.tries if one.cost_usd).configuration == "p/mx2"


def test_how_busy_the_machines_were_tells_how_many_pay() -> None:
    """The jobs' times on one machine hardly differ: only what was measured there tells."""
    best = {}
    for busy in (0.15, 0.95):
        own = run("mine", 1, time_s=1000.0 * (1.0 + 0.21 * busy), busy=busy)
        found = next_tries([*others(), own], "mine")
        assert found.looks_at_job
        best[busy] = found.tries[0].configuration
    assert best == {0.15: "p/mx1", 0.95: "p/mx4"}


def test_hidden_runs_of_a_job_change_nothing() -> None:
    runs, _, jobs, _ = matrices(others())
    seen = np.array([True, False, False, False])
    spoilt = replace(runs, prices=runs.prices * np.where(seen, 1.0, 7.0))
    for job in range(len(jobs)):
        hidden, again = runs.seen_by(job, seen), spoilt.seen_by(job, seen)
        assert np.array_equal(hidden.prices[job], again.prices[job], equal_nan=True)


def test_one_other_job_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing can be learned"):
        next_tries([run("a", 1, time_s=1.0), run("b", 1, time_s=1.0)], "b")


def test_the_verb_shows_the_order_and_its_record(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl.gz"
    write_records(path, [*others(), run("mine", 2, time_s=60.0, status="failed")])
    runner = CliRunner()
    shown = runner.invoke(app, ["runs", "choose", "mine", "--data", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "failed on p/mx2" in shown.output
    assert shown.output.index("p/mx8") < shown.output.index("p/mx4")
    told = runner.invoke(app, ["runs", "choose", "mine", "--data", str(path), "--json"])
    record = json.loads(told.stdout)
    assert [one["rank"] for one in record["tries"]] == [1, 2, 3]
    assert record["tries"][0]["configuration"] == "p/mx8"
    wrong = runner.invoke(app, ["runs", "choose", "yours", "--data", str(path)])
    assert wrong.exit_code != 0
