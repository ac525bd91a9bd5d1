"""A recommendation in a notebook: its list as a table, and time against cost as a chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

from advisor.errors import UsageError
from advisor.shown import words
from advisor.shown.charts import Chart, Series, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIME_LABEL: Final = "training time (h)"
COST_LABEL: Final = "cost (USD)"
_COLUMNS: Final = ("", "configuration", "where", "time", "cost", "limited by", "picked as")
_STYLE: Final = "text-align:left;white-space:nowrap"


def recommendation_html(record: Mapping[str, Any]) -> str:
    """Return the record of ``advisor recommend --json`` as HTML without scripts."""
    shown = record["front"] or record["nearest"]
    choice, *more = record.get("summary") or [""]
    parts = [f"<p>{escape(headline(record))}</p>"]
    if choice:
        parts.append(f"<p><b>{escape(choice)}</b> {escape(' '.join(more))}</p>")
    if not record["front"]:
        parts.append("<p>Nothing satisfies the constraints. The nearest misses:</p>")
    if shown:
        here = [record["here"]] if record.get("here") else []
        parts += [_table(record, [*shown, *here]), svg([chart(record)])]
    parts += [f"<p>{escape(line)}</p>" for line in _besides(record)]
    return f"<div>{''.join(parts)}</div>"


def _besides(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield what holds for all rows, what would change the choice, and the notes."""
    if record.get("shared_reasons"):
        yield f"All of them: {'; '.join(record['shared_reasons'])}"
    for change in record.get("changes", ()):
        yield (
            f"{change['do']}: {change['time_factor']:.2g} times the time, "
            f"{change['cost_factor']:.2g} times the cost of the best value"
        )
    yield from (str(note) for note in record["notes"])


def headline(record: Mapping[str, Any]) -> str:
    """Return what was asked about, and how much was looked at, in one line."""
    return (
        f"{record['run']}: {record['job']['total_steps']:,.0f} steps; "
        f"{len(record['front'])} of {record['considered']:,} candidates "
        f"(prices of {record['catalogue']['as_of']})"
    )


def chart(record: Mapping[str, Any], *, names: bool = False) -> Chart:
    """Return time against cost, both logarithmic, a numbered point a row of an answer.

    Parameters
    ----------
    record : mapping
        Of ``advisor recommend --json``; each of its picks has a colour of its own.
    names : bool, default False
        Write the machines at the points in place of the ranks.
    """
    shown = record["front"] or record["nearest"]
    picked: dict[str, list[Mapping[str, Any]]] = {}
    for one in shown:
        picked.setdefault(words.picked_as(record, one["rank"]), []).append(one)
    order = sorted(picked, key=lambda label: (label != "", label))  # the others lie below
    return Chart(
        title="Time against cost",
        x_label=TIME_LABEL,
        y_label=COST_LABEL,
        series=[
            _points(label or "other candidates", picked[label], names=names) for label in order
        ],
        is_x_logarithmic=True,
        is_y_logarithmic=True,
    )


def _points(name: str, rows: Sequence[Mapping[str, Any]], *, names: bool) -> Series:
    times, costs = ([one[part] for one in rows] for part in ("training_time_h", "cost_usd"))
    return Series(
        name=name,
        x=[one["value"] for one in times],
        y=[one["value"] for one in costs],
        x_bounds=[(one["low"], one["high"]) for one in times],
        y_bounds=[(one["low"], one["high"]) for one in costs],
        labels=[words.inside(one["configuration"]) if names else str(one["rank"]) for one in rows],
        shape="points",
    )


def plot(candidates: Sequence[Mapping[str, Any]], axes: Axes | None = None) -> Axes:
    """Draw time against cost with matplotlib; return the axes.

    Parameters
    ----------
    candidates : sequence of records
    axes : matplotlib.axes.Axes, optional
        New ones by default.

    Raises
    ------
    UsageError
        If matplotlib is not installed, or there is nothing to draw.
    """
    if not candidates:
        raise UsageError("there is no candidate to plot", hint="relax the constraints")
    axes = _new_axes() if axes is None else axes
    from matplotlib.ticker import LogLocator, NullFormatter

    time, cost = ([one[name] for one in candidates] for name in ("training_time_h", "cost_usd"))
    x, y = ([one["value"] for one in column] for column in (time, cost))
    axes.errorbar(x, y, xerr=_reach(time), yerr=_reach(cost), fmt="o", elinewidth=0.8, capsize=2)
    for one, at_x, at_y in zip(candidates, x, y, strict=True):
        label = f"#{one['rank']} {words.machines(one['configuration'])}"
        axes.annotate(label, (at_x, at_y), xytext=(5, 5), textcoords="offset points", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel=TIME_LABEL, ylabel=COST_LABEL)
    axes.margins(x=0.2, y=0.1)  # room for the names
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    return axes


def _new_axes() -> Axes:
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise UsageError(
            "plots need matplotlib, which is not installed",
            hint="pip install 'cloud-config-advisor[plot]'",
        ) from error
    axes: Axes = plt.subplots(figsize=(7.5, 4.5), layout="constrained")[1]
    return axes


def _reach(estimates: Sequence[Mapping[str, float]]) -> tuple[list[float], list[float]]:
    """Return how far the intervals reach below and above."""
    below = [one["value"] - one["low"] for one in estimates]
    return below, [one["high"] - one["value"] for one in estimates]


def _table(record: Mapping[str, Any], candidates: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f'<th style="{_STYLE}">{name}</th>' for name in _COLUMNS)
    rows = "".join(_row(record, one) for one in candidates)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(record: Mapping[str, Any], candidate: Mapping[str, Any]) -> str:
    parts = candidate["configuration"]
    rank = candidate["rank"] or "here"  # this machine has no place in the list
    cells = (
        str(rank),
        words.machines(parts),
        words.where(parts, candidate["completion"]),
        words.time_text(candidate),
        words.cost_text(candidate),
        candidate["bottleneck"] + (" *" if candidate["extrapolating"] else ""),
        words.picked_as(record, rank),
    )
    title = escape("; ".join(candidate["reasons"]), quote=True)
    texts = "".join(f'<td style="{_STYLE}">{escape(cell)}</td>' for cell in cells)
    return f'<tr title="{title}">{texts}</tr>'
