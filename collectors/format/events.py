"""One process's event file, taken in record by record: live while it grows, or afterwards."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

from advisor.collectors.format.record_files import fields, parse, parse_json
from advisor.collectors.format.step_time import Others, Steps
from advisor.collectors.hooks import format as fmt

# Facts that the hooks take of the first steps, and again when those turned out to be parts.
_OF_THE_FIRST_STEPS = ("deep_step", "work", "updates")


@dataclass(slots=True)
class LoaderCounts:
    """A loader's counts, cumulative; see ``hooks.format.LOADER_PAYLOAD``."""

    iterators: int = 0
    steps: int = 0
    batches: int = 0
    samples: int = 0
    inside_ns: int = 0
    inside_cpu_ns: int = 0
    workers_cpu_ns: int = 0
    workers_delay_ns: int = 0
    helpers_delay_ns: int = 0


@dataclass(slots=True)
class CommunicationCounts:
    """What training together has cost so far; see ``hooks.format.COMMUNICATION_PAYLOAD``."""

    t_ns: int
    steps: int
    cpu_ns: int
    delay_ns: int
    wait_ns: int
    calls: int
    payload_bytes: int
    sent_bytes: int
    received_bytes: int
    exchanged_ns: int
    hidden_ns: int


@dataclass(slots=True)
class _Interval:
    """What happened since the last complete step."""

    has_boundary: bool = False
    backwards: int = 0
    batches: int = 0
    samples: int = 0
    wait_ns: int = 0
    wait_delay_ns: int = 0

    def add(
        self, flags: int, backwards: int, batches: int, samples: int, wait_ns: int, delay_ns: int
    ) -> None:
        self.has_boundary |= bool(flags & fmt.FLAG_BOUNDARY)
        self.backwards += backwards
        self.batches += batches
        self.samples += samples
        self.wait_ns += wait_ns
        self.wait_delay_ns += delay_ns


_CLOSED = _Interval()


