"""The one correction: neighbours that are put into a run are taken out of all of its times."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.collectors.derive.read import recording
from advisor.collectors.format import contention
from advisor.collectors.format.contention import Curve, Stretch, correct, own_share
from advisor.collectors.format.record_files import Appender
from advisor.collectors.format.recording import Recording
from advisor.collectors.hooks import format as fmt

MS = 1_000_000
SECOND = 1_000_000_000

times_ns = st.floats(0.0, 1e12)
COLD = contention.LEFT_OVER
pytestmark = pytest.mark.usefixtures("warm_caches")


@given(st.builds(
    Stretch, wall_ns=times_ns, delay_ns=times_ns, pool_ns=times_ns, kept_ns=times_ns,
    wait_ns=times_ns, wait_delay_ns=times_ns, workers_ns=times_ns, active_ns=times_ns,
    chain_ns=times_ns, unseen_ns=times_ns, awaited_ns=times_ns, blocked_ns=times_ns,
    least_ns=times_ns,
))  # fmt: skip
def test_no_time_is_negative_or_longer_than_it_was(seen: Stretch) -> None:
    time = correct(seen)
    slack = 1e-9 * (1.0 + time.raw_s)
    assert 0.0 <= time.wait_s <= time.corrected_s + slack
    assert time.corrected_s <= time.raw_s + slack
    assert seen.active_ns or time.wait_s <= time.raw_wait_s + slack
    assert time.raw_s == pytest.approx(seen.wall_ns / 1e9)
    assert time.half_width_s >= 0.0
    assert time.corrected_s >= min(seen.least_ns, seen.wall_ns) / 1e9 - slack


@given(
    work=st.floats(1e8, 1e10), wait=st.floats(0.0, 1e10), factor=st.floats(0.1, 10.0),
    delay=st.floats(0.0, 1e10), inside=st.floats(0.0, 1e10), kept=st.floats(0.0, 1.0),
)  # fmt: skip
def test_a_stretch_is_corrected_in_any_unit(
    work: float, wait: float, factor: float, delay: float, inside: float, kept: float
) -> None:
    """Without workers the equations are linear: k times as long is k times as long corrected."""

    def times(k: float) -> tuple[float, float, float]:
        whole = delay + inside
        now = correct(Stretch(
            wall_ns=k * (work + wait + whole), delay_ns=k * whole, kept_ns=k * kept * whole,
            wait_ns=k * (wait + inside), wait_delay_ns=k * inside,
        ))  # fmt: skip
        return now.corrected_s, now.wait_s, now.half_width_s

    assert times(factor) == pytest.approx([factor * one for one in times(1.0)], rel=1e-6, abs=1e-9)
    # What is kept stays; the rest goes, where it was.
    stays = work + wait + kept * (delay + inside), wait + kept * inside
    assert times(1.0)[:2] == pytest.approx([one / 1e9 for one in stays], rel=1e-6, abs=1e-9)


def test_what_was_taken_out_widens_and_leaves_the_caches_cold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From nothing to twice what is usual is left over, however often the job had to wait."""
    monkeypatch.setattr(contention, "LEFT_OVER", COLD)
    for waits in (0.25, 1.0, 4.0, 100.0):
        now = correct(Stretch(wall_ns=(1 + waits) * 1e9, delay_ns=waits * 1e9))
        assert now.corrected_s == pytest.approx(1 / (1 + COLD * waits))
        assert now.corrected_s + now.half_width_s == pytest.approx(1.0)
    assert correct(Stretch(wall_ns=5e9)).half_width_s == 0.0
    assert correct(Stretch(wall_ns=5e9, unseen_ns=1e9)).half_width_s == pytest.approx(1.0)


@given(threads=st.integers(1, 9), cores=st.integers(1, 9), others=st.integers(0, 9))
def test_who_has_more_threads_than_cores_gains_no_more_than_his_share(
    threads: int, cores: int, others: int
) -> None:
    """All run all the time, and all of a thread's waiting was seen: some of it stays his own."""
    share = min(1.0, cores / (threads + others))
    alone = min(1.0, cores / threads)
    seen = Stretch(
        wall_ns=1e9, delay_ns=1e9 * (1.0 - share), least_ns=1e9 * share * threads / cores
    )
    assert correct(seen).corrected_s >= share / alone - 1e-9


def test_a_pool_thread_waits_for_part_of_the_time_at_most() -> None:
    time = correct(Stretch(wall_ns=1e9, pool_ns=9e9))
    assert time.corrected_s == pytest.approx(0.05)


