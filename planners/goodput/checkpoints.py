"""The time of a save, and the standstill when nodes go or come.

====================  ==========================================================================
here                  meaning, unit
====================  ==========================================================================
``state_bytes``       parameters and optimizer state as saved. [bytes]
``bytes_per_s``       what one node writes to where checkpoints lie. [bytes/s]
``nodes``             that write their parts side by side.
====================  ==========================================================================

Sources: BigScience (25 to 181 billion parameters, 14 bytes each, saved in 18 to 20 s from 8 to 64
nodes: 2.0 to 2.4 GB/s a node on a parallel file system); Parcae's measured restarts (V100,
10 Gb/s, 1 to 32 nodes).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core.errors import PlanningError
from advisor.planners.core.units import GB, GIB

Column = NDArray[np.float64]

# Adam in mixed precision: bf16 parameters and fp32 master, first and second moment.
BYTES_PER_PARAMETER = 14.0
# A parallel file system's share of a node (BigScience); a cloud's default disk gives a tenth.
NODE_BYTES_PER_S = 2.0 * GB


def save_s(
    state_bytes: ArrayLike,
    *,
    nodes: ArrayLike = 1,
    bytes_per_s: ArrayLike = NODE_BYTES_PER_S,
    disk_bytes: float | None = None,
    kept: int = 2,
) -> Column:
    """Return how long the job stands still for one save, written by all nodes side by side [s].

    Parameters
    ----------
    state_bytes : array-like of shape (n,)
        [bytes]
    nodes : array-like of shape (n,)
    bytes_per_s : array-like
        Of one node. [bytes/s]
    disk_bytes : float, optional
        Space for checkpoints. [bytes]
    kept : int
        Checkpoints on the disk at once: the new one is written before the old one goes.

    Raises
    ------
    PlanningError
        If the checkpoints do not fit the disk (exit code 3), or a value makes no sense.

    Examples
    --------
    >>> round(float(save_s(181e9 * BYTES_PER_PARAMETER, nodes=64)[0]), 1)  # published: 18 to 20 s
    19.8
    """
    size = np.atleast_1d(np.asarray(state_bytes, float))
    rate = np.asarray(bytes_per_s, float) * np.asarray(nodes, float)
    if not (np.all(size >= 0) and np.all(rate > 0) and kept >= 1):
        raise PlanningError(
            f"a checkpoint of {size.min():g} bytes, written at {rate.min():g} bytes/s, is "
            "out of range",
            hint="give bytes and bytes per second",
            exit_code=2,
        )
    if disk_bytes is not None and float(size.max()) * kept > disk_bytes:
        raise PlanningError(
            f"{kept} checkpoints of {size.max() / GIB:.1f} GiB do not fit the disk's "
            f"{disk_bytes / GIB:.1f} GiB",
            hint="rent a larger disk, or save to an object store",
            exit_code=3,
        )
    seconds: Column = size / rate
    return seconds


def restart_after_removal_s(nodes: ArrayLike) -> Column:
    """Return the standstill after nodes were taken from a job of so many [s].

    ``43.3 + 9.4 sqrt(n)``: least squares on Parcae's nine measurements (3 % off at most); the root
    was chosen after a look at them. The first four alone (up to 8 nodes) predict the rest within
    7 %.
    """
    removal: Column = 43.3 + 9.4 * np.sqrt(np.asarray(nodes, float))
    return removal


# After nodes were added Parcae's jobs stood still for 29 to 43 s, 37 s on average, whatever their
# number.
RESTART_AFTER_ADDITION_S = 37.0
