"""Micro-benchmarks of this machine: products, memory, integers, disk; measured once and kept.

Everything is timed by the CPU clock of the thread that works, and the best of many short
repetitions counts, so that neighbours cost little: they slow a kernel down by what they take of
caches and bandwidth, not by the cores they occupy. The figures for all cores come from one
process a core, all at work at the same time, added up: clocks, caches and memory are shared as
in a training run. Sheets of devices (``device_sheet``) are kept beside them.
"""

from __future__ import annotations

import binascii
import bz2
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from advisor.collectors import atomic
from advisor.collectors.atomic import cache_folder
from advisor.collectors.format import HostBenchmark, Sheet, sheet_of
from advisor.collectors.watch import host
from advisor.collectors.watch.host import usable_cpus

_SIZE: Final = 1024
_COPY_BYTES: Final = 64 * 2**20
_DISK_BYTES: Final = 64 * 2**20
_BUDGET_S: Final = 0.25

# What one pass of the mix is worth in CoreMark iterations. Here (AMD EPYC, CPUID family 26, model
# 2: Zen 5, one thread a core, 2026-11-21, Python 3.11.7) a pass takes 13.6 ms at best, alone or
# beside seven other loads; CoreMark itself was not run. AWS instances of the same
# microarchitecture and one thread a core (EPYC 9R45) are published at 44 668 iterations/s per
# virtual CPU, the median of 30 (shared/data/catalogue/cpu_speed.csv). That the two are as fast is
# assumed, and the mix's speed relative to CoreMark's on other processors was not tested.
_COREMARK_PER_PASS: Final = 44_668 * 0.0136


def _best_s(run: Callable[[], object]) -> float:
    run()
    least = float("inf")
    end = time.perf_counter() + _BUDGET_S
    while time.perf_counter() < end:
        begin = time.thread_time()
        run()
        least = min(least, time.thread_time() - begin)
    return least


def integer_mix() -> Callable[[], object]:
    """Return the mix of integer work as a function; its data are the same everywhere.

    It takes about as long in each of four kinds of work that CoreMark is made of, in code that
    Python's own library has compiled: a table-driven CRC, sorting a list, a state machine over
    text, and the branches of a block sorter. None of it uses vector or crypto instructions.
    """
    state, values = 12345, []
    for _ in range(20_000):
        state = (1103515245 * state + 12345) % 2**31
        values.append(state)
    data = b"".join(value.to_bytes(4, "little")[1:3] for value in values)
    words = [f"{v}" if v % 3 else f"{v}.{v % 97}e-{v % 9}" for v in values[:6000]]
    text = " ".join(words)
    number = re.compile(r"([+-]?\d+)(\.\d*)?([eE][+-]?\d+)?\s*")
    unsorted = values[:13_000]

    def run() -> object:
        for _ in range(40):
            binascii.crc_hqx(data, 0)
        for _ in range(4):
            number.sub("", text)
        return sorted(unsorted), bz2.compress(data, 1)

    return run


