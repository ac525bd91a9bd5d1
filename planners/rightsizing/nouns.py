"""Nouns of limited runs: what one used, may use, and what came of it under a policy.

======================  =========================================================================
here                    meaning, unit
======================  =========================================================================
``step_s``              length of a reading of the recorded series. [s]
``period_s``            CFS period: a quota is granted anew at its begin. [s]
limit                   CPU: what the group may use of each period, in cores; memory: beyond it the
                        group is killed. [bytes]
slack                   limit less usage, over time. [core-h, GiB-h]
======================  =========================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core.checks import check_not_negative, check_positive

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedUsage:
    """The usage of a run without limits, in readings of equal length.

    Attributes
    ----------
    step_s : float
        Length of a reading. [s]
    cores : ndarray of shape (n,)
        CPU time of each reading by its length. [cores]
    memory_bytes : ndarray of shape (n,)
        Most that was resident in each.
    is_paced : bool, default False
        Whether work arrives by the clock, as requests do, and piles up while the run is held
        back. A training run is not paced: what comes next begins when this is done.
    """

    step_s: float
    cores: Array
    memory_bytes: Array
    is_paced: bool = False

    def __post_init__(self) -> None:
        check_positive("usage", step_s=self.step_s)
        check_not_negative("usage", cores=self.cores, memory_bytes=self.memory_bytes)
        if not 0 < len(self.cores) == len(self.memory_bytes):
            raise ValueError("usage: cores and memory_bytes need one length, at least 1")

    @classmethod
    def of_counters(
        cls, *, t_s: ArrayLike, cpu_s: ArrayLike, memory_bytes: ArrayLike, step_s: float
    ) -> RecordedUsage:
        """Return readings of equal length from a recorder's, which are not quite.

        Parameters
        ----------
        t_s, cpu_s : array-like of shape (m,)
            When it was read, and the CPU time used until then; neither falls. [s]
        memory_bytes : array-like of shape (m,)
            What was resident then.
        step_s : float
            Of the readings to make; the recorder's own mean, say. [s]

        Raises
        ------
        ValueError
            If there are fewer than two readings.
        """
        check_positive("usage", step_s=step_s)
        t, cpu, memory = (np.asarray(one, float) for one in (t_s, cpu_s, memory_bytes))
        if len(t) < 2:
            raise ValueError("usage: at least two readings are needed")
        count = max(1, int((t[-1] - t[0]) / step_s + 1e-6))
        edges = t[0] + step_s * np.arange(count + 1)
        work = np.diff(np.interp(edges, t, np.maximum.accumulate(cpu)))
        # A reading belongs to the step that it ends; a step without one has the last before it.
        at = np.minimum(np.searchsorted(edges, t, side="left"), count) - 1
        most = np.zeros(count)
        np.maximum.at(most, np.maximum(at, 0), memory)
        held = np.maximum.accumulate(np.where(most > 0, np.arange(count), 0))
        return cls(step_s=step_s, cores=work / step_s, memory_bytes=most[held])

    @property
    def length_s(self) -> float:
        """How long the run took [s]."""
        return self.step_s * len(self.cores)

    @property
    def peak_bytes(self) -> float:
        """Most that was resident."""
        return float(np.max(self.memory_bytes))

    def windows(self, window_s: float) -> tuple[Array, Array]:
        """Return mean cores and most memory of consecutive windows; a rest counts as one."""
        size = max(1, round(window_s / self.step_s))
        begins = np.arange(0, len(self.cores), size)
        lengths = np.diff(np.append(begins, len(self.cores)))
        means = np.add.reduceat(self.cores, begins) / lengths
        return means, np.maximum.reduceat(self.memory_bytes, begins)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    """Limits of what a group may use.

    Attributes
    ----------
    is_quota : bool, default True
        False where ``cores`` are only set aside: the group may use more if nobody else wants it,
        and is never throttled (a Kubernetes request without a limit).
    """

    cores: float
    memory_bytes: float
    is_quota: bool = True

    def __post_init__(self) -> None:
        check_positive("limits", cores=self.cores, memory_bytes=self.memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """One period, as the kernel reports it at its end.

    Attributes
    ----------
    end_s : float
        Since the run began. [s]
    is_throttled : bool
        The quota was used up before the period's end, with work left.
    """

    end_s: float
    length_s: float
    quota_cores: float
    used_cores: float
    is_throttled: bool
    memory_bytes: float


class Controller:
    """Watches one run and sets its limits; as it stands, limits that stay what they are."""

    def __init__(self, limits: ResourceLimits) -> None:
        self.limits = limits

    def first(self) -> ResourceLimits:
        """Return the limits that the run starts with."""
        return self.limits

    def after(self, seen: Period) -> ResourceLimits:
        """Return the limits of the next period."""
        del seen
        return self.limits

    def at_memory_limit(self, wanted_bytes: float) -> float:
        """Return the memory limit when the run asks for more, before it is killed [bytes]."""
        del wanted_bytes
        return self.limits.memory_bytes

    def after_oom(self, wanted_bytes: float) -> float:
        """Return the memory limit after the run was killed for asking [bytes]."""
        del wanted_bytes
        return self.limits.memory_bytes

    def ended(self) -> None:
        """Give back what the run held of a pool; nothing where there is none."""


class Policy(Protocol):
    """A way of setting limits: its parameters, and what it learned before."""

    def controller(self, usage: RecordedUsage) -> Controller:
        """Return a controller for one run; only the oracle looks at the usage to come."""
        ...


class SharingPolicy(Protocol):
    """A way of setting the limits of runs that share one pool."""

    def controllers(self, usages: Sequence[RecordedUsage]) -> Sequence[Controller]:
        """Return a controller for each run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LimitedRun:
    """A run under a policy.

    Attributes
    ----------
    limit : ndarray of shape (periods,)
        [cores]
    memory_limit_bytes : ndarray of shape (periods,)
    used_cores : ndarray of shape (periods,)
    slack_core_h, slack_gib_h : float
        Limit less usage, never below zero, summed over time.
    memory_slack_fraction : float
        Of all memory that was reserved over time, what was not used.
    throttled_fraction : float
        Periods in which the quota ended before the work.
    slowdown : float
        Time with limits by time without, at least 1.
    oom : int
        How often memory went over its limit. The replay goes on as if it had been given: what a
        restart costs is the ``goodput`` room's.
    """

    limit: Array
    memory_limit_bytes: Array
    used_cores: Array
    slack_core_h: float
    slack_gib_h: float
    memory_slack_fraction: float
    throttled_fraction: float
    slowdown: float
    oom: int
