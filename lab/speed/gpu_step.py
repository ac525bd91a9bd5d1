r"""One transformer's training step, or a data loader's rate, measured; a JSON line on stdout.

python -m advisor.lab.speed.gpu_step step --layers 12 --hidden 768 --heads 12 --sequence 512 \
    --batch 8 --precision bf16 --compile
python -m advisor.lab.speed.gpu_step loader --workers 4
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

VOCABULARY = 32_000
# Warm-up covers compiling and the first allocations; then so many seconds, or steps, are timed.
_WARM_UP = 4
_TIMED_S, _MOST_STEPS, _FEWEST_STEPS = 6.0, 60, 5


class Block(nn.Module):
    """A pre-norm decoder block with fused attention."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(hidden), nn.LayerNorm(hidden)])
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's result, shape (batch, sequence, hidden)."""
        batch, sequence, hidden = x.shape
        split = (batch, sequence, self.heads, hidden // self.heads)
        q, k, v = (t.view(split).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, sequence, hidden))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Decoder(nn.Module):
    """Embedding, blocks and a head that shares the embedding."""

    def __init__(self, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, hidden)
        self.blocks = nn.Sequential(*(Block(hidden, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of shape (batch, sequence, vocabulary)."""
        return F.linear(self.norm(self.blocks(self.embed(tokens))), self.embed.weight)


def trained_step(given: argparse.Namespace, device: torch.device) -> Callable[[], None]:
    """Return a function that trains the model by one step of AdamW on random tokens."""
    torch.backends.cuda.matmul.allow_tf32 = False
    model = Decoder(given.layers, given.hidden, given.heads).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    run = torch.compile(model) if given.compile else model
    tokens = torch.randint(VOCABULARY, (given.batch, given.sequence + 1), device=device)
    mixed = given.precision == "bf16"

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16) if mixed else nullcontext():
            logits = run(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measured_step(given: argparse.Namespace) -> dict[str, Any]:
    """Return the median step [s], its spread, and the peak of allocated memory [bytes]."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    step = trained_step(given, device)
    for _ in range(_WARM_UP):
        step()
    took: list[float] = []
    while len(took) < _FEWEST_STEPS or (sum(took) < _TIMED_S and len(took) < _MOST_STEPS):
        _wait(device)
        begin = time.perf_counter()
        step()
        _wait(device)
        took.append(time.perf_counter() - begin)
    took.sort()
    return {
        "step_s": took[len(took) // 2],
        "low_s": took[len(took) // 10],
        "high_s": took[-1 - len(took) // 10],
        "steps": len(took),
        "peak_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


class Pictures(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Random 8-bit pictures that are flipped and scaled, as an image loader's work."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Return a float picture of 3 x 224 x 224 and its class."""
        raw = torch.full((3, 256, 256), index % 251, dtype=torch.uint8)
        side = F.interpolate(raw[None].float(), size=224, mode="bilinear", antialias=True)[0]
        return side.flip(-1).div_(255.0), index % 1000


def measured_loader(given: argparse.Namespace) -> dict[str, Any]:
    """Return the samples per second that so many worker processes deliver."""
    loader = torch.utils.data.DataLoader(
        Pictures(), batch_size=64, num_workers=given.workers, pin_memory=torch.cuda.is_available()
    )
    batches = iter(loader)
    for _ in range(2 + 2 * given.workers):  # what was prefetched meanwhile costs nothing
        next(batches)
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < _TIMED_S:
        next(batches)
        count += 64
    return {"samples_per_s": count / (time.perf_counter() - begin)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parts = parser.add_subparsers(dest="part", required=True)
    step = parts.add_parser("step")
    for name in ("layers", "hidden", "heads", "sequence", "batch"):
        step.add_argument(f"--{name}", type=int, required=True)
    step.add_argument("--precision", choices=["bf16", "fp32"], required=True)
    step.add_argument("--compile", action="store_true")
    parts.add_parser("loader").add_argument("--workers", type=int, required=True)
    given = parser.parse_args()
    found = measured_step(given) if given.part == "step" else measured_loader(given)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
