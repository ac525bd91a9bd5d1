"""A small mixture of experts that learns to write Python, character by character.

Its text is the source of Python's own standard library, so nothing is downloaded. Every block has
sixteen small feed-forward networks, the experts, of which a router picks two for each character.
The advisor sees which (nothing here knows of it) and says how many experts a machine that serves
the model has to hold:

advisor profile examples/stdlib_moe.py
advisor advise --serving
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--context", type=int, default=96)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--inner", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--top", type=int, default=2)
    parser.add_argument("--balance", type=float, default=0.01, help="weight of even use")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def corpus(size: int = 1_000_000) -> torch.Tensor:
    """Return the first characters of the standard library's source as bytes below 128."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= size:
            break
    return torch.tensor([byte for byte in text[:size] if byte < 128])


class Expert(nn.Module):
    """A gated feed-forward network."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (tokens, hidden) to the same shape."""
        found: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return found


class Mixture(nn.Module):
    """Experts behind a router; ``balance`` holds how unevenly the last pass used them."""

    def __init__(self, hidden: int, inner: int, experts: int, top: int) -> None:
        super().__init__()
        self.top_k = top
        self.router = nn.Linear(hidden, experts, bias=False)
        self.experts = nn.ModuleList([Expert(hidden, inner) for _ in range(experts)])
        self.balance = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, context, hidden) to the same shape."""
        flat = x.flatten(0, -2)
        scores = self.router(flat).softmax(dim=-1)
        weights, chosen = scores.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        mixed = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == number)
            if len(rows):
                added = weights[rows, places, None] * expert(flat[rows])
                mixed = mixed.index_add(0, rows, added)
        use = functional.one_hot(chosen, len(self.experts)).float().mean(dim=(0, 1))
        self.balance = len(self.experts) * (use * scores.mean(dim=0)).sum()
        return mixed.view_as(x)


class Block(nn.Module):
    """Causal attention of one head and a mixture of experts, both on the residual stream."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(args.hidden)
        self.query_key_value = nn.Linear(args.hidden, 3 * args.hidden)
        self.projection = nn.Linear(args.hidden, args.hidden)
        self.before_mixture = nn.LayerNorm(args.hidden)
        self.mixture = Mixture(args.hidden, args.inner, args.experts, args.top)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, context, hidden) to the same shape."""
        q, k, v = self.query_key_value(self.before_attention(x)).chunk(3, dim=-1)
        x = x + self.projection(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        mixed: torch.Tensor = x + self.mixture(self.before_mixture(x))
        return mixed


class Writer(nn.Module):
    """Embeddings, blocks, and a prediction of the next character at every position."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.characters = nn.Embedding(128, args.hidden)
        self.positions = nn.Embedding(args.context, args.hidden)
        self.blocks = nn.Sequential(*[Block(args) for _ in range(args.layers)])
        self.norm = nn.LayerNorm(args.hidden)
        self.head = nn.Linear(args.hidden, 128)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Map characters (batch, context) to logits (batch, context, 128)."""
        places = torch.arange(text.shape[1], device=text.device)
        x = self.blocks(self.characters(text) + self.positions(places))
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def main() -> None:
    """Train, and report the loss on text never trained on."""
    args = arguments()
    torch.manual_seed(args.seed)
    text = corpus()
    train, held_out = text[: int(0.9 * len(text))], text[int(0.9 * len(text)) :]
    model = Writer(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    def loss_on(source: torch.Tensor) -> torch.Tensor:
        starts = torch.randint(len(source) - args.context - 1, (args.batch_size,))
        windows = torch.stack([source[start : start + args.context + 1] for start in starts])
        logits = model(windows[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())

    for step in range(args.steps):
        loss = loss_on(train)
        uneven = sum(block.mixture.balance for block in model.blocks)
        optimizer.zero_grad()
        (loss + args.balance * uneven).backward()
        optimizer.step()
        if step % 50 == 49:
            with torch.no_grad():
                held = sum(float(loss_on(held_out)) for _ in range(4)) / 4
            print(f"step {step + 1}: loss {loss.item():.3f}, held out {held:.3f}", flush=True)


if __name__ == "__main__":
    main()
