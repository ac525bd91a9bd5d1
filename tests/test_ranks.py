"""``advisor profile --workers N``: ranks on this machine, recorded one by one."""

from __future__ import annotations

import json
import os
import re
import runpy
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from collecting import MARKED, ROOT, hooked, record
from hypothesis import given
from hypothesis import strategies as st

from advisor.collectors.derive import summary
from advisor.collectors.derive.profiler_log import throttling
from advisor.collectors.derive.ranks import communication_of, corrected_together, ranks_of
from advisor.collectors.derive.resources import resources_of
from advisor.collectors.errors import RecordingError
from advisor.collectors.format.events import CommunicationCounts, Events
from advisor.collectors.format.recording import Reading, Recording, StepTime, read_reading
from advisor.collectors.hooks import format as fmt
from advisor.collectors.hooks.communication import tcp_bytes
from advisor.collectors.hooks.wrapping import buckets, buffers_beside
from advisor.collectors.run import RecordingPlan, local_ranks
from advisor.collectors.watch import network
from advisor.estimate.case import constants, host_anchor
from advisor.jobs.from_recording import job_from_recording
from advisor.jobs.job import Job
from advisor.learned.features import RANK_CHANNELS, SEQUENCE_CHANNELS, SEQUENCE_READINGS, sequences
from advisor.records import RunRecord
from advisor.records.profiled import profile

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.fixture(autouse=True)
def _find_advisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ROOT)


