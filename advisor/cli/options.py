"""Defaults of a verb's own options, from the environment, the project's file and the user's.

``ADVISOR_SIMULATE_SPOT_RESTART=10m`` is what ``restart = "10m"`` says under ``[simulate.spot]`` in
``advisor.toml`` (``[tool.advisor.simulate.spot]`` in ``pyproject.toml``): the verb then runs as if
called with ``--restart 10m``, unless the command line says otherwise. ``deadline`` and
``overrides`` of a question hold for every verb that takes them. Shared options of a question are
read by ``advisor.ask.sources``; a verb's table goes before what is said for all verbs.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import io
import os
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from advisor import quantities
from advisor.ask import (
    ALIASES,
    ENTRIES,
    ENVIRONMENT,
    PREFIX,
    Question,
    Setting,
    flag_of,
    merged,
    read_question,
    settings_files,
    shown_path,
    stated,
    variable_of,
)
from advisor.collectors import atomic
from advisor.errors import AdvisorError, UsageError

if TYPE_CHECKING:
    from advisor.show import Chart, Style


# What a question asks and verbs without a question have an option for, with the same meaning.
SHARED: Final = ("deadline", "overrides")
_ASKED: Final = "question"


def with_settings(command: Any, verb: str, verbs: Iterable[str]) -> Any:
    """Return a verb, or a verb of verbs, whose options take their defaults from settings.

    ``verbs``: all names, to refuse a table of none.

    Raises UsageError if a file cannot be read, or names a verb or an option that does not exist.
    """
    known = tuple(verbs)
    for words, one in leaves(command, (verb,)):
        _give_defaults(one, words, known)
    return command


def leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that runs, with the words that call it."""
    inner = getattr(command, "commands", None)
    if not inner:
        yield words, command
        return
    for name, one in inner.items():
        yield from leaves(one, (*words, name))


def all_in_force(
    environ: Mapping[str, str], load: Callable[[str], Any], verbs: Iterable[str]
) -> tuple[list[Setting], set[str]]:
    """Return the settings of all verbs' own options, and the variables that mean something.

    Only verbs that a file or a variable names are loaded.

    ``load``: from a verb's name to its command.
    """
    known = tuple(verbs)
    tables = {name for file in settings_files(Path.cwd()) for name in file.verbs}
    found: list[Setting] = []
    variables: set[str] = set()
    for verb in known:
        is_said = any(name.startswith(_variable((verb,), "")) for name in environ)
        if not (is_said or verb in tables):
            continue
        for words, command in leaves(load(verb), (verb,)):
            found += _in_force(command, words, known, environ, with_shared=False)
            variables |= {_variable(words, name) for name in _options(command)}
    for file in settings_files(Path.cwd()):
        _check_verbs(file.verbs, known, file.path)
    return found, variables


def _in_force(
    command: Any, words: tuple[str, ...], known: Iterable[str], environ: Mapping[str, str],
    *, with_shared: bool = True,
) -> list[Setting]:  # fmt: skip
    """Return the settings of one command's own options, one an option that is set."""
    options = _options(command)
    shared = SHARED if with_shared and _ASKED not in options else ()
    places = list(_places(words, options, known, environ, [n for n in shared if n in options]))
    found = []
    for name in options:
        saying = [(place, said[name]) for place, said in places if name in said]
        if saying:
            found.append(Setting.of(".".join((*words, name)), saying))
    return found


