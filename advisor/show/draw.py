"""Charts as text for a terminal, by plotext: in colour where it is shown, in ASCII where need be.

plotext is given positions on a linear scale, the logarithms of a logarithmic axis, with the
chart's own ticks. Its figure is one for the whole process; it is emptied before every chart.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from advisor.collectors.errors import printable
from advisor.show.charts import TOGETHER, Axis, Chart, Point, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LEAST_WIDTH: Final = 40
# Lines of a chart: one with its legend on a screen of 24 lines, or two of several.
_HEIGHT: Final = 20
_HEIGHT_OF_MANY: Final = 11
# Of the 256 colours of terminals, those nearest to the pictures': legible on black and on white.
TEXT_PLOT_COLOURS: Final = (33, 166, 35, 169, 178, 74, 203)
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
        colour = _MINOR if is_plain else TEXT_PLOT_COLOURS[place % len(TEXT_PLOT_COLOURS)]
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


# Charts as pictures, by matplotlib: PNG, SVG and PDF files, and the axes of a notebook.
#
# matplotlib is imported when something is drawn, and pyplot only for axes that a notebook shows.


SUFFIXES: Final = (".png", ".svg", ".pdf")
# Okabe and Ito's colours: told apart by readers with any colour vision.
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
MINOR: Final = "#8a8a8a"
_INK: Final = "#333333"
_WIDTH_INCH: Final = 7.6
_HEIGHT_INCH: Final = 3.4
_LEGEND_INCH: Final = 0.22  # a line below a chart
_COLUMNS: Final = 3  # of a legend
_DPI: Final = 150
# Where a label may stand beside its point, the best first: right or left of it, above or below.
_PLACES: Final = tuple(
    (x, y, side) for y in (4, -11, 15, -22, 26, -33) for x, side in ((4, "left"), (-4, "right"))
)  # [points]
_TICKS: Final = 9
_GRID: Final = "#dddddd"
_PAPER: Final = "#ffffff"
# Text stays text in an SVG, and two drawings of one chart are one file.
_SETTINGS: Final = {
    "svg.fonttype": "none", "svg.hashsalt": "advisor", "font.size": 9.0,
    "figure.facecolor": _PAPER, "axes.facecolor": _PAPER,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color",
                     "ytick.color"), _INK),
}  # fmt: skip
# On a page: the colour of a light scheme, and of a dark one.
_SCHEMES: Final = {
    _INK: ("ink", "#dddddd"),
    _GRID: ("grid", "#333333"),
    _PAPER: ("paper", "#16181c"),
}


def new_axes() -> Axes:
    """Return axes that a notebook shows and pyplot knows."""
    from matplotlib import pyplot as plt

    axes: Axes = plt.subplots(figsize=(_WIDTH_INCH, 4.5), layout="constrained")[1]
    return axes


def figure(charts: Sequence[Chart]) -> Figure:
    """Return the charts one below the other as one figure."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    lines = [len(one.notes) + _legend_rows(one) for one in charts]
    heights = [_HEIGHT_INCH + _LEGEND_INCH * count for count in lines]
    with rc_context(_SETTINGS):
        drawn = Figure(figsize=(_WIDTH_INCH, sum(heights)), layout="constrained")
        places = drawn.subplots(len(charts), 1, squeeze=False, height_ratios=heights)[:, 0]
        for chart, axes in zip(charts, places, strict=True):
            draw(chart, axes)
    return drawn


def write_charts(charts: Sequence[Chart], file: Path | io.BytesIO, suffix: str) -> None:
    """Write the charts as one picture."""
    from matplotlib import rc_context

    no_day = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with rc_context(_SETTINGS):
        figure(charts).savefig(file, format=suffix[1:], dpi=_DPI, metadata=no_day[suffix])


def svg(charts: Sequence[Chart]) -> str:
    """Return the charts as an SVG element for an HTML page, in the reader's colour scheme."""
    file = io.BytesIO()
    write_charts(charts, file, ".svg")
    text = file.getvalue().decode()
    text = re.sub(
        "|".join(_SCHEMES), lambda found: f"var(--{_SCHEMES[found[0]][0]},{found[0]})", text
    )
    dark = ";".join(f"--{name}:{colour}" for name, colour in _SCHEMES.values())
    style = f"<style>@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
    return text[text.index("<svg") :].replace(">", f">{style}", 1)


