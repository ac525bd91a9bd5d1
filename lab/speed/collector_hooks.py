"""What the hooks cost a training step, measured where they run: in turns with and without.

One process trains; every few steps everything that the hooks put into a step (the optimizer's
hook, the wrappers around the backward pass and the loader) is taken out or put back, so that both
sides meet the same caches and the same neighbours. What counts is the CPU time of the training
thread, the median step of each block; the cost is the median difference of neighbouring blocks.
Wider models leave colder caches to the hooks.

With ``--evict`` every entry into the hooks is timed by itself, each after 4 MB were copied, which
drives them out of the caches as a step's own work does; with and without in turns. That is the
figure to compare versions by: it hardly depends on what else the machine does.

python -m advisor.lab.speed.collector_hooks
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer as optimizer_module
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from advisor.collectors.hooks import format as fmt
from advisor.collectors.hooks import patches
from advisor.collectors.hooks.session import Session
from advisor.lab import frame

_BLOCK = 30
_SETTLED = 60  # the hooks' own repetitions (traced steps, descriptions) are over by then
_WRAPPED: tuple[tuple[Any, str], ...] = (
    (torch.autograd, "backward"),
    (_BaseDataLoaderIter, "__next__"),
)


def _session() -> Session:
    folder = Path(tempfile.mkdtemp())
    payload = fmt.CONTROL_PAYLOAD.pack(0, 0, time.monotonic_ns() + 10**12)
    (folder / fmt.CONTROL_FILE).write_bytes(payload)
    return Session(str(folder))


class Switch:
    """The hooks of a session in this process, to be taken out and put back."""

    def __init__(self) -> None:
        self._plain = [getattr(owner, name) for owner, name in _WRAPPED]
        for name, patch in patches.of(_session()).items():
            if name in sys.modules:
                patch(sys.modules[name])
        self._hooked = [getattr(owner, name) for owner, name in _WRAPPED]
        self._steps = optimizer_module._global_optimizer_post_hooks
        self._step_hooks = dict(self._steps)

    def turn(self, is_on: bool) -> None:
        chosen = self._hooked if is_on else self._plain
        for (owner, name), function in zip(_WRAPPED, chosen, strict=True):
            setattr(owner, name, function)
        self._steps.clear()
        if is_on:
            self._steps.update(self._step_hooks)


def steps(width: int, count: int) -> Iterator[float]:
    """Train, and yield the CPU time of every step and of the batch before it. [us]."""
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(64 * count, 1)), batch_size=64)
    inputs = torch.randn(64, width)
    begin = time.thread_time_ns()
    for (_,) in loader:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        end = time.thread_time_ns()
        yield (end - begin) / 1e3
        begin = time.thread_time_ns()


def blocks(width: int, pairs: int) -> Iterator[tuple[float, float]]:
    """Yield the median step without and with hooks of neighbouring blocks. [us]."""
    switch = Switch()
    training = steps(width, _SETTLED + 2 * pairs * _BLOCK)
    for _ in range(_SETTLED):
        next(training)
    for pair in range(pairs):
        medians = {}
        for is_on in frame.in_turns(pair):
            switch.turn(is_on)
            taken = [next(training) for _ in range(_BLOCK)]
            medians[is_on] = statistics.median(taken[2:])  # the first two meet the other's caches
        yield medians[False], medians[True]


def warm_us(loops: int = 300, repeats: int = 200) -> float:
    """Return the least mean time of the entries into the hooks, one after the other. [us]."""
    session = _session()
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=8)
    iterator, batch = iter(loader), [torch.zeros(8, 2)]
    session.optimizer_made(optimizer)
    session.loader_begun(loader, iterator)
    least = float("inf")
    for _ in range(loops):
        begin = time.perf_counter_ns()
        for _ in range(repeats):
            session.batch_fetched(iterator, batch, time.monotonic_ns(), -1)
            session.optimizer_stepped(optimizer)
        least = min(least, (time.perf_counter_ns() - begin) / repeats / 1e3)
    return least


class _SameBatch(IterableDataset[list[torch.Tensor]]):
    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        batch = [torch.zeros(8, 2)]
        while True:
            yield batch


def evicted_us(rounds: int) -> dict[str, float]:
    """Return what the hooks add to a batch, a backward pass and an optimizer's step. [us]."""
    switch = Switch()
    layer, loss = nn.Linear(2, 2), torch.zeros((), requires_grad=True)
    batches = iter(DataLoader(_SameBatch(), batch_size=None))
    entries: dict[str, Callable[[], Any]] = {
        "batch": lambda: next(batches),
        "backward": loss.backward,
        "step": torch.optim.SGD(layer.parameters(), lr=0.1).step,
    }
    source, target = torch.zeros(1 << 19), torch.zeros(1 << 19)
    times: dict[tuple[str, bool], list[float]] = {}
    for number in range(2 * rounds):
        is_on = number % 2 == 0
        switch.turn(is_on)
        for step in range(2 * _SETTLED if number == 0 else _BLOCK):
            for name, enter in entries.items():
                target.copy_(source)
                begin = time.perf_counter_ns()
                enter()
                took_us = (time.perf_counter_ns() - begin) / 1e3
                if number and step > 1:  # the first two meet the other's caches
                    times.setdefault((name, is_on), []).append(took_us)
    return {
        name: statistics.median(times[name, True]) - statistics.median(times[name, False])
        for name in entries
    }


def main() -> None:
    options = frame.options(__doc__, {
        "--pairs": 60, "--width": 700, "--warm": (False, "in a tight loop, caches warm"),
        "--evict": (False, "each entry by itself, caches cold"),
    })  # fmt: skip
    torch.set_num_threads(1)
    if options.evict:
        added = evicted_us(options.pairs)
        each = ", ".join(f"{name} {value:.1f}" for name, value in added.items())
        print(f"hooks, caches cold: {sum(added.values()):.1f} us a step ({each})")
        return
    if options.warm:
        print(f"hooks, caches warm: {warm_us():.1f} us a step")
        return
    seen = list(blocks(options.width, options.pairs))
    plain = statistics.median(without for without, _ in seen)
    costs = sorted(hooked - without for without, hooked in seen)
    low, middle, high = statistics.quantiles(costs, n=4)
    print(
        f"step {plain / 1e3:.2f} ms; hooks {middle:.1f} us a step "
        f"(half of {len(seen)} pairs between {low:.1f} and {high:.1f}), {middle / plain:.2%}"
    )


if __name__ == "__main__":
    main()
