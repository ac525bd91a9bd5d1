"""The writer of one process's records: steps several at a time, never an exception."""

from __future__ import annotations

import os
import struct
import sys
import threading
import time

from . import format as fmt

TYPE_CHECKING = False  # importing ``typing`` costs start-up time
if TYPE_CHECKING:
    from typing import Any


# Steps are kept back for so long, or so many of them, and written as one record (see ``session``).
# A script that is killed loses those. Slower steps are written as they come.
HOLD_NS = 20_000_000
MOST_HELD = 64


def start_ticks(pid: int) -> int:
    """Return when ``pid`` started, in clock ticks since boot: with the pid, its identity.

    0 where there is no ``/proc``.
    """
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


class Writer:
    """The event file of this process; opened on the first record, and anew after a fork.

    Notes
    -----
    Threads of the script may write at the same time; a signal's handler may interrupt a write of
    its own thread's, hence a lock that its owner can take again. A child forked while another
    thread wrote would find it taken for ever: it gets a new one.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.lost = 0
        self._fd = -1
        self._at = 0
        self._lock = threading.RLock()
        self._held: list[tuple[int, ...]] = []
        self._due_ns = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Leave the file to the parent; this process begins its own with its first record."""
        if self._fd >= 0:
            os.close(self._fd)
        self._lock = threading.RLock()
        self._fd, self._at = -1, 0
        self._held = []

    def hello(self) -> None:
        """Begin the file now: its being there tells the profiler that the hooks are up."""
        if self._fd < 0:
            try:
                self._open()
            except OSError:
                self.lost += 1

    def write(self, kind: int, payload: bytes) -> None:
        """Append one record; one that does not fit is lost, and the next takes its place."""
        frame = fmt.frame(kind, payload)
        with self._lock:
            if self._held:
                self.flush()
            try:
                if self._fd < 0:
                    self._open()
                if os.pwrite(self._fd, frame, self._at) == len(frame):
                    self._at += len(frame)
                else:
                    self.lost += 1
            except OSError:
                self.lost += 1

    def step(self, *values: int) -> None:
        """Append a step: the values of a ``STEP`` record, the time first."""
        self._held.append(values)
        if values[0] >= self._due_ns or len(self._held) >= MOST_HELD:
            self._due_ns = values[0] + HOLD_NS
            self.flush()

    def flush(self) -> None:
        """Write the steps that were kept back."""
        with self._lock:
            held = self._held[:]
            del self._held[: len(held)]  # threads append to it meanwhile
            payloads = []
            for values in held:
                try:
                    payloads.append(fmt.STEP_PAYLOAD.pack(*values))
                except struct.error:  # a count outgrew its field: 65 536 batches between two steps
                    self.lost += 1
            if len(payloads) == 1:
                self.write(fmt.STEP, payloads[0])
            elif payloads:
                head = fmt.STEPS_HEAD.pack(fmt.STEP_PAYLOAD.size)
                self.write(fmt.STEPS, head + b"".join(payloads))

    def close(self) -> None:
        """Write what was kept back, and close the file."""
        with self._lock:
            if self._held:
                self.flush()
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def fact(self, name: str, **values: Any) -> None:
        """Append a named JSON object."""
        self.write_json(fmt.FACT, dict(values, fact=name, t_ns=time.monotonic_ns()))

    def write_json(self, kind: int, value: dict[str, Any]) -> None:
        """Append a JSON object."""
        import json

        from .suspicion import may_hold_secrets

        try:
            text = json.dumps(value, default=repr)
            if may_hold_secrets(text):
                from .redaction import redacted_json

                text = json.dumps(redacted_json(json.loads(text)))
            payload = text.encode()
        except Exception:  # a key or a repr of the script's own making
            self.lost += 1
            return
        self.write(kind, payload)

    def _open(self) -> None:
        pid = os.getpid()
        ticks = start_ticks(pid)
        path = os.path.join(self.folder, "ev-%d-%d.bin" % (pid, ticks))
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        self._fd = os.open(path, flags, 0o600)
        self._at = os.fstat(self._fd).st_size
        if self._at == 0:
            header = {
                "schema_version": fmt.SCHEMA_VERSION,
                "role": "script",
                "pid": pid,
                "parent_pid": os.getppid(),
                "start_ticks": ticks,
                "python": "%d.%d.%d" % sys.version_info[:3],
                "t_ns": time.monotonic_ns(),
            }
            self.write_json(fmt.HEADER, header)
