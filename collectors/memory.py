"""Memory to rent for what was seen to be used, and what another batch would need.

=============  ================================================================================
name           meaning [bytes]
=============  ================================================================================
fixed          parameters, gradients, optimizer state: what a batch of any size needs
growing        activations and their gradients: in proportion to the micro-batch
=============  ================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.collectors.recording import DeepStep, Reading

GIB = 2**30

# The peak of a minute is not the peak of a day: allocators fragment, the last batch of an epoch,
# validation and checkpoints come later.
MARGIN = 1.2
# Memory is sold in these steps; above the last, in multiples of it. [GiB]
_STEPS_GIB = (0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def advised_memory_bytes(peak_bytes: int) -> int:
    """Return the memory to ask for: the peak with a margin, rounded up to what is sold.

    Examples
    --------
    >>> advised_memory_bytes(800 * 2**20) == 2**30
    True
    """
    if peak_bytes < 0:
        raise ValueError(f"a peak of {peak_bytes} bytes is out of range")
    wanted = peak_bytes * MARGIN / GIB
    for step in _STEPS_GIB:
        if wanted <= step:
            return int(step * GIB)
    last = _STEPS_GIB[-1]
    return int(-(-wanted // last) * last) * GIB


def peak_memory_bytes(readings: Sequence[Reading], largest_process_bytes: int = 0) -> int:
    """Return the largest memory of all processes together, shared pages counted once.

    Forked loader workers have their parent's pages in their own resident set too. Recordings of
    earlier versions looked seldom for what is shared, and not in their first seconds: there the
    resident memory counts by the share of it that was proportional when it was looked.

    Parameters
    ----------
    largest_process_bytes : int
        Largest resident memory of any single process; proportional memory is divided by strangers
        as well, hence the result is no less than this. [bytes]
    """
    if readings and readings[0].pss_bytes is not None:
        peak = max(reading.pss_bytes or 0 for reading in readings)
    else:
        peak = _peak_by_shares(readings)
    return max(peak, largest_process_bytes)


def _peak_by_shares(readings: Sequence[Reading]) -> int:
    peak = 0.0
    share = next((one for one in map(_proportional_share, readings) if one), 1.0)
    before = None
    for reading in readings:
        if reading.pss_bytes != before:
            before, share = reading.pss_bytes, _proportional_share(reading) or share
        peak = max(peak, reading.rss_bytes * share)
    return int(peak)


def _proportional_share(reading: Reading) -> float:
    """Return the proportional share of the resident memory; 0 where it is not known."""
    if reading.pss_bytes is None or not reading.rss_bytes:
        return 0.0
    return min(1.0, reading.pss_bytes / reading.rss_bytes)


def step_memory_bytes(deep: DeepStep, samples: float) -> float:
    """Return the peak of tensor memory in a step over ``samples`` samples, as one micro-batch.

    max over the moments of the traced step of fixed + growing samples / traced samples: with the
    batch the peak moves from the optimizer over the end of the backward pass to its beginning.

    Raises
    ------
    ValueError
        If the memory of the step was not followed.
    """
    if not deep.memory_frontier:
        raise ValueError("the step's memory was not followed")
    ratio = samples * deep.micro_batches / deep.samples
    return max(fixed + growing * ratio for fixed, growing, _ in deep.memory_frontier)
