"""Help in plain words: a value is N, TEXT or FILE, a default is part of the sentence.

Options stand under the headings of their entries (``advisor.ask.PANELS``).
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import Any, Final

from advisor.ask import OPTIONS, PANELS

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
        elif param.name != "help":
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
