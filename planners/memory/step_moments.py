"""Memory of a recorded step beside weights and optimizer state, replayed at any micro-batch.

| here          | meaning                                                                       |
|---------------|-------------------------------------------------------------------------------|
| ``g``, ``t``  | gradients that were there, and what else does not grow, of a moment [bytes]   |
| ``a``         | what grows with the micro-batch ``b`` [bytes/sample]                          |
| ``G``         | gradients of all trained parameters on the device [bytes]                     |

beside(b) = max over moments of g + t + a b. Where gradients are added up over several
micro-batches, or kept from step to step, all of G is there at every moment. Accelerators update
parameters in groups, which takes one more copy of what is updated (``torch.optim`` says so of
``foreach``: about the parameters' size more than a loop over them). What PyTorch's caching
allocator hands out is a multiple of 512 bytes, out of segments of 2 MiB for blocks of up to 1 MiB
and of 20 MiB for blocks of less than 10 MiB (PyTorch's notes on CUDA memory management;
``c10/cuda/CUDACachingAllocator.h``: ``kMinBlockSize``, ``kSmallBuffer``, ``kLargeBuffer``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core.nouns import Work
from advisor.planners.core.units import MIB

Array = NDArray[np.float64]

BLOCK_BYTES = 512
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB


def beside_bytes(
    work: Work,
    micro_batch: ArrayLike,
    *,
    gradient_share: ArrayLike = 1.0,
    update_share: ArrayLike = 1.0,
    accumulates: ArrayLike = True,
    is_cpu: ArrayLike = False,
) -> Array:
    """Return the most that a step holds beside weights and optimizer state [bytes].

    Parameters
    ----------
    gradient_share, update_share : array-like
        Parts of the gradients, and of the parameters that are updated, on one device.
    accumulates : array-like of bool
        Gradients are there at every moment.
    """
    b, share = np.asarray(micro_batch, float), np.asarray(gradient_share, float)
    always = np.asarray(accumulates, bool)
    updated = np.where(is_cpu, 0.0, np.asarray(update_share, float))
    peak = np.zeros(())
    for moment in work.moments:
        gradients = np.where(always, work.gradient_bytes, moment.gradient_bytes)
        temporary = moment.temporary_bytes * (updated if moment.is_update else 1.0)
        growing = moment.growing_bytes_per_sample * b
        peak = np.maximum(peak, share * gradients + temporary + growing)
    return np.asarray(peak)


def excess_bytes(
    work: Work,
    micro_batch: ArrayLike,
    *,
    gradient_share: ArrayLike = 1.0,
    update_share: ArrayLike = 1.0,
    accumulates: ArrayLike = True,
    is_cpu: ArrayLike = False,
) -> Array:
    """Return what ``beside_bytes`` is more than gradients and saved activations together [bytes].

    Never less than 0 where gradients are there at every moment, and then the same on every share
    of them; 0 where no moment was recorded.
    """
    b, share = np.asarray(micro_batch, float), np.asarray(gradient_share, float)
    if not work.moments:
        return np.zeros(np.broadcast_shapes(b.shape, share.shape))
    beside = beside_bytes(
        work, b, gradient_share=share, update_share=update_share, accumulates=accumulates,
        is_cpu=is_cpu,
    )  # fmt: skip
    return np.asarray(beside - share * work.gradient_bytes - work.saved_bytes_per_sample * b)


def rounding_bytes(work: Work) -> float:
    """Return the most that the caching allocator's rounding adds to a step's blocks [bytes].

    Less than a block's granule for each, and a segment of either pool that is not full.
    """
    blocks = max((moment.blocks for moment in work.moments), default=0)
    return (
        float(BLOCK_BYTES * blocks + SMALL_SEGMENT_BYTES + LARGE_SEGMENT_BYTES) if blocks else 0.0
    )
