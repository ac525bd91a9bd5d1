"""What reading processes costs through ``/proc`` and through psutil, in turns on the same tree.

A tree of some processes stands still. Both readers take a reading of it again and again; between
two readings other memory is copied, as a script's work would drive the reader out of the caches.
What counts is the CPU time of this thread, the median reading.

python -m advisor.lab.speed.collector_readers
"""

from __future__ import annotations

import statistics
import subprocess
import time

from advisor.collectors.watch.portable import PortableTree
from advisor.collectors.watch.processes import Processes, ProcessTree
from advisor.lab import frame

_EVICTED_BYTES = 4 * 2**20


def reading_us(tree: Processes, is_full: bool) -> float:
    bytes(bytearray(_EVICTED_BYTES))
    begin = time.thread_time_ns()
    tree.refresh()
    tree.read(is_full=is_full)
    return (time.thread_time_ns() - begin) / 1e3


def main() -> None:
    options = frame.options(__doc__, {"--processes": 4, "--readings": 200})
    tree = [subprocess.Popen(["sleep", "600"]) for _ in range(options.processes)]
    readers: dict[str, Processes] = {"/proc": ProcessTree(), "psutil": PortableTree()}
    try:
        for is_full in (False, True):
            times: dict[str, list[float]] = {name: [] for name in readers}
            for _ in range(options.readings):
                for name, reader in readers.items():
                    times[name].append(reading_us(reader, is_full))
            middle = {name: statistics.median(values) for name, values in times.items()}
            print(
                f"{options.processes} processes, {'full' if is_full else 'short'} reading: "
                f"/proc {middle['/proc']:.0f} us, psutil {middle['psutil']:.0f} us, "
                f"{middle['psutil'] / middle['/proc']:.1f} times"
            )
    finally:
        for process in tree:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
