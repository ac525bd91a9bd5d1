"""Every time of a recording, as it was and without neighbours: one correction for all of them.

The whole is the start-up, the steps, those that are no ordinary ones (traced, or with an epoch's
begin in them), and what came after the last. Inside the steps the hooks say who waited for a core;
before and after them, and in programs without steps, the readings of the process tree do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, pairwise
from operator import add
from typing import Any

from advisor.collectors.derive.profiler_log import ProfilerLog
from advisor.collectors.format import (
    Corrected,
    Curve,
    Events,
    Mean,
    Reading,
    Stretch,
    correct,
    mean,
    own_share,
    total,
)


class Tree:
    """The process tree's waiting for a core, as it was read from outside.

    Attributes
    ----------
    slowest, throttled : Curve
        What whoever waited most between two readings waited, and what a quota took. [ns]
    least : Curve
        The tree's processor time, spread over all its cores. [ns]
    """

    def __init__(self, log: ProfilerLog, end_ns: int) -> None:
        readings = log.readings
        self.start_ns = int(log.header["t_ns"])
        self.end_ns = max(end_ns, self.start_ns)
        times = [self.start_ns + int(one.t_s * 1e9) for one in readings]
        self.slowest = _curve(times, _slowest(readings))
        self.throttled = _curve(times, [one.throttled_s for one in readings])
        self._delay = _curve(times, [one.run_delay_s for one in readings])
        self._cpu = _curve(times, [one.cpu_s for one in readings])
        self._machine = _machine_curve(times, readings, log.end)
        self._cores = float(log.header["host"].get("cpu_limit") or 1.0)
        self.least = Curve(self._cpu.times_ns, [one / self._cores for one in self._cpu.values])
        whole_cpu = max(float(log.end.get("cpu_ns", 0)), self._cpu.over(0, self.end_ns))
        if log.end.get("cpu_ns"):
            self._cpu.add(self.end_ns, whole_cpu)
        seen_cpu = readings[-1].cpu_s * 1e9 if readings else 0.0
        self._unseen_share = 1.0 - min(1.0, seen_cpu / whole_cpu) if whole_cpu else 0.0

    def own_share(self, begin_ns: float, end_ns: float) -> float:
        """Return the share of the waiting in a stretch that no neighbour can have caused.

        0 where the machine was not looked at for most of the stretch.
        """
        if not self._machine.times_ns:
            return 0.0
        begin = max(begin_ns, self._machine.times_ns[0])
        end = min(end_ns, self._machine.times_ns[-1])
        if end - begin < 0.5 * (end_ns - begin_ns):
            return 0.0
        own_cpu = self._cpu.over(begin, end)
        return own_share(
            foreign_cpu=self._machine.over(begin, end) - own_cpu,
            own_cpu=own_cpu,
            own_delay=self._delay.over(begin, end),
            elapsed=end - begin,
            cores=self._cores,
        )

    def stretch(self, begin_ns: int, end_ns: int) -> Stretch:
        """Return a stretch in which nothing but the tree was looked at."""
        wall = max(0, end_ns - begin_ns)
        delay = self.slowest.over(begin_ns, end_ns)
        # Processes that came and went between two readings waited as those that were seen did.
        unseen = delay * self._unseen_share / max(1.0 - self._unseen_share, 0.05)
        whole = min(delay + unseen, float(wall))
        kept = self.own_share(begin_ns, end_ns) * whole + self.throttled.over(begin_ns, end_ns)
        # Of a process only the first thread's waiting is seen: with several it is known less well.
        lost = max(0.0, whole - kept)
        threads = self._cpu.over(begin_ns, end_ns) / max(wall - lost, 1.0)
        doubt = min(unseen, whole) + lost * max(0.0, 1.0 - 1.0 / max(threads, 1.0))
        return Stretch(wall_ns=wall, delay_ns=whole, kept_ns=kept, unseen_ns=doubt)


def _curve(times: list[int], values_s: Sequence[float]) -> Curve:
    """Return a curve [ns] of readings [s]; what falls is an error of reading."""
    return Curve(list(times), [1e9 * value for value in accumulate(values_s, max)])


def _slowest(readings: Sequence[Reading]) -> list[float]:
    """Return what the slowest process has waited by each reading [s].

    Old recordings have the waiting of all processes only: those that wanted to run share it.
    """
    if not readings:
        return []
    if readings[-1].slowest_delay_s or not readings[-1].run_delay_s:
        return [one.slowest_delay_s for one in readings]
    waited = [readings[0].run_delay_s]
    for before, now in pairwise(readings):
        delay = max(0.0, now.run_delay_s - before.run_delay_s)
        wanting = max(0.0, now.cpu_s - before.cpu_s) + delay
        share = max(1.0, wanting / max(now.t_s - before.t_s, 1e-9))
        waited.append(waited[-1] + delay / share)
    return waited


def _machine_curve(times: list[int], readings: Sequence[Reading], end: Mapping[str, Any]) -> Curve:
    """Return the whole machine's processor time [ns] at the moments when it was looked at."""
    curve = Curve()
    before: float | None = None
    for t_ns, one in zip(times, readings, strict=True):
        if one.machine_cpu_s is not None and one.machine_cpu_s != before:
            before = one.machine_cpu_s
            curve.add(t_ns, 1e9 * before)
    if curve.times_ns and end.get("machine_cpu_ns"):
        curve.add(int(end["t_ns"]), float(end["machine_cpu_ns"]))
    return curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The times of a recording; None where there was nothing to time."""

    step: Mean | None
    startup: Corrected | None
    # what a step with an epoch's begin in it takes beyond an ordinary one without neighbours
    boundary: Corrected | None
    whole: Corrected
    tail: Corrected | None = None


def times(trainer: Events, tree: Tree, *, profiler_pid: int, world_size: int) -> Times:
    """Correct all times of a recording.

    ``trainer``: of the process that trains; its steps take over what the tree knows of the
    waiting's cause; ``profiler_pid``: a trainer that is its child has waited for a core since the
    start; ``world_size``: processes that train together would each have a machine: no waiting is
    their own.
    """
    steps = trainer.steps
    if not steps.first_ns:
        whole = correct(tree.stretch(tree.start_ns, tree.end_ns))
        return Times(step=None, startup=None, boundary=None, whole=whole)
    is_alone = world_size == 1
    steps.kept_share = is_alone * tree.own_share(steps.first_ns, steps.last_ns)
    steps.throttled = tree.throttled
    if is_alone:
        steps.least = tree.least
    if is_alone and not any(fact.get("workers") for fact in trainer.facts.get("loader", [])):
        steps.slowest = tree.slowest
    step = mean(steps)
    startup = _startup(trainer, tree, profiler_pid, is_alone)
    parts = [correct(one) for one in (startup, steps.ordinary(), *map(steps.of, steps.left_out))]
    parts.append(correct(tree.stretch(steps.last_ns, tree.end_ns)))
    return Times(
        step=step,
        startup=parts[0],
        boundary=None if step is None else _boundary(trainer, step),
        whole=reduce(add, parts),
        tail=parts[-1],
    )


def _startup(trainer: Events, tree: Tree, profiler_pid: int, is_alone: bool) -> Stretch:
    """Return the stretch to the end of the first step.

    A process's waiting counts from its birth; before that those who started it waited. What the
    slowest of its other threads waited counts too: compilers have threads of their own.
    """
    first_ns, delay = trainer.steps.first_ns, float(trainer.steps.first_delay_ns)
    others = trainer.steps.others
    pool, blocked = (one.over(tree.start_ns, first_ns) for one in (others.pool, others.blocked))
    if trainer.header.get("parent_pid") != profiler_pid and "t_ns" in trainer.header:
        delay += tree.slowest.over(tree.start_ns, int(trainer.header["t_ns"]))
    # Somebody may have been waited for: a compiler's processes, say.
    unseen = max(0.0, tree.slowest.over(tree.start_ns, first_ns) - delay)
    kept = is_alone * tree.own_share(tree.start_ns, first_ns) * (delay + pool)
    return Stretch(
        wall_ns=first_ns - tree.start_ns,
        delay_ns=delay,
        pool_ns=pool,
        blocked_ns=blocked,
        kept_ns=kept + tree.throttled.over(tree.start_ns, first_ns),
        unseen_ns=unseen,
    )


def _boundary(trainer: Events, step: Mean) -> Corrected | None:
    seen = trainer.steps.boundaries()
    if not seen:
        return None
    one = correct(total(trainer.steps.of(each) for each in seen)).per(len(seen))
    return Corrected(
        raw_s=max(0.0, one.raw_s - step.corrected_s),
        corrected_s=max(0.0, one.corrected_s - step.corrected_s),
        raw_wait_s=one.raw_wait_s,
        wait_s=one.wait_s,
        half_width_s=one.half_width_s + step.time.half_width_s,
    )
