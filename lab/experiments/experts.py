"""A mixture of experts served from the disk: hit rates and token latency, predicted and measured.

``python -m advisor.lab.experiments.experts --steps 300`` trains the model of examples/stdlib_moe,
lets it read held-out text, and serves the experts that its routers chose: one token after
another, each layer's experts in a cache of some size, the others in a file that is read past the
page cache. The room says the hit rate and the latency from the routes, the time of one load and
the time of a token with every expert at hand. The caches here are written apart from the room's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from advisor.lab import frame
from advisor.planners.systems.expert_caching import Policy, che_hit_rate
from advisor.planners.systems.expert_forecast import learn
from advisor.planners.systems.expert_serving import Mixture, cache_sizes

Tokens = NDArray[np.int64]
Tensor = torch.Tensor
EXAMPLE = frame.ROOT / "examples" / "stdlib_moe.py"
SIZES = (5, 8, 12)
WAYS: tuple[Policy, ...] = ("lru", "lfu", "learned")


def routes(steps: int, tokens: int) -> tuple[Tokens, argparse.Namespace]:
    """Train the example and return the experts of held-out text, shape (layers, tokens, top)."""
    spec = spec_from_file_location("stdlib_moe", EXAMPLE)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    moe: Any = module_from_spec(spec)
    spec.loader.exec_module(moe)
    sys.argv = [str(EXAMPLE), "--steps", str(steps)]
    args = moe.arguments()
    torch.manual_seed(args.seed)
    text = moe.corpus()
    train, held_out = text[: int(0.9 * len(text))], text[int(0.9 * len(text)) :]
    model = moe.Writer(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for _ in range(steps):
        starts = torch.randint(len(train) - args.context - 1, (args.batch_size,))
        windows = torch.stack([train[start : start + args.context + 1] for start in starts])
        logits = model(windows[:, :-1]).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, windows[:, 1:].flatten())
        uneven = sum(block.mixture.balance for block in model.blocks)
        optimizer.zero_grad()
        (loss + args.balance * uneven).backward()
        optimizer.step()
    print(f"trained for {steps} steps, loss {loss.item():.3f}")
    seen: list[list[Tensor]] = [[] for _ in model.blocks]
    for block, into in zip(model.blocks, seen, strict=True):
        block.mixture.router.register_forward_hook(_keeping(into, args.top))
    with torch.no_grad():
        for begin in range(0, tokens, args.context):
            model(held_out[None, begin : begin + args.context])
    found = torch.stack([torch.cat(layer) for layer in seen])
    return found[:, :tokens].numpy(), args


def _keeping(into: list[Tensor], top: int) -> Callable[[Any, Any, Tensor], None]:
    def keep(module: Any, inputs: Any, scores: Tensor) -> None:
        into.append(scores.reshape(-1, scores.shape[-1]).topk(top, dim=-1).indices)

    return keep


class Shelf:
    """The experts of all layers in one file, read past the page cache."""

    def __init__(self, folder: str, layers: int, experts: int, hidden: int, inner: int) -> None:
        self.numbers = 3 * hidden * inner
        self.size = 4 * self.numbers
        self.experts, self.hidden, self.inner = experts, hidden, inner
        path = Path(folder) / "experts.bin"
        rng = np.random.default_rng(0)
        with path.open("wb") as file:
            for _ in range(layers * experts):
                file.write(rng.standard_normal(self.numbers, np.float32).tobytes())
            file.flush()
            os.fsync(file.fileno())
        self.fd = os.open(path, os.O_RDONLY)

    def load(self, layer: int, expert: int) -> Tensor:
        at = (layer * self.experts + expert) * self.size
        os.posix_fadvise(self.fd, at, self.size, os.POSIX_FADV_DONTNEED)
        content = bytearray(os.pread(self.fd, self.size, at))
        return torch.frombuffer(content, dtype=torch.float32).view(3, self.inner, self.hidden)

    def load_s(self) -> float:
        """Return the mean time of a load, over every expert of the first layer."""
        begin_s = time.perf_counter()
        for expert in range(self.experts):
            self.load(0, expert)
        return (time.perf_counter() - begin_s) / self.experts


class Cell(NamedTuple):
    """One way of serving in one round, and the machine around it; seconds."""

    load_s: float
    compute_s: float
    rate: float
    token_s: float


class Cache:
    """Experts of one layer that are kept; ``way`` says what is given up."""

    def __init__(self, way: Policy, size: int, expected: NDArray[np.float64] | None) -> None:
        self.way, self.size, self.expected = way, size, expected
        self.kept: OrderedDict[int, Tensor] = OrderedDict()
        self.uses: Counter[int] = Counter()
        self.hits = self.at = 0

    def get(self, expert: int, load: Callable[[int], Tensor]) -> Tensor:
        self.uses[expert] += 1
        found = self.kept.get(expert)
        if found is None:
            if self.way != "learned" and len(self.kept) >= self.size:
                self._give_up()
            found = self.kept[expert] = load(expert)
        else:
            self.hits += 1
        self.kept.move_to_end(expert)
        if len(self.kept) > self.size:
            self._give_up()
        self.at += 1
        return found

    def _give_up(self) -> None:
        if self.way == "lru":
            self.kept.popitem(last=False)
            return
        if self.expected is None:
            worst = min(self.kept, key=lambda one: self.uses[one])  # the oldest of equals
        else:
            row = self.expected[self.at]
            worst = min(self.kept, key=lambda one: (row[one], one))
        del self.kept[worst]


def served(
    shelf: Shelf, trace: Tokens, warm: int, way: Policy, size: int, state: Tensor
) -> tuple[float, float]:
    """Return the hit rate and the mean latency of a token, after ``warm`` tokens."""
    ahead = [
        learn(layer[:warm], shelf.experts).expected(layer) if way == "learned" else None
        for layer in trace
    ]
    caches = [Cache(way, size, one) for one in ahead]
    begin_s, hits = 0.0, 0
    order = trace.tolist()
    for token in range(trace.shape[1]):
        if token == warm:
            hits, begin_s = sum(one.hits for one in caches), time.perf_counter()
        x = state
        for layer, cache in enumerate(caches):
            mixed = torch.zeros_like(x)
            for expert in order[layer][token]:
                gate, up, down = cache.get(expert, lambda e, at=layer: shelf.load(at, e))
                mixed += (torch.nn.functional.silu(gate @ x) * (up @ x)) @ down
            x = x + 1e-3 * mixed
    count = trace.shape[1] - warm
    took_s = (time.perf_counter() - begin_s) / count
    rate = (sum(one.hits for one in caches) - hits) / (count * trace.shape[0] * trace.shape[2])
    return rate, took_s


def main() -> None:
    asked = frame.options(__doc__, {"--steps": 300, "--tokens": 1024, "--rounds": 3,
                                    "--inner": (1024, "of the served experts")})  # fmt: skip
    torch.set_num_threads(1)
    trace, args = routes(asked.steps, asked.tokens)
    warm = asked.tokens // 2
    print(f"before: {frame.load()}")
    with tempfile.TemporaryDirectory(prefix="experts-") as folder:
        shelf = Shelf(folder, args.layers, args.experts, args.hidden, asked.inner)
        print_table(shelf, trace, warm, args, asked.rounds)
    print(f"after: {frame.load()}")


def print_table(
    shelf: Shelf, trace: Tokens, warm: int, args: argparse.Namespace, rounds: int
) -> None:
    """Serve in every way and print what was predicted beside what was measured."""
    state = torch.randn(args.hidden)
    cells = [(way, size) for size in SIZES for way in WAYS]
    measured: dict[tuple[Policy, int], list[Cell]] = {one: [] for one in cells}
    for _ in range(rounds):
        for way, size in cells:
            begins_s = shelf.load_s()
            compute_s = served(shelf, trace, warm, "lru", args.experts, state)[1]
            rate, token_s = served(shelf, trace, warm, way, size, state)
            load_s = 0.5 * (begins_s + shelf.load_s())
            measured[way, size].append(Cell(load_s, compute_s, rate, token_s))
    everything = [one for cell in measured.values() for one in cell]
    load_s = statistics.median(one.load_s for one in everything)
    compute_s = statistics.median(one.compute_s for one in everything)
    print(f"an expert of {shelf.size / 2**20:.2f} MiB loads in {1e3 * load_s:.2f} ms")
    print(f"a token with every expert at hand takes {1e3 * compute_s:.2f} ms")
    print("| kept | way | hit rate, predicted / measured | Che | oracle | token, ms | error |")
    said = {
        (one.policy, one.cached): one
        for one in cache_sizes(
            mixture_of(shelf, args, compute_s, load_s), trace[:, warm:], (*WAYS, "oracle"),
            before=trace[:, :warm],
        )
    }  # fmt: skip
    counts = [np.bincount(layer.ravel(), minlength=args.experts) for layer in trace[:, warm:]]
    for way, size in cells:
        misses = [args.top * (1.0 - said[way, size].hit_rate)] * len(trace)
        # What a round predicts is from the loads and the computing around it.
        pairs = [
            (mixture_of(shelf, args, one.compute_s, one.load_s).token_s(misses), one.token_s)
            for one in measured[way, size]
        ]
        errors = [predicted / took - 1.0 for predicted, took in pairs]
        predicted_s, took_s = frame.medians(pairs)
        rate = statistics.median(one.rate for one in measured[way, size])
        che = np.mean([che_hit_rate(count, size) for count in counts])
        print(
            f"| {size} of {args.experts} | {way} | {said[way, size].hit_rate:.3f} / {rate:.3f} "
            f"| {che:.3f} | {said['oracle', size].hit_rate:.3f} "
            f"| {1e3 * predicted_s:.2f} / {1e3 * took_s:.2f} | {statistics.median(errors):+.1%} |"
        )


def mixture_of(shelf: Shelf, args: argparse.Namespace, compute_s: float, load_s: float) -> Mixture:
    """Return the served mixture as the room takes it."""
    return Mixture(
        experts=args.experts, top=args.top, layers=args.layers, expert_bytes=shelf.size,
        dense_bytes=0.0, compute_s=compute_s, link_bytes_per_s=shelf.size / load_s,
    )  # fmt: skip


if __name__ == "__main__":
    main()