def _rates(workers: int) -> tuple[float, float, float]:
    """Return one core's product [flop/s], copy [bytes/s] and score [1/s]; ``workers`` share."""
    import torch

    torch.set_num_threads(1)
    a, b, out = (torch.rand(_SIZE, _SIZE) for _ in range(3))
    product = 2.0 * _SIZE**3 / _best_s(lambda: torch.mm(a, b, out=out))
    size = max(_COPY_BYTES // 4, 8 * _COPY_BYTES // workers) if workers > 8 else _COPY_BYTES
    source = torch.ones(size // 4)
    target = torch.empty_like(source)
    copy = 2.0 * size / _best_s(lambda: target.copy_(source))
    return product, copy, _COREMARK_PER_PASS / _best_s(integer_mix())


def _in_parallel(workers: int) -> list[tuple[float, float, float]]:
    pipes = []
    for _ in range(workers):
        read_fd, write_fd = os.pipe()
        if os.fork() == 0:
            try:
                os.write(write_fd, json.dumps(_rates(workers)).encode())
            finally:
                os._exit(0)
        os.close(write_fd)
        pipes.append(read_fd)
    found = []
    for read_fd in pipes:
        with open(read_fd, encoding="ascii") as pipe:
            product, copy, score = json.loads(pipe.read())
            found.append((product, copy, score))
        os.wait()
    return found


def _disk_read() -> float | None:
    """Return the rate of reading a file that was dropped from the page cache [bytes/s]."""
    if not hasattr(os, "posix_fadvise"):
        return None
    try:
        with tempfile.NamedTemporaryFile(dir=Path.cwd()) as file:
            file.write(os.urandom(2**20) * (_DISK_BYTES // 2**20))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            begin = time.perf_counter()
            with open(file.name, "rb", buffering=0) as again:
                while again.read(2**20):
                    pass
            return _DISK_BYTES / (time.perf_counter() - begin)
    except OSError:
        return None


def measure() -> HostBenchmark:
    """Run all micro-benchmarks; about two seconds after the import of torch."""
    import torch  # noqa: F401 - before the forks, so that they share its pages

    (alone,) = _in_parallel(1)
    together = _in_parallel(usable_cpus())
    return HostBenchmark(
        matmul_flop_per_s=sum(product for product, _, _ in together),
        matmul_one_core_flop_per_s=alone[0],
        copy_bytes_per_s=sum(copy for _, copy, _ in together),
        copy_one_core_bytes_per_s=alone[1],
        scalar_score=sum(score for _, _, score in together) / len(together),
        disk_read_bytes_per_s=_disk_read(),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


_VERSION = 2
_PATIENCE_S = 30.0


def cache_path() -> Path:
    """Return where this machine's figures are kept: one file for each machine and core limit."""
    described = host.describe_host()
    key = f"{os.uname().nodename} {described.cpu_model} {described.cpu_limit} v{_VERSION}"
    return cache_folder() / f"host-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def cached_benchmark() -> HostBenchmark | None:
    """Return the remembered figures, or None."""
    try:
        return HostBenchmark(**json.loads(cache_path().read_text()))
    except (OSError, ValueError, TypeError):
        return None


def cached_or_measured() -> HostBenchmark | None:
    """Return the remembered figures; measure and remember them if there are none."""
    return cached_benchmark() or measure_and_remember()


def measure_and_remember() -> HostBenchmark | None:
    """Measure in a process of its own, which leaves this one small; None if that fails."""
    try:
        measured = HostBenchmark(**run_apart(measure, _PATIENCE_S))
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        return None
    with contextlib.suppress(OSError):  # unwritable cache: measured again next time
        atomic.write_text(cache_path(), json.dumps(asdict(measured)))
    return measured


def run_apart(measured: Callable[[], object], patience_s: float) -> Any:
    """Return what a module's function returns, as JSON, in a process of its own."""
    root = str(Path(sys.modules["advisor"].__path__[0]).parent)
    code = (
        "import dataclasses, json, sys; sys.path.insert(0, sys.argv[1]); "
        f"from {measured.__module__} import {measured.__name__} as measured; "
        "print(json.dumps(measured(), default=dataclasses.asdict))"
    )
    command = [sys.executable, "-c", code, root]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience_s, check=True)
    return json.loads(done.stdout)


_SHEET_VERSION = 1


def sheet_path() -> Path:
    """Return where the sheets are kept: beside the host's figures, one file a machine."""
    host = cache_path()
    return host.with_name(f"sheets-v{_SHEET_VERSION}-{host.name.removeprefix('host-')}")


def cached_sheets() -> tuple[Sheet, ...]:
    """Return the remembered sheets; none where nothing was measured or it cannot be read."""
    try:
        return tuple(map(sheet_of, json.loads(sheet_path().read_text())))
    except (OSError, ValueError, TypeError, LookupError):
        return ()