def _give_defaults(command: Any, words: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Let a command look at the settings when it is called, and say which it used."""
    make = command.make_context

    def make_context(info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        if {"-h", "--help"} & set(args):
            return make(info_name, args, parent, **extra)
        options = _options(command)
        found = _in_force(command, words, known, os.environ)
        values = {one.name.rpartition(".")[2]: one for one in found}
        extra["default_map"] = {
            options[name].name: _value(options[name], one.value) for name, one in values.items()
        }
        try:
            context = make(info_name, args, parent, **extra)
        except Exception:  # a value that cannot be read: say where it stands
            _tell(found)
            raise
        _tell(one for name, one in values.items() if _is_used(context, options[name]))
        return context

    command.make_context = make_context


def _is_used(context: Any, option: Any) -> bool:
    source = context.get_parameter_source(option.name)
    return source is not None and str(source.name) == "DEFAULT_MAP"


def _tell(used: Iterable[Setting]) -> None:
    by_place: dict[str, list[str]] = {}
    for one in used:
        by_place.setdefault(one.place, []).append(one.name)
    for place, names in by_place.items():
        typer.echo(f"note: {place} says {', '.join(names)}", err=True)


def _options(command: Any) -> dict[str, Any]:
    """Return a command's options by the name of their flag."""
    return {
        _name(one): one
        for one in command.params
        if one.param_type_name == "option" and not one.is_eager
    }


def _name(option: Any) -> str:
    flag = next((one for one in option.opts if one.startswith("--")), option.opts[0])
    return str(flag.lstrip("-").replace("-", "_"))


def _variable(words: tuple[str, ...], name: str) -> str:
    return PREFIX + "_".join((*words, name)).upper().replace("-", "_")


def _places(
    words: tuple[str, ...], options: Mapping[str, Any], known: Iterable[str],
    environ: Mapping[str, str], shared: Collection[str],
) -> Iterator[tuple[str, dict[str, Any]]]:  # fmt: skip
    """Yield what is said for a command, by place, the weakest first."""
    for file in settings_files(Path.cwd()):
        _check_verbs(file.verbs, known, file.path)
        said = {name: file.answers[name] for name in shared if name in file.answers}
        yield shown_path(file.path), said | _table(file.verbs, words, options, file.path)
    pairs = [(name, f"{PREFIX}{name.upper()}") for name in shared]
    pairs += [(name, _variable(words, name)) for name in options]
    yield ENVIRONMENT, {name: environ[var] for name, var in pairs if environ.get(var, "").strip()}


def _check_verbs(tables: Mapping[str, Any], known: Iterable[str], path: Path) -> None:
    for name in tables:
        if name not in known:
            raise UsageError(f"{path}: there is no verb {name!r}", hint=_nearest(name, known))


def _table(
    tables: Mapping[str, Any], words: tuple[str, ...], options: Mapping[str, Any], path: Path
) -> dict[str, Any]:
    """Return a command's table of a file, by the names of its flags."""
    table: Any = tables
    for word in words:
        table = next((v for k, v in table.items() if k.replace("_", "-") == word), {})
        if not isinstance(table, dict):
            break
    if not isinstance(table, dict):
        raise UsageError(
            f"{path}: cannot read {'.'.join(words)} as a table", hint=f"write [{'.'.join(words)}]"
        )
    said = {name.replace("-", "_"): value for name, value in table.items()}
    for name in said:
        if name not in options:
            raise UsageError(
                f"{path}: `advisor {' '.join(words)}` has no option --{name.replace('_', '-')}",
                hint=_nearest(name, options),
            )
    return said


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}?" if close else f"one of: {', '.join(known)}"


def _value(option: Any, value: str) -> Any:
    """Return a value as the command line would hand it on: text, or several texts."""
    if not option.multiple:
        return value
    return [part.strip() for part in value.strip("[]").replace("'", "").split(",") if part.strip()]


# Options that verbs share: one table makes them, one record holds what was answered.
#
# ``@asks(JOB, LAYOUT)`` gives a verb the options of these parts of a question, with the same flag,
# name and help in every verb, and calls it with the ``Question`` in place of them.


Names = tuple[str, ...]


def _part(name: str) -> Names:
    return tuple(entry for entry, one in ENTRIES.items() if one.part == name)


JOB: Final[Names] = _part("job")
CONSTRAINTS: Final[Names] = _part("constraints")
LAYOUT: Final[Names] = _part("layout")
SETUP: Final[Names] = _part("setup")
CLUSTER: Final[Names] = _part("cluster")
# Other names of flags, beside those that stand in for an older option.
_SHORTHANDS: Final = ("compile", "quantised_base", "finetune")
_FILE: Final = "question"


