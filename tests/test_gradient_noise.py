"""The gradient noise scale: what the hooks take of real backward passes, and what it tells."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from collecting import hooked, record
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from advisor.collectors.format.events import Events
from advisor.collectors.format.facts import FEWEST, GradientNorms, gradient_norms
from advisor.collectors.hooks import gradient_norms as gradients
from advisor.planners.core.errors import PlanningError
from advisor.planners.systems.gradient_noise import NoiseScale, measured_noise

SIZE = 50


def with_rows(*rows: tuple[int, float, float]) -> Events:
    return Events(facts={"gradient_norms": [{"rows": [list(row) for row in rows]}]})


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample each step from the first on: what is due by time is not this test's."""
    monkeypatch.setattr(gradients, "_FIRST", 0)
    monkeypatch.setattr(gradients, "_PERIOD_NS", 0)
    monkeypatch.setattr(gradients, "_SHARE", math.inf)


def taken(folder: Path, step: Any, steps: int) -> tuple[Events, Any]:
    """Run so many steps under the hooks."""
    with hooked(folder) as hooks:
        hooks.session._chores.due_step = sys.maxsize
        hooks.session._chores._deep_wanted = []
        for _ in range(steps):
            step()
        hooks.session.gradients.write()
        events = hooks.events
    assert "failure" not in events.facts
    return events, hooks.session


def rows_of(events: Events) -> list[list[float]]:
    return [row for fact in events.facts.get("gradient_norms", []) for row in fact.get("rows", ())]


class Loop:
    """A step of several passes over a model whose gradient is known: w - x, averaged."""

    def __init__(self, passes: int, *, batch: int = 8, clip: float | None = None) -> None:
        self.rng = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.full((SIZE,), 0.3))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.0)
        self.passes, self.batch, self.clip = passes, batch, clip
        self.norms: list[tuple[float, float]] = []

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        first = 0.0
        for number in range(self.passes):
            x = torch.randn(self.batch, SIZE, generator=self.rng)
            loss = (self.weight - x).square().sum(dim=1).mean() / 2
            loss.backward()  # type: ignore[no-untyped-call]
            assert self.weight.grad is not None
            if number == 0:
                first = float(self.weight.grad.square().sum())
        assert self.weight.grad is not None
        self.norms.append((first, float(self.weight.grad.square().sum())))
        if self.clip is not None:
            nn.utils.clip_grad_norm_([self.weight], self.clip)
        self.optimizer.step()


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize("clip", [None, 1e-3])
def test_norms_are_those_of_the_passes_before_anybody_clips_them(
    tmp_path: Path, clip: float | None
) -> None:
    loop = Loop(4, clip=clip)
    events, _ = taken(tmp_path, loop, 40)
    rows = rows_of(events)
    assert len(rows) >= 30
    assert all(passes == 4 for passes, _, _ in rows)
    for _, *both in rows:
        assert any(both == pytest.approx(list(one), rel=1e-5) for one in loop.norms)


@pytest.mark.usefixtures("every_step")
def test_the_noise_scale_of_recorded_passes_is_that_of_the_data(tmp_path: Path) -> None:
    events, _ = taken(tmp_path, Loop(4), 400)
    seen = gradient_norms([events], samples=32.0, passes=4, ranks=1)
    assert seen is not None
    assert (seen.small_batch, seen.large_batch) == (8.0, 32.0)
    found = measured_noise(seen.small_batch, seen.small_norm2, seen.large_batch, seen.large_norm2)
    true = SIZE / (0.3**2 * SIZE)  # tr(S) over |w - mean|^2
    assert found.samples == pytest.approx(true, rel=0.1)


@pytest.mark.usefixtures("every_step")
def test_one_norm_a_step_is_not_asked_for_long_and_leaves_no_row(tmp_path: Path) -> None:
    events, session = taken(tmp_path, Loop(1), 30)
    assert rows_of(events) == []
    assert session.gradients._is_off


@pytest.mark.usefixtures("every_step")
def test_two_optimizers_share_no_gradient(tmp_path: Path) -> None:
    one, other = Loop(2), Loop(2)

    def both() -> None:
        one()
        other()

    events, session = taken(tmp_path, both, 20)
    assert len(rows_of(events)) < 2  # the second was made before the hooks were there
    assert session.gradients._is_off


@pytest.mark.usefixtures("every_step")
def test_what_a_script_does_to_its_tensors_is_no_failure(tmp_path: Path) -> None:
    table = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(2):
            table(torch.tensor([1, 2])).sum().backward()
        optimizer.step()

    events, session = taken(tmp_path, step, 20)
    assert rows_of(events) == []
    assert not session.gradients.is_open


