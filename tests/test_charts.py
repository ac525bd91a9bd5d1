"""Charts: what pictures and terminals draw is the chart's own data, over the same axes."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor import show
from advisor.show import pictures, stylesheet, terminal
from advisor.show.charts import WIDE_SPAN, Axis, Chart, Series
from advisor.show.palette import HUES, ROLES, SURFACES
from advisor.show.terminal import Style

SITE = Path(__file__).parents[1] / "docs" / "site.css"
NASTY = "<script>alert('x')</script> & \"quotes\" \x1b[31m $x^2$ " + "é" * 3
STYLES = [Style(width=w, is_coloured=c, is_unicode=u)
          for w in (40, 80, 120) for c in (False, True) for u in (False, True)]  # fmt: skip
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def chart(**changes: Any) -> Chart:
    given: dict[str, Any] = {
        "title": NASTY, "x_label": NASTY, "y_label": NASTY, "notes": [NASTY],
        "series": [
            Series(name=NASTY, x=[1.0, 2.0, float("inf")], y=[0.0, 5.0, 1.0]),
            Series(name="b", x=[1.0, 3.0], y=[2.0, float("nan")], shape="area"),
            Series(name="c", x=[1.5], shape="vertical"),
            Series(name="never", x=[float("inf")], y=[1.0], shape="steps"),
        ],
    } | changes  # fmt: skip
    return Chart(**given)


def points(**changes: Any) -> Chart:
    """Return a front of three candidates, the middle one picked."""
    given: dict[str, Any] = {
        "title": "front", "x_label": "h", "y_label": "USD",
        "is_x_logarithmic": None, "is_y_logarithmic": None,
        "series": [
            Series(name="others", x=[0.1, 50.0], y=[40.0, 4.0], labels=["1", "3"],
                   x_bounds=[(0.08, 0.12), (30, 90)], y_bounds=[(30, 50), (2, 6)],
                   shape="points", is_minor=True),
            Series(name="best", x=[2.0], y=[9.0], labels=["2"], x_bounds=[(1.0, 4.0)],
                   y_bounds=[(5.0, 16.0)], shape="points"),
        ],
    } | changes  # fmt: skip
    return Chart(**given)


def drawn_axes(one: Chart) -> Any:
    (axes,) = pictures.figure([one]).axes
    return axes


@given(st.lists(st.tuples(st.floats(0.1, 50), st.floats(1, 50)), min_size=2, max_size=6))
@settings(deadline=None, max_examples=15)
def test_no_label_of_a_picture_covers_another(places: list[tuple[float, float]]) -> None:
    x, y = zip(*places, strict=True)
    labels = [f"{n}: 64 x H100-SXM5-80GB" for n, _ in enumerate(places, 1)]
    axes = drawn_axes(points(series=[Series(name="a", x=x, y=y, labels=labels, shape="points")]))
    boxes = [one.get_window_extent() for one in axes.texts]
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


@pytest.mark.parametrize("is_logarithmic", [False, True])
def test_an_svg_is_well_formed_and_loads_nothing(is_logarithmic: bool) -> None:
    drawn = pictures.svg([chart(is_x_logarithmic=is_logarithmic), chart()])
    root = ET.fromstring(drawn)
    assert root.tag.endswith("svg")
    assert "<script" not in drawn
    assert not re.search(r"(src)\s*=|url\((?!#)|href=\"(?!#)", drawn)
    texts = " ".join("".join(one.itertext()) for one in root.iter() if one.tag.endswith("text"))
    assert "<script>alert('x')</script>" in texts
    assert r"\x1b[31m $x^2$" in texts  # no escape sequence, no formula
    assert drawn == pictures.svg([chart(is_x_logarithmic=is_logarithmic), chart()])


def test_on_a_page_no_ink_is_dark_on_a_dark_scheme() -> None:
    drawn = pictures.svg([points()])
    assert "prefers-color-scheme:dark" in drawn
    for light, dark, *_ in (*SURFACES.values(), *HUES.values()):
        assert f": {dark};" in drawn
        assert drawn.count(str(light)) == drawn.count(f",{light})")
    assert "#000000" not in drawn


def _luminance(colour: str) -> float:
    """WCAG 2.2, "relative luminance"."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return sum(w * one for w, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", [0, 1])
