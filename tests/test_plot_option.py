"""``--plot``: with a file and without, what is refused, and what reaches which stream."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor import words
from advisor.answer import Recommendation
from advisor.ask import Constraints
from advisor.cli.commands import leaves
from advisor.cli.program import VERBS, load_verb
from advisor.cli.simulate import app
from advisor.cli.terminal import BareCommand, terminal_style, with_values
from advisor.errors import AdvisorError, UsageError
from advisor.estimate.predictor import Predictor
from advisor.jobs.job import Job
from advisor.lab.score.scores import score
from advisor.lab.verbs.validate import scored_charts
from advisor.rank.ranking import recommend
from advisor.show import pictures, terminal
from advisor.show.answer_charts import compared_charts, front_chart, plan_charts
from advisor.show.charts import TOGETHER

FAILURES = ["failures", "--hours", "240", "--devices", "512"]
WORDS = st.sampled_from(
    ["latest", "--json", "a.png", "-", "--budget", "5", "run.v2/x", "--", "-h"]
)


@pytest.fixture(scope="module")
def answer(make_job: Callable[..., Job]) -> Recommendation:
    return recommend(make_job(), Constraints(top=6), predictor=Predictor())


def run(*args: str) -> Any:
    return CliRunner().invoke(app, [*FAILURES, *args], catch_exceptions=False)


@given(st.lists(st.one_of(WORDS, st.just("--plot")), max_size=6))
def test_every_plot_has_a_file_or_names_the_terminal(args: list[str]) -> None:
    found = with_values(args)
    left = list(args)
    for word in found:  # nothing is lost or moved, and only the terminal is added
        if left and word == left[0]:
            left.pop(0)
        else:
            assert word == "-"
    assert not left
    flags = found[: found.index("--")] if "--" in found else found
    for word, following in zip(flags, [*found[1:], "(none)"], strict=False):
        if word == "--plot":
            assert following in ("-", "a.png", "run.v2/x")
    assert with_values(found) == found
    assert "--plot" in args or found == args


def test_every_verb_with_the_option_reads_it_without_a_file() -> None:
    with_option = [
        (words, command)
        for verb in VERBS
        for words, command in leaves(load_verb(verb), (verb,))
        if any("--plot" in one.opts for one in command.params)
    ]
    assert len(with_option) >= 6
    for _, command in with_option:
        assert isinstance(command, BareCommand)


def test_a_plot_follows_the_answer_and_a_pipe_gets_no_escape_sequences() -> None:
    plain, drawn = run().stdout, run("--plot").stdout
    assert drawn.startswith(plain)
    plot = drawn[len(plain) :]
    assert "What saves and failures add" in plot
    assert "\x1b" not in plot
    assert max(map(len, plot.splitlines())) <= 80


@pytest.mark.parametrize(
    ("variables", "is_coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_are_the_terminal_s_and_the_user_s_choice(
    variables: dict[str, str], is_coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    class Terminal:
        encoding = "ascii"

        def isatty(self) -> bool:
            return True

        def write(self, _: str) -> int:
            return 0

        def flush(self) -> None:
            pass

    monkeypatch.setattr("sys.stdout", Terminal())
    style = terminal_style()
    assert style.is_coloured == is_coloured
    assert not style.is_unicode


def test_the_json_stays_alone_on_standard_output(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "a.svg"
    done = run("--json", "--plot", str(file))
    assert json.loads(done.stdout)["schema_version"] == 1
    assert f"drawn: {file}" in done.stderr
    assert file.read_text().rstrip().endswith("</svg>")


@pytest.mark.parametrize(
    ("args", "error", "match"),
    [
        (["--plot", "--json"], UsageError, "JSON record"),
        (["--plot", "-", "--json"], UsageError, "JSON record"),
        (["--plot", "a.html"], UsageError, "cannot draw into a.html"),
        (["--plot", "/dev/null/a.png"], AdvisorError, "cannot write"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    args: list[str], error: type[AdvisorError], match: str
) -> None:
    with pytest.raises(error, match=re.escape(match)) as found:
        run(*args)
    assert found.value.hint


def _marks(answer: Recommendation) -> Iterator[tuple[float, float]]:
    for one in answer.to_record()["front"]:
        yield one["training_time_h"]["value"], one["cost_usd"]["value"]


def test_the_front_that_is_drawn_is_the_record_s(answer: Recommendation) -> None:
    record = answer.to_record()
    (chart,) = front_chart(record)
    drawn = {p.label: p for series in chart.series for p in series.points()}
    assert len(drawn) == len(record["front"])
    for one in record["front"]:
        point, time, cost = drawn[str(one["rank"])], one["training_time_h"], one["cost_usd"]
        assert (point.x, point.y) == (time["value"], cost["value"])
        assert point.x_bounds == (time["low"], time["high"])
        assert point.y_bounds == (cost["low"], cost["high"])
    for series in chart.series:
        ranks = [int(label) for label in series.labels]
        assert {words.picked_as_words(record, rank) for rank in ranks} == {
            "" if series.is_minor else series.name
        }
    (axes,) = pictures.figure(front_chart(record, names=True)).axes
    dots = [tuple(xy) for line, _, _ in axes.containers for xy in line.get_xydata().tolist()]
    assert sorted(dots) == sorted(_marks(answer))


@pytest.mark.parametrize("width", [80, 120])
def test_the_front_in_a_terminal_names_every_candidate(answer: Recommendation, width: int) -> None:
    record = answer.to_record()
    drawn = terminal.charts_text(front_chart(record), terminal.Style(width=width))
    for one in record["front"]:
        assert f"{one['rank']}: {words.devices_words(one['configuration'])}" in drawn
    for name, rank in record["picks"].items():
        if rank != "here":
            assert re.search(rf"^(.* )?{rank} .*{words.PICKS[name]}", drawn, re.MULTILINE)
    assert max(map(len, drawn.splitlines())) <= width


def test_nothing_found_has_nothing_to_draw(answer: Recommendation) -> None:
    assert front_chart({**answer.to_record(), "front": [], "nearest": []}) == []


def test_the_layouts_that_are_drawn_are_the_record_s() -> None:
    plans: list[dict[str, Any]] = [
        {"name": name, "memory_gib": gib, "configuration": [{"count": 1, "instance_type": "g"}],
         "step_time_s": {"value": s, "low": s / 2, "high": 2 * s}}
        for name, s, gib in (("data parallel", 1.0, 60.0), ("pipeline", 1.1, 40.0))
    ]  # fmt: skip
    (chart,) = plan_charts({"plans": plans})
    drawn = {p.label: p for series in chart.series for p in series.points()}
    for place, one in enumerate(plans, 1):
        point, time = drawn[str(place)], one["step_time_s"]
        assert (point.x, point.x_bounds) == (time["value"], (time["low"], time["high"]))
        assert point.y == one["memory_gib"]
        assert f"{place}: {one['name']}" in chart.notes[0].replace(TOGETHER, " ")
    assert [one.name for one in chart.series if not one.is_minor] == ["chosen"]
    assert plan_charts({"plans": []}) == []


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=1, max_size=50))
def test_the_rows_that_are_drawn_give_the_scores(rows: list[tuple[float, float]]) -> None:
    scores = score(*zip(*rows, strict=True))
    assert scores.pairs is not None
    assert "pairs" not in scores.record()
    (chart,) = scored_charts("t", *(one.tolist() for one in scores.pairs))
    line, drawn = chart.series
    ratios = [abs(y / x - 1) for x, y in zip(drawn.x, drawn.y, strict=True)]
    assert np.median(ratios) == pytest.approx(scores.median_ape_fraction, abs=1e-6)
    assert list(line.x) == list(line.y) == [min(map(min, rows)), max(map(max, rows))]


def test_of_very_many_rows_some_are_drawn_and_it_is_said() -> None:
    (chart,) = scored_charts("t", [1.0] * 2500, [2.0] * 2500)
    assert len(chart.series[1].x) == 834
    assert chart.notes == ["one of every 3 of 2,500 rows is drawn"]
    assert scored_charts("t", (), ()) == []


def test_real_runs_are_drawn_with_the_intervals_they_left_or_kept() -> None:
    runs = [
        {"configuration": {"instance_type": "g5.xlarge", "count": 1}, "predicted_h": 2.0,
         "low_h": 1.0, "high_h": 4.0, "actual_h": took, "inside": took < 4}
        for took in (3.0, 5.0)
    ]  # fmt: skip
    (chart,) = compared_charts({"runs": runs})
    _, kept, left = chart.series
    assert [(p.label, p.x, p.y, p.y_bounds) for p in kept.points()] == [
        ("1", 3.0, 2.0, (1.0, 4.0))
    ]
    assert [(p.label, p.x) for p in left.points()] == [("2", 5.0)]
    assert compared_charts({"runs": []}) == []
