"""Real collection: a few small runs, killed and taken up again, and what becomes of them."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from advisor.collectors import RecordingError
from advisor.collectors.watch import network
from advisor.collectors.watch.host import cpu_model
from advisor.lab.minicloud import limits
from advisor.lab.minicloud.collect import _AHEAD, State, collect, is_sensitive, this_machine
from advisor.lab.minicloud.plan import DISTRIBUTED, HALF, MiniJob, MiniRun, plan
from advisor.records.collected import Journal, Row

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="runs are limited by Linux's means"
)

JOB = "mlp-w256-b512"


def start(out: Path, *only: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "advisor.lab.minicloud", "--out", str(out)]
    program += ["--attempts", "1"]
    patterns = [option for pattern in only for option in ("--only", pattern)]
    return subprocess.Popen([*program, *patterns], stderr=subprocess.PIPE, text=True)


@dataclass(frozen=True)
class Collected:
    """What two goes left: the first was killed after a run, the second went to its end."""

    rows: tuple[Row, ...]
    path: Path
    first: tuple[Row, ...]
    children: tuple[int, ...]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    out = tmp_path_factory.mktemp("runs")
    journal = Journal(out / "runs.jsonl")
    killed = start(out, f"partial/{JOB}/core-1/single/*")
    assert killed.stderr is not None
    killed.stderr.readline()  # what there is to do
    killed.stderr.readline()  # one run is written down, the next begins
    time.sleep(0.2)
    children = Path(f"/proc/{killed.pid}/task/{killed.pid}/children").read_text().split()
    killed.kill()
    killed.wait()
    first = tuple(journal.rows())
    second = start(
        out, f"partial/{JOB}/core-1/single/0", f"full/{JOB}/quota-0.5core/single/0",
        f"full/{JOB}/*/ps2-1000mbit/0", f"full/{JOB}/core-1/single/0",
    )  # fmt: skip
    messages = second.communicate(timeout=200)[1]
    assert second.returncode == 0, messages
    return Collected(
        rows=tuple(journal.rows()), path=journal.path, first=first,
        children=tuple(int(pid) for pid in children),
    )  # fmt: skip


def one(collected: Collected, pattern: str) -> Row:
    """Return the last record whose key matches, or skip where this machine allows no such run."""
    found = [row for row in collected.rows if fnmatch(row["key"], pattern)]
    if not found:
        assert not (limits.can_limit_cpu() and network.can_make_nodes())
        pytest.skip("cgroups or namespaces are refused here")
    return found[-1]


def test_a_killed_collector_leaves_whole_records_and_no_children(collected: Collected) -> None:
    assert len(collected.first) >= 1
    assert Journal(collected.path).damaged() == 0
    assert not [pid for pid in collected.children if Path(f"/proc/{pid}").exists()]


def test_a_journal_is_taken_up_where_it_ended(collected: Collected) -> None:
    assert collected.rows[: len(collected.first)] == collected.first
    assert max(Counter((row["key"], row["attempt"]) for row in collected.rows).values()) == 1
    assert one(collected, "full/*/core-1/*")["status"] == "ok"


def test_a_partial_run_says_what_a_step_computes(collected: Collected) -> None:
    made = one(collected, "partial/*")
    # Four layers, batch 512: 2 flop a weight forward; backward the same again for the weights,
    # and for the inputs of all layers but the first.
    weights = 64 * 256 + 256 * 256 + 256 * 256 + 256 * 10
    assert made["counts"]["flop"] == 2 * 512 * (3 * weights - 64 * 256)
    assert made["counts"]["parameters"] == weights + 3 * 256 + 10
    assert made["total_steps"] >= 2 * made["steps_done"]
    assert made["nodes"][0]["loss_last"] < made["nodes"][0]["loss_first"]
    series = made["nodes"][0]["series"]
    assert len({len(values) for values in series.values()}) == 1
    assert 2 <= len(series["t_s"]) <= 20 * made["wall_s"] + 2  # twenty a second
    assert series["t_s"] == sorted(series["t_s"])


def test_a_full_run_makes_all_declared_steps(collected: Collected) -> None:
    total = one(collected, "partial/*")["total_steps"]
    for row in collected.rows:
        if row["kind"] == "full":
            assert row["status"] == "ok", row
            assert row["steps_done"] == row["steps"] == -(-total // row["layout"]["workers"])
            assert 0 < row["time_s"] <= row["wall_s"]


@pytest.mark.needs_root
def test_a_quota_slows_a_run_by_its_share(collected: Collected) -> None:
    half = one(collected, "full/*/quota-0.5core/single/*")
    assert half["time_s"] >= 0.95 * limits.quota_s(half["nodes"][0]["cpu_s"], 0.5)


@pytest.mark.needs_root
def test_a_parameter_server_moves_every_workers_gradient_each_step(collected: Collected) -> None:
    run = one(collected, "full/*/ps2-*")
    assert [node["role"] for node in run["nodes"]] == ["master", "worker", "worker"]
    series = run["nodes"][0]["series"]
    theory = 2 * one(collected, "partial/*")["counts"]["parameter_bytes"] * run["steps"]
    for way in ("received_bytes_per_s", "sent_bytes_per_s"):
        # Above: headers. Below: what moved before the first and after the last reading, which
        # are far from the ends of the run where the machine is busy.
        seen = min((series["t_s"][-1] - series["t_s"][0]) / run["time_s"], 1.0)
        assert 0.7 * theory * seen < integral(series["t_s"], series[way]) < 1.15 * theory


def integral(t_s: list[float], rates: list[float]) -> float:
    return float(np.dot(np.diff([0.0, *t_s]), rates))


# Jobs of the plan of minutes, a hundred times shorter; stdout has what is told.
SHORT_PLAN = """
import dataclasses, pathlib, sys
from advisor.lab.minicloud.collect import collect
from advisor.records.collected import Journal
from advisor.lab.minicloud.plan import MINUTES
scale = dataclasses.replace(MINUTES, shortest_s=0.8, longest_s=1.2, partial_cpu_s=0.02, cap_s=60.0)
def tell(progress):
    print(progress.done, progress.planned, progress.left_s, flush=True)