@pytest.mark.parametrize("under", ["paper", "surface"])
def test_every_colour_can_be_read_on_its_paper(scheme: int, under: str) -> None:
    paper = _luminance(SURFACES[under][scheme])
    readable = [SURFACES[name] for name in ("text", "quiet", "accent", "cost")]
    for colours in (*HUES.values(), *readable):
        low, high = sorted((paper, _luminance(str(colours[scheme]))))
        assert (high + 0.05) / (low + 0.05) >= 4.5, colours


def test_a_pick_has_one_colour_whichever_picks_stand_beside_it() -> None:
    alone = [replace(points(), series=[Series(name="cheap", x=[1.0], y=[1.0], shape="points",
             role="cheapest")])]  # fmt: skip
    green = HUES[ROLES["cheapest"]][0]
    assert green in pictures.svg(alone)
    assert "--cheapest: var(--green)" in stylesheet()


def test_no_file_of_a_page_has_a_colour_of_its_own() -> None:
    rooms = (Path(show.__file__).parents[1] / room / "assets" for room in ("report", "ui"))
    files = [*(one for room in rooms for one in room.iterdir()), SITE]
    for file in files:
        assert not re.findall(r"#[0-9a-fA-F]{6}\b", file.read_text(encoding="utf-8")), file


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".pdf", b"%PDF")])
def test_a_picture_is_of_its_kind(suffix: str, magic: bytes) -> None:
    file = io.BytesIO()
    pictures.write_charts([points()], file, suffix)
    assert file.getvalue().startswith(magic)


def test_a_picture_draws_every_point_with_its_bounds_and_label() -> None:
    one = points()
    axes = drawn_axes(one)
    for series, drawn in zip(one.series, axes.containers, strict=True):
        line, _, bars = drawn
        assert line.get_xydata().tolist() == [
            list(p) for p in zip(series.x, series.y, strict=True)
        ]
        across, up = (bar.get_segments() for bar in bars)
        assert np.array(across)[:, :, 0].tolist() == pytest.approx(np.array(series.x_bounds))
        assert np.array(up)[:, :, 1].tolist() == pytest.approx(np.array(series.y_bounds))
    assert [text.get_text() for text in axes.texts] == ["1", "3", "2"]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_a_picture_draws_every_curve_of_finite_values() -> None:
    one = chart(title="t", series=[
        Series(name="line", x=[1.0, 2.0, math.inf], y=[0.0, 5.0, 1.0]),
        Series(name="steps", x=[1.0, 3.0], y=[2.0, 1.0], shape="steps"),
        Series(name="at", x=[1.5], shape="vertical"),
    ])  # fmt: skip
    line, steps, at = drawn_axes(one).lines
    assert line.get_xydata().tolist() == [[1.0, 0.0], [2.0, 5.0]]
    assert steps.get_drawstyle() == "steps-post"
    assert set(at.get_xdata()) == {1.5}


@pytest.mark.parametrize("style", STYLES, ids=repr)
@pytest.mark.parametrize("one", [chart(), chart(is_x_logarithmic=True), points()])
def test_no_line_of_a_terminal_is_too_wide_and_no_sign_is_foreign(
    one: Chart, style: Style
) -> None:
    drawn = terminal.charts_text([one, one], style)
    plain = ESCAPE.sub("", drawn)
    assert max(map(len, plain.split("\n"))) <= style.width
    assert (plain == drawn) == (not style.is_coloured)
    assert plain.replace("\n", "").isprintable()
    if not style.is_unicode:
        assert plain.isascii()


def test_colours_change_nothing_but_colours() -> None:
    plain, coloured = (
        terminal.charts_text([points()], Style(is_coloured=c)) for c in (False, True)
    )  # fmt: skip
    assert ESCAPE.sub("", coloured) == plain
    assert "\x1b[38;5;" in coloured


class _Figure:
    """What is handed to plotext, kept."""

    def __init__(self) -> None:
        self.signals: list[tuple[list[float], list[float]]] = []

    def signal(self, x: list[float], y: list[float], **_: Any) -> Any:
        self.signals.append((list(x), list(y)))
        return self

    def lines(self, _: bool) -> Any:
        return self

    fillx = lines


def pens(one: Chart) -> list[Any]:
    return [terminal._Pen.of(one, place, Style()) for place in range(len(one.series))]


def handed_over(one: Chart) -> list[tuple[list[float], list[float]]]:
    figure = _Figure()
    for series, pen in zip(one.series, pens(one), strict=True):
        list(terminal._signals(figure, series, pen, one.x, one.y))
    return figure.signals


