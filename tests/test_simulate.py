"""``advisor simulate`` end to end: text, record, charts and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from typer.testing import CliRunner

from advisor.answer import Estimate
from advisor.cli.simulate import app
from advisor.errors import AdvisorError, UsageError
from advisor.planners import PlanningError
from advisor.planners.goodput import expected_completion
from advisor.planners.queueing.engine import POLICIES
from advisor.records.traces import TraceError
from advisor.simulate.queue import samples_of

GOLDEN = Path(__file__).parent / "golden" / "tiresias"


def answer(*args: str) -> Any:
    result = CliRunner().invoke(app, [*args, "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert record["schema_version"] == 1
    return record


@pytest.fixture
def zone(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.exponential(4000, 300)).round()
    counts = rng.integers(0, 5, 300)
    path = tmp_path / "zone.csv"
    rows = "".join(f"{t:.0f},{c}\n" for t, c in zip(times - times[0], counts, strict=True))
    path.write_text("t,available\n" + rows)
    return path


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    lines = (GOLDEN / "syn240_n10g4.csv").read_text().splitlines()
    path = tmp_path / "jobs.csv"
    rows = [",".join(line.split(",")[:4]) for line in lines[1:]]
    path.write_text("\n".join(["job_id,num_gpu,submit_time,duration", *rows]) + "\n")
    return path


def test_spot_shows_every_way_beside_on_demand(zone: Path, tmp_path: Path) -> None:
    plot = tmp_path / "spot.svg"
    record = answer(
        "spot", "--trace", str(zone), "--hours", "6", "--nodes", "4", "--least-nodes", "1",
        "--deadline", "1d", "--price", "3", "--spot-price", "0.9", "--plot", str(plot),
    )  # fmt: skip
    ways = {way["name"].partition(",")[0]: way for way in record["ways"]}
    assert list(ways)[:5] == ["on demand", "restart", "replan", "template", "redundancy"]
    assert ways["on demand"]["mean_cost_usd"] == pytest.approx((6 + 1 / 12) * 4 * 3)
    by_name = [w for w in record["ways"] if w["name"] == "restart, on demand in time"]
    assert by_name[0]["miss_probability"] == 0
    assert by_name[0]["finish_h"]["p90"] <= 24
    planned = ways["spot"]
    assert planned["miss_probability"] == 0
    assert planned["mean_cost_usd"] <= by_name[0]["mean_cost_usd"]
    for way in ways.values():
        shown = [v for v in way["finish_h"].values() if v is not None]
        assert shown == sorted(shown)
        assert min(shown) >= 6
    assert ET.parse(plot).getroot().tag.endswith("svg")


def test_spot_without_a_trace_answers_from_the_packaged_ones() -> None:
    record = answer("spot", "--hours", "10", "--deadline", "20h")
    demand, restart, planned = record["ways"]
    assert demand["finish_h"]["p90"] == pytest.approx(10 + 1 / 12)
    assert 0 < restart["miss_probability"] < 1
    assert restart["mean_cost_usd"] < demand["mean_cost_usd"]
    assert planned["miss_probability"] == 0
    assert planned["mean_cost_usd"] < 0.8 * demand["mean_cost_usd"]


def test_queue_says_how_long_and_whether_to_rent(cluster: Path, tmp_path: Path) -> None:
    plot = tmp_path / "queue.png"
    record = answer(
        "queue", "--trace", str(cluster), "--nodes", "10", "--devices-per-node", "4",
        "--devices", "8", "--hours", "5", "--low", "4", "--high", "7", "--policy", "las-2d",
        "--insertions", "20", "--deadline", "12h", "--rent-hours", "6", "--rent-cost", "80",
        "--plot", str(plot),
    )  # fmt: skip
    assert record["trace"]["jobs"] == 240
    assert record["completion_h"]["p50"] > 5
    assert 0 <= record["miss_probability"] <= 1
    rent = record["rent_or_wait"]
    assert rent["break_even_usd_per_h"] == pytest.approx(80 / rent["saved_h"])
    assert plot.read_bytes().startswith(b"\x89PNG")
    by_name = {row["policy"]: row for row in record["policies"]}
    assert set(by_name) == set(POLICIES)
    assert by_name["las-2d"]["completion_factor"] == 1.0  # it is the cluster's own
    own = by_name["las-2d"]["mean_delay_h"]
    assert own == pytest.approx(record["trace"]["simulated_mean_delay_h"])
    times = [row["mean_completion_h"] for row in record["policies"]]
    assert times == sorted(times)


def test_elastic_saves_against_the_best_fixed_number(tmp_path: Path) -> None:
    record = answer(
        "elastic", "--samples", "1e6", "--phases", "8", "--noise", "300:20000", "--batch", "256",
        "--batches", "512,1024,4096", "--sample-time", "0.004s", "--sync-time", "0.03s",
        "--price", "3", "--deadline", "4h", "--plot", str(tmp_path / "e.svg"),
    )  # fmt: skip
    assert record["elastic"]["time_h"] <= 4
    assert record["elastic"]["cost_usd"] <= record["fixed"]["cost_usd"]
    assert len(record["elastic"]["workers"]) == 8


def test_failures_are_those_of_the_planner_and_a_second_path_is_beside(tmp_path: Path) -> None:
    plot = tmp_path / "failures.svg"
    record = answer(
        "failures", "--hours", "240", "--devices", "512", "--checkpoint", "30s",
        "--restart", "5m", "--plot", str(plot),
    )  # fmt: skip
    asked = next(row for row in record["scales"] if row["is_asked"])
    planned = expected_completion(240 * 3600, devices=512, checkpoint_s=30.0, restart_s=300.0)
    assert asked["plain"]["overhead_fraction"] == pytest.approx(planned.overhead_fraction[0])
    assert asked["plain"]["checkpoint_interval_s"] == planned.checkpoint_interval_s[0]
    added = [row["plain"]["overhead_fraction"] for row in record["scales"]]
    assert added == sorted(added)
    assert record["scales"][0]["plain"]["is_negligible"]
    assert not record["scales"][-1]["plain"]["is_negligible"]
    for row in record["scales"]:
        assert row["second_path"]["expected_failures"] < row["plain"]["expected_failures"]
    assert ET.parse(plot).getroot().tag.endswith("svg")
    given = answer(
        "failures", "--hours", "240", "--devices", "512", "--checkpoint", "30s",
        "--layout", "pipeline", "--slowdown", "2%", "--repair", "5h", "--network-share", "30%",
    )  # fmt: skip
    assert given["edge"] == {
        "slowdown_fraction": 0.02, "repair_h": 5.0, "network_fraction": 0.3,
    }  # fmt: skip


def test_a_job_without_checkpoints_never_ends_on_many_devices() -> None:
    record = answer("failures", "--hours", "2400", "--devices", "16384")
    assert not record["job"]["saves_checkpoints"]
    assert record["scales"][-1]["plain"]["overhead_fraction"] is None
    result = CliRunner().invoke(app, ["failures", "--hours", "2400", "--devices", "16384"])
    assert "never ends" in result.stdout


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    ("verb", "shown"),
    [("spot", "on demand"), ("queue", "rent"), ("elastic", "workers save"), ("failures", "asked")],
)
def test_text_is_shown_and_fits_the_terminal(
    verb: str, shown: str, columns: int, zone: Path, cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = CliRunner().invoke(app, [verb, *_usual(verb, zone, cluster)], catch_exceptions=False)
    assert result.exit_code == 0
    assert shown in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= columns


def _usual(verb: str, zone: Path, cluster: Path) -> list[str]:
    return {
        "spot": ["--trace", str(zone), "--hours", "2", "--nodes", "2", "--deadline", "9h"],
        "queue": ["--trace", str(cluster), "--nodes", "10", "--devices-per-node", "4",
                  "--devices", "4", "--hours", "1", "--insertions", "5", "--deadline", "3h",
                  "--rent-hours", "2", "--rent-cost", "9"],
        "elastic": ["--samples", "1e5", "--phases", "2", "--batch", "64", "--price", "1",
                    "--sample-time", "0.01s"],
        "failures": ["--hours", "100", "--devices", "64", "--checkpoint", "1m"],
    }[verb]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "error", "match", "code"),
    [
        (["spot", "--hours", "9", "--no-checkpoints"], PlanningError, "would be expected", 3),
        (["spot", "--hours", "0"], PlanningError, "out of range", 2),
        (["spot", "--hours", "9", "--deadline", "8h"], PlanningError, "no plan meets", 3),
        (["spot", "--hours", "9", "--trace", "{zone}", "--nodes", "9"], PlanningError, "never", 3),
        (["spot", "--hours", "9", "--trace", "{zone}", "--deadline=-2h"], UsageError,
         "negative", 2),
        (["spot", "--hours", "9", "--trace", "{zone}", "--deadline", "8h"], PlanningError,
         "no plan meets", 3),
        (["spot", "--hours", "9", "--deadline", "soon"], UsageError,
         "--deadline: cannot read 'soon' as a duration", 2),
        (["spot", "--hours", "9", "--trace", "{zone}", "--zone", "mars"], UsageError, "0 of 1", 2),
        (["spot", "--hours", "9", "--plot", "x.svg"], UsageError, "nothing to draw", 2),
        (["spot", "--hours", "9", "--trace", "{zone}", "--plot", "x.jpg"], UsageError, "x.jpg", 2),
        (["spot", "--hours", "9", "--trace", "{zone}", "--plot", "--json"], UsageError,
         "JSON record", 2),
        (["queue", "--trace", "{jobs}", "--nodes", "1", "--devices-per-node", "4", "--devices",
          "8", "--hours", "1"], PlanningError, "the cluster has 4", 3),
        (["queue", "--trace", "{jobs}", "--nodes", "10", "--devices-per-node", "4", "--devices",
          "8", "--hours", "1", "--deadline=-1h"], UsageError, "negative", 2),
        (["queue", "--trace", "{jobs}", "--nodes", "10", "--devices-per-node", "4", "--devices",
          "8", "--hours", "1", "--policy", "luck"], UsageError, "no policy", 2),
        (["queue", "--trace", "{jobs}", "--nodes", "10", "--devices-per-node", "4", "--devices",
          "8", "--hours", "1", "--low", "2"], UsageError, "not 0 < low", 2),
        (["queue", "--trace", "{zone}", "--nodes", "10", "--devices-per-node", "4", "--devices",
          "8", "--hours", "1"], TraceError, "no known form of jobs", 2),
        (["failures", "--hours", "9", "--devices", "8", "--checkpoint-size", "200GB", "--disk",
          "300GB"], PlanningError, "do not fit the disk", 3),
        (["failures", "--hours", "9", "--devices", "8", "--checkpoint-size", "big"], UsageError,
         "cannot read 'big' as a size", 2),
        (["failures", "--hours", "-9", "--devices", "8"], UsageError, "negative", 2),
        (["elastic", "--samples", "1e5", "--phases", "2", "--batch", "64", "--price", "1",
          "--sample-time", "0.01s", "--deadline", "1s"], PlanningError, "no schedule", 3),
        (["elastic", "--samples", "1e5", "--phases", "2", "--batch", "64", "--price", "1",
          "--sample-time", "0.01s", "--noise", "x"], UsageError, "--noise", 2),
        (["elastic", "--samples", "1e5", "--phases", "2", "--batch", "64", "--price", "1",
          "--sample-time", "0.01s", "--workers", "0,1"], PlanningError, "ascend", 2),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_one_clear_error(
    args: list[str],
    error: type[PlanningError | AdvisorError],
    match: str,
    code: int,
    zone: Path,
    cluster: Path,
) -> None:
    filled = [a.format(zone=zone, jobs=cluster) for a in args]
    with pytest.raises(error, match=match) as refused:
        CliRunner().invoke(app, filled, catch_exceptions=False)
    value: Any = refused.value
    assert value.exit_code == code
    assert value.hint


def test_samples_of_an_estimate_have_its_median_and_coverage() -> None:
    estimate = Estimate(value=5.0, low=4.0, high=8.0, coverage=0.8)
    samples = samples_of(estimate, 20_000)
    assert np.median(samples) == pytest.approx(5.0, rel=0.02)
    assert np.mean((samples >= 4) & (samples <= 8)) == pytest.approx(0.8, abs=0.01)
    assert np.all(samples_of(Estimate(value=2, low=2, high=2), 5) == 2)


def test_what_never_ends_in_practice_is_said_in_few_letters_and_not_drawn() -> None:
    """Without saves on very many devices: times the work with thirty digits help nobody."""
    asked = ["failures", "--hours", "240", "--devices", "512", "--plot"]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert "> 100 times" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "a curve ends where 10 times the work is added" in done.stdout
    few = CliRunner().invoke(app, ["failures", "--hours", "2", "--devices", "8", "--checkpoint",
                                   "5s", "--plot"], catch_exceptions=False)  # fmt: skip
    assert "a curve ends" not in few.stdout


@pytest.mark.parametrize("columns", [80, 120])
def test_what_is_said_fits_the_terminal_and_keeps_numbers_with_their_units(
    zone: Path, cluster: Path, columns: int
) -> None:
    asked = (
        ("spot", "--hours", "10h", "--trace", str(zone), "--price", "3", "--spot-price", "1"),
        ("queue", "--trace", str(cluster), "--nodes", "10", "--devices-per-node", "4",
         "--devices", "8", "--hours", "5h", "--insertions", "5", "--deadline", "12h"),
        ("failures", "--hours", "30d", "--devices", "1024", "--checkpoint", "40s"),
        ("peers", "--peer", "4x35@us", "--peer", "4x35@eu", "--link", "us,eu=210Mbps",
         "--target-batch", "32768", "--parameters", "198M", "--samples", "1M"),
    )  # fmt: skip
    for words in asked:
        done = CliRunner().invoke(app, words, env={"COLUMNS": str(columns)})
        assert done.exit_code == 0
        lines = done.stdout.splitlines()
        assert max(len(line.rstrip()) for line in lines) <= columns
        assert not [line for line in lines if re.match(r"(%|h|min|s|d|ms)\b", line)]
        assert "(s)" not in done.stdout
