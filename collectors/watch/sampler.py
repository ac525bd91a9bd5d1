"""One reading of everything that can be seen from outside, at whatever time it is asked for.

What is cheap is read at every tick; what is dear has its own period: disk every second, network
every other, pressure and stolen time every fifth, shared pages (``Proportional``) as seldom as
their cost demands. The tree is walked only when somebody was born.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from advisor.collectors.format import read_touched
from advisor.collectors.hooks import format as fmt
from advisor.collectors.watch.host import Groups, KeptFile
from advisor.collectors.watch.probes import GpuReading, Gpus, TcpCounters
from advisor.collectors.watch.processes import OneProcess, Processes

_SECOND_NS = 1_000_000_000
# The walks of a recording may take this long, and this share of the time in addition.
_ALLOWANCE_NS = 100_000_000
_SHARE = 2e-4
# A walk's cost is estimated before it is made, from the tree's resident memory and its processes
# (4.25 ms for a process of 1 GiB, 40 us for a small one; shared machine, 2026-11-22).
_NS_PER_BYTE = 4.25e6 / 2**30
_NS_PER_PROCESS = 40_000
_NEGLIGIBLE = 0.05  # of the largest process
# Among the same processes it is looked again after so long, doubling up to the second figure.
_FIRST_AGAIN_NS, _LAST_AGAIN_NS = _SECOND_NS, 16 * _SECOND_NS


class Proportional:
    """Follows the memory that processes use together, pages that they share counted once.

    Forked workers have their parent's pages in their own resident memory: three processes may look
    like three times the memory that they use. Only the kernel's walk of the page tables
    (``smaps_rollup``) tells a process's proportional memory, in which every shared page is divided
    by those that share it, and that is dear. It is spared where it could change little: what is
    used is no less than the largest process, so nobody is counted twice by more than the others'
    memory. Between two walks every process keeps its proportional share of its resident memory. Of
    those that were never walked pages of files and shared memory are counted once, their own pages
    in full.

    ``spent``: CPU time of the walks, of this thread [ns]; injected by tests.
    """

    def __init__(self, now_ns: int, *, spent: Callable[[], int] = time.thread_time_ns) -> None:
        self._start_ns = now_ns
        self._spent = spent
        self._spent_ns = 0
        self._shares: dict[int, float] = {}  # by process number
        self._due_ns = 0
        self._again_ns = _FIRST_AGAIN_NS

    def used_bytes(self, processes: Mapping[int, OneProcess], now_ns: int) -> int:
        """Return the memory that the processes use together, as last read. [bytes]."""
        total = sum(process.rss_bytes for process in processes.values())
        largest = max((process.rss_bytes for process in processes.values()), default=0)
        if total - largest <= _NEGLIGIBLE * largest:
            return total
        if self._is_due(processes, total, now_ns):
            self._walk(processes, now_ns)
        used, shared = 0.0, 0
        for pid, process in processes.items():
            share = self._shares.get(pid)
            if share is None:
                used += process.rss_bytes - process.shared_bytes
                shared = max(shared, process.shared_bytes)
            else:
                used += process.rss_bytes * share
        return min(total, max(largest, int(used) + shared))

    def _is_due(self, processes: Mapping[int, OneProcess], total_bytes: int, now_ns: int) -> bool:
        """Whether somebody came or went, or it is time to look again, and it can be afforded."""
        is_same = processes.keys() == self._shares.keys()
        if is_same and now_ns < self._due_ns:
            return False
        if not is_same:
            self._again_ns = _FIRST_AGAIN_NS
        cost_ns = total_bytes * _NS_PER_BYTE + len(processes) * _NS_PER_PROCESS
        budget_ns = _ALLOWANCE_NS + (now_ns - self._start_ns) * _SHARE
        return self._spent_ns + cost_ns <= budget_ns

    def _walk(self, processes: Mapping[int, OneProcess], now_ns: int) -> None:
        begin_ns = self._spent()
        shares = {}
        for pid, process in processes.items():
            pss = process.pss_bytes()
            if pss is not None and process.rss_bytes:
                shares[pid] = min(1.0, pss / process.rss_bytes)
            elif not process.read(is_full=False):  # it has ended since it was read
                shares[pid] = 0.0
        self._shares = shares
        self._spent_ns += self._spent() - begin_ns
        self._due_ns = now_ns + self._again_ns
        self._again_ns = min(2 * self._again_ns, _LAST_AGAIN_NS)


_TREE_NS = _SECOND_NS // 5
_NETWORK_NS = 2 * _SECOND_NS
_DISK_NS = _SECOND_NS
_GPU_NS = _SECOND_NS
_PCIE_NS = 10 * _SECOND_NS
_SYSTEM_NS = 5 * _SECOND_NS
_PROCESSES_NS = _SECOND_NS
_MOST_PROCESSES = 32
_LOOK_S = 0.1
_BUSY_CORES = 0.25  # what others compute meanwhile


class Sampler:
    """Takes readings of a process tree."""

    def __init__(
        self, tree: Processes, groups: Groups, *, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._tree = tree
        self._groups = groups
        self._clock = clock
        # What is not read at every tick, as last read; -1 is unknown.
        self._pressure_fraction, self._stolen_ns, self._machine_cpu_ns = -1.0, 0, 0
        self._gpu = self._with_pcie = GpuReading()
        self._tcp = TcpCounters()
        self._gpus = Gpus()
        kinds = ("tree", "system", "network", "disk", "gpu", "pcie", "processes")
        self._due = dict.fromkeys(kinds, 0)
        self._start_ns = clock()
        self.memory = Proportional(self._start_ns)
        self._throttled_before_ns = groups.throttled_ns()
        self._pressure = KeptFile("/proc/pressure/cpu")
        self._stat = KeptFile("/proc/stat")
        self._stolen_before_ns = stolen_ns(self._stat.read())

    def read(self) -> bytes:
        """Return one reading as a payload."""
        now_ns = self._clock()
        if self._is_due("tree", now_ns, _TREE_NS):
            self._tree.refresh()
        if self._is_due("network", now_ns, _NETWORK_NS):
            self._tcp.update(self._tree.processes)
        if self._is_due("system", now_ns, self._system_period_ns(now_ns)):
            self._pressure_fraction = pressure_fraction(self._pressure.read())
            stat = self._stat.read()
            self._stolen_ns = stolen_ns(stat) - self._stolen_before_ns
            self._machine_cpu_ns = busy_ns(stat)
        if self._gpus.names and self._is_due("gpu", now_ns, _GPU_NS):
            with_pcie = self._is_due("pcie", now_ns, _PCIE_NS)
            self._gpu = self._gpus.read(self._tree.processes, with_pcie=with_pcie)
            self._with_pcie = self._gpu if with_pcie else self._with_pcie
        usage = self._tree.read(is_full=self._is_due("disk", now_ns, _DISK_NS))
        gpu = self._gpu
        used_bytes = self.memory.used_bytes(self._tree.processes, now_ns)
        return fmt.READING_PAYLOAD.pack(
            now_ns, usage.processes, usage.cpu_ns, usage.run_delay_ns, usage.rss_bytes,
            used_bytes, usage.read_bytes, usage.write_bytes,
            self._tcp.received_bytes, self._tcp.sent_bytes,
            max(0, self._groups.throttled_ns() - self._throttled_before_ns),
            self._pressure_fraction, self._stolen_ns, usage.major_faults,
            gpu.busy_fraction, gpu.memory_bytes, gpu.power_w, gpu.clock_mhz,
            self._with_pcie.received_bytes_per_s, self._with_pcie.sent_bytes_per_s,
            usage.minor_faults, usage.slowest_ns, self._machine_cpu_ns,
        )  # fmt: skip

    def of_processes(self) -> Iterator[bytes]:
        """Yield a payload for each of the largest processes, once a second.

        Their figures are those of the reading before; call it after ``read``.
        """
        now_ns = self._clock()
        if not self._is_due("processes", now_ns, _PROCESSES_NS):
            return
        largest = list(self._tree.processes.values())
        if len(largest) > _MOST_PROCESSES:
            rank = sorted(largest, key=lambda one: one.usage.rss_bytes, reverse=True)
            largest = rank[:_MOST_PROCESSES]
        for one in largest:
            usage = one.usage
            yield fmt.PROCESS_PAYLOAD.pack(
                now_ns, one.pid, one.start_ticks, usage.rss_bytes, usage.cpu_ns,
                usage.minor_faults, usage.major_faults, *self._tcp.by_pid.get(one.pid, (0, 0)),
            )  # fmt: skip

    def watch_network(self, enter: Callable[[], AbstractContextManager[None]]) -> None:
        """Count the bytes of sockets in another network namespace too; ``enter`` goes there."""
        with enter():
            self._tcp.look_here_too()

    def look_at_everything(self) -> None:
        """Have the next reading look at what is read more seldom, as far as that is cheap."""
        self._due.update(tree=0, network=0, disk=0, system=0, processes=0)

    def _is_due(self, what: str, now_ns: int, period_ns: int) -> bool:
        """Whether it is time for a probe; if so the next time is a period from now.

        Missed times are not made up for: a machine that was suspended is no reason for a burst.
        """
        if now_ns < self._due[what]:
            return False
        self._due[what] = now_ns + period_ns
        return True

    def _system_period_ns(self, now_ns: int) -> int:
        """Return how soon to look at the whole machine again: a short run is to be seen twice."""
        return min(_SYSTEM_NS, _SECOND_NS + (now_ns - self._start_ns) // 4)

    def machine_cpu_ns(self) -> int:
        """Return the processor time of the whole machine now, 0 unknown [ns]."""
        return busy_ns(self._stat.read())

    def others_compute(self, pause: Callable[[float], None] = time.sleep) -> bool:
        """Look for a moment whether the machine computes although nothing was started yet."""
        begin_ns, busy_before_ns = self._clock(), self.machine_cpu_ns()
        pause(_LOOK_S)
        return self.machine_cpu_ns() - busy_before_ns > _BUSY_CORES * (self._clock() - begin_ns)


def pressure_fraction(content: bytes) -> float:
    """Return the share of the last ten seconds in which somebody waited; -1 unknown.

    ``content`` is that of ``/proc/pressure/cpu``.

    >>> pressure_fraction(b"some avg10=12.50 avg60=8.00 avg300=3.00 total=99")
    0.125
    """
    try:
        return float(content.split(b"avg10=", 1)[1].split(None, 1)[0]) / 100.0
    except (IndexError, ValueError):
        return -1.0


def stolen_ns(content: bytes) -> int:
    """Return the time that the hypervisor gave to others, all processors together [ns].

    ``content`` is that of ``/proc/stat``.
    """
    try:
        return int(content.split(None, 9)[8]) * (_SECOND_NS // os.sysconf("SC_CLK_TCK"))
    except (IndexError, ValueError):
        return 0


def busy_ns(content: bytes) -> int:
    """Return the time that all processors together have computed, since the start [ns].

    ``content`` is that of ``/proc/stat``; idling, waiting for disks and stolen time are none.

    >>> busy_ns(b"cpu  100 20 30 5000 40 5 6 7 0 0") * os.sysconf("SC_CLK_TCK") // 10**9
    161
    """
    try:
        user, nice, system, _, _, interrupts, soft = map(int, content.split(None, 8)[1:8])
    except ValueError:
        return 0
    ticks = user + nice + system + interrupts + soft
    return ticks * (_SECOND_NS // os.sysconf("SC_CLK_TCK"))


LENGTHS_NS = tuple(1_000_000_000 * length for length in (1, 2, 4, 8, 16))
_PATIENCE = 100
# An order for all pages, private and of files; see proc(5).
_ALL_PAGES = b"1"
# What the first line of a mapping begins with; those of its figures begin with a capital.
_OF_ADDRESSES = frozenset(bytes([sign]) for sign in b"0123456789abcdef")


class TouchedMemory:
    """Follows what the processes of a tree touch, beside what they hold: opt-in, from outside.

    The processor marks a page's entry when the page is used. Writing 1 to ``/proc/PID/clear_refs``
    takes the marks away, and some time later ``smaps`` says how much is marked again: what was
    touched in between. Windows take turns in length, so that it can be seen how what is touched
    grows with the time that is looked at. Pages of a program and its libraries are marked by
    whoever starts or ends it, too: a neighbour's Python marks 6 MB of everybody's. They count as
    touched.

    The script does nothing for it and no page is moved; both walks hold up its page faults
    meanwhile, some 0.1 s per GiB on a busy machine. So a window is at least ``_PATIENCE`` times as
    long as the walks before it took. Pages that processes share count once for each.

    Attributes
    ----------
    failure : str
        Why nothing can be seen here; empty while it can.
    """

    def __init__(
        self, proc: Path = Path("/proc"), *, clock: Callable[[], int] = time.monotonic_ns,
        spent: Callable[[], int] = time.thread_time_ns,
    ) -> None:  # fmt: skip
        self.failure = ""
        self._proc = proc
        self._clock = clock
        self._spent = spent
        self._begin_ns = 0
        self._due_ns = 0
        self._turn = 0
        self._held = 0
        self._is_running = False
        self._watched: set[int] = set()

    def look(self, pids: Iterable[int], *, is_running: bool = False) -> bytes | None:
        """Return a payload where a window has ended, and begin the next.

        ``is_running``: the first step is over: with it the windows begin anew, the shortest first.
        """
        now_ns = self._clock()
        begins = is_running and not self._is_running
        if self.failure or (now_ns < self._due_ns and not begins):
            return None
        living, before_ns = set(pids), self._spent()
        # Of who came meanwhile everything is marked that it ever touched; who left left nothing.
        seen = [usage for pid in living & self._watched if (usage := self._usage(pid))]
        payload = None
        if seen and self._watched <= living:
            touched, resident = (sum(column) for column in zip(*seen, strict=True))
            payload = fmt.TOUCHED_PAYLOAD.pack(
                now_ns, now_ns - self._begin_ns, touched, resident, len(seen), self._held
            )
            # While memory grows the program starts: afterwards the shortest window comes first.
            last = read_touched(payload, 0)
            self._turn = self._turn + 1 if last is not None and last.is_steady else 0
        if begins:
            self._is_running, self._turn = True, 0
        self._watched = {pid for pid in living if self._clear(pid)}
        self._held = sum(self._resident(pid) for pid in self._watched)
        self._begin_ns = self._clock()
        cost_ns = self._spent() - before_ns
        length_ns = LENGTHS_NS[self._turn % len(LENGTHS_NS)]
        self._due_ns = self._begin_ns + max(length_ns, _PATIENCE * cost_ns)
        return payload

    def _clear(self, pid: int) -> bool:
        try:
            fd = os.open(f"{self._proc}/{pid}/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            # The process is gone, or this kernel has none of it.
            if (self._proc / str(pid)).exists():
                self.failure = "this kernel does not say which memory is touched"
            return False
        except OSError as error:
            self.failure = f"touched memory cannot be seen: {error.strerror}"
            return False
        try:
            os.write(fd, _ALL_PAGES)
        except OSError:  # it ended meanwhile
            return False
        finally:
            os.close(fd)
        return True

    def _resident(self, pid: int) -> int:
        """Return what a process holds, without a walk [bytes]."""
        try:
            pages = (self._proc / str(pid) / "statm").read_bytes().split(None, 2)[1]
            return int(pages) * mmap.PAGESIZE
        except (OSError, IndexError, ValueError):
            return 0

    def _usage(self, pid: int) -> tuple[int, int] | None:
        """Return what a process has touched since, and what it holds [bytes]."""
        try:
            return touched_and_resident((self._proc / str(pid) / "smaps").read_bytes())
        except (OSError, IndexError, ValueError):
            return None


def touched_and_resident(smaps: bytes) -> tuple[int, int]:
    """Return the bytes that are marked, or are of programs and libraries, and all that are there.

    Raises ValueError or IndexError where it is no table of mappings.
    """
    touched: dict[tuple[bytes, bytes], int] = {}  # by device and inode
    resident: dict[tuple[bytes, bytes], int] = {}
    programs = set()
    file = b"", b"0"
    for line in smaps.split(b"\n"):
        if line.startswith(b"Rss:"):
            resident[file] = resident.get(file, 0) + int(line[4:-2])
        elif line.startswith(b"Referenced:"):
            touched[file] = touched.get(file, 0) + int(line[11:-2])
        elif line[:1] in _OF_ADDRESSES:
            words = line.split(None, 5)
            file = words[3], words[4]
            if words[4] != b"0" and words[1][2:3] == b"x":
                programs.add(file)
    if not resident:
        raise ValueError("no mappings")
    marked = sum(size for name, size in touched.items() if name not in programs)
    whole = sum(size for name, size in resident.items() if name in programs)
    return (marked + whole) * 1024, sum(resident.values()) * 1024
