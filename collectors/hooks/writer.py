"""The writer of one process's records: steps several at a time, never an exception."""

from __future__ import annotations

import os
import struct
import sys
import threading
import time

from .format import (
    FACT,
    HEADER,
    REHEARSED,
    SCHEMA_VERSION,
    STEP,
    STEP_PAYLOAD,
    STEPS,
    STEPS_HEAD,
    framed,
    is_rehearsed,
    may_hold_secrets,
    start_ticks,
)
from .kept import OwnFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Steps are kept back for so long, or so many of them, and written as one record (see ``session``).
# A script that is killed loses those. Slower steps are written as they come.
HOLD_NS = 20_000_000
MOST_HELD = 64


class Writer:
    """The event file of this process; opened on the first record, and anew after a fork.

    Notes
    -----
    Threads of the script may write at the same time; a signal's handler may interrupt a write of
    its own thread's, hence a lock that its owner can take again. A child forked while another
    thread wrote would find it taken for ever: it gets a new one.

    A script that closes what it did not open closes this file too: it is opened again by its path,
    and a fact says so. Where the path leads to it no more, what comes later is lost.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.lost = 0
        self._file: OwnFile | None = None
        self._has_told = False
        self._at = 0
        self._lock = threading.RLock()
        self._held: list[tuple[int, ...]] = []
        self._due_ns = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Leave the file to the parent; this process begins its own with its first record."""
        if self._file is not None:
            self._file.close()
        self._lock = threading.RLock()
        self._file, self._at, self._has_told = None, 0, False
        self._held = []

    def hello(self) -> None:
        """Begin the file now: its being there tells the profiler that the hooks are up."""
        if self._file is None:
            try:
                self._open()
            except OSError:
                self.lost += 1

    def write(self, kind: int, payload: bytes) -> None:
        """Append one record; one that does not fit is lost, and the next takes its place."""
        frame = framed(kind, payload)
        with self._lock:
            if self._held:
                self.flush()
            try:
                file = self._file or self._open()
                number = file.number(is_same=True)
                if number >= 0 and os.pwrite(number, frame, self._at) == len(frame):
                    self._at += len(frame)
                else:
                    self.lost += 1
                if file.was_lost and not self._has_told:
                    self._has_told = True
                    self.fact("reopened")
            except Exception:  # full, gone, or functions of ``os`` that the script replaced
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
                    payloads.append(STEP_PAYLOAD.pack(*values))
                except struct.error:  # a count outgrew its field: 65 536 batches between two steps
                    self.lost += 1
            if len(payloads) == 1:
                self.write(STEP, payloads[0])
            elif payloads:
                head = STEPS_HEAD.pack(STEP_PAYLOAD.size)
                self.write(STEPS, head + b"".join(payloads))

    def close(self) -> None:
        """Write what was kept back, and close the file."""
        with self._lock:
            if self._held:
                self.flush()
            if self._file is not None:
                self._file.close()
                self._file = None

    def fact(self, name: str, **values: Any) -> None:
        """Append a named JSON object."""
        self.write_json(FACT, dict(values, fact=name, t_ns=time.monotonic_ns()))

    def write_json(self, kind: int, value: dict[str, Any]) -> None:
        """Append a JSON object."""
        import json

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

    def _open(self) -> OwnFile:
        pid = os.getpid()
        ticks = start_ticks(pid)
        # A script that is run again as a rehearsal has the process of its first attempt.
        kind = REHEARSED if is_rehearsed() else ""
        path = os.path.join(self.folder, "ev-%d-%d%s.bin" % (pid, ticks, kind))
        self._file = file = OwnFile(path, os.O_RDWR | os.O_CREAT)
        self._at = file.size()
        if self._at == 0:
            header = {
                "schema_version": SCHEMA_VERSION,
                "role": "script",
                "pid": pid,
                "parent_pid": os.getppid(),
                "start_ticks": ticks,
                "python": "%d.%d.%d" % sys.version_info[:3],
                "t_ns": time.monotonic_ns(),
            }
            self.write_json(HEADER, header)
        return file
