"""What a run recorded, as charts: its resources over time, and the time of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from advisor.shown.chart import Chart, Series

if TYPE_CHECKING:
    from advisor.collectors.recording import Reading, Recording

# A curve has as many values as a wide terminal's Braille or a picture can tell apart.
MOST_POINTS: Final = 240
_MIB: Final = 2.0**20
_GIB: Final = 2.0**30
_TIME: Final = "seconds since the start"
Value = Callable[["Reading"], float | None]


def run_charts(seen: Recording) -> list[Chart]:
    """Return a chart of each resource that the run used, then its steps; none without either."""
    stretches = _stretches(seen.readings)
    return [*_resources(stretches), *_steps(seen)]


def _resources(stretches: Sequence[Sequence[Reading]]) -> Iterator[Chart]:
    if not stretches:
        return
    for title, label, curves in (
        ("Processor", "cores", [
            _rate("busy", stretches, lambda one: one.cpu_s),
            _rate("waited for", stretches, lambda one: one.run_delay_s),
        ]),
        ("Memory", "GiB", [_most("resident", stretches, _resident_gib)]),
        ("Disk", "MiB/s", [
            _rate("read", stretches, lambda one: one.disk_read_bytes / _MIB),
            _rate("written", stretches, lambda one: one.disk_write_bytes / _MIB),
        ]),
        ("Network", "MiB/s", [
            _rate("received", stretches, lambda one: one.network_received_bytes / _MIB),
            _rate("sent", stretches, lambda one: one.network_sent_bytes / _MIB),
        ]),
        ("GPU", "share of the time that it is busy", [
            _most("busy", stretches, lambda one: one.gpu_fraction)
        ]),
        ("GPU memory", "GiB", [_most("used", stretches, _gpu_gib)]),
    ):  # fmt: skip
        used = [curve for curve in curves if any(curve.y)]
        if used:
            yield Chart(title=title, x_label=_TIME, y_label=label, series=used)


def _resident_gib(one: Reading) -> float:
    return (one.rss_bytes if one.pss_bytes is None else one.pss_bytes) / _GIB


def _gpu_gib(one: Reading) -> float | None:
    return None if one.gpu_memory_bytes is None else one.gpu_memory_bytes / _GIB


def _stretches(readings: Sequence[Reading]) -> list[Sequence[Reading]]:
    """Return readings in at most ``MOST_POINTS`` groups; each ends where the next begins."""
    size = -(-max(len(readings) - 1, 0) // MOST_POINTS)
    if not size:
        return []
    return [readings[at : at + size + 1] for at in range(0, len(readings) - 1, size)]


def _rate(name: str, stretches: Sequence[Sequence[Reading]], counter: Value) -> Series:
    """Return what a counter grew by per second, over each stretch."""
    x, y = [], []
    for one in stretches:
        spent_s = one[-1].t_s - one[0].t_s
        grown = (counter(one[-1]) or 0.0) - (counter(one[0]) or 0.0)
        if spent_s > 0:
            x.append(one[0].t_s)
            y.append(grown / spent_s)
    return Series(
        name=name, x=[*x, stretches[-1][-1].t_s], y=[*y, *y[-1:]] or [0.0], shape="steps"
    )


def _most(name: str, stretches: Sequence[Sequence[Reading]], gauge: Value) -> Series:
    """Return the largest value of each stretch; what was not read is left out."""
    x, y = [], []
    for one in stretches:
        values = [value for reading in one if (value := gauge(reading)) is not None]
        if values:
            x.append(one[0].t_s)
            y.append(max(values))
    return Series(name=name, x=x, y=y)


def _steps(seen: Recording) -> Iterator[Chart]:
    """Yield the steps of every rank in order; where they are many, means of equal numbers."""
    longest = max((len(one.step_s) for one in seen.ranks), default=0)
    size = max(1, -(-longest // MOST_POINTS))
    curves = [
        _means(f"rank {one.rank}", one.step_s, size)
        for one in seen.ranks
        if len(one.step_s) >= size
    ]
    if curves:
        yield Chart(
            title="Time of a step",
            x_label="steps after warm-up",
            y_label="ms, waiting for a core taken out",
            series=curves,
            notes=[f"each value is the mean of {size} steps"] if size > 1 else [],
        )


def _means(name: str, step_s: Sequence[float], size: int) -> Series:
    groups = [step_s[at : at + size] for at in range(0, len(step_s) - size + 1, size)]
    return Series(
        name=name,
        x=[float(size * (place + 1)) for place in range(len(groups))],
        y=[1000 * sum(group) / size for group in groups],
    )
