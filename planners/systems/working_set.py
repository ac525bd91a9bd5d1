"""The memory that a program touches, against the memory that it holds.

What a program holds and does not touch may be taken (``harvest``), at a cost.

====================  ==========================================================================
here                  meaning, unit
====================  ==========================================================================
``window_s``    tau   after which it is looked which pages were touched since its begin. [s]
``touched``     W     mean memory touched in a window of that length. [bytes]
``fault_s``           to bring one page back. [s]
``loss``              time waited for pages over time [fraction]
====================  ==========================================================================

    pages untouched for tau are taken:  what comes back is  m(tau) = dW / d tau   [bytes/s]
    loss(tau) = m(tau) / page x fault_s
    limit     = (1 + headroom) x most touched in any window of up to tau

The slope is Denning's law (the miss rate of a working set of age tau is the growth of its mean
size). It is read off the chord from the length before, the first one's from nothing at all: W
bends down, so a chord is no less steep than W at its end. A program is limited at the shortest
age whose loss stays below ``MOST_LOSS``, what Memtrade's producers lost at most.

Sources: Denning 1968, Denning and Schwartz 1972; Memtrade (arXiv 2108.06893) for the loss;
headroom and latencies are orders of magnitude, so that the loss is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import check_not_negative, check_positive

MOST_LOSS: Final = 0.021
HEADROOM: Final = 0.1
PAGE_BYTES: Final = 4096
# To bring a page back, by where it lies. [s]
FAULT_S: Final = {"rdma": 7.5e-6, "nvme": 100e-6, "disk": 5e-3}


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchedWindow:
    """The memory that a program touched in one window.

    Raises PlanningError if an amount makes no sense.
    """

    window_s: float
    # touched_bytes, resident_bytes: touched in it, and held at its end [bytes]
    touched_bytes: float
    resident_bytes: float

    def __post_init__(self) -> None:
        check_positive("window", window_s=self.window_s)
        check_not_negative(
            "window", window_s=self.window_s, touched_bytes=self.touched_bytes,
            resident_bytes=self.resident_bytes,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchedCurve:
    """Mean memory touched by the length of a window."""

    window_s: NDArray[np.float64]  # (n,); lengths, shortest first [s]
    # (n,); never falling: a longer window sees all that a shorter one sees [bytes]
    touched_bytes: NDArray[np.float64]

    def return_bytes_per_s(self) -> NDArray[np.float64]:
        """Return what comes back a second if pages of each age are taken [bytes/s]."""
        slope = np.diff(self.touched_bytes, prepend=0.0) / np.diff(self.window_s, prepend=0.0)
        # A steeper chord after a flatter one is noise of other times: the slope never rises.
        return np.maximum.accumulate(slope[::-1])[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """The memory that may be taken of a program."""

    age_s: float  # pages untouched for so long are taken [s]
    limit_bytes: float  # what it is left with [bytes]
    # resident_bytes, touched_bytes: the most that it held, and that it touched in a window up to
    # that age [bytes]
    resident_bytes: float
    touched_bytes: float
    loss_fraction: float  # expected, of its time

    @property
    def harvested_bytes(self) -> float:
        """Memory that others may have meanwhile [bytes]."""
        return max(0.0, self.resident_bytes - self.limit_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Borrowed:
    """What a program pays that has less memory than it touches: the rest lies elsewhere."""

    age_s: float  # pages untouched for so long lie elsewhere [s]
    borrowed_bytes: float  # of what it holds at most [bytes]
    loss_fraction: float  # waited for pages, over the time of running
    is_least: bool  # less memory than the shortest window touched: it may be more


def curve_of(windows: Sequence[TouchedWindow]) -> TouchedCurve:
    """Return the mean memory touched by windows of each length.

    Windows count as equally long within a quarter: the recorder waits for the machine.
    """
    ordered = sorted(windows, key=lambda one: one.window_s)
    groups: list[list[TouchedWindow]] = []
    for one in ordered:
        if groups and one.window_s <= 1.25 * groups[-1][0].window_s:
            groups[-1].append(one)
        else:
            groups.append([one])
    means = [float(np.mean([one.touched_bytes for one in group])) for group in groups]
    return TouchedCurve(
        window_s=np.array([float(np.mean([one.window_s for one in g])) for g in groups]),
        touched_bytes=np.maximum.accumulate(means) if means else np.empty(0),
    )


def harvest(
    windows: Sequence[TouchedWindow], *, fault_s: float, most_loss: float = MOST_LOSS,
    headroom: float = HEADROOM,
) -> Harvest | None:  # fmt: skip
    """Return the least memory at which a program loses no more than ``most_loss``.

    ``windows``: of its ordinary running, of several lengths; ``fault_s``: to bring a page back
    [s]; ``most_loss``, ``headroom``: [fraction].

    Raises PlanningError if an amount makes no sense.

    Returns
    -------
    Harvest, or None where every age costs more.
    """
    check_positive("harvest", fault_s=fault_s)
    check_not_negative("harvest", fault_s=fault_s, most_loss=most_loss, headroom=headroom)
    curve = curve_of(windows)
    losses = curve.return_bytes_per_s() / PAGE_BYTES * fault_s
    good = np.flatnonzero(losses <= most_loss)
    if not good.size:
        return None
    age_s = float(curve.window_s[good[0]])
    touched = max(one.touched_bytes for one in windows if one.window_s <= 1.25 * age_s)
    resident = max(one.resident_bytes for one in windows)
    return Harvest(
        age_s=age_s, limit_bytes=min((1.0 + headroom) * touched, resident),
        resident_bytes=resident, touched_bytes=touched, loss_fraction=float(losses[good[0]]),
    )  # fmt: skip


def borrow(
    windows: Sequence[TouchedWindow], memory_bytes: float, *, fault_s: float,
    bytes_per_s: float = np.inf,
) -> Borrowed | None:  # fmt: skip
    """Return what a program pays in time that is left with ``memory_bytes`` of its own.

    The kernel keeps what was touched last: pages that are older than the age whose windows fill
    the memory come back at Denning's rate, each for ``fault_s`` [s] and its way over a link of
    ``bytes_per_s``. None where no window was recorded.

    Raises PlanningError if an amount makes no sense.
    """
    check_positive(
        "borrowing", memory_bytes=memory_bytes, fault_s=fault_s, bytes_per_s=bytes_per_s
    )
    curve = curve_of(windows)
    if not curve.window_s.size:
        return None
    resident = max(one.resident_bytes for one in windows)
    page_s = fault_s + PAGE_BYTES / bytes_per_s
    # The age whose windows fill the memory, and the slope there: a chord's is that of its middle.
    ages = np.append(0.0, curve.window_s)
    age_s = float(np.interp(memory_bytes, np.append(0.0, curve.touched_bytes), ages))
    rate = float(np.interp(age_s, 0.5 * (ages[1:] + ages[:-1]), curve.return_bytes_per_s()))
    if memory_bytes >= resident:
        rate = 0.0  # nothing lies elsewhere
    return Borrowed(
        age_s=age_s, borrowed_bytes=max(0.0, resident - memory_bytes),
        loss_fraction=rate / PAGE_BYTES * page_s,
        is_least=memory_bytes < float(curve.touched_bytes[0]),
    )  # fmt: skip
