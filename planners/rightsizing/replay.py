r"""A recorded run under limits that a policy sets, one CFS period after another.

======================  =========================================================================
here                    meaning, unit
======================  =========================================================================
:math:`W(x)`            CPU time of the recorded run up to its second x. [core-s]
:math:`q P`             CPU time that the quota q grants in a period P. [core-s]
``step_s``              length of a reading of the recorded series. [s]
``period_s``            CFS period: a quota is granted anew at its begin. [s]
limit                   CPU: what the group may use of each period, in cores; memory: beyond it
                        the group is killed. [bytes]
slack                   limit less usage, over time. [core-h, GiB-h]
======================  =========================================================================

The kernel lets a group run at full speed until the period's grant is used up, and stops it until
the next. A run that waits for itself (training) therefore moves on in its recorded time by

.. math:: \delta = \max \{ d \le P : W(x + d) - W(x) \le q P \}

A paced run (``RecordedUsage.is_paced``) has its work d of the period and the backlog k of earlier
ones: it uses min(d + k, q P), and k' = d + k less that is left. Either is throttled where work was
left.
Readings are taken as even inside: what is busier inside a reading than its mean is seen too late.

References
----------
.. [1] P. Turner, B. B. Rao, N. Rao, "CPU bandwidth control for CFS," Linux Symposium 2010.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from advisor.planners.core import GIB, HOUR_S, PlanningError, check_not_negative, check_positive

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedUsage:
    """The usage of a run without limits, in readings of equal length."""

    step_s: float  # length of a reading [s]
    cores: Array  # (n,); CPU time of each reading by its length [cores]
    memory_bytes: Array  # (n,); most that was resident in each
    # whether work arrives by the clock, as requests do, and piles up while the run is held back. A
    # training run is not paced: what comes next begins when this is done.
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

        ``t_s``, ``cpu_s``: (m,); when it was read, and the CPU time used until then; neither falls
        [s]; ``memory_bytes``: (m,); what was resident then; ``step_s``: of the readings to make;
        the recorder's own mean, say [s].

        Raises ValueError if there are fewer than two readings.
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
    """Limits of what a group may use."""

    cores: float
    memory_bytes: float
    # false where ``cores`` are only set aside: the group may use more if nobody else wants it, and
    # is never throttled (a Kubernetes request without a limit)
    is_quota: bool = True

    def __post_init__(self) -> None:
        check_positive("limits", cores=self.cores, memory_bytes=self.memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """One period, as the kernel reports it at its end."""

    end_s: float  # since the run began [s]
    length_s: float
    used_cores: float
    is_throttled: bool  # the quota was used up before the period's end, with work left
    memory_bytes: float


class Controller:
    """Watches one run and sets its limits; as it stands, limits that stay what they are."""

    def __init__(self, limits: ResourceLimits) -> None:
        self.limits = limits

    def after(self, seen: Period) -> None:
        """Set the limits of the next period."""

    def at_memory_limit(self, wanted_bytes: float) -> None:
        """Set the memory limit when the run asks for more, before it is killed."""

    def after_oom(self, wanted_bytes: float) -> None:
        """Set the memory limit after the run was killed for asking."""

    def ended(self) -> None:
        """Give back what the run held of a pool; nothing where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LimitedRun:
    """A run under a policy."""

    limit: Array  # (periods,); [cores]
    memory_limit_bytes: Array  # (periods,)
    used_cores: Array  # (periods,)
    # slack_core_h, slack_gib_h: limit less usage, never below zero, summed over time
    slack_core_h: float
    slack_gib_h: float
    memory_slack_fraction: float  # of all memory that was reserved over time, what was not used
    throttled_fraction: float  # periods in which the quota ended before the work
    slowdown: float  # time with limits by time without, at least 1
    # how often memory went over its limit. The replay goes on as if it had been given.
    oom: int
    # reserved_core_h, reserved_gib_h: limits summed over time
    reserved_core_h: float
    reserved_gib_h: float
    lost_s: float  # work since the start or the last kill that each kill throws away [s]

    @property
    def most_cores(self) -> float:
        """Largest CPU limit of the run [cores]."""
        return float(np.max(self.limit))

    @property
    def most_bytes(self) -> float:
        """Largest memory limit of the run [bytes]."""
        return float(np.max(self.memory_limit_bytes))


