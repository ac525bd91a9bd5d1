"""One honest step time from the ticks of a clock.

=============  ================================================================================
name           meaning
=============  ================================================================================
wall           time between two steps on the monotonic clock
delay          how long the main thread waited for a core in it (``run_delay``)
corrected      the time that the step would take without neighbours; see ``contention``
warm-up        the steps at the beginning before the first that is below 1.5 times the median of
               the ten after it; the first always
=============  ================================================================================

Steps that were traced, that follow a traced one, or in which an epoch began are no ordinary
steps and are left out. The interval is by batch means: steps are autocorrelated on a busy machine,
means of ten long batches hardly are.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from operator import sub

from advisor.collectors.format.contention import Corrected, Curve, Stretch, correct, total
from advisor.collectors.hooks import format as fmt

# Student's t, 95 % one-sided, by degrees of freedom from 1: a 90 % interval from batch means.
_T_90 = (6.3138, 2.9200, 2.3534, 2.1318, 2.0150, 1.9432, 1.8946, 1.8595, 1.8331)
BATCHES = 10
_WARMUP_FACTOR = 1.5
_WARMUP_WINDOW = 10
_LONGEST_WARMUP = 50


@dataclass(slots=True)
class Others:
    """Whom the main thread waits for, and what they waited for a core themselves."""

    # what the slowest other thread of the pool waited for a core [ns]
    pool: Curve = field(default_factory=Curve)
    # what the main thread neither computed nor waited for a core [ns]
    blocked: Curve = field(default_factory=Curve)
    # workers, active, chain: what one loader worker waited, and what it computed or waited, the
    # mean of them; what all threads of all workers waited [ns]
    workers: Curve = field(default_factory=Curve)
    active: Curve = field(default_factory=Curve)
    chain: Curve = field(default_factory=Curve)
    _seen: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    _pool: tuple[int, int, int, int] | None = None

    def take_pool(
        self, t_ns: int, slowest_ns: int, main_ns: int, others_ns: int | None = None,
        cpu_ns: int = 0,
    ) -> None:  # fmt: skip
        """Take in what threads of the pool have waited so far.

        ``slowest_ns``, ``main_ns``, ``others_ns``: of the slowest thread in each interval, of the
        main one, and of the slowest but it; None in recordings of earlier versions; ``cpu_ns``:
        processor time of the main thread; 0 where it was not read: its sleep is unknown.
        """
        if others_ns is None:
            for curve in (self.pool, self.blocked):
                curve.add(t_ns, float(slowest_ns - main_ns))
            return
        before, self._pool = self._pool, (t_ns, main_ns, others_ns, cpu_ns)
        if before is None:
            self.begin_pool(t_ns)
            return
        elapsed, main, others, cpu = (n - b for n, b in zip(self._pool, before, strict=True))
        self.pool.grow(t_ns, max(0, others))
        self.blocked.grow(t_ns, max(0, elapsed - max(0, main) - cpu) if cpu > 0 else 0)

    def begin_pool(self, t_ns: int) -> None:
        """Take in that nobody has computed or waited for anything yet."""
        self._pool = self._pool or (t_ns, 0, 0, 0)
        for curve in (self.pool, self.blocked):
            curve.add(t_ns, 0.0)

    def take_workers(
        self, t_ns: int, number: int, counts: tuple[int, int, int], workers: int
    ) -> None:
        """Take in what the workers of loader ``number`` have done so far.

        ``counts`` are their processor time, the waiting of their main threads and that of their
        other threads. [ns]
        """
        seen = self._seen.get(number, (0, 0, 0))
        self._seen[number] = counts
        cpu, waited, helpers = (max(0, now - b) for now, b in zip(counts, seen, strict=True))
        self.workers.grow(t_ns, waited / workers)
        self.active.grow(t_ns, (cpu + waited) / workers)
        self.chain.grow(t_ns, waited + helpers)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A step that is no ordinary one; see ``contention.Stretch`` for its times."""

    begin_ns: int
    end_ns: int
    delay_ns: int
    wait_ns: int
    wait_delay_ns: int
    is_boundary: bool


