"""The command line: parse, call, show. One file a verb, loaded only when it is called.

Exit codes: 0 ok, 1 error, 2 usage, 3 the job does not fit the machines, nothing satisfies the
constraints, or what was recorded is not known well enough to answer from; ``profile`` passes the
script's own code through. Every deliberate error prints one line that says what is wrong and one
that says what to do; ``ADVISOR_DEBUG=1`` shows the traceback.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from advisor import data
from advisor.cli.typed import TYPED
from advisor.collectors.errors import explain  # now: later there may be no memory to do so

# Verb -> (where its record or its group of verbs stands in ``advisor.cli``, what the overview
# says). Those without a place are brought by others: a module with ``app``, or with a record
# ``VERB`` or a function ``command`` (``advisor.cli.elsewhere``).
VERBS: Final[dict[str, tuple[str, str]]] = {
    "profile": ("profile.ProfileScript", "Record a training script for a short while."),
    "recommend": ("answers.Recommend", "Recommend what to rent for a job, by time and cost."),
    "report": ("hand_over.WriteReport", "Write the answer as one interactive HTML page."),
    "ui": ("hand_over.ServeUi", "Show the recommendation in the browser, with controls."),
    "advise": ("answers.Advise", "Suggest changes to a job, and what each saves."),
    "predict": ("answers.Predict", "Estimate one job on one configuration."),
    "fit": ("answers.Fit", "Say what makes a job fit in memory, and what it costs."),
    "catalogue": ("catalogue.app", "List, show and update the offers of the cloud providers."),
    "plan": ("answers.PlanLayout", "Lay a job out on machines you name; print what to run."),
    "export": ("hand_over.Export", "Write a recommendation as a file that another tool runs."),
    "gate": ("hand_over.Gate", "Judge a submission before it is sent, by exit code."),
    "runs": ("runs.app", "List, show, recover and remove recorded runs."),
    "validate": ("", "Score the models against published measurements."),
    "data": ("", "List the published measurements, and fetch those not included."),
    "evaluate": ("", "Score the learned predictors on held-out jobs and machines."),
    "collect": ("", "Train many small jobs on this machine to collect labelled runs."),
    "simulate": ("simulate.app", "Simulate a job on spot nodes, clusters or elastic workers."),
    "train": ("train.app", "Refit the models from measurements."),
    "doctor": ("doctor.Doctor", "Check this machine, and show which settings apply."),
}
_TYPED: Final = f"{__name__}.typed"
# Verbs that solve many small problems: their libraries are asked for one thread, before they load.
_ON_ONE_THREAD: Final = frozenset({"train", "validate", "evaluate"})


class LazyGroup(TyperGroup):
    """A group that knows its verbs' names and help, and imports a verb when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the verbs in the order of a user's day."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a light stand-in, enough for the overview."""
        if cmd_name not in VERBS:
            return None
        return TyperCommand(cmd_name, help=VERBS[cmd_name][1])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the real verb that ``args`` names."""
        if args[0] not in VERBS:
            from difflib import get_close_matches

            for near in get_close_matches(args[0], VERBS, 1):
                ctx.fail(f"No such command '{args[0]}'. Did you mean '{near}'?")
        name, stand_in, rest = super().resolve_command(ctx, args)
        if name is None or stand_in is None:
            return name, stand_in, rest
        from advisor.cli.commands import with_settings

        return name, with_settings(load_verb(name), name, VERBS), rest

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words as they were typed: an answer says what to add to them."""
        ctx.meta[_TYPED] = ("advisor", *args)
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; a file that ends too early is not the user's Ctrl-D."""
        before = TYPED.set(ctx.meta[_TYPED])
        try:
            return super().invoke(ctx)
        except EOFError as error:
            raise explain(error) or error from error
        finally:
            TYPED.reset(before)


def load_verb(name: str) -> Any:
    """Return a verb's command, imported now."""
    if name in _ON_ONE_THREAD:
        data.use_one()
    home, _, attribute = VERBS[name][0].rpartition(".")
    module: Any
    if home:
        module = importlib.import_module(f"advisor.cli.{home}")
    else:
        from advisor.cli import elsewhere

        module = elsewhere.load(name)
    names = ("app", "VERB", "command")
    attribute = attribute or next(one for one in names if hasattr(module, one))
    verb = getattr(module, attribute)
    if not isinstance(verb, typer.Typer):
        from advisor.cli.options import add

        one, verb = verb, typer.Typer(add_completion=False, rich_markup_mode=None)
        add(verb, name, one)
    from advisor.cli.commands import in_plain_words

    command = in_plain_words(typer.main.get_command(verb))
    command.name = name
    return command


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="From a minute of your training script to the cloud machines to rent.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("cloud-config-advisor"))
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Take the options before the verb."""
    _keep_runs_where_a_file_says()


def _keep_runs_where_a_file_says() -> None:
    """Put ``runs_folder`` of the project or the user where all that runs here looks for it."""
    from pathlib import Path

    from advisor.ask import settings_files
    from advisor.collectors.derive import VARIABLE
    from advisor.errors import UsageError

    if os.environ.get(VARIABLE):
        return
    with contextlib.suppress(UsageError):  # verbs that ask say what is wrong with a file
        for one in settings_files(Path.cwd()):
            if one.runs_folder:
                os.environ[VARIABLE] = one.runs_folder


def main() -> None:
    """Run the command line; turn deliberate errors into two lines and an exit code."""
    code: int | str | None = 0
    try:
        app()
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        code = _report(error)
    sys.exit(_flushed(code))


def _report(error: Exception) -> int:
    """Print what went wrong and what to do about it; a defect of ours is raised again."""
    if os.environ.get("ADVISOR_DEBUG"):
        raise error
    found: Any = error
    if not hasattr(error, "exit_code"):
        found = explain(error)
    if found is None:
        raise error
    hint = _shown(getattr(found, "hint", ""))
    with contextlib.suppress(OSError):
        sys.stderr.write(f"error: {_shown(str(found))}\n" + (f"hint: {hint}\n" if hint else ""))
        sys.stderr.flush()
    return int(found.exit_code)


def _shown(text: str) -> str:
    """Return a text without what a terminal would obey."""
    try:
        from advisor.collectors.errors import shown

        return shown(text)
    except Exception:  # not even that fits into memory; an import then fails in any way
        return "".join(c if c.isprintable() else "?" for c in text)


def _flushed(code: int | str | None) -> int | str | None:
    """Write out what is still to be printed; a full device is an error like any other."""
    if sys.stdout is None:  # closed before we began: nothing was printed
        return code
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough
        _discard_output()
    except OSError as error:
        _discard_output()
        return _report(error)
    return code


def _discard_output() -> None:
    """Let Python's own flush at exit find nothing to complain of."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
