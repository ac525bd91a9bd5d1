"""Laws of small parts whose faults show in no whole."""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.collectors.derive.store import read_recording
from advisor.collectors.derive.summary import summary_lines
from advisor.collectors.derive.work import GivenWork, as_it_ended
from advisor.collectors.errors import bytes_text, duration_text
from advisor.collectors.format.record_files import parse_json
from advisor.collectors.format.recording import TotalWork
from advisor.collectors.format.step_time import Steps
from advisor.collectors.hooks.run_delay import RunDelay
from advisor.collectors.watch.processes import Process
from advisor.planners.core import Operator, Operators, Transformer, Work
from advisor.planners.core.arrays import stage_tables
from advisor.planners.layouts import SearchSpace
from advisor.planners.layouts.problem import splits
from advisor.planners.rightsizing.limits import oom_probability
from advisor.planners.rightsizing.replay import RecordedUsage
from advisor.planners.spot.forecast import ForecastParameters, Library, forecast_of
from advisor.planners.step.calibrate import at_batch, job_features
from advisor.planners.step.describe_unets import DiffusionUNet, diffusion_work
from advisor.planners.systems.working_set import TouchedWindow, borrow, harvest

UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@given(size=st.floats(2**10, 2**45))
def test_a_size_is_told_in_the_largest_unit_that_it_reaches(size: float) -> None:
    number, unit = bytes_text(size).split()
    assert float(number) * UNITS[unit] == pytest.approx(size, rel=0.5 if unit == "KiB" else 0.05,
                                                        abs=UNITS[unit] / 2)  # fmt: skip
    assert unit == next(name for name in ("GiB", "MiB", "KiB") if size >= UNITS[name])


