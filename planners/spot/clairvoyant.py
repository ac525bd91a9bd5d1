"""The least that a job on spot and on-demand nodes can cost by a deadline, the future known.

=========================  =====================================================================
here                       meaning, unit
=========================  =====================================================================
slot                       the grid's step; a node is there in a slot or not. [s]
``U(t, p, m)``             least bill from slot t on with p slots of work done, on m. [slots]
``optimistic``             count a slot as up where the node is there for a part of it.
=========================  =====================================================================

Who knows the future saves before each removal and loses nothing, so work only grows:

    U(t, p, m) = min( price_m + U(t + 1, p + 1, m),  U(t, p, nothing) )
    U(t, p, nothing) = min( U(t + 1, p, nothing),  price_m r + U(t + r, p, m) )

with r slots of restart, and m spot or on demand. Slots that are up throughout make a plan that can
be carried out: its bill is at least the optimum. Slots that are up in part make one that is at
most the optimum, so the two bracket it. Saves count at intervals alone, those before a move are
free. The program is our own; it is the yardstick of ``planners.spot.policy`` and no part of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.units import HOUR_S
from advisor.planners.spot.availability import Column, Spells, SpotJob
from advisor.planners.spot.policy import with_saves_s


def clairvoyant_usd(
    spells: Spells,
    job: SpotJob,
    start_s: Column,
    *,
    deadline_s: float,
    spot_price_usd_per_h: float,
    price_usd_per_h: float,
    slot_s: float = 150.0,
    is_optimistic: bool = False,
) -> Column:
    """Return the least bill of each start; inf where no plan meets the deadline [USD].

    Parameters
    ----------
    start_s : ndarray of shape (n,)
        Submissions. [s]
    spot_price_usd_per_h, price_usd_per_h : float
        Of all nodes together. [USD/h]
    slot_s : float
        Restart and work are rounded up to whole slots, or down where optimistic. [s]
    """
    rounded = np.floor if is_optimistic else np.ceil
    work, restart = (int(rounded(s / slot_s)) for s in (with_saves_s(job), job.restart_s))
    slots = int(deadline_s / slot_s + 1e-9)
    is_up = _up(spells, start_s, slots, slot_s, is_optimistic)
    per_slot = np.array([spot_price_usd_per_h, price_usd_per_h]) * slot_s / HOUR_S
    return _least(is_up, work, restart, per_slot)


def _up(
    spells: Spells, start_s: Column, slots: int, slot_s: float, is_optimistic: bool
) -> NDArray[np.bool_]:
    """Return where a node is there, shape (starts, slots)."""
    begin, end = spells.up_start_s, spells.up_start_s + spells.up_length_s
    first = start_s[:, None] + np.arange(slots) * slot_s
    if not begin.size:
        return np.zeros(first.shape, bool)
    if is_optimistic:
        at = np.minimum(np.searchsorted(end, first, side="right"), end.size - 1)
        return (end[at] > first) & (begin[at] < first + slot_s)
    at = np.searchsorted(begin, first + 1e-6, side="right") - 1
    return (at >= 0) & (first + slot_s <= end[np.maximum(at, 0)] + 1e-6)


def _least(is_up: NDArray[np.bool_], work: int, restart: int, per_slot: Column) -> Column:
    """Return the least bill from the first slot with nothing done and on nothing."""
    starts, slots = is_up.shape
    done = np.full((starts, work + 1), np.inf)
    done[:, work] = 0.0
    lasting = np.zeros((starts, slots + 1), np.int64)  # slots that spot goes on from each
    for t in range(slots - 1, -1, -1):
        lasting[:, t] = np.where(is_up[:, t], lasting[:, t + 1] + 1, 0)
    nothing = done
    # Values on spot and on demand of the last ``restart + 1`` slots looked at.
    later: dict[int, tuple[Column, Column]] = {slots: (done, done)}
    for t in range(slots - 1, -1, -1):
        if t + restart <= slots and restart > 0:
            spot, on_demand = later[t + restart]
            begun = np.where((lasting[:, t] >= restart)[:, None], spot, np.inf)
            nothing = np.minimum(nothing, restart * per_slot[0] + begun)
            nothing = np.minimum(nothing, restart * per_slot[1] + on_demand)
        on = [
            _on(later[t + 1][kind], per_slot[kind], ok)
            for kind, ok in enumerate((is_up[:, t], np.ones(starts, bool)))
        ]
        if restart == 0:
            nothing = np.minimum(nothing, np.minimum(*on))
        later[t] = (np.minimum(on[0], nothing), np.minimum(on[1], nothing))
        later.pop(t + restart + 1, None)
    least: Column = nothing[:, 0]
    return least


def _on(ahead: Column, price: float, can: NDArray[np.bool_]) -> Column:
    """Return the bill of computing for a slot."""
    found = np.full(ahead.shape, np.inf)
    found[:, :-1] = np.where(can[:, None], price + ahead[:, 1:], np.inf)
    found[:, -1] = 0.0
    return found
