"""The runs that are shipped: whole, joined, and what their card says."""

from __future__ import annotations

import pytest

from advisor import data
from advisor.lab.minicloud import summary
from advisor.lab.workloads import WORKLOADS
from advisor.records import collected
from advisor.records.collected import Row, unpack

FOLDER = data.root("datasets") / "runs"


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(unpack(FOLDER / "runs.jsonl.gz"))  # every checksum holds


def test_the_card_is_what_the_rows_say(rows: list[Row]) -> None:
    assert summary.describe(rows) in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_all_workloads_and_three_machine_runs_are_there(rows: list[Row]) -> None:
    full = collected.least_disturbed(rows, "full")
    assert {row["job"]["workload"] for row in full} == set(WORKLOADS)
    assert sum(row["layout"]["nodes"] == 3 for row in full) >= 100


def test_every_label_has_its_jobs_anchor(rows: list[Row]) -> None:
    anchors = summary.anchor_rows(rows)
    for row in collected.least_disturbed(rows, "full"):
        anchor = anchors[row["job"]["key"]]
        assert anchor["counts"]["flop"] > 0
        if row["status"] == "ok":
            assert row["steps"] == -(-anchor["total_steps"] // row["layout"]["workers"])


def test_times_and_costs_are_consistent(rows: list[Row]) -> None:
    for row in rows:
        if row["status"] == "ok":
            assert 0 < row["time_s"] <= row["wall_s"]
            price = row["instance"]["nominal_price_usd_per_h"] * row["layout"]["nodes"]
            assert row["cost_usd"] == pytest.approx(price * row["time_s"] / 3600, rel=1e-3)


def test_runs_that_ended_well_have_all_series_or_none(rows: list[Row]) -> None:
    channels = {"t_s", "cpu_cores", "memory_mib", "received_bytes_per_s", "sent_bytes_per_s"}
    without = 0
    ended = [row for row in rows if row["status"] == "ok"]
    for row in ended:
        assert len(row["nodes"]) == row["layout"]["nodes"]
        for node in row["nodes"]:
            without += not node["series"]
            if node["series"]:
                assert set(node["series"]) == channels
                assert len({len(values) for values in node["series"].values()}) == 1
    # While others held both cores the sampler outside did not get to a reading of some short runs.
    assert without <= 0.05 * len(ended)
