"""``runs show --plot``: the charts hold what was read, counters as rates and gauges as peaks."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_certainty import recording, step
from typer.testing import CliRunner

from advisor.cli.runs import app
from advisor.collectors.format.recording import RankSeries, Reading
from advisor.errors import UsageError
from advisor.show.charts import Chart
from advisor.show.recorded_run import MOST_POINTS, run_charts

GOLDEN = Path(__file__).parent / "golden" / "run-schema-1"
GROWTH = st.lists(
    st.tuples(st.floats(0.05, 2.0), st.floats(0.0, 4.0), st.integers(1, 2**33)),
    min_size=2, max_size=3 * MOST_POINTS,
)  # fmt: skip


def readings(growth: list[tuple[float, float, int]]) -> tuple[Reading, ...]:
    """Return ticks: each so long after the last, with so much processor time, so large."""
    t_s, cpu_s, found = 0.0, 0.0, []
    for after_s, grown_s, rss in growth:
        t_s, cpu_s = t_s + after_s, cpu_s + grown_s
        found.append(Reading(
            t_s=t_s, processes=1, cpu_s=cpu_s, run_delay_s=0.0, rss_bytes=rss, pss_bytes=None,
            disk_read_bytes=0, disk_write_bytes=0, network_received_bytes=0,
            network_sent_bytes=0, throttled_s=0.0, pressure_fraction=None,
        ))  # fmt: skip
    return tuple(found)


def by_title(charts: list[Chart]) -> dict[str, Chart]:
    return {chart.title: chart for chart in charts}


@given(GROWTH)
def test_rates_hold_all_that_a_counter_grew_by_and_gauges_their_peak(
    growth: list[tuple[float, float, int]],
) -> None:
    seen = replace(recording(None), readings=readings(growth))
    charts = by_title(run_charts(seen))
    grown = seen.readings[-1].cpu_s - seen.readings[0].cpu_s
    if "Processor" in charts:
        (busy,) = charts["Processor"].series
        spans = [b - a for a, b in zip(busy.x[:-1], busy.x[1:], strict=True)]
        total = sum(rate * span for rate, span in zip(busy.y, spans, strict=False))
        assert total == pytest.approx(grown, rel=1e-6, abs=1e-9)
        assert len(busy.x) <= MOST_POINTS + 1
    else:
        assert grown == 0
    (resident,) = charts["Memory"].series
    assert max(resident.y) == max(one.rss_bytes for one in seen.readings) / 2**30
    assert not {"Disk", "Network", "GPU"} & set(charts)  # nothing was read of them


@given(st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=3 * MOST_POINTS))
def test_steps_are_shown_in_order(step_s: list[float]) -> None:
    rank = RankSeries(
        rank=0, pid=1, step_s=tuple(step_s), wait_s=(), sent_bytes_per_step=None,
        received_bytes_per_step=None, payload_bytes_per_step=None,
    )  # fmt: skip
    (chart,) = run_charts(replace(recording(step(1, 1, 1)), ranks=(rank,)))
    (curve,) = chart.series
    if len(step_s) <= MOST_POINTS:
        assert list(curve.y) == pytest.approx([1000 * one for one in step_s])
        assert not chart.notes
    else:
        size = int(curve.x[0])
        assert chart.notes == [f"each value is the mean of {size} steps"]
        held = [b - a for a, b in zip([0.0, *curve.x], curve.x, strict=False)]
        assert curve.x[-1] == len(step_s)
        assert set(held[:-1]) == {size}
        total = sum(y * steps for y, steps in zip(curve.y, held, strict=True))
        assert total == pytest.approx(1000 * sum(step_s))


def test_runs_show_draws_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVISOR_RUNS", str(tmp_path))
    shutil.copytree(GOLDEN, tmp_path / "golden")
    asked = CliRunner().invoke(app, ["show", "golden", "--plot"], catch_exceptions=False)
    for title in ("Processor\ncores\n", "Memory\nGiB\n", "Time of a step\n"):
        assert title in asked.stdout
    picture = tmp_path / "run.png"
    both = ["show", "golden", "--plot", str(picture), "--json"]
    record = CliRunner().invoke(app, both, catch_exceptions=False)
    assert json.loads(record.stdout)["schema_version"] == 1
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_run_of_which_nothing_was_read_has_no_charts() -> None:
    assert run_charts(recording(None)) == []


def test_a_run_s_name_is_not_taken_for_a_file() -> None:
    with pytest.raises(UsageError, match=r"cannot draw into a\.jpg"):
        CliRunner().invoke(app, ["show", "a", "--plot", "a.jpg"], catch_exceptions=False)
