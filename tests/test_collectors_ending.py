"""When a recording ends and how, on a clock that the test turns; what is said meanwhile."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from advisor.collectors.format.contention import Corrected
from advisor.collectors.format.step_time import Mean
from advisor.collectors.hooks.format import REHEARSED
from advisor.collectors.run import RecordingPlan, ending, monitor
from advisor.collectors.run.progress import fitted, step_parts


class Script:
    """What a monitor would say of a script."""

    def __init__(self, **facts: Any) -> None:
        self.count = facts.pop("count", 0)
        self.first_ns = facts.pop("first_ns", 0)
        self.expects_steps = self.has_obeyed = self.expects_trace = False
        self.trainer: Any = SimpleNamespace()
        self.mean: Mean | None = None
        self.waiting_for = "the first step"
        self.__dict__.update(facts)

    def steps(self) -> int:
        return int(self.count)

    def first_step_ns(self) -> int:
        return int(self.first_ns)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock, turned by the test. [s]."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "monotonic_ns", lambda: int(now[0] * 1e9))
    return now


def limits(script: Script, **settings: Any) -> ending.RecordingLimits:
    plan = RecordingPlan(run="/x", command=("x",), limit_s=60.0, **settings)
    return ending.RecordingLimits(plan, script)  # type: ignore[arg-type]


def test_the_limit_counts_from_the_first_step(clock: list[float]) -> None:
    script = Script(expects_steps=True)
    assert limits(script).left_s(100.0) == 500.0  # imports and compilation have ten minutes
    assert limits(script).reason(599.0) == ""
    assert limits(script).reason(600.0) == "10 min are over"
    script.first_ns = int(980e9)
    assert limits(script).left_s(590.0) == 40.0
    clock[0] += 41.0
    assert limits(script).reason(631.0) == "60 s are over"


def test_a_traced_step_is_waited_for_beyond_the_limit_but_not_for_ever(clock: list[float]) -> None:
    """What it shows answers for any GPU; steps that were asked for exactly are counted exactly."""
    script = Script(first_ns=int(clock[0] * 1e9), count=2, expects_trace=True)
    clock[0] += 61.0
    assert limits(script).reason(70.0) == ""
    assert limits(script).until(70.0) == "until a step is traced, 299 s at most"
    assert limits(script, limit_steps=2).reason(70.0) == "2 steps"
    assert limits(script, limit_steps=9).reason(70.0) == "60 s are over"
    script.expects_trace = False  # it has been
    assert limits(script).reason(70.0) == "60 s are over"
    script.expects_trace = True
    clock[0] += 300.0
    assert limits(script).reason(370.0) == "60 s are over"


def test_a_rehearsal_has_steps_to_come_before_its_framework_is_imported(tmp_path: Path) -> None:
    """On a busy machine the import alone takes longer than a short limit."""
    watched = monitor.Monitor(tmp_path)
    for kind, expects in (("", False), (REHEARSED, True)):
        (tmp_path / f"ev-1-2{kind}.bin").write_bytes(b"")
        watched.update()
        assert watched.expects_steps == expects


def test_a_program_without_steps_has_its_limit_from_the_start() -> None:
    assert limits(Script()).reason(59.0) == ""
    assert limits(Script()).reason(61.0) == "60 s are over"


def test_what_is_waited_for_is_said(clock: list[float]) -> None:
    time = Corrected(raw_s=0.02, corrected_s=0.01, raw_wait_s=0.0, wait_s=0.0, half_width_s=0.0)
    mean = Mean(time=time, half_width_s=0.001, steps=40, warmup_steps=1)
    script = Script(first_ns=int(990e9), count=41)
    assert limits(Script()).until(10.0) == "until the first step, 50 s at most"
    script.mean, script.waiting_for = mean, "±5 %"
    assert limits(script).until(30.0) == "until ±5 %, 50 s at most"
    assert limits(script, limit_steps=90).until(30.0) == "until step 90, 50 s at most"
    assert step_parts(41, mean) == ["step 41", "10.0 ms ±10 %"]
    script.waiting_for = ""
    assert limits(script).reason(30.0) == "the step time has settled"
    assert limits(script, limit_steps=90).reason(30.0) == ""


@pytest.mark.parametrize("width", [1, 20, 69, 109, 1000])
def test_a_line_fits_the_terminal_as_far_as_its_first_part_does(width: int) -> None:
    parts = ["120 s", "step 12345", "11.2 ms ±7 %", "until ±5 %, 9 s at most", "0.4 cores"]
    line = fitted(parts, width)
    assert line == parts[0] or len(line) <= width
    assert " · ".join(parts).startswith(line)


def escalation(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> tuple[ending.Escalation, list[int]]:
    sent: list[int] = []
    monkeypatch.setattr(ending, "send_signal", lambda _, number: sent.append(number))
    tree = SimpleNamespace(processes={1: None}, refresh=lambda: None, is_alive=lambda _: True)
    return ending.Escalation(tree, script, 5.0), sent  # type: ignore[arg-type]


def seconds_until_signals(script: Script, clock: list[float], monkeypatch: Any) -> dict[int, int]:
    asked, sent = escalation(script, monkeypatch)
    asked.begin(1)
    when = {}
    for second in range(60):
        asked.go_on()
        when.update({number: second for number in sent if number not in when})
        clock[0] += 1.0
    return when


def test_a_script_that_does_not_hear_is_ended(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    term, kill = signal.SIGTERM, signal.SIGKILL
    assert seconds_until_signals(Script(), clock, monkeypatch) == {term: 6, kill: 11}
    leaving = Script(has_obeyed=True)
    assert seconds_until_signals(leaving, clock, monkeypatch) == {term: 31, kill: 36}
    nobody = Script(trainer=None)
    assert seconds_until_signals(nobody, clock, monkeypatch) == {term: 1, kill: 6}


def test_ranks_on_their_way_to_a_common_step_are_waited_for(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(count=10)
    asked, sent = escalation(script, monkeypatch)
    asked.begin(40)
    for _ in range(25):
        asked.go_on()
        clock[0] += 1.0
        script.count += 1
    assert sent == []
    for _ in range(12):  # it hangs
        asked.go_on()
        clock[0] += 1.0
    assert sent == [signal.SIGTERM, signal.SIGKILL]
