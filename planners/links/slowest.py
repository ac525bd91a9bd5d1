"""The slowest of unequal workers: what a synchronous step waits for.

==================  ============================================================================
here                meaning, unit
==================  ============================================================================
``times``      t_i  what was seen of worker i, or is forecast of it: any number of values. [s]
``F_i``             their distribution function, each value as likely as the others.
==================  ============================================================================

    E[max_i t_i] = integral of (1 - product_i F_i(x)) dx, from the least value on

for workers that are slow independently of one another: exact for the values given, in
O(N log N), no draw and no normal curve. ``links.data_parallel`` has the same of equal normal
workers (``expected_maximum``), in closed form.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core.errors import PlanningError

Column = NDArray[np.float64]


def expected_slowest(times: Sequence[ArrayLike]) -> float:
    """Return the expected time of the slowest of unequal workers, independent of one another.

    Parameters
    ----------
    times : sequence of array-like
        One array a worker: its possible times, equally likely; of any length. [s]

    Returns
    -------
    float
        At least the largest of the means, at most the largest value. [s]

    Raises
    ------
    PlanningError
        If there is no worker, or one has no time or one that is no number.

    Examples
    --------
    >>> expected_slowest([[1.0, 3.0], [2.0]])
    2.5
    """
    workers = _checked(times)
    values = np.unique(np.concatenate(workers))
    below = np.ones(values.size)
    for one in workers:
        below *= np.searchsorted(np.sort(one), values, side="right") / one.size
    return float(values[0] + np.dot(1.0 - below[:-1], np.diff(values)))


def loss_to_slowest(times: Sequence[ArrayLike]) -> float:
    """Return the share of a step that the median worker waits for the slowest [fraction]."""
    slowest = expected_slowest(times)
    median = float(np.median([np.median(np.asarray(one, float)) for one in times]))
    return max(0.0, 1.0 - median / slowest) if slowest > 0 else 0.0


def _checked(times: Sequence[ArrayLike]) -> list[Column]:
    workers = [np.asarray(one, float).ravel() for one in times]
    if not workers or any(one.size == 0 or not np.all(np.isfinite(one)) for one in workers):
        raise PlanningError(
            "the slowest worker of none, or of workers without times, is not defined",
            hint="give each worker at least one time",
            exit_code=2,
        )
    return workers
