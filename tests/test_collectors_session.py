"""The hooks' bookkeeping: whose waiting is whose, threads, what scripts make and throw away."""

from __future__ import annotations

import ast
import gc
import importlib.util
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from collecting import give_order, hooked
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advisor.collectors import hooks as hooks_package
from advisor.collectors.derive.read import read_events
from advisor.collectors.format.events import Events, ticks_in
from advisor.collectors.format.record_files import parse
from advisor.collectors.hooks import boot, run_delay
from advisor.collectors.hooks import format as fmt
from advisor.collectors.hooks.chores import Chores
from advisor.collectors.hooks.run_delay import RunDelay
from advisor.collectors.hooks.session import Session
from advisor.collectors.hooks.trace import deep
from advisor.collectors.hooks.writer import Writer


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The main thread's waiting for a core, told by the test. [ns]."""
    told = [0]
    monkeypatch.setattr(RunDelay, "main_ns", lambda _: told[0])
    return told


def test_what_was_waited_before_the_first_step_belongs_to_no_step(
    tmp_path: Path, waited: list[int]
) -> None:
    waited[0] = 3_000_000_000  # imports on a busy machine
    with hooked(tmp_path) as hooks:
        for _ in range(30):
            hooks.session.marked()
        steps = hooks.events.steps
    assert steps.corrected_ns == steps.wall_ns


def test_what_was_waited_between_epochs_belongs_to_no_ordinary_step(
    tmp_path: Path, waited: list[int]
) -> None:
    with hooked(tmp_path) as hooks:
        for _ in range(4):
            for _ in range(20):
                hooks.session.marked()
            time.sleep(0.03)  # validation: longer than the delay is thought fresh
            waited[0] += 20_000_000
            hooks.session.loaders.has_begun = True
        hooks.session.marked()
        steps = hooks.events.steps
    assert len(steps.boundaries()) == 4
    assert steps.corrected_ns == steps.wall_ns


def test_threads_lose_no_record_to_each_other(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path))
    each = 4000

    def write(number: int) -> None:
        for index in range(each):
            if number % 2:
                writer.step(index, number, 0, 2, 8, 0, 0, 0, 0, 0, 0)
            else:
                writer.write(fmt.POOL, fmt.POOL_PAYLOAD.pack(index, number, 0, 0, 0))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    writer.close()
    (path,) = tmp_path.glob("ev-*.bin")
    records = list(parse(path.read_bytes()))
    kinds = [kind for kind, _, _ in records]
    several = sum(len(ticks_in(*one[:2])) for one in records if one[0] == fmt.STEPS)
    assert kinds.count(fmt.STEP) + several == 2 * each
    assert (kinds.count(fmt.POOL), writer.lost) == (2 * each, 0)


Loop = list[tuple[str, int]]


@settings(max_examples=settings().max_examples // 8, phases=(Phase.generate,))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["step", "step", "step", "step", "save", "epoch", "backward", "other"]
            ),
            # No two things happen at one moment of the clock.
            st.integers(1, 3_000_000) | st.integers(1, 60_000_000),
        ),
        min_size=30,
        max_size=150,
    )
)
def test_steps_that_are_only_noted_are_recorded_like_others(
    tmp_path_factory: pytest.TempPathFactory, loop: Loop
) -> None:
    quick, noted = events_of(tmp_path_factory.mktemp("quick"), loop, is_quick=True)
    slow, none = events_of(tmp_path_factory.mktemp("slow"), loop, is_quick=False)
    assert quick.steps == slow.steps
    for name in ("completed", "intervals", "backwards", "batches", "samples"):
        assert getattr(quick, name) == getattr(slow, name)
    assert quick.loaders == slow.loaders
    assert quick.fact("released") == slow.fact("released")
    assert none == 0
    event(f"noted: {noted > 10}")


def events_of(folder: Path, loop: Loop, *, is_quick: bool) -> tuple[Events, int]:
    """Train by ``loop`` on a clock of the test's own; return events, and steps only noted."""
    now, noted = [10**9], 0
    layer = nn.Linear(4, 1)
    loader = DataLoader(TensorDataset(torch.randn(4000, 4)), batch_size=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic_ns", lambda: now[0])
        patch.setattr(time, "thread_time_ns", lambda: 0)
        patch.setattr(RunDelay, "main_ns", lambda _: 0)
        patch.setattr(RunDelay, "pool_is_due", lambda *_: False)
        patch.setattr(Chores, "_begin_deep", lambda *_: None)
        if not is_quick:
            patch.setattr(Session, "be_quick", lambda *_: None)
        with hooked(folder) as hooks:
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
            batches = iter(loader)
            for what, pause_ns in [("step", 10**6)] * 20 + loop:
                now[0] += pause_ns
                if what == "epoch":
                    batches = iter(loader)
                elif what == "save":
                    torch.save(1, folder / "saved.pt")
                elif what == "other":
                    next(batches)
                else:
                    (x,) = next(batches)
                    layer(x).sum().backward()
                    if what == "step":
                        optimizer.step()
                noted += bool(hooks.session._noted)
            path = next(folder.glob("ev-*.bin"))
        return read_events(path), noted


@pytest.mark.parametrize(("seconds", "traces"), [(0.2, 3), (0.6, 2), (2.0, 1)])
def test_a_step_that_takes_long_to_trace_is_not_traced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, traces: int
) -> None:
    """LBFGS evaluates its loss twenty times a step: tracing three of them left none to time."""

    class Slow:
        def end(self) -> dict[str, Any]:
            return {"duration_ns": int(seconds * 1e9)}

        def optimizer_runs(self, _: bool) -> None:
            pass

    monkeypatch.setattr(deep.DeepTrace, "begin", lambda *_: Slow())
    with hooked(tmp_path) as hooks:
        for _ in range(20):
            hooks.session.marked()
        assert len(hooks.events.facts["deep_step"]) == traces


