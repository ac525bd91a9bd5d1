"""What profilers measured of a few steps: PyTorch's trace and the tables of Nsight Systems.

A trace of ``torch.profiler`` (Chrome's JSON: events with ``ts`` and ``dur`` in microseconds) has
a range ``ProfilerStep#N`` a step where the script called ``prof.step()``, a range
``enumerate(DataLoader)#...`` where it waited for input, a ``kernel`` event each, and the memory
where ``profile_memory`` was on. ``nsys stats`` prints a table of kernels (and of NVTX ranges,
where a step may be one) as CSV or in columns, times in nanoseconds. What has no step is the least
that a run took (``censored``).
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.collectors import bounded
from advisor.errors import RunError
from advisor.records.nouns import Fact, Instances, RunRecord
from advisor.records.tracked import UNKNOWN, Floats, known_machines, opened, real, run_record

# What a kernel does -> what its name holds; the first that matches.
_KERNELS: Final = {
    "communication": r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter",
    "attention": r"flash|fmha|attention|attn",
    "convolution": r"conv|cudnn|winograd",
    "matrix": r"gemm|cutlass|cublas|xmma|nvjet|matmul|splitk|gemv",
    "copies": r"memcpy|memset",
}
_ON_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_STEP: Final = r"(?i)\W*(train(ing)?[_ ]?|global[_ ]?)?(step|iter(ation)?)([_ #:]*\d*)"
_S_PER_US: Final = 1e-6
_S_PER_NS: Final = 1e-9


def read_trace(path: Path, machines: Instances | None = None) -> list[RunRecord]:
    """Read a trace; ``machines`` made it.

    Raises RunError if it cannot be read, or nothing in it took time.
    """
    trace, events = _events(path)
    steps = [e for e in events if e["name"].startswith("ProfilerStep#")
             and e.get("cat") != "gpu_user_annotation"]  # fmt: skip
    begins, ends = _ends(steps or events)
    if not begins.size or ends.max() <= begins.min():
        raise RunError(f"{path}: no event took time", hint="export it once steps have run")
    events = [e for e in events if begins.min() <= e["ts"] <= ends.max()]
    window_us = float(ends.max() - begins.min())
    kernels = [e for e in events if e.get("cat") in _ON_DEVICE]
    facts = _kernel_facts((e["name"], e["dur"] * _S_PER_US) for e in kernels)
    waits = [e["dur"] for e in events if e["name"].startswith("enumerate(DataLoader)")]
    if waits:
        facts["input_wait_fraction"] = min(sum(waits) / window_us, 1.0)
    devices = [list(of) for _, of in groupby(sorted(kernels, key=_device), key=_device)]
    if devices:
        busy = sum(_covered(*_ends(of)) for of in devices)
        facts["gpu_fraction"] = min(busy / window_us / len(devices), 1.0)
    if peak := _peak_bytes(trace, bool(devices)):
        facts["gpu_memory_peak_bytes" if devices else "memory_peak_bytes"] = peak
    seen = trace.get("deviceProperties") or [{}]
    name = str(seen[0].get("name", "")) if isinstance(seen[0], dict) else ""
    on = Instances(provider="", instance_type=UNKNOWN, accelerator=name if devices else "",
                   accelerators=len(devices) if name else 0)  # fmt: skip
    durations = (ends - begins)[1 if len(steps) > 2 else 0 :] if steps else np.empty(0)
    return [_record("trace", path, facts, known_machines(on, machines), window_us * _S_PER_US,
                    durations * _S_PER_US)]  # fmt: skip


def read_nsys(path: Path, machines: Instances | None = None) -> list[RunRecord]:
    """Read what ``nsys stats`` printed of kernels and ranges; ``machines`` ran it.

    Raises RunError if no kernel and no step is in it.
    """
    kernels: list[tuple[str, float]] = []
    steps: list[tuple[float, float]] = []  # how often, mean [s]
    for row in _table_rows(path):
        total, count = real(row.get("Total Time (ns)")), real(row.get("Instances"))
        if total is None or count is None:
            continue
        if "Range" in row:
            if re.fullmatch(_STEP, row["Range"]):
                steps.append((count, total / count * _S_PER_NS))
        elif "Name" in row:
            kernels.append((row["Name"], total * _S_PER_NS))
    if not kernels and not steps:
        raise RunError(
            f"{path}: no kernel and no step in it",
            hint="nsys stats --report cuda_gpu_kern_sum,nvtx_sum --format csv FILE.nsys-rep",
        )
    facts = _kernel_facts(kernels)
    on = known_machines(Instances(provider="", instance_type=UNKNOWN), machines)
    total_s = sum(s for _, s in kernels) or sum(count * s for count, s in steps)
    measured = np.repeat([s for _, s in steps], [int(count) for count, _ in steps])
    return [_record("nsys", path, facts, on, total_s, measured)]


def _record(
    source: str, path: Path, facts: dict[str, Fact], machines: Instances, seconds: float,
    steps_s: Floats,
) -> RunRecord:  # fmt: skip
    """Return the record of a step where some were seen, else of all that was measured."""
    name = path.name.partition(".")[0]
    if steps_s.size:
        facts = {**facts, "steps": float(steps_s.size)}
    return run_record(
        source=source, run_id=name, family=name, settings={}, machines=machines,
        time_s=float(np.median(steps_s)) if steps_s.size else seconds,
        time_kind="step" if steps_s.size else "job",
        status="ok" if steps_s.size else "censored", facts=facts,
    )  # fmt: skip


def _events(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a trace and its events that took time."""
    try:
        trace = bounded.parse_json(opened(path))
        trace = {"traceEvents": trace} if isinstance(trace, list) else trace
        rows = trace["traceEvents"]
        trace["traceEvents"] = [e for e in rows if isinstance(e, dict)]
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"cannot read {path}: {error}",
            hint="write it by prof.export_chrome_trace, of a few steps",
        ) from error
    timed = [
        {**e, "name": str(e.get("name", "")), "ts": at, "dur": took}
        for e in trace["traceEvents"]
        if e.get("ph") == "X"
        and (at := real(e.get("ts"))) is not None
        and (took := real(e.get("dur"))) is not None
        and took >= 0
    ]
    return trace, timed


