"""From wall time to the time without neighbours: the one correction, for every time recorded.

=============  ================================================================================
name           meaning, all of one stretch [ns]
=============  ================================================================================
wall           time on the monotonic clock
delay          the main thread's waiting for a core (``run_delay``)
beyond         what the slowest other thread of its pool waited while it did not, if both waited
               independently of each other
at once        what that thread waited while the main one did too, likewise
blocked        what the main thread neither computed nor waited for a core
kept           the part of the waiting that is the machine's or the job's own: a quota's
               throttling, and what no neighbour can have caused
wait           the part of the wall time inside the data loader
wait delay     the main thread's waiting for a core in there
workers        what one loader worker waited for a core, the mean of them
active         what one of them computed or waited for a core, the mean of them
chain          what all threads of all workers waited for a core, together
=============  ================================================================================

How long the main thread waited for its pool lies between two bounds. Where it slept meanwhile that
is seen: it was blocked. Where it burned its time at a barrier it is not, and chance tells how much
of the others' waiting was not at once with its own. With c = ``_AT_ONCE``::

    asleep     =  min(blocked - (wait - wait delay), beyond + at once)
    most       =  max(beyond + (1 - c) at once, asleep)

The middle of the two is taken for beyond; half of what lies between them, and ``_AT_ONCE_DOUBT``
of what is at once, widen. With k = kept / (delay + beyond), the share that stays::

    computing  =  wall - wait - (1 - k) (delay - wait delay + beyond)
    paced      =  active - (1 - k) workers - computing
    passed on  =  wait - (1 - k) (wait delay + chain)
    waiting    =  max(0, paced, (1 - active / wall) passed on)
    corrected  =  computing + waiting

A loop is no faster than its workers, who take what they compute: what it gains in computing it may
have to wait longer. Where they are done in time it waits only until a batch is passed on, by
threads that wait for a core one after the other. Without workers nothing but its own waiting is
taken off the loader's time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Final

# What is left of the neighbours after the waiting is taken out, as a share of what was taken out:
# caches and clocks that were shared. The example beside two burners on one core took 7 % longer
# (6 to 11) where 220 % were taken out, other jobs 11 to 26 % where 400 % were
# (benchmarks/collector_contention.py --cores 1, 2026-11-21).
LEFT_OVER: Final = 0.05
# The slowest thread of a pool may wait where nobody waits for it: never all of the time is its.
_LARGEST_BEYOND: Final = 0.95
# How much of two threads' waiting was at once, as a share of what chance would have: six runs of a
# GAN and a convolutional network on two threads beside eight processes and more, solved for the
# step of a quiet machine, 0.85 to 1.02: mean 0.94, deviation 0.07, of which a 90 % interval
# (2026-11-22; benchmarks/collector_contention.py --threads 2 shows what comes of it).
_AT_ONCE: Final = 0.94
_AT_ONCE_DOUBT: Final = 0.12
# Whoever made steps computed something.
_MOST_LOST: Final = 0.999


@dataclass(slots=True)
class Curve:
    """A counter that only grows, at the moments when it was read; straight between them."""

    times_ns: list[int] = field(default_factory=list)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A stretch of wall time, or the sum of several, and the waiting for a core in it.

    See the module's table; ``unseen_ns`` is waiting that may have cost time besides and cannot be
    told: it is not taken out, it widens. [ns]
    """

    wall_ns: float
    delay_ns: float = 0.0
    beyond_ns: float = 0.0
    at_once_ns: float = 0.0
    blocked_ns: float = 0.0
    kept_ns: float = 0.0
    wait_ns: float = 0.0
    wait_delay_ns: float = 0.0
    workers_ns: float = 0.0
    active_ns: float = 0.0
    chain_ns: float = 0.0
    unseen_ns: float = 0.0

    def __add__(self, other: Stretch) -> Stretch:
        names = (part.name for part in fields(self))
        return Stretch(**{name: getattr(self, name) + getattr(other, name) for name in names})


