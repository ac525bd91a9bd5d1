"""The page of ``advisor report``: its numbers are the record's, texts stay texts, it is whole."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_pages import IMPOSSIBLE, PIPELINE, RECORDED, data_of, predictor, question
from typer.testing import CliRunner

from advisor import api, report_page, words
from advisor.cli.program import app
from advisor.collectors.format.recording import Reading
from advisor.planners.core.nouns import Layout
from advisor.report import page as model_cards
from advisor.report.page import GENERATOR, _finite, answer_page, embedded, schedule_of
from advisor.show.recorded_run import steps, thinned_readings

ROOT = Path(__file__).parents[1]
MOST_BYTES = 300_000  # Plotly, which drew the charts once, was 2 MB of it


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return data_of(RECORDED)


@pytest.fixture(scope="module")
def pipeline() -> dict[str, Any]:
    """As the page that Python gives holds it."""
    text = report_page(None, predictor=predictor(), **cast("dict[str, Any]", PIPELINE))
    held: dict[str, Any] = json.loads(_parsed(text).scripts[0][1])
    return held


def _without_facts(record: dict[str, Any]) -> dict[str, Any]:
    """What ``recommend`` says too: it is not asked where each number is from."""
    rows = [{**one, "sources": []} for one in record["front"]]
    here = record["here"] and {**record["here"], "sources": []}
    return {**record, "front": rows, "here": here}


def test_every_number_is_that_of_the_records(pipeline: dict[str, Any]) -> None:
    asked = question(PIPELINE)
    answer = json.loads(json.dumps(api.answer(asked, predictor=predictor()).to_record()))
    assert _without_facts(pipeline["answer"]) == _without_facts(answer)
    advice = json.loads(json.dumps(api.advise(asked, predictor=predictor()).to_record()))
    assert pipeline["advice"]["advice"] == advice["advice"]
    pipeline_now, now = pipeline["advice"]["now"], advice["now"]
    assert {**pipeline_now, "sources": []} == {**now, "sources": []}


def test_words_say_the_records_numbers(recorded: dict[str, Any], pipeline: dict[str, Any]) -> None:
    for data in (recorded, pipeline):
        rows = {str(one["rank"]): one for one in data["answer"]["front"]}
        assert rows
        if data["answer"]["here"]:
            rows["here"] = data["answer"]["here"]
        assert set(data["words"]["candidates"]) == set(rows)
        for key, row in rows.items():
            said = data["words"]["candidates"][key]
            assert words.time_text(row) == f"{said['time'][0]} ({said['time'][1]})"
            assert words.cost_text(row) == f"{said['cost'][0]} ({said['cost'][1]})"
            assert set(said["parts"]) == set(row["breakdown"])


def test_every_candidate_says_where_its_numbers_are_from(
    recorded: dict[str, Any], pipeline: dict[str, Any]
) -> None:
    sources = {"measured", "looked up", "computed", "learned", "given", "assumed"}
    for data in (recorded, pipeline):
        for row in data["answer"]["front"]:
            price = row["configuration"][0]["price_usd_per_h"]
            assert {fact["source"] for fact in row["sources"]} <= sources
            assert any(f"{price:.4g} USD/h" == fact["value"] for fact in row["sources"])
    measured = [f for row in recorded["answer"]["front"] for f in row["sources"]]
    assert "measured" in {fact["source"] for fact in measured}


class _Scripts(HTMLParser):
    """Script elements of a page with their attributes, and all attributes that load."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.loads: list[str] = []
        self.metas: dict[str, str] = {}
        self._is_inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.loads += [str(given[n]) for n in ("src", "href", "action", "data") if n in given]
        if tag == "script":
            self.scripts.append((given, ""))
        if tag == "meta":
            name = given.get("name") or given.get("http-equiv") or ""
            self.metas[str(name).lower()] = str(given.get("content"))
        self._is_inside = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._is_inside = False

    def handle_data(self, data: str) -> None:
        if self._is_inside and self.scripts:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data


