"""A bursty child of this process under a real CFS quota, and what it used every 100 ms.

The child computes 0.6 s of CPU time and sleeps 0.6 s, eight times. Its group outranks others, so
that neighbours take little from it. The Escra arm is the room's own controller, asked every 100 ms
from here: slower than in the kernel, where the authors have it.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass

import numpy as np

from advisor.lab.minicloud.limits import CpuGroup, cpu_group
from advisor.planners.core.errors import GIB
from advisor.planners.rightsizing.autoscalers import Fixed
from advisor.planners.rightsizing.escra import Escra
from advisor.planners.rightsizing.replay import Controller, Period, RecordedUsage, ResourceLimits

PERIOD_S = 0.1
BURSTS = 8
BURST_S = WAIT_S = 0.6
# What is to come is not known here.
NOTHING = RecordedUsage(step_s=1.0, cores=np.ones(1), memory_bytes=np.ones(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    wall_s: float
    # quota less usage over the run: the kernel lets nobody have more in the end [core-s]
    slack_core_s: float
    # t_s, cpu_s: readings of its CPU time [s]
    t_s: tuple[float, ...]
    cpu_s: tuple[float, ...]

    def usage(self) -> RecordedUsage:
        """Return the run as the room takes it."""
        return RecordedUsage.of_counters(
            t_s=self.t_s, cpu_s=self.cpu_s, memory_bytes=[1.0] * len(self.t_s), step_s=PERIOD_S
        )


def measured(rounds: int) -> dict[str, Arm]:
    """Run every arm in turns and return the one of median wall time of each."""
    ways: dict[str, ResourceLimits | str | None] = {
        "free": None,
        "0.55 core": ResourceLimits(cores=0.55, memory_bytes=GIB),
        "static peak": ResourceLimits(cores=1.0, memory_bytes=GIB),
        "Escra": "escra",
    }
    found: dict[str, list[Arm]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(_run(way))
    middle = {}
    for name, arms in found.items():
        wall = statistics.median_low(arm.wall_s for arm in arms)
        middle[name] = next(arm for arm in arms if arm.wall_s == wall)
    return middle


def _run(way: ResourceLimits | str | None) -> Arm:
    controller: Controller | None = None
    if way is not None:
        policy = (
            Fixed(limits=way)
            if isinstance(way, ResourceLimits)
            else Escra(budget=ResourceLimits(cores=1.0, memory_bytes=GIB))
        )
        controller = policy.controller(NOTHING)
    with cpu_group("bursty", quota=None) as group:
        group.outrank_others()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(writing)
                os.read(reading, 1)
                group.join()
                _bursts()
            finally:
                os._exit(0)
        os.write(writing, b"x")
        try:
            return _watch(pid, group, controller)
        finally:
            os.close(reading)
            os.close(writing)


def _bursts() -> None:
    for _ in range(BURSTS):
        begun = time.process_time()
        while time.process_time() - begun < BURST_S:
            pass
        time.sleep(WAIT_S)


def _watch(pid: int, group: CpuGroup, controller: Controller | None) -> Arm:
    limits = controller.first() if controller else None
    if limits is not None:
        group.set_quota(limits.cores, period_s=PERIOD_S)
    begin = last = time.monotonic()
    t, cpu, slack, throttled, quota = [0.0], [0.0], 0.0, 0, limits.cores if limits else 0.0
    while True:
        time.sleep(max(0.0, begin + PERIOD_S * len(t) - time.monotonic()))
        done, _, used = os.wait4(pid, os.WNOHANG)
        now = time.monotonic()
        cpu.append(used.ru_utime + used.ru_stime if done else _cpu_s(pid))
        t.append(now - begin)
        rate = (cpu[-1] - cpu[-2]) / (now - last)
        slack += quota * (now - last) - (cpu[-1] - cpu[-2]) if limits else 0.0
        if done:
            return Arm(wall_s=now - begin, slack_core_s=slack, t_s=tuple(t), cpu_s=tuple(cpu))
        if controller is not None:
            count = group.throttled_periods()
            limits = controller.after(
                Period(
                    end_s=now - begin, length_s=now - last, quota_cores=quota, used_cores=rate,
                    is_throttled=count > throttled, memory_bytes=1.0,
                )
            )  # fmt: skip
            throttled = count
            if limits.cores != quota:
                quota = limits.cores
                group.set_quota(quota, period_s=PERIOD_S)
        last = now


def _cpu_s(pid: int) -> float:
    """Return the child's CPU time: the scheduler's, to the nanosecond [s]."""
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) / 1e9
