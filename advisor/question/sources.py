"""Answers besides the command line: those of the environment, the project, the user's file.

From weak to strong: the user's ``advisor.toml``, the project's (or ``pyproject.toml``), variables
``ADVISOR_MAX_NODES=4``, then what the command line says.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from advisor.collectors import store
from advisor.errors import UsageError
from advisor.question.entries import ENTRIES
from advisor.question.reading import checked, merged
from advisor.settings import RUNS_FOLDER, settings_files

PREFIX: Final = "ADVISOR_"
ENVIRONMENT: Final = "the environment"
DEFAULT: Final = "default"
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})
# Variables of the program that are no answers to a question. ADVISOR_RUNS is a folder; the table
# of runs that a question has under this name is given by its flag.
_TAKEN: Final[Mapping[str, str]] = {
    store.VARIABLE: "folder or URL of recorded runs",
    "ADVISOR_DEBUG": "tracebacks of errors",
    "ADVISOR_SHARED": "mirror of public measurements",
    "ADVISOR_CATALOGUE_MIRROR": "mirror that `catalogue update` downloads from",
}
# Set by the profiler for the processes that it starts.
_INTERNAL: Final = frozenset(
    {"ADVISOR_RUN_DIR", "ADVISOR_PROFILER", "ADVISOR_TRAINER", "ADVISOR_WORKERS"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """Answers of one place."""

    place: str  # a file's name, or ``ENVIRONMENT``
    answers: dict[str, Any]  # by name, each of which makes sense


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting in force."""

    name: str
    value: str
    place: str
    beaten: tuple[str, ...] = ()  # weaker places that say otherwise, with what they say

    @classmethod
    def of(cls, name: str, saying: Sequence[tuple[str, Any]]) -> Setting:
        """Return a setting of which places say something, the weakest first."""
        place, value = saying[-1]
        beaten = tuple(f"{where}: {said}" for where, said in saying[:-1] if said != value)
        return cls(name=name, value=str(value), place=place, beaten=beaten)


def variable_of(name: str) -> str:
    """Return the environment's variable of a name.

    Examples
    --------
    >>> variable_of("max_nodes")
    'ADVISOR_MAX_NODES'
    """
    return f"{PREFIX}{name.upper()}"


def stated(folder: Path, environ: Mapping[str, str]) -> list[Stated]:
    """Return what is said besides the command line, the weakest place first.

    Raises UsageError if a file cannot be read, or a name or value makes no sense; the message says
    where.
    """
    places = [
        Stated(place=shown_path(one.path), answers=merged(checked(one.answers, one.path)))
        for one in settings_files(folder)
    ]
    answers = read_environment(environ)
    return [*places, *([Stated(place=ENVIRONMENT, answers=answers)] if answers else [])]


def read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the answers of variables ``ADVISOR_NAME``; an empty one says nothing.

    Raises UsageError if a value makes no sense; the message names the variable.
    """
    found: dict[str, Any] = {}
    for name, entry in ENTRIES.items():
        variable = variable_of(name)
        text = environ.get(variable, "").strip()
        if not text or variable in _TAKEN:
            continue
        value = text if entry.kind.metavar else _switch(text, variable)
        entry.kind.read(value, variable)
        found[name] = value
    return found


def _switch(text: str, variable: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise UsageError(f"{variable}: cannot read {text!r} as yes or no", hint="give 1 or 0")


def unknown_variables(environ: Mapping[str, str], more: Collection[str] = ()) -> dict[str, str]:
    """Return the variables ``ADVISOR_...`` that mean nothing, each with the nearest that does.

    ``more`` are names that mean something to verbs.
    """
    known = {variable_of(name) for name in ENTRIES} | set(_TAKEN) | _INTERNAL | set(more)
    return {
        name: next(iter(difflib.get_close_matches(name, sorted(known), n=1)), "")
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in known
    }


def settings(folder: Path, environ: Mapping[str, str]) -> list[Setting]:
    """Return the settings in force, one a name, with where each stands.

    Raises UsageError as ``stated``.
    """
    return [*_program_settings(folder, environ), *_answers(stated(folder, environ))]


def _answers(places: list[Stated]) -> Iterator[Setting]:
    in_force = merged(*(one.answers for one in places))
    for name in sorted(in_force):
        saying = [(one.place, one.answers[name]) for one in places if name in one.answers]
        yield Setting.of(name, saying or [(DEFAULT, in_force[name])])


def _program_settings(folder: Path, environ: Mapping[str, str]) -> Iterator[Setting]:
    """Yield where runs are kept, and the other variables that are set."""
    saying = [
        (shown_path(one.path), one.runs_folder)
        for one in settings_files(folder)
        if one.runs_folder
    ]
    named = environ.get(store.VARIABLE)
    if named and (not saying or named != saying[-1][1]):
        saying.append((store.VARIABLE, named))
    yield Setting.of(RUNS_FOLDER, saying or [(DEFAULT, str(store.run_root()))])
    for variable, about in _TAKEN.items():
        if variable != store.VARIABLE and environ.get(variable):
            yield Setting(name=about, value=environ[variable], place=variable)


def shown_path(path: Path) -> str:
    """Return a settings file's name; the user's own with its folder."""
    home = os.path.expanduser("~")
    if not path.is_absolute() or path.parent == Path.cwd():
        return path.name
    text = str(path)
    return f"~{text[len(home) :]}" if text.startswith(f"{home}/") else text