def _parsed(text: str) -> _Scripts:
    parser = _Scripts()
    parser.feed(text)
    return parser


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_page_is_whole_small_and_loads_nothing(recorded: dict[str, Any]) -> None:
    text = answer_page(recorded)
    found = _parsed(text)
    assert len(text.encode()) < MOST_BYTES
    assert found.loads == ["#report"]
    policy = found.metas["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    programs = [script for given, script in found.scripts if "type" not in given]
    admitted = set(re.findall(r"'sha256-[^']+'", policy))
    assert {_hash(one) for one in programs} == admitted
    assert "unsafe" not in policy.partition("script-src")[2].partition(";")[0]
    assert found.metas["generator"] == GENERATOR
    assert text == answer_page(recorded)


def test_the_page_holds_the_data_it_was_given(recorded: dict[str, Any]) -> None:
    scripts = _parsed(answer_page(recorded, live={"address": "<here>"})).scripts
    held = {given.get("id"): text for given, text in scripts}
    assert json.loads(held["data"]) == recorded
    assert json.loads(held["live"]) == {"address": "<here>"}


def test_only_a_live_page_may_ask_its_own_server(recorded: dict[str, Any]) -> None:
    policy = _parsed(answer_page(recorded, live={})).metas["content-security-policy"]
    assert "connect-src 'self'" in policy


@given(st.text() | st.sampled_from(["</script>", "<!--", "<script>", "]]>", "%%csp%%", "\u2028"]))
def test_no_text_ends_its_script(hostile: str) -> None:
    text = embedded({"run": hostile, hostile: [hostile]})
    assert json.loads(text) == {"run": hostile, hostile: [hostile]}
    assert not set("<>&") & set(text)


@given(st.sampled_from(["</title><script>x()</script>", "<img src=x>", "%%script%%", '"><b>']))
def test_names_stay_texts(recorded_name: str) -> None:
    answer = {"run": recorded_name, "summary": [recorded_name]}
    found = _parsed(answer_page({"answer": answer}))
    assert found.loads == ["#report"]
    # Data, what is live, our own script.
    assert len(found.scripts) == 3
    assert json.loads(found.scripts[0][1])["answer"] == answer


def test_a_script_that_would_end_its_element_is_refused(recorded: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="ends its own element"):
        answer_page(recorded, scripts=["'</script>'"])


def test_numbers_without_a_word_in_json_are_null() -> None:
    assert _finite({"a": [math.inf, 1.5, math.nan], "b": (2, "c", None, True)}) == {
        "a": [None, 1.5, None], "b": [2, "c", None, True],
    }  # fmt: skip


def _reading(t_s: float, cpu_s: float, rss: int, gpu: float | None) -> Reading:
    return Reading(
        t_s=t_s, processes=1, cpu_s=cpu_s, run_delay_s=0.0, rss_bytes=rss, pss_bytes=None,
        disk_read_bytes=0, disk_write_bytes=0, network_received_bytes=0, network_sent_bytes=0,
        throttled_s=0.0, pressure_fraction=None, gpu_fraction=gpu,
    )  # fmt: skip


ticks = st.lists(
    st.tuples(
        st.floats(0.05, 5.0), st.floats(0.0, 8.0), st.integers(1, 2**40),
        st.none() | st.floats(0.0, 1.0),
    ),
    min_size=2, max_size=60,
)  # fmt: skip


@given(ticks, st.integers(1, 30))
def test_thinned_readings_keep_totals_and_peaks(
    given_ticks: list[tuple[float, float, int, float | None]], most: int
) -> None:
    t_s = cpu_s = 0.0
    seen = []
    for step_s, cores, rss, gpu in given_ticks:
        t_s, cpu_s = t_s + step_s, cpu_s + step_s * cores
        seen.append(_reading(t_s, cpu_s, rss, gpu))
    found = thinned_readings(seen, most)
    assert 1 <= len(found["t_s"]) <= most
    assert len({len(column) for column in found.values()}) == 1
    begins = [seen[0].t_s, *found["t_s"][:-1]]
    used = sum(
        rate * (end - begin)
        for rate, begin, end in zip(found["cpu_cores"], begins, found["t_s"], strict=True)
    )
    assert used == pytest.approx(seen[-1].cpu_s - seen[0].cpu_s, rel=1e-9, abs=1e-9)
    assert max(found["memory_bytes"]) == max(one.rss_bytes for one in seen)
    gauges = [one.gpu_fraction for one in seen if one.gpu_fraction is not None]
    assert [g for g in found["gpu_fraction"] if g is not None] == [] or gauges
    if gauges:
        assert max(g for g in found["gpu_fraction"] if g is not None) == max(gauges)


@given(st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=200), st.integers(1, 50))
def test_thinned_steps_keep_their_mean_and_extremes(step_s: list[float], most: int) -> None:
    found = steps(step_s, most)
    each, count = found["steps_per_point"], len(found["mean_s"])
    assert count <= most
    assert found["steps"] == len(step_s)
    sizes = [min(each, len(step_s) - each * at) for at in range(count)]
    total = sum(mean * size for mean, size in zip(found["mean_s"], sizes, strict=True))
    assert total / len(step_s) == pytest.approx(fmean(step_s))
    assert (min(found["low_s"]), max(found["high_s"])) == (min(step_s), max(step_s))


def test_a_run_too_short_to_show_is_empty() -> None:
    assert thinned_readings([_reading(0.0, 0.0, 1, None)], 10) == {"t_s": []}


