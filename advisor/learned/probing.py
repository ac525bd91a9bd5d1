"""Probes: short real runs whose expected saving exceeds their price.

here         in the text   meaning, unit
cost_usd     c_i           predicted cost of candidate i [USD]
time_h       t_i           predicted time [h]
log_sd       s_i           standard deviation of the error of ln t_i (and of ln c_i)
shared       rho           share of the variance that all candidates of a job have in common
noise_sd     s_m           error of a probe itself
z                          what a probe on type k shows: ln(measured / predicted)

Errors are jointly normal: cov_ik = rho s_i s_k, plus (1 - rho) s_i s_k on the same instance type.
A probe of k moves ln t_i by g_ik z with g_ik = cov_ik / (s_k^2 + s_m^2), leaves it the variance
s_i^2 - g_ik cov_ik, and z is normal with variance s_k^2 + s_m^2. The loss of choosing i is
E[c_i] + C P(t_i > deadline or c_i > budget), C the dearest candidate's cost: to fail is as bad as
to pay that. The gain of k is min_i loss_i now less its expectation after the probe (the knowledge
gradient of Frazier, Powell & Dayanik 2008, section 2, for correlated beliefs), over z by
Gauss-Hermite quadrature. CherryPick (Alipourfard et al. 2017) stops where less than 10 % is left
to gain; so does this.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

NOISE_SD: Final = 0.05  # repeats of one run on one cloud machine scatter by about 5 %
SHARED: Final = 0.5  # about half of the variance is the job's own (left-out jobs of our dataset)
_POINTS: Final = 15
_LEAST_SHARE: Final = 0.1  # of the loss must be left to gain: CherryPick's stopping rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A short real run worth making."""

    instance_type: Any
    gain_usd: float  # expected saving of the choice, before the price of the probe
    price_usd: float
    # log_sd_before, log_sd_after: of the candidate that would be chosen now
    log_sd_before: float
    log_sd_after: float


def worthwhile(
    *, cost_usd: ArrayLike, time_h: ArrayLike, log_sd: ArrayLike, instance_types: ArrayLike,
    price_usd_per_h: ArrayLike, probe_h: float = 0.1, deadline_h: float = math.inf,
    budget_usd: float = math.inf, shared: float = SHARED, noise_sd: float = NOISE_SD,
    most: int = 2,
) -> list[Probe]:  # fmt: skip
    """Return the probes whose expected saving exceeds their price, best first.

    Raises ValueError if the arrays differ in length or there is no candidate.

    Parameters
    ----------
    cost_usd, time_h, log_sd : array-like of shape (n,)
        Candidates: cost [USD], time [h], standard deviation of the logarithm of either.
    instance_types : array-like of shape (n,)
        What a probe runs on; candidates of one type share what it shows.
    price_usd_per_h : array-like of shape (n,)
        Of one instance. The cheapest of a type is what the probe costs per hour.
    probe_h : float
        How long a probe runs, start included. [h]

    Examples
    --------
    A cheap candidate of which little is known against a dear one that is certain:

    >>> found = worthwhile(cost_usd=[10, 11], time_h=[1, 1], log_sd=[0.8, 0.01],
    ...                    instance_types=["new", "old"], price_usd_per_h=[1, 1], probe_h=0.1)
    >>> [(p.instance_type, round(p.price_usd, 2)) for p in found]
    [('new', 0.1)]
    """
    from scipy.special import ndtr

    cost, time, sd, price = (
        np.asarray(values, float) for values in (cost_usd, time_h, log_sd, price_usd_per_h)
    )
    types = np.asarray(instance_types)
    if not cost.size or len({a.shape for a in (cost, time, sd, price, types)}) != 1:
        raise ValueError(f"candidates must have equal lengths, got {cost.size} costs")

    def loss(shift: Floats, variance: Floats) -> Floats:
        """Return expected cost plus the penalty of failing, each candidate, shape (n,)."""
        spread = np.sqrt(np.maximum(variance, 1e-18))
        slack = np.minimum(np.log(deadline_h / time), np.log(budget_usd / cost))
        failing = ndtr((shift - slack) / spread)
        return np.asarray(cost * np.exp(shift + variance / 2) + float(cost.max()) * failing)

    now = loss(np.zeros_like(cost), sd**2)
    choice = int(np.argmin(now))
    probes = []
    for kind in np.unique(types):
        same = types == kind
        k = int(np.flatnonzero(same)[np.argmin(price[same])])
        covariance = shared * sd * sd[k] + np.where(same, (1 - shared) * sd * sd[k], 0.0)
        seen = sd[k] ** 2 + noise_sd**2
        gain_usd = float(now[choice]) - _after(loss, covariance, sd, seen)
        price_usd = float(price[k]) * probe_h
        if gain_usd > max(price_usd, _LEAST_SHARE * float(now[choice])):
            left = sd[choice] ** 2 - covariance[choice] ** 2 / seen
            probes.append(
                Probe(
                    instance_type=kind.item(),
                    gain_usd=gain_usd,
                    price_usd=price_usd,
                    log_sd_before=float(sd[choice]),
                    log_sd_after=math.sqrt(max(float(left), 0.0)),
                )
            )
    return sorted(probes, key=lambda p: p.price_usd - p.gain_usd)[:most]


def _after(
    loss: Callable[[Floats, Floats], Floats], covariance: Floats, sd: Floats, seen: float
) -> float:
    """Return the expected least loss after a probe whose z has variance ``seen``."""
    gain = covariance / seen
    variance = np.maximum(sd**2 - gain * covariance, 0.0)
    points, weights = np.polynomial.hermite_e.hermegauss(_POINTS)
    losses = [float(np.min(loss(gain * math.sqrt(seen) * z, variance))) for z in points]
    return float(np.dot(weights, losses) / weights.sum())
