"""The plan of spot, on demand and waiting that costs least on average, by a deadline.

=========================  =====================================================================
here                       meaning, unit
=========================  =====================================================================
``to_go_s``         k      until the deadline. [s]
``rest_s``          w      work left, a restart that is under way included. [s]
state               s      up or down and for how long (``planners.spot.policy``).
mode                m      what the job is on: nothing, a spot node, an on-demand one.
``V(k, w, s, m)``          least expected bill from here to the deadline. [USD]
=========================  =====================================================================

Backwards from the deadline, a step d at a time, every mode is tried:

    V(k, w, s, m) = min over m' of  p(m') d + E[ V(k - d, w + moves(m, m') - d, s', m') ]

A move to a node costs a restart, and a save where the job leaves a node that computes. A removal
adds to w what was not saved: half of a checkpoint's stride on average, or one save where the job
saves on notice. Where w and a restart would not fit into k - d, only on-demand is left: this is
what ``planners.spot.policy_replay`` enforces exactly, so that the deadline does not hang on V.
Linear interpolation in w; the plan is a table of modes. Dynamic programming is Bellman's; the
problem is that of "Can't Be Late" (Wu et al., NSDI 2024), whose rule is uniform progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import HOUR_S, check_not_negative, check_positive
from advisor.planners.spot.availability import Column, Spells, SpotJob

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

    =========================  ====================================================================
    here                       meaning, unit
    =========================  ====================================================================
    ``hazard``          h      chance per time that a spell ends now, given its age. [1/s]
    exposure            x_b    time that recorded spells spent at ages of bin b. [s]
    events              e_b    spells that ended at such an age.
    events of its own  kappa  events of this zone that weigh as much as all that other zones say.
    =========================  ====================================================================

    Spells are heavy-tailed: one that has lasted, lasts on. A hazard that is constant within each
    of a few bins of age says so, and makes the state a Markov chain: (up or down, bin). Of a zone,

        h_b = (e_b + kappa) / (x_b + kappa / h'_b),

    with h'_b the hazard of all zones together, times how much shorter this zone's spells are. The
    chain is our own.
    """

    # up_per_s, down_per_s: (BINS,); of up and down spells whose age is in each bin; positive [1/s]
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


Modes = NDArray[np.int8]
IDLE, ON_SPOT, ON_DEMAND = 0, 1, 2
_STEPS: Final = 360  # from submission to the deadline
_SHORTEST_STEP_S: Final = 60.0
_NEVER_USD: Final = 1e12
_WAITING: Final = 1e-4  # of the on-demand price: of plans with one bill, the one that ends first


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotPolicy:
    """A plan for every situation of one job."""

    step_s: float  # of the table, in time and in work [s]
    # (steps + 1, 3, works, 2 * BINS); what to be on, by steps to go, mode, steps of work left, and
    # state
    modes: Modes
    # what the job is expected to cost if it is submitted with no spot node there
    expected_usd: float

    @classmethod
    def of(
        cls, hazards: SpellHazards, job: SpotJob, *, deadline_s: float,
        spot_price_usd_per_h: float, price_usd_per_h: float,
    ) -> SpotPolicy:  # fmt: skip
        """Work the plan out.

        ``deadline_s``: from submission; the plan serves every shorter one too [s];
        ``spot_price_usd_per_h``, ``price_usd_per_h``: of all nodes together [USD/h].

        Raises PlanningError if a price is negative, or the deadline not positive.
        """
        check_positive("spot policy", deadline_s=deadline_s, price_usd_per_h=price_usd_per_h)
        check_not_negative("spot policy", spot_price_usd_per_h=spot_price_usd_per_h)
        step = max(deadline_s / _STEPS, _SHORTEST_STEP_S)
        waiting = _WAITING * price_usd_per_h
        prices = np.array([waiting, spot_price_usd_per_h, price_usd_per_h]) / HOUR_S
        back = _Backwards(hazards, job, step, prices)
        steps = range(1, round(deadline_s / step) + 1)
        last = np.full(back.value.shape, ON_DEMAND, dtype=np.int8)  # with no time left
        modes = [last, *(back.earlier(number * step) for number in steps)]
        whole = min(round(with_saves_s(job) / step), back.rest_s.size - 1)
        return cls(
            step_s=step, modes=np.stack(modes), expected_usd=float(back.value[IDLE, whole, BINS])
        )

    def choose(
        self, to_go_s: float, rest_s: Column, mode: NDArray[np.intp], is_up: NDArray[np.bool_],
        age_s: Column,
    ) -> NDArray[np.intp]:  # fmt: skip
        """Return what each job should be on; ``mode`` is what it is on.

        ``rest_s``, ``age_s``: (n,); work left with a restart under way, and age of the spell [s].
        """
        step = min(int(to_go_s / self.step_s + 1e-6), len(self.modes) - 1)
        work = np.round(rest_s / self.step_s).astype(np.intp)
        work = np.clip(work, 1, self.modes.shape[2] - 1)  # a part of a step is not nothing
        state = states(is_up, age_s)
        chosen: NDArray[np.intp] = self.modes[step, mode, work, state].astype(np.intp)
        return chosen


