"""A sign of life on the terminal while an answer takes more than a second; nothing in a pipe."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import IO, Final

DELAY_S: Final = 1.0


@contextlib.contextmanager
def waiting(
    what: str, *, out: IO[str] | None = None, delay_s: float = DELAY_S, is_quiet: bool = False
) -> Iterator[None]:
    """Show ``what`` beside a spinner from ``delay_s`` on, until the block ends.

    Parameters
    ----------
    what : str
        What is being done, e.g. ``"pricing offers"``.
    out : text stream, optional
        Standard error by default; nothing is shown where it is no terminal.
    delay_s : float
        What is done sooner shows nothing. [s]
    is_quiet : bool
        Show nothing: the answer is for a program.
    """
    stream = sys.stderr if out is None else out
    if is_quiet or not stream.isatty():
        yield
        return
    from rich.console import Console

    status = Console(file=stream).status(f"{what} ...")
    timer = threading.Timer(delay_s, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()
