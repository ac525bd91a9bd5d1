"""The memory of several processes, pages that they share counted once.

=============  ================================================================================
name           meaning [bytes]
=============  ================================================================================
resident       what a process has in memory, pages shared with others included
proportional   the same with every shared page divided by the processes that share it
used           of all processes together: the sum of the proportional ones, or its estimate
=============  ================================================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from advisor.collectors.watch.processes import OneProcess

# The walks of a recording may take this long, and this share of the time in addition.
_ALLOWANCE_NS = 100_000_000
_SHARE = 2e-4
# A walk's cost is estimated before it is made, from the tree's resident memory and its processes
# (4.25 ms for a process of 1 GiB, 40 us for a small one; shared machine, 2026-11-22).
_NS_PER_BYTE = 4.25e6 / 2**30
_NS_PER_PROCESS = 40_000
_NEGLIGIBLE = 0.05  # of the largest process
# Among the same processes it is looked again after so long, doubling up to the second figure.
_FIRST_AGAIN_NS, _LAST_AGAIN_NS = 1_000_000_000, 16_000_000_000


class Proportional:
    """Follows the memory that processes use together, pages that they share counted once.

    Forked workers have their parent's pages in their own resident memory: three processes may look
    like three times the memory that they use. Only the kernel's walk of the page tables
    (``smaps_rollup``) tells, and that is dear. It is spared where it could change little: what is
    used is no less than the largest process, so nobody is counted twice by more than the others'
    memory. Between two walks every process keeps its proportional share of its resident memory. Of
    those that were never walked pages of files and shared memory are counted once, their own pages
    in full.

    ``spent``: CPU time of the walks, of this thread [ns]; injected by tests.
    """

    def __init__(self, now_ns: int, *, spent: Callable[[], int] = time.thread_time_ns) -> None:
        self._start_ns = now_ns
        self._spent = spent
        self._spent_ns = 0
        self._shares: dict[int, float] = {}  # by process number
        self._due_ns = 0
        self._again_ns = _FIRST_AGAIN_NS

    def used_bytes(self, processes: Mapping[int, OneProcess], now_ns: int) -> int:
        """Return the memory that the processes use together, as last read. [bytes]."""
        total = sum(process.rss_bytes for process in processes.values())
        largest = max((process.rss_bytes for process in processes.values()), default=0)
        if total - largest <= _NEGLIGIBLE * largest:
            return total
        if self._is_due(processes, total, now_ns):
            self._walk(processes, now_ns)
        used, shared = 0.0, 0
        for pid, process in processes.items():
            share = self._shares.get(pid)
            if share is None:
                used += process.rss_bytes - process.shared_bytes
                shared = max(shared, process.shared_bytes)
            else:
                used += process.rss_bytes * share
        return min(total, max(largest, int(used) + shared))

    def _is_due(self, processes: Mapping[int, OneProcess], total_bytes: int, now_ns: int) -> bool:
        """Whether somebody came or went, or it is time to look again, and it can be afforded."""
        is_same = processes.keys() == self._shares.keys()
        if is_same and now_ns < self._due_ns:
            return False
        if not is_same:
            self._again_ns = _FIRST_AGAIN_NS
        cost_ns = total_bytes * _NS_PER_BYTE + len(processes) * _NS_PER_PROCESS
        budget_ns = _ALLOWANCE_NS + (now_ns - self._start_ns) * _SHARE
        return self._spent_ns + cost_ns <= budget_ns

    def _walk(self, processes: Mapping[int, OneProcess], now_ns: int) -> None:
        begin_ns = self._spent()
        shares = {}
        for pid, process in processes.items():
            pss = process.pss_bytes()
            if pss is not None and process.rss_bytes:
                shares[pid] = min(1.0, pss / process.rss_bytes)
            elif not process.read(is_full=False):  # it has ended since it was read
                shares[pid] = 0.0
        self._shares = shares
        self._spent_ns += self._spent() - begin_ns
        self._due_ns = now_ns + self._again_ns
        self._again_ns = min(2 * self._again_ns, _LAST_AGAIN_NS)
