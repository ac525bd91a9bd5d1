"""Requests of ``sbatch`` as submissions: devices, machines, time limit, partition.

The words are those of Slurm's own options. They come from Slurm itself (``cli_filter`` hands its
options over as JSON), or from a command line and the ``#SBATCH`` lines of its script, which are
read here as sbatch does: the command line before the environment, and that before the script.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from advisor.errors import UsageError
from advisor.gate.judged import Asked, OwnDevices, Submission, Unclear
from advisor.gate.said import from_environment, from_script, with_job

# What is read of the options, by Slurm's long names, and their short letters.
_READ: Final = {
    "partition": "p", "nodes": "N", "gres": "", "gpus": "G", "gpus-per-node": "",
    "gpus-per-task": "", "ntasks": "n", "ntasks-per-node": "", "time": "t",
}  # fmt: skip
_SHORT: Final = {letter: name for name, letter in _READ.items() if letter}
# Options of sbatch that never take a value, or take it after "=" only (`sbatch --help`, 22.05).
_ALONE: Final = (
    "contiguous", "exclusive", "get-user-env", "help", "hold", "ignore-pbs", "nice", "no-kill",
    "no-requeue", "overcommit", "oversubscribe", "parsable", "propagate", "quiet", "reboot",
    "requeue", "spread-job", "test-only", "usage", "use-min-nodes", "verbose", "version", "wait",
)  # fmt: skip
_LETTERS_ALONE: Final = frozenset("hHkOQsvVW")
# Variables that stand for options.
_VARIABLES: Final = {
    "SBATCH_PARTITION": "partition", "SBATCH_GPUS": "gpus", "SBATCH_TIMELIMIT": "time",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node", "SBATCH_GPUS_PER_TASK": "gpus-per-task",
}  # fmt: skip
_LARGEST: Final = 4_000_000  # Slurm's own limit of a script
_MOST: Final = 100_000
_TIME: Final = re.compile(
    r"(?:(?P<days>\d{1,6})-(?P<h>\d{1,6})(?::(?P<m>\d{1,6})(?::(?P<s>\d{1,6}))?)?"
    r"|(?P<first>\d{1,9})(?::(?P<second>\d{1,6})(?::(?P<third>\d{1,6}))?)?)"
)


def parse_partitions(texts: Sequence[str]) -> dict[str, str]:
    """Return what one machine is, by partition; the first is the default partition.

    Raises UsageError if a text has no name or no machine.

    Examples
    --------
    >>> parse_partitions(["gpu=8xA100-80GB:nvlink@200Gbps", "cloud=p4d.24xlarge"])
    {'gpu': '8xA100-80GB:nvlink@200Gbps', 'cloud': 'p4d.24xlarge'}
    """
    found = {}
    for text in texts:
        name, _, machine = (part.strip() for part in text.partition("="))
        if not (name and machine):
            raise UsageError(
                f"cannot read {text[:40]!r} as a partition",
                hint="write NAME=MACHINE: gpu=8xA100-80GB:nvlink@200Gbps, or cloud=p4d.24xlarge",
            )
        found[name] = machine
    return found


def read_command(
    arguments: Sequence[str], environ: Mapping[str, str], folder: Path
) -> dict[str, Any]:
    """Return the options that ``sbatch ARGUMENTS`` asks for, as Slurm names them.

    ``folder``: in which the script is looked for.
    """
    given, rest = read_options(arguments)
    said = {
        name: environ[variable] for variable, name in _VARIABLES.items() if variable in environ
    }
    script = read_script(str(folder / rest[0])) if rest else ""
    return {**directives(script), **said, **given, "argv": rest}


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
        found |= {name: value for name, value in _option(word, words) if name in _READ}
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


def read_script(path: str) -> str:
    """Return a batch script's text; empty where it cannot be read, of which sbatch complains."""
    try:
        with Path(path).open("rb") as file:
            return file.read(_LARGEST).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def read_submission(
    options: Mapping[str, Any], environ: Mapping[str, str], partitions: Mapping[str, str],
    *, price_usd_per_device_h: float = 0.0, folder: Path = Path(),
) -> Submission:  # fmt: skip
    """Return what Slurm's options ask for.

    Raises UsageError if an option makes no sense.

    Parameters
    ----------
    options : mapping of str to object
        As ``read_command`` returns them, or Slurm's ``json_cli_options``.
    environ : mapping of str to str
        What it says of the job comes before the ``#ADVISOR`` lines of the script.
    partitions : mapping of str to str
        What one machine is, by partition; the first is the default one.
    price_usd_per_device_h : float
        What the cluster charges. [USD/h]
    folder : Path
        In which the script is looked for.
    """
    argv = options.get("argv") or []
    if not isinstance(argv, list):
        raise UsageError(
            "sbatch's options: argv is not a list of words",
            hint="give what Slurm's cli_filter writes",
        )
    script = read_script(str(folder / str(argv[0]))) if argv else ""
    said = from_script(script) | from_environment(environ)
    said = with_job(said, script, folder / str(argv[0])) if argv else said
    asked = _asked(options, partitions, price_usd_per_device_h)
    return Submission(asked=(asked,), said=said)


