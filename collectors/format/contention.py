"""The correction of wall time for neighbours: one for every time that is recorded.

A ``Stretch`` is what was seen of a time, and names what the equations are of; ``correct`` is the
law, of which ``_beyond`` tells what the main thread lost to others' waiting; ``own_share`` tells
what no neighbour can have caused.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Final

# What is left of the neighbours after the waiting is taken out, as a share of what was taken out:
# caches and clocks that were shared. The example beside two burners on one core took 7 % longer
# (6 to 11) where 220 % were taken out, other jobs 11 to 26 % where 400 % were
# (lab/speed/collector_contention.py --cores 1, 2026-11-21): 0.03 to 0.065.
LEFT_OVER: Final = 0.04
# The slowest thread of a pool may wait where nobody waits for it: never all of the time is its.
_LARGEST_BEYOND: Final = 0.95
# How far ``beyond`` may be off, as a share of it. Eight scripts on two threads beside two burners
# lost 0.2 to 1.7 times as much (mean 1.05, deviation 0.4), against the same scripts recorded
# before and after on the quiet machine, which agreed with each other to 15 % (2026-11-22;
# lab/speed/collector_contention.py --threads 2 shows what comes of it).
_POOL_DOUBT: Final = 0.6
# Whoever made steps computed something.
_MOST_LOST: Final = 0.999


@dataclass(slots=True)
class Curve:
    """A counter that only grows, at the moments when it was read; straight between them."""

    times_ns: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, t_ns: int, value: float) -> None:
        """Take in a reading; what comes late or falls is an error of reading and counts as still.

        Two readings at one moment are one: the later.
        """
        value = max(value, self.values[-1]) if self.values else value
        if self.times_ns and t_ns <= self.times_ns[-1]:
            self.values[-1] = value
            return
        self.times_ns.append(t_ns)
        self.values.append(value)

    def grow(self, t_ns: int, by: float) -> None:
        """Take in by how much the counter grew since the reading before."""
        self.add(t_ns, (self.values[-1] if self.values else 0.0) + by)

    def at(self, t_ns: float) -> float:
        """Return the counter at a moment; before and after the readings it stands still."""
        if not self.times_ns:
            return 0.0
        place = bisect_right(self.times_ns, t_ns)
        if place == 0:
            return self.values[0]
        if place == len(self.times_ns):
            return self.values[-1]
        begin, end = self.times_ns[place - 1], self.times_ns[place]
        share = (t_ns - begin) / (end - begin)
        return self.values[place - 1] + share * (self.values[place] - self.values[place - 1])

    def over(self, begin_ns: float, end_ns: float) -> float:
        """Return by how much the counter grew in a stretch; 0 where that ends before it begins."""
        return max(0.0, self.at(end_ns) - self.at(begin_ns))

    def within(self, begin_ns: float, end_ns: float) -> float:
        """Return by how much the counter grew in a stretch at least: between readings in it."""
        first, last = bisect_left(self.times_ns, begin_ns), bisect_right(self.times_ns, end_ns) - 1
        return self.values[last] - self.values[first] if first < last else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A stretch of wall time, or the sum of several, and the waiting for a core in it.

    ==========  ================================================================================
    name        meaning, all of one stretch [ns]
    ==========  ================================================================================
    wall        time on the monotonic clock
    delay       the main thread's waiting for a core (``run_delay``)
    pool        what the slowest other thread of its pool waited for a core
    awaited     what the slowest other process of the tree did, where the main thread waits for it
    blocked     what the main thread neither computed nor waited for a core
    kept        the part of the waiting that is the machine's or the job's own: a quota's
                throttling, and what no neighbour can have caused
    wait        the part of the wall time inside the data loader
    wait delay  the main thread's waiting for a core in there
    workers     what one loader worker waited for a core, the mean of them
    active      what one of them computed or waited for a core, the mean of them
    chain       what all threads of all workers waited for a core, together
    least       the whole tree's processor time at least, spread over all its cores
    ==========  ================================================================================

    ``unseen_ns`` is waiting that may have cost time besides and cannot be told: it is not taken
    out, it widens. [ns]
    """

    wall_ns: float
    delay_ns: float = 0.0
    pool_ns: float = 0.0
    awaited_ns: float = 0.0
    blocked_ns: float = 0.0
    kept_ns: float = 0.0
    wait_ns: float = 0.0
    wait_delay_ns: float = 0.0
    workers_ns: float = 0.0
    active_ns: float = 0.0
    chain_ns: float = 0.0
    least_ns: float = 0.0
    unseen_ns: float = 0.0

    def __add__(self, other: Stretch) -> Stretch:
        names = (part.name for part in fields(self))
        return Stretch(**{name: getattr(self, name) + getattr(other, name) for name in names})


