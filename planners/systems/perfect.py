"""What a loader gives a step, and how often the step uses it.

Three laws: the pace of a loader that feeds a step (``Feeding``), a cache in memory (``cached``),
and training on what was loaded already (``Reuse``): data echoing, and PerFect's repeat first,
fresh later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from advisor.planners.core import check_not_negative, check_positive, refused

# A wait below this share of the step is the scatter of a loader that keeps up.
INPUT_BOUND_RATIO: Final = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeding:
    """The feed of one training process, and what it feeds.

    ==================  ===========================================================================
    here                meaning, unit
    ==================  ===========================================================================
    ``cpu_s``     c     core seconds of the loader per batch. [s]
    ``idle_s``    d     of the same batch, waiting for disks and networks; no core helps. [s]
    ``compute_s`` g     one update on the device, its batch at hand. [s]
    ``workers``   w     loader processes; 0 loads inside the training loop.
    ``cores``     n     that the loader processes may use. [cores]
    ==================  ===========================================================================

        batch_s  u = max((c + d) / max(w, 1), c / n)            one batch upstream, n >= 1
        step_s     = u / e + g           where w = 0: loading and computing take turns
                   = max(u / e, g)       where w > 0: prefetched
        cached   u' = s x m + (1 - s) x u,  s = min(1, cache / data set)

    with e the updates that each batch serves (``Reuse``) and m the seconds to copy a batch from
    memory. Sources: the law of utilisation for the loader's cores (``step.model_units``); data
    echoing, Choi et al., arXiv 1907.05550, section 2 (time of an echoed step).

    Raises PlanningError if an amount makes no sense.
    """

    # cpu_s, idle_s: of one loader process per batch: computing, and waiting [s]
    cpu_s: float
    idle_s: float
    compute_s: float  # one update with its batch at hand [s]
    workers: int  # loader processes; 0 loads inside the loop
    cores: float  # that they may use [cores]

    def __post_init__(self) -> None:
        check_not_negative("loader", cpu_s=self.cpu_s, idle_s=self.idle_s, workers=self.workers)
        check_positive("loader", compute_s=self.compute_s, cores=self.cores)
        if not math.isfinite(self.compute_s):
            raise refused(
                f"loader: compute_s of {self.compute_s:g} is out of range", "give seconds"
            )

    @property
    def batch_s(self) -> float:
        """Seconds from one batch to the next, as far as the loader goes."""
        alone = (self.cpu_s + self.idle_s) / max(self.workers, 1)
        return max(alone, self.cpu_s / max(self.cores, 1.0))

    @property
    def ratio(self) -> float:
        """Upstream over downstream time, R in the literature."""
        return self.batch_s / self.compute_s

    @property
    def is_input_bound(self) -> bool:
        """Whether loading decides the step: all of it inline, more than computing beside it."""
        least = INPUT_BOUND_RATIO - 1.0 if self.workers == 0 else INPUT_BOUND_RATIO
        return self.ratio > least

    def step_s(self, echo: int = 1) -> float:
        """Return the seconds of an update where each batch serves ``echo`` of them.

        Raises PlanningError if ``echo`` is below one.
        """
        if echo < 1:
            raise refused(f"an echo factor of {echo} is out of range", "give 1 or more")
        upstream = self.batch_s / echo
        return upstream + self.compute_s if self.workers == 0 else max(upstream, self.compute_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Samples kept in memory once they are made."""

    share: float  # of the data set, that fits [fraction]
    step_s: float  # mean update once it is full [s]


def cached(feeding: Feeding, *, dataset_bytes: float, memory_bytes: float, copy_s: float) -> Cache:
    """Return what keeping a fixed part of the samples in memory would make of a step.

    ``dataset_bytes``: the whole data set in the form that is kept [bytes]; ``copy_s``: to copy one
    batch out of memory, on a core [s].

    Raises PlanningError if an amount makes no sense.
    """
    check_positive("data set", bytes=dataset_bytes)
    check_not_negative("cache", memory_bytes=memory_bytes, copy_s=copy_s)
    share = min(1.0, memory_bytes / dataset_bytes)
    missed = 1.0 - share
    kept = replace(
        feeding, cpu_s=missed * feeding.cpu_s + share * copy_s, idle_s=missed * feeding.idle_s
    )
    # Where copying takes longer than making, nobody keeps anything.
    return Cache(share=share, step_s=min(kept.step_s(), feeding.step_s()))


# eta(5) = 3.25 / 5, solved for rho; the ends are the spread taken for jobs nobody has echoed.
RHO: Final = 0.78
RHO_LOW: Final = 0.3
RHO_HIGH: Final = 0.9
# The best factors published for a language model were 4 to 8; more is not advised.
MOST_ECHO: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """The worth of an echo factor, against fresh data on the same machine.

    ================ ==============================================================================
    here             meaning, unit
    ================ ==============================================================================
    ``echo``    e    updates that each batch serves.
    ``rho``          what a repetition is worth of the one before it. [fraction]
    ``freshness``    eta(e) = (1 - rho^e) / (e (1 - rho)): worth of an echoed update, against a
                     fresh one. [fraction]
    ``share``   phi  of the wall time spent repeating, before the job goes on with fresh data.
    ================ ==============================================================================

        useful updates per second  r(e) = eta(e) / step_s(e)
        K useful updates take      T = K / (phi r(e) + (1 - phi) r(1))

    Prefetched, r rises up to e = R (updates that cost nothing) and falls beyond it. ``rho``
    depends on the data, the model and what is shuffled and augmented after the echo: nobody knows
    it before the job has run, so every gain has an interval. Its middle is what Choi et al.
    measured: ResNet-50 read over a network at R = 6 and e = 5 took 3.25 times less wall time,
    hence eta(5) = 0.65. **The accuracy has to be looked at**: the worth is a mean over published
    jobs, not a property of yours.

    Sources: Choi et al., "Faster Neural Network Training with Data Echoing", arXiv 1907.05550;
    PerFect (train on repeated data first, then on fresh data) as its authors describe it in a
    sentence: when to change over was not published, so it is an argument here.
    """

    echo: int
    step_s: float
    # gain, low, high: wall time without over with echo until the same useful updates; ends of the
    # worth of a repetition
    gain: float
    low: float
    high: float


def freshness(echo: int, rho: float) -> float:
    """Return what one of ``echo`` updates from the same batch is worth, on average [fraction].

    Raises PlanningError if ``rho`` is not between 0 and 1, or ``echo`` is below one.

    Examples
    --------
    >>> round(freshness(5, RHO), 2)  # published: 3.25 times less time from 5 updates a batch
    0.65
    """
    if not (0.0 <= rho <= 1.0 and echo >= 1):
        raise refused(
            f"an echo of {echo} worth {rho:g} is out of range",
            "give 1 or more, and a worth between 0 and 1",
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

    ``updates``: in updates from fresh data; ``share``: of the wall time spent repeating; PerFect's
    own was not published [fraction]; ``rho``: worth of a repetition [fraction].

    Raises PlanningError if the share is not between 0 and 1.
    """
    if not 0.0 <= share <= 1.0:
        raise refused(
            f"repeating for {share:g} of the time is out of range", "give a share between 0 and 1"
        )
    rate = share * useful_rate(feeding, echo, rho) + (1.0 - share) * useful_rate(feeding)
    return updates / rate
