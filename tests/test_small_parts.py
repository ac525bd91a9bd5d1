"""Laws of small parts whose faults showed in no whole: what mutants survived before these."""

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

from advisor.collectors.derive.profiler_log import ProfilerLog
from advisor.collectors.derive.ranks import _FIRST_STEPS, _after_first_steps
from advisor.collectors.derive.read import _is_finished
from advisor.collectors.derive.store import read_recording
from advisor.collectors.derive.summary import summary_lines
from advisor.collectors.derive.work import GivenWork, as_it_ended
from advisor.collectors.errors import bytes_text, duration_text
from advisor.collectors.format.record_files import parse_json
from advisor.collectors.format.recording import TotalWork
from advisor.collectors.format.step_time import Steps
from advisor.collectors.hooks.chores import _WORK_AT, _WORK_REHEARSED, Chores
from advisor.collectors.hooks.run_delay import RunDelay
from advisor.collectors.hooks.session import Session
from advisor.collectors.hooks.trace.operators import _main_precision, _phase
from advisor.collectors.watch.probes import _mean, _total
from advisor.collectors.watch.processes import Process
from advisor.estimate.ways.data_parallel import _parts
from advisor.estimate.ways.model_parallel import _link_log_sd
from advisor.estimate.ways.recorded_units import _send_s
from advisor.planners.core import Operator, Operators, Transformer, Work
from advisor.planners.core.arrays import stage_tables
from advisor.planners.layouts import SearchSpace
from advisor.planners.layouts.pipeline import _least_sum
from advisor.planners.layouts.problem import splits
from advisor.planners.rightsizing.limits import oom_probability
from advisor.planners.rightsizing.replay import RecordedUsage, _Periods
from advisor.planners.spot.forecast import ForecastParameters, Library, _weights
from advisor.planners.step.calibrate import job_features_at
from advisor.planners.step.describe_networks import DiffusionUNet, diffusion_work
from advisor.planners.systems.hydrozoa import Billing, WorkerScaling, _schedule
from advisor.planners.systems.working_set import TouchedWindow, borrow, harvest
from advisor.rank.group_offers import _places

UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@given(size=st.floats(2**10, 2**45))
def test_a_size_is_told_in_the_largest_unit_that_it_reaches(size: float) -> None:
    number, unit = bytes_text(size).split()
    assert float(number) * UNITS[unit] == pytest.approx(size, rel=0.5 if unit == "KiB" else 0.05,
                                                        abs=UNITS[unit] / 2)  # fmt: skip
    assert unit == next(name for name in ("GiB", "MiB", "KiB") if size >= UNITS[name])


@given(known=st.lists(st.floats(0, 1e12), max_size=5), unknown=st.integers(0, 3))
def test_devices_that_do_not_answer_are_left_out_of_means_and_sums(
    known: list[float], unknown: int
) -> None:
    values = [-1.0] * unknown + known
    assert _mean(values) == pytest.approx(sum(known) / len(known) if known else -1.0)
    assert _total(values) == pytest.approx(sum(known) if known else -1.0)


@pytest.mark.parametrize(
    ("status", "code", "is_finished"),
    [("finished", 0, True), ("finished", 1, False), ("stopped", 0, False), (None, None, False)],
)
def test_a_run_is_finished_that_ended_by_itself_and_well(
    status: str | None, code: int | None, is_finished: bool
) -> None:
    end = {} if status is None else {"status": status, "exit_code": code}
    assert _is_finished(ProfilerLog(end=end)) is is_finished


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


