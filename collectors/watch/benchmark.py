"""Micro-benchmarks of this machine and sheets of its devices, measured once and kept; abilities.

The host's products, memory, integers and disk are timed by the CPU clock of the thread that works,
and the best of many short repetitions counts, so that neighbours cost little: they slow a kernel
down by what they take of caches and bandwidth, not by the cores they occupy. The figures for all
cores come from one process a core, all at work at the same time, added up: clocks, caches and
memory are shared as in a training run.
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
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from advisor.collectors import atomic
from advisor.collectors.atomic import cache_folder
from advisor.collectors.errors import RecordingError, bytes_text
from advisor.collectors.format import Host, HostBenchmark, Sheet, sheet_of
from advisor.collectors.watch import host
from advisor.collectors.watch.host import Groups, cpu_model, usable_cpus

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


# Side of the square product: takes a core hundredths of a second, a GPU milliseconds.
_SIDE: Final = {"cpu": 1024, "cuda": 8192}
_SHEET_COPY_BYTES: Final = {"cpu": 256 * 2**20, "cuda": 2**30}
_ROUND_S: Final = 0.15
_ROUNDS: Final = 5
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16"}
# The small training step: a perceptron of three layers over 256 samples.
_STEP_WIDTH: Final = 512
_STEP_BATCH: Final = 256


def measured_devices() -> list[Sheet]:
    """Measure the processor, then each kind of CUDA device that PyTorch sees (about 30 s each).

    The same code times both: wall time of many repetitions between two synchronisations, and the
    best of several rounds, so that neighbours cost little. Products are large enough to sustain
    the device's rate; the copy is larger than any cache; the small call is what a kernel costs
    however little it does. On a processor everything is measured again with 1, 2, 4, ... threads,
    besides a small training step that shows what threads are worth in a job.
    """
    import torch

    sheets = [_sheet("cpu", cpu_model(), "cpu")]
    names: dict[str, int] = {}
    for index in range(torch.cuda.device_count()):
        names.setdefault(torch.cuda.get_device_name(index), index)
    return sheets + [_sheet("cuda", name, f"cuda:{index}") for name, index in names.items()]


def _sheet(kind: str, name: str, device: str) -> Sheet:
    import torch

    threads = _thread_counts() if kind == "cpu" else []
    by_threads = [_with_threads(number, device) for number in threads]
    most = torch.get_num_threads() if kind == "cuda" else threads[-1]
    with _threads(most):
        return {
            "device": kind,
            "name": name,
            "fp32_flop_per_s": _product(device, "float32"),
            "tf32_flop_per_s": _tf32(device) if kind == "cuda" else None,
            "fp8_flop_per_s": _fp8(device) if kind == "cuda" else None,
            **{f"{p}_flop_per_s": _tried(_product, device, d) for p, d in _DTYPES.items()},
            "copy_bytes_per_s": _copy(device),
            "call_s": _call_s(device),
            "threads": threads,
            "flop_per_s_by_threads": [flop for flop, _, _ in by_threads],
            "bytes_per_s_by_threads": [moved for _, moved, _ in by_threads],
            "step_s_by_threads": [step for _, _, step in by_threads],
            "torch_version": str(torch.__version__),
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def _thread_counts() -> list[int]:
    most = usable_cpus()
    counts = [1]
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    return counts if counts[-1] == most else [*counts, most]


def _with_threads(number: int, device: str) -> tuple[float, float, float]:
    with _threads(number):
        return _product(device, "float32"), _copy(device), _step_s(device)


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _best_call_s(run: Callable[[], object], device: str) -> float:
    import torch

    def settle() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)

    run()
    settle()
    begin = time.perf_counter()
    run()
    settle()
    least = time.perf_counter() - begin
    if least > _ROUND_S * _ROUNDS:  # emulated in software: one call says enough
        return least
    calls = max(1, int(_ROUND_S / max(least, 1e-7)))
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        settle()
        least = min(least, (time.perf_counter() - begin) / calls)
    return least


def _tried(measured: Callable[..., float], *arguments: Any) -> float | None:
    """Return the measurement, None where the device or this PyTorch cannot do it."""
    try:
        return measured(*arguments)
    except (RuntimeError, AttributeError, TypeError, ValueError):
        return None


def _product(device: str, dtype: str) -> float:
    import torch

    side = _SIDE[device.partition(":")[0]]
    kind = getattr(torch, dtype)
    a, b = (torch.rand(side, side, device=device).to(kind) for _ in range(2))
    out = torch.empty(side, side, device=device, dtype=kind)
    return float(2.0 * side**3 / _best_call_s(lambda: torch.mm(a, b, out=out), device))


def _tf32(device: str) -> float | None:
    import torch

    if torch.cuda.get_device_capability(device) < (8, 0):
        return None
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return _product(device, "float32")
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _fp8(device: str) -> float | None:
    import torch

    if torch.cuda.get_device_capability(device) < (8, 9):
        return None

    def rate() -> float:
        side = _SIDE["cuda"]
        a, b = (torch.rand(side, side, device=device).to(torch.float8_e4m3fn) for _ in range(2))
        one = torch.ones((), device=device)

        def run() -> object:
            return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

        return float(2.0 * side**3 / _best_call_s(run, device))

    return _tried(rate)


def _copy(device: str) -> float:
    import torch

    size = _SHEET_COPY_BYTES[device.partition(":")[0]]
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    return 2.0 * size / _best_call_s(lambda: target.copy_(source), device)


def _call_s(device: str) -> float:
    """Return what one small call takes from Python, many issued in a row [s]."""
    import torch

    small = torch.ones(16, device=device)
    return _best_call_s(lambda: small.add_(1.0), device)


def _step_s(device: str) -> float:
    """Return a step of a small perceptron: forward, backward, update [s]."""
    import torch

    torch.manual_seed(0)
    width = _STEP_WIDTH
    layers: list[Any] = []
    for _ in range(2):
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.rand(_STEP_BATCH, width, device=device)
    y = torch.zeros(_STEP_BATCH, dtype=torch.long, device=device)

    def run() -> None:
        optimizer.zero_grad()
        loss: Any = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return _best_call_s(run, device)


_SHEET_VERSION = 1
_SHEET_PATIENCE_S = 240.0


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


def measure_sheets() -> tuple[Sheet, ...]:
    """Measure every device that PyTorch sees, in a process of its own, and remember the sheets.

    Raises RecordingError if PyTorch is not there, or the measurement fails.
    """
    try:
        sheets = tuple(map(sheet_of, run_apart(measured_devices, _SHEET_PATIENCE_S)))
    except (OSError, ValueError, TypeError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise RecordingError(
            f"the devices could not be measured: {said[-1] if said else error}",
            hint="PyTorch must be importable by the interpreter that runs advisor",
        ) from error
    atomic.write_text(sheet_path(), json.dumps(sheets))
    return sheets


def sheet_lines(sheet: Sheet) -> list[str]:
    """Return a sheet in words, a line each."""
    rates = [
        f"{precision} {rate / 1e12:.3g}"
        for precision in ("fp32", "tf32", "bf16", "fp16", "fp8")
        if (rate := sheet[f"{precision}_flop_per_s"])
    ]
    lines = [
        f"{sheet['name']} ({sheet['device']}): products {', '.join(rates)} Tflop/s sustained",
        f"  memory copy {sheet['copy_bytes_per_s'] / 1e9:.1f} GB/s, a small call takes "
        f"{1e6 * sheet['call_s']:.1f} us",
    ]
    for i, threads in enumerate(sheet["threads"]):
        lines.append(
            f"  {threads} threads: {sheet['flop_per_s_by_threads'][i] / 1e9:.0f} Gflop/s, "
            f"{sheet['bytes_per_s_by_threads'][i] / 1e9:.1f} GB/s, a small training step "
            f"{1e3 * sheet['step_s_by_threads'][i]:.2f} ms"
        )
    return [*lines, f"  measured {sheet['measured_at']}, torch {sheet['torch_version']}"]


def host_abilities() -> list[dict[str, Any]]:
    """Return what can be recorded here, or not, as tried, each with what that means."""
    from advisor.collectors.watch.network import (
        can_make_nodes,  # brings what starts other programs
    )
    from advisor.collectors.watch.probes import Gpus, TcpCounters

    groups, gpus = Groups.of(), Gpus().names
    found = (
        ("process tree", Path("/proc/self/task").is_dir(),
         "/proc; without it nothing is sampled"),
        ("network by process", TcpCounters().is_there, "TCP bytes by sock_diag; else none"),
        ("CPU time in ns", _has_cpu_clock(), "process CPU clocks; else ticks of 10 ms"),
        ("contention", Path("/proc/self/schedstat").is_file(),
         "run-queue delay; without it step times are wall times"),
        ("pressure", Path("/proc/pressure/cpu").is_file(),
         "the machine's noise next to a figure"),
        ("control groups", groups.version > 0,
         f"version {groups.version}: limits and throttling of a container"),
        ("GPU", bool(gpus), ", ".join(gpus) or "no NVML library, or no device behind it"),
        ("limited links", can_make_nodes(),
         "profile --workers N --bandwidth RATE: root, ip and tc"),
        ("hooks", not (sys.flags.isolated or sys.flags.ignore_environment),
         "steps, operators and total work of Python scripts"),
    )  # fmt: skip
    return [{"what": what, "is_there": there, "remark": remark} for what, there, remark in found]


def _has_cpu_clock() -> bool:
    try:
        return time.clock_gettime_ns((~os.getpid() << 3) | 2) > 0
    except (OSError, AttributeError):
        return False


def host_lines(host: Host) -> list[str]:
    """Return the machine in words, a line each."""
    limit = f"{host.cpu_limit:g} of {host.logical_cpus} CPUs"
    memory = bytes_text(host.memory_limit_bytes)
    lines = [f"{host.cpu_model}, {limit}, {memory}, {host.system}"]
    if host.gpus:
        lines.append(", ".join(host.gpus))
    figures = host.benchmark
    if figures is None:
        return [*lines, "not measured"]
    disk = figures.disk_read_bytes_per_s
    return [
        *lines,
        f"products (fp32): {figures.matmul_flop_per_s / 1e9:.0f} Gflop/s, one core "
        f"{figures.matmul_one_core_flop_per_s / 1e9:.0f}",
        f"memory copy: {figures.copy_bytes_per_s / 1e9:.1f} GB/s, one core "
        f"{figures.copy_one_core_bytes_per_s / 1e9:.1f}",
        f"integers: {figures.scalar_score:,.0f} CoreMark-like iterations/s on one core",
        "disk: unknown" if disk is None else f"disk: {disk / 1e6:,.0f} MB/s read",
        f"measured on {figures.measured_at[:10]}",
    ]