@dataclass(slots=True)
class Events:
    """What one process recorded."""

    header: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    clock: int = -1  # the one of the highest rank that ticked; -1 for none
    steps: Steps = field(default_factory=Steps)
    # backwards, batches, samples: sums over the ``intervals``: complete steps without an epoch's
    # begin in them
    backwards: int = 0
    batches: int = 0
    samples: int = 0
    intervals: int = 0
    completed: int = 0
    epochs_begun: int = 0
    loaders: dict[int, LoaderCounts] = field(default_factory=dict)
    others: Others = field(default_factory=Others)
    device_steps_ns: list[int] = field(default_factory=list)
    communication: list[CommunicationCounts] = field(default_factory=list)
    _open: _Interval = field(default_factory=_Interval)

    def __post_init__(self) -> None:
        self.steps.others = self.others

    def take(self, kind: int, payload: bytes) -> None:
        """Take in one record; kinds and fields of later versions are passed over."""
        if kind == fmt.STEP and len(payload) >= fmt.STEP_BYTES:
            self._take_tick(*fields(fmt.STEP_PAYLOAD, payload))
        elif kind == fmt.STEPS and len(payload) >= fmt.STEPS_HEAD.size:
            for values in fmt.steps_of(payload):
                self._take_tick(*values)
        elif kind == fmt.LOADER and len(payload) >= fmt.LOADER_BYTES:
            self._take_loader(*fields(fmt.LOADER_PAYLOAD, payload))
        elif kind == fmt.POOL and len(payload) >= fmt.POOL_BYTES:
            t_ns, slowest_ns, main_ns, others_ns, cpu_ns = fields(fmt.POOL_PAYLOAD, payload)
            is_old = len(payload) < fmt.POOL_OTHERS_BYTES
            told = (slowest_ns, main_ns, None if is_old else others_ns)
            self.others.take_pool(t_ns, *told, cpu_ns=cpu_ns)
        elif kind == fmt.DEVICE_STEP and len(payload) >= fmt.DEVICE_STEP_PAYLOAD.size:
            self.device_steps_ns.append(fmt.DEVICE_STEP_PAYLOAD.unpack_from(payload)[1])
        elif kind == fmt.COMMUNICATION and len(payload) >= fmt.COMMUNICATION_PAYLOAD.size:
            together = CommunicationCounts(*fmt.COMMUNICATION_PAYLOAD.unpack_from(payload))
            self.communication.append(together)
        elif kind == fmt.HEADER:
            self.header = parse_json(payload)
            if isinstance(begin_ns := self.header.get("t_ns"), int):
                self.others.begin_pool(begin_ns)
        elif kind == fmt.FACT:
            fact = parse_json(payload)
            self.facts.setdefault(str(fact.get("fact", "")), []).append(fact)

    def _take_loader(self, t_ns: int, number: int, *values: int) -> None:
        seen = self.loaders[number] = LoaderCounts(*values)
        facts = self.facts.get("loader", [])
        workers = next((f.get("workers", 0) for f in facts if f.get("loader") == number), 0)
        if workers:
            counts = seen.workers_cpu_ns, seen.workers_delay_ns, seen.helpers_delay_ns
            self.others.take_workers(t_ns, number, counts, workers)

    def take_ticks(self, columns: Sequence[Sequence[int]]) -> None:
        """Take in many ticks, as ``take`` would one by one.

        ``columns``: the fields of ``hooks.format.STEP_PAYLOAD``, one or more ticks.
        """
        clock, plain = self.clock, fmt.FLAG_COMPLETES
        kinds = zip(columns[3], columns[4], strict=True)
        odd = [i for i, (of, flags) in enumerate(kinds) if flags != plain or of != clock]
        begin, last = 0, len(columns[0])
        for end in (*odd, last):
            self._take_stretch([column[begin:end] for column in columns])
            if end == last:
                return
            self._take_tick(*(column[end] for column in columns))
            begin = end + 1
            if self.clock != clock and begin < last:  # what is plain is to be seen anew
                self.take_ticks([column[begin:] for column in columns])
                return

    def _take_stretch(self, columns: Sequence[Sequence[int]]) -> None:
        """Take in ticks of this clock that complete a step each and say nothing else."""
        begin, count = 0, len(columns[0])
        while begin < count and not (self.completed and self._open == _CLOSED):
            self._take_tick(*(column[begin] for column in columns))
            begin += 1
        if begin:
            columns = [column[begin:] for column in columns]
        if count > begin and not self._take_plain(columns):
            for row in zip(*columns, strict=True):
                self._take_tick(*row)

    def _take_plain(self, columns: Sequence[Sequence[int]]) -> bool:
        """Take in ordinary steps behind others; False, and nothing is done, if they are none."""
        times, delays, _, _, _, _, backwards, batches, waits, samples, wait_delays = columns
        waits_ns, wait_delays_ns = [1000 * w for w in waits], [1000 * w for w in wait_delays]
        if not self.steps.add_plain(times, delays, waits_ns, wait_delays_ns):
            return False
        self.intervals += len(times)
        self.completed += len(times)
        self.backwards += sum(backwards)
        self.batches += sum(batches)
        self.samples += sum(samples)
        return True

    def _take_tick(
        self, t_ns: int, delay_ns: int, index: int, clock: int, flags: int, number: int,
        backwards: int, batches: int, wait_us: int, samples: int, wait_delay_us: int,
    ) -> None:  # fmt: skip
        if clock >= len(fmt.CLOCKS):
            return
        if fmt.CLOCK_RANK[clock] < self.rank:
            return
        if fmt.CLOCK_RANK[clock] > self.rank:
            self._begin_anew(clock)
        elif flags & fmt.FLAG_RENEWED:
            self._renew()
        if flags & fmt.FLAG_BOUNDARY:
            self.epochs_begun += 1
        self._open.add(flags, backwards, batches, samples, wait_us * 1000, wait_delay_us * 1000)
        if flags & fmt.FLAG_COMPLETES:
            done = self._complete()
            # An epoch may have begun with an accumulated step's first pass.
            flags |= fmt.FLAG_BOUNDARY * done.has_boundary
            self.steps.add(t_ns, delay_ns, flags, done.wait_ns, done.wait_delay_ns)

    @property
    def rank(self) -> int:
        """The rank of the clock; -1 for none."""
        return fmt.CLOCK_RANK[self.clock]

    def _begin_anew(self, clock: int) -> None:
        self.clock, self.steps = clock, Steps(others=self.others)
        self.completed = self.intervals = 0
        self.backwards = self.batches = self.samples = 0
        self._open = _Interval()

    def _renew(self) -> None:
        """Forget steps that turned out to be parts; training has begun with the first of them."""
        before = self.steps
        self._begin_anew(self.clock)
        self.steps.first_ns, self.steps.first_delay_ns = before.first_ns, before.first_delay_ns
        self.device_steps_ns.clear()
        for name in _OF_THE_FIRST_STEPS:
            self.facts.pop(name, None)

    def _complete(self) -> _Interval:
        """Close the step: it counts if one came before it and no epoch began in it."""
        done, self._open = self._open, _Interval()
        if self.completed and not done.has_boundary:
            self.intervals += 1
            self.backwards += done.backwards
            self.batches += done.batches
            self.samples += done.samples
        self.completed += 1
        return done

    def fact(self, name: str) -> dict[str, Any]:
        """Return the last fact of a name; empty if there is none."""
        return self.facts.get(name, [{}])[-1]

    def training_loader(self) -> int | None:
        """Return the loader that most steps followed."""
        fed = {number: counts.steps for number, counts in self.loaders.items() if counts.steps}
        return max(fed, key=lambda number: fed[number]) if fed else None

    def loader_fact(self) -> dict[str, Any]:
        """Return the facts of the training loader, or of the first loader before that is known."""
        number = self.training_loader()
        for fact in self.facts.get("loader", []):
            if number is None or fact.get("loader") == number:
                return fact
        return {}


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
    """Take in every whole record of an event file, step records by the thousand.

    Hours of fast steps are some hundred thousand records. Where they stand one behind the other
    they are found, checked and unpacked as columns, with no work in Python for each; what
    ``Events.take`` would have made of them one by one is what comes out
    (``tests/test_collectors_step_records.py``).
    """
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
