"""TCP bytes of single processes, without privileges: the kernel's socket diagnosis."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator

from advisor.collectors.hooks.communication import ACKED_OFFSET, COUNTERS
from advisor.collectors.watch.host import KeptFile

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
