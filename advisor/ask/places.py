"""Places that say something of a question or of a verb's own options: files, the environment.

From weak to strong: ``advisor.toml`` in the user's configuration folder, the project's in the
working folder (or ``[tool.advisor]`` in ``pyproject.toml``), variables ``ADVISOR_MAX_NODES=4``,
then what the command line says. A file holds answers under the names of the flags, where runs are
kept (``runs_folder``), and a table of its own options for each verb: ``restart = "10m"`` under
``[simulate.spot]`` is ``ADVISOR_SIMULATE_SPOT_RESTART=10m``, and what ``--restart 10m`` says. A
verb's table goes before what is said for all verbs.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from advisor.ask.question import ENTRIES, checked, merged
from advisor.collectors import bounded
from advisor.collectors.atomic import config_folder
from advisor.collectors.derive import VARIABLE, default_run_root
from advisor.data import MODELS
from advisor.errors import UsageError

# Where a project's answers are looked for, the first that is there.
PROJECT_FILES: Final = ("advisor.toml", "pyproject.toml")
USER_FILE: Final = "advisor.toml"
RUNS_FOLDER: Final = "runs_folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """A file of settings that is there and says something."""

    path: Path
    answers: dict[str, Any]
    runs_folder: str | None = None  # a folder, or a URL
    # tables of the verbs' own options, by the verb's name
    verbs: dict[str, Any] = field(default_factory=dict)


def settings_files(folder: Path) -> Iterator[SettingsFile]:
    """Yield the user's file and the project's in ``folder``, the stronger one last.

    Raises UsageError if a file cannot be read.
    """
    yield from _read(user_file())
    for name in PROJECT_FILES:
        found = list(_read(folder / name))
        if found:
            yield found[0]
            return


def user_file() -> Path:
    """Return where the user's own settings stand, whether they are there or not."""
    return config_folder() / USER_FILE


def _read(path: Path) -> Iterator[SettingsFile]:
    if not path.is_file():
        return
    try:
        content = bounded.read_toml(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read {path}: {error}", hint="correct the file, or move it away"
        ) from error
    if path.name == "pyproject.toml":
        tools = content.get("tool", {})
        content = tools.get("advisor", {}) if isinstance(tools, dict) else tools
    if not isinstance(content, dict):
        raise UsageError(
            f"{path}: cannot read tool.advisor as a table", hint="write [tool.advisor]"
        )
    verbs = {name: value for name, value in content.items() if isinstance(value, dict)}
    answers = {name: value for name, value in content.items() if name not in verbs}
    runs = answers.pop(RUNS_FOLDER, None)
    if runs is not None and not (isinstance(runs, str) and runs.strip()):
        raise UsageError(
            f"{path}: {RUNS_FOLDER}: cannot read {runs!r} as a folder", hint="give a path or a URL"
        )
    if answers or runs or verbs:
        folder = _placed(runs, path.parent)
        yield SettingsFile(path=path, answers=answers, runs_folder=folder, verbs=verbs)


def _placed(runs: str | None, beside: Path) -> str | None:
    """Return a folder as seen from the working folder; a file's own are relative to it."""
    if runs is None or "://" in runs:
        return runs
    return str(beside / Path(runs).expanduser())


PREFIX: Final = "ADVISOR_"
ENVIRONMENT: Final = "the environment"
DEFAULT: Final = "default"
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})
# Variables of the program that are no answers to a question. ADVISOR_RUNS is a folder; the table
# of runs that a question has under this name is given by its flag.
_TAKEN: Final[Mapping[str, str]] = {
    VARIABLE: "folder or URL of recorded runs",
    MODELS: "folder or URL of your own models",
    "ADVISOR_DEBUG": "tracebacks of errors",
    "ADVISOR_SHARED": "mirror of public measurements",
    "ADVISOR_CATALOGUE_MIRROR": "mirror that `catalogue update` downloads from",
}
# Set by the profiler for the processes that it starts.
_INTERNAL: Final = frozenset(
    {"ADVISOR_RUN_DIR", "ADVISOR_PROFILER", "ADVISOR_TRAINER", "ADVISOR_WORKERS"}
)


# A place (a file's name, or ``ENVIRONMENT``), and its answers by name.
Stated = tuple[str, dict[str, Any]]


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


def variable_of(*words: str) -> str:
    """Return the environment's variable of a name, or of a verb's words and the name.

    Examples
    --------
    >>> variable_of("max_nodes"), variable_of("simulate", "spot", "least_nodes")
    ('ADVISOR_MAX_NODES', 'ADVISOR_SIMULATE_SPOT_LEAST_NODES')
    """
    return PREFIX + "_".join(words).upper().replace("-", "_")


