"""Charts: axes, series and notes, which ``draw`` turns into pictures and text.

Both draw the same data (``Series.points``) over the same spans with the same ticks (``Chart.x``,
``Chart.y``), so that a terminal and a file show one thing. Ticks are matplotlib's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

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
    role: str = ""  # what is picked by it, which has one colour everywhere (``palette.ROLES``)
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
