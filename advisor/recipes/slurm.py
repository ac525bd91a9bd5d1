"""Options of ``sbatch``: words of a command line, ``#SBATCH`` lines, and the GPUs they ask for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from advisor.errors import UsageError

# What is read of the options, by Slurm's long names, and their short letters.
READ: Final = {
    "partition": "p", "nodes": "N", "gres": "", "gpus": "G", "gpus-per-node": "",
    "gpus-per-task": "", "ntasks": "n", "ntasks-per-node": "", "time": "t",
}  # fmt: skip
_SHORT: Final = {letter: name for name, letter in READ.items() if letter}
# Options of sbatch that never take a value, or take it after "=" only (`sbatch --help`, 22.05).
_ALONE: Final = (
    "contiguous", "exclusive", "get-user-env", "help", "hold", "ignore-pbs", "nice", "no-kill",
    "no-requeue", "overcommit", "oversubscribe", "parsable", "propagate", "quiet", "reboot",
    "requeue", "spread-job", "test-only", "usage", "use-min-nodes", "verbose", "version", "wait",
)  # fmt: skip
_LETTERS_ALONE: Final = frozenset("hHkOQsvVW")
_MOST: Final = 100_000


def read_options(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return sbatch's options that are read here, and the script with its arguments.

    Examples
    --------
    >>> read_options(["-N2", "--gres", "gpu:4", "-J", "fit", "train.sbatch", "--lr", "1"])
    ({'nodes': '2', 'gres': 'gpu:4'}, ['train.sbatch', '--lr', '1'])
    """
    found: dict[str, str] = {}
    words = list(arguments)
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        found |= {name: value for name, value in _option(word, words) if name in READ}
    return found, words


def _option(word: str, words: list[str]) -> list[tuple[str, str]]:
    """Return what one word says; a value that follows is taken from ``words``."""
    if word.startswith("--"):
        name, sign, value = word[2:].partition("=")
        if sign or name in _ALONE:
            return [(name, value)]
        return [(name, words.pop(0) if words else "")]
    for place, letter in enumerate(word[1:], start=1):
        if letter in _LETTERS_ALONE:
            continue
        value = word[place + 1 :] or (words.pop(0) if words else "")
        return [(_SHORT.get(letter, letter), value)]
    return []


def directives(script: str) -> dict[str, str]:
    """Return the options of a script's ``#SBATCH`` lines: those before its first command."""
    found: dict[str, str] = {}
    for line in script.splitlines():
        text = line.strip()
        if text and not text.startswith("#"):
            break
        if not text.startswith("#SBATCH"):
            continue
        try:
            words = shlex.split(text.removeprefix("#SBATCH"), comments=True)
        except ValueError:
            continue  # sbatch itself says what is wrong with it
        found |= read_options(words)[0]
    return found


def gpus_of_gres(text: str) -> str:
    """Return what generic resources have of GPUs, as ``--gpus-per-node`` would say it.

    Examples
    --------
    >>> [gpus_of_gres(one) for one in ("gres:gpu:a100:8", "license:x,gpu", "gres/gpu=3(S:0)")]
    ['a100:8', '1', '3']
    """
    for part in text.split(","):
        plain = re.sub(r"\(.*?\)|^gres[:/]", "", part.strip())
        words = [word for word in re.split(r"[:=/]", plain) if word]
        if words and words[0] == "gpu":
            return ":".join(words[1:]) or "1"
    return ""


def gpus_of(text: str) -> tuple[str, int]:
    """Return type and number of the GPUs that an option asks for.

    Examples
    --------
    >>> gpus_of("a100:2"), gpus_of("8"), gpus_of("h100"), gpus_of("")
    (('a100', 2), ('', 8), ('h100', 1), ('', 0))
    """
    words = [word for word in re.split(r"[:=]", text.partition(",")[0].strip()) if word]
    if not words:
        return "", 0
    count = words[-1] if words[-1][0].isdigit() else "1"
    kind = next((word for word in words if not word[0].isdigit()), "")
    return kind, count_of(count, "gpus") or 0


def count_of(text: str, name: str) -> int | None:
    """Return a number of sbatch's, with its letter for thousands; None where none is given."""
    if not text:
        return None
    match = re.fullmatch(r"(\d{1,9})([kK]?)", text)
    number = int(match[1]) * (1024 if match[2] else 1) if match else -1
    if not 0 <= number <= _MOST:
        raise UsageError(f"--{name} {text[:20]!r} is out of range", hint=f"give 1 to {_MOST}")
    return number


def slurm_ranks(script: str) -> int | None:
    r"""Return the devices that a script's ``#SBATCH`` lines ask for.

    >>> slurm_ranks("#SBATCH --nodes=2\n#SBATCH --gres=gpu:h100:8\n")
    16
    """
    said = directives(script)
    _, each = gpus_of(said.get("gpus-per-node") or gpus_of_gres(said.get("gres", "")))
    _, total = gpus_of(said.get("gpus", ""))
    nodes = count_of(said.get("nodes", "").partition("-")[0], "nodes")
    return each * (nodes or 1) or total or None
