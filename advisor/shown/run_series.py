"""What a run recorded, as charts: its resources over time, and the time of its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from advisor.shown import thinned
from advisor.shown.chart import Chart, Series

if TYPE_CHECKING:
    from advisor.collectors.recording import Reading, Recording

# A curve has as many values as a wide terminal's Braille or a picture can tell apart.
MOST_POINTS: Final = 240
_MIB: Final = 2.0**20
_GIB: Final = 2.0**30
_TIME: Final = "seconds since the start"
# Chart, its axis, what its unit is, whether its curves are rates, and name and column of each.
_RESOURCES: Final = (
    ("Processor", "cores", 1.0, True, (("busy", "cpu_cores"), ("waited for", "waiting_cores"))),
    ("Memory", "GiB", _GIB, False, (("resident", "memory_bytes"),)),
    ("Disk", "MiB/s", _MIB, True,
     (("read", "disk_read_bytes_per_s"), ("written", "disk_write_bytes_per_s"))),
    ("Network", "MiB/s", _MIB, True,
     (("received", "network_received_bytes_per_s"), ("sent", "network_sent_bytes_per_s"))),
    ("GPU", "share of the time that it is busy", 1.0, False, (("busy", "gpu_fraction"),)),
    ("GPU memory", "GiB", _GIB, False, (("used", "gpu_memory_bytes"),)),
)  # fmt: skip


def run_charts(seen: Recording) -> list[Chart]:
    """Return a chart of each resource that the run used, then its steps; none without either."""
    return [*_resources(seen.readings), *_steps(seen)]


def _resources(readings: Sequence[Reading]) -> Iterator[Chart]:
    table = thinned.readings(readings, MOST_POINTS)
    ends = table["t_s"]
    if not ends:
        return
    begins = [thinned.alive(readings)[0].t_s, *ends[:-1]]
    for title, label, unit, is_rate, named in _RESOURCES:
        curves = [
            _curve(name, begins, ends[-1], _in_units(table[column], unit), is_rate=is_rate)
            for name, column in named
        ]
        used = [curve for curve in curves if any(curve.y)]
        if used:
            yield Chart(title=title, x_label=_TIME, y_label=label, series=used)


def _in_units(values: Sequence[float | None], unit: float) -> list[float | None]:
    return [None if value is None else value / unit for value in values]


def _curve(
    name: str, begins: Sequence[float], end: float, values: Sequence[float | None], *,
    is_rate: bool,
) -> Series:  # fmt: skip
    """Return a rate as steps over its stretches, a gauge as a line; what was not read is out."""
    known = [(x, y) for x, y in zip(begins, values, strict=True) if y is not None]
    x, y = [x for x, _ in known], [y for _, y in known]
    if not is_rate:
        return Series(name=name, x=x, y=y)
    return Series(name=name, x=[*x, end], y=[*y, *y[-1:]] or [0.0], shape="steps")


def _steps(seen: Recording) -> Iterator[Chart]:
    """Yield the steps of every rank in order; where they are many, means of equal numbers."""
    tables = {one.rank: thinned.steps(one.step_s, MOST_POINTS) for one in seen.ranks if one.step_s}
    curves = [_means(f"rank {rank}", table) for rank, table in tables.items()]
    size = max((table["steps_per_point"] for table in tables.values()), default=1)
    if curves:
        yield Chart(
            title="Time of a step",
            x_label="steps after warm-up",
            y_label="ms, waiting for a core taken out",
            series=curves,
            notes=[f"each value is the mean of {size} steps"] if size > 1 else [],
        )


def _means(name: str, table: dict[str, Any]) -> Series:
    each, count = table["steps_per_point"], table["steps"]
    return Series(
        name=name,
        x=[float(min(each * (place + 1), count)) for place in range(len(table["mean_s"]))],
        y=[1000 * value for value in table["mean_s"]],
    )
