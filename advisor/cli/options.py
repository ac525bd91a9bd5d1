"""Commands made of records: each field of a verb's record is an option of the command line.

A verb is a record whose fields are options (``advisor.ask.entries``) and that answers when it is
called; its docstring is its help. A field ``question`` stands for the options of a question: the
record then holds the ``Question`` that they, a file and the settings ask.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from advisor import catalogue, estimate, machines
from advisor.ask import (
    ALIASES,
    ENTRIES,
    ENVIRONMENT,
    FILES,
    OF_RECIPE,
    TYPED,
    Entry,
    Question,
    argument,
    command_line,
    entries_of,
    flag_of,
    merged,
    read_question,
    read_recipe,
    stated,
    variable_of,
    with_recipe,
)
from advisor.cli.profile import SCRIPTS, run_of
from advisor.cli.terminal import BareCommand
from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.recipes import Recipe

# Other names of flags, beside those that stand in for an older option.
_SHORTHANDS: Final = ("compile", "quantised_base", "finetune")
_FILE: Final = "question"
# Options whose values a shell completes from what is known here (``completions``).
_NAMED: Final = frozenset({
    "model", "gpus", "gpu", "cloud", "region", "on", "stack", "to", "run", "recorded",
})  # fmt: skip
_FILE_ALONE: Final = Entry(
    help="Recipe of a training tool (--recipe), or a Python script, which is recorded first.",
    name="recipe_file", is_argument=True, more={"metavar": "[FILE]"},
)  # fmt: skip
# Of the verbs that take a run without a flag; ``with_run`` puts it into the question.
run_argument: Final = partial(
    argument,
    "Recorded run: its name, part of it, or its folder (default: the latest).",
    metavar="[RUN]",
)


def add(
    app: typer.Typer, name: str, verb: Any, *, run: Callable[[Any], None] | None = None,
    **more: Any,
) -> None:  # fmt: skip
    """Let an application have a verb: a record of options, or a function of typer's own kind.

    ``run``: what is done with the record; it is called by default; ``more``: what typer is told of
    the command, besides what ``settings`` of the record says.
    """
    if not isinstance(verb, type):
        app.command(name, **more)(verb)
        return
    more = {"cls": BareCommand, **more, **getattr(verb, "settings", {})}
    app.command(name, **more)(_function(verb, run))


def group(help: str, verbs: Mapping[str, Any], **more: Any) -> typer.Typer:
    """Return an application of several verbs; ``more``: for typer."""
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, no_args_is_help=True, help=help, **more
    )
    for name, verb in verbs.items():
        add(app, name, verb)
    return app


def _function(verb: Any, run: Callable[[Any], None] | None) -> Callable[..., None]:
    """Return what typer makes a command of: called with options, it runs the verb with them."""
    hints = get_type_hints(verb)
    parameters: list[inspect.Parameter] = []
    names: tuple[str, ...] = ()
    defaults = {one.name: one.default for one in fields(verb)}
    for entry in entries_of(verb):
        if entry.names:
            shorthands = (n for n in _SHORTHANDS if ALIASES[n].name in entry.names)
            names = (*entry.names, *shorthands)
            parameters += map(_of_question, names)
        else:
            parameters.append(_own(entry, hints[entry.field], defaults[entry.field]))
    if names:
        parameters.append(_FILE_PARAMETER)
    if "recipe" in names and not any(entry.is_argument for entry in entries_of(verb)):
        parameters.append(_own(_FILE_ALONE, str | None, None))

    def command(**values: Any) -> None:
        if names:
            file = values.pop(_FILE)
            values.pop(_FILE_ALONE.name, None)  # it was given its flag (``BareCommand``)
            given = {n: values.pop(n) for n in names}
            if given.get("recipe") and given["ranks"] is None:
                given["ranks"] = _asked_about(given, values)
            values["question"] = ask(
                given, names=set(names) & ENTRIES.keys(), file=file,
                is_told_aside=bool(values.get("as_json")),
            )  # fmt: skip
            if values.get("count", 1) is None:
                values["count"] = _count(given, values)
        asked = verb(**values)
        asked() if run is None else run(asked)

    command.__doc__ = verb.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _own(entry: Entry, hint: Any, default: Any) -> inspect.Parameter:
    """Return the parameter of a verb's own option, which typer reads by type or kind."""
    flags = entry.flags or (f"--{entry.name.replace('_', '-')}",)
    more: dict[str, Any] = dict(entry.more) | _completed(entry)
    if entry.kind is not TYPED:

        def parser(value: Any) -> Any:
            return _read(entry, flags[0], value)

        kind = {"parser": parser, "metavar": entry.kind.metavar, "show_default": False}
        more = kind | more
    if entry.is_argument:
        about: Any = typer.Argument(help=entry.help, **more)
    else:
        about = typer.Option(*flags, help=entry.help, rich_help_panel=entry.panel, **more)
    default = inspect.Parameter.empty if default is MISSING else default
    return _parameter(entry.name, Annotated[hint, about], default)