@given(
    cpu=st.floats(1e9, 1e10), delay=st.floats(0.0, 1e10), blocked=st.floats(0.0, 1e10),
    share=st.floats(0.0, 0.8),
)  # fmt: skip
def test_a_pool_that_sleeps_at_its_barriers_takes_what_its_main_thread_computed(
    cpu: float, delay: float, blocked: float, share: float
) -> None:
    """The main thread is blocked while the others wait for a core: chance has no say in it."""
    wall, waited = cpu + delay + blocked, share * blocked
    told = Stretch(wall_ns=wall, delay_ns=delay, pool_ns=waited, blocked_ns=blocked)
    assert correct(told).corrected_s == pytest.approx((wall - delay - waited) / 1e9)
    # Where nobody waited for a core the main thread slept for reasons of its own.
    alone = Stretch(wall_ns=wall, delay_ns=delay, blocked_ns=blocked)
    assert correct(alone).corrected_s == pytest.approx((cpu + blocked) / 1e9)
    # Another process is waited for like a thread: a search's fits, say.
    search = Stretch(wall_ns=wall, delay_ns=delay, awaited_ns=waited, blocked_ns=blocked)
    assert correct(search) == correct(told)


def fork_join(seed: int, waits: tuple[float, float], spins: bool) -> tuple[Stretch, float]:
    """Simulate two threads that meet at barriers on a core each, beside a neighbour on each.

    The neighbour takes its core for a slice at a time whenever it has not had ``waits`` of the
    time; who spins at a barrier keeps its core wanted, who sleeps does not. Returns what the
    kernel would tell, and the quiet time [ns].
    """
    rng = random.Random(seed)
    tick, slices, work = 50_000, 60, 100  # ns, ticks, ticks from barrier to barrier
    done, regions = [0, 0], 0
    cpu, delay, blocked = [0, 0], [0, 0], 0
    away = [rng.randrange(slices), rng.randrange(slices)]
    now = 0
    while regions < 400:
        now += 1
        wants = [spins or done[i] < work for i in (0, 1)]
        for i in (0, 1):
            if away[i] == 0 and rng.random() < waits[i] / (1 - waits[i]) / slices:
                away[i] = slices
            runs = away[i] == 0
            away[i] -= not runs
            if runs and wants[i]:
                cpu[i] += 1
                done[i] = min(work, done[i] + 1)
            elif wants[i]:
                delay[i] += 1
        blocked += not wants[0]
        if min(done) == work:
            done, regions = [0, 0], regions + 1
    seen = Stretch(
        wall_ns=now * tick, delay_ns=delay[0] * tick, pool_ns=delay[1] * tick,
        blocked_ns=blocked * tick,
    )  # fmt: skip
    return seen, 400.0 * work * tick


@pytest.mark.parametrize("spins", [True, False])
@pytest.mark.parametrize("waits", [(0.1, 0.1), (0.5, 0.0), (0.0, 0.5), (0.3, 0.1), (0.1, 0.3)])
def test_a_pool_beside_neighbours_takes_what_it_takes_alone(
    waits: tuple[float, float], spins: bool
) -> None:
    """Against a simulation of what the threads do."""
    for seed in range(3):
        seen, quiet_ns = fork_join(seed, waits, spins)
        now = correct(seen)
        assert now.corrected_s == pytest.approx(quiet_ns / 1e9, rel=0.1)
        assert abs(now.corrected_s - quiet_ns / 1e9) <= now.half_width_s + 1e-3


def test_where_both_wait_half_of_the_time_the_interval_says_how_little_is_known() -> None:
    seen, quiet_ns = fork_join(0, (0.5, 0.5), False)
    now = correct(seen)
    assert abs(now.corrected_s - quiet_ns / 1e9) <= now.half_width_s


@given(st.lists(st.builds(Stretch, wall_ns=times_ns, blocked_ns=times_ns, chain_ns=times_ns)))
def test_stretches_add_up_part_by_part(parts: list[Stretch]) -> None:
    whole = contention.total(parts)
    for field in dataclasses.fields(Stretch):
        each = [getattr(one, field.name) for one in parts]
        assert getattr(whole, field.name) == pytest.approx(sum(each))