def test_a_save_is_noted_with_its_time_its_waiting_and_its_size(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    state = SimpleNamespace(
        is_released=False, _saves=0, settle=lambda: None, steps=7, failed=pytest.fail,
        loaders=SimpleNamespace(delay=SimpleNamespace(main_ns=lambda: 5_000_000_000)),
        fact=lambda name, **more: told.append({"name": name, **more}),
    )  # fmt: skip
    file = tmp_path / "checkpoint"
    file.write_bytes(bytes(12_345))
    began = time.monotonic_ns() - 2_000_000_000
    Session.saved(cast(Any, state), file, began, 3_500_000_000)
    (fact,) = told
    assert (fact["name"], fact["step"], fact["bytes"]) == ("saved", 7, 12_345)
    assert fact["delay_s"] == pytest.approx(1.5)
    assert 2.0 <= fact["seconds"] < 60.0


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


@given(seed=st.integers(0, 100), stages=st.integers(1, 4))
def test_the_least_sum_is_that_of_every_cut(seed: int, stages: int) -> None:
    """``allowed[i, a, b]``: stage i from edge a to edge b; inf where b is not after a."""
    draw, edges = np.random.default_rng(seed), 6
    after = np.triu(np.ones((edges, edges), bool), 1)
    allowed = np.where(after, draw.uniform(1.0, 9.0, (stages, edges, edges)), np.inf)
    best = math.inf
    limit = 8.0
    for cut in itertools.combinations(range(1, edges - 1), stages - 1):
        ends = [0, *cut, edges - 1]
        times = [allowed[i, a, b] for i, (a, b) in enumerate(itertools.pairwise(ends))]
        if max(times) <= limit:
            best = min(best, sum(times))
    found, cuts = _least_sum(allowed, limit)
    assert found == pytest.approx(best)
    assert not math.isfinite(best) or list(cuts) == sorted(cuts)


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
    past = Library(
        outcome=np.ones(2 * many),
        is_up=np.repeat([True, False], many),
        age_s=3600.0 * np.array(ages * 2),
    )
    (found,) = _weights(past, np.array([True]), np.array([3600.0 * age_h]), parameters)
    z = [(math.log(one + 0.5) - math.log(age_h + 0.5)) / 0.8 for one in ages]
    kernel = np.array([math.exp(-0.5 * x * x) for x in z])
    if kernel.sum() > 1e-6:
        assert found[:many] == pytest.approx(kernel / kernel.sum(), abs=1e-9)
    assert not found[many:].any()


@given(picks=st.lists(st.integers(0, 2), min_size=1, max_size=6), seed=st.integers(0, 50))
def test_a_resize_is_paid_on_the_larger_count(picks: list[int], seed: int) -> None:
    draw = np.random.default_rng(seed)
    scaling = WorkerScaling(workers=(1, 4, 9), step_s=0.1, sample_s=0.1, sync_s=(0.0, 0.0, 0.0))
    tables = [(draw.uniform(10, 20, 3), draw.uniform(1, 9, 3)) for _ in picks]
    pauses = draw.uniform(1, 2, (3, 3))
    found = _schedule(tables, tuple(picks), scaling, Billing(price_usd_per_h=3600.0), pauses)
    lengths = [float(time[k]) for (time, _), k in zip(tables, picks, strict=True)]
    usd = sum(scaling.workers[k] * s for k, s in zip(picks, lengths, strict=True))
    for before, after in itertools.pairwise(picks):
        if before != after:
            lengths.append(pauses[before, after])
            usd += max(scaling.workers[before], scaling.workers[after]) * pauses[before, after]
    assert found.time_s == pytest.approx(sum(lengths))
    # Each uninterrupted rental is rounded up to whole seconds, of which there are at most as many
    # a worker as phases.
    assert usd - 1e-6 <= found.cost_usd <= usd + 9 * len(picks)


def test_memory_below_the_shortest_window_is_taken_in_proportion_to_its_age() -> None:
    window = TouchedWindow(window_s=8.0, touched_bytes=8e9, resident_bytes=1e10)
    for share in (0.25, 0.5, 1.0):
        found = borrow([window], share * 8e9, fault_s=1e-4)
        assert found is not None
        assert found.age_s == pytest.approx(share * 8.0)
        assert found.borrowed_bytes == pytest.approx(1e10 - share * 8e9)
        assert found.loss_fraction == pytest.approx(1e9 / 4096 * 1e-4)


@pytest.mark.parametrize(
    ("touches", "is_inside", "said"),
    [("model", False, "optimizer"), ("model", True, "forward"), ("data", False, "forward"),
     ("both", False, "forward"), ("nothing", False, "forward")],
)  # fmt: skip
def test_what_touches_the_model_alone_outside_of_modules_belongs_to_the_update(
    touches: str, is_inside: bool, said: str
) -> None:
    keys = {"model": [1], "data": [9], "both": [1, 9], "nothing": []}[touches]
    call = SimpleNamespace(
        is_backward=False, is_optimizer=False, is_inside_module=is_inside,
        reads=[(key, 8) for key in keys], writes=[],
    )  # fmt: skip
    assert _phase(cast(Any, call), {1, 2}) == said


@pytest.mark.parametrize("is_rdma", [True, False])
@pytest.mark.parametrize("table", [None, object()])
def test_only_described_layouts_over_rdma_have_the_links_errors_in_their_own(
    is_rdma: bool, table: object
) -> None:
    case = SimpleNamespace(
        constants=SimpleNamespace(scaling=SimpleNamespace(log_sd_communication=0.5))
    )
    on = SimpleNamespace(is_rdma=is_rdma, problem=SimpleNamespace(layer_table=table))
    added = _link_log_sd(cast(Any, case), cast(Any, on), {"network": np.array([0.3])})
    assert added == pytest.approx(0.0 if is_rdma and table is None else 0.15)


@given(rows=st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=12))
def test_places_are_one_where_provider_region_and_pricing_are(
    rows: list[tuple[int, int, int]],
) -> None:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)

    class Offers(SimpleNamespace):
        def __len__(self) -> int:
            return len(rows)

    offers = Offers(type_index=columns[:, 0], region=columns[:, 1], pricing=columns[:, 2])
    types = SimpleNamespace(provider=np.array(["a", "b", "c", "d"]))
    found = _places(cast(Any, offers), cast(Any, types)).tolist()
    assert len(found) == len(rows)
    for (one, at), (other, to) in itertools.combinations(zip(rows, found, strict=True), 2):
        assert (one == other) == (at == to)


