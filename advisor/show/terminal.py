"""Charts as text for a terminal, by plotext: in colour where it is shown, in ASCII where need be.

plotext is given positions on a linear scale, the logarithms of a logarithmic axis, with the
chart's own ticks. Its figure is one for the whole process; it is emptied before every chart.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from advisor.collectors.errors import printable
from advisor.show.charts import TOGETHER, Axis, Chart, Series
from advisor.show.palette import HUES, hue_of

LEAST_WIDTH: Final = 40
# Lines of a chart: one with its legend on a screen of 24 lines, or two of several.
_HEIGHT: Final = 20
_HEIGHT_OF_MANY: Final = 11
_MINOR: Final = 245
# Curves without colours: told apart by their mark.
_MARKS: Final = ("*", "+", "o", "x", "#", "%", "@")
_COLUMNS_A_TICK: Final = 8
_LINES_A_TICK: Final = 2
_TRAILING: Final = re.compile(r"(?: |\x1b\[0m)+$")
_ASCII: Final = str.maketrans("─│┌┐└┘├┤┬┴┼", "-|+++++++++")


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What a terminal can show."""

    width: int = 80
    is_coloured: bool = False  # write escape sequences; without, curves differ by their marks
    is_unicode: bool = True  # draw with Braille and box characters; without, with ASCII alone


def charts_text(charts: Sequence[Chart], style: Style) -> str:
    """Return the charts one below the other, no line wider than the terminal."""
    height = _HEIGHT if len(charts) == 1 else _HEIGHT_OF_MANY
    drawn = "\n\n".join("\n".join(_lines(chart, style, height)) for chart in charts)
    if style.is_unicode:
        return drawn
    return drawn.translate(_ASCII).encode("ascii", "replace").decode()


def _lines(chart: Chart, style: Style, height: int) -> Iterator[str]:
    """Yield title, what the vertical axis means, the drawing, and what the marks mean."""
    width = max(style.width, LEAST_WIDTH)
    yield from _wrapped(chart.title, width)
    yield from _wrapped(chart.y_label, width)
    yield from _drawn(chart, style, width, height - 3)
    yield f"{printable(chart.x_label)[:width]:>{width}}"
    yield from _legend(chart, style, width)
    for note in chart.notes:
        yield from _wrapped(note, width)


