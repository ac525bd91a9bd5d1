"""Defaults of a verb's own options, from the environment, the project's file and the user's.

``ADVISOR_SIMULATE_SPOT_RESTART=10m`` is what ``restart = "10m"`` says under ``[simulate.spot]`` in
``advisor.toml`` (``[tool.advisor.simulate.spot]`` in ``pyproject.toml``): the verb then runs as if
called with ``--restart 10m``, unless the command line says otherwise. ``deadline`` and
``overrides`` of a question hold for every verb that takes them. Shared options of a question are
read by ``advisor.question.sources``; a verb's table goes before what is said for all verbs.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer

from advisor.errors import UsageError
from advisor.question.sources import ENVIRONMENT, PREFIX, Setting, shown_path
from advisor.settings import settings_files

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
