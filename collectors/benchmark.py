"""Micro-benchmarks of this machine: products, memory, integers, disk; measured once and kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from advisor.collectors import atomic, benchmark_kernels, host
from advisor.collectors.recording import HostBenchmark
from advisor.collectors.user_folders import cache_folder

_VERSION = 2
_PATIENCE_S = 30.0


def cache_path() -> Path:
    """Return where this machine's figures are kept: one file for each machine and core limit."""
    described = host.describe()
    key = f"{os.uname().nodename} {described.cpu_model} {described.cpu_limit} v{_VERSION}"
    return cache_folder() / f"host-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def cached() -> HostBenchmark | None:
    """Return the remembered figures, or None."""
    try:
        return HostBenchmark(**json.loads(cache_path().read_text()))
    except (OSError, ValueError, TypeError):
        return None


def cached_or_measured() -> HostBenchmark | None:
    """Return the remembered figures; measure and remember them if there are none."""
    return cached() or measure_and_remember()


def measure_and_remember() -> HostBenchmark | None:
    """Measure in a process of its own, which leaves this one small; None if that fails."""
    try:
        measured = HostBenchmark(**run_apart(benchmark_kernels.main, _PATIENCE_S))
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        return None
    with contextlib.suppress(OSError):  # unwritable cache: measured again next time
        atomic.write_text(cache_path(), json.dumps(asdict(measured)))
    return measured


def run_apart(main: Callable[[], None], patience_s: float) -> Any:
    """Return what a module's function prints as JSON in a process of its own."""
    root = str(Path(sys.modules["advisor"].__path__[0]).parent)
    call = f"from {main.__module__} import {main.__name__} as main; main()"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, sys.argv[1]); {call}", root]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience_s, check=True)
    return json.loads(done.stdout)
