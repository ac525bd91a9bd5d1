"""Charts: well-formed, escaped, self-contained, and with their points where they belong."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.shown.charts import HEIGHT, Chart, Series, logarithmic_ticks, page, svg, ticks

NASTY = "<script>alert('x')</script> & \"quotes\" " + "é" * 3


def chart(**changes: object) -> Chart:
    given: dict[str, object] = {
        "title": NASTY, "x_label": NASTY, "y_label": NASTY, "notes": [NASTY],
        "series": [
            Series(name=NASTY, x=[1.0, 2.0, float("inf")], y=[0.0, 5.0, 1.0]),
            Series(name="b", x=[1.0, 3.0], y=[2.0, float("nan")], shape="area"),
            Series(name="c", x=[1.5], shape="vertical"),
            Series(name="never", x=[float("inf")], y=[1.0], shape="steps"),
        ],
    } | changes  # fmt: skip
    return Chart(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_logarithmic", [False, True])
def test_a_chart_is_well_formed_and_loads_nothing(is_logarithmic: bool) -> None:
    drawn = svg([chart(is_x_logarithmic=is_logarithmic), chart()])
    root = ET.fromstring(drawn)
    assert root.tag.endswith("svg")
    assert "<script" not in drawn
    assert not re.search(r"(href|src)\s*=|url\(", drawn)
    assert "nan" not in drawn.lower().replace("finance", "")
    assert "inf" not in re.sub(r"<text.*?</text>|<title>.*?</title>", "", drawn)


def test_a_page_forbids_loading() -> None:
    drawn = page(NASTY, [chart()])
    assert "default-src 'none'" in drawn
    assert "<script" not in drawn


def test_points_lie_between_the_axes_in_proportion() -> None:
    drawn = svg([chart(
        series=[Series(name="a", x=[0.0, 5.0, 10.0], y=[0.0, 5.0, 10.0])], y_range=(0.0, 10.0),
    )])  # fmt: skip
    (path,) = re.findall(r' d="(M[^"]+L[^"]+)"', drawn)
    points = [tuple(map(float, pair.split(","))) for pair in re.findall(r"[\d.]+,[\d.]+", path)]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1)
    assert y1 == pytest.approx((y0 + y2) / 2, abs=0.1)
    assert 0 < y2 < y0 < HEIGHT


@given(low=st.floats(-1e6, 1e6), span=st.floats(1e-3, 1e6))
def test_ticks_are_round_few_and_inside(low: float, span: float) -> None:
    marks = ticks(low, low + span)
    assert 1 <= len(marks) <= 8
    assert all(low - 1e-6 * span <= m <= low + span * (1 + 1e-6) for m in marks)


@given(low=st.floats(1e-3, 1e3), ratio=st.floats(1.5, 1e9))
def test_logarithmic_ticks_are_few_and_inside(low: float, ratio: float) -> None:
    marks = logarithmic_ticks(low, low * ratio)
    assert len(marks) <= 9
    assert marks == sorted(marks)
    assert all(low * 0.999 <= m <= low * ratio * 1.001 for m in marks)
