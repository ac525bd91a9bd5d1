"""What every command has: help in plain words, and defaults from the settings.

Help says N, TEXT or FILE for a value, a default is part of its sentence, and options stand under
the headings of their entries (``advisor.ask.PANELS``). A verb runs as if called with what settings
say of its own options, unless the command line says otherwise; ``deadline`` and ``overrides`` of a
question hold for every verb that takes them. What a verb's question is asked in settings is read
by ``advisor.cli.options.ask``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final

import typer

from advisor.ask import (
    OPTIONS,
    PANELS,
    Setting,
    check_verbs,
    in_force,
    settings_files,
    stated_of_verb,
    variable_of,
)

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
    if not hasattr(command, "commands"):
        command.format_options = partial(_write_panels, command)
    for one in getattr(command, "commands", {}).values():
        in_plain_words(one)
        # Else the list of verbs ends sentences with three dots.
        one.short_help = one.short_help or (one.help or "").partition("\n\n")[0]
    return command


def _write_panels(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the arguments, then the options under their headings, ``--help`` under the last."""
    arguments: list[Any] = []
    panels: dict[str, list[Any]] = {panel: [] for panel in PANELS}
    for param in command.get_params(ctx):
        if (row := param.get_help_record(ctx)) is None:
            continue
        if param.param_type_name == "argument":
            arguments.append(row)
        elif "--help" not in param.opts:
            panels[getattr(param, "rich_help_panel", None) or OPTIONS].append(row)
        else:
            (*_, last) = [OPTIONS, *(name for name, rows in panels.items() if rows)]
            panels[last].append(row)
    shown = {name: rows for name, rows in panels.items() if rows}
    if len(shown) == 1:
        shown = dict(zip([OPTIONS], shown.values(), strict=True))
    for name, rows in {"Arguments": arguments, **shown}.items():
        if rows:
            with formatter.section(name):
                formatter.write_dl(rows)


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
