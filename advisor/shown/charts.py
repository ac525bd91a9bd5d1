"""Line charts as self-contained SVG: no script, no font, nothing from the network.

A chart is axes with round ticks, and series drawn as lines, steps or areas. Every text is escaped.
The page follows the reader's dark or light scheme.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final, Literal

WIDTH: Final = 760
HEIGHT: Final = 300
LEFT, RIGHT, TOP, BOTTOM = 66, 22, 34, 58
FLOOR: Final = HEIGHT - BOTTOM  # where y is lowest
LINE_HEIGHT: Final = 18
LETTER: Final = 6.6  # mean width of a letter of 12 px
# Okabe and Ito's colours: told apart by readers with any colour vision.
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#333}.title{font-weight:600;font-size:14px}"
    ".paper{fill:#fff}.grid{stroke:#ddd}.axis{stroke:#888}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.paper{fill:#16181c}.grid{stroke:#333}"
    ".axis{stroke:#777}}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One curve.

    Attributes
    ----------
    name : str
        In the legend.
    x, y : sequence of float
        Points that are not finite are left out.
    shape : {"line", "steps", "area", "vertical", "points"}
        ``steps`` holds each value until the next x; ``area`` fills steps down to 0; ``vertical``
        draws a line across the chart at the first x; ``points`` draws a mark at each, with its
        label and its bounds.
    labels : sequence of str
        Beside the points.
    x_bounds, y_bounds : sequence of (float, float)
        Low and high of each point.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float] = ()
    shape: Literal["line", "steps", "area", "vertical", "points"] = "line"
    labels: Sequence[str] = ()
    x_bounds: Sequence[tuple[float, float]] = ()
    y_bounds: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Axes and what is drawn on them; units belong in the labels.

    ``x_range`` and ``y_range`` default to the data, the latter from 0 with some headroom.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    is_x_logarithmic: bool = False
    is_y_logarithmic: bool = False
    notes: Sequence[str] = field(default=())


def svg(charts: Sequence[Chart]) -> str:
    """Return the charts one below the other as one SVG document."""
    heights = [_height(chart) for chart in charts]
    parts, y = [], 0
    for chart, height in zip(charts, heights, strict=True):
        parts.append(f'<g transform="translate(0,{y})">{_drawn(chart)}</g>')
        y += height
    title = escape(", ".join(chart.title for chart in charts))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" '
        f'viewBox="0 0 {WIDTH} {y}" role="img"><title>{title}</title><style>{STYLE}</style>'
        f'<rect class="paper" width="{WIDTH}" height="{y}"/>{"".join(parts)}</svg>\n'
    )


def page(title: str, charts: Sequence[Chart]) -> str:
    """Return an HTML page that holds the charts."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        f"style-src 'unsafe-inline'\"><title>{escape(title)}</title>"
        "<style>body{margin:2rem auto;max-width:760px;font-family:system-ui,sans-serif}"
        "svg{max-width:100%;height:auto}"
        "@media(prefers-color-scheme:dark){body{background:#16181c;color:#ddd}}</style></head>"
        f"<body><h1>{escape(title)}</h1>{svg(charts)}</body></html>\n"
    )


def ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Return round values from ``low`` to ``high``: steps of 1, 2 or 5 times a power of ten.

    >>> ticks(0, 23)
    [0.0, 5.0, 10.0, 15.0, 20.0]
    """
    span = high - low
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * k for k in (1, 2, 5, 10) if span / (power * k) <= most)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def logarithmic_ticks(low: float, high: float, most: int = 9) -> list[float]:
    """Return round values between two positive ones: as many of each decade as are legible.

    >>> logarithmic_ticks(8, 300)
    [10.0, 20.0, 30.0, 50.0, 100.0, 200.0, 300.0]
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for leading in (range(1, 10), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        marks = [m * 10.0**k for k in decades for m in leading]
        shown = [m for m in marks if low * (1 - 1e-9) <= m <= high * (1 + 1e-9)]
        if len(shown) <= most:
            return shown
    return shown[:: -(-len(shown) // most)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """Where values lie along one direction, as a share; bounds are logarithms where it is."""

    low: float
    high: float
    is_logarithmic: bool

    @classmethod
    def over(cls, low: float, high: float, *, is_logarithmic: bool) -> _Axis:
        if is_logarithmic:
            low, high = math.log10(low), math.log10(high)
        return cls(low=low, high=high, is_logarithmic=is_logarithmic)

    def share(self, value: float) -> float:
        at = math.log10(max(value, 1e-300)) if self.is_logarithmic else value
        return min(max((at - self.low) / (self.high - self.low), 0.0), 1.0)

    def marks(self) -> list[float]:
        if self.is_logarithmic:
            return logarithmic_ticks(10**self.low, 10**self.high)
        return ticks(self.low, self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Where values lie on a chart [px]."""

    x: _Axis
    y: _Axis

    @classmethod
    def of(cls, chart: Chart) -> _Frame:
        wide = [v for s in chart.series for v in (*s.x, *_both(s.x_bounds))]
        tall = [v for s in chart.series for v in (*s.y, *_both(s.y_bounds))]
        if not chart.is_y_logarithmic:
            tall = [0.0, *(1.05 * v for v in tall)]
        x_range, y_range = chart.x_range or _span(wide), chart.y_range or _span(tall)
        return cls(
            x=_Axis.over(*x_range, is_logarithmic=chart.is_x_logarithmic),
            y=_Axis.over(*y_range, is_logarithmic=chart.is_y_logarithmic),
        )

    def across(self, value: float) -> float:
        return round(LEFT + self.x.share(value) * (WIDTH - LEFT - RIGHT), 1)

    def down(self, value: float) -> float:
        return round(FLOOR - self.y.share(value) * (FLOOR - TOP), 1)


def _both(bounds: Sequence[tuple[float, float]]) -> Iterator[float]:
    return (value for pair in bounds for value in pair)


def _drawn(chart: Chart) -> str:
    frame = _Frame.of(chart)
    parts = [f'<text class="title" x="{LEFT}" y="20">{escape(chart.title)}</text>']
    parts += _axes(chart, frame)
    for number, series in enumerate(chart.series):
        parts.append(_curve(series, frame, COLOURS[number % len(COLOURS)]))
    return "".join([*parts, *_below(chart)])


def _axes(chart: Chart, frame: _Frame) -> Iterator[str]:
    for value in frame.x.marks():
        x = frame.across(value)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{FLOOR}"/>'
        yield f'<text x="{x}" y="{FLOOR + 16}" text-anchor="middle">{value:.6g}</text>'
    for value in frame.y.marks():
        y = frame.down(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{LEFT - 7}" y="{y + 4}" text-anchor="end">{value:.6g}</text>'
    yield f'<path class="axis" fill="none" d="M{LEFT},{TOP}V{FLOOR}H{WIDTH - RIGHT}"/>'
    middle, centre = (TOP + FLOOR) / 2, (LEFT + WIDTH - RIGHT) / 2
    yield (
        f'<text x="{centre}" y="{FLOOR + 35}" text-anchor="middle">{escape(chart.x_label)}</text>'
        f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">'
        f"{escape(chart.y_label)}</text>"
    )


def _curve(series: Series, frame: _Frame, colour: str) -> str:
    if series.shape == "vertical":
        x = frame.across(series.x[0])
        return (
            f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{FLOOR}" stroke="{colour}" '
            'stroke-width="2" stroke-dasharray="5 4"/>'
        )
    if series.shape == "points":
        return "".join(_points(series, frame, colour))
    points = [
        (frame.across(x), frame.down(y))
        for x, y in zip(series.x, series.y, strict=True)
        if math.isfinite(x) and math.isfinite(y)
    ]
    if not points:
        return ""
    path = f"M{points[0][0]},{points[0][1]}"
    for x, y in points[1:]:
        path += f"H{x}V{y}" if series.shape in ("steps", "area") else f"L{x},{y}"
    if series.shape == "area":
        path += f"V{FLOOR}H{points[0][0]}Z"
        return f'<path d="{path}" fill="{colour}" fill-opacity="0.35"/>'
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _points(series: Series, frame: _Frame, colour: str) -> Iterator[str]:
    """Yield a mark a point, lines over its bounds, and its label."""
    for place, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        if not (math.isfinite(x) and math.isfinite(y)):
            continue
        at_x, at_y = frame.across(x), frame.down(y)
        path = ""
        if series.x_bounds:
            low, high = (frame.across(bound) for bound in series.x_bounds[place])
            path += f"M{low},{at_y}H{high}"
        if series.y_bounds:
            low, high = (frame.down(bound) for bound in series.y_bounds[place])
            path += f"M{at_x},{low}V{high}"
        if path:
            yield f'<path d="{path}" stroke="{colour}" stroke-opacity="0.45"/>'
        yield f'<circle cx="{at_x}" cy="{at_y}" r="4" fill="{colour}"/>'
        if series.labels:
            yield _label(series.labels[place], at_x, at_y)


def _label(text: str, at_x: float, at_y: float) -> str:
    """Return a text to the right of a point, or to the left where there is no room."""
    x, anchor = at_x + 7, "start"
    if x + LETTER * len(text) > WIDTH:
        x, anchor = at_x - 7, "end"
    return f'<text x="{x}" y="{at_y - 6}" text-anchor="{anchor}">{escape(text)}</text>'


def _legend(chart: Chart) -> list[list[tuple[int, float]]]:
    """Return the legend's rows: which series at which x [px]; none for a single series."""
    rows: list[list[tuple[int, float]]] = []
    x = float(WIDTH)
    for number, series in enumerate(chart.series if len(chart.series) > 1 else ()):
        width = 34 + LETTER * len(series.name)
        if x + width > WIDTH:
            rows.append([])
            x = float(LEFT)
        rows[-1].append((number, x))
        x += width
    return rows


def _height(chart: Chart) -> int:
    return HEIGHT + LINE_HEIGHT * (len(chart.notes) + len(_legend(chart)))


def _below(chart: Chart) -> Iterator[str]:
    """Yield the legend and the notes."""
    y = HEIGHT
    for row in _legend(chart):
        for number, x in row:
            series, colour = chart.series[number], COLOURS[number % len(COLOURS)]
            dash = ' stroke-dasharray="5 4"' if series.shape == "vertical" else ""
            yield (
                f'<line x1="{x}" x2="{x + 14}" y1="{y}" y2="{y}" stroke="{colour}" '
                f'stroke-width="4"{dash}/><text x="{x + 19}" y="{y + 4}">'
                f"{escape(series.name)}</text>"
            )
        y += LINE_HEIGHT
    for note in chart.notes:
        yield f'<text x="{LEFT}" y="{y + 4}">{escape(note)}</text>'
        y += LINE_HEIGHT


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Return what the finite values span, widened where they are all one."""
    finite = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    return (low, high) if high > low else (low, low + 1.0)