NOTHING: Final = Stretch(wall_ns=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """A time as it was and as it would be without neighbours."""

    # raw_s, raw_wait_s: wall time, and the part of it in the data loader [s]
    raw_s: float
    # corrected_s, wait_s: the same without the waiting for a core [s]
    corrected_s: float
    raw_wait_s: float
    wait_s: float
    # how far the corrected time may be off, since waiting was taken out of it [s]
    half_width_s: float

    def per(self, count: float) -> Corrected:
        """Return the time of one, where this is the time of ``count``."""
        names = (part.name for part in fields(self))
        return Corrected(**{name: getattr(self, name) / count for name in names})

    def __add__(self, other: Corrected) -> Corrected:
        names = (part.name for part in fields(self))
        return Corrected(**{name: getattr(self, name) + getattr(other, name) for name in names})


def correct(seen: Stretch) -> Corrected:
    """Take the neighbours out of a stretch, whose table has the names.

    With k = kept / (delay + pool + awaited), the share that stays, and beyond of ``_beyond``::

        computing  =  wall - wait - (1 - k) (delay - wait delay + beyond)
        paced      =  active - (1 - k) workers - computing
        passed on  =  wait - (1 - k) (wait delay + chain)
        waiting    =  max(0, paced, (1 - active / wall) passed on)
        corrected  =  computing + waiting

    A loop is no faster than its workers, who take what they compute: what it gains in computing it
    may have to wait longer. Where they are done in time it waits only until a batch is passed on,
    by threads that wait for a core one after the other. Without workers nothing but its own
    waiting is taken off the loader's time.

    Who has more threads than cores waits for himself, mostly where the neighbours are waited for
    too. Which was which is not seen, but no neighbour computes for the tree::

        corrected  =  max(corrected, min(least, wall))

    Neighbours also leave the caches cold: with r = ``LEFT_OVER`` for each time of waiting::

        told       =  corrected / (1 + r (wall - corrected) / corrected)

    Returns
    -------
    Corrected
        0 <= wait_s <= corrected_s <= raw_s, and wait_s <= raw_wait_s without workers.
    """
    wall = max(seen.wall_ns, 0.0)
    wait = _between(0.0, seen.wait_ns, wall)
    delay = _between(0.0, seen.delay_ns, wall)
    wait_delay = _between(0.0, seen.wait_delay_ns, min(wait, delay))
    beyond = _beyond(seen, wall, delay, wait - wait_delay)
    whole = delay + beyond
    waited = delay + max(seen.pool_ns, 0.0) + max(seen.awaited_ns, 0.0)
    lost_share = 1.0 - _between(0.0, seen.kept_ns / waited, 1.0) if waited else 1.0
    lost = min(lost_share * (whole - wait_delay), _MOST_LOST * (wall - wait))
    # What does not fit outside the loader was inside: old recordings do not say where.
    inside = min(lost_share * whole - lost, wait)
    computing = wall - wait - lost
    active = _between(0.0, seen.active_ns, wall)
    paced = active - lost_share * max(seen.workers_ns, 0.0) - computing
    passed_on = wait - inside - lost_share * max(seen.chain_ns, 0.0)
    waiting = max(0.0, paced, (1.0 - active / wall) * passed_on if wall else 0.0)
    corrected = max(computing + waiting, _between(0.0, seen.least_ns, wall))
    taken = wall - corrected
    warm = corrected / (corrected + LEFT_OVER * taken) if corrected else 1.0
    unseen = max(seen.unseen_ns, 0.0)
    half = warm * (LEFT_OVER * taken + _POOL_DOUBT * lost_share * beyond) + unseen
    return Corrected(
        raw_s=wall / 1e9,
        corrected_s=warm * corrected / 1e9,
        raw_wait_s=wait / 1e9,
        wait_s=warm * waiting / 1e9,
        half_width_s=half / 1e9,
    )


def _beyond(seen: Stretch, wall: float, delay: float, loading: float) -> float:
    """Return what others waited for a core while the main thread, which did not, waited for them.

    A region of the pool ends with its last thread: while one waits for a core, the main thread
    waits for that one. It may sleep meanwhile, which is seen; or burn its time at the barrier, or
    wait for a core itself, which chance tells apart: a sleeper waits for nothing, so what is left
    of the pool's waiting fell on the rest of the time evenly::

        idle       =  blocked - (wait - wait delay)
        asleep     =  min(idle, pool)
        beyond     =  asleep + (pool - asleep) (1 - delay / (wall - blocked))
                      + min(idle - asleep, awaited)

    ``loading`` is the main thread's time in the loader without its waiting for a core there.
    """
    blocked = _between(0.0, seen.blocked_ns, wall - delay)
    pool = max(seen.pool_ns, 0.0)
    idle = max(blocked - loading, 0.0)
    asleep = min(idle, pool)
    awake = wall - blocked
    alone = (pool - asleep) * (1.0 - delay / awake) if awake > 0 else 0.0
    beyond = asleep + alone + _between(0.0, seen.awaited_ns, idle - asleep)
    return min(beyond, _LARGEST_BEYOND * (wall - delay))


def total(stretches: Iterable[Stretch]) -> Stretch:
    """Return several stretches as one."""
    return sum(stretches, NOTHING)


def own_share(
    *, foreign_cpu: float, own_cpu: float, own_delay: float, elapsed: float, cores: float
) -> float:
    """Return the share of the waiting that no neighbour can have caused, in [0, 1].

    While one of the tree's threads waits because of a neighbour, that neighbour runs. On each core
    that a neighbour holds no more of the tree's threads wait than there are to a core.

    ``foreign_cpu``, ``own_cpu``: processor time of everybody else and of the tree [s];
    ``own_delay``: what all processes of the tree waited for a core [s]; ``elapsed``: wall time
    [s]; ``cores``: what the tree may use [cores].

    Examples
    --------
    Alone on the machine, three threads on two cores wait for each other:

    >>> own_share(foreign_cpu=0.0, own_cpu=2.0, own_delay=1.0, elapsed=1.0, cores=2)
    1.0

    Two threads beside two neighbours: without these there was a core for each.

    >>> own_share(foreign_cpu=1.0, own_cpu=1.0, own_delay=1.0, elapsed=1.0, cores=2)
    0.0
    """
    if own_delay <= 0.0 or elapsed <= 0.0:
        return 0.0
    threads = (own_cpu + own_delay) / elapsed
    caused = max(foreign_cpu, 0.0) * max(1.0, threads / cores)
    return _between(0.0, 1.0 - caused / own_delay, 1.0)


def _between(least: float, value: float, most: float) -> float:
    return max(least, min(value, most))
