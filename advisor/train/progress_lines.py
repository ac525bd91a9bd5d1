"""Progress of a long fit: bars on a terminal, a line every few seconds where there is none."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

PERIOD_S: Final = 5.0  # between lines: seldom enough for a log, often enough to be seen alive


@contextlib.contextmanager
def progress(checkpoints: Path | None = None, *, is_quiet: bool = False) -> Iterator[None]:
    """Show how far the fits in the block are; keep finished parts in ``checkpoints``."""
    from advisor.learned import supervised

    if is_quiet:
        with supervised(lambda *_: None, checkpoints):
            yield
    elif sys.stderr.isatty():
        with _bars() as tell, supervised(tell, checkpoints):
            yield
    else:
        lines = ProgressLines(sys.stderr)
        with lines.ticking(), supervised(lines.tell, checkpoints):
            yield


class ProgressLines:
    """Progress as lines of text."""

    def __init__(self, out: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._begin_s = self._said_s = clock()
        self._stages: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def tell(self, what: str, done: int, total: int) -> None:
        """Note how far a stage is, and write the line that is due; the last of a stage is."""
        with self._lock:
            self._stages[what] = done, total
            if done == total:
                self._say(f"{what}: {total} of {total}")
                del self._stages[what]
        self.tick()

    def tick(self) -> None:
        """Write a line if the last one is ``PERIOD_S`` old."""
        with self._lock:
            if self._clock() - self._said_s < PERIOD_S:
                return
            stages = [f"{what} {done} of {total}" for what, (done, total) in self._stages.items()]
            self._say(", ".join(stages) or "fitting")

    @contextlib.contextmanager
    def ticking(self) -> Iterator[None]:
        """Tick beside the block, which may be a single long call."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(PERIOD_S / 5):
                self.tick()

        thread = threading.Thread(target=watch, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _say(self, line: str) -> None:
        self._said_s = self._clock()
        with contextlib.suppress(OSError):  # nobody reads it: no reason to end a fit
            self._out.write(f"{line} ({self._said_s - self._begin_s:.0f} s)\n")
            self._out.flush()


@contextlib.contextmanager
def _bars() -> Iterator[Callable[[str, int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    bars: dict[str, Any] = {}
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Elapsed()
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        fitting = shown.add_task("fitting", total=None)

        def tell(what: str, done: int, total: int) -> None:
            shown.update(fitting, visible=False)
            if what not in bars:
                bars[what] = shown.add_task(what, total=total)
            shown.update(bars[what], completed=done, total=total)

        yield tell
