"""What a verb shows in a terminal: drawings for ``--plot [FILE]``, and signs of life.

A verb is a ``BareCommand``, which reads options that may stand without a value, and refuses what
cannot be drawn before the verb has worked for it. A spinner turns on a terminal while an
answer takes more than a second; nothing does in a pipe.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperCommand

from advisor.ask import OFFLOAD_FLAG, PARTS, PLOT_FLAG
from advisor.cli.profile import SCRIPTS
from advisor.cli.typed import TYPED
from advisor.collectors import atomic
from advisor.errors import AdvisorError, UsageError

if TYPE_CHECKING:
    from advisor.show import Chart, Style

SUFFIXES: Final = (".png", ".svg", ".pdf")
_TERMINAL: Final = "-"
_HINT: Final = "name a .png, .svg or .pdf file; for the terminal, write --plot last"


class BareCommand(TyperCommand):
    """A verb whose ``--plot`` and ``--offload`` may stand without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; what cannot be drawn is refused here."""
        names = {flag for one in self.params for flag in one.opts}
        rest = super().parse_args(ctx, self._with_flag(with_values(args, names)))
        refuse(ctx.params.get("plot"), as_json=bool(ctx.params.get("as_json")))
        return list(rest)

    def _with_flag(self, words: list[str]) -> list[str]:
        """Return the words with a file that stands alone behind its flag, and first.

        What an answer prints then names the file so, wherever it stood among the others.
        """
        names = {one.name for one in self.params}
        valued = {f for one in self.params if not getattr(one, "is_flag", 0) for f in one.opts}
        alone = [
            place for place, (before, word) in enumerate(pairwise(("", *words)))
            if not word.startswith("-") and before not in valued
        ]  # fmt: skip
        if len(alone) != 1 or "recipe" not in names or not names & {"recipe_file", "recorded"}:
            return words
        file = words[alone[0]]
        if "recorded" in names and not (os.path.isfile(file) or file.endswith(SCRIPTS)):
            return words  # a run's name
        rest = [one for one in (*words[: alone[0]], *words[alone[0] + 1 :]) if one != "--"]
        found = ["--run" if file.endswith(SCRIPTS) else "--recipe", file, *rest]
        TYPED.set((*TYPED.get()[:2], *found))
        return found


def with_values(
    args: Sequence[str], names: Collection[str] = (PLOT_FLAG, OFFLOAD_FLAG)
) -> list[str]:
    """Return arguments in which a bare option among ``names`` has the value that it stands for.

    A ``--plot`` names the terminal, unless what follows has a suffix; an ``--offload`` says yes,
    unless parts of a step follow, and ``--no-offload`` no.

    >>> with_values(["latest", "--plot"]), with_values(["--plot", "a.png"])
    (['latest', '--plot', '-'], ['--plot', 'a.png'])
    >>> with_values(["--offload", "run"]), with_values(["--offload", "optimizer", "--no-offload"])
    (['--offload=yes', 'run'], ['--offload', 'optimizer', '--offload=no'])
    """
    found: list[str] = []
    for place, word in enumerate(args):
        following = args[place + 1] if place + 1 < len(args) else _TERMINAL * 2
        is_option = "--" not in args[:place]
        if is_option and OFFLOAD_FLAG in names and word == f"--no{OFFLOAD_FLAG[1:]}":
            word = f"{OFFLOAD_FLAG}=no"
        elif is_option and word == OFFLOAD_FLAG in names and not _names_parts(following):
            word = f"{OFFLOAD_FLAG}=yes"
        found.append(word)
        is_file = following == _TERMINAL or (following[0:1] != "-" and Path(following).suffix)
        if is_option and word == PLOT_FLAG in names and not is_file:
            found.append(_TERMINAL)
    return found


def _names_parts(word: str) -> bool:
    """Whether a word is a list of parts of a step, misspelt ones too."""
    return any(part.strip()[:4] == known[:4] for part in word.split(",") for known in PARTS)


def refuse(plot: str | None, *, as_json: bool) -> None:
    """Refuse a file of another kind, and a drawing among the record's JSON.

    Raises UsageError.
    """
    if plot == _TERMINAL and as_json:
        raise UsageError(
            "a drawing in the terminal would stand in the JSON record",
            hint="draw into a file, --plot FILE.png, or leave --json out",
        )
    if plot not in (None, _TERMINAL) and Path(str(plot)).suffix.lower() not in SUFFIXES:
        raise UsageError(f"cannot draw into {plot}", hint=_HINT)


def show_plot(charts: Sequence[Chart], plot: str | None) -> None:
    """Draw charts where ``--plot`` asked for them: nowhere, in the terminal or into a file.

    Raises AdvisorError if the file cannot be written.
    """
    if plot is None:
        return
    if plot == _TERMINAL:
        from advisor.show import charts_text

        style = terminal_style()
        typer.echo("\n" + charts_text(charts, style), color=style.is_coloured)
        return
    _write(charts, Path(plot))


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a line a row, its cells as wide as the widest of their columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (map(str.ljust, row, widths) for row in rows)
    return ["  ".join(cells).rstrip() for cells in padded]


def is_terminal(plot: str) -> bool:
    """Say whether ``--plot`` asked for the terminal."""
    return plot == _TERMINAL


def check_drawable(charts: Sequence[Chart], plot: str | None, *, hint: str) -> None:
    """Refuse ``--plot`` where an answer has no charts; ``hint`` says what would give it some.

    Raises UsageError.
    """
    if plot is not None and not charts:
        raise UsageError("there is nothing to draw", hint=hint)


def terminal_style() -> Style:
    """Return what standard output can show: its width, colours, signs."""
    from rich.console import Console

    from advisor.show import Style

    console = Console(file=sys.stdout)
    return Style(
        width=shutil.get_terminal_size().columns,
        is_coloured=console.color_system is not None and not console.no_color,
        is_unicode=not console.options.ascii_only,
    )


def _write(charts: Sequence[Chart], file: Path) -> None:
    from advisor.show import write_charts

    drawn = io.BytesIO()
    write_charts(charts, drawn, file.suffix.lower())
    try:
        atomic.write_bytes(file, drawn.getvalue())
    except OSError as error:
        raise AdvisorError(
            f"cannot write {file}: {error.strerror or error}",
            hint="name a file in a folder that exists",
        ) from None
    typer.echo(f"drawn: {file}", err=True)


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