def draw(chart: Chart, axes: Axes) -> Axes:
    """Draw a chart into axes, and return them."""
    across, up = chart.x, chart.y
    for place, series in enumerate(chart.series):
        is_plain = series.is_minor or series.shape == "vertical"
        colour = MINOR if is_plain else COLOURS[place % len(COLOURS)]
        _curve(series, axes, colour, above=2 + place)
    _scale(across, axes.xaxis, axes.set_xscale, axes.set_xlim)
    _scale(up, axes.yaxis, axes.set_yscale, axes.set_ylim)
    axes.set(xlabel=_plain(across.label), ylabel=_plain(up.label))
    axes.set_title(_plain(chart.title), loc="left", fontweight="bold", color=_INK)
    axes.grid(visible=True, color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    _below(chart, axes)
    _set_apart(axes, [one for series in chart.series for one in series.points()])
    return axes


def _plain(words: str) -> str:
    """Return a text that matplotlib shows as it stands: no formula, one line."""
    return printable(words.replace(TOGETHER, " ")).replace("$", r"\$")


def _scale(axis: Axis, drawn: Any, set_scale: Any, set_limits: Any) -> None:
    """Give one direction its span and its ticks."""
    set_scale("log" if axis.is_logarithmic else "linear")
    set_limits(axis.low, axis.high)
    ticks = axis.ticks(_TICKS)
    drawn.set_ticks([value for value, _ in ticks], labels=[text for _, text in ticks])
    drawn.set_ticks([], minor=True)


def _curve(series: Series, axes: Axes, colour: str, *, above: int) -> None:
    points = list(series.points())
    x, y = [one.x for one in points], [one.y for one in points]
    style: dict[str, Any] = {"color": colour, "label": _plain(series.name), "zorder": above}
    match series.shape:
        case "vertical":
            axes.axvline(series.x[0], linestyle="--", **style)
        case "points":
            _points(points, axes, style)
        case "area":
            axes.fill_between(x, y, step="post", alpha=0.35, linewidth=0, **style)
        case "steps":
            axes.plot(x, y, drawstyle="steps-post", **style)
        case _:
            axes.plot(x, y, **style)


def _points(points: Sequence[Point], axes: Axes, style: dict[str, Any]) -> None:
    """Draw a mark a point, lines over its bounds, and its label."""
    reach: dict[str, Any] = {
        f"{axis}err": list(zip(*(_reach(one, axis) for one in points), strict=True))
        for axis in ("x", "y")
        if points and getattr(points[0], f"{axis}_bounds") is not None
    }
    axes.errorbar(
        [one.x for one in points], [one.y for one in points], **reach, fmt="o", markersize=5,
        elinewidth=0.8, capsize=0, ecolor=f"{style['color']}73", **style,
    )  # fmt: skip
    for one in points:
        if one.label:
            axes.annotate(
                _plain(one.label), (one.x, one.y), xytext=(4, 4), textcoords="offset points",
                fontsize=8, color=_INK, zorder=style["zorder"] + 1, in_layout=False,
            )  # fmt: skip


def _set_apart(axes: Axes, points: Sequence[Point]) -> None:
    """Put labels of points where they cover no mark and no other label, from left to right."""
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

    texts = (one for one in axes.texts if isinstance(one, Annotation))
    labels = [one for one in texts if one.xycoords == "data"]
    if not labels:
        return
    drawn: Any = axes.get_figure()
    with warnings.catch_warnings(action="ignore"):  # who writes the picture says it
        drawn.draw_without_rendering()  # only now it is known where the axes are
    marks = axes.transData.transform([(one.x, one.y) for one in points])
    taken = [Bbox.from_bounds(x - 3, y - 3, 6, 6) for x, y in marks]
    for one in sorted(labels, key=lambda label: (label.xy[0], -label.xy[1])):
        for x, y, side in (*_PLACES, _PLACES[0]):
            one.set(position=(x, y), horizontalalignment=side)
            box = one.get_window_extent().padded(1)
            is_inside = box.x0 >= 0 and box.x1 <= drawn.bbox.x1
            if is_inside and not box.count_overlaps(taken):
                break
        taken.append(box)


def _reach(point: Point, axis: str) -> tuple[float, float]:
    """Return how far the bounds lie below and above a point."""
    low, high = getattr(point, f"{axis}_bounds")
    value = getattr(point, axis)
    return value - low, high - value


def _legend_rows(chart: Chart) -> int:
    """Return how many rows the legend has; a single series needs none."""
    return -(-len(chart.series) // _COLUMNS) if len(chart.series) > 1 else 0


def _below(chart: Chart, axes: Axes) -> None:
    """Draw the legend, where there is more than one curve, and the notes."""
    if len(chart.series) > 1:
        axes.legend(
            loc="upper left", bbox_to_anchor=(0.0, -0.16), ncols=_COLUMNS, frameon=False,
            borderaxespad=0.0, fontsize=8,
        )  # fmt: skip
    below = -40 - 13 * _legend_rows(chart)
    for place, note in enumerate(chart.notes):
        axes.annotate(
            _plain(note), (0.0, 0.0), xycoords="axes fraction", xytext=(0, below - 12 * place),
            textcoords="offset points", fontsize=8, color=_INK, annotation_clip=False,
        )  # fmt: skip