def test_what_a_compilers_threads_waited_is_taken_out_of_the_start(tmp_path: Path) -> None:
    """The main thread sleeps meanwhile: nothing but its pool says that a core was missing."""
    script = Script(tmp_path / "run")
    script.now += 1000 + 3000  # 3 s of the start are a compiler's thread waiting for a core
    payload = fmt.POOL_PAYLOAD.pack(SECOND + MS * 4000, 0, 0, 3000 * MS, 400 * MS)
    script.tick(1, (0, 0), begins=True)
    script.events.write(fmt.POOL, payload)
    for index in range(2, 20):
        script.passes(10, 0)
        script.tick(index, (0, 0), begins=False)
    seen = script.end()
    assert seen.startup_raw_s == pytest.approx(4.0)
    assert seen.startup_s == pytest.approx(1.0)


def test_steps_that_computed_did_not_only_wait() -> None:
    """Old recordings do not say that the loop waited for its core inside the loader."""
    time = correct(Stretch(wall_ns=75e6, delay_ns=60e6, wait_ns=61e6))
    assert time.corrected_s == pytest.approx(0.015)
    assert 0.0 < time.wait_s < time.corrected_s


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(-1e9, 1e9)), max_size=30), st.data())
def test_a_curve_grows_and_adds_up(readings: list[tuple[int, float]], data: st.DataObject) -> None:
    curve = Curve()
    for t_ns, value in readings:
        curve.add(t_ns, value)
    a, b, c = sorted(data.draw(st.tuples(*[st.integers(-10, 10**6 + 10)] * 3)))
    assert curve.over(a, b) >= 0.0
    assert curve.over(a, b) + curve.over(b, c) == pytest.approx(curve.over(a, c), abs=1e-3)
    assert curve.times_ns == sorted(set(curve.times_ns))
    inside = [one for one in curve.times_ns if a <= one <= c]
    assert curve.within(a, c) == (curve.over(inside[0], inside[-1]) if len(inside) > 1 else 0.0)


def test_a_curve_is_straight_between_its_readings() -> None:
    curve = Curve()
    curve.add(10, 1.0)
    curve.add(20, 5.0)
    assert [curve.at(t) for t in (0, 10, 15, 20, 99)] == [1.0, 1.0, 3.0, 5.0, 5.0]
    curve.add(30, 2.0)  # fell: an error of reading
    curve.add(25, 6.0)  # late
    curve.grow(40, 2.0)
    assert (curve.at(30), curve.at(35), curve.at(40)) == (6.0, 7.0, 8.0)
    assert curve.over(40, 10) == 0.0


# How processor time is shared: n threads that always want to run, own ones and neighbours', on
# some cores each get cores / n of one, and wait for the rest.
@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 8))
def test_only_what_neighbours_can_have_caused_is_theirs(own: int, cores: int, others: int) -> None:
    pace = min(1.0, cores / (own + others))
    alone = min(1.0, cores / own)
    share = own_share(
        foreign_cpu=others * pace, own_cpu=own * pace, own_delay=own * (1 - pace),
        elapsed=1.0, cores=float(cores),
    )  # fmt: skip
    # A second of a thread's takes 1 / pace seconds, 1 / alone without neighbours.
    kept = 1.0 + share * (1.0 / pace - 1.0)
    if own >= cores or not others:
        assert kept == pytest.approx(1.0 / alone)
    else:  # some neighbours run where nobody of the tree would
        assert kept == pytest.approx(1.0)


# A run in files, as the hooks and the profiler write them: every part's own time, and what a
# neighbour made it wait. Times in ms.
Part = tuple[int, int]  # its own time, waiting for a core
STARTUP, SAVE, TAIL = 900, 30, 200