collect(Journal(pathlib.Path(sys.argv[1])), only=sys.argv[2:], attempts=1, scale=scale, tell=tell)
"""


@pytest.mark.slow
def test_the_plan_of_minutes_goes_on_alone_and_says_how_long_it_will_take(tmp_path: Path) -> None:
    jobs = ("mlp-w512-b512", "mlp-w256-b512")
    keys = [f"{kind}/{job}/core-1/single/0" for job in jobs for kind in ("partial", "full")]
    journal = Journal(tmp_path / "runs.jsonl")
    program = [sys.executable, "-c", SHORT_PLAN, str(journal.path), *keys]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        before = [killed.stdout.readline().split() for _ in range(3)]  # two runs are written down
        killed.kill()
    made = list(journal.rows())
    assert [int(done) for done, _, _ in before] == [0, 1, 2]
    assert 1.6 < float(before[0][2]) < 2.5  # two whole jobs of about a second, two partial runs

    after = [line.split() for line in subprocess.check_output(program, text=True).splitlines()]
    rows = list(journal.rows())
    assert rows[: len(made)] == made
    assert sorted(row["key"] for row in rows) == sorted(keys)  # each once
    assert {row["status"] for row in rows} == {"ok"}
    assert {row["plan"] for row in rows} == {"minutes"}
    for job in jobs:
        partial_run, full = (
            next(row for row in rows if row["key"] == f"{kind}/{job}/core-1/single/0")
            for kind in ("partial", "full")
        )
        assert partial_run["steps_done"] <= full["steps_done"] / 20
    assert int(after[0][0]) == len(made)
    assert float(after[-1][2]) == 0.0


def test_two_collectors_do_not_share_a_journal(tmp_path: Path) -> None:
    """They would disturb each other's runs."""
    journal = Journal(tmp_path / "runs.jsonl")
    with journal.alone():
        second = start(tmp_path, "full/*")
        message = second.communicate(timeout=100)[1]
        assert second.returncode != 0
        assert "another collection" in message
        assert "hint:" in message
    assert not list(journal.rows())


