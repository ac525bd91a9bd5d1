"""The means of a run: tape, sampler, cgroup quota, memory limit, small network. All real."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from advisor.collectors import RecordingError
from advisor.collectors.watch import network
from advisor.lab.minicloud import limits
from advisor.lab.minicloud.plan import MIB, MiniInstance
from advisor.lab.minicloud.tape import Tape

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")


def in_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked process; return its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def spin(cpu_s: float) -> None:
    began = time.process_time()
    while time.process_time() - began < cpu_s:
        sum(range(500))


@linux
def test_a_tape_outlives_the_process_that_wrote_it() -> None:
    tape = Tape(capacity=10)

    def write_and_die() -> None:
        tape.begin(100.0)
        tape.write(0.5, 0.1)
        tape.write(1.5, 0.3)
        os.kill(os.getpid(), 9)

    assert in_child(write_and_die) == 9
    elapsed, delay = tape.read()
    assert (tape.began_s, tape.steps) == (100.0, 2)
    assert elapsed.tolist() == [0.5, 1.5]
    assert delay.tolist() == [0.1, 0.3]
    tape.close()


def test_a_full_tape_counts_on() -> None:
    tape = Tape(capacity=2)
    tape.begin(1.0)
    for step in range(5):
        tape.write(float(step), 0.0)
    assert tape.steps == 5
    assert tape.read()[0].tolist() == [0.0, 1.0]


def test_an_unbegun_tape_has_no_beginning() -> None:
    assert Tape(capacity=1).began_s is None


@linux
def test_the_cpu_clock_of_a_process_is_the_kernels() -> None:
    spin(0.05)
    mine = limits.cpu_clock_s(os.getpid())
    assert mine == pytest.approx(time.process_time(), abs=0.02)


@linux
def test_cpu_readings_add_up_to_the_cpu_time() -> None:
    sampler = limits.ProcessSampler(os.getpid(), has_network=False)
    sampler.read()
    began = time.process_time()
    for _ in range(5):
        spin(0.02)
        sampler.read()
    used = time.process_time() - began
    times = [0.0, *sampler.series.t_s]
    total = sum(
        cores * (later - sooner)
        for cores, sooner, later in zip(
            sampler.series.cpu_cores, times[:-1], times[1:], strict=True
        )
    )
    assert total == pytest.approx(used, abs=0.01)
    assert sampler.peak_memory_mib > 1
    assert sampler.series.sent_bytes_per_s == []


@linux
def test_a_dead_process_gives_no_reading() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    sampler = limits.ProcessSampler(pid, has_network=True)
    sampler.read()
    sampler.read()
    assert sampler.series.t_s == []


@linux
def test_a_memory_limit_stops_what_exceeds_it_and_nothing_else() -> None:
    instance = MiniInstance(name="small", memory_headroom_bytes=64 * MIB)
    cores = tuple(os.sched_getaffinity(0))

    def within() -> None:
        limits.apply(instance, cores)
        bytearray(16 * MIB)

    def beyond() -> None:
        limits.apply(instance, cores)
        bytearray(128 * MIB)

    assert in_child(within) == 0
    assert in_child(beyond) != 0
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY


@linux
def test_a_pinned_process_has_the_cores_it_was_given() -> None:
    core = min(os.sched_getaffinity(0))

    def check() -> None:
        limits.apply(MiniInstance(name="one"), (core,))
        if os.sched_getaffinity(0) != {core}:
            raise SystemExit(1)

    assert in_child(check) == 0


@pytest.mark.needs_root
def test_a_quota_grants_its_share_and_says_what_it_held_back() -> None:
    if not limits.can_limit_cpu():
        pytest.skip("CPU cgroups are refused here")
    reading, writing = os.pipe()
    # So little a period that whoever runs at all has used it up, however busy the machine is.
    with limits.cpu_group("test", quota=0.05) as group:

        def spin_limited() -> None:
            group.join()
            began = time.monotonic()
            spin(0.06)
            os.write(writing, f"{time.monotonic() - began}".encode())

        assert in_child(spin_limited) == 0
        wall_s = float(os.read(reading, 100))
        throttled_s = group.throttled_s()
        assert group.path.is_dir()
    assert not group.path.exists()
    assert wall_s > 0.9 * limits.quota_s(0.06, 0.05)
    assert throttled_s > 0.0


def test_a_version_2_group_is_written_in_its_own_format(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("max 100000")
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nnr_throttled 3\nthrottled_usec 2500000\n")
    group = limits.CpuGroup(tmp_path, 0.5)
    assert (tmp_path / "cpu.max").read_text() == "25000 50000"
    assert group.throttled_s() == 2.5


@pytest.fixture(scope="module")
def nodes() -> Iterator[network.Nodes]:
    if not network.can_make_nodes():
        pytest.skip("network namespaces are refused here")
    with network.cluster_of_namespaces(2) as two:
        yield two


def send(nodes: network.Nodes, size: int) -> tuple[float, int, int]:
    """Send bytes from node 0 to node 1; return seconds, and what node 1's counters saw."""
    reading, writing = os.pipe()

    def receive() -> None:
        nodes.enter(1)
        before = network.counters(os.getpid())
        with socket.create_server((nodes.address(1), 5001)) as server:
            os.write(writing, b"ready")
            connection, _ = server.accept()
            began, left = time.monotonic(), size
            while left:
                left -= len(connection.recv(min(left, 1 << 16)))
            passed = time.monotonic() - began
            after = network.counters(os.getpid())
            connection.close()
        os.write(writing, f"{passed} {after[0] - before[0]} {after[1] - before[1]}".encode())

    receiver = os.fork()
    if receiver == 0:
        try:
            receive()
        finally:
            os._exit(0)
    assert os.read(reading, 5) == b"ready"

    def push() -> None:
        nodes.enter(0)
        with socket.create_connection((nodes.address(1), 5001)) as connection:
            connection.sendall(bytes(size))
            connection.recv(1)

    assert in_child(push) == 0
    passed, received, sent = os.read(reading, 200).decode().split()
    os.waitpid(receiver, 0)
    return float(passed), int(received), int(sent)


