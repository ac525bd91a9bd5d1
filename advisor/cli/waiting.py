"""A sign of life on the terminal while an answer takes more than a second; nothing in a pipe."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any, Final

DELAY_S: Final = 1.0
Verb = Callable[..., None]


def while_waiting(what: str) -> Callable[[Verb], Verb]:
    """Let a verb that says nothing before its end show a sign of life until then.

    What it prints on standard output is printed when it is done.
    """

    def decorate(verb: Verb) -> Verb:
        @functools.wraps(verb)
        def command(*args: Any, **options: Any) -> None:
            held = io.StringIO()
            try:
                with contextlib.redirect_stdout(held), waiting(what):
                    verb(*args, **options)
            finally:
                sys.stdout.write(held.getvalue())

        return command

    return decorate


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
    from rich.live import Live
    from rich.spinner import Spinner

    status = Live(
        Spinner("dots", f"{what} ..."), console=Console(file=stream), transient=True,
        redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip
    timer = threading.Timer(delay_s, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()
