"""Failures, saves and restarts of a job, at its own scale and at others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from advisor.planners.core.units import HOUR_S
from advisor.planners.goodput.goodput import (
    LLAMA3,
    EdgeFaultTolerance,
    ExpectedCompletion,
    expected_completion,
)
from advisor.shown.chart import Chart, Series

SCALES: Final = (1, 8, 64, 512, 4096, 16384)
# Beyond it nothing else would be seen.
_MOST_DRAWN: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureQuestion:
    """A job, its saves and restarts; see ``planners.goodput.goodput.expected_completion``.

    ``checkpoint_s`` is None for a job that saves nothing, ``checkpoint_interval_s`` for the best
    one, ``failures_per_device_h`` for Llama 3's rate. ``edge`` is the second network path that the
    other column has.
    """

    work_s: float
    devices: int
    checkpoint_s: float | None
    restart_s: float = 300.0
    detection_s: float = 60.0
    checkpoint_interval_s: float | None = None
    failures_per_device_h: float | None = None
    edge: EdgeFaultTolerance = field(default_factory=EdgeFaultTolerance)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureAnswer:
    """One row a scale; the asked one is among them.

    ``plain`` and ``second_path`` are without and with fault tolerance at the network's edge.
    """

    question: FailureQuestion
    devices: tuple[int, ...]
    plain: ExpectedCompletion
    second_path: ExpectedCompletion
    charts: Sequence[Chart] = field(repr=False, default=())

    def to_record(self) -> dict[str, Any]:
        """Return the JSON record; what never ends is null."""
        asked = self.question
        rate = asked.failures_per_device_h
        return {
            "schema_version": 1,
            "job": {"work_h": asked.work_s / HOUR_S, "devices": asked.devices,
                    "checkpoint_s": asked.checkpoint_s or 0.0,
                    "saves_checkpoints": asked.checkpoint_s is not None,
                    "restart_s": asked.restart_s, "detection_s": asked.detection_s},
            "failures_per_device_h": LLAMA3.per_device_h if rate is None else rate,
            "source": LLAMA3.source if rate is None else "given",
            "edge": asdict(asked.edge),
            "scales": [
                {"devices": count, "is_asked": count == asked.devices,
                 "plain": _row(self.plain, k), "second_path": _row(self.second_path, k)}
                for k, count in enumerate(self.devices)
            ],
        }  # fmt: skip


def failures_answer(question: FailureQuestion) -> FailureAnswer:
    """Expect the job's time at its own number of devices and at powers of eight.

    Raises
    ------
    PlanningError
        If a time or a rate makes no sense.
    """
    devices = tuple(sorted({*SCALES, question.devices}))
    rate = question.failures_per_device_h

    def expected(edge: EdgeFaultTolerance | None) -> ExpectedCompletion:
        return expected_completion(
            np.full(len(devices), question.work_s),
            devices=devices,
            checkpoint_s=question.checkpoint_s,
            restart_s=question.restart_s,
            detection_s=question.detection_s,
            failures_per_device_h=LLAMA3.per_device_h if rate is None else rate,
            checkpoint_interval_s=question.checkpoint_interval_s,
            edge=edge,
        )

    plain, second = expected(None), expected(question.edge)
    return FailureAnswer(
        question=question,
        devices=devices,
        plain=plain,
        second_path=second,
        charts=_charts(question, devices, plain, second),
    )


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
    question: FailureQuestion,
    devices: Sequence[int],
    plain: ExpectedCompletion,
    second: ExpectedCompletion,
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
    curves.append(Series(name="asked", x=[float(question.devices)], shape="vertical"))
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
