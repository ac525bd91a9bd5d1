"""A question as one record, and the one way into it from flags, keywords, files and JSON."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from advisor.answer import CompletionWay
from advisor.ask.entries import ALIASES, ENTRIES, Entry
from advisor.ask.requests import (
    LENGTH_FIELDS,
    SOURCE_FIELDS,
    ClusterRequest,
    Constraints,
    JobSpec,
    LayoutRequest,
    Objective,
    SetupRequest,
)
from advisor.collectors import bounded
from advisor.collectors.atomic import config_folder
from advisor.collectors.derive import VARIABLE, default_run_root
from advisor.collectors.errors import shell_line
from advisor.data import MODELS
from advisor.errors import UsageError
from advisor.planners.layouts import SearchSpace

SCHEMA_VERSION: Final = 1
_RECORDS: Final[Mapping[str, type[Any]]] = {
    "job": JobSpec, "constraints": Constraints, "layout": LayoutRequest, "setup": SetupRequest,
    "cluster": ClusterRequest,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All that is asked."""

    job: JobSpec = field(default_factory=JobSpec)
    constraints: Constraints = field(default_factory=Constraints)
    layout: LayoutRequest = field(default_factory=LayoutRequest)
    setup: SetupRequest = field(default_factory=SetupRequest)
    cluster: ClusterRequest = field(default_factory=ClusterRequest)
    catalogue: str | None = None  # folder of a snapshot of prices; None for the one in use
    # the user's own prices, machines and quotas; None for ``overrides.csv`` in the configuration
    # folder, if it is there
    overrides: str | None = None
    objective: Objective = "time"
    # what the job runs on until it is done, where machines are named
    completion: CompletionWay | None = None

    @classmethod
    def read(
        cls,
        given: Mapping[str, Any],
        *,
        names: Collection[str] | None = None,
        are_flags: bool = False,
    ) -> Question:
        """Return the question that names and values ask.

        ``given``: keys of ``ENTRIES`` or ``ALIASES``; None leaves a thing open; ``names``: the
        names that are understood here; all by default; ``are_flags``: whether messages show names
        as flags of the command line.

        Raises UsageError if a name is unknown or given twice, or a value makes no sense.

        Examples
        --------
        >>> asked = Question.read({"model": "llama", "tokens": "15B", "deadline": "1h30m"})
        >>> asked.job.tokens, asked.constraints.deadline_h
        (15000000000.0, 1.5)
        """
        parts: dict[str, dict[str, Any]] = {name: {} for name in (*_RECORDS, "question")}
        for name, value in _canonical(given, names).items():
            entry = ENTRIES[name]
            shown = flag_of(name) if are_flags else name
            parts[entry.part][entry.field] = entry.kind.read(value, shown)
        own = parts.pop("question")
        return cls(**{name: _RECORDS[name](**values) for name, values in parts.items()}, **own)

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form, which ``read`` reads: what differs from the defaults."""
        record: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        default = Question()
        for name, entry in ENTRIES.items():
            value = _value(self, entry)
            if value != _value(default, entry):
                record[name] = entry.kind.show(value)
        return record


def _value(question: Question, entry: Entry) -> Any:
    part = question if entry.part == "question" else getattr(question, entry.part)
    return getattr(part, entry.field)


def flag_of(name: str) -> str:
    """Return the flag of the command line that stands for a name.

    Examples
    --------
    >>> flag_of("max_nodes"), flag_of("job_file"), flag_of("spot")
    ('--max-nodes', '--job', '--spot')
    """
    flags = ENTRIES[name].flags if name in ENTRIES else ()
    return flags[0].partition("/")[0] if flags else f"--{name.replace('_', '-')}"


def _canonical(given: Mapping[str, Any], names: Collection[str] | None) -> dict[str, Any]:
    """Return what is given under its first name; refuse what is unknown."""
    if given.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise UsageError(
            f"a question of schema version {given['schema_version']!r}",
            hint=f"this advisor reads version {SCHEMA_VERSION}",
        )
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name == "schema_version" or value is None:
            _check_name(name, names)
            continue
        alias = ALIASES.get(name)
        first, meant = (name, value) if alias is None else (alias.name, alias.meaning(value))
        _check_name(first, names, typed=name)
        if meant is None:
            continue
        if found.setdefault(first, meant) != meant:
            raise UsageError(f"{first} is given twice", hint=f"leave {name} out")
    return found


def _check_name(name: str, names: Collection[str] | None, *, typed: str | None = None) -> None:
    typed = typed or name
    if name == "schema_version":
        return
    known = {*ENTRIES, *ALIASES} if names is None else {*names, *_aliases(names)}
    if name in known:
        return
    if name in ENTRIES or name in ALIASES:
        raise UsageError(f"{typed!r} does not apply here", hint="leave it out")
    close = difflib.get_close_matches(typed, sorted(known), n=1, cutoff=0.5)
    raise UsageError(
        f"there is no option {typed!r}",
        hint=f"did you mean {close[0]}?" if close else "see: advisor recommend --help",
    )


def _aliases(names: Collection[str]) -> set[str]:
    return {alias for alias, of in ALIASES.items() if of.name in names}


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return answers by name, the later layer's where two have one.

    What names the job belongs together, and so does its length: a layer that names a run replaces
    an earlier layer's model with all its dimensions.

    Examples
    --------
    >>> merged({"model": "llama", "sequence": 4096, "top": 5}, {"run": "latest"})
    {'top': 5, 'run': 'latest'}
    """
    found: dict[str, Any] = {}
    for layer in layers:
        given = _canonical(layer, None)
        replaced: set[str] = set()
        if given.keys() & _NAMING:
            replaced |= _names_of(SOURCE_FIELDS)
        if given.keys() & _names_of(LENGTH_FIELDS):
            replaced |= _names_of(LENGTH_FIELDS)
        found = {name: value for name, value in found.items() if name not in replaced} | given
    return found