def _peak_bytes(trace: dict[str, Any], is_device: bool) -> float:
    """Return the most memory that a trace with ``profile_memory`` saw allocated [bytes]."""
    seen = (e["args"] for e in trace["traceEvents"]
            if e.get("name") == "[memory]" and isinstance(e.get("args"), dict))  # fmt: skip
    kind = 1 if is_device else 0  # c10::DeviceType: CPU 0, CUDA 1
    return max(
        (real(a.get("Total Allocated")) or 0.0 for a in seen if a.get("Device Type") == kind),
        default=0.0,
    )


def _device(event: dict[str, Any]) -> str:
    args = event.get("args")
    return str(
        args.get("device", event.get("pid")) if isinstance(args, dict) else event.get("pid")
    )


def _ends(events: list[dict[str, Any]]) -> tuple[Floats, Floats]:
    begins = np.array([e["ts"] for e in events], float)
    return begins, begins + np.array([e["dur"] for e in events], float)


def _covered(begins: Floats, ends: Floats) -> float:
    """Return the length of the union of intervals."""
    order = np.argsort(begins)
    reached = np.maximum.accumulate(ends[order])
    before = np.concatenate(([-np.inf], reached[:-1]))
    return float(np.maximum(reached - np.maximum(begins[order], before), 0.0).sum())


def _kernel_facts(kernels: Iterable[tuple[str, float]]) -> dict[str, Fact]:
    """Return the time of kernels [s] and the share of each kind in it."""
    spent: Counter[str] = Counter()
    for name, seconds in kernels:
        kind = next((k for k, held in _KERNELS.items() if re.search(held, name, re.I)), "other")
        spent[kind] += seconds  # type: ignore[assignment]
    total = float(sum(spent.values()))
    shares: dict[str, Fact] = {f"{k}_kernel_fraction": s / total for k, s in spent.items() if s}
    return {"kernel_s": total, **shares} if total else {}


def _table_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of every table that ``nsys stats`` printed, by their columns."""
    names: list[str] = []
    for line in opened(path).splitlines():
        is_csv = line.count(",") >= 3 and not line.startswith(" ")
        cells = next(csv.reader([line])) if is_csv else re.split(r"\s{2,}", line.strip())
        if any(cell.startswith("Time (%)") or cell == "Time(%)" for cell in cells):
            names = cells
        elif names and len(cells) >= len(names):
            yield dict(
                zip(names, (c if is_csv else c.replace(",", "") for c in cells), strict=False)
            )
