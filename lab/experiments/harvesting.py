"""Memory that a child holds and does not touch is taken from it: what it loses.

``python -m advisor.lab.experiments.harvesting`` (root, control groups v1): the child maps a
file and reads a hot part of it in every pass, a page after another of a warm part in turns, and
the rest, the cold part, once. Its touched memory is recorded as ``advisor profile --working-set``
does; the room says what a limit costs. Then the kernel limits its control group for real, and its
passes per second are counted. The file lies on the disk, so that no swap is needed for the kernel
to take pages and to bring them back.
"""

from __future__ import annotations

import mmap
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from advisor.collectors.format.recording import read_touched
from advisor.collectors.watch.touched import LENGTHS_NS, TouchedMemory
from advisor.lab import frame
from advisor.planners.core.errors import MIB
from advisor.planners.systems.working_set import (
    PAGE_BYTES,
    TouchedWindow,
    borrow,
    curve_of,
    harvest,
)

HOT, WARM, COLD = 64 * MIB, 16 * MIB, 160 * MIB
ROUND_S = 8.0  # every page of the warm part is read once in so long
SPARE = 12 * MIB  # the interpreter, and what the kernel keeps in the group
GROUPS = Path("/sys/fs/cgroup/memory")
CHILD = f"""
import mmap, struct, sys, time
opened, counter = open(sys.argv[1], "rb"), open(sys.argv[2], "r+b")
pages = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
pages.madvise(mmap.MADV_RANDOM)
count = mmap.mmap(counter.fileno(), 8)
for at in range(0, len(pages), {PAGE_BYTES}):
    pages[at]
begin, done, passes = time.monotonic(), 0, 0
while True:
    for at in range(0, {HOT}, {PAGE_BYTES}):
        pages[at]
    until = int((time.monotonic() - begin) / {ROUND_S} * {WARM // PAGE_BYTES})
    for page in range(done, until):
        pages[{HOT} + page % {WARM // PAGE_BYTES} * {PAGE_BYTES}]
    done = until
    passes += 1
    count[:8] = struct.pack("<Q", passes)
"""


def _fill(file: BinaryIO, size: int) -> None:
    """Write bytes that nothing holds in memory afterwards."""
    for _ in range(size // MIB):
        file.write(os.urandom(MIB))
    file.flush()
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Watched:
    """The child in its control group, and how many passes it has made."""

    def __init__(self, folder: Path) -> None:
        self.file, counter = folder / "pages.bin", folder / "passes.bin"
        counter.write_bytes(bytes(8))
        with self.file.open("wb") as file:
            _fill(file, HOT + WARM + COLD)
        self.group = GROUPS / f"advisor-harvest-{os.getpid()}"
        self.group.mkdir()
        words = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(self.group / "cgroup.procs")]
        command = [sys.executable, "-c", CHILD, str(self.file), str(counter)]
        self.process = subprocess.Popen([*words, *command])
        self._counter = counter.open("rb")

    @property
    def passes(self) -> int:
        return int.from_bytes(os.pread(self._counter.fileno(), 8, 0), "little")

    def limit(self, size: float) -> None:
        """Have the kernel leave it so much memory; what it does not need goes."""
        until = time.monotonic() + 10.0
        while True:
            try:
                (self.group / "memory.limit_in_bytes").write_text(str(int(size)))
            except OSError:  # pages are still being taken
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return

    def rates(self, seconds: float) -> tuple[float, float]:
        """Count passes, and pages that came from the disk, per second."""
        begin, passes, pages = time.monotonic(), self.passes, self._faults()
        time.sleep(seconds)
        took_s = time.monotonic() - begin
        return (self.passes - passes) / took_s, (self._faults() - pages) / took_s

    def _faults(self) -> int:
        stat = Path(f"/proc/{self.process.pid}/stat").read_bytes()
        return int(stat.rpartition(b")")[2].split()[9])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.group.rmdir()