class Script:
    """Writes the records of a script whose every part is told how long it waits."""

    def __init__(self, folder: Path) -> None:
        self.run = folder
        self.run.mkdir()
        self.now, self.waited = 0, 0
        self.log = Appender(folder / "profiler.bin")
        self.events = Appender(folder / "ev-5-6.bin")
        host = {
            "cpu_model": "x", "logical_cpus": 4, "physical_cpus": 4, "cpu_limit": 4.0,
            "memory_bytes": 1, "memory_limit_bytes": 1, "gpus": [], "system": "Linux",
            "python_version": "3.11.7", "torch_version": None, "benchmark": None,
        }  # fmt: skip
        header = {
            "schema_version": 1, "pid": 1, "start_ticks": 1, "t_ns": SECOND, "command": ["x"],
            "started_at": "2026-11-22T00:00:00+00:00", "host": host, "options": {},
        }  # fmt: skip
        self.log.write_json(fmt.HEADER, header)
        header = {"schema_version": 1, "pid": 5, "start_ticks": 6, "parent_pid": 1, "t_ns": SECOND}
        self.events.write_json(fmt.HEADER, header)
        self.read()

    def passes(self, own: int, waits: int) -> None:
        self.now += own + waits
        self.waited += waits

    def read(self) -> None:
        """The profiler takes a reading."""
        ns = MS * self.waited
        values = [
            SECOND + MS * self.now, 1, MS * (self.now - self.waited), ns, 2**20, -1, 0, 0, 0, 0, 0,
            -1.0, 0, 0, -1.0, -1, -1.0, -1.0, -1.0, -1.0, 0, ns, 0,
        ]  # fmt: skip
        self.log.write(fmt.READING, fmt.READING_PAYLOAD.pack(*values))

    def tick(self, index: int, wait: Part, *, begins: bool) -> None:
        flags = fmt.FLAG_COMPLETES | fmt.FLAG_BOUNDARY * begins
        values = (
            SECOND + MS * self.now, MS * self.waited, index, fmt.CLOCK_OPTIMIZER, flags, 0, 1, 1,
            1000 * sum(wait), 4, 1000 * wait[1],
        )  # fmt: skip
        self.events.write(fmt.STEP, fmt.STEP_PAYLOAD.pack(*values))

    def end(self) -> Recording:
        self.read()
        t_ns = SECOND + MS * self.now
        end = {"status": "finished", "stop_reason": "x", "exit_code": 0, "t_ns": t_ns}
        self.log.write_json(fmt.END, end)
        self.log.close()
        self.events.close()
        return recording(self.run)


def trained(folder: Path, steps: list[tuple[int, int]], epoch: int, waits: list[int]) -> Recording:
    """Record a script of ``steps`` (compute, loader) that waits as ``waits`` say, part by part."""
    script, wait = Script(folder), iter(waits)
    script.passes(STARTUP, next(wait))
    script.tick(1, (0, 0), begins=True)
    loader = {"fact": "loader", "loader": 0, "batch": 4, "workers": 0}
    script.events.write_json(fmt.FACT, loader)
    for index, (compute, load) in enumerate(steps, start=2):
        begins = index % epoch == 0
        if begins:  # the end of an epoch: a checkpoint
            its = next(wait)
            script.passes(SAVE, its)
            fact = {"fact": "saved", "step": index, "bytes": 9, "seconds": (SAVE + its) / 1e3}
            script.events.write_json(fmt.FACT, {**fact, "delay_s": its / 1e3})
        its = next(wait)
        script.passes(load, its)
        script.passes(compute, next(wait))
        script.tick(index, (load, its), begins=begins)
    counts = (0, 1, len(steps), len(steps), 4 * len(steps), 0, 0, 0, 0, 0)
    script.events.write(fmt.LOADER, fmt.LOADER_PAYLOAD.pack(SECOND + MS * script.now, *counts))
    script.read()
    script.passes(TAIL, next(wait))
    return script.end()


def corrected(seen: Recording) -> list[float]:
    assert seen.step_time is not None
    assert seen.loading is not None
    saves = -1.0 if seen.saves is None else seen.saves.seconds
    ends = -1.0 if seen.boundary_s is None else seen.boundary_s
    assert seen.startup_s is not None
    assert seen.busy_s is not None
    step = seen.step_time.corrected_s
    return [step, seen.loading.wait_s, seen.startup_s, ends, saves, seen.busy_s]


