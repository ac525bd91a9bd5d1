"""The mark that a run's profiler leaves, which tells whether it still lives."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

from advisor.collectors.hooks import format as fmt
from advisor.collectors.hooks.writer import start_ticks
from advisor.collectors.records import parse, parse_json
from advisor.collectors.run_files import PROFILER_FILE

# A profiler on another machine cannot be looked up, but it writes every second.
_SILENT_S: Final = 60.0
_HEADER_BYTES: Final = 2**20  # a command of 30 000 words takes a quarter of it


def mark() -> dict[str, Any]:
    """Return what tells this process from all others, as a fact: it becomes the profiler."""
    pid = os.getpid()
    return {
        "fact": "made",
        "pid": pid,
        "start_ticks": start_ticks(pid),
        "t_ns": time.monotonic_ns(),
        "machine": machine(),
    }


def machine() -> str:
    """Return what tells this machine, since it was started, and this container from others."""
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        booted = ""
    return f"{os.uname().nodename} {booted}"


def identity(data: bytes) -> dict[str, Any]:
    """Return pid, start and machine of the profiler that began a file; empty if it says none."""
    found: dict[str, Any] = {}
    for kind, payload, _ in parse(data):
        if kind not in (fmt.FACT, fmt.HEADER):
            break
        fact = parse_json(payload)
        if kind == fmt.HEADER or fact.get("fact") == "made":
            found |= {k: fact[k] for k in ("pid", "start_ticks", "t_ns", "machine") if k in fact}
        if kind == fmt.HEADER:
            break
    return found


def is_alive(found: dict[str, Any], silent_s: float) -> bool:
    """Whether the profiler that left this ``identity`` lives.

    Parameters
    ----------
    found : dict
        Empty for a run of an earlier version that was killed before it wrote anything.
    silent_s : float
        Since it last wrote. [s]
    """
    if found.get("machine", machine()) != machine():
        return silent_s < _SILENT_S
    pid, ticks, begun_ns = (found.get(name, 0) for name in ("pid", "start_ticks", "t_ns"))
    if not (isinstance(pid, int) and isinstance(begun_ns, int)) or pid <= 0:
        return False
    return begun_ns <= time.monotonic_ns() and start_ticks(pid) == ticks != 0


def profiler_lives(run: Path) -> bool:
    """Whether the run in a folder is being recorded, or about to be."""
    path = run / PROFILER_FILE
    try:
        silent_s = time.time() - path.stat().st_mtime
        with path.open("rb") as file:
            data = file.read(_HEADER_BYTES)
    except OSError:
        return False
    return is_alive(identity(data), silent_s)
