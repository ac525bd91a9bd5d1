"""A training log as programs print it: step times, waits for input, memory, batch.

What is known is a table of lines: tqdm and Lightning's bars, nanoGPT, a Trainer's last line,
Megatron-LM, nanotron, LitGPT, timm, torchvision's references, PyTorch's ImageNet example,
mmengine, and whatever prints a step time in words. Of a log that prints only the number of the
step, after a day and time, the step is what passes between two of them (torchtitan).
"""

from __future__ import annotations

import re
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Final

import numpy as np

from advisor.errors import RunError
from advisor.records.nouns import Fact, Instances, RunRecord
from advisor.records.tracked import UNKNOWN, known_machines, opened, run_record

_N: Final = r"([\d,]*\.?\d+(?:e[-+]?\d+)?)"
_UNITS: Final = {"": 1.0, "s": 1.0, "ms": 1e-3, "k": 1e3, "mb": 2.0**20, "mib": 2.0**20,
                 "gb": 2.0**30, "gib": 2.0**30}  # fmt: skip
# What a line says, pattern of a number and its unit, unit where it names none.
_SAID: Final = tomllib.loads(Path(__file__).with_name("log_lines.toml").read_text("utf-8"))["said"]
_BAR: Final = re.compile(r"(\d+)/\d+ \[(?:(\d+):)?(\d+):(\d+)<")
_RUNTIME: Final = re.compile(rf"'train_runtime': '?{_N}")
_STAMPED: Final = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?).*\b(?:step|iteration|iter):? +(\d+)"
)
_LONGEST: Final = 1_000  # characters of a line that says a step
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")


def read_log(path: Path, machines: Instances | None = None) -> list[RunRecord]:
    """Read a log as one run; ``machines`` ran it.

    Raises RunError if no line of it says how long a step took.
    """
    text = _ANSI.sub("", opened(path)).replace("\r", "\n")
    lines = [line for line in text.splitlines() if len(line) <= _LONGEST]
    said = {name: found for name, pattern, unit in reversed(_SAID)
            if (found := _numbers(lines, pattern.replace("{N}", _N), unit))}  # fmt: skip
    steps_s = _between(lines) or said.pop("step_s", [])
    if not steps_s:
        steps_s = [1.0 / rate for rate in said.get("steps_per_s", []) if rate > 0]
    if not steps_s:
        raise RunError(
            f"{path}: no line says how long a step took",
            hint="a line such as 'step_time: 310 ms', '2.9it/s' or 'time: 0.31' does",
        )
    said.pop("steps_per_s", None)
    step_s = float(np.median(steps_s[1:] or steps_s))  # the first compiles, and fills caches
    facts: dict[str, Fact] = {"steps": float(len(steps_s))}
    if waits := said.pop("input_s", []):
        facts["input_wait_fraction"] = min(float(np.median(waits[1:] or waits)) / step_s, 1.0)
    if peaks := said.pop("gpu_memory_peak_bytes", []):
        facts["gpu_memory_peak_bytes"] = max(peaks)
    runtime = next((float(m[1]) for line in lines if (m := _RUNTIME.search(line))), None)
    batch = said.pop("batch", None)
    return [
        run_record(
            source="log",
            run_id=path.stem,
            family=path.stem,
            settings={} if batch is None else {"batch_size": batch[-1]},
            machines=known_machines(Instances(provider="", instance_type=UNKNOWN), machines),
            time_s=step_s if runtime is None else runtime,
            time_kind="step" if runtime is None else "job",
            status="ok",
            facts=facts if runtime is None else facts | {"step_time_s": step_s},
        )
    ]


def _numbers(lines: list[str], pattern: str, unit: str) -> list[float]:
    """Return the last number of each line that matches, in s, bytes or none."""
    found = []
    for line in lines:
        if match := re.search(pattern, line):
            said = [part for part in match.groups() if part]
            number = next(part for part in reversed(said) if part[0] in "0123456789.,")
            factors = [_UNITS[part.lower()] for part in said if part.lower() in _UNITS]
            value = float(number.replace(",", ""))
            found.append(value * float(np.prod(factors or [_UNITS[unit]])))
    return [value for value in found if value > 0]


def _between(lines: list[str]) -> list[float]:
    """Return the steps [s] between lines that say how many steps and how much time had passed."""
    bars = [(int(m[1]), 3600.0 * int(m[2] or 0) + 60.0 * int(m[3]) + int(m[4]))
            for line in lines for m in _BAR.finditer(line)]  # fmt: skip
    stamps = [
        (int(m[2]), datetime.fromisoformat(m[1].replace(",", ".")).timestamp())
        for line in lines
        if (m := _STAMPED.search(line))
    ]
    points = bars if len(bars) > 1 else stamps
    # Clocks of whole seconds: over all of an epoch, that is until the count begins anew.
    steps: list[float] = []
    first = last = points[0] if points else (0, 0.0)
    for at in [*points[1:], (-1, 0.0)]:
        if at[0] < last[0]:
            if last[0] > first[0] and last[1] > first[1]:
                steps.append((last[1] - first[1]) / (last[0] - first[0]))
            first = at
        last = at
    return steps