def asks(*groups: Names) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the options of these names; it is called with ``question`` for all of them.

    The verb's first parameter is the ``Question``; its others stay options of its own.
    """
    names = tuple(dict.fromkeys(name for group in groups for name in group))
    shorthands = tuple(alias for alias in _SHORTHANDS if ALIASES[alias].name in names)

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
        shared = [_parameter(name) for name in (*names, *shorthands)]

        def command(**values: Any) -> None:
            file = values.pop(_FILE)
            given = {n: values.pop(n) for n in (*names, *shorthands)}
            verb(ask(given, names=names, file=file), **values)

        parameters = [*shared, *own, _file_parameter()]
        command.__doc__ = verb.__doc__
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        )
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return command

    return decorate


def ask(given: Mapping[str, Any], *, names: Collection[str], file: Path | None = None) -> Question:
    """Return the question: flags, a file, the environment, the project's file, the user's.

    Raises UsageError if a value makes no sense; the message names the flag, or the file and the
    name in it.
    """
    flags = {name: value for name, value in given.items() if value is not None}
    Question.read(flags, names=names, are_flags=True)
    of_hours = ENTRIES["deadline"].kind
    for name in flags.keys() & ENTRIES.keys():  # an alias is no entry
        if ENTRIES[name].kind is of_hours:
            say_hours(flag_of(name), flags[name])
    places = [
        (one.place, {name: value for name, value in one.answers.items() if name in names})
        for one in stated(Path.cwd(), os.environ)
    ]
    said = {} if file is None else read_question(file)
    answers = merged(*(given for _, given in places), said, flags)
    question = Question.read(answers, names=names, are_flags=True)
    _tell_what_was_used(places, answers)
    return question


def given_flags(question: Question, names: Iterable[str]) -> list[str]:
    """Return the flags of these names that the command line gives, those of settings left out."""
    places = (one.answers for one in stated(Path.cwd(), os.environ))
    said, record = Question.read(merged(*places)).to_record(), question.to_record()
    return [flag_of(name) for name in names if record.get(name) != said.get(name)]


# The argument of the verbs that take a run without a flag; ``with_run`` puts it into the question.
Recorded = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help="Recorded run: its name, part of it, or its folder (default: the latest).",
    ),
]


def with_run(question: Question, recorded: str | None) -> Question:
    """Return the question about the run that is named without a flag, if one is.

    Raises UsageError if a run is named with a flag too.
    """
    if recorded is None:
        return question
    if question.job.run is not None:
        raise UsageError("two runs are given", hint="leave --run out")
    return replace(question, job=replace(question.job, run=recorded))


def _tell_what_was_used(
    places: list[tuple[str, dict[str, Any]]], answers: Mapping[str, Any]
) -> None:
    """Say on stderr which answers came from which place, the strongest first."""
    told: set[str] = set()
    for place, given in reversed(places):
        used = [n for n in given if n not in told and answers.get(n) == given[n]]
        told |= set(used)
        if used and place == ENVIRONMENT:
            typer.echo(f"note: set in {place}: {', '.join(map(variable_of, used))}", err=True)
        elif used:
            typer.echo(f"note: {place} says {', '.join(used)}", err=True)


def _parameter(name: str) -> inspect.Parameter:
    """Return the option of one name; every value comes as text, so that one reader sees it."""
    entry = ENTRIES.get(name)
    if entry is None:
        alias = ALIASES[name]
        return _option(name, bool, (f"--{name.replace('_', '-')}",), help=alias.help)
    if entry.kind.metavar:
        flags = entry.flags or (flag_of(name),)
        shown = {"autocompletion": _model_names} if name == "model" else {}
        return _option(name, str, flags, help=entry.help, metavar=entry.kind.metavar, **shown)
    flag = flag_of(name)
    return _option(name, bool, entry.flags or (f"{flag}/--no-{flag[2:]}",), help=entry.help)


def _model_names(incomplete: str) -> list[str]:
    """Return the names that a shell offers after ``--model``."""
    from advisor.jobs import names_from

    return names_from(incomplete)


def _file_parameter() -> inspect.Parameter:
    return _option(
        _FILE, Path, ("--question",), metavar="FILE",
        help="JSON file of options and their values; flags take precedence.",
    )  # fmt: skip


def _option(name: str, kind: type[Any], flags: Names, **shown: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, typer.Option(*flags, **shown)],
    )


# Help in plain words: a value is N, TEXT or FILE, and a default is part of the sentence.


_WORDS: Final = {"integer": "N", "float": "N", "int": "N", "text": "TEXT", "str": "TEXT",
                 "path": "FILE", "Path": "FILE"}  # fmt: skip


def in_plain_words(command: Any) -> Any:
    """Return a command, those below it included, whose help names values and not their types."""
    for param in command.params:
        if param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: None  # typer asks every argument for it
            param.metavar = param.metavar or param.name.upper()
            if hasattr(param, "_usage_display_name"):  # of a typer that sets brackets itself
                param.metavar = param.metavar.removeprefix("[").removesuffix("]")
                if param.nargs != 1 and param.metavar.count("...") == 1:  # and dots
                    param.metavar = param.metavar.removesuffix("...")
        elif not getattr(param, "is_flag", False):
            param.metavar = value_word(param)
        _say_default(param)
    for one in getattr(command, "commands", {}).values():
        in_plain_words(one)
        # Else the list of verbs ends sentences with three dots.
        one.short_help = one.short_help or (one.help or "").partition("\n\n")[0]
    return command


def value_word(param: Any) -> str:
    """Return what help shows in place of an option's value."""
    if param.metavar:
        return str(param.metavar)
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(one.value) for one in kind)
    if choices := getattr(getattr(param, "type", None), "choices", None):
        return "|".join(str(getattr(one, "value", one)) for one in choices)
    name = getattr(kind, "__name__", None)
    name = name or getattr(getattr(param, "type", None), "name", "text")
    return _WORDS.get(str(name).removesuffix(" range"), "TEXT")