def _asked(options: Mapping[str, Any], partitions: Mapping[str, str], price: float) -> Asked:
    texts = {name: str(options.get(name) or "") for name in _READ}
    label = " ".join(f"--{name}={value}" for name, value in texts.items() if value) or "sbatch"
    name, each = _devices(texts["gpus-per-node"] or _of_gres(texts["gres"]))
    total_name, total = _devices(texts["gpus"])
    task_name, per_task = _devices(texts["gpus-per-task"])
    nodes = _count(texts["nodes"].partition("-")[0], "nodes") or 0
    tasks = _count(texts["ntasks"], "ntasks") or 0
    per_node = _count(texts["ntasks-per-node"], "ntasks-per-node") or 0
    if not each and not total and per_task:
        each = per_task * per_node
        total = 0 if each else per_task * max(tasks, nodes, 1)
    name = name or total_name or task_name
    if not each and not total:
        return Unclear(label=label, why="asks for no GPU")
    machine = _machine(texts["partition"], name, each or total, partitions)
    if machine is None:
        why = "its machines are not known: say --partition NAME=8xA100-80GB:nvlink@200Gbps"
        return Unclear(label=label, why=why)
    if not nodes:
        nodes = math.ceil(total / _per_machine(machine)) if total and not each else 1
    return OwnDevices(
        machine=machine, nodes=nodes, devices=each * nodes if each else total,
        price_usd_per_device_h=price, time_limit_h=time_limit_h(texts["time"]),
    )  # fmt: skip


def _machine(asked: str, name: str, devices: int, partitions: Mapping[str, str]) -> str | None:
    """Return what one machine is: of the partition, else as the request names its GPUs."""
    wanted = asked.split(",")[0] or next(iter(partitions), "")
    if wanted in partitions:
        return partitions[wanted]
    return f"{devices}x{name}" if name else None


def _per_machine(machine: str) -> int:
    """Return the devices of a machine that is named by them; one type holds all otherwise."""
    match = re.match(r"(\d{1,4})\s*x", machine)
    return int(match[1]) if match else 8


def _of_gres(text: str) -> str:
    """Return what generic resources have of GPUs, as ``--gpus-per-node`` would say it.

    Examples
    --------
    >>> _of_gres("gres:gpu:a100:8"), _of_gres("license:x,gpu"), _of_gres("gres/gpu=3(S:0)")
    ('a100:8', '1', '3')
    """
    for part in text.split(","):
        plain = re.sub(r"\(.*?\)|^gres[:/]", "", part.strip())
        words = [word for word in re.split(r"[:=/]", plain) if word]
        if words and words[0] == "gpu":
            return ":".join(words[1:]) or "1"
    return ""


def _devices(text: str) -> tuple[str, int]:
    """Return type and number of the GPUs that an option asks for.

    Examples
    --------
    >>> _devices("a100:2"), _devices("8"), _devices("h100"), _devices("")
    (('a100', 2), ('', 8), ('h100', 1), ('', 0))
    """
    words = [word for word in re.split(r"[:=]", text.partition(",")[0].strip()) if word]
    if not words:
        return "", 0
    count = words[-1] if words[-1][0].isdigit() else "1"
    kind = next((word for word in words if not word[0].isdigit()), "")
    return kind, _count(count, "gpus") or 0


def _count(text: str, name: str) -> int | None:
    """Return a number of sbatch's, with its letter for thousands; None where none is given."""
    if not text:
        return None
    match = re.fullmatch(r"(\d{1,9})([kK]?)", text)
    number = int(match[1]) * (1024 if match[2] else 1) if match else -1
    if not 0 <= number <= _MOST:
        raise UsageError(f"--{name} {text[:20]!r} is out of range", hint=f"give 1 to {_MOST}")
    return number


def time_limit_h(text: str) -> float | None:
    """Return a time limit as Slurm reads it; None for none. [h].

    Examples
    --------
    >>> time_limit_h("90"), time_limit_h("4:30:00"), time_limit_h("1-12"), time_limit_h("infinite")
    (1.5, 4.5, 36.0, None)
    """
    if not text or text.lower() in ("infinite", "unlimited", "-1"):
        return None
    match = _TIME.fullmatch(text)
    if match is None:
        raise UsageError(f"cannot read --time {text[:20]!r}", hint="write e.g. 1-12:00:00")
    if match["days"] is not None:
        days, hours, minutes, seconds = (int(match[x] or 0) for x in ("days", "h", "m", "s"))
    else:
        days, third = 0, match["third"]
        given = [int(match[x]) for x in ("first", "second", "third") if match[x] is not None]
        # One number is minutes, two are minutes and seconds, three begin with hours.
        hours, minutes, seconds = given if third is not None else (0, *given, 0)[:3]
    limit_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return limit_s / 3600 if limit_s else None  # 0 is no limit
