"""The traced steps of a process, made into one: the least time of each operator counts.

A busy machine only ever adds to an operator's time; the sum is then scaled to the corrected step
without its loader.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from advisor.collectors.format import Columns, DeepStep, noun


def deep_step(
    facts: list[dict[str, Any]], step_s: float | None, updates: Sequence[dict[str, Any]] = (),
    least: Sequence[dict[str, Any]] = (),
) -> DeepStep | None:  # fmt: skip
    """Return the deep step that ``facts`` describe, or None without any.

    ``least``: rows of the operators of a rehearsed step with the least sizes there can be.

    ``step_s``: what the operators add up to: the corrected step without its loader; None leaves
    them as measured [s].
    """
    if not facts:
        return None
    first = facts[0]
    fastest = _fastest(facts)
    total_ns = sum(fastest.values())
    scale = 1e-9 if step_s is None or not total_ns else step_s / total_ns
    frontier, update = (
        tuple((*moment, 0)[:3] for moment in first.get(name, ()))  # of before: no storages
        for name in ("memory_frontier", "update_frontier")
    )
    return noun(
        DeepStep,
        first,
        peak_bytes=max((m[0] + m[1] for m in (*frontier, *update)), default=None),
        operators=_operators(
            first["operators"], [fastest[_key(row)] * scale for row in first["operators"]]
        ),
        least_operators=_operators(least, [0.0] * len(least)) if least else {},
        layers=_layers(facts, scale),
        memory_frontier=frontier,
        update_frontier=update,
        contention=_contention(facts),
        update_s=_update_s(updates, step_s),
    )


def _operators(rows: Sequence[dict[str, Any]], time_s: Sequence[float]) -> Columns:
    """Return the rows of a traced step; recordings of before know of no fused modules."""
    fused_by = tuple(row.get("fused_by", "") for row in rows)
    return {**_taken(rows, _OF_OPERATORS), "fused_by": fused_by, "time_s": tuple(time_s)}


def _taken(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(row[name] for row in rows) for name in names}


# Fields that are taken over as the hooks wrote them.
_OF_OPERATORS: Final = (
    "name", "phase", "count", "flop", "bytes", "fixed_bytes", "dtype", "shapes",
)  # fmt: skip
_OF_LAYERS: Final = (
    "name", "kind", "parameters", "forward_flop", "backward_flop", "output_bytes", "saved_bytes",
)  # fmt: skip


def _update_s(updates: Sequence[dict[str, Any]], step_s: float | None) -> float | None:
    """Return the least time of an update: a busy machine only adds; at most the step's own."""
    times = [float(one) for fact in updates[-1:] for one in fact.get("ns", ()) if one > 0]
    if not times:
        return None
    return min(min(times) * 1e-9, math.inf if step_s is None else step_s)


def _contention(facts: list[dict[str, Any]]) -> float:
    shares = [float(one.get("delay_ns", 0) / max(one.get("duration_ns", 0), 1)) for one in facts]
    return min(1.0, max(0.0, min(shares)))


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return row["name"], row["phase"], row["dtype"], row["shapes"], row.get("fused_by", "")


def _fastest(facts: list[dict[str, Any]]) -> dict[tuple[str, ...], float]:
    """Return for each row of the first trace its least time among the traces that have it."""
    times: dict[tuple[str, ...], float] = {}
    for fact in facts:
        counts = {_key(row): row for row in fact["operators"]}
        for row in facts[0]["operators"]:
            other = counts.get(_key(row))
            if other is not None and other["count"] == row["count"]:
                before = times.get(_key(row), float("inf"))
                times[_key(row)] = min(before, other["time_ns"])
    return times


def _layers(facts: list[dict[str, Any]], scale: float) -> Columns:
    """Return the layers of the first trace, with their least times among all that have them."""
    layers = facts[0]["layers"]
    same = [
        [all_[at] for fact in facts
         if at < len(all_ := fact["layers"]) and all_[at]["name"] == layer["name"]]
        for at, layer in enumerate(layers)
    ]  # fmt: skip
    return _taken(layers, _OF_LAYERS) | {
        f"{phase}_s": tuple(min(one[f"{phase}_ns"] for one in seen) * scale for seen in same)
        for phase in ("forward", "backward")
    }