@dataclass(slots=True)
class Steps:
    """Ordinary steps as running sums, so that any stretch costs two look-ups."""

    # wall_ns, corrected_ns: running sums over the steps, both beginning with 0; corrected by the
    # main thread's waiting
    wall_ns: list[int] = field(default_factory=lambda: [0])
    corrected_ns: list[int] = field(default_factory=lambda: [0])
    # wait_ns, wait_delay_ns: the same of the time inside the loader, and of the main thread's
    # waiting for a core there
    wait_ns: list[int] = field(default_factory=lambda: [0])
    wait_delay_ns: list[int] = field(default_factory=lambda: [0])
    end_ns: list[int] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    # first_ns, first_delay_ns: the first tick, and what the main thread had waited by then since
    # it began
    first_ns: int = 0
    first_delay_ns: int = 0
    last_ns: int = 0
    last_delay_ns: int = 0
    ticks: int = 0
    # shared with the clocks that this one took over from
    others: Others = field(default_factory=Others)
    # share of the waiting that is the job's own; see ``contention.own_share``
    kept_share: float = 0.0
    # what a quota took: the machine's own too [ns]
    throttled: Curve = field(default_factory=Curve)
    # what whoever of the tree waited most waited for a core, where the main thread waits for the
    # others [ns]
    slowest: Curve = field(default_factory=Curve)
    # the tree's processor time, spread over all its cores [ns]
    least: Curve = field(default_factory=Curve)

    def add(
        self, t_ns: int, delay_ns: int, flags: int, wait_ns: int = 0, wait_delay_ns: int = 0
    ) -> None:
        """Take in a tick.

        ``delay_ns``: what the main thread has waited for a core since it began; ``wait_ns``,
        ``wait_delay_ns``: time inside the loader since the tick before, and the waiting for a core
        in there.
        """
        self.ticks += 1
        if self.last_ns == 0:
            if self.first_ns:  # what came before turned out to be parts of steps
                delay = max(0, delay_ns - self.first_delay_ns)
                self.left_out.append(LeftOut(self.first_ns, t_ns, delay, 0, 0, False))
            else:
                self.first_ns, self.first_delay_ns = t_ns, delay_ns
        else:
            wall = t_ns - self.last_ns
            # The delay is read less often than fast steps end: a step may carry its forerunners'.
            delay = max(0, delay_ns - self.last_delay_ns)
            if flags & (fmt.FLAG_BOUNDARY | fmt.FLAG_DEEP | fmt.FLAG_AFTER_DEEP):
                is_boundary = bool(flags & fmt.FLAG_BOUNDARY)
                self.left_out.append(
                    LeftOut(self.last_ns, t_ns, delay, wait_ns, wait_delay_ns, is_boundary)
                )
            elif wall > 0:
                self.wall_ns.append(self.wall_ns[-1] + wall)
                self.corrected_ns.append(self.corrected_ns[-1] + wall - delay)
                self.wait_ns.append(self.wait_ns[-1] + wait_ns)
                self.wait_delay_ns.append(self.wait_delay_ns[-1] + wait_delay_ns)
                self.end_ns.append(t_ns)
        self.last_ns, self.last_delay_ns = t_ns, delay_ns

    def add_plain(
        self, times: Sequence[int], delays: Sequence[int], waits: Sequence[int],
        wait_delays: Sequence[int],
    ) -> bool:  # fmt: skip
        """Take in ticks of ordinary steps at once, as ``add`` would one by one; see there.

        Returns False, nothing taken in, where one of them is none.
        """
        walls = list(map(sub, times, (self.last_ns, *times)))
        if self.last_ns == 0 or min(walls) <= 0:
            return False
        grown = map(sub, delays, (self.last_delay_ns, *delays))
        corrected = [w - d if d > 0 else w for w, d in zip(walls, grown, strict=False)]
        for sums, values in (
            (self.wall_ns, walls), (self.corrected_ns, corrected),
            (self.wait_ns, waits), (self.wait_delay_ns, wait_delays),
        ):  # fmt: skip
            sums.extend(accumulate(values, initial=sums.pop()))
        self.end_ns.extend(times)
        self.ticks += len(times)
        self.last_ns, self.last_delay_ns = times[-1], delays[-1]
        return True

    @property
    def count(self) -> int:
        """Ordinary steps so far."""
        return len(self.end_ns)

    def corrected(self, begin: int, end: int) -> float:
        """Mean corrected time of steps ``begin`` to ``end`` [s]."""
        return (self.corrected_ns[end] - self.corrected_ns[begin]) / (end - begin) / 1e9

    def wall(self, begin: int, end: int) -> float:
        """Mean wall time of steps ``begin`` to ``end`` [s]."""
        return (self.wall_ns[end] - self.wall_ns[begin]) / (end - begin) / 1e9

    def ordinary(self, first: int = 0) -> Stretch:
        """Return the ordinary steps from number ``first`` on as one stretch."""
        if first >= self.count:
            return total(())
        begin_ns = self.end_ns[first] - (self.wall_ns[first + 1] - self.wall_ns[first])
        within = (one for one in self.left_out if one.begin_ns >= begin_ns)
        left_out = [one for one in within if one.end_ns <= self.end_ns[-1]]
        others = sum(self.least.over(one.begin_ns, one.end_ns) for one in left_out)
        least = self.least.within(begin_ns, self.end_ns[-1]) - others

        def grown(curve: Curve) -> float:
            whole = curve.over(begin_ns, self.end_ns[-1])
            return whole - sum(curve.over(one.begin_ns, one.end_ns) for one in left_out)

        wall = self.wall_ns[-1] - self.wall_ns[first]
        delay = wall - (self.corrected_ns[-1] - self.corrected_ns[first])
        wait = self.wait_ns[-1] - self.wait_ns[first]
        wait_delay = self.wait_delay_ns[-1] - self.wait_delay_ns[first]
        return replace(self._stretch(wall, delay, wait, wait_delay, grown), least_ns=least)

    def of(self, one: LeftOut) -> Stretch:
        """Return a step that is no ordinary one as a stretch."""
        return self._stretch(
            one.end_ns - one.begin_ns, one.delay_ns, one.wait_ns, one.wait_delay_ns,
            lambda curve: curve.over(one.begin_ns, one.end_ns),
        )  # fmt: skip

    def _stretch(
        self, wall: int, delay: int, wait: int, wait_delay: int, grown: Callable[[Curve], float]
    ) -> Stretch:
        pool, awaited = grown(self.others.pool), max(0.0, grown(self.slowest) - delay)
        kept = self.kept_share * (delay + pool + awaited) + grown(self.throttled)
        return Stretch(
            wall_ns=wall, delay_ns=delay, pool_ns=pool, awaited_ns=awaited, kept_ns=kept,
            blocked_ns=grown(self.others.blocked), wait_ns=wait, wait_delay_ns=wait_delay,
            workers_ns=grown(self.others.workers), active_ns=grown(self.others.active),
            chain_ns=grown(self.others.chain),
        )  # fmt: skip

    def boundaries(self) -> list[LeftOut]:
        """Return the steps that an epoch began in."""
        return [one for one in self.left_out if one.is_boundary]

    def fastest_per_s(self) -> float:
        """Return the pace of the last second, or of all steps where that is faster [1/s]."""
        if not self.end_ns:
            return 0.0
        span_s = max(self.wall_ns[-1] / 1e9, 1e-9)
        recent = self.count - bisect_left(self.end_ns, self.end_ns[-1] - 1_000_000_000)
        return max(self.count / span_s, float(recent))

    def warmup(self) -> int:
        """Return how many of the first steps are warm-up; they are looked at, not assumed."""
        sums = self.corrected_ns[: _LONGEST_WARMUP + _WARMUP_WINDOW + 2]
        times = [b - a for a, b in pairwise(sums)]
        for first in range(min(len(times), _LONGEST_WARMUP)):
            following = sorted(times[first + 1 : first + 1 + _WARMUP_WINDOW])
            if len(following) < 2:
                return first
            if times[first] <= _WARMUP_FACTOR * following[len(following) // 2]:
                return first
        return min(len(times), _LONGEST_WARMUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean step with its 90 % interval [s]."""

    time: Corrected
    half_width_s: float  # by batch means: how far chance may have put the mean off [s]
    steps: int
    warmup_steps: int

    @property
    def corrected_s(self) -> float:
        """The step without neighbours [s]."""
        return self.time.corrected_s

    @property
    def raw_s(self) -> float:
        """The step as it was [s]."""
        return self.time.raw_s

    @property
    def delay_fraction(self) -> float:
        """Share of the wall time spent waiting for a core."""
        return 1.0 - self.corrected_s / self.raw_s if self.raw_s else 0.0


def mean(steps: Steps) -> Mean | None:
    """Return the mean step after warm-up; None before the second ordinary step."""
    warmup = steps.warmup()
    used = steps.count - warmup
    if used < 1:
        return None
    time = correct(steps.ordinary(warmup)).per(used)
    return Mean(
        time=time,
        half_width_s=_half_width(steps, warmup, time.corrected_s),
        steps=used,
        warmup_steps=warmup,
    )


def _half_width(steps: Steps, warmup: int, value: float) -> float:
    """Half of the batch-means interval; the whole value where a single step has none.

    Fewer steps than batches are a batch each: slow steps are few, and known by their agreement.
    Batches are corrected by the main thread's waiting alone, and scaled as their mean is.
    """
    batches = min(BATCHES, steps.count - warmup)
    if batches < 2:
        return value
    size = (steps.count - warmup) // batches
    start = steps.count - batches * size
    means = [steps.corrected(start + i * size, start + (i + 1) * size) for i in range(batches)]
    centre = sum(means) / batches
    variance = sum((one - centre) ** 2 for one in means) / (batches - 1)
    scale = value / centre if centre > 0 else 1.0
    return min(value, _T_90[batches - 2] * scale * math.sqrt(variance / batches))
