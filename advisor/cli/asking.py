"""Options that verbs share: one table makes them, one record holds what was answered.

``@asks(JOB, LAYOUT)`` gives a verb the options of these parts of a question, with the same flag,
name and help in every verb, and calls it with the ``Question`` in place of them.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from advisor.errors import UsageError
from advisor.question import (
    ALIASES,
    ENTRIES,
    Question,
    flag_of,
    merged,
    read_question,
)
from advisor.question.sources import ENVIRONMENT, stated, variable_of

Names = tuple[str, ...]


def _part(name: str) -> Names:
    return tuple(entry for entry, one in ENTRIES.items() if one.part == name)


JOB: Final[Names] = _part("job")
CONSTRAINTS: Final[Names] = _part("constraints")
LAYOUT: Final[Names] = _part("layout")
SETUP: Final[Names] = _part("setup")
CLUSTER: Final[Names] = _part("cluster")
# Other names of flags, beside those that stand in for an older option.
_SHORTHANDS: Final = ("compile", "quantised_base")
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
    places = [
        (one.place, {name: value for name, value in one.answers.items() if name in names})
        for one in stated(Path.cwd(), os.environ)
    ]
    said = {} if file is None else read_question(file)
    answers = merged(*(given for _, given in places), said, flags)
    question = Question.read(answers, names=names, are_flags=True)
    _tell_what_was_used(places, answers)
    return question


# The argument of the verbs that take a run without a flag; ``with_run`` puts it into the question.
Recorded = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        show_default=False,
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
        return _option(name, str, flags, help=entry.help, metavar=entry.kind.metavar)
    flag = flag_of(name)
    return _option(name, bool, entry.flags or (f"{flag}/--no-{flag[2:]}",), help=entry.help)


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
        annotation=Annotated[kind | None, typer.Option(*flags, show_default=False, **shown)],
    )
