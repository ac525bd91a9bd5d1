"""Every schedule of optimizers completes one training step a period, in any order of making."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest
import torch
from collecting import hooked, record
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from advisor.collectors.format import rows_of
from advisor.collectors.hooks import format as fmt
from advisor.collectors.hooks.optimizers import Optimizers
from advisor.jobs.recorded_work import recorded_work


class Optimizer:
    """What the rule sees of one: its identity, and whether it is still there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What the script does: the oracle knows it, the rule only sees the steps.

    ``made`` is the order of making, ``before`` the steps ahead of the periods, ``period`` those of
    each period; optimizers are numbers.
    """

    made: list[int]
    before: list[int]
    period: list[int]


def has_a_single_turn(period: list[int]) -> bool:
    """Whether some optimizer steps in one stretch of the period, seen as a circle."""
    turns = [number for number, _ in groupby(period)]
    if len(turns) > 1 and turns[0] == turns[-1]:
        turns.pop()
    return any(turns.count(number) == 1 for number in turns)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    count = draw(st.integers(1, 4))
    numbers = list(range(count))
    turn = st.tuples(st.sampled_from(numbers), st.sampled_from([1, 1, 1, 2, 3, 5, 20, 80]))
    more = draw(st.lists(turn, max_size=3))
    turns = draw(
        st.permutations([(number, draw(st.sampled_from([1, 1, 5]))) for number in numbers])
    )
    period = [number for number, times in [*turns, *more] for _ in range(times)]
    if not has_a_single_turn(period) or len(period) > 128:
        period = [number for number, _ in turns]
    if count == 1:
        period = [0]
    phase = st.tuples(st.sampled_from(numbers), st.integers(1, 150))
    before = [number for number, times in draw(st.lists(phase, max_size=3)) for _ in range(times)]
    return Schedule(made=draw(st.permutations(numbers)), before=before, period=period)


class Script:
    """A training script's optimizers at work on the rule."""

    def __init__(self, made: list[int]) -> None:
        self.rule = Optimizers()
        self._optimizers: dict[int, Optimizer] = {}
        self.completed = self.renewed = 0
        for number in made:
            self.make(number)

    def make(self, number: int) -> None:
        """Make an optimizer, in place of the one of that number if there is one."""
        self._optimizers[number] = Optimizer()
        self.rule.made(self._optimizers[number])

    def step(self, number: int) -> None:
        """Step, as the framework's hook tells the session."""
        optimizer = self._optimizers[number]
        flags = fmt.FLAG_COMPLETES
        if not self.rule.is_only(optimizer):
            _, flags = self.rule.stepped(optimizer)
        self.completed += bool(flags & fmt.FLAG_COMPLETES)
        self.renewed += bool(flags & fmt.FLAG_RENEWED)

    def steps_in(self, period: list[int]) -> int:
        """Return the training steps that complete in a period."""
        before = self.completed
        for number in period:
            self.step(number)
        return self.completed - before


WITHIN = 10  # periods until the rhythm is known


@settings(max_examples=3 * settings().max_examples)
@given(schedules())
def test_every_period_completes_one_step(schedule: Schedule) -> None:
    script = Script(schedule.made)
    for number in schedule.before:
        script.step(number)
    # A phase may have been as long as a pause: the bound is in steps as well as in periods.
    for _ in range(WITHIN + 1200 // len(schedule.period)):
        script.steps_in(schedule.period)
    renewed = script.renewed
    assert [script.steps_in(schedule.period) for _ in range(20)] == [1] * 20
    assert script.renewed == renewed


@settings(max_examples=2 * settings().max_examples)
@given(schedules().filter(lambda one: not one.before), st.data())
def test_without_a_phase_before_it_the_rhythm_is_known_within_ten_periods(
    schedule: Schedule, data: st.DataObject
) -> None:
    script = Script(schedule.made)
    for _ in range(WITHIN):
        script.steps_in(schedule.period)
    assert [script.steps_in(schedule.period) for _ in range(20)] == [1] * 20


@settings(max_examples=2 * settings().max_examples)
@given(schedules(), st.data())
def test_a_skipped_step_costs_one_training_step_at_most(
    schedule: Schedule, data: st.DataObject
) -> None:
    """Loss scaling skips all steps of one optimizer in a period, now and then."""
    script = Script(schedule.made)
    for _ in range(WITHIN):
        script.steps_in(schedule.period)
    renewed, skips, periods = script.renewed, 0, 60
    before = script.completed
    for number in range(periods):
        period = schedule.period
        if number % 12 == 5:
            skipped = data.draw(st.sampled_from(schedule.made))
            period = [one for one in period if one != skipped]
            skips += 1
        script.steps_in(period)
    assert abs(script.completed - before - periods) <= skips
    assert script.renewed == renewed


@settings(max_examples=2 * settings().max_examples)
@given(schedules(), st.data())
def test_optimizers_that_are_made_anew_take_their_places(
    schedule: Schedule, data: st.DataObject
) -> None:
    """As at the begin of an epoch or of a fold; within the period of the change all is allowed."""
    script = Script(schedule.made)
    for _ in range(WITHIN):
        script.steps_in(schedule.period)
    for number in data.draw(st.permutations(schedule.made)):
        if data.draw(st.booleans()):
            script.make(number)
    for _ in range(WITHIN):
        script.steps_in(schedule.period)
    assert [script.steps_in(schedule.period) for _ in range(20)] == [1] * 20


class Network:
    """A model with its optimizer."""

    def __init__(self, width: int) -> None:
        self.layer = nn.Linear(4, width)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.1)

    def update(self) -> None:
        """Train by a step."""
        self.optimizer.zero_grad()
        self.layer(torch.randn(8, 4)).sum().backward()
        self.optimizer.step()


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("critic_steps", [1, 5])
def test_two_optimizers_count_in_either_order_of_making(
    tmp_path: Path, critic_steps: int, is_reversed: bool
) -> None:
    with hooked(tmp_path) as hooks:
        made = Network(3), Network(5)
        generator, critic = reversed(made) if is_reversed else made
        for _ in range(30):
            for _ in range(critic_steps):
                critic.update()
            generator.update()
        events = hooks.events
    assert events.completed == hooks.session.steps == 30
    assert events.backwards == (critic_steps + 1) * events.intervals