def test_a_pattern_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no planned run matches 'full/nothing-\\*'"):
        collect(Journal(tmp_path / "runs.jsonl"), only=["full/nothing-*"])


def row(run: MiniRun, *, is_noisy: bool = False, cpu_s: float = 1.0, total: int = 50) -> Row:
    out: dict[str, Any] = {
        "key": run.key, "is_noisy": is_noisy, "kind": run.kind, "status": "ok",
        "job": {"key": run.job.key}, "layout": {"kind": run.layout.kind},
        "nodes": [{"cpu_s": cpu_s}], "steps_done": 10,
    }  # fmt: skip
    if run.kind == "partial":
        out |= {"total_steps": total, "anchor_step_s": 0.1}
        out["started_at"] = "2026-11-26T12:00:00+00:00"
    return out


RUNS = [run for run in plan() if run.job == MiniJob(workload="mlp", width=256, batch=512)]


def test_a_job_waits_for_its_partial_run() -> None:
    first = State([]).next_run(RUNS)
    assert first is not None
    assert first.kind == "partial"
    assert State([]).next_run([run for run in RUNS if run.kind == "full"]) is None


def test_sensitive_runs_wait_for_a_calm_moment() -> None:
    state = State([row(run) for run in RUNS if run.kind == "partial" and run.replicate == 0])
    calm, busy = state.next_run(RUNS, is_calm=True), state.next_run(RUNS, is_calm=False)
    assert calm is not None
    assert busy is not None
    assert is_sensitive(calm)
    assert not is_sensitive(busy)
    sensitive = [run for run in RUNS if is_sensitive(run)]
    assert state.next_run(sensitive, is_calm=False) in sensitive  # rather than nothing


def test_the_moment_chooses_among_the_next_runs_of_the_plan_only() -> None:
    waiting = [run for run in RUNS if run.kind == "full" and not is_sensitive(run)]
    sensitive = next(run for run in RUNS if run.kind == "full" and is_sensitive(run))
    state = State([row(run) for run in RUNS if run.kind == "partial" and run.replicate == 0])
    far = [*itertools.islice(itertools.cycle(waiting), _AHEAD), sensitive]
    assert state.next_run(far, is_calm=True) is waiting[0]
    assert state.next_run(far[1:], is_calm=True) is sensitive


def test_noisy_runs_come_again_last_and_not_for_ever() -> None:
    rows = [row(run, is_noisy=run is RUNS[0]) for run in RUNS]
    assert State(rows).next_run(RUNS) is RUNS[0]
    assert State(rows[:-1]).next_run(RUNS) is RUNS[-1]
    assert State([*rows, rows[0], rows[0]]).next_run(RUNS) is None


def test_the_first_partial_run_declares_the_total_and_noise_is_told_from_the_latest() -> None:
    anchor = next(run for run in RUNS if run.kind == "partial")
    full = next(run for run in RUNS if run.kind == "full" and run.layout.kind == "single")
    state = State([row(anchor, cpu_s=0.5), row(anchor, total=70)])
    assert state.steps(full) == 50
    assert state.anchor_cpu_s(full) == pytest.approx(0.1)