def _names_of(job_fields: Collection[str]) -> set[str]:
    return {n for n, entry in ENTRIES.items() if entry.part == "job" and entry.field in job_fields}


_NAMING: Final = frozenset({"run", "job_file", "model", "cnn", "layers", "hidden"})


def read_question(path: Path) -> dict[str, Any]:
    """Return the answers of a JSON file, as ``Question.to_record`` writes them.

    Raises UsageError if the file cannot be read, or a name or value in it makes no sense.
    """
    try:
        content = bounded.read_json(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read the question in {path}: {error}", hint="it is a JSON object of options"
        ) from error
    return checked(content, path)


def checked(content: Any, path: Path) -> dict[str, Any]:
    """Return what a file says, if all of it makes sense; messages name the file.

    Raises UsageError if it is no mapping, or a name or value in it makes no sense.
    """
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a question", hint="it has options and their values")
    try:
        Question.read(content)
    except UsageError as error:
        raise UsageError(f"{path}: {error}", hint=error.hint) from error
    return {name: value for name, value in content.items() if name != "schema_version"}


# The layouts that the user leaves open, as the space that the layout search looks in.


# Names of a request that are those of the search space.
_SAME: Final = ("tp", "pp", "cp", "ep", "micro_batch")


def layout_space(request: LayoutRequest, default: SearchSpace | None = None) -> SearchSpace | None:
    """Return the layouts that a request leaves; None where it leaves all and none is the default.

    ``default``: where nothing is fixed.
    """
    fixed = request.fixed
    changes: dict[str, Any] = {name: fixed[name] for name in _SAME if name in fixed}
    if request.accumulate is not None:
        changes["accumulation_steps"] = request.accumulate
    if request.zero is not None:
        changes["zero_stages"] = (request.zero,)
    if request.recompute is not None:
        changes["recomputes"] = (request.recompute,)
    if request.offload is False:
        changes["offloads"] = ()
    if request.offload:
        changes["offloads_alone"] = True
    if request.average_every is not None:
        changes["average_every"] = request.average_every
    # Whoever says how often swapping GPUs average asks for them, unless they are refused.
    if request.swap or (request.swap is None and request.average_every is not None):
        changes["swaps"] = True
    if not changes:
        return default
    return replace(default or SearchSpace(schedules=("1f1b", "interleaved")), **changes)


# Files of settings: the project's, in the working folder, and the user's own.
#
# ``advisor.toml``, or ``[tool.advisor]`` in ``pyproject.toml``, and ``advisor.toml`` in the user's
# configuration folder hold answers under the names of the flags (``advisor.ask``), where runs
# are kept (``runs_folder``), and a table of its own options for each verb: ``[simulate.spot]``.


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


# Answers besides the command line: those of the environment, the project, the user's file.
#
# From weak to strong: the user's ``advisor.toml``, the project's (or ``pyproject.toml``),
# variables ``ADVISOR_MAX_NODES=4``, then what the command line says.


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


# A question in the two forms that people keep: a command line, and a project file.


# Above it a float's digits are no longer whole numbers of their own.
_EXACT: Final = 2.0**53


def command_words(answers: Mapping[str, Any], verb: str = "recommend") -> list[str]:
    """Return the words of the command that asks a question.

    ``answers``: as ``Question.to_record`` writes them: names of ``ENTRIES``, and what JSON can
    hold.

    Examples
    --------
    >>> command_words({"run": "digits", "budget": 50.0, "cloud": "aws,gcp", "spot": True})
    ['advisor', 'recommend', '--run', 'digits', '--budget', '50', '--cloud', 'aws,gcp', '--spot']
    >>> command_words({"checkpoints": False}, "plan")
    ['advisor', 'plan', '--no-checkpoints']
    """
    words = ["advisor", verb]
    for name, value in _known(answers):
        if not ENTRIES[name].kind.metavar:
            words.append(_writing_switch(name, is_on=bool(value)))
            continue
        text = _text(value)
        # A value that begins with a dash would be read as a flag.
        words += [f"{flag_of(name)}={text}"] if text.startswith("-") else [flag_of(name), text]
    return words


def command_line(answers: Mapping[str, Any], verb: str = "recommend") -> str:
    """Return ``command_words`` as one line that a shell reads."""
    return shell_line(command_words(answers, verb))


def project_file(answers: Mapping[str, Any]) -> str:
    r"""Return the question as an ``advisor.toml`` holds it.

    ``answers``: as of ``command_words``.

    Examples
    --------
    >>> project_file({"run": "digits", "deadline": 6.0, "spot": True})
    'run = "digits"\ndeadline = 6.0\nspot = true\n'
    """
    return "".join(f"{name} = {_toml(value)}\n" for name, value in _known(answers))


def _known(answers: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in answers.items() if name in ENTRIES]


def _writing_switch(name: str, *, is_on: bool) -> str:
    flags = ENTRIES[name].flags
    flag = flag_of(name)
    on, _, off = flags[0].partition("/") if flags else (flag, "/", f"--no-{flag[2:]}")
    return on if is_on else off


def _text(value: Any) -> str:
    """Return a value as the command line takes it."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return str(int(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(_text, value))
    return str(value)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_toml, value))}]"
    # A string of JSON is one of TOML but for DEL, and for pairs of surrogates, which are not used.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
