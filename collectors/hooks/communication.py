"""The cost of training together in this process: time in collectives, bytes, DDP's own times.

The calls of ``torch.distributed`` are timed here. DistributedDataParallel exchanges gradients in
C++ while the backward pass goes on; it times that itself, and is asked for it.
"""

from __future__ import annotations

import functools
import os
import struct
import time

from . import format as fmt
from .writer import Writer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


# Offsets in ``struct tcp_info`` from ``linux/tcp.h``, which only ever grows at the end.
ACKED_OFFSET = 120  # tcpi_bytes_acked, followed by tcpi_bytes_received
COUNTERS = struct.Struct("=QQ")
_INFO_BYTES = ACKED_OFFSET + COUNTERS.size


def tcp_bytes() -> tuple[int, int]:
    """Return the bytes sent (and acknowledged) and received by the sockets now open.

    Raises OSError, AttributeError where the system does not tell.
    """
    import socket

    sent = received = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink("/proc/self/fd/" + descriptor).startswith("socket:"):
                continue
            other = socket.socket(fileno=os.dup(int(descriptor)))
        except OSError:  # closed meanwhile
            continue
        with other:
            is_tcp = other.family in (socket.AF_INET, socket.AF_INET6)
            if not is_tcp or other.type != socket.SOCK_STREAM:
                continue
            try:
                info = other.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            except OSError:
                continue
            if len(info) >= _INFO_BYTES:
                its_sent, its_received = COUNTERS.unpack_from(info, ACKED_OFFSET)
                sent, received = sent + its_sent, received + its_received
    return sent, received


_COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather",
    "scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single",
    "send", "recv", "isend", "irecv", "barrier", "all_reduce_coalesced", "all_gather_coalesced",
)  # fmt: skip
# Asking sockets and DDP may take this share of the time: 0.1 ms on an idle machine.
_SHARE = 2.5e-3
_PERIOD_NS = 20_000_000


class Communication:
    """Counters since this process joined a process group.

    Attributes
    ----------
    wait_ns : int
        Time that the main thread spent inside collectives and waiting for them.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.wait_ns = self.calls = self.payload_bytes = 0
        self._depth = 0
        self._due_ns = 0
        self._sent = self._received = -1
        self._ddp = -1, -1
        self._has_asked_ddp = False

    def record(
        self, now_ns: int, delay_ns: int, steps: int, model: Any, is_last: bool = False
    ) -> None:
        """Write the counters after a step; sockets and DDP are asked as seldom as they cost.

        ``delay_ns`` is the main thread's wait for a core so far, ``model`` a weak reference to the
        one that was wrapped for data parallelism, or None.
        """
        if now_ns >= self._due_ns or is_last:
            begin_ns = time.monotonic_ns()
            self._ask_sockets()
            if not is_last:
                self._ask_ddp(model)
            took_ns = time.monotonic_ns() - begin_ns
            self._due_ns = now_ns + max(_PERIOD_NS, int(took_ns / _SHARE))
        self._writer.write(
            fmt.COMMUNICATION,
            fmt.COMMUNICATION_PAYLOAD.pack(
                now_ns, steps, time.thread_time_ns(), delay_ns, self.wait_ns,
                self.calls & 0xFFFFFFFF, self.payload_bytes, self._sent, self._received,
                *self._ddp,
            ),
        )  # fmt: skip

    def _ask_sockets(self) -> None:
        try:
            sent, received = tcp_bytes()
            # Sockets that were closed meanwhile take their counts along.
            self._sent, self._received = max(self._sent, sent), max(self._received, received)
        except (OSError, AttributeError):  # not on this system
            self._sent = self._received = -1

    def _ask_ddp(self, reference: Any) -> None:
        module = None if reference is None else reference()
        if module is None:
            return
        if not self._has_asked_ddp:
            self._has_asked_ddp = True
            if all(one.device.type == "cpu" for one in module.parameters()):
                # Else it times one step in a hundred; on a GPU every timed step waits for it.
                module._set_ddp_runtime_logging_sample_rate(1)
        data = module._get_ddp_logging_data()
        exchanged = data.get("backward_comm_time", -1)
        self._ddp = exchanged, data.get("backward_compute_comm_overlap_time", -1)

    def timed(self, original: Any, is_call: bool) -> Any:
        """Return ``original`` with its time counted; calls inside a call count once."""

        @functools.wraps(original)
        def collective(*args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return original(*args, **kwargs)
            self._depth = 1
            begin_ns = time.monotonic_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self._depth = 0
                self.wait_ns += time.monotonic_ns() - begin_ns
                if is_call:
                    self.calls += 1
                    self.payload_bytes += _largest(args)

        return collective


def _largest(arguments: tuple[Any, ...]) -> int:
    """Return the bytes of the largest of the first two arguments: a tensor, or a list of them."""
    largest = 0
    for value in arguments[:2]:
        tensors = value if isinstance(value, (list, tuple)) else (value,)
        size = 0
        for one in tensors:
            if hasattr(one, "element_size") and hasattr(one, "numel"):
                size += one.numel() * one.element_size()
        largest = max(largest, size)
    return largest


def replace_in_both(
    module: Any, package: Any, name: str, replacement: Any, replace: Callable[..., None]
) -> None:
    """Put ``replacement`` in place of a function in its module and in the package above it."""
    original = getattr(module, name)
    for owner in (module, package):
        if getattr(owner, name, None) is original:
            replace(owner, name, replacement)


def patch(
    communication: Communication, module: Any, package: Any, replace: Callable[..., None]
) -> None:
    """Time the collectives of ``torch.distributed``.

    ``module`` is ``torch.distributed.distributed_c10d``; ``package`` is ``torch.distributed``,
    which has names of its own for them once it is imported.
    """
    for name in _COLLECTIVES:
        original = getattr(module, name, None)
        if original is not None:
            replace_in_both(module, package, name, communication.timed(original, True), replace)
    work = getattr(module, "Work", None)
    if work is not None:
        replace(work, "wait", communication.timed(work.wait, False))
