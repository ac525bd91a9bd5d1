"""The user's own shared cluster under the list of what could be rented, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from advisor.quantities import digits, usd_text
from advisor.records.job_tables import left_out_note
from advisor.words import hours, interval_text


def show(record: Mapping[str, Any], console: Console) -> None:
    """Print ``record["own_cluster"]`` of a comparison: what the job meets there, rent or wait."""
    ways = record["ways"]
    parts: list[RenderableType] = [Text(f"\n{_cluster_line(record)}"), _table(ways)]
    for way in ways:
        parts.append(
            Text(f"\nrent or wait, against {_devices(way['devices'])} of your own cluster:")
        )
        parts.append(_rents(way["rent_or_wait"]))
    beyond = max(way["beyond_trace_fraction"] for way in ways)
    if beyond > 0:
        parts.append(
            Text(
                f"note: {beyond:.0%} of the insertions ended after the trace did, on an emptier "
                "cluster than they would have met"
            )
        )
    console.print(Group(*parts))


def own_words(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``record["own_cluster"]`` in the words of the tables, for pages."""
    return {
        "line": _cluster_line(record),
        "ways": [
            {
                "devices": _devices(way["devices"]),
                "computing": list(hours(way["duration_h"])),
                "waits": _spread(way["delay_h"]),
                "done": _spread(way["completion_h"]),
                "rents": [
                    {"rank": rent["rank"], "saves": saved_words(rent), "verdict": verdict(rent)}
                    for rent in way["rent_or_wait"]
                ],
            }
            for way in record["ways"]
        ],
    }


def saved_words(rent: Mapping[str, Any]) -> str:
    """Say how much earlier a rented candidate is done, and what it costs more."""
    saved = rent["saved_h"]
    when = f"{digits(saved)} h earlier" if saved > 0 else f"{digits(-saved)} h later"
    return (
        f"{when} (earlier in {rent['earlier_probability']:.0%}), "
        f"{usd_text(abs(rent['extra_cost_usd']))} "
        + ("more" if rent["extra_cost_usd"] >= 0 else "less")
    )


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"


def _cluster_line(record: Mapping[str, Any]) -> str:
    cluster, trace = record["cluster"], record["trace"]
    recorded = trace["recorded_mean_delay_h"]
    left_out = left_out_note(trace["left_out"])
    return (
        f"your cluster: {cluster['nodes']} x {cluster['devices_per_node']} "
        f"{cluster['accelerator']}, {cluster['policy']}; {trace['source']}: {trace['jobs']} jobs"
        + (f" ({left_out})" if left_out else "")
        + f", load {trace['load_fraction']:.2f}; its jobs waited "
        f"{trace['simulated_mean_delay_h']:.2f} h on average as simulated"
        + (" (not recorded)" if recorded is None else f", {recorded:.2f} h as recorded")
    )


def _table(ways: list[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("devices", justify="right")
    table.add_column(f"computing ({ways[0]['duration_h']['coverage']:.0%})", justify="right")
    table.add_column("waits (10-90 %)", justify="right")
    table.add_column("done after (10-90 %)", justify="right")
    has_deadline = ways[0]["miss_probability"] is not None
    if has_deadline:
        table.add_column("late", justify="right")
    for way in ways:
        cells = [
            str(way["devices"]),
            interval_text(hours(way["duration_h"])),
            _spread(way["delay_h"]),
            _spread(way["completion_h"]),
        ]
        if has_deadline:
            cells.append(f"{way['miss_probability']:.0%}")
        table.add_row(*(escape(cell) for cell in cells))
    return table


def _spread(levels: Mapping[str, float]) -> str:
    low, middle, high = (f"{levels[p]:.2f}" for p in ("p10", "p50", "p90"))
    return f"{middle} h ({low}-{high})"


def verdict(rent: Mapping[str, Any]) -> str:
    """Say for which worth of an hour renting is right; ``rent`` is a ``RentOrWait`` as record."""
    saved, extra = rent["saved_h"], rent["extra_cost_usd"]
    if saved > 0:
        if extra <= 0:
            return "rent: earlier at no extra cost"
        return f"rent if an hour is worth more than {usd_text(rent['break_even_usd_per_h'])}"
    if extra < 0 and saved < 0:
        return f"rent if an hour is worth less than {usd_text(extra / saved)}"
    return "wait: your cluster is not slower"


def _rents(rents: list[Mapping[str, Any]]) -> Table:
    """One line a candidate of the list: what renting saves, what for, and the verdict."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for rent in rents:
        table.add_row(str(rent["rank"]), saved_words(rent), verdict(rent))
    return table
