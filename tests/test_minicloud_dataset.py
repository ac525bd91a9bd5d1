"""The runs that are shipped: whole, joined, and what their card says."""

from __future__ import annotations

import math

import numpy as np
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


@pytest.mark.parametrize("name", ["runs", "minutes"])
def test_the_card_is_what_the_rows_say(name: str) -> None:
    folder = data.root("datasets") / name
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert summary.describe(unpack(folder / "runs.jsonl.gz")) in card


@pytest.mark.parametrize("name", ["runs", "minutes"])
def test_rank_0_sends_its_buffers_down_a_tree_beside_the_ring_of_gradients(name: str) -> None:
    """What was counted on the wire against what physics says (``learned.features``)."""
    rows = list(unpack(data.root("datasets") / name / "runs.jsonl.gz"))
    anchors = summary.anchor_rows(rows)
    ratios = []
    for row in collected.least_disturbed(rows, "full"):
        series = row["nodes"][0]["series"] if row["nodes"] else {}
        if row["layout"]["kind"] != "allreduce" or not series or row["status"] != "ok":
            continue
        job = collected.named_on(row["job"]["key"], collected.machine_of(row))
        nodes, counts = row["layout"]["nodes"], anchors[job]["counts"]
        ring = 2 * (nodes - 1) / nodes * counts["parameter_bytes"]
        tree = math.ceil(math.log2(nodes)) * counts["buffer_bytes"]
        sent = float(np.mean(series["sent_bytes_per_s"])) * row["wall_s"] / row["steps_done"]
        if tree > ring:  # the graph network: its graph is a buffer
            ratios.append(sent / (ring + tree))
    assert len(ratios) >= 2
    assert 0.95 < np.median(ratios) < 1.1
    assert all(0.9 < one < 1.2 for one in ratios)


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
