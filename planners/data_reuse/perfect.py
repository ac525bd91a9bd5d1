"""Training on what was loaded already: data echoing, and PerFect's repeat first, fresh later.

================  ==============================================================================
here              meaning, unit
================  ==============================================================================
``echo``    e     updates that each batch serves.
``rho``           what a repetition is worth of the one before it. [fraction]
``freshness``     eta(e) = (1 - rho^e) / (e (1 - rho)): worth of an echoed update, against a fresh
                  one. [fraction]
``share``   phi   of the wall time spent repeating, before the job goes on with fresh data.
================  ==============================================================================

    useful updates per second  r(e) = eta(e) / step_s(e)
    K useful updates take      T = K / (phi r(e) + (1 - phi) r(1))

Prefetched, r rises up to e = R (updates that cost nothing) and falls beyond it. ``rho`` depends
on the data, the model and what is shuffled and augmented after the echo: nobody knows it before
the job has run, so every gain has an interval. Its middle is what Choi et al. measured: ResNet-50
read over a network at R = 6 and e = 5 took 3.25 times less wall time, hence eta(5) = 0.65.
**The accuracy has to be looked at**: the worth is a mean over published jobs, not a property of
yours.

Sources: Choi et al., "Faster Neural Network Training with Data Echoing", arXiv 1907.05550; PerFect
(train on repeated data first, then on fresh data) as its authors describe it in a sentence: when
to change over was not published, so it is an argument here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from advisor.planners.core.errors import PlanningError
from advisor.planners.data_reuse.feeding import Feeding

# eta(5) = 3.25 / 5, solved for rho; the ends are the spread taken for jobs nobody has echoed.
RHO: Final = 0.78
RHO_LOW: Final = 0.3
RHO_HIGH: Final = 0.9
# The best factors published for a language model were 4 to 8; more is not advised.
MOST_ECHO: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """The worth of an echo factor, against fresh data on the same machine.

    Attributes
    ----------
    gain, low, high : float
        Wall time without over with echo until the same useful updates; ends of the worth of a
        repetition.
    """

    echo: int
    step_s: float
    gain: float
    low: float
    high: float


def freshness(echo: int, rho: float) -> float:
    """Return what one of ``echo`` updates from the same batch is worth, on average [fraction].

    Raises
    ------
    PlanningError
        If ``rho`` is not between 0 and 1, or ``echo`` is below one.

    Examples
    --------
    >>> round(freshness(5, RHO), 2)  # published: 3.25 times less time from 5 updates a batch
    0.65
    """
    if not (0.0 <= rho <= 1.0 and echo >= 1):
        raise PlanningError(
            f"an echo of {echo} worth {rho:g} is out of range",
            hint="give 1 or more, and a worth between 0 and 1",
            exit_code=2,
        )
    return sum(rho**k for k in range(echo)) / echo


def useful_rate(feeding: Feeding, echo: int = 1, rho: float = RHO) -> float:
    """Return the updates per second, counted in updates from fresh data [1/s]."""
    return freshness(echo, rho) / feeding.step_s(echo)


def reuse(feeding: Feeding, echo: int) -> Reuse:
    """Return what an echo factor gains."""
    fresh = useful_rate(feeding)
    middle, low, high = (
        useful_rate(feeding, echo, rho) / fresh for rho in (RHO, RHO_LOW, RHO_HIGH)
    )
    return Reuse(echo=echo, step_s=feeding.step_s(echo), gain=middle, low=low, high=high)


def best_echo(feeding: Feeding, rho: float = RHO) -> Reuse:
    """Return the echo factor that gains most among those that do not outrun the loader.

    Those are the factors up to R; 1 where the job is not input-bound.
    """
    most = min(max(int(feeding.ratio), 1), MOST_ECHO)
    best = max(range(1, most + 1), key=lambda echo: useful_rate(feeding, echo, rho))
    return reuse(feeding, best)


def repeat_then_fresh_s(
    feeding: Feeding, *, updates: float, echo: int, share: float, rho: float = RHO
) -> float:
    """Return the seconds until so many useful updates, repeated data first and fresh data after.

    Parameters
    ----------
    updates : float
        In updates from fresh data.
    share : float
        Of the wall time spent repeating; PerFect's own was not published. [fraction]
    rho : float
        Worth of a repetition. [fraction]

    Raises
    ------
    PlanningError
        If the share is not between 0 and 1.
    """
    if not 0.0 <= share <= 1.0:
        raise PlanningError(
            f"repeating for {share:g} of the time is out of range",
            hint="give a share between 0 and 1",
            exit_code=2,
        )
    rate = share * useful_rate(feeding, echo, rho) + (1.0 - share) * useful_rate(feeding)
    return updates / rate