class _Backwards:
    """The value of every situation, stepped back from the deadline."""

    def __init__(self, hazards: SpellHazards, job: SpotJob, step_s: float, prices: Column) -> None:
        self.step_s, self.prices = step_s, prices  # prices by mode [USD/s]
        self.restart_s, self.save_s = job.restart_s, job.checkpoint_s
        self.loss_s = _lost_s(job)
        largest_s = with_saves_s(job) + 2.0 * (self.restart_s + self.save_s) + self.loss_s
        steps = np.arange(int(np.ceil(largest_s / step_s)) + 2)
        self.rest_s: Column = np.asarray(steps * step_s, dtype=np.float64)
        self.any_way, self.staying = hazards.moves(step_s)
        self.is_up = np.arange(2 * BINS) < BINS
        # With no time left what is missing is bought on demand.
        missing = np.stack([self.rest_s + self.restart_s] * 2 + [self.rest_s])
        missing[:, 0] = 0.0
        self.value: Column = np.repeat((missing * prices[ON_DEMAND])[..., None], 2 * BINS, axis=2)

    def earlier(self, to_go_s: float) -> Modes:
        """Step back, and return what to be on with ``to_go_s`` left."""
        kept = self.any_way[:BINS, :] - self.staying[:BINS, :]
        idle = self.value[IDLE] @ self.any_way.T
        on_demand = self.value[ON_DEMAND] @ self.any_way.T
        spot = self.value[ON_SPOT] @ self.staying[:BINS].T
        removed = self.value[IDLE] @ kept.T
        found = [self._from(mode, to_go_s, idle, spot, removed, on_demand) for mode in range(3)]
        self.value = np.stack([value for value, _ in found])
        return np.stack([choice for _, choice in found])

    def _from(
        self, mode: int, to_go_s: float, idle: Column, spot: Column, removed: Column,
        on_demand: Column,
    ) -> tuple[Column, Modes]:  # fmt: skip
        """Return value and choice of all situations in one mode."""
        save = 0.0 if mode == IDLE else self.save_s
        moving = {m: 0.0 if m == mode else save + self.restart_s for m in (ON_SPOT, ON_DEMAND)}
        options = np.full((3, *idle.shape), _NEVER_USD)
        # What waits or is on spot must be able to go on demand one step later.
        slack = to_go_s - self.rest_s - self.restart_s - self.step_s
        able = slack >= save
        wait = self.prices[IDLE] * self.step_s + self._ahead(idle, save)
        options[IDLE, able] = wait[able]
        step = self.step_s
        on = self._paid(ON_SPOT, moving[ON_SPOT]) + (
            self._ahead(spot, moving[ON_SPOT] - step)
            + self._ahead(removed, moving[ON_SPOT] + self.loss_s - step)
        )
        able = slack >= (-step if mode == ON_SPOT else moving[ON_SPOT])
        options[ON_SPOT][np.ix_(able, self.is_up)] = on[able]
        options[ON_DEMAND] = self._paid(ON_DEMAND, moving[ON_DEMAND])
        options[ON_DEMAND] += self._ahead(on_demand, moving[ON_DEMAND] - step)
        choice = options.argmin(axis=0)
        value = options.min(axis=0)
        value[0] = 0.0
        return value, choice.astype(np.int8)

    def _paid(self, mode: int, move_s: float) -> Column:
        paid: Column = self.prices[mode] * np.minimum(self.rest_s + move_s, self.step_s)[:, None]
        return paid

    def _ahead(self, value: Column, shift_s: float) -> Column:
        """Return values with ``shift_s`` more work left."""
        place = np.clip((self.rest_s + shift_s) / self.step_s, 0.0, self.rest_s.size - 1)
        low = np.minimum(place.astype(np.intp), self.rest_s.size - 2)
        share = (place - low)[:, None]
        ahead: Column = value[low] * (1.0 - share) + value[low + 1] * share
        return ahead


def with_saves_s(job: SpotJob) -> float:
    """Return work and its saves at intervals, on notice or not [s]."""
    return replace(job, warning_s=None).attempt_s


def _lost_s(job: SpotJob) -> float:
    """Return what a removal costs a job that computes, on average and besides the restart [s]."""
    if job.saves_on_notice:
        return job.checkpoint_s
    return min(job.checkpoint_interval_s + job.checkpoint_s, with_saves_s(job)) / 2.0