def test_a_thread_that_was_born_meanwhile_has_waited_since_its_birth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delays = {"1": 5, "2": 30}
    monkeypatch.setattr(run_delay, "_listdir", lambda _: list(delays))
    monkeypatch.setattr(
        run_delay, "_open", lambda path: int(path.split("/")[-2]) if "task" in path else 0
    )
    monkeypatch.setattr(run_delay, "_delay", lambda number: delays.get(str(number), 0))
    monkeypatch.setattr("os.close", lambda _: None)
    monkeypatch.setattr("os.getpid", lambda: 1)
    seen = RunDelay()
    seen.read_pool()
    assert seen.others_ns == 30  # since the process began
    delays |= {"2": 40, "3": 7}
    seen.read_pool()
    assert seen.others_ns == 30 + 10
    delays |= {"4": 60}
    seen.read_pool()
    assert seen.others_ns == 30 + 10 + 60


def test_letting_go_works_in_a_thread_that_trains(tmp_path: Path) -> None:
    with hooked(tmp_path) as hooks:
        give_order(tmp_path, fmt.ACTION_DETACH, 5)

        def train() -> None:
            for _ in range(30):
                hooks.session.marked()

        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        assert hooks.events.fact("obeyed")["steps"] == 5
        assert hooks.events.completed == 5


def test_hooks_let_go_when_the_profiler_has_been_silent_for_a_minute(tmp_path: Path) -> None:
    with hooked(tmp_path) as hooks:
        beat_ns = time.monotonic_ns() - 61_000_000_000
        (tmp_path / fmt.CONTROL_FILE).write_bytes(fmt.CONTROL_PAYLOAD.pack(0, 0, beat_ns))
        for _ in range(5):
            hooks.session.marked()
        assert hooks.events.fact("obeyed")["steps"] == 1


def test_optimizers_and_loaders_that_are_thrown_away_are_let_go(tmp_path: Path) -> None:
    """As in meta-learning: one for every task, and a step costs as little as the first."""
    layer = nn.Linear(4, 1)
    data = TensorDataset(torch.randn(8, 4))
    with hooked(tmp_path) as hooks:
        outer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(200):
            inner = torch.optim.SGD(layer.parameters(), lr=0.1)
            for (x,) in DataLoader(data, batch_size=4):
                inner.zero_grad()
                layer(x).sum().backward()
                inner.step()
            outer.step()
            del inner
        gc.collect()
        session = hooks.session
        assert len(session.optimizers._seen) < 10
        assert len(session.loaders._known) < 10
        events = hooks.events
    # Two fetches and the loader's end each were recorded, whoever was forgotten in between.
    assert len(events.loaders) == 200
    assert sum(counts.samples for counts in list(events.loaders.values())[1:]) == 199 * 8


def test_a_spec_that_is_only_asked_for_leaves_the_patch_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries ask whether torch is there long before anybody imports it, if ever."""
    (tmp_path / "late_framework.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    patched: list[Any] = []
    finder = boot._Finder(None, {"late_framework": patched.append})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    for _ in range(2):
        assert importlib.util.find_spec("late_framework") is not None
    assert patched == []
    module = importlib.import_module("late_framework")
    assert patched == [module]
    monkeypatch.delitem(sys.modules, "late_framework")
    importlib.import_module("late_framework")
    assert patched == [module]


def test_a_running_torch_profiler_keeps_its_trace_to_itself(tmp_path: Path) -> None:
    layer = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        layer(torch.randn(4, 8)).sum().backward()
        optimizer.step()

    with hooked(tmp_path) as hooks:
        with torch.profiler.profile():
            for _ in range(12):
                step()
        assert "deep_step" not in hooks.events.facts
        end = time.monotonic() + 30
        while "deep_step" not in hooks.events.facts and time.monotonic() < end:
            step()
        events = hooks.events
    assert "deep_step" in events.facts
    assert "failure" not in events.facts


def test_marks_with_numbers_of_other_kinds_are_understood(tmp_path: Path) -> None:
    with hooked(tmp_path) as hooks:
        for size in (4, 8, 8, 4):
            hooks.session.marked(torch.tensor(size), 12.0)  # type: ignore[arg-type]
        events = hooks.events
    assert events.fact("marker")["samples"] == 4
    assert events.fact("total_work")["steps"] == 12
    assert (events.samples, events.intervals) == (20, 3)


HOOKS = sorted(Path(hooks_package.__file__).parent.rglob("*.py"))
INJECTED = sorted((Path(hooks_package.__file__).parents[1] / "inject").glob("*.py"))


@pytest.mark.parametrize("path", [*HOOKS, *INJECTED], ids=lambda path: path.name)
def test_the_hooks_are_python_3_8(path: Path) -> None:
    """They run in whatever interpreter the script uses; annotations must not be evaluated."""
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    if any(isinstance(node, ast.AnnAssign) or _is_annotated(node) for node in ast.walk(tree)):
        first = [node.module for node in tree.body if isinstance(node, ast.ImportFrom)][:1]
        assert first == ["__future__"] or path.name == "sitecustomize.py"
    later = {"removeprefix", "removesuffix", "pairwise", "bit_count"}
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not used & later
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        is_zip = isinstance(call.func, ast.Name) and call.func.id == "zip"
        assert not (is_zip and call.keywords), "zip(strict=...) is of Python 3.10"


def _is_annotated(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.returns is not None