PERIOD_S: Final = 0.1  # of CFS, by default
_MOST_SLOWDOWN: Final = 1000.0
_ROUNDING: Final = 1e-9


def replay(
    series: RecordedUsage, controller: Controller, period_s: float = PERIOD_S
) -> LimitedRun:
    """Return what limits a controller would have set, and what would have come of it.

    ``series``: as recorded without limits; ``period_s``: of the CFS quota [s]; 0.1 by default.

    Raises PlanningError if the limits are so low that the run takes a thousand times longer, or a
    period makes no sense.
    """
    return replay_together([series], [controller], period_s)[0]


def replay_together(
    runs: Sequence[RecordedUsage], controllers: Sequence[Controller], period_s: float = PERIOD_S
) -> tuple[LimitedRun, ...]:
    """Return what comes of runs that begin together, period by period, all at once.

    ``controllers``: of each run, such as those of one pool (``escra.controllers``); who ends gives
    back what it held of it.

    Raises PlanningError as ``replay`` does.
    """
    check_positive("replay", period_s=period_s)
    pairs = zip(runs, controllers, strict=True)
    every = [_Run(series, controller, period_s) for series, controller in pairs]
    going = every
    while going:
        for one in going:  # before any period is lived: who needs memory takes it from others
            one.ask_memory()
        for one in going:
            one.go_on()
        for one in going:
            if one.work.is_done:
                one.controller.ended()
        going = [one for one in going if not one.work.is_done]
    return tuple(one.outcome() for one in every)


class _Run:
    """A run under a controller, as far as it is, and what is summed up over its periods."""

    def __init__(self, series: RecordedUsage, controller: Controller, period_s: float) -> None:
        self._series, self.controller, self._period_s = series, controller, period_s
        self.work, self._t = _Work(series), 0.0
        # Of each period: CPU limit, memory limit, time lived, cores used, memory.
        self._periods: list[tuple[float, float, float, float, float]] = []
        self._throttled = self._oom = 0
        self._is_over, self._lost_s = False, 0.0

    def go_on(self) -> None:
        """Live one period, and let the controller set the limits of the next."""
        limits = self.controller.limits
        if self._t > _MOST_SLOWDOWN * self._series.length_s + self._period_s:
            raise PlanningError(
                f"a limit of {limits.cores:.3g} cores never lets the run end",
                hint="raise the limit",
            )
        work, memory_limit = self.work, self.controller.limits.memory_bytes
        quota_s = limits.cores * self._period_s if limits.is_quota else np.inf
        lived_s, used_s, is_throttled = work.advance(self._period_s, quota_s)
        used = used_s / lived_s
        self._periods.append((limits.cores, memory_limit, lived_s, used, work.memory_bytes))
        self._throttled += is_throttled
        self._t += lived_s
        self.controller.after(
            Period(
                end_s=self._t,
                length_s=lived_s,
                used_cores=used,
                is_throttled=is_throttled,
                memory_bytes=work.memory_bytes,
            )
        )

    def ask_memory(self) -> None:
        """Let the controller give what is needed beyond the limit, counting a kill if it does not.

        What was done so far, of this run or since the last kill, is then done anew.
        """
        wanted = self.work.memory_bytes
        if wanted > self.controller.limits.memory_bytes:
            self.controller.at_memory_limit(wanted)
        is_over = wanted > self.controller.limits.memory_bytes
        if is_over and not self._is_over:
            self._oom += 1
            self._lost_s = float(np.sum([lived for _, _, lived, _, _ in self._periods]))
        self._is_over = is_over
        if is_over:
            self.controller.after_oom(wanted)

    def outcome(self) -> LimitedRun:
        limit, memory_limit, lived, used, memory = np.array(self._periods).T
        unused = np.maximum(0.0, memory_limit - memory) * lived
        return LimitedRun(
            limit=limit,
            memory_limit_bytes=memory_limit,
            used_cores=used,
            slack_core_h=float(np.sum(np.maximum(0.0, limit - used) * lived)) / HOUR_S,
            slack_gib_h=float(np.sum(unused)) / GIB / HOUR_S,
            memory_slack_fraction=float(np.sum(unused) / np.sum(memory_limit * lived)),
            throttled_fraction=self._throttled / len(limit),
            slowdown=max(1.0, self._t / self._series.length_s),
            oom=self._oom,
            reserved_core_h=float(np.sum(limit * lived)) / HOUR_S,
            reserved_gib_h=float(np.sum(memory_limit * lived)) / GIB / HOUR_S,
            lost_s=self._lost_s,
        )