def _read(entry: Entry, flag: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = entry.kind.read(value, flag)
    if entry.kind.is_hours:
        say_hours(flag, value)
    return found


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _of_question(name: str) -> inspect.Parameter:
    """Return the parameter of a name; every value comes as text, so that one reader sees it."""
    alias = ALIASES.get(name)
    entry = ENTRIES[name if alias is None else alias.name]
    more: dict[str, Any] = {"rich_help_panel": entry.panel}
    if alias is not None:
        about = typer.Option(f"--{name.replace('_', '-')}", help=alias.help, **more)
        return _parameter(name, Annotated[bool | None, about])
    flag = flag_of(name)
    if not entry.kind.metavar:
        flags = entry.flags or (f"{flag}/--no-{flag[2:]}",)
        about = typer.Option(*flags, help=entry.help, **more)
        return _parameter(name, Annotated[bool | None, about])
    more |= _completed(entry)
    flags = entry.flags or (flag,)
    about = typer.Option(*flags, help=entry.help, metavar=entry.kind.metavar, **more)
    return _parameter(name, Annotated[str | None, about])


_FILE_PARAMETER: Final = _parameter(
    _FILE,
    Annotated[Path | None, typer.Option(
        "--question", metavar="FILE", rich_help_panel=FILES,
        help="JSON file of options and their values; flags take precedence.",
    )],
)  # fmt: skip


def _completed(entry: Entry) -> dict[str, Any]:
    """Return how a shell completes the values of an option, for typer."""
    metavar = entry.kind.metavar
    if "|" not in metavar and entry.name not in _NAMED:
        return {}

    def offered(incomplete: str) -> list[str]:
        from advisor.cli import completions

        return completions.offered(entry.name, metavar, incomplete)

    return {"autocompletion": offered}


def _asked_about(given: Mapping[str, Any], values: Mapping[str, Any]) -> int | None:
    """Return the devices that a verb is asked about, which a recipe may leave open."""
    if given.get("cluster"):
        cluster = machines.read_cluster(given["cluster"], _catalogue(given))
        return sum(group.devices for group in cluster)
    return values.get("count") if values.get("gpu") else None


def _count(given: Mapping[str, Any], values: Mapping[str, Any]) -> int:
    """Return the accelerators or machines that a recipe is started on; 1 without."""
    devices = None if given["recipe"] is None else read_recipe(given).devices
    if devices is None or (on := values.get("on")) in (None, "here"):
        return devices or 1
    held = _catalogue(given).instance_type(on).accelerator_count
    return -(-devices // max(int(held), 1))


def _catalogue(given: Mapping[str, Any]) -> catalogue.Catalogue:
    return catalogue.Catalogue.load(given.get("catalogue"), overrides=given.get("overrides"))


def ask(
    given: Mapping[str, Any], *, names: Collection[str], file: Path | None = None,
    is_told_aside: bool = False,
) -> Question:  # fmt: skip
    """Return the question: flags, a file, the environment, the project's file, the user's.

    ``is_told_aside``: whether standard output is for the answer's record alone.

    Raises UsageError if a value makes no sense; the message names the flag, or the file and the
    name in it.
    """
    flags = {name: value for name, value in given.items() if value is not None}
    # A recipe's answers are checked with those of all places.
    if "recipe" not in flags:
        alone = {name: value for name, value in flags.items() if name not in OF_RECIPE}
        Question.read(alone, names=names, are_flags=True)
    if (script := str(flags.get("run"))).endswith(SCRIPTS):
        flags["run"] = run_of(script)
    for name in flags.keys() & ENTRIES.keys():  # an alias is no entry
        if ENTRIES[name].kind.is_hours:
            say_hours(flag_of(name), flags[name])
    places = [
        (place, {name: value for name, value in answers.items() if name in names})
        for place, answers in stated(Path.cwd(), os.environ)
    ]
    said = {} if file is None else read_question(file)
    answers = merged(*(given for _, given in places), said, flags)
    recipe = None if answers.get("recipe") is None else read_recipe(answers)
    holds = answers if recipe is None else with_recipe(answers, recipe, names)
    question = Question.read(holds, names=names, are_flags=True)
    _tell_what_was_used(places, answers)
    if recipe is not None:
        _tell_recipe(recipe, holds, aside=is_told_aside)
    return question


def _tell_recipe(found: Recipe, holds: Mapping[str, Any], *, aside: bool) -> None:
    """Say what a recipe comes to, as flags that say the same, and what it leaves open.

    ``holds``: the answers, its own among them.
    """
    said = {name: value for name, value in found.answers.items() if holds.get(name) == value}
    from advisor.words import wrapped

    flags = command_line(said).removeprefix("advisor recommend ")
    flags = re.sub(r" (?!--)", "\N{NO-BREAK SPACE}", flags)  # a flag and its value in one line
    width = shutil.get_terminal_size().columns
    first = f"{found.path.name}, a recipe of {found.tool}, says:"
    lines = [first, *wrapped(flags, width, first="  ", indent="  ")]
    lines += [line for note in found.notes for line in wrapped(f"- {note}", width, indent="  ")]
    typer.echo("\n".join(lines), err=aside)


def given_flags(question: Question, names: Iterable[str]) -> list[str]:
    """Return the flags of these names that the command line gives, those of settings left out."""
    places = (answers for _, answers in stated(Path.cwd(), os.environ))
    said, record = Question.read(merged(*places)).to_record(), question.to_record()
    return [flag_of(name) for name in names if record.get(name) != said.get(name)]


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


def say_hours(flag: str, value: object) -> None:
    """Say that a duration without a unit, other than 0, is read as hours."""
    with contextlib.suppress(ValueError):
        if float(str(value)):
            typer.echo(f"note: {flag} {value} is read as {value} h", err=True)


def predictor_of(question: Question) -> estimate.Predictor:
    """Return what estimates, on the prices that a question names."""
    return estimate.Predictor(
        catalogue.Catalogue.load(question.catalogue, overrides=question.overrides)
    )


def print_json(record: Any) -> None:
    """Print a record as JSON."""
    typer.echo(json.dumps(record, indent=2))


def put(record: Any, text: Callable[[], str], *, as_json: bool) -> None:
    """Print a record as JSON, or as its text."""
    typer.echo(json.dumps(record, indent=2) if as_json else text())
