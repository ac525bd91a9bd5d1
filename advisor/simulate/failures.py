"""Failures, saves and restarts of a job, at its own scale and at others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import numpy as np

from advisor.errors import UsageError
from advisor.planners.core import HOUR_S
from advisor.planners.goodput import (
    EDGE_P95,
    LLAMA3,
    EdgeFaultTolerance,
    ExpectedCompletion,
    expected_completion,
    save_s,
)
from advisor.show import Chart, Series
from advisor.simulate.questions import Simulated, SimulateFailures

SCALES: Final = (1, 8, 64, 512, 4096, 16384)
# Beyond it nothing else would be seen.
_MOST_DRAWN: Final = 10


def answer(asked: SimulateFailures) -> Simulated:
    """Expect the job's time at its own number of devices and at powers of eight.

    Raises PlanningError if a time or a rate makes no sense.
    """
    checkpoint_s, edge = _checkpoint_s(asked), _edge(asked)
    devices = tuple(sorted({*SCALES, asked.devices}))
    rate = LLAMA3.per_device_h if asked.rate is None else asked.rate

    def expected(edge: EdgeFaultTolerance | None) -> ExpectedCompletion:
        return expected_completion(
            np.full(len(devices), asked.hours * HOUR_S), devices=devices,
            checkpoint_s=checkpoint_s, restart_s=asked.restart, detection_s=asked.detection,
            failures_per_device_h=rate, checkpoint_interval_s=asked.checkpoint_every, edge=edge,
        )  # fmt: skip

    plain, second = expected(None), expected(edge)
    record = {
        "schema_version": 1,
        "job": {"work_h": asked.hours * HOUR_S / HOUR_S, "devices": asked.devices,
                "checkpoint_s": checkpoint_s or 0.0,
                "saves_checkpoints": checkpoint_s is not None,
                "restart_s": asked.restart, "detection_s": asked.detection},
        "failures_per_device_h": rate,
        "source": LLAMA3.source if asked.rate is None else "given",
        "edge": asdict(edge),
        "scales": [
            {"devices": count, "is_asked": count == asked.devices,
             "plain": _row(plain, k), "second_path": _row(second, k)}
            for k, count in enumerate(devices)
        ],
    }  # fmt: skip
    return Simulated(record=record, charts=_charts(asked.devices, devices, plain, second))


def _checkpoint_s(asked: SimulateFailures) -> float | None:
    """Return how long a save takes [s]; None where the job saves nothing."""
    if asked.checkpoint_size is None:
        return asked.checkpoint
    saved = save_s(
        asked.checkpoint_size, nodes=asked.nodes, bytes_per_s=asked.write_rate,
        disk_bytes=asked.disk,
    )  # fmt: skip
    return float(saved[0])


def _edge(asked: SimulateFailures) -> EdgeFaultTolerance:
    """Return the second network path that the other column has."""
    known = next((name for name in EDGE_P95 if name == asked.layout), None)
    if known is None:
        raise UsageError(f"no layout named {asked.layout!r}", hint=f"one of {', '.join(EDGE_P95)}")
    edge = EdgeFaultTolerance.of_layout(known, repair_h=asked.repair)
    if asked.slowdown is not None:
        edge = replace(edge, slowdown_fraction=asked.slowdown)
    if asked.network_share is not None:
        edge = replace(edge, network_fraction=asked.network_share)
    return edge


def _row(table: ExpectedCompletion, k: int) -> dict[str, Any]:
    ends = bool(np.isfinite(table.expected_s[k]))
    return {
        "expected_h": float(table.expected_s[k]) / HOUR_S if ends else None,
        "overhead_fraction": float(table.overhead_fraction[k]) if ends else None,
        "checkpoint_interval_s": float(table.checkpoint_interval_s[k]),
        "checkpoints": float(table.checkpoints[k]),
        "expected_failures": float(table.expected_failures[k]) if ends else None,
        "is_negligible": bool(table.is_negligible[k]),
    }


def _charts(
    asked: int, devices: Sequence[int], plain: ExpectedCompletion, second: ExpectedCompletion
) -> list[Chart]:
    ways = (("one network path", plain), ("a second path at the edge", second))
    curves = []
    for name, table in ways:
        ends = table.overhead_fraction < _MOST_DRAWN  # False where it never ends
        curves.append(
            Series(
                name=name,
                x=np.asarray(devices, float)[ends].tolist(),
                y=(100 * table.overhead_fraction[ends]).tolist(),
            )
        )
    curves.append(Series(name="asked", x=[float(asked)], shape="vertical"))
    return [
        Chart(
            title="What saves and failures add",
            x_label="devices (logarithmic)",
            y_label="% of the work",
            series=curves,
            is_x_logarithmic=True,
            x_range=(0.9, 1.1 * max(devices)),
            notes=[f"a curve ends where {_MOST_DRAWN} times the work is added"]
            if any(len(one.x) < len(devices) for one in curves[:-1])
            else [],
        )
    ]
