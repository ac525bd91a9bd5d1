r"""Escra: limits that follow every CFS period, for containers under one budget.

Rules as published in the authors' controller (facts; no code of theirs), all per 100 ms period:

======================  =========================================================================
here                    meaning, unit
======================  =========================================================================
q, u                    quota of the period, and what was left of it. [core-s]
:math:`\bar\theta, \bar u`  means over the last ten periods of "was throttled" and of u; both
                        windows are emptied when the quota changes
F, f                    budget less all quotas, and the fair share: budget by containers. [core-s]
s                       30 ms, a slice. [core-s]
======================  =========================================================================

The first that applies:

1. silent for 2 s: q = s; when it wakes: grow to the least of F and one core;
2. budget exceeded and q > f: less by e s where e = (q - f) / f > 1, else by e (q - f), but not
   below f;
3. q < f and throttled in more than half of the window: more by ((f - q) / f) (f - q), or to f
   where that is less than s / 2 away;
4. throttled in a tenth of the window and F > 0: more by the least of F and 20 theta s;
5. u > q / 5 and q >= s: q = max(s, 0.8 q);
6. mean u > 5 ms and q > s: q = max(s, q - 5 ms).

Memory: at the limit, before the kill, 5,000 pages or what the pool has; where it has none, limits
of others shrink first; every 5 s a limit of more than 50 MiB above the usage shrinks to that.

References
----------
.. [1] G. Cusack et al., "Escra: Event-driven, Sub-second Container Resource Allocation,"
   ICDCS 2022; repositories gregcusack/Escra, gregcusack/ec_gcm, Maziyar-Na/EC-Agent.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from advisor.planners.core import MIB
from advisor.planners.rightsizing.replay import Controller, Period, ResourceLimits

PERIOD_S: Final = 0.1
WINDOW: Final = 10
SLICE_S: Final = 0.030
SILENT_S: Final = 2.0
WAKE_S: Final = 1.0 * PERIOD_S  # one core
STARVED: Final = 0.5
THROTTLED: Final = 0.1
GAIN: Final = 20.0
UNUSED_FRACTION: Final = 0.2
KEPT_FRACTION: Final = 0.8
FINE_S: Final = 0.005
PAGE_BYTES: Final = 4096
MEMORY_SLICE_BYTES: Final = 5000 * PAGE_BYTES
MEMORY_HEADROOM_BYTES: Final = 50 * MIB
RECLAIM_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool that containers share."""

    budget_s: float  # CPU time of a period for all of them [core-s]
    granted_s: float  # sum of their quotas [core-s]
    containers: int = 1

    @property
    def free_s(self) -> float:
        """What nobody was granted [core-s]."""
        return max(0.0, self.budget_s - self.granted_s)

    @property
    def fair_s(self) -> float:
        """A container's share if all get the same [core-s]."""
        return self.budget_s / self.containers

    @property
    def is_exceeded(self) -> bool:
        """Whether more is granted than there is."""
        return self.granted_s > self.budget_s


@dataclass(slots=True, kw_only=True)
class Container:
    """A container, as the controller knows it."""

    quota_s: float  # [core-s a period]
    unused_s: float = 0.0  # of the last period [core-s]
    # throttled, unused: windows: 1 or 0; [core-s]
    throttled: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    unused: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    silent_s: float = 0.0  # how long it has not run [s]

    def report(self, used_s: float, is_throttled: bool) -> bool:
        """Take in one period; return whether the container woke after a silence."""
        self.unused_s = max(0.0, self.quota_s - used_s)
        if used_s <= 0:
            self.silent_s += PERIOD_S
            return False
        wakes = self.silent_s >= SILENT_S
        self.silent_s = 0.0
        self.throttled.append(float(is_throttled))
        self.unused.append(self.unused_s)
        return wakes

    def set(self, quota_s: float) -> None:
        """Change the quota; the windows begin anew."""
        if quota_s != self.quota_s:
            self.quota_s = quota_s
            self.throttled.clear()
            self.unused.clear()


def next_quota_s(container: Container, pool: Pool, *, wakes: bool = False) -> float:
    """Return the quota of the next period by the rules above [core-s]."""
    q, f = container.quota_s, pool.fair_s
    if container.silent_s >= SILENT_S:
        return SLICE_S
    if wakes:
        return max(q, min(pool.free_s, WAKE_S))
    throttled = _mean(container.throttled)
    if pool.is_exceeded and q > f:
        excess = (q - f) / f
        return max(f, q - (excess * SLICE_S if excess > 1 else excess * (q - f)))
    if q < f and throttled > STARVED:
        gap = f - q
        return f if gap < SLICE_S / 2 else q + gap / f * gap
    if throttled >= THROTTLED and pool.free_s > 0:
        return q + min(pool.free_s, GAIN * throttled * SLICE_S)
    if container.unused_s / q > UNUSED_FRACTION and q >= SLICE_S:
        return max(SLICE_S, KEPT_FRACTION * q)
    if _mean(container.unused) > FINE_S and q > SLICE_S:
        return max(SLICE_S, q - FINE_S)
    return q


