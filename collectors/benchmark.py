"""What this machine can do: products, memory, integers, disk; measured once and remembered."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from advisor.collectors import atomic, host
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
    root = str(Path(sys.modules["advisor"].__path__[0]).parent)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "from advisor.collectors.benchmark_kernels import main; main()"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, root],
            capture_output=True,
            timeout=_PATIENCE_S,
            check=True,
        )
        measured = HostBenchmark(**json.loads(done.stdout))
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        return None
    path = cache_path()
    try:
        atomic.write_text(path, json.dumps(asdict(measured)))
    except OSError:  # unwritable cache: measured again next time
        return measured
    return measured
