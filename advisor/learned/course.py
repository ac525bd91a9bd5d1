"""The course of the partial run, as a sequence network takes it: channels of equal length.

| channels                                         | of                  | scaled                 |
|--------------------------------------------------|---------------------|------------------------|
| cores busy                                       | the whole job       | over the anchor's cores|
| memory                                           | the whole job       | over its peak          |
| network received, sent [bytes/s]                 | the whole job       | ln(1 + kB/s) / 10      |
| step, mean of the ranks and the slowest one      | `profile --workers` | over the mean step     |
| wait of a step for the others, mean of the ranks | `profile --workers` | over the mean step     |
| sent on the wire [bytes/s], the busiest rank     | `profile --workers` | ln(1 + kB/s) / 10      |

The four of the thesis come first, in its order. Those of ranks follow where a record that is
fitted has them; a record without is all zeros there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.records import ResourceSeries, RunRecord
from advisor.records.nouns import Role

Floats = NDArray[np.float64]

SEQUENCE_CHANNELS: Final = (
    "cpu_cores", "memory_bytes", "network_received_bytes_per_s", "network_sent_bytes_per_s",
)  # fmt: skip
SEQUENCE_READINGS: Final = 64  # a series is brought to this length
RANK_CHANNELS: Final[tuple[tuple[Role, str], ...]] = (
    ("worker_mean", "step_s"), ("worker_max", "step_s"), ("worker_mean", "wait_s"),
    ("worker_max", "network_sent_bytes_per_s"),
)  # fmt: skip


def channels_of(records: Sequence[RunRecord]) -> int:
    """Return how many channels some records have: of the whole job, and of ranks where seen."""
    has_ranks = any("step_s" in _rank_series(record, "worker_mean") for record in records)
    return len(SEQUENCE_CHANNELS) + (len(RANK_CHANNELS) if has_ranks else 0)


def sequences(records: Sequence[RunRecord], channels: int | None = None) -> Floats:
    """Return the partial runs' series, resampled to one length and scaled to order one.

    Parameters
    ----------
    channels : int, optional
        As many as the model was fitted on; those that the records have by default.

    Returns
    -------
    array of shape (n_records, channels * SEQUENCE_READINGS)
        Channel by channel. A series of length 0 is all zeros.
    """
    count = channels_of(records) if channels is None else channels
    out = np.zeros((len(records), count, SEQUENCE_READINGS))
    own = len(SEQUENCE_CHANNELS)
    for row, record in enumerate(records):
        out[row, :own] = _of_the_job(record)
        if count > own:
            out[row, own:] = _of_ranks(record)
    return out.reshape(len(records), -1)


def series_of(record: RunRecord, role: Role | None = None) -> ResourceSeries | None:
    """Return a partial run's series of a role, the first without; None where it has none."""
    found = record.anchor.series if record.anchor else ()
    return next((one for one in found if role in (None, one.role)), None)


def _of_the_job(record: RunRecord) -> Floats:
    out = np.zeros((len(SEQUENCE_CHANNELS), SEQUENCE_READINGS))
    series = series_of(record)
    if series is None or series.readings == 0:
        return out
    cores = record.anchor.machines.vcpus if record.anchor else None
    for column, channel in enumerate(SEQUENCE_CHANNELS):
        values = _resampled(series.channels.get(channel, ()))
        if channel == "cpu_cores":
            out[column] = values / (cores or max(float(values.max()), 1e-9))
        elif channel == "memory_bytes":
            out[column] = values / max(float(values.max()), 1.0)
        else:
            out[column] = _traffic(values)
    return out


def _of_ranks(record: RunRecord) -> Floats:
    out = np.zeros((len(RANK_CHANNELS), SEQUENCE_READINGS))
    usual_s = float(np.mean(_rank_series(record, "worker_mean").get("step_s", (0.0,))))
    if usual_s <= 0:
        return out
    for column, (role, channel) in enumerate(RANK_CHANNELS):
        values = _resampled(_rank_series(record, role).get(channel, ()))
        out[column] = values / usual_s if channel in ("step_s", "wait_s") else _traffic(values)
    return out


def _rank_series(record: RunRecord, role: Role) -> dict[str, tuple[float, ...]]:
    """Return the channels of a partial run's ranks; none where it was of one process."""
    series = series_of(record, role)
    return {} if series is None or "step_s" not in series.channels else dict(series.channels)


def _traffic(bytes_per_s: Floats) -> Floats:
    return np.asarray(np.log1p(bytes_per_s / 1e3) / 10.0)


def _resampled(values: Sequence[float]) -> Floats:
    if len(values) == 0:
        return np.zeros(SEQUENCE_READINGS)
    positions = np.linspace(0, len(values) - 1, SEQUENCE_READINGS)
    return np.asarray(np.interp(positions, np.arange(len(values)), values), float)
