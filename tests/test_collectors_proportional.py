"""Pages that processes share count once: laws of the estimate, and real trees that share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from collecting import record
from hypothesis import given
from hypothesis import strategies as st

from advisor.collectors.watch.processes import OneProcess, Process, ProcessTree
from advisor.collectors.watch.proportional import Proportional

MIB = 2**20
SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class One:
    """A process of which everything is known."""

    own: int
    shared: int
    sharers: int = 1
    is_readable: bool = True
    is_gone: bool = False
    walks: int = 0

    @property
    def rss_bytes(self) -> int:
        return self.own + self.shared

    @property
    def shared_bytes(self) -> int:
        return self.shared

    def pss_bytes(self) -> int | None:
        self.walks += 1
        if self.is_gone:
            return None
        return self.own + self.shared // self.sharers if self.is_readable else None

    def read(self, *, is_full: bool) -> bool:
        return not self.is_gone


class Walks:
    """CPU time that grows by as much a walk as the test says."""

    def __init__(self, cost_ns: int = 0) -> None:
        self.cost_ns, self.calls = cost_ns, 0

    def __call__(self) -> int:
        self.calls += 1
        return self.calls * self.cost_ns


SIZES = st.integers(1, 2**35)


@given(st.lists(SIZES, min_size=1, max_size=20), SIZES, st.booleans())
def test_what_all_share_counts_once(owns: list[int], shared: int, is_readable: bool) -> None:
    """Within the error that is allowed for sparing a walk, and for dividing in whole bytes."""
    tree = {
        pid: One(own=own, shared=shared, sharers=len(owns), is_readable=is_readable)
        for pid, own in enumerate(owns)
    }
    used = Proportional(0, spent=Walks()).used_bytes(tree, 0)  # type: ignore[arg-type]
    truth = sum(owns) + shared
    assert abs(used - truth) <= 0.05 * truth + len(owns)


@given(st.lists(st.builds(One, own=SIZES, shared=SIZES, sharers=st.integers(1, 9))))
def test_never_more_than_the_sum_nor_less_than_the_largest(processes: list[One]) -> None:
    tree = dict(enumerate(processes))
    used = Proportional(0, spent=Walks()).used_bytes(tree, 0)  # type: ignore[arg-type]
    sizes = [one.rss_bytes for one in processes]
    assert max(sizes, default=0) <= used <= sum(sizes)


def test_one_large_process_with_small_helpers_is_never_walked() -> None:
    """However many looks: its helpers can change the sum by less than the error allowed."""
    tree = {1: One(own=2**34, shared=0), 2: One(own=2**20, shared=0)}
    memory = Proportional(0, spent=Walks())
    for second in range(1000):
        memory.used_bytes(tree, second * SECOND_NS)  # type: ignore[arg-type]
    assert (tree[1].walks, tree[2].walks) == (0, 0)


def test_walks_keep_to_their_share_of_the_time() -> None:
    """Each takes 20 ms: as long as five may at once, then as many as a five thousandth pays."""
    spent = Walks(cost_ns=20_000_000)
    memory = Proportional(0, spent=spent)
    seconds = 3600
    for second in range(seconds):
        tree = {pid: One(own=2**30, shared=2**30, sharers=2) for pid in (second, second + 1)}
        memory.used_bytes(tree, second * SECOND_NS)  # type: ignore[arg-type]
    walks = spent.calls / 2
    assert 5 <= walks <= 1 + (0.1 + seconds * 2e-4) / 0.02


def test_who_forks_away_or_ends_is_looked_at_anew() -> None:
    """The parent's share of its pages changes with the children that share them."""
    memory = Proportional(0, spent=Walks())
    alone = {1: One(own=0, shared=800 * MIB), 9: One(own=100 * MIB, shared=0)}
    assert memory.used_bytes(alone, 0) == 900 * MIB  # type: ignore[arg-type]
    forked = {pid: One(own=0, shared=800 * MIB, sharers=3) for pid in (1, 2, 3)}
    assert memory.used_bytes(forked, SECOND_NS) == pytest.approx(800 * MIB, abs=4)  # type: ignore[arg-type]
    assert memory.used_bytes(alone, 2 * SECOND_NS) == 900 * MIB  # type: ignore[arg-type]


def test_who_ends_while_he_is_looked_at_counts_no_more() -> None:
    tree = {pid: One(own=200 * MIB, shared=0, is_gone=pid > 1) for pid in (1, 2, 3)}
    assert Proportional(0, spent=Walks()).used_bytes(tree, 0) == 200 * MIB  # type: ignore[arg-type]


def used_by(tree: ProcessTree) -> tuple[int, int]:
    """Return the sum of the resident memory, and what the processes use together."""
    total = tree.read(is_full=False).rss_bytes
    now_ns = time.monotonic_ns()
    return total, Proportional(now_ns).used_bytes(tree.processes, now_ns)


def test_many_small_processes_use_little_more_than_one() -> None:
    command = ["sh", "-c", "for n in $(seq 60); do sleep 60 & done; wait"]
    with subprocess.Popen(command, start_new_session=True) as shell:
        tree = ProcessTree(shell.pid)
        end = time.monotonic() + 60
        while len(tree.processes) < 61 and time.monotonic() < end:
            tree.refresh()
            time.sleep(0.05)
        total, used = used_by(tree)
        os.killpg(shell.pid, 9)
        tree.close()
    assert len(tree.processes) == 61
    assert total > 60 * MIB
    assert used < total / 5


FORKED = """
import os, sys, time
block = bytearray(b"x") * (200 << 20)
ready = []
for _ in range(3):
    pid = os.fork()
    if not pid:
        total = sum(block[::4096])  # touched, shared with the parent
        os.write(2, b"")
        time.sleep(60)
        os._exit(0)
    ready.append(pid)
deadline = time.monotonic() + 60
def resident(pid):
    return int(open(f"/proc/{pid}/statm").read().split()[1]) * 4096
while any(resident(pid) < 150 << 20 for pid in ready) and time.monotonic() < deadline:
    time.sleep(0.05)
time.sleep(1.5)
for pid in ready:
    os.kill(pid, 9)
"""


def test_the_pages_of_forked_workers_are_their_parents(tmp_path: Path) -> None:
    """Three workers of a parent of 200 MiB: 200 and some, not 800."""
    seen = record(tmp_path, FORKED)
    assert max(reading.rss_bytes for reading in seen.readings) > 700 * MIB
    assert 200 * MIB < seen.peak_rss_bytes < 300 * MIB


def test_a_process_that_may_not_be_walked_is_estimated() -> None:
    """Somebody else's, or a kernel that does not tell: pages of files count once."""
    settled = "import time; print('here', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", settled], stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        assert one.stdout.readline()
        tree = ProcessTree(one.pid)
        tree.refresh()
        process = tree.processes[one.pid]
        assert isinstance(process, Process)
        tree.read(is_full=False)
        own = process.rss_bytes - process.shared_bytes
        process._rollup = "/nowhere"
        assert process.pss_bytes() is None
        twice: dict[int, OneProcess] = {1: process, 2: process}
        used = Proportional(0).used_bytes(twice, 0)
        one.kill()
        tree.close()
    assert 0 < process.shared_bytes < process.rss_bytes
    assert used == 2 * own + process.shared_bytes
