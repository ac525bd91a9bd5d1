"""The zoo: every workload is real training on data that is here."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from advisor.lab import workloads
from advisor.lab.workloads import Workload, data

# Steps after which the mean loss of the last five is clearly below that of the first five.
STEPS = {"cnn": 60, "recommender": 300, "resnet": 30, "vit": 40, "convnext": 40}


def train(workload: Workload, steps: int) -> list[float]:
    torch.manual_seed(0)
    model = workload.build(workload.widths[0])
    optimizer = workload.optimizer(model.parameters())
    loader = DataLoader(workload.samples(), workload.batches[0], shuffle=True, drop_last=True)
    losses = []
    for batch in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), steps):
        optimizer.zero_grad()
        loss = workload.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_every_workload_learns(name: str) -> None:
    losses = train(workloads.load(name), STEPS.get(name, 20))
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_the_same_seed_trains_the_same() -> None:
    assert train(workloads.load("mlp"), 5) == train(workloads.load("mlp"), 5)


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_a_larger_width_has_more_parameters(name: str) -> None:
    workload = workloads.load(name)
    sizes = [sum(p.numel() for p in workload.build(w).parameters()) for w in workload.widths]
    assert sizes == sorted(set(sizes))


def test_only_the_ratings_are_synthetic_and_they_say_so() -> None:
    zoo = [workloads.load(name) for name in workloads.WORKLOADS]
    assert [w.name for w in zoo if w.is_synthetic] == ["recommender"]
    assert all(("synthetic" in w.data) == w.is_synthetic for w in zoo)


def test_an_unknown_workload_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="diffusion"):
        workloads.load("diffusion")


def test_a_text_sample_is_shifted_by_one_character() -> None:
    now, later = data.text()[3]
    assert torch.equal(now[1:], later[:-1])
    assert int(now.max()) < data.CHARACTERS


def test_neighbours_are_the_nearest_others() -> None:
    pixels, neighbours = data.neighbours()
    node = 17
    distance = (pixels - pixels[node]).square().sum(dim=1)
    distance[node] = torch.inf
    assert set(neighbours[node].tolist()) == set(distance.argsort()[: data.NEIGHBOURS].tolist())
