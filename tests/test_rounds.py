"""Rounds of frameworks without torch's optimizers: their clock, their number, their job."""

from __future__ import annotations

import math
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from collecting import give_order, hooked
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.collectors.derive.work import count_rounds, rounds_of
from advisor.collectors.format.events import Events
from advisor.collectors.format.recording import Reading, StepTime
from advisor.collectors.hooks import format as fmt
from advisor.collectors.hooks.frameworks.keras_jax import Jitted, Updates
from advisor.collectors.hooks.frameworks.rounds import RoundCounter
from advisor.estimate.ways.programs import cores_factor
from advisor.jobs.job import Program
from advisor.quantities import REACH_90

S = 1_000_000_000


def tick(events: Events, clock: int, at_ns: int, flags: int = fmt.FLAG_COMPLETES) -> None:
    events.take(fmt.STEP, fmt.STEP_PAYLOAD.pack(at_ns, 0, 1, clock, flags, 0, 0, 0, 0, 0, 0))


def events_of(*facts: dict[str, Any], rounds: int = 0, round_ns: int = S) -> Events:
    """What a process recorded: facts, and rounds of equal length."""
    events = Events()
    for fact in facts:
        events.facts.setdefault(fact["fact"], []).append(fact)
    for number in range(rounds):
        tick(events, fmt.CLOCK_ROUND, (number + 1) * round_ns)
    return events


def fit(rounds: int | None, *turns: int | None, **more: Any) -> dict[str, Any]:
    """The fact of a fit in loops of so many turns, innermost first."""
    loops = [{"turns": one, "text": f"range({one})"} for one in turns]
    facts = {"kind": "LightGBM", "unit": "round", "where": "a.py:1", "cores": None}
    return {"fact": "fit", "rounds": rounds, "loops": loops, **facts, **more}


# The clock.


@given(st.lists(st.sampled_from(range(len(fmt.CLOCKS))), min_size=1, max_size=40))
def test_the_clock_of_the_highest_rank_leads_and_counts_its_own_ticks(clocks: list[int]) -> None:
    events = Events()
    for number, clock in enumerate(clocks):
        tick(events, clock, (number + 1) * S)
    order = ("loader", "fit", "round", "backward", "optimizer", "marker")
    leading = max((fmt.CLOCKS[clock] for clock in clocks), key=order.index)
    assert fmt.CLOCKS[events.clock] == leading
    assert events.completed == [fmt.CLOCKS[clock] for clock in clocks].count(leading)


def test_old_numbers_of_clocks_stand_and_unknown_ones_are_passed_over() -> None:
    assert fmt.CLOCKS[:4] == ("loader", "backward", "optimizer", "marker")
    events = Events()
    tick(events, 200, S)
    assert (events.clock, events.completed) == (-1, 0)


@given(st.lists(st.sampled_from(["round", "optimizer", "marker", "fit"]), max_size=30))
@settings(max_examples=settings().max_examples // 3)
def test_hooks_and_reader_agree_on_the_clock(names: list[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with hooked(folder) as hooks:
            rounds = RoundCounter(hooks.session)
            for one in names:
                if one == "marker":
                    hooks.session.marked()
                elif one == "optimizer":
                    hooks.session._tick(fmt.CLOCK_OPTIMIZER)
                elif one == "fit":
                    hooks.session.round_ended(fmt.CLOCK_FIT, 1, 0)
                else:
                    rounds.done("LightGBM")
            if names:
                events = hooks.events
                assert (events.clock, events.completed) == (
                    hooks.session.clock, hooks.session.steps,
                )  # fmt: skip


# Loops, one inside the other.


class Script:
    """A session that only remembers the rounds and facts it was told."""

    def __init__(self) -> None:
        self.is_released = False
        self.ends: list[int] = []
        self.facts: list[dict[str, Any]] = []
        self.loaders = SimpleNamespace(has_begun=False)

    def round_ended(self, clock: int, at_ns: int, samples: int, *_: int) -> None:
        self.ends.append(at_ns)

    def fact(self, name: str, **values: Any) -> None:
        self.facts.append({"fact": name, **values})

    def guarded(self, where: str) -> AbstractContextManager[None]:
        return nullcontext()  # what goes wrong is raised


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5)), max_size=6))
def test_only_rounds_of_the_outermost_loop_count(inner: list[tuple[str, int]]) -> None:
    script: Any = Script()
    rounds = RoundCounter(script)
    outer = rounds.begin("a")
    for kind, count in inner:
        loop = rounds.begin(kind)
        assert loop is None
        rounds.done(kind, count)
        rounds.end(loop)
    rounds.end(outer)
    assert len(script.ends) == sum(count for kind, count in inner if kind == "a")
    assert not rounds.is_inside


