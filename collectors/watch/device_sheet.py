"""The user's device sheet: rates that this machine's devices sustain, measured."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from advisor.collectors import atomic
from advisor.collectors.errors import RecordingError
from advisor.collectors.format import Sheet, sheet_of
from advisor.collectors.watch.benchmark import run_apart, sheet_path
from advisor.collectors.watch.host import cpu_model, usable_cpus

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


_SHEET_PATIENCE_S = 240.0


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
