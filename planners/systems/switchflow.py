"""Jobs that share a device: memory, rounds, preemption, and the shared bill.

Three laws, each where it is: jobs that take turns (``Tenant``), jobs whose kernels take turns
(``shared_rates``), and what that law misses of measured pairs that are alike
(``rates_by_pairs``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import GIB, check_not_negative, check_positive, refused

Sharing = Literal["sessions", "switchflow"]

MOST_JOBS: Final = 3
MOVE_S: Final = 0.027
MOVE_BYTES_PER_S: Final = 12.7 * GIB  # PCIe 3 x16


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A job that would share a device.

    ==================  ===========================================================================
    here                meaning, unit
    ==================  ===========================================================================
    ``input_s``      i  of a step, on the processor: loading and whatever the device waits for. [s]
    ``compute_s``    c  of a step, on the device. [s]
    ``weight_bytes`` w  that stay on the device between steps: weights and optimizer state. [bytes]
    ``transient_bytes`` a  peak of what a step holds besides: activations, workspace. [bytes]
    ==================  ===========================================================================

        memory, in turns        sum w + max a          memory, at once    sum (w + a)
        a round of sessions     sum (i + c)            one job's step after the other
        a round of SwitchFlow   max(sum c, max (i + c))   one on the device, the others load
        preemption              longest kernel + moving w where the victim leaves the device

    Published checks: two ResNet-50 of batch 16 on a V100 share 226 images/s as 116 each; sharing
    the input gains at most i / (i + c); weights moved over PCIe 3 x16 take 27 ms + w / 12.7 GiB/s
    (least squares on the paper's eight models: within 4 % for the two VGGs, 0.73 to 1.66 times the
    others). Source: SwitchFlow (Wu et al.). At most three models on a device, as there:
    ``MOST_JOBS``.

    Raises PlanningError if an amount makes no sense.
    """

    name: str
    # input_s, compute_s: of one step alone, one after the other [s]
    input_s: float
    compute_s: float
    weight_bytes: float = 0.0
    transient_bytes: float = 0.0

    def __post_init__(self) -> None:
        check_positive(self.name, compute_s=self.compute_s)
        check_not_negative(
            self.name, input_s=self.input_s, compute_s=self.compute_s,
            weight_bytes=self.weight_bytes, transient_bytes=self.transient_bytes,
        )  # fmt: skip

    @property
    def step_s(self) -> float:
        """A step alone [s]."""
        return self.input_s + self.compute_s


def needed_bytes(tenants: Sequence[Tenant], *, is_in_turns: bool) -> float:
    """Return the device memory that jobs need together [bytes].

    Parameters
    ----------
    is_in_turns : bool
        One step at a time on the device: their peaks do not meet. Two processes that share a
        device without that need all of it at once.
    """
    weights = sum(one.weight_bytes for one in tenants)
    transient = [one.transient_bytes for one in tenants]
    return weights + (max(transient, default=0.0) if is_in_turns else sum(transient))


def round_s(tenants: Sequence[Tenant], sharing: Sharing) -> float:
    """Return the time in which every job makes one step [s].

    Raises PlanningError if there is no job, or more than have ever been put on one device.
    """
    if not 1 <= len(tenants) <= MOST_JOBS:
        raise refused(
            f"{len(tenants)} jobs on one device are out of range",
            f"share a device between up to {MOST_JOBS}",
        )
    if sharing == "sessions":
        return sum(one.step_s for one in tenants)
    return max(sum(one.compute_s for one in tenants), max(one.step_s for one in tenants))


