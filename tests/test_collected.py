"""Collected runs as records to learn from: the anchor of the hour, physics of several threads."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from advisor import data
from advisor.errors import RunError
from advisor.learned.features import as_columns
from advisor.records import RunRecord
from advisor.records.collected import Row, nearest, pack, unpack
from advisor.records.importers import minicloud
from advisor.records.importers.minicloud import hosts_of
from advisor.train.thread_physics import with_device_physics

SHIPPED = data.root("datasets") / "runs"


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(unpack(SHIPPED / "runs.jsonl.gz"))


@pytest.fixture(scope="module")
def records() -> list[RunRecord]:
    return minicloud.read_minicloud(SHIPPED)


def analytic_time_s(record: RunRecord) -> float:
    return float(as_columns([record])["analytic_time_s"][0])


def threads(record: RunRecord) -> float:
    return float(record.layout["threads"])


def test_the_partial_run_nearest_in_time_is_the_anchor(rows: list[Row]) -> None:
    partial = next(r for r in rows if r["kind"] == "partial" and r["layout"]["kind"] == "single")
    later: Row = partial | {"started_at": "2030-01-01T00:00:00+00:00", "attempt": 9}
    for at, expected in (
        ("2030-01-01T00:05:00+00:00", later),
        ("2026-01-01T00:00:00+00:00", partial),
    ):
        run: Row = {"started_at": at}
        assert nearest([partial, later], run) is expected


def test_runs_of_two_machines_each_go_by_partial_runs_of_their_own(
    rows: list[Row], tmp_path: Path
) -> None:
    partial = next(r for r in rows if r["kind"] == "partial" and r["layout"]["kind"] == "single"
                   and r["status"] == "ok")  # fmt: skip
    job = partial["job"]["key"]
    full = next(r for r in rows if r["kind"] == "full" and r["status"] == "ok"
                and r["job"]["key"] == job and r["instance"]["name"] == "cores-2")  # fmt: skip
    step_s = float(partial["anchor_mean_step_s"])
    faster: Row = partial | {"machine": "fast", "anchor_mean_step_s": step_s / 4}
    there: Row = full | {"machine": "fast", "time_s": full["time_s"] / 4}
    pack([partial, faster, full, there], tmp_path / "runs.jsonl.gz")
    first, second = minicloud.read_minicloud(tmp_path)
    assert first.record_id + " on fast" == second.record_id
    assert first.job.job_id + " on fast" == second.job.job_id
    assert first.job.family == second.job.family
    assert first.anchor is not None
    assert second.anchor is not None
    assert first.anchor.time_s == pytest.approx(4 * second.anchor.time_s)
    host = json.loads((SHIPPED / "host.json").read_text())
    (tmp_path / "host-2.json").write_text(json.dumps({"machine": "fast", **host}))
    found = with_device_physics([first, second], tmp_path)
    assert found[0] == first  # its machine is not described: the share of the cores
    assert analytic_time_s(found[1]) < second.anchor.time_s
    pack([partial, full, there], tmp_path / "runs.jsonl.gz")
    with pytest.raises(RunError, match="on fast' has no partial run"):
        minicloud.read_minicloud(tmp_path)


def test_one_thread_takes_the_anchors_time_over_its_share_of_a_core(
    records: list[RunRecord],
) -> None:
    alone = [r for r in with_device_physics(records, SHIPPED)
             if threads(r) == 1 and r.instances == 1]  # fmt: skip
    assert alone
    for record in alone:
        assert record.anchor is not None
        share = record.configuration[0].vcpus
        assert analytic_time_s(record) == pytest.approx(record.anchor.time_s / (share or math.nan))


def test_a_second_core_at_most_doubles_the_speed(records: list[RunRecord]) -> None:
    several = [r for r in with_device_physics(records, SHIPPED)
               if r.configuration[0].instance_type == "cores-2"]  # fmt: skip
    assert several
    for record in several:
        assert record.anchor is not None
        speedup = record.anchor.time_s / analytic_time_s(record)
        assert 0.5 < speedup <= 2.0 + 1e-9


def test_threads_that_share_a_core_add_nothing(records: list[RunRecord]) -> None:
    from dataclasses import replace

    two = next(r for r in records if r.configuration[0].instance_type == "cores-2")
    machines = replace(two.configuration[0], vcpus=1.0, facts={"cores": 1.0})
    shared = replace(two, configuration=(machines,))
    found = with_device_physics([shared], SHIPPED)[0]
    assert found.anchor is not None
    assert analytic_time_s(found) == pytest.approx(found.anchor.time_s)


def test_without_a_host_physics_is_the_share_of_the_cores(
    records: list[RunRecord], tmp_path: Path
) -> None:
    assert with_device_physics(records, tmp_path) == records


@pytest.mark.parametrize("content", ["{", "{}", '{"benchmark": {}}'])
def test_a_host_that_is_not_described_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "host.json").write_text(content)
    with pytest.raises(RunError, match=r"host\.json"):
        hosts_of(tmp_path)


def test_the_drift_of_the_machine_is_known_but_is_no_feature(records: list[RunRecord]) -> None:
    from advisor.learned import features

    ratios: list[Any] = [r.facts["cpu_ratio"] for r in records if "cpu_ratio" in r.facts]
    assert len(ratios) >= 100
    assert all(0.2 < float(ratio) < 5.0 for ratio in ratios)
    assert not any("cpu_ratio" in name for name in features.NAMES)


def test_the_shipped_host_has_what_the_physics_needs() -> None:
    told = json.loads((SHIPPED / "host.json").read_text())
    host = hosts_of(SHIPPED)[""]
    assert host.benchmark is not None
    assert told["benchmark"]["matmul_flop_per_s"] > told["benchmark"]["matmul_one_core_flop_per_s"]
