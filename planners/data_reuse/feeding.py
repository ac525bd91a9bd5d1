"""The pace of a loader that feeds a step: workers, cores, and a cache in memory.

==================  ============================================================================
here                meaning, unit
==================  ============================================================================
``cpu_s``     c     core seconds of the loader per batch. [s]
``idle_s``    d     of the same batch, waiting for disks and networks; no core helps. [s]
``compute_s`` g     one update on the device, its batch at hand. [s]
``workers``   w     loader processes; 0 loads inside the training loop.
``cores``     n     that the loader processes may use. [cores]
==================  ============================================================================

    batch_s  u = max((c + d) / max(w, 1), c / n)            one batch upstream, n >= 1
    step_s     = u / e + g           where w = 0: loading and computing take turns
               = max(u / e, g)       where w > 0: prefetched
    cached   u' = s x m + (1 - s) x u,  s = min(1, cache / data set)

with e the updates that each batch serves (``perfect``) and m the seconds to copy a batch from
memory. Sources: the law of utilisation for the loader's cores (``step.input_pipeline``); data
echoing, Choi et al., arXiv 1907.05550, section 2 (time of an echoed step).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from advisor.planners.core.checks import check_not_negative, check_positive
from advisor.planners.core.errors import PlanningError

# A wait below this share of the step is the scatter of a loader that keeps up.
INPUT_BOUND_RATIO: Final = 1.05
# Loader processes beyond this nobody starts: each is a copy of the program.
MOST_WORKERS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeding:
    """The feed of one training process, and what it feeds.

    Attributes
    ----------
    cpu_s, idle_s : float
        Of one loader process per batch: computing, and waiting. [s]
    compute_s : float
        One update with its batch at hand. [s]
    workers : int
        Loader processes; 0 loads inside the loop.
    cores : float
        That they may use. [cores]

    Raises
    ------
    PlanningError
        If an amount makes no sense.
    """

    cpu_s: float
    idle_s: float
    compute_s: float
    workers: int
    cores: float

    def __post_init__(self) -> None:
        check_not_negative("loader", cpu_s=self.cpu_s, idle_s=self.idle_s, workers=self.workers)
        check_positive("loader", compute_s=self.compute_s, cores=self.cores)
        if not math.isfinite(self.compute_s):
            raise PlanningError(
                f"loader: compute_s of {self.compute_s:g} is out of range",
                hint="give seconds",
                exit_code=2,
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

        Raises
        ------
        PlanningError
            If ``echo`` is below one.
        """
        if echo < 1:
            raise PlanningError(
                f"an echo factor of {echo} is out of range", hint="give 1 or more", exit_code=2
            )
        upstream = self.batch_s / echo
        return upstream + self.compute_s if self.workers == 0 else max(upstream, self.compute_s)

    def with_workers(self, workers: int) -> Feeding:
        """Return the same job fed by so many loader processes."""
        return replace(self, workers=workers)


def enough_workers(feeding: Feeding, *, most: int = MOST_WORKERS) -> int:
    """Return the fewest loader processes with which the step is as short as any number makes it.

    Parameters
    ----------
    most : int
        Processes that there is memory for.
    """
    floor_s = max(feeding.compute_s, feeding.cpu_s / max(feeding.cores, 1.0))
    return min(most, max(1, math.ceil((feeding.cpu_s + feeding.idle_s) / floor_s - 1e-9)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Samples kept in memory once they are made.

    Attributes
    ----------
    share : float
        Of the data set, that fits. [fraction]
    step_s : float
        Mean update once it is full. [s]
    """

    share: float
    step_s: float

    def job_s(self, feeding: Feeding, *, epoch_steps: float, steps: float) -> float:
        """Return the seconds of ``steps`` updates, the first ``epoch_steps`` of them uncached."""
        first = min(epoch_steps, steps)
        return first * feeding.step_s() + (steps - first) * self.step_s


def cached(feeding: Feeding, *, dataset_bytes: float, memory_bytes: float, copy_s: float) -> Cache:
    """Return what keeping a fixed part of the samples in memory would make of a step.

    Parameters
    ----------
    dataset_bytes : float
        The whole data set in the form that is kept. [bytes]
    copy_s : float
        To copy one batch out of memory, on a core. [s]

    Raises
    ------
    PlanningError
        If an amount makes no sense.
    """
    check_positive("data set", bytes=dataset_bytes)
    check_not_negative("cache", memory_bytes=memory_bytes, copy_s=copy_s)
    share = min(1.0, memory_bytes / dataset_bytes)
    missed = 1.0 - share
    kept = replace(
        feeding,
        cpu_s=missed * feeding.cpu_s + share * copy_s,
        idle_s=missed * feeding.idle_s,
    )
    # Where copying takes longer than making, nobody keeps anything.
    return Cache(share=share, step_s=min(kept.step_s(), feeding.step_s()))