class _Work:
    """The recorded run and how far it is."""

    def __init__(self, usage: RecordedUsage) -> None:
        self._usage = usage
        self._ends_s: Array = np.asarray(
            usage.step_s * np.arange(len(usage.cores) + 1), np.float64
        )
        done = np.append(0.0, np.cumsum(usage.cores * usage.step_s))
        self._done_s: Array = np.asarray(done, np.float64)
        self._at_s = 0.0  # in recorded time
        self._backlog_s = 0.0
        self._memory = usage.memory_bytes.tolist()

    @property
    def is_done(self) -> bool:
        left_s = self._usage.length_s - self._at_s
        return left_s <= _ROUNDING * self._usage.length_s and self._backlog_s <= _ROUNDING

    @property
    def memory_bytes(self) -> float:
        at = int(self._at_s / self._usage.step_s + _ROUNDING)
        return float(self._memory[min(at, len(self._memory) - 1)])

    def advance(self, period_s: float, quota_s: float) -> tuple[float, float, bool]:
        """Return what of a period was lived, the CPU time used in it [s], and throttling."""
        return (self._paced if self._usage.is_paced else self._unpaced)(period_s, quota_s)

    def _unpaced(self, period_s: float, quota_s: float) -> tuple[float, float, bool]:
        length_s = self._usage.length_s
        until_s = min(self._at_s + period_s, length_s)
        begun, wanted = self._worked(self._at_s), self._worked(until_s)
        if wanted - begun <= quota_s * (1 + _ROUNDING):
            lived_s, self._at_s = until_s - self._at_s, until_s
            return lived_s, wanted - begun, False
        # The first moment at which the grant is used up: work rises there, or it would suffice.
        self._at_s = max(self._at_s, self._when(begun + quota_s))
        return period_s, quota_s, True

    def _paced(self, period_s: float, quota_s: float) -> tuple[float, float, bool]:
        until_s = min(self._at_s + period_s, self._usage.length_s)
        wanted = self._worked(until_s) - self._worked(self._at_s) + self._backlog_s
        lived_s = until_s - self._at_s if until_s > self._at_s else period_s
        granted = quota_s * min(1.0, lived_s / period_s) if np.isfinite(quota_s) else wanted
        used = min(wanted, granted)
        if until_s == self._at_s and granted > 0:  # after the last arrival: until it is worked off
            lived_s = min(period_s, period_s * wanted / granted)
        self._at_s, self._backlog_s = until_s, wanted - used
        return max(lived_s, _ROUNDING), used, wanted - used > _ROUNDING

    def _worked(self, at_s: float) -> float:
        at = at_s / self._usage.step_s
        whole = min(int(at), len(self._done_s) - 2)
        low, high = self._done_s[whole], self._done_s[whole + 1]
        return float(low + (high - low) * (at - whole))

    def _when(self, work_s: float) -> float:
        after = int(np.searchsorted(self._done_s, work_s, side="left"))
        after = min(max(after, 1), len(self._done_s) - 1)
        low, high = self._done_s[after - 1], self._done_s[after]
        share = (work_s - low) / (high - low) if high > low else 1.0
        return float(self._ends_s[after - 1] + share * self._usage.step_s)