def _drawn(chart: Chart, style: Style, width: int, height: int) -> list[str]:
    import plotext

    figure = plotext.figure
    plotext.terminal.limit(False, False)  # a file or a pipe may be wider than what holds it
    figure.clear()
    figure.plot_size(width, height)
    figure.theme("simple" if style.is_coloured else "colorless")
    for axis, side in (("x", "upper"), ("y", "right")):
        figure.axes(False, axis=axis, side=side)
    across, up = chart.x, chart.y
    _text_plot_scale(figure.ruler("x"), across, width // _COLUMNS_A_TICK)
    _text_plot_scale(figure.ruler("y"), up, height // _LINES_A_TICK)
    pens = [_Pen.of(chart, place, style) for place in range(len(chart.series))]
    for series, pen in zip(chart.series, pens, strict=True):
        for signal in _signals(figure, series, pen, across, up):
            figure.draw(signal)
    for x, y, marker in _labels(chart, pens, (width, height)):
        figure.draw(figure.signal([x], [y], marker=marker))
    drawn = figure.build().string(not style.is_coloured)
    figure.clear()
    end = "\x1b[0m" if style.is_coloured else ""
    return [_TRAILING.sub("", line) + end for line in drawn.rstrip("\n").split("\n")]


def _text_plot_scale(ruler: Any, axis: Axis, most: int) -> None:
    ticks = axis.ticks(most)
    ruler.ticks([_at(axis, value) for value, _ in ticks], [label for _, label in ticks])
    ruler.lim(_at(axis, axis.low), _at(axis, axis.high))


def _at(axis: Axis, value: float) -> float:
    """Return where a value lies on plotext's linear scale, within the axis."""
    value = min(max(value, axis.low), axis.high)
    return math.log10(value) if axis.is_logarithmic else value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pen:
    """How a series is drawn: colour (none without), mark of its curve, horizontal and vertical."""

    colour: int | None
    mark: str
    is_unicode: bool

    @classmethod
    def of(cls, chart: Chart, place: int, style: Style) -> _Pen:
        is_alone = len(chart.series) == 1
        mark = _MARKS[place % len(_MARKS)]
        if style.is_unicode and (style.is_coloured or is_alone):
            mark = "braille"
        series = chart.series[place]
        is_plain = series.is_minor or series.shape == "vertical"
        colour = _MINOR if is_plain else HUES[hue_of(series.role, place)][2]
        return cls(
            colour=colour if style.is_coloured else None, mark=mark, is_unicode=style.is_unicode
        )

    def marker(self, symbol: str) -> Any:
        import plotext

        return plotext.marker(symbol, plotext.pixel(foreground=self.colour))

    def line(self, *, is_upright: bool) -> Any:
        return self.marker(("│" if is_upright else "─") if self.is_unicode else "-|"[is_upright])


def _signals(figure: Any, series: Series, pen: _Pen, across: Axis, up: Axis) -> Iterator[Any]:
    """Yield what plotext draws of a series, but for the labels of its points."""
    if series.shape == "vertical":
        at = _at(across, series.x[0])
        ends = [_at(up, up.low), _at(up, up.high)]
        yield figure.signal([at, at], ends, marker=pen.line(is_upright=True)).lines(True)
        return
    points = list(series.points())
    x, y = [_at(across, one.x) for one in points], [_at(up, one.y) for one in points]
    if series.shape == "points":
        yield from _bounds(figure, series, pen, across, up)
        if not series.labels:
            yield figure.signal(x, y, marker=_label("", pen))
        return
    if series.shape in ("steps", "area"):
        x, y = x[:1] + [v for v in x[1:] for _ in (0, 1)], [v for v in y for _ in (0, 1)][:-1]
    signal = figure.signal(x, y, marker=pen.marker(pen.mark)).lines(True)
    yield signal.fillx() if series.shape == "area" else signal


def _bounds(figure: Any, series: Series, pen: _Pen, across: Axis, up: Axis) -> Iterator[Any]:
    """Yield the bounds of points that are picked: of all, they would hide one another."""
    for one in series.points() if not series.is_minor else ():
        at_x, at_y = _at(across, one.x), _at(up, one.y)
        if one.x_bounds is not None:
            ends = [_at(across, bound) for bound in one.x_bounds]
            yield figure.signal(ends, [at_y] * 2, marker=pen.line(is_upright=False)).lines(True)
        if one.y_bounds is not None:
            ends = [_at(up, bound) for bound in one.y_bounds]
            yield figure.signal([at_x] * 2, ends, marker=pen.line(is_upright=True)).lines(True)


def _labels(
    chart: Chart, pens: Sequence[_Pen], size: tuple[int, int]
) -> Iterator[tuple[float, float, Any]]:
    """Yield where plotext draws which label; one that would hide another moves to its right.

    Those that are picked stand where they belong.
    """
    across, up = chart.x, chart.y
    column = (_at(across, across.high) - _at(across, across.low)) / size[0]
    line = (_at(up, up.high) - _at(up, up.low)) / size[1]
    taken: set[tuple[int, int]] = set()
    order = sorted(range(len(pens)), key=lambda place: chart.series[place].is_minor)
    for series, pen in ((chart.series[place], pens[place]) for place in order):
        for one in series.points() if series.labels else ():
            x, y = _at(across, one.x), _at(up, one.y)
            cells = _cells(one.label, round(x / column), round(y / line))
            while taken & cells:
                x += column
                cells = _cells(one.label, round(x / column), round(y / line))
            taken |= cells
            yield min(x, _at(across, across.high)), y, _label(one.label, pen)


def _cells(label: str, column: int, line: int) -> set[tuple[int, int]]:
    """Return the cells that a label takes, with one beside it."""
    return {(column + place, line) for place in range(len(label) + 1)}


def _label(label: str, pen: _Pen) -> Any:
    """Return the mark of a point: its label in its colour, centred, or a dot."""
    import plotext

    if len(label) < 2:
        return pen.marker(label or ("●" if pen.is_unicode else "o"))
    return plotext.marker(plotext.colorize(label, plotext.pixel(foreground=pen.colour)), ha=0)


def _legend(chart: Chart, style: Style, width: int) -> Iterator[str]:
    """Yield lines that say which mark is which series; none for a single one."""
    line, length = "", 0
    for place, series in enumerate(chart.series if len(chart.series) > 1 else ()):
        if series.is_minor:
            continue
        mark, colour = _sample(chart, place, style)
        words = printable(f"{mark} {series.name}")[:width]
        if length and length + 3 + len(words) > width:
            yield line
            line, length = "", 0
        line += ("   " if length else "") + _painted(words, len(mark), colour)
        length += (3 if length else 0) + len(words)
    if line:
        yield line


def _sample(chart: Chart, place: int, style: Style) -> tuple[str, int | None]:
    """Return what stands for a series: the labels of its points, or a piece of its curve."""
    pen, series = _Pen.of(chart, place, style), chart.series[place]
    if series.shape == "points" and any(series.labels):
        return ", ".join(series.labels), pen.colour
    if series.shape == "vertical":
        return ("│" if style.is_unicode else "|"), pen.colour
    if series.shape == "points":
        return ("●" if style.is_unicode else "o"), pen.colour
    return ("━" if pen.mark == "braille" else pen.mark), pen.colour


def _painted(words: str, length: int, colour: int | None) -> str:
    """Return words whose first letters have a colour."""
    return (
        words if colour is None else f"\x1b[38;5;{colour}m{words[:length]}\x1b[0m{words[length:]}"
    )


def _wrapped(words: str, width: int) -> list[str]:
    lines = textwrap.wrap(
        _shown(words), width, break_on_hyphens=False, expand_tabs=False, replace_whitespace=False
    )
    return [line.replace(TOGETHER, " ") for line in lines]


def _shown(words: str) -> str:
    """Return a text without what a terminal would obey."""
    return TOGETHER.join(printable(piece) for piece in words.split(TOGETHER))
