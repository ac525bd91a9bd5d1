"""Similar samples of a batch: which stand for the others, and what choosing them takes."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import check_positive

# What a sample that is dropped costs beside the distances: calls of numpy, and rows that are
# searched anew (lab/experiments/stragglers.py selection, 2026-11-24). [s], [s a sample]
_DROP_S: Final = 4.5e-6
_DROP_EACH_S: Final = 8e-9
_MIRROR_S: Final = 1.5e-9  # for each pair of a symmetric product: columns are read as rows [s]
# Passes over the (n, n) distances: they are made, cleared and searched. [accesses of 4 bytes]
_DISTANCE_PASSES: Final = 8.0
# Numbers of a sample, from which the product is made by halves, and up to which halves are quick:
# a longer row leaves the cache before it is used again.
_LONG_ROW: Final = 512
_LONGEST_ROW: Final = 32768


def representatives(samples: ArrayLike, keep: int) -> NDArray[np.int64]:
    """Return which samples of a batch are kept: one of the nearest two goes, again and again.

    ``samples``: (n, ...); in any unit.

    Raises ValueError if none or more than all are kept.

    Examples
    --------
    >>> representatives([[0.0], [0.1], [5.0], [9.0]], 3).tolist()
    [1, 2, 3]
    """
    flat = np.asarray(samples, np.float32).reshape(len(np.asarray(samples)), -1)
    if not 1 <= keep <= len(flat):
        raise ValueError(f"{keep} of {len(flat)} samples")
    square = np.einsum("ij,ij->i", flat, flat)
    # BLAS makes half of a symmetric product, and numpy mirrors it: that pays where rows are long.
    other = flat.T if flat.shape[1] >= _LONG_ROW else np.ascontiguousarray(flat.T)
    apart = flat @ other
    apart *= -2.0  # in place: new pages for each pass would take longer than the pass
    apart += square[:, None]
    apart += square[None, :]
    np.fill_diagonal(apart, np.inf)
    nearest = apart.argmin(axis=1)
    gap = apart[np.arange(len(flat)), nearest]
    away = np.zeros(len(flat), np.float32)  # inf for those that went: no column is cleared
    for _ in range(len(flat) - keep):
        gone = int(gap.argmin())
        away[gone] = gap[gone] = np.inf
        nearest[gone] = -1
        for one in np.flatnonzero(nearest == gone):
            row = apart[one] + away
            nearest[one] = row.argmin()
            gap[one] = row[nearest[one]]
    return np.flatnonzero(nearest >= 0)


def selection_s(
    samples: float, keep: float, sample_bytes: float, *, flop_per_s: float,
    memory_bytes_per_s: float,
) -> float:  # fmt: skip
    """Return what ``representatives`` takes of one batch on an ordinary rank [s].

    ``sample_bytes``: of one sample as tensors of 4 bytes a number; ``flop_per_s``,
    ``memory_bytes_per_s``: of the processor that chooses.
    """
    check_positive("selection", samples=samples, sample_bytes=sample_bytes)
    check_positive("selection", flop_per_s=flop_per_s, memory_bytes_per_s=memory_bytes_per_s)
    size = sample_bytes / 4.0
    products_s = 2.0 * samples**2 * size / flop_per_s
    if _LONG_ROW <= size <= _LONGEST_ROW:
        products_s = products_s / 2.0 + _MIRROR_S * samples**2
    moved = 4.0 * _DISTANCE_PASSES * samples**2 + 3.0 * samples * sample_bytes
    each_s = _DROP_S + _DROP_EACH_S * samples
    return products_s + moved / memory_bytes_per_s + each_s * max(samples - keep, 0.0)
