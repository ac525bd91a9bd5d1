"""Charts as pictures, by matplotlib: PNG, SVG and PDF files, and the axes of a notebook.

matplotlib is imported when something is drawn, and pyplot only for axes that a notebook shows.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from advisor.collectors.errors import printable
from advisor.show.charts import TOGETHER, Axis, Chart, Point, Series
from advisor.show.palette import HUES, SURFACES, hue_of, variables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES: Final = (".png", ".svg", ".pdf")
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
_INK, _GRID, _PAPER, _MINOR = (SURFACES[name][0] for name in ("text", "line", "paper", "quiet"))
# Text stays text in an SVG, and two drawings of one chart are one file.
_SETTINGS: Final = {
    "svg.fonttype": "none", "svg.hashsalt": "advisor", "font.size": 9.0,
    "figure.facecolor": _PAPER, "axes.facecolor": _PAPER,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color",
                     "ytick.color"), _INK),
}  # fmt: skip
# On a page: the name of a light scheme's colour.
_NAMES: Final = {str(values[0]): name for name, values in {**SURFACES, **HUES}.items()}


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
    text = re.sub("|".join(_NAMES), lambda found: f"var(--{_NAMES[found[0]]},{found[0]})", text)
    style = f"<style>@media(prefers-color-scheme:dark){{svg{{{variables(1)}}}}}</style>"
    return text[text.index("<svg") :].replace(">", f">{style}", 1)


def draw(chart: Chart, axes: Axes) -> Axes:
    """Draw a chart into axes, and return them."""
    across, up = chart.x, chart.y
    for place, series in enumerate(chart.series):
        is_plain = series.is_minor or series.shape == "vertical"
        colour = _MINOR if is_plain else HUES[hue_of(series.role, place)][0]
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
