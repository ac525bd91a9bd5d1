"""Samples as they are shown: three percentiles, and the share that has ended by a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from advisor.show import Series

LEVELS: Final = {"p10": 0.1, "p50": 0.5, "p90": 0.9}


def percentiles(samples: ArrayLike) -> tuple[float, ...]:
    """Return the values at ``LEVELS``, between two samples where need be."""
    return tuple(np.quantile(np.asarray(samples, float), list(LEVELS.values())).tolist())


def sample_percentiles(samples: ArrayLike) -> tuple[float, ...]:
    """Return samples themselves at ``LEVELS``, since some may be infinite."""
    found = np.quantile(np.asarray(samples, float), list(LEVELS.values()), method="inverted_cdf")
    return tuple(found.tolist())


def named(values: Sequence[float]) -> dict[str, float | None]:
    """Return the JSON form of percentiles; what is infinite is null."""
    return dict(zip(LEVELS, map(finite, values), strict=True))


def finite(value: float | None) -> float | None:
    """Return a value, and None in place of an infinite one."""
    return value if value is not None and np.isfinite(value) else None


def ended(name: str, samples: ArrayLike) -> Series:
    """Return the curve of the share of samples that are below a value."""
    x = np.sort(np.asarray(samples, float))
    share = (np.arange(x.size) + 1) / x.size
    return Series(name=name, x=x.tolist(), y=share.tolist(), shape="steps")
