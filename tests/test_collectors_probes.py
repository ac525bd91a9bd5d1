"""The probes against things whose truth is known: own processes, own sockets, made-up groups."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from collecting import ROOT, record_command

from advisor.collectors.format.recording import read_reading
from advisor.collectors.hooks.format import start_ticks
from advisor.collectors.run import RecordingPlan
from advisor.collectors.run.child import Child
from advisor.collectors.watch.host import Groups
from advisor.collectors.watch.nvml import Gpus
from advisor.collectors.watch.processes import Process, ProcessTree
from advisor.collectors.watch.sampler import Sampler, stolen_ns
from advisor.collectors.watch.tcp import TcpCounters

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

PROC = Path("/proc")
BURN = "import time\nend = time.process_time() + {s}\nwhile time.process_time() < end: pass\n"


def burned(seconds: float) -> subprocess.Popen[bytes]:
    """Return a process that has used so much of a CPU and does nothing any more."""
    source = BURN.format(s=seconds) + "print(flush=True)\ntime.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    state = PROC / str(process.pid) / "stat"
    while state.read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.001)
    return process


@pytest.fixture
def burner() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has used 0.3 s of CPU and waits."""
    with burned(0.3) as one:
        yield one
        one.kill()


def test_cpu_time_is_exact_to_the_tick_that_proc_counts_in(
    burner: subprocess.Popen[bytes],
) -> None:
    process = Process(burner.pid, PROC)
    assert process.read(is_full=True)
    assert process.usage.cpu_ns >= 0.3e9
    fields = (PROC / str(burner.pid) / "stat").read_text().rpartition(")")[2].split()
    ticks_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    assert process.usage.cpu_ns / 1e9 == pytest.approx(ticks_s, abs=0.03)
    assert process.start_ticks == int(fields[19])
    assert process.usage.rss_bytes > 5 * 2**20
    process.close()


