"""Rows of what a shared cluster ran, whichever program wrote them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from advisor.records.traces import TraceError

NOT_ENDED: Final = "that have not ended"


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that ran to its end; seconds, and nan where nobody says what it waited."""

    submit_s: float
    devices: int
    duration_s: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class OpenJob:
    """A job that runs, or waits: what has elapsed, in seconds, is nan then."""

    submit_s: float
    devices: int
    elapsed_s: float


JobRow = EndedJob | OpenJob | str  # or why a row is left out


class LeftOutError(Exception):
    """A row that is no job to simulate; the message is the reason that is counted."""


def checked(
    where: str, submit_s: float, start_s: float, duration_s: float, devices: int
) -> EndedJob | str:
    """Return a job, or why it is none.

    Raises TraceError if it ends before it starts, or starts before it was submitted.
    """
    if duration_s < 0 or start_s < submit_s:
        raise TraceError(
            f"{where}: {'ends' if duration_s < 0 else 'starts'} "
            f"{-duration_s if duration_s < 0 else submit_s - start_s:g} s before it "
            f"{'starts' if duration_s < 0 else 'was submitted'}",
            hint="export the file again, all times in one time zone",
        )
    if devices < 1:
        return "without a device"
    if not duration_s > 0:
        return "that never ran"
    return EndedJob(submit_s, devices, duration_s, start_s - submit_s)


def date_s(where: str, value: str) -> float:
    """Return a date, or the seconds of an epoch, as seconds of that epoch.

    Raises LeftOutError if there is none. Raises TraceError if it cannot be read; the message
    begins with ``where``.
    """
    if value in ("Unknown", "None", "N/A", ""):
        raise LeftOutError("without a start or an end")
    if value.isdigit():  # SLURM_TIME_FORMAT=%s
        return float(value)
    try:
        return datetime.fromisoformat(value).timestamp()
    except ValueError:
        raise TraceError(
            f"{where}: cannot read {value!r} as a date", hint="write 2026-11-21T09:30:00"
        ) from None
