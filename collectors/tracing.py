"""The traced steps of a process, made into one: the least time of each operator counts.

A busy machine only ever adds to an operator's time; the sum is then scaled to the corrected step
without its loader.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from advisor.collectors.recording import DeepStep, LayerCost, OperatorCount


def deep_step(
    facts: list[dict[str, Any]], step_s: float | None, updates: Sequence[dict[str, Any]] = ()
) -> DeepStep | None:
    """Return the deep step that ``facts`` describe, or None without any.

    Parameters
    ----------
    step_s : float or None
        What the operators add up to: the corrected step without its loader; None leaves them as
        measured. [s]
    """
    if not facts:
        return None
    first = facts[0]
    fastest = _fastest(facts)
    total_ns = sum(fastest.values())
    scale = 1e-9 if step_s is None or not total_ns else step_s / total_ns
    frontier = tuple(
        # Recordings of before count no storages.
        (int(moment[0]), int(moment[1]), int(moment[2]) if len(moment) > 2 else 0)
        for moment in first.get("memory_frontier", ())
    )
    operators = tuple(
        OperatorCount(
            time_s=fastest[_key(row)] * scale,
            fused_by=row.get("fused_by", ""),  # recordings of before have none
            **{name: row[name] for name in _OF_OPERATORS},
        )
        for row in first["operators"]
    )
    return DeepStep(
        peak_bytes=max((fixed + growing for fixed, growing, _ in frontier), default=None),
        operators=operators,
        layers=tuple(_layer(facts, index, scale) for index in range(len(first["layers"]))),
        flags=tuple(first["flags"]),
        gradient_bytes=first.get("gradient_bytes", 0),
        memory_frontier=frontier,
        contention=_contention(facts),
        update_s=_update_s(updates, step_s),
        **{name: first[name] for name in _OF_STEPS},
    )


# Fields that are taken over as the hooks wrote them.
_OF_OPERATORS: Final = (
    "name", "phase", "count", "flop", "bytes", "fixed_bytes", "dtype", "shapes",
)  # fmt: skip
_OF_STEPS: Final = (
    "samples", "micro_batches", "parameters", "trainable_parameters", "parameter_bytes",
    "optimizer_state_bytes", "saved_bytes", "precision", "device", "is_compiled",
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


def _layer(facts: list[dict[str, Any]], index: int, scale: float) -> LayerCost:
    layer = facts[0]["layers"][index]
    same = [
        fact["layers"][index]
        for fact in facts
        if index < len(fact["layers"]) and fact["layers"][index]["name"] == layer["name"]
    ]
    return LayerCost(
        forward_s=min(one["forward_ns"] for one in same) * scale,
        backward_s=min(one["backward_ns"] for one in same) * scale,
        **{name: layer[name] for name in _OF_LAYERS},
    )