def test_disk_and_page_faults_are_the_processes_own(tmp_path: Path) -> None:
    source = (
        "import os, sys\n"
        "with open(sys.argv[1], 'wb') as file:\n"
        "    file.write(os.urandom(3 << 20)); file.flush(); os.fsync(file.fileno())\n"
        "print('written', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", source, str(tmp_path / "block")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        process = Process(writer.pid, PROC)
        assert process.read(is_full=True)
        told = Path(f"/proc/{writer.pid}/io").read_text().splitlines()
        fields = Path(f"/proc/{writer.pid}/stat").read_text().rpartition(")")[2].split()
        usage = process.usage
        process.close()
        writer.kill()
    assert f"write_bytes: {usage.write_bytes}" in told
    assert f"read_bytes: {usage.read_bytes}" in told
    assert usage.major_faults == int(fields[9])
    if not str(tmp_path).startswith("/dev/shm"):
        assert usage.write_bytes >= 3 << 20


@pytest.mark.parametrize("lists_children", [True, False])
def test_grandchildren_are_found_also_where_the_kernel_does_not_list_them(
    lists_children: bool,
) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 30 & sleep 30 & wait"]) as shell:
        tree = ProcessTree(shell.pid)
        if not lists_children:
            tree._lists_children = False
            tree._children = lambda pid: []  # type: ignore[method-assign]
        end = time.monotonic() + 60
        while len(tree.processes) < 3 and time.monotonic() < end:
            tree.refresh()
            time.sleep(0.02)
        found = len(tree.processes)
        for pid in tree.processes:
            os.kill(pid, signal.SIGKILL)
        tree.close()
    assert found == 3


def test_a_dead_process_keeps_what_it_used(burner: subprocess.Popen[bytes]) -> None:
    tree = ProcessTree(burner.pid)
    tree.refresh()
    alive = tree.read()
    burner.kill()
    burner.wait()
    gone = tree.read()
    assert (alive.processes, gone.processes, gone.rss_bytes) == (1, 0, 0)
    assert gone.cpu_ns >= alive.cpu_ns >= 0.3e9
    tree.close()


@pytest.mark.needs_root
def test_a_used_again_pid_is_another_process() -> None:
    """The kernel is told to give out a dead child's number again."""
    first = burned(0.2)
    tree = ProcessTree(first.pid)
    tree.refresh()
    used = tree.read().cpu_ns
    first.kill()
    first.wait()
    second = _process_with_pid(first.pid)
    if second is None:
        pytest.skip("cannot choose pids here")
    try:
        assert start_ticks(second.pid) > 0
        after = tree.read()
        assert after.processes == 0
        assert after.cpu_ns < used + 0.05e9
    finally:
        second.kill()
        second.wait()
        tree.close()


def _process_with_pid(pid: int) -> subprocess.Popen[bytes] | None:
    for _ in range(20):
        try:
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        except OSError:
            return None
        process = subprocess.Popen(["sleep", "30"])
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    return None


def test_tcp_bytes_are_counted_exactly() -> None:
    counters = TcpCounters()
    if not counters.is_there:
        pytest.skip("no socket diagnosis here")
    counters.update([os.getpid()])
    size = 5_000_000
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
        with sender, receiver:
            thread = threading.Thread(target=sender.sendall, args=(b"x" * size,))
            thread.start()
            left = size
            while left:
                left -= len(receiver.recv(min(left, 1 << 20)))
            thread.join()
            end = time.monotonic() + 60
            while counters.sent_bytes < size and time.monotonic() < end:  # acknowledged later
                counters.update([os.getpid()])
    assert counters.received_bytes == size
    assert size <= counters.sent_bytes <= size + 1  # the handshake takes one sequence number


def test_an_answer_cut_short_counts_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = TcpCounters()
    answers = [[(7, 100, 10), (8, 50, 5)], [(7, 150, 10)], [(7, 160, 10), (8, 60, 5)]]
    monkeypatch.setattr("advisor.collectors.watch.tcp.socket_inodes", lambda _: iter((7, 8)))
    monkeypatch.setattr(
        "advisor.collectors.watch.tcp.interface_bytes", lambda _: -counters._sequence
    )
    counters.is_there or pytest.skip("no socket diagnosis here")

    def answer(_: socket.socket) -> list[tuple[int, int, int]]:
        counters._sequence += 1
        return answers.pop(0)

    monkeypatch.setattr(counters, "_dump", answer)
    for _ in range(3):
        counters.update([1])
    assert (counters.sent_bytes, counters.received_bytes) == (60 + 10, 0)


def test_sockets_of_others_do_not_count() -> None:
    counters = TcpCounters()
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as sender:
        sender.sendall(b"x" * 1000)
        counters.update([])
        sender.sendall(b"x" * 1000)
        counters.update([1])
    assert (counters.sent_bytes, counters.received_bytes) == (0, 0)


def groups_in(folder: Path, memberships: str, mounts: str) -> Groups:
    """Return the groups of a process in a made-up procfs."""
    (folder / "proc" / "self").mkdir(parents=True)
    (folder / "proc" / "self" / "cgroup").write_text(memberships)
    (folder / "proc" / "self" / "mountinfo").write_text(mounts)
    return Groups.of(proc=folder / "proc")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_groups_of_version_2_limit_at_every_level(tmp_path: Path) -> None:
    top = tmp_path / "cgroup"
    write(top / "pods" / "job" / "cpu.max", "max 100000\n")
    write(top / "pods" / "job" / "memory.max", "max\n")
    write(top / "pods" / "job" / "cpu.stat", "usage_usec 5\nthrottled_usec 0\n")
    write(top / "pods" / "cpu.stat", "usage_usec 9\nthrottled_usec 1500\n")
    write(top / "pods" / "cpu.max", "150000 100000\n")
    write(top / "pods" / "memory.max", f"{2**31}\n")
    groups = groups_in(tmp_path, "0::/pods/job\n", f"30 1 0:26 / {top} rw - cgroup2 cgroup2 rw\n")
    assert (groups.version, groups.cores(), groups.memory_bytes()) == (2, 1.5, 2**31)
    assert groups.throttled_ns() == 1_500_000


def test_groups_of_version_1_have_a_hierarchy_each(tmp_path: Path) -> None:
    cpu, memory = tmp_path / "cpu", tmp_path / "memory"
    write(cpu / "job" / "cpu.cfs_quota_us", "50000\n")
    write(cpu / "job" / "cpu.cfs_period_us", "100000\n")
    write(cpu / "job" / "cpu.stat", "nr_throttled 3\nthrottled_time 77\n")
    write(cpu / "cpu.cfs_quota_us", "-1\n")
    write(memory / "memory.limit_in_bytes", f"{2**63 - 4096}\n")
    write(memory / "box" / "memory.limit_in_bytes", f"{3 * 2**30}\n")
    groups = groups_in(
        tmp_path,
        "4:memory:/box\n3:cpu,cpuacct:/job\n0::/\n",
        f"31 1 0:27 / {cpu} rw - cgroup cgroup rw,cpu,cpuacct\n"
        f"32 1 0:28 / {memory} rw - cgroup cgroup rw,memory\n"
        f"33 1 0:29 / {tmp_path} rw - cgroup2 cgroup2 rw\n",
    )
    assert (groups.version, groups.cores(), groups.memory_bytes()) == (1, 0.5, 3 * 2**30)
    assert groups.throttled_ns() == 77


def test_a_container_sees_its_group_as_the_root(tmp_path: Path) -> None:
    top = tmp_path / "cgroup"
    write(top / "cpu.max", "200000 100000\n")
    write(top / "memory.max", "1000\n")
    groups = groups_in(
        tmp_path, "0::/docker/abc\n", f"30 1 0:26 /docker/abc {top} ro - cgroup2 cgroup rw\n"
    )
    assert (groups.cores(), groups.memory_bytes()) == (2.0, 1000)


def test_no_groups_are_no_limit(tmp_path: Path) -> None:
    groups = Groups.of(proc=tmp_path)
    assert (groups.version, groups.cores(), groups.memory_bytes()) == (0, None, None)
    assert groups.throttled_ns() == 0


@pytest.mark.needs_root
@pytest.mark.slow
def test_a_quota_is_part_of_the_machine_that_was_measured(tmp_path: Path) -> None:
    """A tenth of a core takes ten times as long: the quota's waiting is not taken out."""
    parent = next((folder for folder in Groups.of().cpu), None)
    if parent is None or Groups.of().version != 1 or os.geteuid() != 0:
        pytest.skip("no cpu group of version 1 to make one in")
    script = tmp_path / "train.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {ROOT!r})\n"
        "from advisor.collectors.marker import step\n"
        "for _ in range(30):\n"
        "    total = sum(number * number for number in range(300000))\n"
        "    step()\n"
    )
    command = [sys.executable, str(script)]
    free = record_command(tmp_path, command)
    group = parent / f"advisor-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text("10000")
    except OSError:
        pytest.skip("cannot make a group here")
    try:
        os.environ["ADVISOR_TEST_GROUP"] = str(group / "tasks")
        code = (
            "import os, sys; open(os.environ['ADVISOR_TEST_GROUP'], 'w').write(str(os.getpid())); "
            f"sys.path.insert(0, {ROOT!r}); from pathlib import Path; "
            "from advisor.collectors.run.runner import profile; "
            "seen = profile(sys.argv[2:], run_root=Path(sys.argv[1]), measure_host=False); "
            "print(seen.step_time.corrected_s, seen.host.cpu_limit)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "runs"), *command],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    finally:
        del os.environ["ADVISOR_TEST_GROUP"]
        group.rmdir()
    corrected_s, cores = map(float, done.stdout.split())
    assert cores == 0.1
    assert free.step_time is not None
    assert 3.0 < corrected_s / free.step_time.corrected_s < 15.0


def test_a_suspended_machine_is_no_reason_for_a_burst() -> None:
    """After an hour asleep the next reading is one reading, and its clock has gone on."""
    now = [time.monotonic_ns()]
    sampler = Sampler(ProcessTree(os.getpid()), Groups.of(), clock=lambda: now[0])
    start = now[0]
    readings = []
    for jump_s in (0.2, 0.2, 3600.0, 0.2):
        now[0] += int(jump_s * 1e9)
        readings.append(read_reading(sampler.read(), start))
    assert [round(reading.t_s, 1) for reading in readings] == [0.2, 0.4, 3600.4, 3600.6]
    assert readings[-1].cpu_s >= readings[0].cpu_s
    assert all(reading.processes >= 1 for reading in readings)


NVML = """
#include <string.h>
typedef struct { unsigned gpu, memory; } util_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetName(void *d, char *text, unsigned n) { strncpy(text, "Stand-in", n); return 0; }
int nvmlDeviceGetUtilizationRates(void *d, util_t *u) { u->gpu = 40 * (2 - (long)d); return 0; }
int nvmlDeviceGetPowerUsage(void *d, unsigned *mw) { *mw = 150000; return 0; }
int nvmlDeviceGetClockInfo(void *d, int type, unsigned *mhz) { *mhz = 1000; return type != 1; }
#ifndef OLD
int nvmlDeviceGetPcieThroughput(void *d, int way, unsigned *kib) {
    *kib = way == 1 ? 8 : 4; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, process_t *p) {
#else
int nvmlDeviceGetComputeRunningProcesses_v2(void *d, unsigned *n, process_t *p) {
#endif
#ifdef HIDDEN
    *n = 0; return 0; }
#else
    if ((long)d == 2) { *n = 0; return 0; }
    p[0].pid = 4242; p[0].used = USED; p[1].pid = 7; p[1].used = 1024; *n = 2; return 0; }
#endif
"""


@pytest.fixture
def nvml(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A stand-in for NVIDIA's library with its calling conventions; no GPU is needed."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "libnvml.so"
    defined = ["-DUSED=1ull<<33", *getattr(request, "param", [])]
    command = [compiler, "-shared", "-fPIC", *defined, "-o", str(library), f"{tmp_path}/nvml.c"]
    subprocess.run(command, check=True)
    return str(library)


@pytest.mark.parametrize("nvml", [["-DHIDDEN"]], indirect=True)
def test_a_container_that_shows_no_processes_still_shows_a_busy_gpu(nvml: str) -> None:
    seen = Gpus(nvml).read([4242])
    assert (seen.busy_fraction, seen.memory_bytes, seen.power_w) == (0.4, -1, 150.0)


@pytest.mark.parametrize("nvml", [["-DOLD", "-UUSED", "-DUSED=-1"]], indirect=True)
def test_an_old_driver_and_one_that_hides_memory_leave_it_unknown(nvml: str) -> None:
    seen = Gpus(nvml).read([4242], with_pcie=True)
    assert (seen.busy_fraction, seen.memory_bytes) == (0.4, -1)
    assert (seen.received_bytes_per_s, seen.sent_bytes_per_s) == (-1.0, -1.0)


def test_gpu_figures_are_those_of_the_processes(nvml: str) -> None:
    gpus = Gpus(nvml)
    assert gpus.names == ("Stand-in", "Stand-in")
    mine = gpus.read([4242, 99], with_pcie=True)
    assert (mine.busy_fraction, mine.memory_bytes, mine.power_w) == (0.4, 2**33, 150.0)
    assert (mine.received_bytes_per_s, mine.sent_bytes_per_s) == (8192.0, 4096.0)
    assert gpus.read([4242]).received_bytes_per_s == -1.0
    # In a container the library names the host's pids: then whoever is there counts.
    assert gpus.read([1]).memory_bytes == 2**33 + 1024


def test_time_that_the_hypervisor_took_is_all_processors() -> None:
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert stolen_ns(b"cpu  1 2 3 4 5 6 7 80 9 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n") == 80 * tick_ns
    assert stolen_ns(b"") == 0


def test_no_library_is_no_gpu() -> None:
    gpus = Gpus("libnothing.so.0")
    assert gpus.names == ()
    assert gpus.read([1]).memory_bytes == -1
    assert ctypes.sizeof(ctypes.c_uint) == 4


@pytest.mark.parametrize(
    ("computed", "is_busy"), [(0.0, False), (0.2, False), (0.3, True), (2.0, True)]
)
def test_others_compute_where_a_quarter_of_a_core_is_taken(
    monkeypatch: pytest.MonkeyPatch, computed: float, is_busy: bool
) -> None:
    """``computed`` cores are busy while the sampler looks, before anything is started."""
    now = [10**9]
    sampler = Sampler(ProcessTree(os.getpid()), Groups.of(), clock=lambda: now[0])
    monkeypatch.setattr(sampler, "machine_cpu_ns", lambda: int(computed * now[0]))

    def pause(seconds: float) -> None:
        now[0] += int(seconds * 1e9)

    assert sampler.others_compute(pause) is is_busy


def test_a_busy_machine_has_threads_sleep_sooner_unless_the_user_chose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    plan = RecordingPlan(run="run", command=())
    assert "GOMP_SPINCOUNT" not in Child(plan).environment()
    busy = Child(plan, is_beside_others=True)
    assert busy.environment()["GOMP_SPINCOUNT"] == "0"
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert busy.environment()["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert "GOMP_SPINCOUNT" not in busy.environment()
