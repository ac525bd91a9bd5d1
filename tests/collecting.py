"""What the collectors' tests share: hooks inside this process, and scripts in others."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from advisor.collectors.derive.read import read_events
from advisor.collectors.format.events import Events
from advisor.collectors.format.recording import HostBenchmark, Recording
from advisor.collectors.hooks import format as fmt
from advisor.collectors.hooks import patches
from advisor.collectors.hooks.session import Session
from advisor.collectors.hooks.trace import device_choice as told
from advisor.collectors.hooks.trace import frames as total_work
from advisor.collectors.run.runner import profile
from advisor.collectors.watch import benchmark


class Hooked:
    """The hooks at work in this process; ``events`` reads what they have written so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.session = Session(str(folder))

    @property
    def events(self) -> Events:
        """What was recorded until now."""
        self.session.settle()
        self.session.loaders.flush()
        self.session.writer.flush()
        (path,) = self._folder.glob("ev-*.bin")
        return read_events(path)

    def deep(self) -> dict[str, Any]:
        """Return the first traced step's facts."""
        events = self.events
        assert "failure" not in events.facts, events.facts["failure"]
        return events.facts["deep_step"][0]


def give_order(folder: Path, action: int = 0, from_step: int = 0) -> None:
    """Write the control file as the profiler would."""
    payload = struct.pack("<QQQ", action, from_step, time.monotonic_ns())
    (folder / fmt.CONTROL_FILE).write_bytes(payload)


@contextmanager
def hooked(folder: Path) -> Iterator[Hooked]:
    """Hook the modules that this process has imported, for as long as the block lasts.

    The script is pytest here: its sources and its frames, seconds of reading, are left alone.
    """
    give_order(folder)
    hooks = Hooked(folder)
    for name, patch in patches.of(hooks.session).items():
        if name in sys.modules:
            patch(sys.modules[name])
    with pytest.MonkeyPatch.context() as unread:
        unread.setattr(told, "_own_files", lambda: iter(()))
        unread.setattr(total_work, "_MAX_FRAMES", 10)
        try:
            yield hooks
        finally:
            hooks.session.release()


def record(folder: Path, source: str, *arguments: str, **settings: Any) -> Recording:
    """Run ``source`` as a script under the profiler and return the recording."""
    script = folder / "train.py"
    script.write_text(source)
    return record_command(folder, [sys.executable, str(script), *arguments], **settings)


def record_command(folder: Path, command: list[str], **settings: Any) -> Recording:
    """Run a command under the profiler and return the recording."""
    settings.setdefault("measure_host", False)
    return profile(command, run_root=folder / "runs", **settings)


# The checkout, so that scripts in other folders find ``advisor`` where it is not installed.
ROOT = str(Path(sys.modules["advisor"].__path__[0]).parent)


def remember_benchmark(cache: Path) -> None:
    """Write figures of this host into a cache, so that nothing measures it for seconds."""
    path = cache / "advisor" / benchmark.cache_path().name
    if not path.exists():
        path.parent.mkdir(parents=True)
        figures = dict.fromkeys(HostBenchmark.__dataclass_fields__, 1e9)
        path.write_text(json.dumps(figures | {"measured_at": "2026-11-21T00:00:00+00:00"}))


def advisor(
    folder: Path, *words: str, umask: int = -1, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line in ``folder`` with a user's folders there, on a measured host."""
    remember_benchmark(folder / "cache")
    environment = {**os.environ, "PYTHONPATH": ROOT, "XDG_CACHE_HOME": str(folder / "cache"),
                   "XDG_DATA_HOME": str(folder / "data")}  # fmt: skip
    environment.pop("ADVISOR_RUNS", None)
    return subprocess.run(
        [sys.executable, "-m", "advisor.cli", *words], cwd=folder, capture_output=True, text=True,
        env=environment | changes, umask=umask, check=False, errors="backslashreplace",
    )  # fmt: skip


def only_advisor(folder: Path) -> str:
    """Return a folder with nothing but ``advisor`` in it.

    The checkout itself on ``sys.path`` would show its data folder ``datasets`` to libraries that
    look whether Hugging Face's is there.
    """
    place = folder / "only advisor"
    place.mkdir()
    (place / "advisor").symlink_to(Path(ROOT) / "advisor")
    return str(place)


# A script without torch that says its steps itself: fast to start, as good for faults.
MARKED = """
import sys, time
from advisor.collectors.marker import step
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 40
for number in range(steps):
    time.sleep(0.01)
    step(samples=4)
print("done", flush=True)
"""