def test_a_plan_that_is_taken_to_another_machine_goes_on_from_partial_runs_of_its_own() -> None:
    partial = [run for run in RUNS if run.kind == "partial"]
    full = [run for run in RUNS if run.kind == "full"]
    there = [row(run) | {"machine": "there"} for run in (*partial, full[0])]
    there.append(row(full[1], is_noisy=True) | {"machine": "there"})
    state = State(there, machine="here")
    first = state.next_run(RUNS)
    assert first is not None
    assert first.kind == "partial"
    assert state.next_run(full) is None  # no partial run of this machine yet
    state = State([*there, *(row(run, total=70) | {"machine": "here"} for run in partial)],
                  machine="here")  # fmt: skip
    assert state.is_done(full[0])
    assert not state.is_done(full[1])
    assert state.next_run(full[:2]) is full[1]
    alone = next(run for run in full if run.layout.kind == "single")
    assert state.steps(alone) == 70
    assert State(there, machine="there").steps(alone) == 50


def test_a_job_profiled_half_an_hour_ago_is_profiled_again_before_its_next_run() -> None:
    at = datetime(2026, 11, 26, 12, tzinfo=UTC)
    anchor, spread = [run for run in RUNS if run.kind == "partial"][:2]
    full = next(run for run in RUNS if run.kind == "full")
    fresh = State([row(anchor) | {"started_at": at.isoformat()}])
    later = [at + timedelta(minutes=29), at + timedelta(minutes=31)]
    assert [fresh.is_stale(full, now) for now in later] == [False, True]
    assert not fresh.is_stale(spread, later[1])
    fresh.add(row(anchor) | {"started_at": (at + timedelta(minutes=20)).isoformat()})
    assert not fresh.is_stale(full, later[1])


def test_the_machine_is_named_by_its_processor() -> None:
    name = this_machine()
    assert cpu_model() in name
    assert name.endswith(f"{len(os.sched_getaffinity(0))} cores")


def test_workers_share_the_declared_steps() -> None:
    anchor = next(run for run in RUNS if run.kind == "partial")
    state = State([row(anchor)])
    for _, layout in DISTRIBUTED:
        run = MiniRun(kind="full", job=anchor.job, instance=HALF, layout=layout)
        assert state.steps(run) == -(-50 // layout.workers)


def test_a_parameter_server_equals_one_process_with_averaged_gradients() -> None:
    """Two forked workers and a master over loopback against the same steps done in one process."""
    from advisor.lab.minicloud.node import Trainee
    from advisor.lab.workloads import load

    steps, width, batch = 3, 256, 32
    workers = [Trainee.build(load("mlp"), width=width, batch=batch, seed=s) for s in (1, 2)]
    reading, writing = os.pipe()
    pids = [
        _fork(partial(_serve_or_work, rank, steps, width, batch, writing)) for rank in range(3)
    ]
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        found = torch.frombuffer(bytearray(stream.read()), dtype=torch.float32)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]

    master = workers[0]
    for _ in range(steps):
        gradients = []
        for worker in workers:
            worker.model.load_state_dict(master.model.state_dict())
            worker.backward()
            gradients.append([p.grad for p in worker.model.parameters()])
        for p, *both in zip(master.model.parameters(), *gradients, strict=True):
            p.grad = (both[0] + both[1]) / 2
        master.optimizer.step()
    expected = nn.utils.parameters_to_vector(master.model.parameters()).detach()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def _fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return pid


def _serve_or_work(rank: int, steps: int, width: int, batch: int, writing: int) -> None:
    import torch.distributed as dist

    from advisor.lab.minicloud import node as training
    from advisor.lab.minicloud.tape import Tape
    from advisor.lab.workloads import load

    torch.set_num_threads(1)
    port = 20_000 + os.getppid() % 20_000
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=3)
    trainee = training.Trainee.build(load("mlp"), width=width, batch=batch, seed=rank)
    loop = training.work_for_server if rank else training.serve_parameters
    loop(trainee, training.StepClock(Tape(10), partial_cpu_s=0.8), steps)
    if rank == 0:
        vector = nn.utils.parameters_to_vector(trainee.model.parameters()).detach()
        data = vector.numpy().tobytes()
        while data:
            data = data[os.write(writing, data) :]
