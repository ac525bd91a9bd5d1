"""A real queue on two slots against the simulator: processes stopped and continued by signals.

    python -m advisor.lab.experiments.mini_queue

Twelve processes that tick (5 ms of computing, 45 ms of sleep) are submitted over half a minute and
scheduled in user space (SIGSTOP, SIGCONT) under FIFO and 2D-LAS by a few lines of their own below,
not by the code under test. The simulator gets each job's computing time as it really was in that
run, since a shared machine stretches it; what is compared is who waited for whom and how long.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from dataclasses import dataclass

import numpy as np

from advisor.lab import frame
from advisor.planners.queueing.engine import JobTable, Policy, QueueParameters, SharedCluster
from advisor.planners.queueing.simulator import simulate_queue

SLOTS = 2
LIMITS = (2.0, 6.0)  # device-seconds of the first two queues
POLL_S = 0.005


@dataclass
class Job:
    """One process and its account."""

    submit_s: float
    devices: int
    ticks: int
    pid: int = 0
    runs: bool = False
    service_s: float = 0.0
    queue: int = 0
    end_s: float = float("nan")
    ticket: int = 0
    is_late: bool = False  # just demoted: behind the waiting jobs of its new queue


def tick() -> None:
    """Compute for 5 ms, sleep for the rest of 50 ms."""
    begin = time.monotonic()
    while time.monotonic() - begin < 0.005:
        pass
    time.sleep(0.045)


def born(ticks: int) -> int:
    """Fork a process that stops itself, ticks when continued, and exits."""
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        for _ in range(ticks):
            tick()
        os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    return pid


def drawn(seed: int) -> list[Job]:
    rng = np.random.default_rng(seed)
    submit = np.sort(rng.uniform(0, 25, 12))
    submit[0] = 0.0
    devices = rng.choice([1, 1, 1, 2], 12)
    ticks = (np.exp(rng.normal(4.2, 0.8, 12))).astype(int) + 8
    return [
        Job(submit_s=float(s), devices=int(d), ticks=int(t))
        for s, d, t in zip(submit, devices, ticks, strict=True)
    ]


def scheduled(jobs: list[Job], policy: Policy) -> None:
    for job in jobs:
        job.pid = born(job.ticks)
    begin = last = time.monotonic()
    waiting: list[Job] = []
    tickets, to_come = 0, list(jobs)
    while to_come or waiting:
        now = time.monotonic()
        for job in waiting:
            job.service_s += (now - last) * job.devices * job.runs
        last = now
        changed = False
        while to_come and to_come[0].submit_s <= now - begin:
            waiting.append(to_come.pop(0))
            waiting[-1].ticket = (tickets := tickets + 1)
            changed = True
        for job in [j for j in waiting if j.runs and os.waitpid(j.pid, os.WNOHANG)[0]]:
            job.end_s, changed = now - begin, True
            waiting.remove(job)
        for job in waiting:
            if policy == "las-2d" and job.queue < 2 and job.service_s >= LIMITS[job.queue]:
                job.queue += 1
                job.is_late, changed = True, True
        if changed:
            decide(waiting, policy)
            for job in waiting:
                job.is_late = False
        time.sleep(POLL_S)


def decide(waiting: list[Job], policy: Policy) -> None:
    """Let run what fits: FIFO stops at the first that does not, LAS skips it."""
    free = SLOTS
    is_blocked = False
    for job in sorted(waiting, key=lambda j: (j.queue, 2 if j.is_late else not j.runs, j.ticket)):
        fits = job.devices <= free and not is_blocked
        if policy == "fifo" and not fits:
            is_blocked = True
        free -= job.devices * fits
        if fits != job.runs:
            os.kill(job.pid, signal.SIGCONT if fits else signal.SIGSTOP)
            job.runs = fits


def main() -> None:
    asked = frame.options(__doc__, {"--seed": 3})
    for policy in ("fifo", "las-2d"):
        jobs = drawn(asked.seed)
        scheduled(jobs, policy)
        table = JobTable(
            submit_s=np.array([j.submit_s for j in jobs]),
            devices=np.array([j.devices for j in jobs]),
            duration_s=np.array([j.service_s / j.devices for j in jobs]),
        )
        simulated = simulate_queue(
            table,
            SharedCluster(nodes=1, devices_per_node=SLOTS),
            policy,
            parameters=QueueParameters(limits=LIMITS),
        )
        real = np.array([j.end_s - j.submit_s for j in jobs])
        errors = simulated.completion_s / real - 1
        print(
            f"{policy:7} mean completion real {real.mean():.2f} s, simulated "
            f" {simulated.completion_s.mean():.2f} s "
            f"({simulated.completion_s.mean() / real.mean() - 1:+.1%}); per job median error "
            f"{statistics.median(abs(errors)):.1%}, largest {abs(errors).max():.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