@contextmanager
def watched() -> Iterator[Watched]:
    """Run the child for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="harvest-") as folder:
        child = Watched(Path(folder))
        try:
            while child.passes < 3:
                time.sleep(0.1)
            yield child
        finally:
            child.close()


def windows_of(child: Watched, cycles: int) -> list[TouchedWindow]:
    """Record what it touches in windows of every length, some times."""
    memory = TouchedMemory()
    found: list[TouchedWindow] = []
    while len(found) < cycles * len(LENGTHS_NS) and not memory.failure:
        payload = memory.look([child.process.pid], is_running=True)
        if payload is not None and (seen := read_touched(payload, 0)) is not None:
            found.append(TouchedWindow(
                window_s=seen.window_s, touched_bytes=seen.touched_bytes,
                resident_bytes=seen.resident_bytes,
            ))  # fmt: skip
        time.sleep(0.1)
    return found


def fault_s(folder: Path, pages: int = 400) -> float:
    """Return what it takes to bring a page of a file back that nobody has mapped: the mean [s]."""
    with (folder / "probe.bin").open("w+b") as opened:
        _fill(opened, COLD)
        mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
        mapped.madvise(mmap.MADV_RANDOM)
        places = random.Random(0).sample(range(len(mapped) // PAGE_BYTES), pages)
        begin = time.perf_counter()
        for page in places:
            mapped[page * PAGE_BYTES]
        took_s = time.perf_counter() - begin
        mapped.close()
    return took_s / pages


def taken(
    child: Watched, size: float, rounds: int, seconds: float
) -> tuple[list[float], list[float]]:
    """Return what a limit costs in each of some rounds, and the pages per second it brings."""
    losses, pages = [], []
    for _ in range(rounds):
        child.limit(10 * (HOT + WARM + COLD))
        child.rates(1.5 * ROUND_S)  # everything that it reads is there again
        before, _ = child.rates(seconds)
        child.limit(size)
        child.rates(1.0)
        bound, returned = child.rates(seconds)
        child.limit(10 * (HOT + WARM + COLD))
        child.rates(1.5 * ROUND_S)
        after, _ = child.rates(seconds)
        losses.append(1.0 - bound / (0.5 * (before + after)))  # the neighbours come and go
        pages.append(returned)
    return losses, pages


def main() -> None:
    asked = frame.options(__doc__, {"--cycles": (1, "of windows, 31 s each"), "--rounds": 3,
                                    "--seconds": (10.0, "of counting, each time")})  # fmt: skip
    print(f"before: {frame.load()}")
    with watched() as child:
        windows = windows_of(child, asked.cycles)
        curve = curve_of(windows)
        for length, touched in zip(curve.window_s, curve.touched_bytes, strict=True):
            print(f"touched in {length:.1f} s: {touched / MIB:.0f} MiB")
        one = fault_s(child.file.parent)
        print(f"a page comes back in {1e6 * one:.0f} us")
        found = harvest(windows, fault_s=one)
        print(f"advised: {found}")
        for seen in windows:
            print(f"  {seen.window_s:5.1f} s: {seen.touched_bytes / MIB:.0f} MiB")
        # What comes back a second is as the program is written: nothing, or the warm part's turn.
        limits = {
            "cold part": (float(HOT + WARM + SPARE), 0.0),
            "warm part too": (float(HOT + SPARE), WARM / ROUND_S / PAGE_BYTES),
        }
        # A machine short of memory, as ``advise`` says what the rest costs to borrow.
        short = float(HOT + WARM // 2 + SPARE)
        lent = borrow(windows, short - SPARE, fault_s=one)
        if lent is not None:
            limits |= {"half of the warm part": (short, lent.loss_fraction / one)}
        if found is not None:
            back = found.loss_fraction / one
            limits = {"as advised": (found.limit_bytes, back), **limits}
        print("| taken | left | pages/s, by the room | measured | loss, by the room | measured |")
        for name, (size, said) in limits.items():
            losses, pages = taken(child, size, asked.rounds, asked.seconds)
            print(
                f"| {name} | {size / MIB:.0f} MiB | {said:.0f} | {statistics.median(pages):.0f} "
                f"| {said * one:.1%} | {statistics.median(losses):.1%} "
                f"({min(losses):.1%} to {max(losses):.1%}) |"
            )
    print(f"after: {frame.load()}")


if __name__ == "__main__":
    main()
