"""What the hooks take of optimizers' updates in ordinary steps, and what becomes of it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from collecting import hooked
from torch import nn

from advisor.collectors.derive.deep_step import deep_step
from advisor.collectors.format.events import Events
from advisor.collectors.hooks import step_clocks as updates

SLOW_S = 0.004


class Slow(torch.optim.Optimizer):
    """Takes its time between the operators, where no trace looks."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> Any:
        time.sleep(SLOW_S)
        with torch.no_grad():
            for one in self.param_groups[0]["params"]:
                one.mul_(1.0)


class SlowSGD(torch.optim.SGD):
    """The same before it calls the step of another optimizer, which has hooks of its own."""

    def step(self, closure: Any = None) -> Any:
        time.sleep(SLOW_S)
        return super().step(closure)


def taken(
    folder: Path, optimizers: list[torch.optim.Optimizer], steps: int, **given: Any
) -> Events:
    """Run so many steps of all the optimizers under the hooks."""
    (weight,) = optimizers[0].param_groups[0]["params"]
    with hooked(folder) as hooks:
        for _ in range(steps):
            for optimizer in optimizers:
                optimizer.zero_grad()
                (weight * weight).sum().backward()
                optimizer.step(**given)
        events = hooks.events
    assert "failure" not in events.facts
    hooked_still = sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks
    assert not hooked_still
    return events


@pytest.mark.parametrize("several", [1, 2])
def test_updates_are_timed_from_begin_to_end(tmp_path: Path, several: int) -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizers: list[torch.optim.Optimizer] = [Slow([weight], lr=0.0) for _ in range(several)]
    events = taken(tmp_path, optimizers, updates.LAST + 4)
    (fact,) = events.facts["updates"]
    assert len(fact["ns"]) == updates.LAST - updates.FIRST + 1
    assert min(fact["ns"]) >= several * SLOW_S * 1e9
    deep = deep_step(events.facts["deep_step"], None, events.facts["updates"])
    assert deep is not None
    assert deep.update_s is not None
    assert deep.update_s >= several * SLOW_S
    # A step is at least its updates, whatever a clock says of them.
    short = deep_step(events.facts["deep_step"], 1e-3, events.facts["updates"])
    assert short is not None
    assert short.update_s == 1e-3


def test_an_update_that_calls_another_s_begins_once(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.ones(3))
    torch.optim.SGD([weight], lr=0.0)  # PyTorch hooks a class when it is first used
    events = taken(tmp_path, [SlowSGD([weight], lr=0.0)], updates.LAST + 4)
    deep = deep_step(events.facts["deep_step"], None, events.facts["updates"])
    assert deep is not None
    assert deep.update_s is not None
    assert deep.update_s >= SLOW_S


def test_an_update_that_evaluates_the_loss_is_not_timed(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.ones(3))
    events = taken(
        tmp_path, [Slow([weight], lr=0.0)], updates.LAST + 4, closure=lambda: weight.sum()
    )
    assert "updates" not in events.facts
    deep = deep_step(events.facts["deep_step"], None)
    assert deep is not None
    assert deep.update_s is None


def test_a_script_of_few_steps_has_no_timed_updates(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.ones(3))
    events = taken(tmp_path, [torch.optim.SGD([weight], lr=0.0)], updates.LAST - 1)
    assert "updates" not in events.facts