def test_what_a_data_parallel_step_waits_for_adds_up_to_it() -> None:
    rows = 50
    draw = np.random.default_rng(2)
    one = SimpleNamespace(**{
        name: draw.uniform(0.0, 1.0, rows)
        for name in ("compute", "memory", "launch", "optimizer_s", "optimizer_launch_s")
    })  # fmt: skip
    exposed, straggler = draw.uniform(0.0, 2.0, (2, rows))
    exposed[:10] = straggler[:10] = 0.0
    working = one.compute + one.memory + one.launch + one.optimizer_s
    scaled = SimpleNamespace(
        step_s=working + exposed + straggler, exposed_s=exposed, straggler_s=straggler
    )
    fit = SimpleNamespace(micro_batch=np.ones(rows), accumulation_steps=np.ones(rows))
    case = SimpleNamespace(waiting_s=lambda step, *_: 0.1 * step)
    parts = _parts(cast(Any, case), cast(Any, one), cast(Any, fit), cast(Any, scaled),
                   np.zeros(rows, np.int64))  # fmt: skip
    assert parts["input"] == pytest.approx(0.1 * scaled.step_s)
    assert parts["network"] == pytest.approx(exposed + straggler, abs=1e-12)
    assert parts["compute"] == pytest.approx(one.compute)
    starts = np.minimum(one.optimizer_launch_s, one.optimizer_s)
    assert parts["launch"] == pytest.approx(one.launch + starts)
    assert parts["memory"] == pytest.approx(one.memory + one.optimizer_s - starts)
    # A step that is all network leaves nothing to the device.
    alone = SimpleNamespace(step_s=exposed, exposed_s=exposed * 2, straggler_s=straggler)
    parts = _parts(cast(Any, case), cast(Any, one), cast(Any, fit), cast(Any, alone),
                   np.zeros(rows, np.int64))  # fmt: skip
    assert parts["network"] == pytest.approx(exposed)
    assert parts["compute"][10:] == pytest.approx(0.0)


