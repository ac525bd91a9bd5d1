"""The waiting of this process's threads for a core, from the kernel's scheduler statistics.

On a busy machine the waiting is most of a step's wall time (5x with two burning neighbours,
11-26 % of error left after it is taken out); without it a profile measures the neighbours.
"""

from __future__ import annotations

import os
import time

from .kept import OwnFile


class RunDelay:
    """Run-queue waiting of the calling process: its main thread, and its slowest thread.

    The fields of ``schedstat`` are the time on a core and the waiting for one, in ns. A parallel
    region ends with its last thread, so over an interval the pool's delay is the largest of its
    threads' delays.
    """

    # Reading the pool may take this share of the time: 64 threads take about 60 us.
    _POOL_SHARE = 2.5e-4

    def __init__(self) -> None:
        self._main = _open("/proc/self/schedstat")
        # by thread: its file, and the delay when last read
        self._threads: dict[str, tuple[OwnFile | None, int]] = {}
        self._next_pool_ns = 0
        self.pool_ns = self.others_ns = 0
        self.latest_ns = 0

    def forget(self) -> None:
        """Open everything anew: after a fork the descriptors show the parent."""
        for file in [self._main] + [file for file, _ in self._threads.values()]:
            if file is not None:
                file.close()
        self.__init__()  # type: ignore[misc]

    def main_ns(self) -> int:
        """Return the main thread's waiting since it began; 0 where the kernel does not tell.

        ``latest_ns`` is what was last returned.
        """
        self.latest_ns = _delay(self._main)
        return self.latest_ns

    def main_cpu_ns(self) -> int:
        """Return the main thread's processor time since it began; 0 where nobody tells."""
        return _field(self._main, 0)

    def pool_is_due(self, now_ns: int) -> bool:
        """Whether the pool may be read again without costing more than its share."""
        return now_ns >= self._next_pool_ns

    def read_pool(self) -> int:
        """Return the accumulated delay of the slowest thread over the intervals read so far.

        ``others_ns`` is then the same of the slowest thread but the main one. A thread that was
        not there before has waited since its birth, in the first interval since the process's.
        """
        begin = time.thread_time_ns()
        main = str(os.getpid())
        seen = {}
        largest = slowest_other = 0
        for tid in _listdir("/proc/self/task"):
            file, before = self._threads.pop(tid, (None, 0))
            if file is None:
                file = _open("/proc/self/task/%s/schedstat" % tid)
            now = _delay(file)
            seen[tid] = (file, now)
            largest = max(largest, now - before)
            if tid != main:
                slowest_other = max(slowest_other, now - before)
        for file, _ in self._threads.values():
            if file is not None:
                file.close()
        self._threads = seen
        self.pool_ns += largest
        self.others_ns += slowest_other
        # By the wall, a reading that had to wait for a core would put the next off for ever.
        cost = time.thread_time_ns() - begin
        self._next_pool_ns = time.monotonic_ns() + int(cost / self._POOL_SHARE)
        return self.pool_ns


def of_process(pid: int) -> tuple[int, int]:
    """Return how long another process's main thread, and its other threads together, waited."""
    main = others = 0
    for tid in _listdir("/proc/%d/task" % pid):
        file = _open("/proc/%d/task/%s/schedstat" % (pid, tid))
        delay = _delay(file)
        if file is not None:
            file.close()
        if tid == str(pid):
            main = delay
        else:
            others += delay
    return main, others


def _open(path: str) -> OwnFile | None:
    try:
        return OwnFile(path)
    except OSError:
        return None


def _listdir(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _delay(file: OwnFile | None) -> int:
    return _field(file, 1)


def _field(file: OwnFile | None, number: int) -> int:
    if file is None:
        return 0
    try:
        return int(os.pread(file.number(), 64, 0).split(None, 2)[number])
    except (OSError, IndexError, ValueError):
        return 0