NOTHING: Final = Stretch(wall_ns=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """A time as it was and as it would be without neighbours.

    Attributes
    ----------
    raw_s, raw_wait_s : float
        Wall time, and the part of it in the data loader. [s]
    corrected_s, wait_s : float
        The same without the waiting for a core. [s]
    half_width_s : float
        How far the corrected time may be off, since waiting was taken out of it. [s]
    """

    raw_s: float
    corrected_s: float
    raw_wait_s: float
    wait_s: float
    half_width_s: float

    def per(self, count: float) -> Corrected:
        """Return the time of one, where this is the time of ``count``."""
        names = (part.name for part in fields(self))
        return Corrected(**{name: getattr(self, name) / count for name in names})

    def __add__(self, other: Corrected) -> Corrected:
        names = (part.name for part in fields(self))
        return Corrected(**{name: getattr(self, name) + getattr(other, name) for name in names})


def correct(seen: Stretch) -> Corrected:
    """Take the neighbours out of a stretch; see the module's equations.

    Returns
    -------
    Corrected
        0 <= wait_s <= corrected_s <= raw_s, and wait_s <= raw_wait_s without workers.
    """
    wall = max(seen.wall_ns, 0.0)
    wait = _between(0.0, seen.wait_ns, wall)
    delay = _between(0.0, seen.delay_ns, wall)
    wait_delay = _between(0.0, seen.wait_delay_ns, min(wait, delay))
    at_once, alone = max(seen.at_once_ns, 0.0), max(seen.beyond_ns, 0.0)
    asleep = _between(0.0, seen.blocked_ns - (wait - wait_delay), alone + at_once)
    most = max(alone + (1.0 - _AT_ONCE) * at_once, asleep)
    asleep, most = (min(one, _LARGEST_BEYOND * (wall - delay)) for one in (asleep, most))
    beyond = (asleep + most) / 2
    whole = delay + beyond
    lost_share = 1.0 - _between(0.0, seen.kept_ns / whole, 1.0) if whole else 1.0
    lost = min(lost_share * (whole - wait_delay), _MOST_LOST * (wall - wait))
    # What does not fit outside the loader was inside: old recordings do not say where.
    inside = min(lost_share * whole - lost, wait)
    computing = wall - wait - lost
    active = _between(0.0, seen.active_ns, wall)
    paced = active - lost_share * max(seen.workers_ns, 0.0) - computing
    passed_on = wait - inside - lost_share * max(seen.chain_ns, 0.0)
    waiting = max(0.0, paced, (1.0 - active / wall) * passed_on if wall else 0.0)
    corrected = computing + waiting
    pool = (most - asleep) / 2 + _AT_ONCE_DOUBT * at_once
    half = LEFT_OVER * (wall - corrected) + lost_share * pool + max(seen.unseen_ns, 0.0)
    return Corrected(
        raw_s=wall / 1e9,
        corrected_s=corrected / 1e9,
        raw_wait_s=wait / 1e9,
        wait_s=waiting / 1e9,
        half_width_s=half / 1e9,
    )


def total(stretches: Iterable[Stretch]) -> Stretch:
    """Return several stretches as one."""
    return sum(stretches, NOTHING)


def own_share(
    *, foreign_cpu: float, own_cpu: float, own_delay: float, elapsed: float, cores: float
) -> float:
    """Return the share of the waiting that no neighbour can have caused, in [0, 1].

    While one of the tree's threads waits because of a neighbour, that neighbour runs. On each core
    that a neighbour holds no more of the tree's threads wait than there are to a core.

    Parameters
    ----------
    foreign_cpu, own_cpu : float
        Processor time of everybody else and of the tree. [s]
    own_delay : float
        What all processes of the tree waited for a core. [s]
    elapsed : float
        Wall time. [s]
    cores : float
        What the tree may use. [cores]

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
