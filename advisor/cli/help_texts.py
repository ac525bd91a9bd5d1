"""Help in plain words: a value is N, TEXT or FILE, and a default is part of the sentence."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

_WORDS: Final = {"integer": "N", "float": "N", "int": "N", "text": "TEXT", "str": "TEXT",
                 "path": "FILE", "Path": "FILE"}  # fmt: skip


def in_plain_words(command: Any) -> Any:
    """Return a command, those below it included, whose help names values and not their types."""
    for param in command.params:
        if param.param_type_name == "argument":
            param.display_type_rich = _nothing
            param.metavar = param.metavar or param.name.upper()
            if hasattr(param, "_usage_display_name"):  # of a typer that sets brackets itself
                param.metavar = param.metavar.removeprefix("[").removesuffix("]")
        elif not getattr(param, "is_flag", False):
            param.metavar = value_word(param)
            _say_default(param)
    for one in getattr(command, "commands", {}).values():
        in_plain_words(one)
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
    if isinstance(param.show_default, str):
        param.help = f"{(param.help or '').rstrip('.')} (default: {param.show_default})."
        param.show_default = False


def _nothing(ctx: Any) -> None:  # typer asks every argument for the name of its type
    return None