folders = itertools.count()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_neighbours_of_any_pattern_leave_every_corrected_time_as_it_is(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    part = st.tuples(st.integers(2, 50), st.integers(0, 50))
    # Warm-up is looked for in the corrected steps, which a wait of a step's does not change.
    steps = data.draw(st.lists(part, min_size=4, max_size=30))
    epoch = data.draw(st.integers(3, 12))
    parts = 2 + 2 * len(steps) + sum(index % epoch == 0 for index in range(2, len(steps) + 2))
    waits = data.draw(st.lists(st.integers(0, 300), min_size=parts, max_size=parts))
    folder = tmp_path_factory.mktemp("contended")
    quiet = trained(folder / "quiet", steps, epoch, [0] * parts)
    busy = trained(folder / "busy", steps, epoch, waits)
    assert corrected(busy) == pytest.approx(corrected(quiet), rel=1e-6, abs=1e-9)
    assert quiet.busy_s == pytest.approx(quiet.duration_s)
    assert busy.duration_s == pytest.approx(quiet.duration_s + sum(waits) / 1e3)
    assert busy.contention == pytest.approx(sum(waits) / 1e3 / busy.duration_s)
    assert quiet.contention_half_width == pytest.approx(0.0, abs=1e-9)


def test_the_parts_add_up_to_the_whole(tmp_path: Path) -> None:
    """Start-up, 60 steps, 6 ends of epochs with their saves, and what comes after the last."""
    rng = random.Random(4)
    steps = [(10, 5)] * 60
    waits = [rng.randrange(100) for _ in range(2 + 120 + 6)]
    seen = trained(tmp_path / "run", steps, 10, waits)
    assert seen.step_time is not None
    assert (seen.boundaries, seen.step_time.steps) == (6, 54)
    boundary_s = seen.boundary_s or 0.0
    parts_s = (seen.startup_s or 0.0) + 60 * seen.step_time.corrected_s + 6 * boundary_s
    assert parts_s + TAIL / 1e3 == pytest.approx(seen.busy_s)
    assert boundary_s == pytest.approx(SAVE / 1e3)
    assert seen.saves is not None
    assert seen.saves.count == 6
    assert seen.saves.seconds == pytest.approx(SAVE / 1e3)
    raw = seen.startup_raw_s, seen.boundary_raw_s, seen.saves.raw_seconds
    told = seen.startup_s, seen.boundary_s, seen.saves.seconds
    assert all((one or 0.0) > (other or 0.0) for one, other in zip(raw, told, strict=True))
    assert seen.loading is not None
    assert seen.loading.raw_wait_s > seen.loading.wait_s == pytest.approx(0.005)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 200)), min_size=1, max_size=30))
def test_a_program_without_steps_takes_what_it_takes_alone(
    tmp_path_factory: pytest.TempPathFactory, parts: list[Part]
) -> None:
    script = Script(tmp_path_factory.mktemp("program") / "run")
    for part in parts:
        script.passes(*part)
        script.read()
    seen = script.end()
    own, waited = map(sum, zip(*parts, strict=True))
    assert seen.step_time is None
    assert seen.duration_s == pytest.approx((own + waited) / 1e3)
    assert seen.busy_s == pytest.approx(own / 1e3)
    assert seen.contention_half_width * own == pytest.approx(contention.LEFT_OVER * waited)


# Loader workers and their loop, simulated: the oracle for what waits for whom.
class Pipeline:
    """Workers that make batches in turn, each some ahead, and a loop that takes them in order."""

    def __init__(self, workers: int, batch_s: float, compute_s: float, ahead: int = 2) -> None:
        self.workers, self.batch_s, self.compute_s = workers, batch_s, compute_s
        self.ahead = ahead * workers

    def run(self, steps: int, main_pace: float, worker_pace: float) -> tuple[float, float]:
        """Return the time of all steps and the part of it that the loop waited. [s].

        At a pace of 0.25 a second of a core's work takes four.
        """
        taken: list[float] = []
        free = [0.0] * self.workers
        heapq.heapify(free)
        now = waited = 0.0
        for number in range(steps):
            begin = taken[number - self.ahead] if number >= self.ahead else 0.0
            ready = max(heapq.heappop(free), begin) + self.batch_s / worker_pace
            heapq.heappush(free, ready)
            waited += max(0.0, ready - now)
            now = max(now, ready) + self.compute_s / main_pace
            taken.append(now)
        return now, waited


@given(
    workers=st.integers(1, 6), batch_s=st.floats(0.001, 0.3), compute_s=st.floats(0.005, 0.05),
    main_pace=st.floats(0.1, 1.0), worker_pace=st.floats(0.1, 1.0),
)  # fmt: skip
def test_a_loop_that_waits_for_its_workers_is_told_as_it_would_go_alone(
    workers: int, batch_s: float, compute_s: float, main_pace: float, worker_pace: float
) -> None:
    steps = 400
    pipeline = Pipeline(workers, batch_s, compute_s)
    wall_s, wait_s = pipeline.run(steps, main_pace, worker_pace)
    alone_s, alone_wait_s = pipeline.run(steps, 1.0, 1.0)
    spent_s = steps * batch_s / worker_pace
    waited_s = spent_s - steps * batch_s
    time = correct(Stretch(
        wall_ns=1e9 * wall_s,
        delay_ns=1e9 * steps * compute_s * (1 / main_pace - 1),
        wait_ns=1e9 * wait_s,
        workers_ns=1e9 * waited_s / workers,
        active_ns=1e9 * spent_s / workers,
        chain_ns=1e9 * waited_s,
    ))  # fmt: skip
    # The first batches and the last step are nobody's pace: a hundredth each.
    assert time.corrected_s == pytest.approx(alone_s, rel=0.02)
    assert time.wait_s == pytest.approx(alone_wait_s, abs=0.02 * alone_s)
