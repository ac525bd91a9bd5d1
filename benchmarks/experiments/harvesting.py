"""Memory that a child holds and does not touch is taken from it: what it loses.

``python benchmarks/experiments/harvesting.py`` (root, control groups v1): the child maps a
file and reads a hot part of it in every pass, a page after another of a warm part in turns, and
the rest, the cold part, once. Its touched memory is recorded as ``advisor profile --working-set``
does; the room says what a limit costs. Then the kernel limits its control group for real, and its
passes per second are counted. The file lies on the disk, so that no swap is needed for the kernel
to take pages and to bring them back.
"""

from __future__ import annotations

import argparse
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

from advisor.collectors.touched import LENGTHS_NS, TouchedMemory, unpack_touched
from advisor.planners.core.units import MIB
from advisor.planners.harvesting.working_set import (
    PAGE_BYTES,
    TouchedWindow,
    curve_of,
    harvest,
)

HOT, WARM, COLD = 64 * MIB, 48 * MIB, 160 * MIB
ROUND_S = 6.0  # every page of the warm part is read once in so long
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


class Watched:
    """The child in its control group, and how many passes it has made."""

    def __init__(self, folder: Path) -> None:
        self.file, counter = folder / "pages.bin", folder / "passes.bin"
        counter.write_bytes(bytes(8))
        with self.file.open("wb") as file:
            for _ in range((HOT + WARM + COLD) // MIB):
                file.write(os.urandom(MIB))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.group = GROUPS / f"advisor-harvest-{os.getpid()}"
        self.group.mkdir()
        words = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(self.group / "cgroup.procs")]
        command = [sys.executable, "-c", CHILD, str(self.file), str(counter)]
        self.process = subprocess.Popen([*words, *command])
        self._counter = counter.open("rb")

    @property
    def passes(self) -> int:
        """Passes so far."""
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

    def rate(self, seconds: float) -> float:
        """Count passes per second."""
        begin, passes = time.monotonic(), self.passes
        time.sleep(seconds)
        return (self.passes - passes) / (time.monotonic() - begin)

    def close(self) -> None:
        """End the child and its group."""
        self.process.kill()
        self.process.wait()
        self.group.rmdir()


@contextmanager
def watched() -> Iterator[Watched]:
    """Run the child for as long as the block lasts."""
    with tempfile.TemporaryDirectory(dir=".", prefix="harvest-") as folder:
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
        if payload is not None and (seen := unpack_touched(payload, 0)) is not None:
            found.append(TouchedWindow(
                window_s=seen.window_s, touched_bytes=seen.touched_bytes,
                resident_bytes=seen.resident_bytes,
            ))  # fmt: skip
        time.sleep(0.1)
    return found


def fault_s(folder: Path, pages: int = 400) -> float:
    """Return what it takes to bring a page of a file back that nobody has mapped: the mean [s]."""
    with (folder / "probe.bin").open("w+b") as opened:
        for _ in range(COLD // MIB):
            opened.write(os.urandom(MIB))
        opened.flush()
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
        mapped.madvise(mmap.MADV_RANDOM)
        places = random.Random(0).sample(range(len(mapped) // PAGE_BYTES), pages)
        begin = time.perf_counter()
        for page in places:
            mapped[page * PAGE_BYTES]
        took_s = time.perf_counter() - begin
        mapped.close()
    return took_s / pages


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=1, help="of windows, 31 s each")
    parser.add_argument("--seconds", type=float, default=10.0, help="of counting, each time")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    print(f"load before {os.getloadavg()[0]:.1f}")
    with watched() as child:
        windows = windows_of(child, asked.cycles)
        curve = curve_of(windows)
        for length, touched in zip(curve.window_s, curve.touched_bytes, strict=True):
            print(f"touched in {length:.1f} s: {touched / MIB:.0f} MiB")
        one = fault_s(child.file.parent)
        print(f"a page comes back in {1e6 * one:.0f} us")
        found = harvest(windows, fault_s=one)
        print(f"advised: {found}")
        resident = max(seen.resident_bytes for seen in windows)
        limits = {"cold part": HOT + WARM + 24 * MIB, "warm part too": HOT + 24 * MIB}
        if found is not None:
            limits = {"as advised": found.limit_bytes, **limits}
        growth = WARM / ROUND_S  # of the program as it is written
        print("| taken | of | left | loss, by the room | measured |")
        for name, size in limits.items():
            free, bound = [], []
            for _ in range(asked.rounds):
                child.limit(10 * resident)
                child.rate(2 * ROUND_S)  # everything that it reads is there again
                free.append(child.rate(asked.seconds))
                child.limit(size)
                child.rate(2.0)
                bound.append(child.rate(asked.seconds))
            said = growth / PAGE_BYTES * one if size < HOT + WARM else 0.0
            loss = 1.0 - statistics.median(bound) / statistics.median(free)
            left = size / MIB
            print(
                f"| {name} | {resident / MIB:.0f} MiB | {left:.0f} MiB | {said:.1%} | {loss:.1%} |"
            )
    print(f"load after {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
