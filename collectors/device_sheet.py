"""The user's device sheet: rates that this machine's devices sustain, measured once and kept."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

from advisor.collectors import atomic, benchmark, device_kernels
from advisor.collectors.errors import RecordingError
from advisor.collectors.recording import DeviceSheet

_VERSION = 1
_PATIENCE_S = 240.0


def sheet_path() -> Path:
    """Return where the sheets are kept: beside the host's figures, one file a machine."""
    host = benchmark.cache_path()
    return host.with_name(f"sheets-v{_VERSION}-{host.name.removeprefix('host-')}")


def cached() -> tuple[DeviceSheet, ...]:
    """Return the remembered sheets; none where nothing was measured or it cannot be read."""
    try:
        return tuple(DeviceSheet.from_record(one) for one in json.loads(sheet_path().read_text()))
    except (OSError, ValueError, TypeError):
        return ()


def measure_and_remember() -> tuple[DeviceSheet, ...]:
    """Measure every device that PyTorch sees, in a process of its own, and remember the sheets.

    Raises
    ------
    RecordingError
        If PyTorch is not there, or the measurement fails.
    """
    try:
        printed = benchmark.run_apart(device_kernels.main, _PATIENCE_S)
        sheets = tuple(DeviceSheet.from_record(one) for one in printed)
    except (OSError, ValueError, TypeError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise RecordingError(
            f"the devices could not be measured: {said[-1] if said else error}",
            hint="PyTorch must be importable by the interpreter that runs advisor",
        ) from error
    atomic.write_text(sheet_path(), json.dumps([asdict(sheet) for sheet in sheets]))
    return sheets


def sheet_lines(sheet: DeviceSheet) -> list[str]:
    """Return a sheet in words, a line each."""
    rates = [
        f"{precision} {rate / 1e12:.3g}"
        for precision in ("fp32", "tf32", "bf16", "fp16", "fp8")
        if (rate := getattr(sheet, f"{precision}_flop_per_s"))
    ]
    lines = [
        f"{sheet.name} ({sheet.device}): products {', '.join(rates)} Tflop/s sustained",
        f"  memory copy {sheet.copy_bytes_per_s / 1e9:.1f} GB/s, a small call takes "
        f"{1e6 * sheet.call_s:.1f} us",
    ]
    for i, threads in enumerate(sheet.threads):
        lines.append(
            f"  {threads} threads: {sheet.flop_per_s_by_threads[i] / 1e9:.0f} Gflop/s, "
            f"{sheet.bytes_per_s_by_threads[i] / 1e9:.1f} GB/s, a small training step "
            f"{1e3 * sheet.step_s_by_threads[i]:.2f} ms"
        )
    return [*lines, f"  measured {sheet.measured_at}, torch {sheet.torch_version}"]
