"""Pareto fronts of time and cost, as small pure functions on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Rows that are set against all others first, where there are many.
_SAMPLE: Final = 1000


def pareto_front(time: ArrayLike, cost: ArrayLike) -> NDArray[np.int64]:
    """Return the rows that no other row beats in both time and cost, fastest first.

    A row beats another if it is no worse in both and better in one; of equal rows the first
    stays. Rows with nan are never on the front.

    Returns
    -------
    integer array
        Rows by rising time, and so by falling cost.

    Examples
    --------
    >>> pareto_front([1.0, 2.0, 3.0, 3.0], [9.0, 5.0, 6.0, 4.0]).tolist()
    [0, 1, 3]
    """
    t, c = np.asarray(time, float), np.asarray(cost, float)
    rows = np.flatnonzero(np.isfinite(t) & np.isfinite(c))
    if rows.size > 4 * _SAMPLE:  # a few rows beat most of the others, and sorting is what costs
        few = rows[:: rows.size // _SAMPLE]
        few = few[pareto_front(t[few], c[few])]
        rows = rows[c[rows] <= bar_of(t[few], c[few], t[rows])]
    order = rows[np.lexsort((rows, c[rows], t[rows]))]
    if order.size == 0:
        return np.zeros(0, dtype=np.int64)
    cheapest_before = np.concatenate(([np.inf], np.minimum.accumulate(c[order])[:-1]))
    return np.asarray(order[c[order] < cheapest_before], dtype=np.int64)


def bar_of(
    front_time: NDArray[np.float64], front_cost: NDArray[np.float64], time: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the cost that each time has to stay below: the least of a front that is no slower.

    ``front_time``, ``front_cost``: (k,); by rising time and falling cost.

    Returns
    -------
    float array of shape (n,)
        inf where the front has nothing as fast.
    """
    place = np.searchsorted(front_time, time, side="right")
    return np.concatenate([[np.inf], front_cost])[place]


def spread_out(
    time: ArrayLike, cost: ArrayLike, size: int, *, first: Sequence[int] = ()
) -> NDArray[np.int64]:
    """Choose ``size`` rows that cover a front evenly, both ends among them.

    The next row chosen is always the one farthest from all chosen so far, in logarithms, since a
    user weighs factors ("twice as fast"), not differences.

    ``time``, ``cost``: (n,); positive, in the order of the front; ``size``: at least 1; ``first``:
    rows to choose before both ends; no more than ``size``.

    Returns
    -------
    integer array
        Rising rows.
    """
    points = np.column_stack([np.log(np.asarray(time, float)), np.log(np.asarray(cost, float))])
    if len(points) <= size:
        return np.arange(len(points))
    chosen = list(dict.fromkeys((*first, 0, len(points) - 1)))[:size]
    distance = np.min([np.linalg.norm(points - points[i], axis=1) for i in chosen], axis=0)
    while len(chosen) < size:
        farthest = int(np.argmax(distance))
        chosen.append(farthest)
        distance = np.minimum(distance, np.linalg.norm(points - points[farthest], axis=1))
    return np.array(sorted(chosen))