def test_the_runs_series_are_those_of_the_recording(recorded: dict[str, Any]) -> None:
    from advisor.collectors.derive import store

    seen = store.read_recording(Path(str(RECORDED["run"])))
    run = recorded["run"]
    assert [rank["steps"] for rank in run["ranks"]] == [len(one.step_s) for one in seen.ranks]
    assert run["step_time"]["corrected_s"] == seen.step_time.corrected_s  # type: ignore[union-attr]
    assert set(run["readings"]["gpu_fraction"]) == {None}


def test_every_device_of_the_layout_is_drawn_once(pipeline: dict[str, Any]) -> None:
    for key, said in pipeline["words"]["candidates"].items():
        row = next(one for one in pipeline["answer"]["front"] if str(one["rank"]) == key)
        layout, drawn = row["layout"], said["layout"]
        cells = [tuple(cell) for one in drawn["instances"] for cell in one["cells"]]
        assert len(set(cells)) == len(cells) == drawn["devices"]
        sizes = [layout[name] for name in ("pp", "dp", "cp", "tp")]
        assert [1 + max(column) for column in zip(*cells, strict=True)] == sizes
        # Tensor-parallel ranks exchange most: they stand beside one another.
        assert cells == sorted(cells)
        assert drawn["schedule"]["stages"] == layout["pp"] == 4


@given(st.integers(2, 16), st.integers(1, 300), st.sampled_from(["gpipe", "1f1b"]))
def test_drawn_schedules_are_whole_or_said_to_be_cut(p: int, m: int, name: Any) -> None:
    found = schedule_of(Layout(pp=p, accumulation_steps=m, schedule=name))
    assert found is not None
    assert found["drawn"] <= found["micro_batches"] == m
    assert len(found["passes"]) == 2 * p * found["drawn"]
    assert found["bubble_fraction"] == pytest.approx((p - 1) / m)


def test_one_stage_has_no_schedule() -> None:
    assert schedule_of(Layout(dp=8)) is None


def test_cards_name_every_model_that_answers() -> None:
    found = {one["name"]: one for one in model_cards.cards()}
    assert set(found) == set(model_cards.MODELS)
    for one in found.values():
        assert one["day"] in one["card"]


def test_the_verb_writes_over_reports_only(
    recorded: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "report_data", lambda *_, **__: recorded)
    target = tmp_path / "report.html"
    done = CliRunner().invoke(app, ["report", "-o", str(target)])
    assert (done.exit_code, done.stdout) == (0, "")
    assert f"wrote {target}" in done.stderr
    assert target.read_text(encoding="utf-8") == answer_page(recorded)
    assert CliRunner().invoke(app, ["report", "-o", str(target)]).exit_code == 0
    target.write_text("my own notes")
    refused = CliRunner().invoke(app, ["report", "-o", str(target)])
    assert "is not an earlier report" in str(refused.exception)
    assert target.read_text() == "my own notes"
    assert CliRunner().invoke(app, ["report", "-o", str(target), "--force"]).exit_code == 0
    assert GENERATOR in target.read_text(encoding="utf-8")
    piped = CliRunner().invoke(app, ["report", "-o", "-"])
    assert piped.stdout == answer_page(recorded)


def test_where_nothing_is_kept_the_page_shows_the_nearest_misses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of(IMPOSSIBLE)
    nearest = data["answer"]["nearest"]
    assert nearest
    assert set(data["words"]["candidates"]) >= {str(one["rank"]) for one in nearest}
    monkeypatch.setattr(api, "report_data", lambda *_, **__: data)
    target = tmp_path / "report.html"
    assert CliRunner().invoke(app, ["report", "-o", str(target)]).exit_code == 3
    assert target.is_file()
    printed = CliRunner().invoke(app, ["report", "--json"])
    assert json.loads(printed.stdout) == data


def _said(tmp_path: Path, *, user: str, programs: dict[str, str]) -> str:
    """What `.ci/chromium` says where these are the only programs on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"id": f"echo {user}", **programs}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(ROOT / ".ci" / "chromium")], env={"PATH": str(folder)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def test_the_browser_of_make_is_the_one_here_or_debians(tmp_path: Path) -> None:
    for name in ("here", "none", "apt", "broken"):
        (tmp_path / name).mkdir()
    found = _said(tmp_path / "here", user="1000", programs={"chromium": "exit 1"})
    assert found == f"browser: {tmp_path}/here/bin/chromium\n"
    assert "tests are skipped" in _said(tmp_path / "none", user="1000", programs={})
    installing = _said(tmp_path / "apt", user="0", programs={"apt-get": "echo apt-get $*"})
    assert "install -y -qq --no-install-recommends chromium" in installing
    assert "skipped" not in installing
    broken = _said(tmp_path / "broken", user="0", programs={"apt-get": "exit 100"})
    assert "tests are skipped" in broken