def _say_default(param: Any) -> None:
    """Put an option's default into its sentence; no "x>=1" after it, which the error says."""
    param._get_number_range_help_str = lambda: ""
    if default := _default_of(param):
        param.help = f"{(param.help or '').rstrip('.')} (default: {default})."
        param.show_default = False


def _default_of(param: Any) -> str | None:
    """Return what help says that an option is by default, None for nothing."""
    default = getattr(param.default, "value", param.default)
    if isinstance(param.show_default, str) or not param.show_default:
        return param.show_default or None
    if isinstance(default, bool):
        flags = param.opts if default else param.secondary_opts
        return flags[0] if flags and param.secondary_opts else None
    if isinstance(default, float):
        return f"{default:g}"
    return str(default) if isinstance(default, str | int) and default != "" else None


# ``--plot [FILE]``: draw an answer in the terminal, or into a picture.
#
# A verb with the option is registered with ``cls=PlotCommand``, which reads ``--plot`` without a
# file, and refuses what cannot be drawn before the verb has worked for it.


SUFFIXES: Final = (".png", ".svg", ".pdf")
_FLAG: Final = "--plot"
_TERMINAL: Final = "-"
_HINT: Final = "name a .png, .svg or .pdf file; for the terminal, write --plot last"

Plot = Annotated[
    str | None,
    typer.Option(
        _FLAG,
        metavar="[FILE]",
        help="Draw the answer too: in the terminal, or into a .png, .svg or .pdf file.",
    ),
]


class PlotCommand(TyperCommand):
    """A verb whose ``--plot`` may stand without a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; what cannot be drawn is refused here."""
        rest = super().parse_args(ctx, with_terminal(args))
        refuse(ctx.params.get("plot"), as_json=bool(ctx.params.get("as_json")))
        return list(rest)


def with_terminal(args: Sequence[str]) -> list[str]:
    """Return arguments in which a ``--plot`` without a file names the terminal.

    What follows is its file unless it is another flag or has no suffix.

    >>> with_terminal(["latest", "--plot"]), with_terminal(["--plot", "a.png"])
    (['latest', '--plot', '-'], ['--plot', 'a.png'])
    """
    found: list[str] = []
    for place, word in enumerate(args):
        found.append(word)
        following = args[place + 1] if place + 1 < len(args) else _TERMINAL * 2
        is_file = following == _TERMINAL or (following[0:1] != "-" and Path(following).suffix)
        if word == _FLAG and "--" not in args[:place] and not is_file:
            found.append(_TERMINAL)
    return found


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


# Options whose value is a quantity: the command line's way into ``advisor.quantities``.
#
# ``restart: Annotated[float, quantity(SECONDS, "--restart", help=...)] = 300.0`` hands on a
# number in the unit that the kind is named for; a default is written in that unit too.


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityKind:
    """A kind of quantity."""

    metavar: str  # what help shows in place of the value
    parse: Callable[..., float]  # reads the text; ``option`` names the flag in its message


HOURS: Final = QuantityKind(metavar="DURATION", parse=quantities.parse_hours)
SECONDS: Final = QuantityKind(metavar="DURATION", parse=quantities.parse_seconds)
# Where a bare number of hours would surprise.
SECONDS_WITH_UNIT: Final = QuantityKind(
    metavar="DURATION", parse=partial(quantities.parse_seconds, needs_unit=True)
)
BYTES: Final = QuantityKind(metavar="SIZE", parse=quantities.parse_bytes)
BYTES_WITH_UNIT: Final = QuantityKind(
    metavar="SIZE", parse=partial(quantities.parse_bytes, needs_unit=True)
)
RATE: Final = QuantityKind(metavar="RATE", parse=quantities.parse_rate)
USD: Final = QuantityKind(metavar="USD", parse=quantities.parse_usd)
SHARE: Final = QuantityKind(metavar="SHARE", parse=quantities.parse_share)
COUNT: Final = QuantityKind(metavar="COUNT", parse=quantities.parse_count)


def quantity(kind: QuantityKind, *flags: str, help: str, default: str | None = None) -> Any:
    """Return the option ``flags`` whose text is read as a quantity of this kind.

    ``default`` is how help writes the default value.
    """

    def parse(value: Any) -> float:
        if not isinstance(value, str):
            return float(value)
        found = kind.parse(value, option=flags[0])
        if kind is HOURS:
            say_hours(flags[0], value)
        return found

    return typer.Option(
        *flags, parser=parse, metavar=kind.metavar, help=help, show_default=default or False
    )


def say_hours(flag: str, value: object) -> None:
    """Say that a duration without a unit, other than 0, is read as hours."""
    with contextlib.suppress(ValueError):
        if float(str(value)):
            typer.echo(f"note: {flag} {value} is read as {value} h", err=True)


# A sign of life on the terminal while an answer takes more than a second; nothing in a pipe.


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