def test_a_terminal_draws_the_values_themselves() -> None:
    one = points()
    marks = {(x, y) for x, y, _ in terminal._labels(one, pens(one), (76, 15))}
    values = [p for series in one.series for p in series.points()]
    assert marks == {(math.log10(p.x), math.log10(p.y)) for p in values}
    across, up = handed_over(one)  # of the pick alone
    assert [10**v for v in across[0]] == pytest.approx([1.0, 4.0])
    assert [10**v for v in up[1]] == pytest.approx([5.0, 16.0])


@given(st.lists(st.floats(0.99, 1.01), min_size=2, max_size=12))
def test_no_label_hides_another(values: list[float]) -> None:
    """However near the values are: each is read somewhere in the drawing."""
    signs = "ABCDEFGHIJKL"[: len(values)]
    series = Series(name="", x=values, y=values, labels=list(signs), shape="points")
    one = chart(title="", x_label="", y_label="", notes=[], series=[series], x_range=(0.0, 2.0))
    drawn = terminal.charts_text([one], Style())
    assert {sign for sign in drawn if sign in signs} == set(signs)


def test_steps_hold_each_value_until_the_next() -> None:
    one = chart(series=[Series(name="s", x=[0.0, 2.0, 5.0], y=[1.0, 3.0, 2.0], shape="steps")])
    assert handed_over(one) == [([0.0, 2.0, 2.0, 5.0, 5.0], [1.0, 1.0, 3.0, 3.0, 2.0])]


def test_marks_stand_where_the_values_are() -> None:
    """In proportion between the outermost marks, on either kind of axis."""
    for is_logarithmic, middle in ((False, 50.5), (True, 10.0)):
        series = Series(name="a", x=[1.0, middle, 100.0], y=[1.0, middle, 100.0],
                        labels=["A", "B", "C"], shape="points")  # fmt: skip
        one = chart(title="", y_label="", x_label="", notes=[], series=[series],
                    is_x_logarithmic=is_logarithmic, is_y_logarithmic=is_logarithmic)  # fmt: skip
        lines = terminal.charts_text([one], Style(width=101)).split("\n")
        at = {sign: (column, row) for row, line in enumerate(lines)
              for column, sign in enumerate(line) if sign in "ABC"}  # fmt: skip
        for direction in (0, 1):
            ends = (at["A"][direction] + at["C"][direction]) / 2
            assert at["B"][direction] == pytest.approx(ends, abs=1)


def test_without_colours_the_legend_says_which_point_is_picked() -> None:
    drawn = terminal.charts_text([points()], Style())
    assert "2 best" in drawn
    assert "others" not in drawn  # what is not picked needs no name


@given(low=st.floats(-1e6, 1e6), span=st.floats(1e-3, 1e6), most=st.integers(2, 12))
def test_ticks_are_few_and_inside(low: float, span: float, most: int) -> None:
    axis = Axis(label="", low=low, high=low + span, is_logarithmic=False)
    marks = [value for value, _ in axis.ticks(most)]
    assert 1 <= len(marks) <= most
    assert marks == sorted(marks)
    assert all(low <= mark <= low + span for mark in marks)


@given(low=st.floats(1e-6, 1e3), ratio=st.floats(1.2, 1e9), most=st.integers(2, 12))
def test_logarithmic_ticks_are_few_and_inside(low: float, ratio: float, most: int) -> None:
    axis = Axis(label="", low=low, high=low * ratio, is_logarithmic=True)
    marks = [value for value, _ in axis.ticks(most)]
    assert 1 <= len(marks) <= most
    assert marks == sorted(marks)
    assert all(low <= mark <= low * ratio for mark in marks)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20), st.booleans())
def test_an_axis_holds_every_value(values: list[float], is_front: bool) -> None:
    series = Series(name="", x=values, y=values, shape="points" if is_front else "line")
    one = chart(series=[series], is_x_logarithmic=None, is_y_logarithmic=None)
    for axis in (one.x, one.y):
        assert axis.low <= min(values)
        assert axis.high >= max(values)
        assert axis.low < axis.high
        assert axis.is_logarithmic == (max(values) > WIDE_SPAN * min(values))


def test_nothing_free_lies_on_a_logarithmic_axis() -> None:
    one = chart(series=[Series(name="", x=[1.0, 90.0], y=[0.0, 90.0])], is_y_logarithmic=None)
    assert not one.y.is_logarithmic


def test_an_empty_chart_is_drawn() -> None:
    one = chart(series=[Series(name="none", x=[], y=[])])
    assert terminal.charts_text([one], Style())
    assert drawn_axes(one) is not None
