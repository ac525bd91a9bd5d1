"""One process's event file, taken in record by record: live while it grows, or afterwards."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import add, itemgetter
from typing import Any, Final

from advisor.collectors.format.record_files import fields, parse, parse_json
from advisor.collectors.format.step_time import Others, Steps
from advisor.collectors.hooks import format as fmt

# Facts that the hooks take of the first steps, and again when those turned out to be parts.
_OF_THE_FIRST_STEPS = ("deep_step", "work", "updates")


# A loader's counts, cumulative, and what training together has cost so far: what the time, and the
# loader's number, stand before in ``hooks.format.LOADER_PAYLOAD`` and ``COMMUNICATION_PAYLOAD``.
LoaderCounts = namedtuple(
    "LoaderCounts",
    "iterators steps batches samples inside_ns inside_cpu_ns workers_cpu_ns workers_delay_ns "
    "helpers_delay_ns",
    defaults=(0, 0, 0, 0, 0, 0, 0, 0, 0),
)
CommunicationCounts = namedtuple(
    "CommunicationCounts",
    "t_ns steps cpu_ns delay_ns wait_ns calls payload_bytes sent_bytes received_bytes "
    "exchanged_ns hidden_ns",
)


_CLOSED: Final = (0, 0, 0, 0, 0, 0)


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
    # since the last complete step: flags of an epoch's begin, backwards, batches, samples, and the
    # wait and its delay [ns]
    _open: tuple[int, ...] = _CLOSED

    def __post_init__(self) -> None:
        self.steps.others = self.others

    def take(self, kind: int, payload: bytes) -> None:
        """Take in one record; kinds and fields of later versions are passed over."""
        for values in ticks_in(kind, payload):
            self._take_tick(*values)
        if kind == fmt.LOADER and len(payload) >= fmt.LOADER_BYTES:
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

    def take_ticks(self, ticks: Sequence[tuple[int, ...]]) -> None:
        """Take in many ticks, as ``take`` would one by one; those that say nothing new at once."""
        for (clock, flags), group in groupby(ticks, itemgetter(3, 4)):
            rows, at = list(group), 0
            is_plain = flags == fmt.FLAG_COMPLETES
            while at < len(rows) and not (
                is_plain and clock == self.clock and self.completed and self._open == _CLOSED
            ):
                self._take_tick(*rows[at])
                at += 1
            if at < len(rows) and not self._take_plain(rows[at:]):
                for row in rows[at:]:
                    self._take_tick(*row)

    def _take_plain(self, rows: Sequence[tuple[int, ...]]) -> bool:
        """Take in ordinary steps behind others; False, and nothing is done, if they are none."""
        times, delays, _, _, _, _, backwards, batches, waits, samples, wait_delays = zip(
            *rows, strict=True
        )
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
        seen = (flags & fmt.FLAG_BOUNDARY, backwards, batches, samples, wait_us * 1000)
        self._open = tuple(map(add, self._open, (*seen, wait_delay_us * 1000)))
        if flags & fmt.FLAG_COMPLETES:
            boundaries, *counts, wait_ns, wait_delay_ns = self._open
            self._complete(boundaries > 0, *counts)
            # An epoch may have begun with an accumulated step's first pass.
            flags |= fmt.FLAG_BOUNDARY * (boundaries > 0)
            self.steps.add(t_ns, delay_ns, flags, wait_ns, wait_delay_ns)

    @property
    def rank(self) -> int:
        """The rank of the clock; -1 for none."""
        return fmt.CLOCK_RANK[self.clock]

    def _begin_anew(self, clock: int) -> None:
        self.clock, self.steps = clock, Steps(others=self.others)
        self.completed = self.intervals = 0
        self.backwards = self.batches = self.samples = 0
        self._open = _CLOSED

    def _renew(self) -> None:
        """Forget steps that turned out to be parts; training has begun with the first of them."""
        before = self.steps
        self._begin_anew(self.clock)
        self.steps.first_ns, self.steps.first_delay_ns = before.first_ns, before.first_delay_ns
        self.device_steps_ns.clear()
        for name in _OF_THE_FIRST_STEPS:
            self.facts.pop(name, None)

    def _complete(self, has_boundary: bool, backwards: int, batches: int, samples: int) -> None:
        """Close the step: it counts if one came before it and no epoch began in it."""
        self._open = _CLOSED
        if self.completed and not has_boundary:
            self.intervals += 1
            self.backwards += backwards
            self.batches += batches
            self.samples += samples
        self.completed += 1

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


_MOST = 4096  # ticks at once
# What these say has nothing to do with ticks: they may be taken in before those that precede them.
_BESIDE: Final = frozenset({fmt.LOADER, fmt.POOL, fmt.COMMUNICATION, fmt.PROCESS})


def take_all(events: Events, data: bytes) -> None:
    """Take in every whole record of an event file, ticks as columns by the thousand.

    Hours of fast steps are some hundred thousand records. What ``Events.take`` would have made of
    them one by one is what comes out (``tests/test_collectors_step_records.py``).
    """
    ticks: list[tuple[int, ...]] = []
    for kind, payload, _ in parse(data):
        ticks += (found := ticks_in(kind, payload))
        if len(ticks) >= _MOST or not (found or kind in _BESIDE):
            events.take_ticks(ticks)
            ticks = []
        if not found:
            events.take(kind, payload)
    events.take_ticks(ticks)


def ticks_in(kind: int, payload: bytes) -> list[tuple[int, ...]]:
    """Return the steps in a record, none of other kinds; later versions' fields are left out."""
    if kind == fmt.STEP and len(payload) >= fmt.STEP_BYTES:
        return [fields(fmt.STEP_PAYLOAD, payload)]
    head = fmt.STEPS_HEAD
    size = head.unpack_from(payload)[0] if kind == fmt.STEPS and len(payload) >= head.size else 0
    if size < fmt.STEP_BYTES:
        return []
    starts = range(head.size, len(payload) - size + 1, size)
    return [fields(fmt.STEP_PAYLOAD, payload[at : at + size]) for at in starts]
