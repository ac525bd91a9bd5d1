"""A question in the two forms that people keep: a command line, and a project file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from advisor.ask.question import ENTRIES, flag_of
from advisor.collectors.errors import shell_line

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
        if isinstance(value, bool):
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
