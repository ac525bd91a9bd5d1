"""Charts: axes, series and notes, which ``draw`` turns into pictures and text.

Both draw the same data (``Series.points``) over the same spans with the same ticks (``Chart.x``,
``Chart.y``), so that a terminal and a file show one thing. Ticks are matplotlib's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Literal

from advisor.collectors.format import Reading
from advisor.words import devices_words, machines_words, picked_as_words, time_text

if TYPE_CHECKING:
    from advisor.collectors.format import Reading, Recording


# Largest over smallest value from which an axis is logarithmic where a chart leaves it open: on a
# linear one the smaller half of the values would share less than an eighth of the length.
WIDE_SPAN: Final = 8.0
TOGETHER: Final = "\u00a0"  # a space of a note at which no line ends
# Of a logarithmic axis's ticks in every decade, the most that fit.
_LEADING_DIGITS: Final = ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,))
# What an axis shows beyond its values, as a share of its length.
_HEADROOM: Final = 0.05
Shape = Literal["line", "steps", "area", "vertical", "points"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of a series that can be drawn, with its label and what it may as well be."""

    x: float
    y: float
    label: str = ""
    x_bounds: tuple[float, float] | None = None
    y_bounds: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One curve."""

    name: str
    # x, y: points that are not finite are left out
    x: Sequence[float]
    y: Sequence[float] = ()
    # ``steps`` holds each value until the next x; ``area`` fills steps down to 0; ``vertical``
    # draws a line across the chart at the first x; ``points`` draws a mark at each, with its label
    # and its bounds
    shape: Shape = "line"
    labels: Sequence[str] = ()
    x_bounds: Sequence[tuple[float, float]] = ()
    y_bounds: Sequence[tuple[float, float]] = ()
    is_minor: bool = False  # drawn faintly, and without its bounds where there is little room

    def points(self) -> Iterator[Point]:
        """Yield what can be drawn at a place: the finite ones."""
        if self.shape == "vertical":
            return
        for place, (x, y) in enumerate(zip(self.x, self.y, strict=True)):
            if math.isfinite(x) and math.isfinite(y):
                yield Point(
                    x=x,
                    y=y,
                    label=self.labels[place] if self.labels else "",
                    x_bounds=self.x_bounds[place] if self.x_bounds else None,
                    y_bounds=self.y_bounds[place] if self.y_bounds else None,
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One direction of a chart: its label, and the values it spans."""

    label: str
    low: float
    high: float
    is_logarithmic: bool

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Return at most ``most`` round values within the span, and what stands at them."""
        from matplotlib.ticker import LogLocator, MaxNLocator

        locators: list[Any] = [MaxNLocator(nbins=max(most - 1, 1), steps=[1, 2, 5, 10])]
        if self.is_logarithmic:
            locators = [LogLocator(subs=subs, numticks=100) for subs in _LEADING_DIGITS] + locators
        for locator in locators:
            values = [v for v in map(float, locator.tick_values(self.low, self.high))
                      if self.low <= v <= self.high]  # fmt: skip
            if 2 <= len(values) <= most:
                break
        return [(value, f"{value:.6g}") for value in values[:: -(-len(values) // most) or 1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Axes and what is drawn on them; units belong in the labels.

    ``x_range`` and ``y_range`` default to the data with some headroom, from 0 where ``y`` is
    linear. ``is_x_logarithmic`` and ``is_y_logarithmic`` may be None: then the axis is where the
    values span more than ``WIDE_SPAN``. A logarithmic axis has positive values.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    is_x_logarithmic: bool | None = False
    is_y_logarithmic: bool | None = False
    notes: Sequence[str] = field(default=())

    @property
    def x(self) -> Axis:
        """The horizontal axis."""
        values = [v for one in self.series for p in one.points() for v in _values(p.x, p.x_bounds)]
        values += [one.x[0] for one in self.series if one.shape == "vertical"]
        is_padded = all(one.shape == "points" for one in self.series)
        return _axis(self.x_label, values, self.x_range, self.is_x_logarithmic, is_padded)

    @property
    def y(self) -> Axis:
        """The vertical axis."""
        values = [v for one in self.series for p in one.points() for v in _values(p.y, p.y_bounds)]
        return _axis(self.y_label, values, self.y_range, self.is_y_logarithmic, True)


def _values(value: float, bounds: tuple[float, float] | None) -> tuple[float, ...]:
    return (value,) if bounds is None else (value, *bounds)


def _axis(
    label: str, values: Sequence[float], given: tuple[float, float] | None,
    is_logarithmic: bool | None, is_padded: bool,
) -> Axis:  # fmt: skip
    """Return an axis over what is given, or over the finite values."""
    finite = [value for value in values if math.isfinite(value)]
    if is_logarithmic is None:
        is_logarithmic = min(finite, default=0) > 0 and max(finite) > WIDE_SPAN * min(finite)
    if is_logarithmic:
        finite = [value for value in finite if value > 0] or [1.0, 10.0]
    low, high = given or (min(finite, default=0.0), max(finite, default=1.0))
    if given is None and not is_logarithmic:
        low = min(low, 0.0) if is_padded else low
        high += _HEADROOM * (high - low) if is_padded else 0.0
    if given is None and is_logarithmic and is_padded:
        room = (high / low) ** _HEADROOM
        low, high = low / room, high * room
    if high <= low:
        low, high = (low / 2, low * 2) if is_logarithmic else (low, low + 1.0)
    return Axis(label=label, low=low, high=high, is_logarithmic=is_logarithmic)


# What was predicted against what was measured, as a chart: on the line both are equal.


def compared_charts(record: Mapping[str, Any]) -> list[Chart]:
    """Return the chart of the real runs in the record of ``advisor runs compare --json``."""
    runs = record["runs"]
    if not runs:
        return []
    inside = [one for one in runs if one["inside"]]
    outside = [one for one in runs if not one["inside"]]
    labels = {id(one): str(number) for number, one in enumerate(runs, 1)}
    series = [
        Series(
            name=name,
            x=[one["actual_h"] for one in rows],
            y=[one["predicted_h"] for one in rows],
            y_bounds=[(one["low_h"], one["high_h"]) for one in rows],
            labels=[labels[id(one)] for one in rows],
            shape="points",
        )
        for name, rows in (("inside the interval", inside), ("outside", outside))
        if rows
    ]
    return [
        agreement_chart("Predicted against real runs", "h", series, notes=[
            "   ".join(_named(labels[id(one)], one) for one in runs)
        ])
    ]  # fmt: skip


def _named(label: str, one: Mapping[str, Any]) -> str:
    part = one["configuration"]
    return f"{label}: {part['count']} x {part['instance_type']}".replace(" ", TOGETHER)


def agreement_chart(
    title: str, unit: str, series: Sequence[Series], *, notes: Sequence[str]
) -> Chart:
    """Return what was predicted over what was measured, with the line where both are equal."""
    ends = [
        value
        for one in series
        for point in one.points()
        for value in (point.x, point.y, *(point.y_bounds or ()))
        if value > 0
    ]
    low, high = min(ends), max(ends)
    line = Series(name="predicted = measured", x=[low, high], y=[low, high], is_minor=True)
    return Chart(
        title=title,
        x_label=f"measured ({unit})",
        y_label=f"predicted ({unit})",
        series=[line, *series],
        is_x_logarithmic=True,
        is_y_logarithmic=True,
        notes=notes,
    )


# Candidates as a chart: training time against cost, numbered as in the table.


TIME_LABEL: Final = "training time (h)"
COST_LABEL: Final = "cost (USD)"
_OTHERS: Final = "other candidates"


def front_chart(record: Mapping[str, Any], *, names: bool = False) -> list[Chart]:
    """Return time against cost, a numbered point a row of an answer; nothing without rows.

    ``record``: of ``advisor recommend --json``; each of its picks has a colour of its own;
    ``names``: write what computes beside the numbers at the points; else it stands in a note;
    False by default.
    """
    shown = record["front"] or record["nearest"]
    if not shown:
        return []
    picked: dict[str, list[Mapping[str, Any]]] = {}
    for one in shown:
        picked.setdefault(picked_as_words(record, one["rank"]), []).append(one)
    order = sorted(picked, key=lambda label: (label != "", label))  # the others lie below
    return [
        Chart(
            title=_title(record),
            x_label=TIME_LABEL,
            y_label=COST_LABEL,
            series=[_points(label, picked[label], names=names) for label in order],
            is_x_logarithmic=None,
            is_y_logarithmic=None,
            notes=list(_notes(record, shown, names=names)),
        )
    ]


def _title(record: Mapping[str, Any]) -> str:
    what = "Time against cost" if record["front"] else "Time against cost of the nearest misses"
    return f"{what}: {record['run']}"


def _points(name: str, rows: Sequence[Mapping[str, Any]], *, names: bool) -> Series:
    times, costs = ([one[part] for one in rows] for part in ("training_time_h", "cost_usd"))
    return Series(
        name=name or _OTHERS,
        x=[one["value"] for one in times],
        y=[one["value"] for one in costs],
        x_bounds=[(one["low"], one["high"]) for one in times],
        y_bounds=[(one["low"], one["high"]) for one in costs],
        labels=[_front_named(one) if names else str(one["rank"]) for one in rows],
        shape="points",
        is_minor=not name,
    )


def _front_named(one: Mapping[str, Any]) -> str:
    return f"{one['rank']}: {devices_words(one['configuration'])}"


def _notes(
    record: Mapping[str, Any], shown: Sequence[Mapping[str, Any]], *, names: bool
) -> Iterator[str]:
    """Yield what the numbers are, and this machine, which costs nothing and has no place."""
    if not names:
        yield "   ".join(_front_named(one).replace(" ", TOGETHER) for one in shown)
    here = record.get("here")
    if here is not None and here["cost_usd"]["high"] == 0:
        picked = picked_as_words(record, "here")
        time = time_text(here).replace(" ", TOGETHER)
        yield f"this machine: {time}, free{f' ({picked})' if picked else ''}"


# Layouts of a job as a chart: time of a step against the memory of the fullest device.


def plan_charts(record: Mapping[str, Any]) -> list[Chart]:
    """Return the chart of the record of ``advisor plan --json``, the chosen layout in colour."""
    plans = record["plans"]
    if not plans:
        return []
    chosen, others = [(1, plans[0])], list(enumerate(plans[1:], 2))
    series = [_plans_points("also", others, is_minor=True)] if others else []
    series.append(_plans_points("chosen", chosen, is_minor=False))
    notes = ["   ".join(_plans_named(place, one) for place, one in enumerate(plans, 1))]
    return [
        Chart(
            title="Layouts: time of a step against memory",
            x_label="time of a step (s)",
            y_label="memory of the fullest device (GiB)",
            series=series,
            is_x_logarithmic=True,  # layouts are near one another, and far from 0
            notes=notes,
        )
    ]


def _plans_points(
    name: str, plans: list[tuple[int, Mapping[str, Any]]], *, is_minor: bool
) -> Series:
    times = [one["step_time_s"] for _, one in plans]
    return Series(
        name=name,
        x=[time["value"] for time in times],
        y=[one["memory_gib"] for _, one in plans],
        x_bounds=[(time["low"], time["high"]) for time in times],
        labels=[str(place) for place, _ in plans],
        shape="points",
        is_minor=is_minor,
    )


def _plans_named(place: int, one: Mapping[str, Any]) -> str:
    return f"{place}: {one['name']} on {machines_words(one['configuration'])}".replace(
        " ", TOGETHER
    )


# What a run used over time, for people to look at: rates and steps, thinned to what can be seen.
#
# Readings are cumulative counters at uneven ticks. A point stands for an equal stretch of time:
# counters as their mean rate over it, gauges as their largest value in it.


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


# What a run recorded, as charts: its resources over time, and the time of its steps.


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
