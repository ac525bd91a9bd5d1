"""The memory that processes touch, beside what they hold: windows between two walks."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from advisor.collectors.format import read_touched
from advisor.collectors.hooks import format as fmt

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
