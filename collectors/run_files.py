"""The files that a run's folder holds, by name."""

from __future__ import annotations

from typing import Final

PROFILER_FILE: Final = "profiler.bin"
EVENT_FILES: Final = "ev-*.bin"  # one a hooked process