@pytest.mark.needs_root
def test_a_nodes_counters_see_its_traffic_and_little_else(nodes: network.Nodes) -> None:
    nodes.shape(None)
    _, received, sent = send(nodes, 2_000_000)
    assert 2_000_000 <= received < 2_300_000  # headers of Ethernet, IP and TCP
    assert sent < 300_000  # acknowledgements


@pytest.mark.needs_root
def test_a_link_is_no_faster_than_its_rate(nodes: network.Nodes) -> None:
    size, rate_bit_per_s = 3_000_000, 1e8
    nodes.shape(rate_bit_per_s)
    passed_s, _, _ = send(nodes, size)
    nodes.shape(None)
    beyond_buckets = size - 2 * network.BURST_BYTES - 1_000_000  # sent at once, and in buffers
    assert passed_s >= 8 * beyond_buckets / rate_bit_per_s


@pytest.mark.needs_root
def test_a_cluster_leaves_nothing_behind(nodes: network.Nodes) -> None:
    pid = os.fork()
    if pid == 0:  # a collector that is killed while its cluster stands
        with network.cluster_of_namespaces(1):
            os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert list(Path("/run/netns").glob(f"ac{pid}c*"))
    with network.cluster_of_namespaces(1):  # any new cluster sweeps
        pass
    assert not list(Path("/run/netns").glob(f"ac{pid}c*"))
    assert nodes.namespace(0) in os.listdir("/run/netns")  # the living are left alone


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with (
        pytest.raises(RecordingError, match="ip is not installed"),
        network.cluster_of_namespaces(1),
    ):
        pass
