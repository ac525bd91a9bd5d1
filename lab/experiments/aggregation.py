"""Several jobs' gradients added up by one process: how busy it is, and how long each job waits.

``python -m advisor.lab.experiments.aggregation``: each job is a thread that computes (asleep) for
a step and then has its gradients, in memory that the aggregator sees, added up and applied by
Adam. The aggregator is one thread that serves requests in the order in which they come. What it
takes alone says, by planners/aggregation, how busy it is with several jobs; what a service took by
the clock says how long each job waits for others.
"""

from __future__ import annotations

import math
import queue
import statistics
import threading
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from advisor.lab import frame
from advisor.planners.systems.autops import AggregatedJob, delays_s, pack

Vector = NDArray[np.float32]
STEPS_S = (0.100, 0.113, 0.127, 0.139)  # of four jobs: no period divides another
WORKERS = 4


class Seen(NamedTuple):
    """What a number of jobs was served like; the last three by job, means in seconds."""

    busy: float
    core_s: list[float]  # of a core, each aggregation
    service_s: list[float]  # by the clock
    step_s: list[float]
    behind_s: list[float]  # that a request waited while others were served


class Model:
    """Parameters and moments of one job, and a gradient from each of its workers."""

    def __init__(self, size: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.gradients = [rng.standard_normal(size).astype(np.float32) for _ in range(WORKERS)]
        self.sum = np.zeros(size, np.float32)
        self.parameters, self.first, self.second = (np.zeros(size, np.float32) for _ in range(3))

    def aggregate(self) -> None:
        """Add up the workers' gradients and make Adam's step."""
        np.copyto(self.sum, self.gradients[0])
        for gradient in self.gradients[1:]:
            self.sum += gradient
        self.sum /= WORKERS
        self.first *= 0.9
        self.first += 0.1 * self.sum
        np.square(self.sum, out=self.sum)
        self.second *= 0.999
        self.second += 0.001 * self.sum
        self.parameters -= 1e-3 * self.first / (np.sqrt(self.second) + 1e-8)


def served(numbers: list[int], models: list[Model], seconds: float) -> Seen:
    """Let some of the jobs train beside each other and return what they saw."""
    asked: queue.Queue[tuple[int, float, threading.Event] | None] = queue.Queue()
    services: list[tuple[int, float, float, float, float]] = []
    begin_s = time.perf_counter()

    def aggregator() -> None:
        while (one := asked.get()) is not None:
            number, sent_s, done = one
            cpu_s, at_s = time.thread_time(), time.perf_counter()
            models[number].aggregate()
            took_s = time.thread_time() - cpu_s
            services.append((number, sent_s, at_s, time.perf_counter(), took_s))
            done.set()

    steps: dict[int, int] = dict.fromkeys(numbers, 0)

    def job(number: int) -> None:
        while time.perf_counter() - begin_s < seconds:
            time.sleep(STEPS_S[number])
            done = threading.Event()
            asked.put((number, time.perf_counter(), done))
            done.wait()
            steps[number] += 1

    threads = [threading.Thread(target=job, args=(k,)) for k in numbers]
    server = threading.Thread(target=aggregator)
    for one in (server, *threads):
        one.start()
    for one in threads:
        one.join()
    took_s = time.perf_counter() - begin_s
    asked.put(None)
    server.join()
    own = [[one for one in services if one[0] == k] for k in numbers]
    return Seen(
        busy=sum(one[4] for one in services) / took_s,
        core_s=[statistics.mean(one[4] for one in rows) for rows in own],
        service_s=[statistics.mean(one[3] - one[2] for one in rows) for rows in own],
        step_s=[took_s / steps[k] for k in numbers],
        behind_s=[statistics.mean(_behind(one, services) for one in rows) for rows in own],
    )


def _behind(
    request: tuple[int, float, float, float, float],
    services: list[tuple[int, float, float, float, float]],
) -> float:
    """Return how long a request waited while others were served."""
    _, sent_s, at_s, *_ = request
    overlaps = (
        min(at_s, end_s) - max(sent_s, begin_s)
        for other, _, begin_s, end_s, _ in services
        if other != request[0]
    )
    return sum(max(0.0, one) for one in overlaps)


def main() -> None:
    asked = frame.options(__doc__, {"--size": (2_000_000, "parameters of each job"),
                                    "--seconds": (8.0, "of a round"), "--rounds": 3})  # fmt: skip
    models = [Model(asked.size, seed) for seed in range(len(STEPS_S))]
    for one in models:
        one.aggregate()  # its memory is there from now on
    print(f"before: {frame.load()}")
    print("| jobs | busy, by the sum / measured | error | cores by the room "
          "| waits for others, by the room / measured, of a step |")  # fmt: skip
    rows: dict[int, list[Row]] = {2: [], 3: [], 4: []}
    for _ in range(asked.rounds):
        alone = [served([k], models, asked.seconds / 4) for k in range(len(models))]
        for count, into in rows.items():
            into.append(predicted(alone, served(list(range(count)), models, asked.seconds)))
    for count, found in rows.items():
        said, seen, waits, waited, cores = frame.medians(found)
        print(
            f"| {count} | {said:.1%} / {seen:.1%} | {said / seen - 1:+.0%} | {cores:.0f} "
            f"| {waits:.2%} / {waited:.2%} |"
        )
    print(f"after: {frame.load()}")


class Row(NamedTuple):
    """One number of jobs in one round; shares."""

    said: float
    busy: float
    waits: float
    waited: float
    cores: float


def predicted(alone: list[Seen], seen: Seen) -> Row:
    """Return the sum of the loads and the mean delay beside what was measured."""
    count = len(seen.step_s)
    asking = [
        AggregatedJob(name="job", step_s=step, work_s=(one.core_s[0],))
        for step, one in zip(seen.step_s, alone, strict=False)
    ]
    # What waits, waits by the clock: as long as the services there took.
    serving = [
        AggregatedJob(name="job", step_s=step, work_s=(took,))
        for step, took in zip(seen.step_s, seen.service_s, strict=True)
    ]
    # Their steps are what is left of the clock's, and are taken not to scatter.
    thinking = [replace(one, step_s=one.step_s - one.work_s[0]) for one in serving]
    waits = delays_s([[one.demand for one in thinking]], thinking, rounds=1000)
    said = [wait / one.step_s for wait, one in zip(waits, serving, strict=True)]
    waited = [behind / step for behind, step in zip(seen.behind_s, seen.step_s, strict=True)]
    return Row(
        said=sum(one.demand for one in asking), busy=seen.busy, waits=sum(said) / count,
        waited=sum(waited) / count,
        cores=pack(asking, most_loss=math.inf).cores,
    )  # fmt: skip


if __name__ == "__main__":
    main()
