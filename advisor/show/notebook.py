"""A recommendation in a notebook: its list as a table, and time against cost as a chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

from advisor.collectors.errors import counted
from advisor.errors import UsageError
from advisor.show import pictures
from advisor.show.answer_charts import front_chart
from advisor.words import (
    cost_text,
    listed,
    machines_words,
    picked_as_words,
    place_words,
    prices_words,
    time_text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_COLUMNS: Final = ("", "configuration", "where", "time", "cost", "limited by", "picked as")
_STYLE: Final = "text-align:left;white-space:nowrap"


def recommendation_html(record: Mapping[str, Any]) -> str:
    """Return the record of ``advisor recommend --json`` as HTML without scripts."""
    shown = listed(record)
    choice, *more = record.get("summary") or [""]
    parts = [f"<p>{escape(headline_of(record))}</p>"]
    if choice:
        parts.append(f"<p><b>{escape(choice)}</b> {escape(' '.join(more))}</p>")
    if not record["front"] and shown:
        parts.append("<p>Nothing satisfies the constraints. The nearest misses:</p>")
    if shown:
        here = [record["here"]] if record.get("here") else []
        parts += [_table(record, [*shown, *here]), pictures.svg(front_chart(record, names=True))]
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


def headline_of(record: Mapping[str, Any]) -> str:
    """Return what was asked about, and how much was looked at, in one line."""
    prices = prices_words(listed(record))
    return (
        f"{record['run']}: {counted(record['job']['total_steps'], 'step')}; "
        f"{len(record['front'])} of {record['considered']:,} candidates"
        f"{f' ({prices})' if prices else ''}"
    )


def plot_front(record: Mapping[str, Any], axes: Axes | None = None) -> Axes:
    """Draw time against cost with matplotlib; return the axes.

    ``record``: of ``advisor recommend --json``.

    Raises UsageError if there is nothing to draw.
    """
    charts = front_chart(record, names=True)
    if not charts:
        raise UsageError("there is no candidate to plot", hint="relax the constraints")
    return pictures.draw(charts[0], pictures.new_axes() if axes is None else axes)


def _table(record: Mapping[str, Any], candidates: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f'<th style="{_STYLE}">{name}</th>' for name in _COLUMNS)
    rows = "".join(_row(record, one) for one in candidates)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(record: Mapping[str, Any], candidate: Mapping[str, Any]) -> str:
    parts = candidate["configuration"]
    rank = candidate["rank"] or "here"  # this machine has no place in the list
    cells = (
        str(rank),
        machines_words(parts),
        place_words(parts, candidate["completion"]),
        time_text(candidate),
        cost_text(candidate),
        candidate["bottleneck"] + (" *" if candidate["extrapolating"] else ""),
        picked_as_words(record, rank),
    )
    title = escape("; ".join(candidate["reasons"]), quote=True)
    texts = "".join(f'<td style="{_STYLE}">{escape(cell)}</td>' for cell in cells)
    return f'<tr title="{title}">{texts}</tr>'