@pytest.mark.parametrize("is_rehearsed", [False, True])
def test_a_recorder_describes_the_program_once_at_the_first_of_its_chores(
    is_rehearsed: bool,
) -> None:
    at = _WORK_REHEARSED if is_rehearsed else _WORK_AT
    described: list[int] = []
    looked: list[int] = []
    state = SimpleNamespace(
        rehearsal=object() if is_rehearsed else None, optimizer_made_ns=0, rank=0,
        loaders=SimpleNamespace(flush=lambda: None),
    )  # fmt: skip
    for step in range(1, max(at) + 1):
        chores = SimpleNamespace(
            _state=state, _device_clock=None, due_step=0, _deep_wanted=[],
            _describe=lambda _, step=step: described.append(step),
            _find_work=looked.append, _describe_communication=lambda: None,
        )  # fmt: skip
        Chores._by_count(cast(Any, chores), step, was_traced=False)
    assert described == [at[0]]
    assert looked == sorted(at)


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
    for batch in (4.0, 12.0):
        (found,) = job_features_at(work, np.array([batch]))
        assert found[2] == pytest.approx(2 * 4 / 14)  # convolutions, Winograd's too
        assert found[3] == pytest.approx(2 * 2 / 14)
        assert found[4] == pytest.approx(3 * 8 / 20)
        calls = work.operators.kernels.sum()
        assert found[0] == pytest.approx(math.log(14e9 * batch / 4 / calls) / 1.50)
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


def test_the_precision_of_a_step_is_that_of_most_of_its_products() -> None:
    def call(name: str, dtype: str, flop: float) -> SimpleNamespace:
        return SimpleNamespace(name=name, dtype=dtype, flop=flop)

    calls = [call("aten::mm", "bf16", 0.4), call("aten::mm", "fp32", 0.5),
             call("aten::bmm", "bf16", 0.4), call("aten::add", "fp32", 9.0)]  # fmt: skip
    assert _main_precision(cast(Any, calls)) == "bf16"
    assert _main_precision(cast(Any, calls[-1:])) == "fp32"


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_only_a_stage_alone_has_both_tables(pp: int) -> None:
    for tables in (1, 2):
        shapes, layouts = SimpleNamespace(tables=tables), SimpleNamespace(pp=pp)
        held = stage_tables(cast(Any, shapes), cast(Any, layouts))
        assert held == (tables if pp == 1 else 1)


@given(counts=st.lists(st.integers(0, 3 * _FIRST_STEPS), unique=True, max_size=6))
def test_what_a_rank_exchanges_is_counted_after_its_first_steps(counts: list[int]) -> None:
    records = [SimpleNamespace(steps=steps) for steps in sorted(counts)]
    found = _after_first_steps(cast(Any, records))
    later = [one for one in records if one.steps > _FIRST_STEPS]
    assert found == (later if len(later) >= 2 else [])


@given(nodes=st.integers(1, 3), ranks=st.integers(1, 8), tp=st.sampled_from([1, 2, 4]))
def test_activations_are_handed_there_and_back_over_the_link_that_is_there(
    nodes: int, ranks: int, tp: int
) -> None:
    fleet = SimpleNamespace(
        per_node=np.array([4]), network_bytes_per_s=np.array([1e9]),
        intra_bytes_per_s=np.array([5e9]), intra_latency_s=np.array([1e-6]),
        network_latency_s=np.array([3e-5]),
    )  # fmt: skip
    latency, sample_s = _send_s(
        cast(Any, SimpleNamespace(fleet=fleet)), np.array([0]), np.array([nodes]),
        np.array([ranks]), tp, 1e6,
    )  # fmt: skip
    # Ranks of one machine share its interface; tensor-parallel ranks send a part each.
    sharing = max(min(ranks * tp, 4) // tp, 1)
    one_way = 1e6 / tp / 5e9 if nodes == 1 else 1e6 * sharing / 1e9
    assert sample_s == pytest.approx(2 * one_way)
    assert latency == pytest.approx(2e-6 if nodes == 1 else 6e-5)


@given(periods=st.integers(0, 50), period_s=st.floats(0.01, 1.0))
def test_periods_of_shared_runs_begin_one_after_another(periods: int, period_s: float) -> None:
    state = SimpleNamespace(_begun=periods, _period_s=period_s, _going=[object()])
    assert _Periods.next_event(cast(Any, state)) == pytest.approx(periods * period_s)
    state._going = []
    assert math.isinf(_Periods.next_event(cast(Any, state)))


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
