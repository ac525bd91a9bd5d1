"""One reading of everything that can be seen from outside, at whatever time it is asked for.

What is cheap is read at every tick; what is dear has its own period: disk every second, network
every other, pressure and stolen time every fifth, shared pages (``Proportional``) as seldom as
their cost demands. The tree is walked only when somebody was born.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from advisor.collectors.hooks import format as fmt
from advisor.collectors.watch.host import Groups, KeptFile
from advisor.collectors.watch.nvml import GpuReading, Gpus
from advisor.collectors.watch.processes import Processes
from advisor.collectors.watch.proportional import Proportional
from advisor.collectors.watch.tcp import TcpCounters

_SECOND_NS = 1_000_000_000
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