def test_most_steps_are_not_sampled(tmp_path: Path) -> None:
    events, _ = taken(tmp_path, Loop(2), 60)
    assert len(rows_of(events)) < 40


@given(
    st.floats(0.01, 1e3), st.floats(1.0, 1e5), st.integers(1, 64), st.integers(2, 64),
    st.floats(1e-3, 1e6),
)  # fmt: skip
def test_exact_norms_give_the_noise_scale_back_whatever_the_loss_is_scaled_by(
    signal: float, scale: float, batch: int, times: int, loss_scale: float
) -> None:
    large = batch * times
    small_norm2, large_norm2 = (
        loss_scale * signal * (1 + scale / size) for size in (batch, large)
    )
    found = measured_noise(batch, [small_norm2] * 9, large, [large_norm2] * 9)
    assert found.samples == pytest.approx(scale, rel=1e-6)
    assert found.low == pytest.approx(scale, rel=1e-6)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    inside = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        noise = [rng.normal(size=(60, SIZE)) / math.sqrt(size) for size in (16, 64)]
        small, large = (((0.3 + one) ** 2).sum(axis=1) for one in noise)
        try:
            found = measured_noise(16, small.tolist(), 64, large.tolist())
        except PlanningError:
            continue
        inside += found.low <= 1 / 0.09 <= (found.high or math.inf)
    assert inside >= 44


def test_an_endless_noise_scale_is_refused_and_an_open_end_is_none() -> None:
    with pytest.raises(PlanningError, match="no noise scale"):
        measured_noise(1, [4.0] * 10, 4, [1.0] * 10)
    # Only the first steps had a signal: draws without them have next to none, or none.
    large = [1.6] * 4 + [0.99] * 36
    found = measured_noise(1, [4.0] * 40, 4, large)
    assert found.low < found.samples
    assert found.high is None


@given(st.floats(1.0, 1e6), st.floats(1.0, 1e6), st.floats(1.0, 1e6))
def test_samples_needed_grow_with_the_batch_and_back(
    scale: float, batch: float, other: float
) -> None:
    one = NoiseScale(samples=scale, low=scale, high=scale, steps=9)
    assert one.more_samples(batch, other) * one.more_samples(other, batch) == pytest.approx(1)
    assert (one.more_samples(batch, other) > 1) == (other > batch) or other == pytest.approx(batch)


def test_norms_of_other_passes_and_broken_ones_are_left_out() -> None:
    good = [(4, 2.0, 16.0)] * FEWEST
    found = gradient_norms(
        [with_rows(*good, (3, 2.0, 9.0)), with_rows((4, math.inf, 1.0), *good)],
        samples=64.0, passes=4, ranks=2,
    )  # fmt: skip
    assert found == GradientNorms(
        small_batch=8.0, large_batch=64.0, small_norm2=(2.0,) * 2 * FEWEST,
        large_norm2=(1.0,) * 2 * FEWEST,
    )  # fmt: skip
    few = with_rows(*good[1:])
    assert gradient_norms([few], samples=64.0, passes=4, ranks=1) is None
    assert gradient_norms([with_rows(*good)], samples=64.0, passes=1, ranks=1) is None
    # Two passes a step, but one batch: two losses, no parts of one gradient.
    assert gradient_norms([with_rows(*good)], samples=64.0, passes=1, ranks=2) is None


TOGETHER = """
import os, sys, torch
from torch import nn
if "ddp" in sys.argv:
    import torch.distributed as dist
    dist.init_process_group("gloo")
torch.manual_seed(1 + int(os.environ["RANK"]))
model = nn.Linear(50, 1, bias=False)
nn.init.zeros_(model.weight)
if "ddp" in sys.argv:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for step in range(10**6):
    optimizer.zero_grad()
    x = 0.3 + torch.randn(16, 50)  # gradient of the mean output: the mean input
    model(x).mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plain", "ddp"])
def test_ranks_tell_the_noise_scale_by_what_they_had_before_the_exchange(
    tmp_path: Path, way: str
) -> None:
    found = record(tmp_path, TOGETHER, way, workers=2, limit_s=12.0)
    assert found.gradients is not None, found.warnings
    assert found.gradients.large_batch == 2 * found.gradients.small_batch
    small, large = (np.mean(one) for one in (found.gradients.small_norm2,
                                             found.gradients.large_norm2))  # fmt: skip
    ranks = len(found.gradients.small_norm2) / 2  # both ranks may have sampled the same step
    for seen, batch in ((small, 16), (large, 32)):
        # |0.3 + noise|^2: its mean, and five deviations of a mean of so many.
        variance = 4 * 0.09 * SIZE / batch + 2 * SIZE / batch**2
        expected = 0.09 * SIZE + SIZE / batch
        assert seen == pytest.approx(expected, abs=5 * math.sqrt(variance / ranks))
    assert small > large
