"""``advisor runs compare``: what was predicted against what real runs took, over time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from advisor.cli.plot_option import Plot, check_drawable, show_plot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from advisor.train.drift import Comparison, Drift

_NOTE_ONE: Final = "advisor runs actual RUN g5.xlarge --time 3h12m"


def command(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Only this recorded run (default: all of them)."),
    ] = None,
    plot: Plot = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Compare predictions with real runs, and warn where errors drift.

    Runs are recorded by `advisor runs actual` and shown oldest first; each is compared with
    what was predicted before it.
    """
    from advisor.collectors import store
    from advisor.train.drift import drift, read

    found = read(*store.local_folders())
    if run is not None:
        name = store.find_run(run).name
        found = tuple(one for one in found if one.actual.run == name)
    summary = drift(found)
    record: dict[str, Any] = {
        "schema_version": 1,
        "runs": [one.to_row() for one in found],
        "drift": summary.to_record(),
    }
    if as_json:
        typer.echo(json.dumps(record, indent=2))
    elif not found:
        typer.echo(f"no real run was noted yet; {_NOTE_ONE}", err=True)
    else:
        typer.echo("\n".join([*_table(found), *_verdict(summary)]))
    if plot is not None:
        from advisor.shown.agreement import compared_charts

        charts = compared_charts(record)
        check_drawable(charts, plot, hint=f"note what a real run took: {_NOTE_ONE}")
        show_plot(charts, plot)


def _table(found: Sequence[Comparison]) -> list[str]:
    """Return a line a comparison under a header."""
    from advisor.quantities import hours_interval, hours_text

    rows = [("day", "run", "machines", "predicted", "took", "error", "")]
    for one in found:
        value, bounds = hours_interval(one.predicted_h)
        rows.append(
            (
                one.noted_at[:10],
                one.actual.run,
                f"{one.actual.count} x {one.actual.instance_type}",
                f"{value} ({bounds})",
                hours_text(one.time_h),
                f"{one.error_fraction:+.0%}",
                "" if one.is_inside else "outside",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _verdict(summary: Drift) -> list[str]:
    inside = summary.looked_at - summary.outside
    lines = [
        f"the last {summary.looked_at}: {inside} inside their interval, "
        f"median error {summary.median_error:+.0%}"
    ]
    return lines + warning(summary)


def warn_of_drift() -> None:
    """Say on stderr where the latest runs left their intervals too often, and what to do."""
    from advisor.collectors import store
    from advisor.train.drift import drift, read

    for line in warning(drift(read(*store.local_folders()))):
        typer.echo(line, err=True)


def warning(summary: Drift) -> list[str]:
    """Return what to say of a drift, and what to do; nothing where there is none."""
    if not summary.is_drifting:
        return []
    from advisor.train.drift import RETRAINING

    way = "too long" if summary.median_error > 0 else "too short"
    return [
        f"warning: {summary.outside} of the last {summary.looked_at} real runs ended outside "
        f"their interval (chance alone: {summary.probability:.2g}); predictions are {way}",
        f"learn from them: {RETRAINING}",
    ]