def preemption_s(victim: Tenant, *, kernel_s: float, is_moved: bool) -> float:
    """Return how long a more urgent job waits for the device [s].

    ``victim``: queued kernels are dropped, running ones end; ``is_moved``: whether its weights
    leave the device first, because both do not fit.
    """
    check_not_negative(victim.name, kernel_s=kernel_s)
    moved_s = MOVE_S + victim.weight_bytes / MOVE_BYTES_PER_S if is_moved else 0.0
    return kernel_s + moved_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Jobs on one device, against each on a device of its own."""

    finish_s: NDArray[np.float64]  # (n,); when each job ends; all begin together [s]
    # device_s, device_s_apart: that are paid for: until the last one ends; summed over devices of
    # their own [s]
    device_s: float
    device_s_apart: float
    # (n,); what each pays, over what it paid alone, if those that run share the bill evenly
    bill_fraction: NDArray[np.float64]

    @property
    def saved_fraction(self) -> float:
        """Of the device time; negative where sharing costs more [fraction]."""
        return 1.0 - self.device_s / self.device_s_apart


def pair_bill(alone_s: Sequence[float], rates: Sequence[float]) -> Shared:
    """Return what two jobs pay on one device until both have ended.

    ``alone_s``: what each takes on a device of its own [s]; ``rates``: of each beside the other,
    over its rate alone [fraction].

    Raises PlanningError if an amount is no positive number.

    Examples
    --------
    Equal jobs that keep 80 % of their rate: half a device, five eighths of the bill.

    >>> pair_bill([3600.0, 3600.0], [0.8, 0.8]).bill_fraction.tolist()
    [0.625, 0.625]
    """
    alone, rate = np.asarray(alone_s, float), np.asarray(rates, float)
    check_positive("two jobs on a device", alone_s=alone, rates=rate)
    if alone.shape != (2,) or rate.shape != (2,):
        raise ValueError(f"two jobs, got {alone.shape} and {rate.shape}")
    together = alone / rate
    first = int(np.argmin(together))
    last = 1 - first
    both_s = float(together[first])
    rest_s = float(alone[last] - both_s * rate[last])
    finish = np.array([both_s, both_s])
    finish[last] += rest_s
    paid = np.array([both_s / 2.0, both_s / 2.0])
    paid[last] += rest_s
    return Shared(
        finish_s=finish,
        device_s=float(finish.max()),
        device_s_apart=float(alone.sum()),
        bill_fraction=paid / alone,
    )


# Rates above 1 / (1 + 0.03) cannot be told from no interference at all: what repeats scatter by.
_LEAST_SLOWDOWN: Final = 0.03
# In units of one measured pair: a job seen in one pair only is drawn halfway to the mean job.
_RIDGE: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharer:
    """A job in a device's queue.

    Raises PlanningError if one of them is no positive number.
    """

    exposure: float  # [1/s]
    pressure: float  # [s]

    def __post_init__(self) -> None:
        check_positive("job on a shared device", exposure=self.exposure, pressure=self.pressure)

    @property
    def busy_fraction(self) -> float:
        """Share of its step alone in which the device works; above 1 where switching costs."""
        return float(np.sqrt(self.exposure * self.pressure))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPair:
    """Two jobs measured on one device, as rates beside each other over rates alone.

    Raises PlanningError if a rate is no positive number.
    """

    # first, second: names of the jobs, the device among them where there are several
    first: str
    second: str
    # first_rate, second_rate: [fraction]
    first_rate: float
    second_rate: float

    def __post_init__(self) -> None:
        check_positive(
            f"pair {self.first}, {self.second}",
            first_rate=self.first_rate,
            second_rate=self.second_rate,
        )


def sharer(busy_fraction: float, kernel_s: float) -> Sharer:
    """Return a job by what its recording shows.

    ``busy_fraction``: [fraction]; ``kernel_s``: mean length of a kernel [s].

    Raises PlanningError if the device is busy for less than none or more than all of the step.
    """
    check_positive("job on a shared device", busy_fraction=busy_fraction, kernel_s=kernel_s)
    if busy_fraction > 1.0:
        raise refused(
            f"a device busy for {busy_fraction:g} of the time is out of range",
            "give a share between 0 and 1",
        )
    return Sharer(exposure=busy_fraction / kernel_s, pressure=busy_fraction * kernel_s)


def shared_rates(jobs: Sequence[Sharer]) -> NDArray[np.float64]:
    """Return each job's rate beside all the others, over its rate alone [fraction].

    ================  =============================================================================
    here              meaning, unit
    ================  =============================================================================
    ``busy_fraction`` u share of a job's step, alone, in which its kernels run. [fraction]
    ``kernel_s``    L mean time of one of its kernels. [s]
    ``exposure``    v kernels of a job a second, v = u / L: how often it queues for the device.
                      [1/s]
    ``pressure``    a kernel time met in the queue, a = u x L: chance to find it times length. [s]
    ``rate``        r rate beside others over the rate alone. [fraction]
    ================  =============================================================================

        1 / r_i = 1 + v_i x sum over j != i of a_j

    Each kernel of i that finds one of j running waits for it, so small kernels lose to large ones,
    and two equal jobs that each fill the device get half of it. A job of which two numbers are
    known, from its recording (u and L) or from pairs that were measured (v and a), has a rate
    beside any other.

    From measured pairs ln(1/r - 1) = ln v_i + ln a_j is linear: ``fit`` solves it by ridge
    regression. Sources: Gavel's measured pairs (Narayanan et al., OSDI'20; ``advisor validate
    colocation``); the law is ours, and SwitchFlow's two ResNet-50s (226 to 116 images/s each) are
    its case u = 1.

    Examples
    --------
    Two ResNet-50 that each fill a V100: 226 images/s alone, 116 beside each other (SwitchFlow).

    >>> filling = sharer(1.0, 2e-4)
    >>> (226 * shared_rates([filling, filling])).tolist()
    [113.0, 113.0]
    """
    exposure = np.array([one.exposure for one in jobs])
    pressure = np.array([one.pressure for one in jobs])
    slowdown: NDArray[np.float64] = 1.0 + exposure * (pressure.sum() - pressure)
    return 1.0 / slowdown


def fit(pairs: Sequence[MeasuredPair]) -> Mapping[str, Sharer]:
    """Return the jobs that measured pairs tell of.

    Only products of one job's exposure and another's pressure are seen, so the second is in a
    unit that depends on the jobs; among the jobs of one fit it cancels.

    Raises PlanningError if there is no pair.
    """
    if not pairs:
        raise refused("no measured pair of jobs to learn from", "measure two jobs together")
    names = sorted({name for one in pairs for name in (one.first, one.second)})
    place = {name: k for k, name in enumerate(names)}
    seen = [(place[p.first], place[p.second], p.first_rate) for p in pairs]
    seen += [
        (place[p.second], place[p.first], p.second_rate) for p in pairs if p.first != p.second
    ]
    victim, other, rate = (np.array(column) for column in zip(*seen, strict=True))
    found = np.log(np.maximum(1.0 / rate - 1.0, _LEAST_SLOWDOWN))
    rows = np.arange(found.size)
    design = np.zeros((found.size, 2 * len(names)))
    design[rows, victim] = 1.0
    design[rows, len(names) + other] = 1.0
    mean = float(found.mean())
    normal = design.T @ design + _RIDGE * np.eye(design.shape[1])
    solved = np.linalg.solve(normal, design.T @ (found - mean)) + mean / 2.0
    exposure, pressure = np.exp(solved[: len(names)]), np.exp(solved[len(names) :])
    return {
        name: Sharer(exposure=float(exposure[k]), pressure=float(pressure[k]))
        for name, k in place.items()
    }


# Differences as wide as all pairs' that every neighbour starts from, and what draws the mean
# difference of two jobs to none; in partners that both were measured with. Which neighbours are
# near is told from fewer than how near the answer is: a pair that the law misses by far, such as
# a job beside itself, widens what all pairs say, and would hide a twin.
_PRIOR_PARTNERS: Final = 2.0
_PRIOR_OF_WEIGHTS: Final = 1.0
_PRIOR_SHIFT: Final = 0.3
_NEIGHBOURS: Final = 8  # estimates that are taken, the law among them
# What a fit to few pairs misses of them, over what it misses of others, at most.
_MOST_SHRUNK: Final = 6.0
# A rate beside another is told no better than its repeats scatter. [fraction]
_LEAST_SD: Final = 0.02
_LEAST_RATE: Final = 0.02
# How far rates of pairs depart from the law where neither job was measured beside any other; ln.
_STRANGERS_LOG_SD: Final = 0.35


def rates_by_pairs(
    pairs: Sequence[MeasuredPair], first: str, second: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both jobs' rates beside each other, by what other pairs on the device tell.

    The law has two numbers a job. What it misses of a pair (i, j) is much the same for (k, j)
    where job k departs from the law beside the others as i does, and for (i, k) where k is met as
    j is. Each such neighbour, and the law itself, is one estimate with a variance: the spread of
    the two jobs' difference over the partners that both were measured with, drawn to the spread of
    all where these are few. Estimates are weighted by 1 / variance^3: nearest neighbours where a
    job has near ones, the law where it has none.

    A job in no pair is taken for the mean job.

    Returns
    -------
    rates, log_sd : arrays of shape (2,)
        Over the rates alone [fraction]; one standard deviation of their logarithms.

    Raises PlanningError if there is no pair.
    """
    known = fit(pairs)
    jobs = [known.get(name) or _mean_job(known) for name in (first, second)]
    law = shared_rates(jobs)
    if not {first, second} <= known.keys():
        return law, np.full(2, _STRANGERS_LOG_SD)
    names = list(known)
    place = {name: k for k, name in enumerate(names)}
    measured = np.full((len(names), len(names)), np.nan)
    for pair in pairs:
        a, b = place[pair.first], place[pair.second]
        measured[a, b], measured[b, a] = pair.first_rate, pair.second_rate
    exposure = np.array([one.exposure for one in known.values()])
    pressure = np.array([one.pressure for one in known.values()])
    missed = measured - 1.0 / (1.0 + exposure[:, None] * pressure)
    i, j = place[first], place[second]
    found = np.array([_missed(missed, i, j), _missed(missed, j, i)])
    rates = np.clip(law + found[:, 0], _LEAST_RATE, 1.0)
    return rates, np.sqrt(found[:, 1]) / rates


