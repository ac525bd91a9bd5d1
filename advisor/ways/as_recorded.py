"""The machine that a job was recorded on: its step there is the one that was measured.

No model says it better: the recorded layout, the recorded time and the recorded interval. What
the user has changed since (batch, precision, software, layout) is estimated as everywhere, with
the measured step as its anchor.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from advisor.domain import Bottleneck
from advisor.jobs.job import Job, Measured
from advisor.planners.core.columns import Layouts
from advisor.planners.layouts.grid import SearchSpace
from advisor.ways.case import SPACE
from advisor.ways.columns import WAITS, TimeColumns, integer_layouts

Floats = NDArray[np.float64]


def is_answer(job: Job, space: SearchSpace | None) -> bool:
    """Whether the recorded step answers what is asked of the recorded machine."""
    return job.measured is not None and job.is_as_recorded and space in (None, SPACE)


def as_recorded(job: Job, columns: TimeColumns) -> TimeColumns:
    """Return the only row of ``columns``, the recorded machine, as it was measured.

    Parameters
    ----------
    job : Job
        As it was recorded (``is_answer``).
    columns : TimeColumns
        What the model says of one such machine: its shares of computing, memory and starting
        kernels are kept.
    """
    seen = job.measured
    assert seen is not None
    rows = len(columns.count)
    memory = columns.memory_bytes
    if seen.device.startswith("cpu"):
        memory = np.full(rows, float(job.peak_rss_bytes))
    return replace(
        columns,
        status=np.zeros(rows, dtype=np.int64),
        step_s=np.full(rows, seen.step_s),
        log_sd=np.full(rows, seen.log_sd),
        shares=_shares(job, seen, columns),
        layouts=columns.layouts if job.work is None else _layouts(job, seen, rows),
        memory_bytes=memory,
        startup_s=np.full(rows, job.startup_s),
        data_in_s=np.zeros(rows),  # it is there
        is_extrapolating=np.zeros(rows, dtype=bool),
    )


def _shares(job: Job, seen: Measured, columns: TimeColumns) -> dict[Bottleneck, Floats]:
    """Return what the step waits for: data and other ranks as measured, the rest as modelled."""
    waits = {"input": job.feed.wait_s, "network": seen.exchange_s}
    scale = max(seen.step_s, sum(waits.values()))
    measured = {name: wait_s / scale for name, wait_s in waits.items()}
    modelled = {
        name: np.nan_to_num(columns.shares.get(name, np.zeros(1)))
        for name in WAITS
        if name not in measured
    }
    whole = sum(modelled.values())
    if not np.all(whole > 0):  # the model has no answer for this machine
        modelled["compute"], whole = np.ones(len(columns.count)), np.ones(1)
    computing = 1 - sum(measured.values())
    shares = {name: computing * part / whole for name, part in modelled.items()}
    rows = np.ones(len(columns.count))
    return shares | {"input": measured["input"] * rows, "network": measured["network"] * rows}


def _layouts(job: Job, seen: Measured, rows: int) -> Layouts:
    work = job.work
    assert work is not None
    return integer_layouts(
        rows,
        dp=seen.processes,
        micro_batch=work.micro_batch,
        accumulation_steps=max(round(job.recorded_batch / work.micro_batch), 1),
    )
