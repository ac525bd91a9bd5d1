"""Step records that are taken in as columns give what they give one by one."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from advisor.collectors.format import events as step_records
from advisor.collectors.format.events import Events
from advisor.collectors.format.record_files import parse
from advisor.collectors.hooks import format as fmt

# A tick: time since the one before, waited since, clock, flags, and the rest of its fields.
ticks = st.tuples(
    st.integers(-5, 10**9), st.integers(-5, 10**6),
    st.sampled_from([fmt.CLOCK_OPTIMIZER] * 6 + [*range(6), 9]),
    st.sampled_from([fmt.FLAG_COMPLETES] * 8 + [*range(32)]),
    st.integers(0, 3), st.integers(0, 3), st.integers(0, 10**6), st.integers(0, 64),
    st.integers(0, 1000),
)  # fmt: skip
others = st.sampled_from(
    [
        fmt.framed(fmt.FACT, b'{"fact": "deep_step", "x": 1}'),
        fmt.framed(fmt.FACT, b'{"fact": "loader", "loader": 0, "workers": 2}'),
        fmt.framed(fmt.LOADER, fmt.LOADER_PAYLOAD.pack(10**9, 0, *range(1, 10))),
        fmt.framed(fmt.POOL, fmt.POOL_PAYLOAD.pack(10**9, 10**6, 10**5, 10**6, 10**7)),
        fmt.framed(fmt.DEVICE_STEP, fmt.DEVICE_STEP_PAYLOAD.pack(3, 10**6)),
        b"\xadR torn",
        b"\0" * 16,
    ]
)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Event files: stretches of steps, many plain, between other records and damage."""
    made, t_ns, delay_ns = [], 10**9, 0
    for _ in range(draw(st.integers(0, 5))):
        repeats = draw(st.sampled_from([1, 2, 40, 200]))
        tick = draw(ticks)
        for number in range(repeats):
            more, waited, clock, flags, backwards, batches, wait, samples, held = (
                tick if number else draw(ticks)
            )
            t_ns, delay_ns = max(0, t_ns + more), max(0, delay_ns + waited)
            fields = (t_ns, delay_ns, number, clock, flags, 0, backwards, batches, wait, samples,
                      held)  # fmt: skip
            payload = fmt.STEP_PAYLOAD.pack(*fields)
            made.append(fmt.framed(fmt.STEP, payload[: draw(st.sampled_from([99] * 9 + [36]))]))
        made.append(draw(others))
        if draw(st.booleans()):
            rows = [(t_ns + i, delay_ns, i, fmt.CLOCK_OPTIMIZER, fmt.FLAG_COMPLETES, 0, 1, 1, 5, 8)
                    for i in range(20)]  # fmt: skip
            packed = b"".join(fmt.STEP_PAYLOAD.pack(*row, 1) for row in rows)
            made.append(fmt.framed(fmt.STEPS, fmt.STEPS_HEAD.pack(fmt.STEP_PAYLOAD.size) + packed))
    data = bytearray(b"".join(made))
    for _ in range(draw(st.integers(0, 2)) if data else 0):
        data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


def one_by_one(data: bytes) -> Events:
    events = Events()
    for kind, payload, _ in parse(data):
        events.take(kind, payload)
    return events


def at_once(data: bytes) -> Events:
    events = Events()
    step_records.take_all(events, data)
    return events


def steady(count: int) -> bytes:
    rows = ((10**9 + i * 10**6, i, i, fmt.CLOCK_OPTIMIZER, fmt.FLAG_COMPLETES, 0, 1, 1, 5, 8, 1)
            for i in range(count))  # fmt: skip
    return b"".join(fmt.framed(fmt.STEP, fmt.STEP_PAYLOAD.pack(*row)) for row in rows)


@given(files())
@example(steady(10_000))
@example(steady(5000) + b"\xadR" + steady(5000)[7:])
def test_the_columns_give_what_the_records_give(data: bytes) -> None:
    assert at_once(data) == one_by_one(data)


def test_steady_steps_are_not_taken_one_by_one(monkeypatch: Any) -> None:
    """The law of the cost: ticks that say nothing new are columns, all but the first few."""
    single, take = [], Events._take_tick

    def counted(self: Events, *fields: int) -> None:
        single.append(fields)
        take(self, *fields)

    monkeypatch.setattr(Events, "_take_tick", counted)
    events = at_once(steady(20_000))
    assert events.steps.count == 19_999
    assert len(single) < 10
    assert copy.deepcopy(events) == events
