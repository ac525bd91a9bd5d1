"""Readings at any times as a resource series at a fixed interval."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.records import ResourceSeries
from advisor.records.nouns import Role

Floats = NDArray[np.float64]


def gauge(t_s: ArrayLike, values: ArrayLike, grid_s: Floats) -> Floats:
    """Return a gauge on a grid, linear between readings and constant outside.

    ``t_s``, ``values``: (n,); readings in any order; those that are not finite are dropped;
    ``grid_s``: shape (m,).
    """
    t, v = _ordered(t_s, values)
    return np.asarray(np.interp(grid_s, t, v) if t.size else np.zeros_like(grid_s), float)


def rate(t_s: ArrayLike, counter: ArrayLike, grid_s: Floats) -> Floats:
    """Return the mean rate of a counter over the interval that ends at each point of a grid.

    A counter that falls was reset: the fall is not counted.
    """
    t, v = _ordered(t_s, counter)
    if t.size < 2 or grid_s.size == 0:
        return np.zeros_like(grid_s)
    total = np.concatenate(([0.0], np.cumsum(np.maximum(np.diff(v), 0.0))))
    step_s = grid_s[1] - grid_s[0] if grid_s.size > 1 else max(float(t[-1] - t[0]), 1e-9)
    gained = np.interp(grid_s, t, total) - np.interp(grid_s - step_s, t, total)
    return np.asarray(gained / step_s, float)


def grid(duration_s: float, interval_s: float) -> Floats:
    """Return the ends of the whole intervals that fit in ``duration_s``."""
    return np.asarray(np.arange(1, int(duration_s / interval_s + 1e-9) + 1) * interval_s, float)


def resource_series(
    channels: Mapping[str, Floats], interval_s: float, role: Role = "all"
) -> ResourceSeries:
    """Return the series of some channels, rounded to six figures to keep files small."""
    return ResourceSeries(
        role=role,
        interval_s=interval_s,
        channels={
            name: tuple(float(f"{max(v, 0.0):.6g}") for v in values)
            for name, values in channels.items()
        },
    )


def _ordered(t_s: ArrayLike, values: ArrayLike) -> tuple[Floats, Floats]:
    t, v = np.asarray(t_s, float), np.asarray(values, float)
    usable = np.isfinite(t) & np.isfinite(v)
    order = np.argsort(t[usable], kind="stable")
    return t[usable][order], v[usable][order]