def _mean(window: deque[float]) -> float:
    return sum(window) / len(window) if window else 0.0


def controllers(budget: ResourceLimits, containers: int = 1) -> list[EscraController]:
    """Start each container of an application with its fair share of one pool.

    ``budget``: what they may have in all, e.g. the peaks of a recorded run; one container has all
    of it, as the authors do.
    """
    shared = _Shared(budget, containers)
    return [EscraController(shared) for _ in range(containers)]


class _Shared:
    """What the containers of an application have in all, and who holds what of it."""

    def __init__(self, budget: ResourceLimits, containers: int) -> None:
        self.budget_s = budget.cores * PERIOD_S
        self.memory_bytes = budget.memory_bytes
        self.containers = containers
        self.held: list[EscraController] = []

    def pool(self) -> Pool:
        granted = sum(one.container.quota_s for one in self.held)
        return Pool(budget_s=self.budget_s, granted_s=granted, containers=max(len(self.held), 1))

    def settle(self) -> None:
        """Let those above the fair share give back at once what a starved one was granted of it.

        The authors let them do so in turn (rule 2): until then more is granted than there is.
        """
        pool = self.pool()
        above = [one for one in self.held if one.container.quota_s > pool.fair_s]
        excess = sum(one.container.quota_s - pool.fair_s for one in above)
        if not pool.is_exceeded or excess <= 0:
            return
        kept = max(0.0, 1.0 - (pool.granted_s - pool.budget_s) / excess)
        for one in above:
            one.grant(pool.fair_s + kept * (one.container.quota_s - pool.fair_s))

    def free_bytes(self) -> float:
        return max(0.0, self.memory_bytes - sum(one.memory_bytes for one in self.held))

    def reclaim(self) -> float:
        """Take back what containers hold beyond their headroom; return what is free [bytes]."""
        for one in self.held:
            one.shrink()
        return self.free_bytes()


class EscraController(Controller):
    """The rules for one container, and what it holds of the pool."""

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared
        self.container = Container(quota_s=shared.budget_s / shared.containers)
        self.memory_bytes = shared.memory_bytes / shared.containers
        self._since_reclaim_s = 0.0
        self._used_bytes = 0.0  # as far as was reported
        shared.held.append(self)
        super().__init__(ResourceLimits(cores=1.0, memory_bytes=1.0))
        self._set()

    def after(self, seen: Period) -> None:
        """Set the limits after a period."""
        # Rules are per 100 ms; a period of another length reports as much of a rate.
        wakes = self.container.report(seen.used_cores * PERIOD_S, seen.is_throttled)
        self.grant(next_quota_s(self.container, self._shared.pool(), wakes=wakes))
        self._shared.settle()
        self._since_reclaim_s += seen.length_s
        self._used_bytes = seen.memory_bytes
        if self._since_reclaim_s >= RECLAIM_EVERY_S:
            self._since_reclaim_s = 0.0
            self.shrink()

    def shrink(self) -> None:
        """Give back memory beyond what is used and 50 MiB."""
        self.memory_bytes = min(self.memory_bytes, self._used_bytes + MEMORY_HEADROOM_BYTES)
        self._set()

    def at_memory_limit(self, wanted_bytes: float) -> None:
        """Take as many pages as are wanted, and the pool and others have."""
        self._used_bytes = max(self._used_bytes, min(wanted_bytes, self.memory_bytes))
        while self.memory_bytes < wanted_bytes:
            free = self._shared.free_bytes() or self._shared.reclaim()
            if free <= 0:
                break
            self.memory_bytes += min(MEMORY_SLICE_BYTES, free)
            self._used_bytes = min(wanted_bytes, self.memory_bytes)
        self._set()

    def ended(self) -> None:
        """Give back to the pool what the container held."""
        self._shared.held.remove(self)

    def grant(self, quota_s: float) -> None:
        """Change the quota [core-s a period]."""
        self.container.set(quota_s)
        self._set()

    def _set(self) -> None:
        self.limits = ResourceLimits(
            cores=self.container.quota_s / PERIOD_S, memory_bytes=self.memory_bytes
        )