@given(st.integers(1, 50))
def test_rounds_that_are_reported_together_ended_one_after_the_other(count: int) -> None:
    script: Any = Script()
    rounds = RoundCounter(script)
    rounds.end(rounds.begin("a"))
    rounds.done("a")
    rounds.done("a", count)
    first, *together = script.ends
    gaps = np.diff([first, *together])
    assert len(together) == count
    assert (gaps >= 0).all()
    assert gaps.max() - gaps.min() <= 1  # whole nanoseconds


def test_a_pool_worker_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import multiprocessing.process

    script: Any = Script()
    rounds = RoundCounter(script)
    worker = SimpleNamespace(name="LokyProcess-1")
    monkeypatch.setattr(multiprocessing.process, "current_process", lambda: worker)
    assert rounds.begin("a") is None
    rounds.done("a")
    assert script.ends == []


def test_the_hooks_of_a_framework_are_loaded_with_it(tmp_path: Path) -> None:
    give_order(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
        "from advisor.collectors.hooks import boot\n"
        f"boot.start({str(tmp_path)!r})\n"
        "import json\n"
        "print(sorted(name for name in sys.modules if name.startswith('advisor.collectors.hooks')"
        " and name.rsplit('.')[-1] in ('estimators', 'keras_jax')))"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# JAX without JAX: arrays, and functions that take and return them.


class Array:
    """As much of a device array as the hooks look at."""

    def __init__(self) -> None:
        self.waits = 0

    def block_until_ready(self) -> Array:
        self.waits += 1
        return self

    def is_deleted(self) -> bool:
        return False


def updates_of(script: Any) -> Updates:
    def leaves(tree: Any) -> list[Any]:
        if isinstance(tree, (tuple, list)):
            return [leaf for part in tree for leaf in leaves(part)]
        return [] if tree in (None, {}) else [tree]

    jax: Any = ModuleType("jax")
    jax.tree_util = SimpleNamespace(tree_leaves=leaves)
    jax.core = SimpleNamespace(Tracer=type("Tracer", (), {}))
    return Updates(RoundCounter(script), jax)


@given(st.lists(st.sampled_from(["update", "evaluate"]), max_size=60))
def test_the_function_that_gets_its_result_back_is_the_step(calls: list[str]) -> None:
    script: Any = Script()
    updates = updates_of(script)
    update = Jitted(lambda state, batch: (Array(), Array()), updates)
    evaluate = Jitted(lambda state: Array(), updates)
    state: Any = Array()
    for name in calls:
        if name == "update":
            state, _ = update(state, Array())
        else:
            evaluate(state)
    expected = calls.count("update")
    assert len(script.ends) == (expected if expected > 1 else 0)
    assert script.ends == sorted(script.ends)


def test_a_tick_waits_for_the_call_before_and_leaves_one_queued() -> None:
    script: Any = Script()
    updates = updates_of(script)
    made: list[Array] = []

    def step(state: Array) -> Array:
        made.append(Array())
        return made[-1]

    update, state = Jitted(step, updates), Array()
    for _ in range(6):
        state = update(state)
    assert [array.waits for array in made[1:]] == [1, 1, 1, 1, 0]


def test_a_jitted_call_inside_another_is_part_of_it() -> None:
    script: Any = Script()
    updates = updates_of(script)
    inner = Jitted(lambda state: Array(), updates)
    outer = Jitted(lambda state: inner(inner(state)), updates)
    state = Array()
    for _ in range(10):
        state = outer(state)
    assert len(script.ends) == 10


# How many there are.


@given(st.integers(1, 500), st.lists(st.integers(1, 9), max_size=3))
def test_a_fit_in_loops_makes_its_rounds_every_turn(rounds: int, turns: list[int]) -> None:
    counted = count_rounds(events_of(fit(rounds, *turns), rounds=3), is_finished=False)
    assert counted is not None
    assert counted.steps == rounds * math.prod(turns)
    assert counted.confidence == ("likely" if turns else "certain")


@given(st.lists(st.integers(1, 100), min_size=1, max_size=6))
def test_fits_on_several_lines_add_up(rounds: list[int]) -> None:
    facts = [fit(count, where=f"a.py:{line}") for line, count in enumerate(rounds)]
    counted = count_rounds(events_of(*facts, rounds=3), is_finished=False)
    assert counted is not None
    assert counted.steps == sum(rounds)


@pytest.mark.parametrize("unknown", [fit(None), fit(30, None), fit(30, 4, None)])
def test_what_a_fit_does_not_know_stays_unknown(unknown: dict[str, Any]) -> None:
    assert count_rounds(events_of(unknown, rounds=3), is_finished=False) is None


def test_early_stopping_makes_the_number_a_bound() -> None:
    counted = count_rounds(events_of(fit(300, may_end_early=True), rounds=3), is_finished=False)
    assert counted is not None
    assert counted.confidence == "weak"
    assert "at most 300 rounds" in counted.source


@given(st.integers(2, 40))
def test_a_script_that_was_seen_to_its_end_has_made_what_was_counted(seen: int) -> None:
    events = events_of(fit(1000, may_end_early=True), rounds=seen)
    counted = count_rounds(events, is_finished=True)
    assert counted is not None
    assert (counted.steps, counted.confidence) == (seen, "certain")
    events.facts["obeyed"] = [{"fact": "obeyed"}]
    stopped = count_rounds(events, is_finished=True)
    assert stopped is not None
    assert stopped.steps == 1000


# What they use, and how alike they are.


def step_time(**changes: Any) -> StepTime:
    values: dict[str, Any] = {
        "corrected_s": 1.0, "raw_s": 1.0, "low_s": 0.98, "high_s": 1.02, "steps": 40,
        "warmup_steps": 0, "delay_fraction": 0.0, "clock": "round", "is_settled": True,
    }  # fmt: skip
    return StepTime(**values | changes)


def reading(t_s: float, cpu_s: float, gpu: float | None = None) -> Reading:
    return Reading(
        t_s=t_s, processes=1, cpu_s=cpu_s, run_delay_s=0.0, rss_bytes=1, pss_bytes=None,
        disk_read_bytes=0, disk_write_bytes=0, network_received_bytes=0, network_sent_bytes=0,
        throttled_s=0.0, pressure_fraction=None, gpu_fraction=gpu,
    )  # fmt: skip


@given(st.floats(0.1, 16.0), st.floats(0.0, 0.8))
def test_busy_cores_are_cpu_time_over_time_not_spent_waiting(cores: float, waiting: float) -> None:
    events = events_of(fit(40), rounds=40)
    own = [reading(t, cores * t * (1.0 - waiting)) for t in np.arange(0.0, 41.0, 0.5)]
    seen = rounds_of(events, step_time(delay_fraction=waiting), own, 0)
    assert seen is not None
    assert seen.busy_cores == pytest.approx(cores)


def test_rounds_that_grow_spread_and_equal_ones_do_not() -> None:
    equal = rounds_of(events_of(fit(40), rounds=40), step_time(), (), 0)
    growing, at_ns = events_of(fit(40)), 0
    for number in range(40):
        at_ns += (1 + number) * S
        tick(growing, fmt.CLOCK_ROUND, at_ns)
    larger = rounds_of(growing, step_time(), (), 0)
    assert equal is not None
    assert larger is not None
    assert equal.spread_fraction == 0.0
    assert 0.5 < larger.spread_fraction < 1.0


def test_a_busy_gpu_is_the_device() -> None:
    events = events_of(fit(40), rounds=40)
    seen = rounds_of(events, step_time(), [reading(1.0, 1.0, gpu=0.5)], 0)
    assert seen is not None
    assert seen.device == "cuda"


# Cores of other machines.

CORES = st.floats(1.0, 192.0)


@given(CORES, st.floats(0.05, 1.0), CORES)
def test_one_core_at_most_is_never_sped_up_by_more(host: float, busy: float, there: float) -> None:
    one = Program(
        duration_s=1.0, cpu_s=busy, parallelism=min(busy, 1.0), cores=1.0, host_cores=host
    )
    factor, log_sd = cores_factor(one, np.array([there]))
    assert factor[0] == pytest.approx(1.0)
    assert log_sd[0] == pytest.approx(0.0)


@given(st.floats(1.0, 64.0), st.floats(0.0, 1.0), CORES, CORES)
def test_more_cores_never_cost_time_and_the_interval_holds_none_and_all_of_the_gain(
    host: float, share: float, few: float, many: float
) -> None:
    busy = 1.0 + share * (host - 1.0)
    program = Program(duration_s=1.0, cpu_s=busy, parallelism=busy, host_cores=host)
    few, many = sorted((few, many))
    factor, log_sd = cores_factor(program, np.array([few, many, host]))
    assert factor[1] <= factor[0] * (1 + 1e-12)
    assert factor[2] == pytest.approx(1.0)
    reach = factor * np.exp(REACH_90 * log_sd)
    least = factor * np.exp(-REACH_90 * log_sd)
    assert (reach >= np.minimum(factor, 1.0) - 1e-9).all()
    assert reach[1] == pytest.approx(max(1.0, factor[1]))  # no gain at all
    ideal = (1.0 - share) + share * host / many if host > 1.0 else 1.0
    if many >= host > 1.0:
        assert least[1] == pytest.approx(ideal, rel=1e-6)


@given(CORES, st.floats(0.1, 192.0), CORES)
def test_a_whole_program_keeps_its_law(host: float, busy: float, there: float) -> None:
    whole = Program(duration_s=1.0, cpu_s=busy, parallelism=busy)
    factor, log_sd = cores_factor(whole, np.array([there]))
    assert factor[0] == pytest.approx(max(1.0, busy / there))
    assert log_sd[0] == 0.0
    assert replace(whole, cores=None) == whole