def test_steps_that_turn_out_to_be_parts_are_forgotten(tmp_path: Path) -> None:
    """As a Wasserstein GAN begins: 100 steps of the critic before the generator's first."""
    with hooked(tmp_path) as hooks:
        critic, generator = Network(3), Network(5)
        for _ in range(100):
            critic.update()
        partly = hooks.events
        for _ in range(30):
            generator.update()
            for _ in range(5):
                critic.update()
        events = hooks.events
    assert partly.completed > 50
    assert {fact["micro_batches"] for fact in partly.facts["deep_step"]} == {1}
    assert events.completed == hooks.session.steps
    assert events.completed in (29, 30)
    assert events.backwards == 6 * events.intervals
    assert {fact["micro_batches"] for fact in events.facts["deep_step"]} == {6}
    assert events.steps.first_ns == partly.steps.first_ns


def test_a_closure_that_is_called_many_times_makes_one_step(tmp_path: Path) -> None:
    layer = nn.Linear(4, 1)
    with hooked(tmp_path) as hooks:
        optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=20, tolerance_change=0)
        calls = 0

        def closure() -> torch.Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss: torch.Tensor = (layer(torch.ones(2, 4)).sin() - 1).square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        for _ in range(12):
            with torch.no_grad():
                layer.weight.mul_(0.5)
            optimizer.step(closure)  # type: ignore[no-untyped-call]
        events = hooks.events
    assert calls > 3 * 12
    assert events.completed == 12


def test_a_step_that_loss_scaling_skips_is_none(tmp_path: Path) -> None:
    """The scaler finds infinities in the first steps and steps the optimizer no more than that."""
    with hooked(tmp_path) as hooks:
        network = Network(3)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for number in range(20):
            factor = float("inf") if number < 3 else 1.0
            network.optimizer.zero_grad()
            scaler.scale(network.layer(torch.ones(2, 4)).sum() * factor).backward()
            scaler.step(network.optimizer)
            scaler.update()
        events = hooks.events
    assert events.completed == 17


# An actor steps before its critic, a critic three times before its generator.
ADVERSARIES = """
import sys, torch
first, second, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
models = {name: torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh()) for name in "ab"}
made = {name: torch.optim.Adam(models[name].parameters()) for name in (first, second)}
step = 0
while step < 60:
    for name in "a" * times + "b":
        made[name].zero_grad()
        models[name](torch.randn(4, 8)).pow(2).mean().backward()
        made[name].step()
    step += 1
"""


@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("made", ["ab", pytest.param("ba", marks=pytest.mark.slow)])
def test_two_optimizers_are_recorded_as_one_step(tmp_path: Path, made: str, times: int) -> None:
    seen = record(tmp_path, ADVERSARIES, *made, str(times))
    assert seen.exit_code == 0
    assert seen.step_time is not None
    assert seen.total_work is not None
    assert (seen.step_time.clock, seen.total_work.steps) == ("optimizer", 60)
    assert seen.total_work.confidence == "likely"
    assert seen.accumulation_steps == 1
    assert seen.step_time.steps > 30
    assert seen.deep_step is not None
    assert seen.deep_step.parameters == 2 * 9 * 16
    # Losses of several models are no passes over samples of their own.
    assert seen.deep_step.micro_batches == 1
    work = recorded_work(seen.deep_step, None)
    counts = list(rows_of(seen.deep_step.operators, "phase", "count"))
    for phase in ("forward", "backward"):
        in_pass = work.operators.count[work.operators.phase == phase].sum()
        assert in_pass == sum(count for one, count in counts if one == phase)
    assert work.micro_batch == seen.deep_step.samples
