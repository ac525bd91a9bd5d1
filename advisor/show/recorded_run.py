"""Charts of a recorded run: its resources over time, and the time of its steps.

Readings are cumulative counters at uneven ticks, thinned to what can be seen: a point stands for
an equal stretch of time, counters as their mean rate over it, gauges as their largest value in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from advisor.collectors.format import Reading
from advisor.show.charts import Chart, Series

if TYPE_CHECKING:
    from advisor.collectors.format import Recording

_COUNTERS: Final[Mapping[str, Callable[[Reading], float]]] = {
    "cpu_cores": lambda r: r.cpu_s,
    "waiting_cores": lambda r: r.run_delay_s,
    "disk_read_bytes_per_s": lambda r: float(r.disk_read_bytes),
    "disk_write_bytes_per_s": lambda r: float(r.disk_write_bytes),
    "network_received_bytes_per_s": lambda r: float(r.network_received_bytes),
    "network_sent_bytes_per_s": lambda r: float(r.network_sent_bytes),
}
_GAUGES: Final[Mapping[str, Callable[[Reading], float | None]]] = {
    "memory_bytes": lambda r: float(r.rss_bytes if r.pss_bytes is None else r.pss_bytes),
    "gpu_fraction": lambda r: r.gpu_fraction,
    "gpu_memory_bytes": lambda r: r.gpu_memory_bytes,
    "gpu_power_w": lambda r: r.gpu_power_w,
}


def thinned_readings(seen: Sequence[Reading], most: int) -> dict[str, list[Any]]:
    """Return rates and gauges in at most ``most`` equal stretches; empty below two readings.

    Returns
    -------
    dict
        ``t_s``, where each stretch ends, and a list of its length for every quantity
        (``cpu_cores``, ``memory_bytes``, ...), None where it was not recorded.
    """
    seen = alive(seen)
    if len(seen) < 2 or seen[-1].t_s <= seen[0].t_s:
        return {"t_s": []}
    begin_s, count = seen[0].t_s, min(most, len(seen) - 1)
    width_s = (seen[-1].t_s - begin_s) / count
    parts: dict[int, list[Reading]] = {}
    for one in seen[1:]:
        parts.setdefault(min(int((one.t_s - begin_s) / width_s), count - 1), []).append(one)
    ends = [seen[0], *(part[-1] for part in parts.values())]
    first, *others = parts.values()
    held = [[seen[0], *first], *others]
    found: dict[str, list[Any]] = {"t_s": [end.t_s for end in ends[1:]]}
    for name, read in _COUNTERS.items():
        found[name] = [_rate(a, b, read) for a, b in itertools.pairwise(ends)]
    for name, gauge in _GAUGES.items():
        found[name] = [_largest(map(gauge, part)) for part in held]
    return found


def alive(seen: Sequence[Reading]) -> list[Reading]:
    """Return the readings of a program that is there: the last of one that left holds nothing."""
    return [one for one in seen if one.processes > 0]


def steps(step_s: Sequence[float], most: int) -> dict[str, Any]:
    """Return the steps in order, as many to a point as it takes; the last may hold fewer."""
    each = -(-len(step_s) // most)
    parts = [step_s[at : at + each] for at in range(0, len(step_s), each)]
    return {
        "steps": len(step_s),
        "steps_per_point": each,
        "mean_s": [fmean(part) for part in parts],
        "low_s": [min(part) for part in parts],
        "high_s": [max(part) for part in parts],
    }


def _rate(before: Reading, after: Reading, read: Callable[[Reading], float]) -> float:
    """Return a counter's mean rate; where a process left with its share it counts as nothing."""
    return max(read(after) - read(before), 0.0) / max(after.t_s - before.t_s, 1e-9)


def _largest(values: Any) -> float | None:
    return max((one for one in values if one is not None), default=None)


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
    table = thinned_readings(readings, MOST_POINTS)
    ends = table["t_s"]
    if not ends:
        return
    begins = [alive(readings)[0].t_s, *ends[:-1]]
    for title, label, unit, is_rate, named in _RESOURCES:
        curves = [
            _curve(
                name,
                begins,
                ends[-1],
                [None if one is None else one / unit for one in table[column]],
                is_rate=is_rate,
            )
            for name, column in named
        ]
        used = [curve for curve in curves if any(curve.y)]
        if used:
            yield Chart(title=title, x_label=_TIME, y_label=label, series=used)


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
    tables = {one.rank: steps(one.step_s, MOST_POINTS) for one in seen.ranks if one.step_s}
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
