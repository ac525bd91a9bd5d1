"""The one error for what a user or the system causes; words and figures as they are printed."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Sequence
from typing import Any, Final


class RecordingError(Exception):
    """A command cannot be recorded, or a recording cannot be read.

    ``exit_code``: what the command line returns: 2 for a value that makes no sense; 1 by default.
    """

    def __init__(self, message: str, *, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code


def printable(text: str) -> str:
    r"""Return the text with every sign that is not shown as itself written as an escape.

    These are control characters (C0, C1, line ends), signs that direct text, lone surrogates
    (bytes that are no text) and separators other than the space. Done twice it changes no more.
    Names of scripts, hosts, devices and layers, stop reasons and warnings come from outside. An
    escape sequence in them could move the cursor or retitle the window, a newline could fake a
    line of ours, and a sign for right-to-left text could show a command that is not the one
    recorded.

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


_FOLDERS: Final = (
    "runs go where --runs or ADVISOR_RUNS says, the catalogue where XDG_CACHE_HOME, models where "
    "XDG_DATA_HOME says"
)
_HINTS: Final = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        f"free some space, or write elsewhere: {_FOLDERS}",
    ),
    **dict.fromkeys(
        (errno.EROFS, errno.EACCES, errno.EPERM), f"choose a folder that you may use: {_FOLDERS}"
    ),
    **dict.fromkeys(
        (errno.EMFILE, errno.ENFILE, errno.EAGAIN),
        "end other programs, or raise the limits (ulimit)",
    ),
}
_NO_MEMORY_HINT: Final = "raise the limit (ulimit -v, the container's), or ask about less at once"


def explain(error: BaseException) -> RecordingError | None:
    """Return a failure of the system in the words of this project; None for anything else."""
    if isinstance(error, MemoryError) or _is_no_memory(error):
        return RecordingError("out of memory", hint=_NO_MEMORY_HINT)
    if isinstance(error, RecursionError):
        return RecordingError(
            "what was given is nested too deeply", hint="look at the files that you named"
        )
    if isinstance(error, UnicodeError):
        return RecordingError(f"text that is not UTF-8: {error}", hint="write the file in UTF-8")
    if isinstance(error, EOFError) or type(error).__module__ in ("zipfile", "zlib", "gzip"):
        return _damaged(error)
    if isinstance(error, RuntimeError) and "encrypted" in str(error):
        return RecordingError(f"an encrypted archive: {error}", hint="unpack it yourself first")
    return _of_the_system(error) if isinstance(error, OSError) else None


def _of_the_system(error: OSError) -> RecordingError:
    at = f"{error.filename}: " if error.filename is not None else ""
    why = error.strerror or str(error)
    if error.errno == errno.ENOENT and _is_working_folder_gone():
        return RecordingError(
            "the working folder no longer exists", hint="change to another one: cd ~"
        )
    if error.__class__.__name__ == "BadGzipFile":
        return _damaged(error)
    hint = _HINTS.get(error.errno or 0, "check the path and the disk, then try again")
    return RecordingError(f"{at}{why}", hint=hint)


def _damaged(error: BaseException) -> RecordingError:
    said = str(error) or "it ends too early"
    return RecordingError(
        f"a damaged file: {said}", hint="get it again; it was changed or cut off"
    )


def _is_no_memory(error: BaseException) -> bool:
    """Tell whether threads, libraries or an extension in C++ found no memory."""
    text = str(error)
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, SystemError):  # C code that found no memory for its own exception
        return "exception set" in text
    if isinstance(error, ImportError):
        return "cannot allocate memory" in text.lower() or "failed to map segment" in text
    return isinstance(error, RuntimeError) and (
        "can't start new thread" in text or "bad_alloc" in text
    )


def _is_working_folder_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def duration_text(seconds: float) -> str:
    """Return a duration in the unit that suits it.

    >>> duration_text(0.0123), duration_text(2.5), duration_text(4000)
    ('12.3 ms', '2.50 s', '1.1 h')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:#.3g} ms".replace(". ", " ")
    if seconds < 120:
        return f"{seconds:.3g} s" if seconds >= 10 else f"{seconds:.2f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def number_text(value: float) -> str:
    """Return a number with three digits or four, a large one whole.

    >>> number_text(0.0123), number_text(31.4159), number_text(426_842.4)
    ('0.0123', '31.42', '426,842')
    """
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.4g}"


def counted(count: float, noun: str) -> str:
    """Return how many of something there are.

    >>> counted(1, "step"), counted(9537, "step")
    ('1 step', '9,537 steps')
    """
    number = f"{count:,.0f}"
    return f"{number} {noun}{'' if number == '1' else 's'}"


def bytes_text(size: float) -> str:
    """Return a size in binary units.

    >>> bytes_text(75_000), bytes_text(800 * 2**20), bytes_text(3 * 2**30)
    ('73 KiB', '800 MiB', '3.0 GiB')
    """
    if size < 2**20:
        return f"{size / 2**10:.0f} KiB"
    return f"{size / 2**20:.0f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"
