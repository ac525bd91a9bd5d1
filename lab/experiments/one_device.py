"""Two training jobs, one device: what each keeps of its rate, predicted and measured.

    python -m advisor.lab.experiments.one_device --json one_device.json

The device is a core that one kernel at a time may use: a lock that is granted in the order of
asking. Each job is a process that loads (it sleeps, as storage does) and makes real steps of a
perceptron, of which every ``kernel`` products hold the device. Each is timed alone, then both run
at once in three ways: session slicing (a whole step holds the device), SwitchFlow (only computing
holds it), and kernel by kernel, as two processes on a GPU. ``planners.systems.switchflow`` says
the rates from the times alone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Condition
from pathlib import Path
from typing import Any

import numpy as np

from advisor.lab import frame
from advisor.planners.systems.switchflow import Tenant, round_s, shared_rates, sharer

SIDE = 320  # of the matrices that are multiplied
LEARNING_RATE = 1e-6
WAYS = ("sessions", "switchflow", "kernels")


@dataclass(frozen=True)
class Shape:
    """A job: seconds of loading a step, products a step, products that hold the device at once."""

    load_s: float
    products: int
    kernel: int


class Device:
    """One kernel at a time, in the order of asking."""

    def __init__(self, changed: Condition, next_ticket: Any, served: Any) -> None:
        self.changed, self.next_ticket, self.served = changed, next_ticket, served

    def __enter__(self) -> None:
        with self.changed:
            mine = self.next_ticket.value
            self.next_ticket.value += 1
            self.changed.wait_for(lambda: self.served.value == mine)

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self.served.value += 1
            self.changed.notify_all()


def job(shape: Shape, way: str, device: Device, begin: Any, end_s: float, out: Any) -> None:
    """Train until the time is over; put (steps, seconds, seconds computed, kernels)."""
    draw = np.random.default_rng(0)
    weights, batch = draw.normal(size=(2, SIDE, SIDE))
    begin.wait()
    start = now = time.perf_counter()
    steps = kernels = 0
    computed = 0.0
    while now - start < end_s:
        with device if way == "sessions" else contextlib.nullcontext():
            time.sleep(shape.load_s)
            for first in range(0, shape.products, shape.kernel):
                with (
                    device
                    if way in ("switchflow", "kernels") and (way == "kernels" or first == 0)
                    else contextlib.nullcontext()
                ):
                    at = time.perf_counter()
                    last = shape.products if way == "switchflow" else first + shape.kernel
                    for _ in range(first, min(last, shape.products)):
                        weights -= LEARNING_RATE * (batch.T @ (batch @ weights))
                    computed += time.perf_counter() - at
                    kernels += 1
                if way == "switchflow":
                    break  # the whole step's products are one turn
        steps += 1
        now = time.perf_counter()
    out.put((os.getpid(), steps, now - start, computed, kernels))


def played(shapes: list[Shape], way: str, seconds: float) -> list[tuple[float, float, float]]:
    """Run jobs at once; returns (steps/s, computing seconds a step, seconds a kernel) of each."""
    context = multiprocessing.get_context("fork")
    device = Device(context.Condition(), context.Value("l", 0), context.Value("l", 0))
    begin, out = context.Barrier(len(shapes)), context.Queue()
    children = [
        context.Process(target=job, args=(shape, way, device, begin, seconds, out))
        for shape in shapes
    ]
    for child in children:
        child.start()
    seen = {pid: rest for pid, *rest in (out.get() for _ in children)}
    for child in children:
        child.join()
    return [
        (steps / wall, computed / steps, computed / kernels)
        for steps, wall, computed, kernels in (seen[child.pid] for child in children)
    ]


def predicted(alone: Sequence[tuple[float, ...]], way: str) -> list[float]:
    """Return each job's rate beside the other, over its rate alone."""
    jobs = [
        Tenant(name="job", input_s=max(1.0 / rate - computed, 0.0), compute_s=computed)
        for rate, computed, _ in alone
    ]
    if way == "kernels":
        each = [sharer(min(computed * rate, 1.0), kernel) for rate, computed, kernel in alone]
        return [float(rate) for rate in shared_rates(each)]
    together = round_s(jobs, "sessions" if way == "sessions" else "switchflow")
    return [one.step_s / together for one in jobs]


PAIRS = {
    "equal, loading": (Shape(0.1, 20, 2), Shape(0.1, 20, 2)),
    "equal, no loading": (Shape(0.0, 20, 2), Shape(0.0, 20, 2)),
    "small kernels beside large": (Shape(0.0, 20, 2), Shape(0.0, 20, 20)),
    "loading beside computing": (Shape(0.2, 20, 2), Shape(0.0, 20, 2)),
}


def main() -> None:
    """Print rates by pair and way: medians over rounds."""
    asked = frame.options(__doc__, {"--rounds": 5, "--seconds": 2.0, "--json": Path})
    rows = []
    print(f"before: {frame.load()}")
    print("| busy alone % | pair | way | rates predicted | measured | error of their sum |")
    for name, shapes in PAIRS.items():
        for way in WAYS:
            said, seen = [], []
            for _ in range(asked.rounds):
                before = [played([one], way, asked.seconds / 2)[0] for one in shapes]
                both = played(list(shapes), way, asked.seconds)
                after = [played([one], way, asked.seconds / 2)[0] for one in shapes]
                alone = [
                    tuple(statistics.fmean(x) for x in zip(*pair, strict=True))
                    for pair in zip(before, after, strict=True)
                ]
                said.append(predicted(alone, way))
                seen.append([b[0] / a[0] for a, b in zip(alone, both, strict=True)])
            say, see = frame.medians(said), frame.medians(seen)
            busy = [rate * computed for rate, computed, _ in alone]
            rows.append({"pair": name, "way": way, "busy_alone": busy, "predicted": say,
                         "measured": see})  # fmt: skip
            shown = (f"{100 * busy[0]:.0f}, {100 * busy[1]:.0f}", name, way,
                     f"{say[0]:.2f}, {say[1]:.2f}", f"{see[0]:.2f}, {see[1]:.2f}",
                     f"{sum(say) / sum(see) - 1:+.0%}")  # fmt: skip
            print("| " + " | ".join(shown) + " |", flush=True)
    print(f"after: {frame.load()}")
    frame.write_json(asked.json, rows)


if __name__ == "__main__":
    main()
