"""A sample is what a batch has many of: a sequence, not its tokens and not its time steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from collecting import hooked
from torch import nn
from torch.utils.data import DataLoader

TIME, BATCH, WIDTH = 35, 20, 12


class Recurrent(nn.Module):
    """A language model on batches of [time, batch], as long as nobody says ``batch_first``."""

    def __init__(self, is_batch_first: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, batch_first=is_batch_first)
        self.out = nn.Linear(WIDTH, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        words: torch.Tensor = self.out(self.rnn(self.embed(tokens))[0])
        return words.view(-1, 50)


def train(folder: Path, model: nn.Module, batches: Any) -> dict[str, Any]:
    """Train for ten steps under the hooks and return the traced step's facts."""
    with hooked(folder) as hooks:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        criterion = nn.CrossEntropyLoss()  # a module that sees [time x batch, words]
        for tokens in batches:
            optimizer.zero_grad()
            criterion(model(tokens), tokens.reshape(-1)).backward()
            optimizer.step()
        return hooks.deep()


@pytest.mark.parametrize("is_batch_first", [False, True])
def test_a_sample_is_a_sequence_in_both_layouts(tmp_path: Path, is_batch_first: bool) -> None:
    shape = (BATCH, TIME) if is_batch_first else (TIME, BATCH)
    batches = [torch.randint(0, 50, shape) for _ in range(10)]
    assert train(tmp_path, Recurrent(is_batch_first), batches)["samples"] == BATCH


def test_a_transformer_on_time_first_batches(tmp_path: Path) -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, WIDTH)
            self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 16)
            self.out = nn.Linear(WIDTH, 50)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            words: torch.Tensor = self.out(self.layer(self.embed(tokens)))
            return words.view(-1, 50)

    batches = [torch.randint(0, 50, (TIME, BATCH)) for _ in range(10)]
    assert train(tmp_path, Encoder(), batches)["samples"] == BATCH


def test_a_loader_that_collates_time_first_counts_its_batch(tmp_path: Path) -> None:
    dataset: Any = [torch.randint(0, 50, (TIME,)) for _ in range(10 * BATCH)]
    loader: DataLoader[torch.Tensor] = DataLoader(
        dataset, batch_size=BATCH, collate_fn=lambda rows: torch.stack(rows, dim=1)
    )
    facts = train(tmp_path, Recurrent(), loader)
    assert facts["samples"] == BATCH


def test_an_optimizer_that_evaluates_the_loss_itself_repeats_one_micro_batch(
    tmp_path: Path,
) -> None:
    model = nn.Linear(8, 1)
    x, y = torch.randn(16, 8), torch.randn(16, 1)
    with hooked(tmp_path) as hooks:
        optimizer = torch.optim.LBFGS(
            model.parameters(), max_iter=6, tolerance_grad=0, tolerance_change=0
        )

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        for _ in range(6):
            optimizer.step(closure)  # type: ignore[no-untyped-call]
        facts = hooks.deep()
    assert (facts["samples"], facts["micro_batches"]) == (16, 1)
    forward = [one for one in facts["operators"] if one["phase"] == "forward" and one["flop"]]
    assert sum(one["count"] for one in forward) > 1, "every evaluation is the step's work"


@pytest.mark.parametrize("is_batched", [False, True])
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_samples_one_by_one_are_counted_as_many_as_they_are(
    tmp_path: Path, kind: str, is_batched: bool
) -> None:
    """An episode's states go through the policy alone, with a batch's dimension or without."""
    states = torch.randn(7, 4) if kind == "linear" else torch.randn(7, 3, 8, 8)
    first = nn.Linear(4, 6) if kind == "linear" else nn.Conv2d(3, 6, 3)
    actor, critic = nn.Sequential(first, nn.ReLU()), nn.Sequential(nn.Flatten(0), nn.LazyLinear(1))
    critic(states[0])
    with hooked(tmp_path) as hooks:
        optimizer = torch.optim.SGD([*actor.parameters(), *critic.parameters()], lr=0.01)
        for _ in range(6):
            inputs = [one[None] if is_batched else one for one in states]
            with torch.no_grad():
                actor(inputs[0])  # a look ahead trains nothing
            loss = torch.stack([actor(one).sum() + critic(one.flatten()).sum() for one in inputs])
            optimizer.zero_grad()
            loss.sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        facts = hooks.deep()
    assert facts["samples"] == len(states)


def test_a_batch_of_one_with_passes_of_its_own_is_one_a_pass(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    with hooked(tmp_path) as hooks:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            optimizer.zero_grad()
            for _ in range(3):
                model(torch.randn(1, 4)).sum().backward()
            optimizer.step()
        facts = hooks.deep()
    assert facts["samples"] == 3
