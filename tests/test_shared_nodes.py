"""``simulate limits``: every policy on recorded jobs, and its limits in a real control group."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from advised import readings, recorded
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor.advice.asking import facts_here
from advisor.cli.simulate import app
from advisor.collectors.errors import RecordingError
from advisor.collectors.format.recording import Recording
from advisor.errors import UsageError
from advisor.estimate.predictor import Predictor
from advisor.lab.minicloud.limits import cpu_group
from advisor.planners.core.errors import GIB, MIB
from advisor.planners.rightsizing.escra import controllers
from advisor.planners.rightsizing.policies import compared
from advisor.planners.rightsizing.replay import RecordedUsage, ResourceLimits, replay_together
from advisor.quantities import parse_cores_and_memory
from advisor.simulate.limits import limited

PRICES = {"usd_per_core_h": 0.04, "usd_per_gib_h": 0.005, "source": "given"}
cores = st.lists(st.floats(0.0, 4.0), min_size=5, max_size=30)


def usage(used: Sequence[float], memory: Sequence[float] | None = None) -> RecordedUsage:
    held = np.full(len(used), GIB) if memory is None else np.array(memory)
    return RecordedUsage(step_s=0.5, cores=np.array(used), memory_bytes=held)


@pytest.fixture
def job(make_job: Any) -> Any:
    """A recording of a job that uses so much, by name."""
    facts = facts_here(Predictor(), make_job())
    assert facts is not None

    def make(name: str, used: float, memory: float = GIB, **changes: Any) -> Recording:
        found = recorded(facts, run_id=name, readings=readings(used, memory), **changes).recording
        assert found is not None
        return found

    return make


@given(cores, cores)
@settings(max_examples=20)
def test_what_is_reserved_is_used_or_slack(one: list[float], other: list[float]) -> None:
    runs = [usage(one), usage(other)]
    for name, found in compared(runs).items():
        for run, each in zip(runs, found, strict=True):
            work_h = float(run.cores.sum()) * 0.5 / 3600
            assert each.slack_core_h >= -1e-9
            if name != "KRR":  # sets aside, and lets use more
                # A run that ends inside a period may have used all of that period's grant.
                over_h = work_h + each.slack_core_h - each.reserved_core_h
                assert -1e-9 <= over_h <= each.most_cores * 0.1 / 3600 + 1e-9
            assert each.reserved_gib_h > 0
            assert (each.lost_s > 0) <= (each.oom > 0)


def test_the_recorded_peaks_hold_nobody_back() -> None:
    runs = [usage([0.5, 2.0, 1.0] * 5), usage([1.0] * 9)]
    found = compared(runs)
    for name in ("peak", "1.5 x peak", "KRR"):
        assert all(one.slowdown == 1.0 and not one.oom for one in found[name])
    assert all(one.slowdown <= 1.01 for one in found["ours"])


def test_escra_takes_memory_back_from_others_before_a_kill() -> None:
    # One gives up 600 MiB half way, the other takes as much: there is room for either, not both.
    falls = [900 * MIB] * 20 + [200 * MIB] * 20
    rises = falls[::-1]
    runs = [usage([0.5] * 40, falls), usage([0.5] * 40, rises)]
    pool = ResourceLimits(cores=2.0, memory_bytes=1250 * MIB)
    found = replay_together(runs, controllers(pool, 2))
    assert [one.oom for one in found] == [0, 0]
    tight = ResourceLimits(cores=2.0, memory_bytes=1000 * MIB)
    assert sum(one.oom for one in replay_together(runs, controllers(tight, 2))) > 0


def test_a_smaller_pool_makes_jobs_wait_and_a_tiny_one_never_holds_them(job: Any) -> None:
    jobs = [job("a", 1.5), job("b", 1.5)]

    def done(pool: ResourceLimits | None, policy: str = "peak") -> float | None:
        record = limited(jobs, pool, PRICES).record
        found: float | None = {one["name"]: one for one in record["policies"]}[policy]["done_s"]
        return found

    alone, wide = done(ResourceLimits(cores=2.0, memory_bytes=4 * GIB)), done(None)
    assert alone is not None
    assert wide is not None
    assert alone == pytest.approx(2 * wide)
    assert done(ResourceLimits(cores=1.0, memory_bytes=4 * GIB)) is None


def test_the_mean_reserve_of_a_pool_is_no_more_than_it_has_whoever_is_killed(job: Any) -> None:
    jobs = [job("a", 1.5, 0.4 * GIB), job("b", 1.5, 1.2 * GIB)]
    for memory in (0.9, 1.12, 1.5, 2.0):
        pool = ResourceLimits(cores=2.0, memory_bytes=memory * GIB)
        shared = limited(jobs, pool, PRICES).record["policies"][-1]
        assert shared["name"] == "Escra"
        assert (shared["kills"] > 0) == (memory < 1.6)
        assert shared["reserved_gib"] <= memory * (1 + 1e-9)
        assert shared["reserved_cores"] <= 2.0 * (1 + 1e-9)


def test_the_choice_is_the_cheapest_that_keeps_all_alive(job: Any) -> None:
    record = limited([job("a", 0.5), job("b", 2.0)], None, PRICES).record
    kept = [one for one in record["policies"]
            if not one["kills"] and one["slowdown"] <= 1.01 and one["done_s"]]  # fmt: skip
    assert record["chosen"] == min(kept, key=lambda one: one["usd_per_h"])["name"]
    for one in record["policies"]:
        if one["name"] in ("peak", "ours"):
            bill = 0.04 * one["reserved_cores"] + 0.005 * one["reserved_gib"]
            assert one["usd_per_h"] == pytest.approx(bill * one["slowdown"], rel=0.01)


def test_the_verb_prints_the_record(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.collectors.derive.find_run", Path)
    monkeypatch.setattr("advisor.collectors.derive.read_recording", lambda at: job(str(at), 1.5))
    words = ["limits", "a", "b", "--pool", "4x8GiB", "--core-price", "0.04"]
    with pytest.raises(UsageError, match="go together"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    words += ["--memory-price", "0.005"]
    told = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    record = json.loads(told.stdout)
    assert [one["name"] for one in record["jobs"]] == ["a", "b"]
    assert [one["name"] for one in record["policies"]] == [
        "peak", "1.5 x peak", "ours", "KRR", "VPA", "Autopilot", "Escra",
    ]  # fmt: skip
    text = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    assert "4.00 cores and 8 GiB (given)" in " ".join(text.split())
    assert f"* {record['chosen']}" in text
    assert f"--cpus {record['jobs'][0]['cpu_limit']:.3g}"[:9] in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("text", ["8", "x8GB", "0x8GB", "8x", "8x0", "nanx8GB"])
def test_pools_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_cores_and_memory(text)


def test_a_recording_that_was_held_back_is_refused(job: Any) -> None:
    with pytest.raises(UsageError, match=r"kept it waiting 40 % of the time"):
        limited([job("a", 1.0, contention=0.4)], None, PRICES)


def test_the_printed_quota_holds_a_real_group(job: Any) -> None:
    """A child that would take a whole core keeps to what was printed for a job of half a core."""
    record = limited([job("a", 0.5)], None, PRICES).record
    quota = record["jobs"][0]["cpu_limit"]
    assert 0.4 <= quota <= 0.6
    try:
        with cpu_group("limits-test", quota=None) as group:
            group.set_quota(quota, period_s=0.1)
            used = _spin(group)
    except (RecordingError, OSError) as error:
        pytest.skip(f"no control group can be made here: {error}")
    # The grant of the period that was begun may be used up at once.
    assert used <= quota * 1.0 + 0.1 + 0.02


def _spin(group: Any) -> float:
    """Return the CPU time that a busy child gets in a second of the clock [s]."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            group.join()
            begun, began = time.process_time(), time.monotonic()
            while time.monotonic() - began < 1.0:
                pass
            os.write(writing, str(time.process_time() - begun).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    text = os.read(reading, 100).decode()
    os.close(reading)
    os.close(writing)
    return float(text)


def test_the_printed_memory_holds_a_real_group(job: Any) -> None:
    """A child that takes what was recorded lives within what was printed; twice that is killed."""
    record = limited([job("a", 0.5, 96 * MIB)], None, PRICES).record
    limit = int(record["jobs"][0]["memory_limit_bytes"])
    assert 96 * MIB <= limit < 192 * MIB
    root = Path("/sys/fs/cgroup/memory")
    is_v1 = root.is_dir()
    group = (root if is_v1 else Path("/sys/fs/cgroup")) / f"advisor-limits-{os.getpid()}"
    try:
        group.mkdir()
        name = "memory.limit_in_bytes" if is_v1 else "memory.max"
        (group / name).write_text(str(limit))
    except OSError as error:
        group.rmdir() if group.exists() else None
        pytest.skip(f"no memory group can be made here: {error}")
    try:
        assert _touch(group, 96 * MIB) == 0
        if len(Path("/proc/swaps").read_text().splitlines()) < 2:  # otherwise it is swapped
            assert _touch(group, 2 * limit) == -signal.SIGKILL
    finally:
        group.rmdir()


def _touch(group: Path, size: float) -> int:
    """Return the exit code of a child that writes so many bytes, as a member of a group."""
    code = "import sys; held = bytearray(int(sys.argv[1])); held[::4096] = held[::4096]"
    words = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(group / "cgroup.procs")]
    return subprocess.run(
        [*words, sys.executable, "-S", "-c", code, str(int(size))], check=False, timeout=60
    ).returncode
