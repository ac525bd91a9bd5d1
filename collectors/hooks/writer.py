"""Append one process's records to its own file: one write each, never an exception."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
from zlib import crc32

from . import format as fmt

TYPE_CHECKING = False  # importing ``typing`` costs start-up time
if TYPE_CHECKING:
    from typing import Any


_ROOM = 64 * 1024

# Looked up once: a step's record is made where every look-up may miss the caches.
_MAGIC, _STEP = fmt.MAGIC, fmt.STEP
_PACK_STEP, _PACK_HEAD = fmt.STEP_PAYLOAD.pack, fmt.FRAME.pack
_PAYLOAD_BYTES = fmt.STEP_PAYLOAD.size
_STEP_BYTES = fmt.FRAME.size + fmt.STEP_PAYLOAD.size

# File systems on which reserved space cannot be lost under a map. Over a network it can, and where
# a write is a copy a full disk can take it back, which would end the script with a bus error; an
# overlay may lie on any of these.
_LOCAL = ("ext4", "xfs", "tmpfs")


def _is_local(folder: str) -> bool:
    """Whether ``folder`` lies on a local file system that keeps what it reserves."""
    longest, kind = "", ""
    try:
        with open("/proc/self/mounts") as mounts:
            for line in mounts:
                point, its_kind = line.split()[1:3]
                is_above = (folder + "/").startswith(point.rstrip("/") + "/")
                if is_above and len(point) >= len(longest):
                    longest, kind = point, its_kind
    except (OSError, ValueError):
        return False
    return kind in _LOCAL


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

    Attributes
    ----------
    folder : str
        The run, as an absolute path.
    lost : int
        Records that could not be written (disk full, folder gone).

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
        self._lock = threading.RLock()
        self._at = self._reserved = 0
        self._map: Any = None
        self._map_start = self._mapped_end = 0
        self._is_mappable = _is_local(folder)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Leave the file to the parent; this process begins its own with its first record."""
        if self._fd >= 0:
            os.close(self._fd)
        self._lock = threading.RLock()
        self._fd, self._at, self._reserved = -1, 0, 0
        self._map, self._mapped_end = None, 0

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
            try:
                if self._fd < 0:
                    self._open()
                end = self._at + len(frame)
                if end > self._reserved:
                    self._reserve(end)
                if os.pwrite(self._fd, frame, self._at) == len(frame):
                    self._at = end
                else:
                    self.lost += 1
            except OSError:
                self.lost += 1

    def step(self, *values: int) -> None:
        """Append a ``STEP`` record: ``write`` without the pieces, for there is one every step."""
        payload = _PACK_STEP(*values)
        with self._lock:
            end = self._at + _STEP_BYTES
            if end <= self._mapped_end:
                start = self._at - self._map_start
                head = _PACK_HEAD(_MAGIC, _STEP, _PAYLOAD_BYTES, crc32(payload, _STEP))
                self._map[start : start + _STEP_BYTES] = head + payload
                self._at = end
                return
        self.write(_STEP, payload)

    def _reserve(self, end: int) -> None:
        """Reserve space up to ``end`` and beyond, and map it where that is safe.

        A step's record is then a store into the page cache, which outlives the process as a write
        does and takes a third of its time; what was written at a position is seen in the map and
        the other way round. The reader passes over the zeros behind the last record.
        """
        self._map, self._mapped_end = None, 0
        self._reserved = end + _ROOM
        try:
            os.posix_fallocate(self._fd, self._at, self._reserved - self._at)
        except (OSError, AttributeError):  # no such room, or not here: the file grows as it can
            self._reserved = end
            return
        if self._is_mappable:
            self._map_start = self._at - self._at % mmap.PAGESIZE
            length = self._reserved - self._map_start
            try:
                self._map = mmap.mmap(self._fd, length, offset=self._map_start)
                self._mapped_end = self._reserved
            except (OSError, ValueError):  # no address space left: written instead
                self._is_mappable = False

    def close(self) -> None:
        """Give back the space that was reserved for nothing, and close the file."""
        with self._lock:
            if self._fd < 0:
                return
            self._map, self._mapped_end = None, 0
            try:
                os.ftruncate(self._fd, self._at)
            except OSError:  # the zeros stay
                self.lost += 1
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
        self._at = self._reserved = os.fstat(self._fd).st_size
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
