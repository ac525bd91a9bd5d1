"""The records of an event file, step records by the thousand.

Hours of fast steps are some hundred thousand records. Where they stand one behind the other they
are found, checked and unpacked as columns, with no work in Python for each; what ``Events.take``
would have made of them one by one is what comes out (``tests/test_collectors_step_records.py``).
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

from advisor.collectors.events import Events
from advisor.collectors.hooks import format as fmt
from advisor.collectors.records import parse

_LEAST, _MOST = 16, 4096  # records to look for at once
# What these say has nothing to do with ticks: they may be taken in before those that precede them.
_BESIDE: Final = frozenset({fmt.LOADER, fmt.POOL, fmt.COMMUNICATION, fmt.PROCESS})
_HEAD: Final = struct.pack("<2sBxI", fmt.MAGIC, fmt.STEP, fmt.STEP_PAYLOAD.size)
_BYTES: Final = tuple((place, bytes((value,))) for place, value in enumerate(_HEAD))
_CRC: Final = struct.Struct("<I")  # the last of a frame's header


def _layout() -> tuple[tuple[str, int, int], ...]:
    """Return type, place and width of each field of a step record. [bytes]."""
    found, at = [], 0
    for of in fmt.STEP_PAYLOAD.format.lstrip("<"):
        width = struct.calcsize(f"<{of}")
        found.append((of, at, width))
        at += width
    return tuple(found)


_FIELDS: Final = _layout()
_IS_ALIGNED: Final = not any(at % w or fmt.STEP_PAYLOAD.size % w for _, at, w in _FIELDS)


def take_all(events: Events, data: bytes) -> None:
    """Take in every whole record of an event file."""
    at, most = 0, _LEAST
    ticks: list[bytes] = []
    while True:
        found = _steps(data, at, most)
        ticks += found
        at += len(found) * (fmt.FRAME.size + fmt.STEP_PAYLOAD.size)
        is_more = len(found) == most
        most = min(max(2 * len(found), _LEAST), _MOST)
        if is_more and len(ticks) < _MOST:
            continue
        record = None if is_more else next(parse(data, at), None)
        if record is not None and record[0] == fmt.STEPS and len(ticks) < _MOST:
            ticks += _gathered(record[1])
            at = record[2]
            continue
        if is_more or record is None or record[0] not in _BESIDE:
            _take_ticks(events, ticks)
            ticks = []
        if record is not None:
            kind, payload, at = record
            events.take(kind, payload)
        elif not is_more:
            return


def _gathered(payload: bytes) -> list[bytes]:
    if len(payload) < fmt.STEPS_HEAD.size:
        return []
    return [fmt.STEP_PAYLOAD.pack(*values) for values in fmt.steps_of(payload)]


def _take_ticks(events: Events, payloads: list[bytes]) -> None:
    if payloads:
        events.take_ticks(_columns(b"".join(payloads)))


def _columns(rows: bytes) -> list[Sequence[int]]:
    """Return the fields of step records as columns, without a tuple for each record.

    Tuples by the hundred thousand cost more to look after than to make.
    """
    size = fmt.STEP_PAYLOAD.size
    if sys.byteorder != "little" or not _IS_ALIGNED:
        return list(zip(*fmt.STEP_PAYLOAD.iter_unpack(rows), strict=True))
    view: Any = memoryview(rows)
    return [view.cast(of)[at // width :: size // width].tolist() for of, at, width in _FIELDS]


def _steps(data: bytes, at: int, most: int) -> list[bytes]:
    """Return the payloads of the whole step records that follow ``at`` without a gap."""
    size = fmt.FRAME.size + fmt.STEP_PAYLOAD.size
    count = min(most, (len(data) - at) // size)
    for place, value in _BYTES:
        column = data[at + place : at + count * size : size]
        count = len(column) - len(column.lstrip(value))
    starts = range(at + fmt.FRAME.size, at + count * size, size)
    payloads = [data[start : start + fmt.STEP_PAYLOAD.size] for start in starts]
    said = _CRC.unpack_from
    for place, payload in enumerate(payloads):
        if (crc32(payload, fmt.STEP),) != said(data, starts[place] - _CRC.size):
            return payloads[:place]
    return payloads
