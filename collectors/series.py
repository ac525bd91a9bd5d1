"""Series of a recording beside its readings: of each rank, of each process, of a quota.

Nouns of ``recording``, apart for their number; all derived from the raw files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# What memory may grow by in a window that says something of ordinary running.
_STEADY: Final = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSeries:
    """One of the processes that train together; rank 0 of a program of one process.

    Attributes
    ----------
    step_s : tuple of float
        Ordinary steps in order, the rank's own waiting for a core taken out. [s]
    wait_s : tuple of float
        Time of each step blocked in communication, after the first twelve (warm-up, traced
        steps); the mean of the steps between two records, at most 20 ms apart or one step.
        Empty for a program of one process. [s]
    sent_bytes_per_step, received_bytes_per_step : float or None
        On the wire, by its TCP sockets; None where the system does not tell. [bytes]
    payload_bytes_per_step : float or None
        Handed to collectives called from Python; DDP's gradients are not among them. [bytes]
    """

    rank: int
    pid: int
    step_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    sent_bytes_per_step: float | None
    received_bytes_per_step: float | None
    payload_bytes_per_step: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSeries:
    """One process of the tree, once a second; counters since it began."""

    pid: int
    rank: int | None
    t_s: tuple[float, ...]
    rss_bytes: tuple[int, ...]
    cpu_s: tuple[float, ...]
    minor_faults: tuple[int, ...]
    major_faults: tuple[int, ...]
    received_bytes: tuple[int, ...]
    sent_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttling:
    """A stretch of readings in each of which a quota took time away. [s]."""

    begin_s: float
    end_s: float
    throttled_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchedReading:
    """Memory that the processes touched in one window (``profile --working-set``).

    Attributes
    ----------
    touched_bytes, resident_bytes : int
        Touched in it, and held at its end; pages that processes share count once for each. [bytes]
    held_bytes : int
        Held at its begin: what came meanwhile was touched because it came. [bytes]
    """

    t_s: float
    window_s: float
    touched_bytes: int
    resident_bytes: int
    processes: int
    held_bytes: int

    @property
    def is_steady(self) -> bool:
        """Whether memory hardly grew meanwhile: not a start, nor the loading of data."""
        return self.resident_bytes <= _STEADY * self.held_bytes