def _mean_job(known: Mapping[str, Sharer]) -> Sharer:
    logs = np.log([(one.exposure, one.pressure) for one in known.values()])
    exposure, pressure = np.exp(logs.mean(axis=0)).tolist()
    return Sharer(exposure=exposure, pressure=pressure)


def _missed(missed: NDArray[np.float64], job: int, beside: int) -> tuple[float, float]:
    """Return what the law misses of one job beside another, and its variance.

    ``missed``: (jobs, jobs); measured rate less the law's of the row's job beside the column's;
    nan where the pair was not measured.
    """
    sides, numbers = np.isfinite(missed).sum(), 2 * len(missed)
    left = max(sides - numbers, sides / _MOST_SHRUNK)  # the law was fitted to these pairs
    usual = float(np.nansum(missed**2) / left)
    value, variance, near_by = [np.zeros(1)], [np.full(1, usual)], [np.full(1, usual)]
    for table, me, there in ((missed, job, beside), (missed.T, beside, job)):
        apart = table[me] - table
        is_both = np.isfinite(apart)
        partners = is_both.sum(axis=1)
        apart = np.where(is_both, apart, 0.0)
        shift = apart.sum(axis=1) / (partners + _PRIOR_SHIFT)
        spread = np.where(is_both, (apart - shift[:, None]) ** 2, 0.0).sum(axis=1)
        near = np.isfinite(table[:, there]) & (partners > 0) & (np.arange(len(table)) != me)
        value.append(table[near, there] + shift[near])
        for prior, found in ((_PRIOR_PARTNERS, variance), (_PRIOR_OF_WEIGHTS, near_by)):
            found.append(((spread + prior * usual) / (partners + prior))[near])
    told, variances, spreads = map(np.concatenate, (value, variance, near_by))
    nearest = np.argsort(spreads, kind="stable")[:_NEIGHBOURS]
    weight = np.maximum(spreads[nearest], 1e-12) ** -3.0
    weight = weight / weight.sum()
    return float(weight @ told[nearest]), float(weight @ variances[nearest]) + _LEAST_SD**2
