"""NVIDIA GPUs through NVML, only where its library is, and the TCP bytes of single processes.

NVML is called through ctypes, so that nothing need be installed. Its utilisation is the share of
time in which *some* kernel ran, over its own period of 1/6 to 1 s: asking more often than once a
second learns nothing, and it is no occupancy.

Source: NVIDIA, NVML API Reference Guide (functions and structures are named as there).
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from advisor.collectors.hooks.communication import ACKED_OFFSET, COUNTERS
from advisor.collectors.watch.host import KeptFile

_CLOCK_SM = 1
_PCIE_TX, _PCIE_RX = 0, 1
_NAME_BYTES = 96
_MOST_PROCESSES = 256
_NOT_AVAILABLE = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE: the driver keeps a process's memory secret


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _ProcessInfo(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """All GPUs that the processes use: means of shares and clocks, sums of the rest.

    -1 is unknown: the device or the driver does not tell.
    """

    busy_fraction: float = -1.0
    memory_bytes: int = -1
    power_w: float = -1.0
    clock_mhz: float = -1.0
    received_bytes_per_s: float = -1.0
    sent_bytes_per_s: float = -1.0


class Gpus:
    """The GPUs of this machine; none where the library is missing."""

    def __init__(self, library: str = "libnvidia-ml.so.1") -> None:
        self._devices: list[ctypes.c_void_p] = []
        self.names: tuple[str, ...] = ()
        try:
            self._nvml = ctypes.CDLL(library)
            failed = self._nvml.nvmlInit_v2()
        except (OSError, AttributeError):  # no library, or one that is none
            return
        if failed:
            return
        count = self._number("nvmlDeviceGetCount_v2") or 0
        for index in range(int(count)):
            device = ctypes.c_void_p()
            if self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0:
                self._devices.append(device)
        self.names = tuple(self._name(device) for device in self._devices)

    def read(self, pids: Iterable[int], *, with_pcie: bool = False) -> GpuReading:
        """Return one reading of the GPUs that ``pids`` compute on.

        Inside a container NVML names the host's pids, or none: then every GPU with a process on
        it counts, or every GPU that is busy, without its memory. ``with_pcie`` takes 40 ms a GPU,
        in which the driver counts bytes.
        """
        if not self._devices:
            return GpuReading()
        wanted = set(pids)
        tables = [(device, self._processes(device)) for device in self._devices]
        own = [
            (device, [row for row in rows if row[0] in wanted])
            for device, rows in tables
            if any(pid in wanted for pid, _ in rows)
        ]
        used = own or [(device, rows) for device, rows in tables if rows]
        used = used or [(d, [(0, -1.0)]) for d in self._devices if self._busy(d) > 0]
        if not used:
            return GpuReading(busy_fraction=0.0, memory_bytes=0, power_w=0.0)
        devices = [device for device, _ in used]
        return GpuReading(
            busy_fraction=_mean([self._busy(device) for device in devices]),
            memory_bytes=int(_total([size for _, rows in used for _, size in rows])),
            power_w=_total([self._power(device) for device in devices]),
            clock_mhz=_mean([self._clock(device) for device in devices]),
            received_bytes_per_s=_total([self._pcie(d, _PCIE_RX) for d in devices * with_pcie]),
            sent_bytes_per_s=_total([self._pcie(d, _PCIE_TX) for d in devices * with_pcie]),
        )

    def _processes(self, device: ctypes.c_void_p) -> list[tuple[int, float]]:
        """Return (pid, bytes or -1) of the processes that compute on a device."""
        rows = (_ProcessInfo * _MOST_PROCESSES)()
        count = ctypes.c_uint(_MOST_PROCESSES)
        # Drivers before 510 know only the second version, of the same layout.
        for name in ("_v3", "_v2"):
            function = getattr(self._nvml, f"nvmlDeviceGetComputeRunningProcesses{name}", None)
            if function is not None:
                break
        if function is None or function(device, ctypes.byref(count), rows) != 0:
            return []
        return [
            (row.pid, -1.0 if row.used_memory == _NOT_AVAILABLE else float(row.used_memory))
            for row in rows[: count.value]
        ]

    def _busy(self, device: ctypes.c_void_p) -> float:
        rates = _Utilization()
        failed = self._call("nvmlDeviceGetUtilizationRates", device, ctypes.byref(rates))
        return -1.0 if failed else rates.gpu / 100.0

    def _power(self, device: ctypes.c_void_p) -> float:
        milliwatt = self._number("nvmlDeviceGetPowerUsage", device)
        return -1.0 if milliwatt is None else milliwatt / 1000.0

    def _clock(self, device: ctypes.c_void_p) -> float:
        clock = self._number("nvmlDeviceGetClockInfo", device, _CLOCK_SM)
        return -1.0 if clock is None else float(clock)

    def _pcie(self, device: ctypes.c_void_p, way: int) -> float:
        kib = self._number("nvmlDeviceGetPcieThroughput", device, way)
        return -1.0 if kib is None else kib * 1024.0

    def _name(self, device: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(_NAME_BYTES)
        failed = self._call("nvmlDeviceGetName", device, text, _NAME_BYTES)
        return "GPU" if failed else text.value.decode(errors="replace")

    def _call(self, name: str, *arguments: Any) -> bool:
        """Call an NVML function and return whether it failed, or is missing in this driver."""
        function = getattr(self._nvml, name, None)
        return function is None or function(*arguments) != 0

    def _number(self, name: str, *arguments: Any) -> int | None:
        """Return the unsigned number that an NVML function writes, or None if it fails."""
        out = ctypes.c_uint()
        return None if self._call(name, *arguments, ctypes.byref(out)) else out.value


def _mean(values: list[float]) -> float:
    known = [value for value in values if value >= 0]
    return sum(known) / len(known) if known else -1.0


def _total(values: list[float]) -> float:
    known = [value for value in values if value >= 0]
    return sum(known) if known else -1.0


_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_INET_DIAG_INFO = 2
_ALL_STATES = 0xFFFFFFFF
_REQUEST = struct.Struct("=IHHII BBBxI 48x")
_HEADER = struct.Struct("=IHHII")
_MESSAGE_BYTES = 72  # struct inet_diag_msg
_INODE_OFFSET = 68
_ATTRIBUTE = struct.Struct("=HH")


class TcpCounters:
    """Bytes that a set of processes sent and received, growing from the first look on.

    Interface counters belong to a whole network namespace. ``NETLINK_SOCK_DIAG`` tells for every
    TCP socket, without privileges, how many bytes the other side acknowledged and how many came in
    (``tcp_info``), and a process's descriptors say which sockets are its own. What a socket sends
    after the last look and before it is closed is lost; UDP and RDMA are not seen; loopback is,
    and local ranks talk over it.

    Source: ``sock_diag(7)``; offsets in ``struct inet_diag_msg`` and ``struct tcp_info`` from
    ``linux/inet_diag.h`` and ``linux/tcp.h`` (both only ever grow at the end).

    ``is_there`` is False where the kernel does not answer. ``by_pid`` holds the bytes received
    and sent by each process; a socket that several share counts as the first one's.
    """

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0
        self.by_pid: dict[int, tuple[int, int]] = {}
        self._before: dict[int, tuple[int, int]] = {}
        self._is_first = True
        self._sequence = 0
        self._traffic = -1
        self._interfaces: list[KeptFile] = []
        self._sockets: list[socket.socket] = []
        self.look_here_too()

    def look_here_too(self) -> None:
        """Watch the network namespace that the calling process is in; the first one it was in is.

        A diagnosis socket, like the table of interfaces, tells of the namespace it was opened in.
        """
        self._interfaces.append(KeptFile(f"/proc/{os.getpid()}/net/dev"))
        try:
            diagnosis = socket.socket(
                socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG
            )
        except (OSError, AttributeError):
            return
        diagnosis.settimeout(0.2)
        self._sockets.append(diagnosis)

    @property
    def is_there(self) -> bool:
        """Whether the kernel can be asked at all."""
        return bool(self._sockets)

    def update(self, pids: Iterable[int]) -> None:
        """Look again, unless no byte has passed any interface since the last look."""
        traffic = sum(interface_bytes(table.read()) for table in self._interfaces)
        if not self._sockets or traffic == self._traffic:
            return
        self._traffic = traffic
        inodes: dict[int, int] = {}
        for pid in pids:
            for inode in socket_inodes(pid):
                inodes.setdefault(inode, pid)
        found = {}
        for diagnosis in self._sockets if inodes else ():
            for inode, sent, received in self._dump(diagnosis):
                if inode in inodes:
                    found[inode] = sent, received
        for inode, (sent, received) in found.items():
            # What a socket did before the first look is not the recording's.
            start = (sent, received) if self._is_first else (0, 0)
            sent_before, received_before = self._before.get(inode, start)
            more = max(0, received - received_before), max(0, sent - sent_before)
            self.received_bytes += more[0]
            self.sent_bytes += more[1]
            mine = self.by_pid.get(inodes[inode], (0, 0))
            self.by_pid[inodes[inode]] = mine[0] + more[0], mine[1] + more[1]
        # An answer may be cut short: whoever still has a socket has not begun anew.
        kept = {inode: counts for inode, counts in self._before.items() if inode in inodes}
        self._before = {**kept, **found}
        self._is_first = False

    def _dump(self, diagnosis: socket.socket) -> Iterator[tuple[int, int, int]]:
        """Yield (inode, bytes sent and acknowledged, bytes received) of every TCP socket."""
        for family in (socket.AF_INET, socket.AF_INET6):
            self._sequence += 1
            request = _REQUEST.pack(
                _REQUEST.size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, self._sequence, 0,
                family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), _ALL_STATES,
            )  # fmt: skip
            try:
                diagnosis.sendto(request, (0, 0))
                yield from self._replies(diagnosis)
            except OSError:
                return

    def _replies(self, diagnosis: socket.socket) -> Iterator[tuple[int, int, int]]:
        while True:
            data = diagnosis.recv(1 << 16)
            at = 0
            while at + _HEADER.size <= len(data):
                length, kind, _, sequence, _ = _HEADER.unpack_from(data, at)
                if length < _HEADER.size:
                    return
                if sequence != self._sequence:  # left over from an answer that came too late
                    at += (length + 3) & ~3
                    continue
                if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                    return
                counters = _counters(data[at + _HEADER.size : at + length])
                if counters is not None:
                    yield counters
                at += (length + 3) & ~3


def _counters(message: bytes) -> tuple[int, int, int] | None:
    """Return (inode, sent, received) of one diagnosed socket, if it has ``tcp_info``."""
    if len(message) < _MESSAGE_BYTES:
        return None
    inode = int.from_bytes(message[_INODE_OFFSET : _INODE_OFFSET + 4], "little")
    at = _MESSAGE_BYTES
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if length < _ATTRIBUTE.size:
            return None
        start = at + _ATTRIBUTE.size + ACKED_OFFSET
        if kind == _INET_DIAG_INFO and start + COUNTERS.size <= at + length:
            sent, received = COUNTERS.unpack_from(message, start)
            return inode, sent, received
        at += (length + 3) & ~3
    return None


def socket_inodes(pid: int) -> Iterator[int]:
    """Yield the inodes of a process's sockets."""
    folder = f"/proc/{pid}/fd"
    try:
        descriptors = os.listdir(folder)
    except OSError:
        return
    for descriptor in descriptors:
        try:
            target = os.readlink(f"{folder}/{descriptor}")
        except OSError:
            continue
        if target.startswith("socket:["):
            yield int(target[8:-1])


def by_interface(table: bytes) -> dict[bytes, tuple[int, int]]:
    """Return the bytes received and sent by each interface in ``/proc/net/dev``."""
    rows = (line.partition(b":") for line in table.splitlines()[2:])
    found = {name.strip(): rest.split() for name, _, rest in rows}
    return {name: (int(of[0]), int(of[8])) for name, of in found.items() if len(of) > 8}


def interface_bytes(table: bytes) -> int:
    """Return the bytes that passed all interfaces, loopback included."""
    return sum(map(sum, by_interface(table).values()))
