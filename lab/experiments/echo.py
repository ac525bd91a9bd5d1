"""Repeat what a slow loader brought: steps per second and accuracy, predicted and measured.

    python -m advisor.lab.experiments.echo --json echo.json

A perceptron learns scikit-learn's digits from a ``DataLoader`` with one worker process that takes
40 ms a batch. Loading alone and computing alone are timed around every window; from the two
``planners.systems.perfect`` says the steps per second for each echo factor, which is run in
between. Then every way gets the same wall time, and what counts is the accuracy on the held-out
fifth: echoes, and PerFect's repeat first (8 times, 70 % of the time), fresh later.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset, RandomSampler

from advisor.lab import frame
from advisor.planners.systems.perfect import Feeding, freshness

BATCH = 64
ECHOES = (1, 2, 4, 16)
PERFECT = (8, 0.7)


class Digits(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The digits that are not held out; a batch takes its time, as storage does."""

    def __init__(self, batch_s: float) -> None:
        x, y = load_digits(return_X_y=True)
        self.x, self.y = torch.tensor(x / 16.0, dtype=torch.float32), torch.tensor(y)
        order = torch.randperm(len(self.y), generator=torch.Generator().manual_seed(0))
        cut = len(order) * 4 // 5
        self.rows, self.held_out = order[:cut], order[cut:]
        self.batch_s = batch_s

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, at: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return one batch's samples after the storage's time."""
        time.sleep(self.batch_s)
        return [(self.x[self.rows[i]], self.y[self.rows[i]]) for i in at]


class Trainer:
    """One model in training from one loader."""

    def __init__(self, digits: Digits, seed: int) -> None:
        torch.manual_seed(seed)
        self.digits = digits
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        sampler = RandomSampler(digits, replacement=True, num_samples=10**6)
        self.batches: Iterator[list[torch.Tensor]] = iter(
            DataLoader(digits, batch_size=BATCH, sampler=sampler, num_workers=1)
        )
        next(self.batches)  # the worker is there

    def step(self, batch: list[torch.Tensor]) -> None:
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1]).backward()
        self.optimizer.step()

    def train(self, seconds: float, echo: int) -> float:
        """Train for so long; returns updates per second, whole batches counted."""
        begin = now = time.perf_counter()
        updates = 0
        while now - begin < seconds:
            batch = next(self.batches)
            for _ in range(echo):
                self.step(batch)
            updates += echo
            now = time.perf_counter()
        return updates / (now - begin)

    def accuracy(self) -> float:
        """Return the share of the held-out digits that are told right."""
        rows = self.digits.held_out
        with torch.no_grad():
            told = self.model(self.digits.x[rows]).argmax(1)
        return float((told == self.digits.y[rows]).float().mean())


def alone(trainer: Trainer, seconds: float) -> tuple[float, float]:
    """Return the seconds of a batch that nobody computes on, and of an update at hand."""
    for _ in range(3):
        batch = next(trainer.batches)  # what was prefetched
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        batch = next(trainer.batches)
        count += 1
    load_s = (time.perf_counter() - begin) / count
    trainer.step(batch)
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds / 2:
        trainer.step(batch)
        count += 1
    return load_s, (time.perf_counter() - begin) / count


def rates(digits: Digits, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Return steps per second by echo factor, predicted and measured: medians over rounds."""
    said: dict[int, list[float]] = {echo: [] for echo in ECHOES}
    seen: dict[int, list[float]] = {echo: [] for echo in ECHOES}
    for number in range(rounds):
        trainer = Trainer(digits, number)
        before = alone(trainer, seconds)
        for echo in ECHOES:
            trainer.train(0.3, echo)  # the queue as this factor leaves it
            seen[echo].append(trainer.train(seconds, echo))
            after = alone(trainer, seconds)
            load_s, step_s = (statistics.fmean(both) for both in zip(before, after, strict=True))
            feeding = Feeding(cpu_s=0.0, idle_s=load_s, compute_s=step_s, workers=1, cores=1.0)
            said[echo].append(1.0 / feeding.step_s(echo))
            before = after
        print(f"round {number}: a batch {1e3 * load_s:.1f} ms, an update {1e3 * step_s:.2f} ms",
              flush=True)  # fmt: skip
    return {
        str(echo): {
            "predicted_steps_per_s": statistics.median(said[echo]),
            "measured_steps_per_s": statistics.median(seen[echo]),
        }
        for echo in ECHOES
    }


def accuracies(digits: Digits, seeds: int, seconds: float) -> dict[str, list[float]]:
    """Return the held-out accuracy after equal wall time, by way and seed."""
    found: dict[str, list[float]] = {}
    echo, share = PERFECT
    ways = [(str(one), [(1.0, one)]) for one in ECHOES]
    ways.append((f"{echo} for {share:.0%}, then fresh", [(share, echo), (1.0 - share, 1)]))
    for seed in range(seeds):
        for name, parts in ways:
            trainer = Trainer(digits, seed)
            for part, repeats in parts:
                trainer.train(part * seconds, repeats)
            found.setdefault(name, []).append(trainer.accuracy())
    return found


def main() -> None:
    asked = frame.options(__doc__, {
        "--batch-s": (0.04, "the loader's time a batch"), "--rounds": 3, "--seeds": 4,
        "--seconds": (3.0, "of a timed window"), "--budget-s": (4.0, "wall time of an accuracy"),
        "--json": Path,
    })  # fmt: skip
    torch.set_num_threads(1)
    digits = Digits(asked.batch_s)
    print(f"before: {frame.load()}")
    speed = rates(digits, asked.rounds, asked.seconds)
    learned = accuracies(digits, asked.seeds, asked.budget_s)
    print(f"\nafter: {frame.load()}")
    print("| echo | steps/s predicted | measured | error | worth of an update assumed |")
    for echo, row in speed.items():
        said, seen = row["predicted_steps_per_s"], row["measured_steps_per_s"]
        worth = freshness(int(echo), 0.78)
        print(f"| {echo} | {said:.1f} | {seen:.1f} | {said / seen - 1:+.1%} | {worth:.2f} |")
    print(f"\n| way | accuracy after {asked.budget_s:g} s | of {asked.seeds} seeds |")
    for way, all_of in learned.items():
        print(f"| {way} | {statistics.fmean(all_of):.3f} | {min(all_of):.3f} to "
              f"{max(all_of):.3f} |")  # fmt: skip
    frame.write_json(asked.json, {"rates": speed, "accuracies": learned})


if __name__ == "__main__":
    main()
