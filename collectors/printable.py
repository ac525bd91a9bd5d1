"""Text that others wrote, made safe to print: one line, nothing that a terminal obeys.

Names of scripts, hosts, devices and layers, stop reasons and warnings come from outside. An
escape sequence in them could move the cursor or retitle the window, a newline could fake a
line of ours, and a sign for right-to-left text could show a command that is not the one
recorded.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any


def printable(text: str) -> str:
    r"""Return the text with every sign that is not shown as itself written as an escape.

    These are control characters (C0, C1, line ends), signs that direct text, lone surrogates
    (bytes that are no text) and separators other than the space. Done twice it changes no more.

    >>> printable("new\nline\x1b[31mred.py")
    'new\\nline\\x1b[31mred.py'
    """
    if text.isprintable():
        return text
    signs = (
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text
    )
    return "".join(signs)


def shown(text: str) -> str:
    """Return a text of any origin as it may be shown: printable, without secrets."""
    from advisor.collectors.hooks.redaction import redacted  # its patterns take time to compile

    return printable(redacted(text))


def printable_json(value: Any) -> Any:
    """Return JSON data with every text in it, keys included, made printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(key)): printable_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [printable_json(each) for each in value]
    return value


def shell_line(words: Sequence[str]) -> str:
    r"""Return a command line that a shell reads as ``words`` and a terminal can show.

    >>> shell_line(["train.py", "--name", "a b", "two\nlines"])
    "train.py --name 'a b' $'two\\nlines'"
    """
    return " ".join(_shell_word(word) for word in words)


def _shell_word(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(_shell_sign(sign) for sign in word) + "'"


def _shell_sign(sign: str) -> str:
    if sign in "\\'":
        return "\\" + sign
    if sign.isprintable():
        return sign
    if sign == "\n":
        return "\\n"
    return "".join(f"\\x{byte:02x}" for byte in sign.encode(errors="surrogateescape"))