WIDTH = 256
DDP = f"""
import os, sys, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
layers = nn.Linear({WIDTH}, {WIDTH}), nn.ReLU(), nn.Linear({WIDTH}, {WIDTH})
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(int(sys.argv[1])):
    if step == 3 and os.environ["RANK"] == "1" and "fail" in sys.argv:
        sys.exit(7)
    optimizer.zero_grad()
    model(torch.randn(16, {WIDTH})).pow(2).mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""
GRADIENT_BYTES = 4 * 2 * (WIDTH * WIDTH + WIDTH)

# Two halves of the data a step, one a rank: together the whole, in whatever order.
PLAIN = """
import os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(int(os.environ.get("RANK", 0)))  # ranks begin apart
data = torch.Generator().manual_seed(7)
x, y = torch.randn(64, 8, generator=data), torch.randn(64, 1, generator=data)
workers = int(sys.argv[1])
loader = DataLoader(TensorDataset(x, y), batch_size=64 // workers, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
made = {"sgd": torch.optim.SGD, "lbfgs": torch.optim.LBFGS}[sys.argv[2]]
optimizer = made(model.parameters(), lr=0.1)
for epoch in range(20):
    for a, b in loader:
        optimizer.zero_grad()
        for part in (slice(0, None, 2), slice(1, None, 2)):  # accumulated
            (nn.functional.mse_loss(model(a[part]), b[part]) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
with open(sys.argv[3] + os.environ.get("RANK", "alone"), "w") as file:
    parts = [part.detach().flatten() for part in model.parameters()]
    print(*(float(one) for part in parts for one in part), file=file)
    assert len(loader) == 1, len(loader)
"""


# What a rank is given.


@given(st.integers(1, 8), st.lists(st.integers(0, 99), min_size=1, max_size=16, unique=True))
def test_ranks_share_no_core_where_there_are_enough(workers: int, allowed: list[int]) -> None:
    cores = local_ranks.cores_of(workers, allowed)
    assert len(cores) == workers
    assert all(set(one) <= set(allowed) and one for one in cores)
    if len(allowed) >= workers:
        assert sum(map(len, cores)) == len({core for one in cores for core in one})


def test_the_environment_is_torchruns(tmp_path: Path) -> None:
    """The oracle: what ``torchrun`` sets, rank by rank, less its own restarts and errors."""
    script = tmp_path / "show.py"
    script.write_text("import os, json\nprint(json.dumps(dict(os.environ)))\n")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", str(script)],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    theirs = json.loads(done.stdout)
    ours = local_ranks.rank_environment(
        0, 1, address=theirs["MASTER_ADDR"], ports=(int(theirs["MASTER_PORT"]), 1),
        interface="lo", threads=1,
    )  # fmt: skip
    names = [name for name in ours if name in theirs]
    assert {name: ours[name] for name in names} == {name: theirs[name] for name in names}
    wanted = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    assert wanted <= set(names)


def refuse(command: list[str], workers: int, bandwidth_bit_per_s: float | None) -> None:
    local_ranks.check(
        RecordingPlan(
            run="", command=tuple(command), workers=workers,
            bandwidth_bit_per_s=bandwidth_bit_per_s,
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "--nproc-per-node", "2", "train.py"],
        ["python", "-m", "torch.distributed.run", "train.py"],
        ["/usr/bin/mpirun", "-n", "2", "python", "train.py"],
        [],
    ],
)
def test_commands_that_start_ranks_are_refused(command: list[str]) -> None:
    with pytest.raises(RecordingError) as caught:
        refuse(command, 2, None)
    assert caught.value.hint
    refuse(command, 1, None)


def test_no_more_ranks_than_one_machine_can_take() -> None:
    refuse(["python", "train.py"], local_ranks.MOST_RANKS, None)
    with pytest.raises(RecordingError, match="ranks on one machine"):
        refuse(["python", "train.py"], local_ranks.MOST_RANKS + 1, None)


def test_a_bandwidth_needs_ranks_and_root(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecordingError, match="between ranks"):
        refuse(["python", "train.py"], 1, 1e9)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RecordingError, match="root"):
        refuse(["python", "train.py"], 2, 1e9)


def test_a_link_is_limited_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, ...]] = []
    monkeypatch.setattr(network, "_run", lambda *words, check=True: said.append(words))
    network.Nodes("acx", 2).shape(1e9)
    assert len(said) == 4
    for words in said:
        assert words[words.index("rate") + 1] == "1000000000bit"
        assert "tbf" in words
    devices = {words[words.index("dev") + 1] for words in said}
    assert devices == {network.INTERFACE, "acxv0", "acxv1"}


# The step of all.


STEPS = 60


def rank_events(
    rank: int, ranks: int, walls: list[float], waits: list[float], delays: list[float]
) -> Events:
    """Return what a rank records; lists by step [s], as long as the run."""
    counts, t_s, used_s, waited_s, delayed_s = [], 0.0, 0.0, 0.0, 0.0
    for number, (wall_s, wait_s, delay_s) in enumerate(
        zip(walls, waits, delays, strict=True), start=1
    ):
        t_s, waited_s, delayed_s = t_s + wall_s, waited_s + wait_s, delayed_s + delay_s
        used_s += wall_s - wait_s - delay_s
        counts.append(
            CommunicationCounts(
                t_ns=round(t_s * 1e9), steps=number, cpu_ns=round(used_s * 1e9),
                delay_ns=round(delayed_s * 1e9), wait_ns=round(waited_s * 1e9), calls=number,
                payload_bytes=0, sent_bytes=number * 100, received_bytes=number * 50,
                exchanged_ns=-1, hidden_ns=-1,
            )
        )  # fmt: skip
    group = {"fact": "process_group", "rank": rank, "world_size": ranks}
    return Events(
        header={"pid": 100 + rank},
        facts={"process_group": [group], "torch": [{"threads": 1}]},
        completed=STEPS,
        communication=counts,
    )


def synchronous(own: list[float], delays: list[list[float]], exchange_s: float) -> list[Events]:
    """Simulate ranks that compute, wait for whoever comes last, and exchange for a while [s].

    ``delays`` are each rank's waits for a core by step.
    """
    walls = [
        max(own_s + mine[step] for own_s, mine in zip(own, delays, strict=True)) + exchange_s
        for step in range(STEPS)
    ]
    return [
        rank_events(
            rank,
            len(own),
            walls,
            [wall_s - own_s - late_s for wall_s, late_s in zip(walls, mine, strict=True)],
            mine,
        )
        for rank, (own_s, mine) in enumerate(zip(own, delays, strict=True))
    ]


@given(st.data(), st.lists(st.floats(1e-3, 1.0), min_size=2, max_size=5), st.floats(1e-4, 1.0))
def test_the_step_is_the_slowest_ranks_computing_and_the_exchange(
    data: st.DataObject, own: list[float], exchange_s: float
) -> None:
    """Whoever waits for a core, in whichever steps: the oracle is the simulation without."""
    late = st.lists(st.sampled_from([0.0, 0.0, 0.3, 2.0]), min_size=STEPS, max_size=STEPS)
    processes = synchronous(own, [data.draw(late) for _ in own], exchange_s)
    counts = processes[0].communication
    first, last = counts[12], counts[-1]
    wall_s = (last.t_ns - first.t_ns) / 1e9 / (last.steps - first.steps)
    delay_s = (last.delay_ns - first.delay_ns) / 1e9 / (last.steps - first.steps)
    mine_s = wall_s - delay_s
    step = StepTime(
        corrected_s=mine_s, raw_s=wall_s, low_s=0.9 * mine_s, high_s=1.1 * mine_s, steps=59,
        warmup_steps=0, delay_fraction=delay_s / wall_s, clock="optimizer", is_settled=True,
    )  # fmt: skip
    found = corrected_together(step, processes[0], processes)
    true_s = max(own) + exchange_s
    assert found.corrected_s == pytest.approx(true_s, rel=1e-3, abs=1e-6)
    assert found.high_s / found.low_s == pytest.approx(1.1 / 0.9)
    assert found.delay_fraction == pytest.approx(1 - true_s / wall_s, abs=1e-3)
    communication = communication_of(processes, ranks_of(processes, processes[0]))
    assert communication is not None
    assert communication["exchange_s_per_step"] == pytest.approx(exchange_s, rel=1e-3, abs=1e-6)


def test_each_rank_has_its_waiting_and_its_bytes() -> None:
    processes = synchronous([0.8, 0.3], [[0.0] * STEPS, [0.1] * STEPS], 0.2)[::-1]
    first, second = ranks_of(processes, processes[0])
    assert (first.rank, first.pid, second.rank, second.pid) == (0, 100, 1, 101)
    # From the first record after twelve steps, those of warm-up and tracing.
    assert first.wait_s == pytest.approx([0.2] * (STEPS - 13))
    assert second.wait_s == pytest.approx([0.6] * (STEPS - 13))
    assert (first.sent_bytes_per_step, first.received_bytes_per_step) == (100, 50)


# Series.


def a_reading(t_s: float, throttled_s: float) -> Reading:
    return Reading(
        t_s=t_s, processes=1, cpu_s=0, run_delay_s=0, rss_bytes=0, pss_bytes=None,
        disk_read_bytes=0, disk_write_bytes=0, network_received_bytes=0, network_sent_bytes=0,
        throttled_s=throttled_s, pressure_fraction=None,
    )  # fmt: skip


@given(st.lists(st.sampled_from([0.0, 0.0, 0.25, 0.5]), max_size=30))
def test_throttling_is_said_once_and_whole(lost: list[float]) -> None:
    readings, so_far_s = [a_reading(0.0, 0.0)], 0.0
    for place, one in enumerate(lost, start=1):
        so_far_s += one
        readings.append(a_reading(float(place), so_far_s))
    found = throttling(readings)
    assert sum(one.throttled_s for one in found) == pytest.approx(so_far_s)
    for before, after in pairwise(found):
        assert before.end_s < after.begin_s  # else they were one
    covered = {place for one in found for place in range(int(one.begin_s), int(one.end_s))}
    assert covered == {place for place, one in enumerate(lost) if one}


def test_readings_without_minor_faults_are_read() -> None:
    values = [0] * 10 + [0, -1.0, 0, 3, -1.0, -1, -1.0, -1.0, -1.0, -1.0, 8, 0, 0]
    payload = fmt.READING_PAYLOAD.pack(*values)
    assert read_reading(payload, 0).minor_faults == 8
    old = read_reading(payload[: fmt.READING_BYTES], 0)
    assert (old.minor_faults, old.major_faults) == (0, 3)


def test_collectives_are_timed_once_however_they_nest(tmp_path: Path) -> None:
    import torch
    import torch.distributed as dist

    with hooked(tmp_path) as hooks:
        counts = hooks.session.communication
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", rank=0, world_size=1, store=store)
        try:
            before = counts.calls, counts.payload_bytes
            dist.all_reduce(torch.zeros(1000))
            dist.all_reduce(torch.zeros(500), async_op=True).wait()
            assert counts.calls - before[0] == 2
            assert counts.payload_bytes - before[1] == 6000
            assert counts.wait_ns > 0
        finally:
            dist.destroy_process_group()
        events = hooks.events
    assert events.communication[-1].calls >= 2
    assert events.facts["process_group"][0]["world_size"] == 1


def test_own_sockets_tell_what_they_moved() -> None:
    before_sent, before_received = tcp_bytes()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
        server.accept()[0] as far,
    ):
        for size in (1, 100_000):
            near.sendall(b"x" * size)
            left = size
            while left:
                left -= len(far.recv(left))
        deadline = time.monotonic() + 10  # until the last acknowledgement
        while tcp_bytes()[0] - before_sent < 100_001 and time.monotonic() < deadline:
            time.sleep(0.01)
        sent, received = tcp_bytes()
    assert 100_001 <= sent - before_sent <= 100_003  # handshakes take a sequence number each
    assert received - before_received == 100_001


@given(st.lists(st.tuples(st.integers(0, 6_000_000), st.booleans()), max_size=12))
def test_buckets_hold_all_in_order_and_are_of_one_type(shapes: list[tuple[int, bool]]) -> None:
    import torch

    kinds = {True: torch.float32, False: torch.float16}
    tensors = [torch.empty(size, dtype=kinds[is_wide], device="meta") for size, is_wide in shapes]
    found = buckets(tensors)
    for dtype in kinds.values():
        its = [one for bucket in found for one in bucket if one.dtype is dtype]
        assert [id(one) for one in its] == [id(one) for one in tensors if one.dtype is dtype]
    for bucket in found:
        assert len({one.dtype for one in bucket}) == 1
        total = sum(one.numel() * one.element_size() for one in bucket)
        assert len(bucket) == 1 or total <= 25 * 2**20


def test_buffers_come_in_the_same_order_on_every_rank() -> None:
    """Two networks alike but for their numbers: nothing but the parameters tells them apart."""
    import torch

    def network() -> torch.nn.Module:
        norm, rest = torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4, affine=False)
        return torch.nn.Sequential(torch.nn.Linear(4, 4), norm, rest)

    orders = []
    for is_swapped in (False, True):
        made = [network(), network()][:: -1 if is_swapped else 1]  # as they lie in memory
        for number, one in enumerate(made):
            for name, buffer in one.named_buffers():
                if buffer.is_floating_point():
                    buffer.fill_(10 * number + ("1." in name) + 2 * ("var" in name))
        found = buffers_beside([one for part in made for one in part.parameters()])
        orders.append([float(buffer[0]) for buffer in found])
    assert orders[0] == orders[1]
    assert len(set(orders[0])) == len(orders[0]) == 8


# Real ranks.


def test_a_script_with_ddp_is_recorded_rank_by_rank(tmp_path: Path) -> None:
    """A ring sends 2 (N - 1) / N times the gradients from every rank: for two, all of them."""
    seen = record(tmp_path, DDP, "200", workers=2)
    assert (seen.status, seen.exit_code, seen.world_size, seen.wrapping) == ("finished", 0, 2, "")
    assert set(seen.steps_by_rank) == set(seen.wait_by_step) == {0, 1}
    for rank, one in enumerate(seen.ranks):
        assert one.rank == rank
        assert len(one.step_s) > 150
        assert len(one.wait_s) > 150
        assert sum(one.wait_s) > 0
        assert one.sent_bytes_per_step == pytest.approx(GRADIENT_BYTES, rel=0.1)
        assert one.received_bytes_per_step == pytest.approx(GRADIENT_BYTES, rel=0.1)
    assert seen.communication is not None
    assert seen.communication["total_parameter_size_bytes"] == GRADIENT_BYTES
    check_job(seen)
    of_ranks = {one.rank: one for one in seen.processes if one.rank is not None}
    assert set(of_ranks) == {0, 1}
    assert all(max(one.rss_bytes) > 50e6 for one in of_ranks.values())
    assert {one.pid for one in seen.processes} >= {one.pid for one in seen.ranks}
    assert seen.readings[-1].minor_faults > 1000
    record_of = summary.summary_record(seen)
    assert [one["rank"] for one in record_of["ranks"]] == [0, 1]
    assert record_of["minor_faults"] > 0
    assert any("2 ranks over loopback" in line for line in summary.summary_lines(seen))


def check_job(seen: Recording) -> None:
    """What links are predicted to carry was measured; a link's time is no device's computing."""
    job = job_from_recording(seen)
    assert job.work is not None
    assert seen.ranks[0].sent_bytes_per_step == pytest.approx(job.work.gradient_bytes, rel=0.1)
    assert job.measured is not None
    assert seen.step_time is not None
    assert 0 < job.measured.exchange_s < seen.step_time.corrected_s
    assert job.measured.step_s == seen.step_time.corrected_s
    (computing_s,) = host_anchor(job, job.work, constants()).measured_s
    assert computing_s == pytest.approx(
        job.measured.step_s - job.feed.wait_s - job.measured.exchange_s
    )


@pytest.mark.slow
def test_what_ranks_send_is_a_series_to_learn_from(tmp_path: Path) -> None:
    """The steps must last for several readings of the sockets."""
    seen = record(tmp_path, DDP, "100000", workers=2, limit_s=6.0)
    assert seen.status == "stopped"
    first, second = (len(steps) for steps in seen.steps_by_rank.values())
    assert abs(first - second) <= 3  # they left after the same one; traced ones differ
    channels = resources_of(seen).channels
    for name in ("network_sent_bytes_per_s", "network_received_bytes_per_s"):
        assert sum(channels[name]) > 0
    assert seen.readings[-1].network_sent_bytes > 100 * GRADIENT_BYTES
    (features,) = sequences([record_of(job_from_recording(seen))])
    for name in SEQUENCE_CHANNELS[2:]:
        start = SEQUENCE_CHANNELS.index(name) * SEQUENCE_READINGS
        assert features[start : start + SEQUENCE_READINGS].max() > 0.1, name
    of_ranks = features.reshape(-1, SEQUENCE_READINGS)[len(SEQUENCE_CHANNELS) :]
    assert len(of_ranks) == len(RANK_CHANNELS)
    assert of_ranks[0].mean() == pytest.approx(1.0, rel=0.2)  # the mean step over itself
    assert (of_ranks[1] >= of_ranks[0]).all()  # the slowest rank's
    assert 0 < of_ranks[2].mean() < 1  # waits for the other
    assert of_ranks[3].min() > 0.1  # bytes on the wire


def record_of(job: Job) -> RunRecord:
    """Return the record from which a learned model reads a job's series."""
    known = profile(job)
    assert known is not None
    return RunRecord(
        record_id="r", source="advisor", job=known.job, time_s=None, time_kind="job",
        configuration=(known.anchor.machines,), status="failed", anchor=known.anchor,
    )  # fmt: skip


def parameters_of(folder: Path, rank: str) -> list[float]:
    return [float(word) for word in (folder / f"out{rank}").read_text().split()]


def test_a_plain_script_is_trained_as_its_ranks_whole_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle: one process with the batches of all ranks. Accumulated and clipped besides."""
    out = str(tmp_path / "out")
    seen = record(tmp_path, PLAIN, "2", "sgd", out, workers=2)
    assert (seen.status, seen.wrapping, seen.world_size) == ("finished", "wrapped", 2)
    assert parameters_of(tmp_path, "0") == parameters_of(tmp_path, "1")
    monkeypatch.setattr(sys, "argv", ["train.py", "1", "sgd", out])
    runpy.run_path(str(tmp_path / "train.py"))
    alone = parameters_of(tmp_path, "alone")
    assert parameters_of(tmp_path, "0") == pytest.approx(alone, rel=1e-3, abs=1e-5)
    assert any("was wrapped" in line for line in summary.summary_lines(seen))
    assert not any("same data" in line for line in seen.warnings)
    assert seen.step_samples == 64


OWN_GROUP = """
import sys, torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # before the group: hooks have joined
if "order" in sys.argv:
    loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8)
else:
    dist.init_process_group("gloo")
    assert len(loader) == 8, len(loader)  # given back
    model = nn.parallel.DistributedDataParallel(model)
for epoch in range(5):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_a_script_that_joins_its_group_late_is_left_to_itself(tmp_path: Path) -> None:
    seen = record(tmp_path, OWN_GROUP, workers=2)
    assert (seen.exit_code, seen.wrapping, seen.world_size) == (0, "", 2)
    # One exchange of gradients a step, not two.
    assert seen.ranks[0].sent_bytes_per_step is not None
    assert seen.ranks[0].payload_bytes_per_step == 0


@pytest.mark.slow
def test_data_that_every_rank_reads_is_said(tmp_path: Path) -> None:
    seen = record(tmp_path, OWN_GROUP, "order", workers=2)
    assert (seen.exit_code, seen.wrapping) == (0, "wrapped")
    assert any("same data" in line for line in seen.warnings)


@pytest.mark.slow
def test_an_optimizer_that_decides_by_the_loss_is_not_wrapped(tmp_path: Path) -> None:
    seen = record(tmp_path, PLAIN, "2", "lbfgs", str(tmp_path / "out"), workers=2)
    assert (seen.status, seen.exit_code) == ("failed", 2)
    problem = summary.recording_problem(seen)
    assert problem is not None
    assert "LBFGS" in problem[0]
    assert "--workers" in problem[1]


@pytest.mark.slow
def test_with_a_rank_that_fails_the_others_end(tmp_path: Path) -> None:
    seen = record(tmp_path, DDP, "100000", "fail", workers=2)
    assert seen.status in ("failed", "killed")
    assert seen.exit_code not in (0, None)
    assert seen.stop_reason.startswith("rank ")


def test_copies_that_never_meet_are_said_to(tmp_path: Path) -> None:
    seen = record(tmp_path, MARKED, "20", workers=2)
    assert seen.exit_code == 0
    problem = summary.recording_problem(seen)
    assert problem is not None
    assert "never trained together" in problem[0]


@pytest.mark.slow
def test_a_limited_link_takes_the_time_that_its_bytes_take(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not network.can_make_nodes():
        pytest.skip("needs root, network namespaces, ip and tc")
    rate = 100e6
    seen = record(tmp_path, DDP, "60", workers=2, bandwidth_bit_per_s=rate)
    assert (seen.status, seen.bandwidth_bit_per_s) == ("finished", rate)
    least_s = 8 * GRADIENT_BYTES / rate
    for one in seen.ranks:
        assert one.sent_bytes_per_step == pytest.approx(GRADIENT_BYTES, rel=0.1)
        # The bucket lets 64 KiB of a burst pass at once.
        assert sorted(one.wait_s)[len(one.wait_s) // 2] > 0.7 * least_s
    assert seen.step_time is not None
    assert seen.step_time.corrected_s > 0.7 * least_s  # no correction takes a link's time out
    spaces = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    makers = re.findall(r"^ac(\d+)c", spaces, re.MULTILINE)
    assert all(Path(f"/proc/{pid}").exists() for pid in makers)  # others' that still record
