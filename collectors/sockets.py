"""TCP bytes of single processes, without privileges: the kernel's socket diagnosis.

Interface counters belong to a whole network namespace. ``NETLINK_SOCK_DIAG`` tells for every TCP
socket how many bytes the other side acknowledged and how many came in (``tcp_info``), and a
process's descriptors say which sockets are its own. What a socket sends after the last look and
before it is closed is lost; UDP and RDMA are not seen; loopback is, and local ranks talk over it.

Source: ``sock_diag(7)``; offsets in ``struct inet_diag_msg`` and ``struct tcp_info`` from
``linux/inet_diag.h`` and ``linux/tcp.h`` (both only ever grow at the end).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator

from advisor.collectors.procfs import KeptFile

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
_ACKED_OFFSET = 120  # tcpi_bytes_acked, followed by tcpi_bytes_received
_COUNTERS = struct.Struct("=QQ")
_ATTRIBUTE = struct.Struct("=HH")


class TcpCounters:
    """Bytes that a set of processes sent and received, growing from the first look on.

    ``is_there`` is False where the kernel does not answer.
    """

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0
        self._before: dict[int, tuple[int, int]] = {}
        self._is_first = True
        self._sequence = 0
        self._traffic = -1
        self._interfaces = KeptFile("/proc/net/dev")
        try:
            self._socket: socket.socket | None = socket.socket(
                socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG
            )
            self._socket.settimeout(0.2)
        except (OSError, AttributeError):
            self._socket = None

    @property
    def is_there(self) -> bool:
        """Whether the kernel can be asked at all."""
        return self._socket is not None

    def update(self, pids: Iterable[int]) -> None:
        """Look again, unless no byte has passed any interface since the last look."""
        traffic = interface_bytes(self._interfaces.read())
        if self._socket is None or traffic == self._traffic:
            return
        self._traffic = traffic
        inodes = {inode for pid in pids for inode in socket_inodes(pid)}
        found = {}
        for inode, sent, received in self._dump() if inodes else ():
            if inode in inodes:
                found[inode] = sent, received
        for inode, (sent, received) in found.items():
            # What a socket did before the first look is not the recording's.
            start = (sent, received) if self._is_first else (0, 0)
            sent_before, received_before = self._before.get(inode, start)
            self.sent_bytes += max(0, sent - sent_before)
            self.received_bytes += max(0, received - received_before)
        # An answer may be cut short: whoever still has a socket has not begun anew.
        kept = {inode: counts for inode, counts in self._before.items() if inode in inodes}
        self._before = {**kept, **found}
        self._is_first = False

    def _dump(self) -> Iterator[tuple[int, int, int]]:
        """Yield (inode, bytes sent and acknowledged, bytes received) of every TCP socket."""
        assert self._socket is not None
        for family in (socket.AF_INET, socket.AF_INET6):
            self._sequence += 1
            request = _REQUEST.pack(
                _REQUEST.size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, self._sequence, 0,
                family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), _ALL_STATES,
            )  # fmt: skip
            try:
                self._socket.sendto(request, (0, 0))
                yield from self._replies()
            except OSError:
                return

    def _replies(self) -> Iterator[tuple[int, int, int]]:
        assert self._socket is not None
        while True:
            data = self._socket.recv(1 << 16)
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
        start = at + _ATTRIBUTE.size + _ACKED_OFFSET
        if kind == _INET_DIAG_INFO and start + _COUNTERS.size <= at + length:
            sent, received = _COUNTERS.unpack_from(message, start)
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


def interface_bytes(table: bytes) -> int:
    """Return the bytes that passed all interfaces in ``/proc/net/dev``, loopback included."""
    total = 0
    for line in table.splitlines()[2:]:
        fields = line.partition(b":")[2].split()
        if len(fields) > 8:
            total += int(fields[0]) + int(fields[8])
    return total
