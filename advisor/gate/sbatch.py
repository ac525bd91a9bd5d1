"""Requests of ``sbatch`` as submissions: devices, machines, time limit, partition.

The words are those of Slurm's own options. They come from Slurm itself (``cli_filter`` hands its
options over as JSON), or from a command line and the ``#SBATCH`` lines of its script, which are
read here as sbatch does: the command line before the environment, and that before the script.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from advisor.errors import UsageError
from advisor.gate.judged import Asked, OwnDevices, Submission, Unclear
from advisor.gate.said import from_environment, from_script, with_job
from advisor.recipes import READ, count_of, directives, gpus_of, gpus_of_gres, read_options

# Variables that stand for options.
_VARIABLES: Final = {
    "SBATCH_PARTITION": "partition", "SBATCH_GPUS": "gpus", "SBATCH_TIMELIMIT": "time",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node", "SBATCH_GPUS_PER_TASK": "gpus-per-task",
}  # fmt: skip
_LARGEST: Final = 4_000_000  # Slurm's own limit of a script
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
    texts = {name: str(options.get(name) or "") for name in READ}
    label = " ".join(f"--{name}={value}" for name, value in texts.items() if value) or "sbatch"
    name, each = gpus_of(texts["gpus-per-node"] or gpus_of_gres(texts["gres"]))
    total_name, total = gpus_of(texts["gpus"])
    task_name, per_task = gpus_of(texts["gpus-per-task"])
    nodes = count_of(texts["nodes"].partition("-")[0], "nodes") or 0
    tasks = count_of(texts["ntasks"], "ntasks") or 0
    per_node = count_of(texts["ntasks-per-node"], "ntasks-per-node") or 0
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