@given(
    data=st.lists(
        st.tuples(st.integers(1, 10**9), st.integers(-50, 10**6), st.integers(0, 10**6)),
        min_size=1, max_size=8,
    ),
    parts=st.integers(1, 4),
)  # fmt: skip
def test_ticks_taken_in_at_once_are_those_taken_in_one_by_one(
    data: list[tuple[int, int, int]], parts: int
) -> None:
    one, many = Steps(), Steps()
    for steps in (one, many):
        steps.add(1000, 10, 0)
    t_ns = delay = 0
    rows = []
    for wall, waited, wait in data:
        t_ns, delay = t_ns + wall, delay + waited
        rows.append((1000 + t_ns, 10 + delay, wait, wait // 2))
    for t, d, w, v in rows:
        one.add(t, d, 0, w, v)
    size = -(-len(rows) // parts)
    for begin in range(0, len(rows), size):
        columns = [list(column) for column in zip(*rows[begin : begin + size], strict=True)]
        assert many.add_plain(*columns)
    assert many == one


def test_ticks_before_the_first_or_out_of_order_are_not_taken_in_at_once() -> None:
    fresh = Steps()
    assert not fresh.add_plain([5, 9], [0, 0], [0, 0], [0, 0])
    assert fresh == Steps()
    begun = Steps()
    begun.add(10, 0, 0)
    assert not begun.add_plain([20, 20], [0, 0], [0, 0], [0, 0])
    assert begun.count == 0


def _waited_ns() -> int:
    """What all threads of this process have waited for a core, as the kernel counts it."""
    tasks = Path("/proc/self/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[1]) for task in tasks)


def test_a_pool_has_waited_no_longer_than_its_threads_have_since() -> None:
    with BusyThreads(3):
        time.sleep(0.2)  # they take turns, and wait
        delay = RunDelay()
        delay.read_pool()
        first, before = delay.pool_ns, _waited_ns()
        assert 0 <= first <= before
        delay.read_pool()
        assert delay.pool_ns - first <= _waited_ns()
        for _ in range(20):
            delay.read_pool()
        assert delay.pool_ns <= _waited_ns()


class BusyThreads:
    def __init__(self, count: int) -> None:
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self._spin) for _ in range(count)]

    def _spin(self) -> None:
        while not self.ended.is_set():
            sum(range(1000))

    def __enter__(self) -> None:
        for one in self.threads:
            one.start()

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for one in self.threads:
            one.join()


def test_a_quick_reading_of_a_process_looks_at_no_files_and_no_faults(tmp_path: Path) -> None:
    (tmp_path / "read").write_bytes(bytes(10**6))
    (tmp_path / "read").read_bytes()
    process = Process(os.getpid(), Path("/proc"))
    try:
        assert process.read(is_full=False)
        assert process.usage.rss_bytes > 2**20
        assert (process.usage.read_bytes, process.usage.minor_faults) == (0, 0)
        assert process.read(is_full=True)
        assert process.usage.minor_faults > 0
    finally:
        process.close()


@pytest.mark.parametrize(
    ("found", "completed", "facts", "given", "said"),
    [
        (None, 40, {}, GivenWork(), 40),
        (25, 40, {}, GivenWork(), 40),  # what was found was wrong
        (40, 40, {}, GivenWork(), "found"),
        (None, 0, {}, GivenWork(), None),
        (25, 40, {"obeyed": [{}]}, GivenWork(), "found"),  # stopped by us: it says nothing
        (25, 40, {"total_work": [{}]}, GivenWork(), "found"),
        (25, 40, {}, GivenWork(epochs=3.0), "found"),
    ],
)
def test_the_length_of_a_script_that_ended_by_itself_is_what_it_was(
    found: int | None, completed: int, facts: dict[str, Any], given: GivenWork, said: Any
) -> None:
    known = None if found is None else TotalWork.of(found, None, "range(25)", "likely")
    events = cast(Any, SimpleNamespace(completed=completed, facts=facts, clock=0))
    answer = as_it_ended(known, events, given)
    if said == "found" or said is None:
        assert answer is known
    else:
        assert answer is not None
        assert (answer.steps, answer.confidence) == (said, "certain")


def test_a_layout_splits_activations_exactly_where_tensors_are_split() -> None:
    shape = Transformer(layers=8, hidden=64, heads=8, sequence=32, vocabulary=100)
    found = splits(shape, 8, 16, SearchSpace())
    tp = np.asarray(found.tp)
    assert {1, 2, 4, 8} <= set(tp.tolist())
    assert np.array_equal(found.is_sequence_parallel, tp > 1)
    assert np.all(tp * found.dp * found.pp * found.cp == 8)
    assert np.all(found.dp * np.asarray(found.micro_batch) * found.accumulation_steps == 16)


@pytest.mark.parametrize("growth", [0.0, 2.0**20])
def test_the_longer_the_rest_the_likelier_memory_goes_over(growth: float) -> None:
    draw = np.random.default_rng(3)
    memory = 1e9 + np.cumsum(draw.normal(growth, 4e6, 600))
    usage = RecordedUsage(step_s=1.0, cores=np.ones(600), memory_bytes=memory)
    limit = float(memory.max()) * 1.02
    chances = [oom_probability(usage, limit, rest_s=s) for s in (0.5, 1.0, 3.0, 30.0, 300.0, 3e4)]
    assert all(0.0 <= a <= b + 0.02 <= 1.02 for a, b in itertools.pairwise(chances))
    assert chances[-1] > chances[0]
    assert oom_probability(usage, float(memory.max()) - 1.0, rest_s=0.0) == 1.0


@given(age_h=st.floats(0.0, 50.0), ages=st.lists(st.floats(0.0, 50.0), min_size=2, max_size=5))
def test_starts_weigh_by_the_kernel_of_their_age(age_h: float, ages: list[float]) -> None:
    parameters = ForecastParameters(age_floor_h=0.5, age_width=0.8)
    many = len(ages)
    outcome = np.arange(2.0 * many)
    past = Library(
        outcome=outcome, is_up=np.repeat([True, False], many), age_s=3600.0 * np.array(ages * 2)
    )
    found = forecast_of(past, [], True, 3600.0 * age_h, parameters)
    z = [(math.log(one + 0.5) - math.log(age_h + 0.5)) / 0.8 for one in ages]
    kernel = np.array([math.exp(-0.5 * x * x) for x in z])
    if kernel.sum() > 1e-6:  # those that were down weigh nothing
        assert found.mean[0] == pytest.approx(float(kernel @ outcome[:many] / kernel.sum()))


def test_memory_below_the_shortest_window_is_taken_in_proportion_to_its_age() -> None:
    window = TouchedWindow(window_s=8.0, touched_bytes=8e9, resident_bytes=1e10)
    for share in (0.25, 0.5, 1.0):
        found = borrow([window], share * 8e9, fault_s=1e-4)
        assert found is not None
        assert found.age_s == pytest.approx(share * 8.0)
        assert found.borrowed_bytes == pytest.approx(1e10 - share * 8e9)
        assert found.loss_fraction == pytest.approx(1e9 / 4096 * 1e-4)


def test_a_step_is_told_apart_by_its_kinds_of_operators() -> None:
    kinds = {"matmul": (8e9, 4e6), "convolution": (3e9, 2e6), "winograd": (1e9, 1e6),
             "attention": (2e9, 5e6), "reduction": (0.0, 8e6)}  # fmt: skip
    work = Work(
        operators=Operators.of(
            Operator(name=kind, kind=cast(Any, kind), phase="forward", count=2, flop=flop,
                     bytes=moved, fixed_bytes=0.0)
            for kind, (flop, moved) in kinds.items()
        ),
        micro_batch=4, parameters=10, trainable_parameters=10, parameter_bytes=40.0,
        optimizer_state_bytes=0.0, saved_bytes_per_sample=0.0,
    )  # fmt: skip
    for batch in (4, 12):
        found = job_features(at_batch(work, batch))  # of one sample, whatever the batch
        assert found[2] == pytest.approx(2 * 4 / 14)  # convolutions, Winograd's too
        assert found[3] == pytest.approx(2 * 2 / 14)
        assert found[4] == pytest.approx(3 * 8 / 20)
        calls = work.operators.kernels.sum()
        assert found[0] == pytest.approx(math.log(14e9 / 4 / calls) / 1.50)
        assert found[1] == pytest.approx(math.log(14e9 / 20e6) / 0.76)


def test_a_diffusion_step_is_given_noisy_latents_their_noise_and_a_text() -> None:
    model = DiffusionUNet(
        side=16, channels=4, out_channels=4, widths=(32, 64), blocks=1, transformers=(1, 0),
        middle_transformers=1, heads=(2, 2), text_tokens=7, text_width=24,
    )  # fmt: skip
    work = diffusion_work(model, micro_batch=2)
    assert work.input_bytes_per_sample == 4 * (2 * 4 * 16 * 16 + 7 * 24)


def test_memory_is_harvested_up_to_the_most_that_was_held() -> None:
    windows = [
        TouchedWindow(window_s=10.0, touched_bytes=2e9, resident_bytes=8e9),
        TouchedWindow(window_s=100.0, touched_bytes=2e9, resident_bytes=9e9),
        TouchedWindow(window_s=100.0, touched_bytes=2e9, resident_bytes=7e9),
    ]
    found = harvest(windows, fault_s=1e-6, most_loss=1.0)
    assert found is not None
    assert found.resident_bytes == 9e9
    assert found.limit_bytes + found.harvested_bytes == pytest.approx(9e9)


def test_a_record_keeps_fields_as_written_where_it_has_them() -> None:
    payload = b'{"text": "a\\u0007b", "path": "a\\u0007b", "n": 1}'
    found = parse_json(payload, as_written=("path", "absent"))
    assert found["path"] == "a\ab"
    assert found["text"] != "a\ab"
    assert set(found) == {"text", "path", "n"}


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_only_a_stage_alone_has_both_tables(pp: int) -> None:
    for tables in (1, 2):
        shapes, layouts = SimpleNamespace(tables=tables), SimpleNamespace(pp=pp)
        held = stage_tables(cast(Any, shapes), cast(Any, layouts))
        assert held == (tables if pp == 1 else 1)


def test_memory_about_a_level_goes_over_as_often_as_its_noise_does() -> None:
    draw = np.random.default_rng(8)
    level, sigma = 1e9, 1e7
    memory = draw.normal(level, sigma, 100_000)
    limit = level + 3.2 * sigma
    usage = RecordedUsage(
        step_s=1.0, cores=np.ones(100_000), memory_bytes=np.minimum(memory, limit)
    )
    for ticks in (1, 50, 400):
        said = oom_probability(usage, limit, rest_s=float(ticks))
        tried = draw.normal(level, sigma, (4000, ticks)).max(axis=1) > limit
        assert said == pytest.approx(float(tried.mean()), abs=0.05)


def test_a_summary_shows_half_of_the_interval_of_a_step() -> None:
    seen = read_recording(Path(__file__).parent / "golden" / "run-schema-1")
    step = seen.step_time
    assert step is not None
    line = next(line for line in summary_lines(seen) if line.startswith("step "))
    assert f" ±{duration_text((step.high_s - step.low_s) / 2)} " in line
