"""Chances that a spot node comes or goes in the next moments, by how long it has stood so.

=========================  =====================================================================
here                       meaning, unit
=========================  =====================================================================
``hazard``          h      chance per time that a spell ends now, given its age. [1/s]
exposure            x_b    time that recorded spells spent at ages of bin b. [s]
events              e_b    spells that ended at such an age.
``own_events``      kappa  events of this zone that weigh as much as all that other zones say.
=========================  =====================================================================

Spells are heavy-tailed: one that has lasted, lasts on. A hazard that is constant within each of a
few bins of age says so, and makes the state a Markov chain: (up or down, bin). Of a zone,

    h_b = (e_b + kappa) / (x_b + kappa / h'_b),

with h'_b the hazard of all zones together, times how much shorter this zone's spells are. The
chain is our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.units import HOUR_S
from advisor.planners.spot.availability import Column, Spells

# Half of recorded up spells end within 20 to 60 minutes, their mean is several hours.
AGES_S: Final = np.array([0.0, 1 / 6, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0]) * HOUR_S
BINS: Final = AGES_S.size
_WIDTHS_S: Final = np.append(np.diff(AGES_S), np.inf)
OWN_EVENTS: Final = 3.0
# Of a zone without a single spell: one removal in ten hours, weighed as one event.
_UNKNOWN_S: Final = 10.0 * HOUR_S
_HALVINGS: Final = 12  # of a step, in the exponential of the chain's generator


@dataclass(frozen=True, slots=True, kw_only=True)
class SpellHazards:
    """Chances per time that spells end, by age.

    Attributes
    ----------
    up_per_s, down_per_s : ndarray of shape (BINS,)
        Of up and down spells whose age is in each bin; positive. [1/s]
    """

    up_per_s: Column
    down_per_s: Column

    @classmethod
    def of(cls, own: Spells, others: Sequence[Spells] = ()) -> SpellHazards:
        """Estimate them from a zone's record, and from those of other zones."""
        records = [_counts(own), *map(_counts, others)]
        up, down = (_hazard([record[kind] for record in records]) for kind in (0, 1))
        return cls(up_per_s=up, down_per_s=down)

    def moves(self, step_s: float) -> tuple[Column, Column]:
        """Return the chain's transition matrices over a step.

        States are the bins of up spells, then those of down spells.

        Returns
        -------
        any, staying : ndarray of shape (2 * BINS, 2 * BINS)
            Row to column: whatever happens, and without an up spell ending in between.
        """
        any_way = np.zeros((2 * BINS, 2 * BINS))
        staying = np.zeros_like(any_way)
        for kind, hazard in enumerate((self.up_per_s, self.down_per_s)):
            at = kind * BINS + np.arange(BINS)
            for matrix in (any_way, staying):
                matrix[at[:-1], at[1:]] += 1.0 / _WIDTHS_S[:-1]
                matrix[at[:-1], at[:-1]] -= 1.0 / _WIDTHS_S[:-1]
                matrix[at, at] -= hazard
            any_way[at, (1 - kind) * BINS] += hazard
            if kind == 1:
                staying[at, 0] += hazard
        return _exponential(any_way, step_s), _exponential(staying, step_s)


def states(is_up: NDArray[np.bool_], age_s: Column) -> NDArray[np.intp]:
    """Return the chain's state of each spell: its bin, down spells after up ones."""
    bins = np.searchsorted(AGES_S, age_s, side="right") - 1
    return np.where(is_up, bins, BINS + bins)


def _counts(spells: Spells) -> tuple[tuple[Column, Column], tuple[Column, Column]]:
    """Return exposure and events by age, of up and of down spells; the last one is cut."""
    ends = spells.up_start_s + spells.up_length_s
    gaps = np.append(spells.up_start_s, spells.end_s) - np.concatenate([[0.0], ends])
    is_cut = ends >= spells.end_s - 1.0  # the record is of whole seconds
    kept = gaps > 0
    down_ends = np.append(np.ones(gaps.size - 1), 0.0)
    return (
        _by_age(spells.up_length_s, np.where(is_cut, 0.0, 1.0)),
        _by_age(gaps[kept], down_ends[kept]),
    )


def _by_age(length_s: Column, ended: Column) -> tuple[Column, Column]:
    exposure = np.clip(length_s[:, None] - AGES_S, 0.0, _WIDTHS_S).sum(axis=0)
    at = np.searchsorted(AGES_S, length_s, side="right") - 1
    events = np.bincount(at, weights=ended, minlength=BINS).astype(np.float64)
    return exposure, events


def _hazard(counts: Sequence[tuple[Column, Column]]) -> Column:
    """Return the hazard of the first record, the others' shape behind it."""
    exposure, events = counts[0]
    everywhere, ended = (np.sum([record[k] for record in counts], axis=0) for k in (0, 1))
    mean = (ended.sum() + 1.0) / (everywhere.sum() + _UNKNOWN_S)
    shape = (ended + 1.0) / (everywhere + 1.0 / mean)
    scale = (events.sum() + 1.0) / (float(exposure @ shape) + 1.0)
    usual = shape * scale
    hazard: Column = (events + OWN_EVENTS) / (exposure + OWN_EVENTS / usual)
    return hazard


def _exponential(generator: Column, step_s: float) -> Column:
    """Return ``e^(generator x step)`` by squaring; rows of a generator sum to at most 0."""
    rate = float(np.max(-np.diag(generator)))
    halvings = _HALVINGS + max(0, int(np.ceil(np.log2(max(rate * step_s, 1.0)))))
    small = np.eye(len(generator)) + generator * (step_s / 2**halvings)
    found: Column = np.linalg.matrix_power(small, 2**halvings)
    return found
