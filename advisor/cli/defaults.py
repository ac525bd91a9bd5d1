"""Defaults of a verb's own options, from the settings: files and the environment.

The verb runs as if called with them, unless the command line says otherwise. ``deadline`` and
``overrides`` of a question hold for every verb that takes them. What a verb's question is asked in
settings is read by ``advisor.cli.options.ask``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import typer

from advisor.ask import Setting, check_verbs, in_force, settings_files, stated_of_verb, variable_of

# What a question asks and verbs without a question have an option for, with the same meaning.
SHARED: Final = ("deadline", "overrides")
_ASKED: Final = "question"


def with_settings(command: Any, verb: str, verbs: Iterable[str]) -> Any:
    """Return a verb, or a verb of verbs, whose options take their defaults from settings.

    ``verbs``: all names, to refuse a table of none.

    Raises UsageError if a file cannot be read, or names a verb or an option that does not exist.
    """
    for words, one in leaves(command, (verb,)):
        one.make_context = partial(_context, one, one.make_context, words, tuple(verbs))
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
    known, files = tuple(verbs), list(settings_files(Path.cwd()))
    found: list[Setting] = []
    variables: set[str] = set()
    for verb in known:
        is_said = any(name.startswith(variable_of(verb, "")) for name in environ)
        if not is_said and not any(verb in file.verbs for file in files):
            continue
        for words, command in leaves(load(verb), (verb,)):
            options = _options(command)
            places = stated_of_verb(words, options, Path.cwd(), environ, verbs=known)
            found += in_force(places, options, words)
            variables |= {variable_of(*words, name) for name in options}
    for file in files:
        check_verbs(file, known)
    return found, variables


def _context(
    command: Any, make: Callable[..., Any], words: tuple[str, ...], verbs: tuple[str, ...],
    info_name: Any, args: Any, parent: Any = None, **extra: Any,
) -> Any:  # fmt: skip
    """Return the context of a call in which settings are defaults; say which were used."""
    if {"-h", "--help"} & set(args):
        return make(info_name, args, parent, **extra)
    options = _options(command)
    shared = () if _ASKED in options else [name for name in SHARED if name in options]
    places = stated_of_verb(words, options, Path.cwd(), os.environ, verbs=verbs, shared=shared)
    found = {one.name.rpartition(".")[2]: one for one in in_force(places, options, words)}
    extra["default_map"] = {
        options[name].name: _value(options[name], one.value) for name, one in found.items()
    }
    try:
        context = make(info_name, args, parent, **extra)
    except Exception:  # a value that cannot be read: say where it stands
        _tell(found.values())
        raise
    _tell(one for name, one in found.items() if _is_used(context, options[name]))
    return context


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


def _value(option: Any, value: str) -> Any:
    """Return a value as the command line would hand it on: text, or several texts."""
    if not option.multiple:
        return value
    return [part.strip() for part in value.strip("[]").replace("'", "").split(",") if part.strip()]