def stated(folder: Path, environ: Mapping[str, str]) -> list[Stated]:
    """Return what is said of a question besides the command line, the weakest place first.

    Raises UsageError if a file cannot be read, or a name or value makes no sense; the message says
    where.
    """
    places = [
        (shown_path(one.path), merged(checked(one.answers, one.path)))
        for one in settings_files(folder)
    ]
    answers = read_environment(environ)
    return [*places, *([(ENVIRONMENT, answers)] if answers else [])]


def stated_of_verb(
    words: tuple[str, ...], names: Collection[str], folder: Path, environ: Mapping[str, str],
    *, verbs: Collection[str], shared: Collection[str] = (),
) -> list[Stated]:  # fmt: skip
    """Return what is said of a verb's own options, the weakest place first.

    ``words``: that call it; ``names``: of its options; ``verbs``: all names, to refuse a table of
    none; ``shared``: names that mean the same where they are said for all verbs.

    Raises UsageError if a file cannot be read, or names a verb or an option that does not exist.
    """
    places = []
    for file in settings_files(folder):
        check_verbs(file, verbs)
        said = {name: file.answers[name] for name in shared if name in file.answers}
        table = _table(file, words, names)
        places.append((shown_path(file.path), said | table))
    variables = [(name, variable_of(name)) for name in shared]
    variables += [(name, variable_of(*words, name)) for name in names]
    said = {name: environ[var] for name, var in variables if environ.get(var, "").strip()}
    return [*places, (ENVIRONMENT, said)]


def check_verbs(file: SettingsFile, verbs: Collection[str]) -> None:
    """Raise UsageError if a file has a table of a verb that does not exist."""
    for name in file.verbs:
        if name not in verbs:
            raise UsageError(f"{file.path}: there is no verb {name!r}", hint=_nearest(name, verbs))


def _table(file: SettingsFile, words: tuple[str, ...], names: Collection[str]) -> dict[str, Any]:
    """Return a verb's table of a file, by the names of its flags."""
    table: Any = file.verbs
    for word in words:
        table = next((v for k, v in table.items() if k.replace("_", "-") == word), {})
        if not isinstance(table, dict):
            name = ".".join(words)
            raise UsageError(f"{file.path}: cannot read {name} as a table", hint=f"write [{name}]")
    said = {name.replace("-", "_"): value for name, value in table.items()}
    for name in said:
        if name not in names:
            raise UsageError(
                f"{file.path}: `advisor {' '.join(words)}` has no option "
                f"--{name.replace('_', '-')}",
                hint=_nearest(name, names),
            )
    return said


def _nearest(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}?" if close else f"one of: {', '.join(known)}"


def in_force(
    places: Sequence[Stated], names: Iterable[str], words: tuple[str, ...] = ()
) -> Iterator[Setting]:
    """Yield the settings in force of these names, those of a verb under its words."""
    for name in names:
        saying = [(place, answers[name]) for place, answers in places if name in answers]
        if saying:
            yield Setting.of(".".join((*words, name)), saying)


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
    """Return the settings of questions in force, one a name, with where each stands.

    Raises UsageError as ``stated``.
    """
    places = stated(folder, environ)
    names = sorted(merged(*(answers for _, answers in places)))
    return [*_program_settings(folder, environ), *in_force(places, names)]


def _program_settings(folder: Path, environ: Mapping[str, str]) -> Iterator[Setting]:
    """Yield where runs are kept, and the other variables that are set."""
    saying = [
        (shown_path(one.path), one.runs_folder)
        for one in settings_files(folder)
        if one.runs_folder
    ]
    named = environ.get(VARIABLE)
    if named and (not saying or named != saying[-1][1]):
        saying.append((VARIABLE, named))
    yield Setting.of(RUNS_FOLDER, saying or [(DEFAULT, str(default_run_root()))])
    for variable, about in _TAKEN.items():
        if variable != VARIABLE and environ.get(variable):
            yield Setting(name=about, value=environ[variable], place=variable)


def shown_path(path: Path) -> str:
    """Return a settings file's name; the user's own with its folder."""
    home = os.path.expanduser("~")
    if not path.is_absolute() or path.parent == Path.cwd():
        return path.name
    text = str(path)
    return f"~{text[len(home) :]}" if text.startswith(f"{home}/") else text
