"""Requests of ``sbatch``, and tasks of SkyPilot, as submissions.

A task has its machines, and in its ``envs`` what it says of the job. sbatch's words are those of
Slurm's own options. They come from Slurm itself (``cli_filter`` hands its options over as JSON),
or from a command line and the ``#SBATCH`` lines of its script, which are read here as sbatch does:
the command line before the environment, and that before the script.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from advisor.catalogue import Catalogue, GpuFilter, OfferFilter, Pricing
from advisor.errors import AdvisorError, UsageError
from advisor.gate.decision import Asked, AskedMachines, OwnDevices, Submission, Unclear
from advisor.gate.said import from_environment, from_script

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


_SKYPILOT_TASKS_LARGEST: Final = 1_000_000  # characters of a task that is read
_MOST_NODES: Final = 4096
_MOST_OPTIONS: Final = 200
# SkyPilot's bare names are the smaller card where two memories are sold; it writes the larger one.
_SMALLER: Final = {"A100": 40.0, "V100": 16.0}
_MEMORY: Final = re.compile(r"-\d+GB$", re.IGNORECASE)


def read_task(text: str, catalogue: Catalogue) -> Submission:
    """Return the submission that a task's YAML is.

    Raises UsageError if the text is no task, or a value in it makes no sense.

    Parameters
    ----------
    text : str
        One document. Resources may be a choice: ``any_of``, ``ordered``, several accelerators.
    catalogue : Catalogue
        Where the machine is looked up that a task leaves open: SkyPilot takes the cheapest.
    """
    task = _task(text)
    envs = task.get("envs") or {}
    if not isinstance(envs, dict):
        raise UsageError("cannot read envs of the task as a table", hint="write NAME: value")
    nodes = task.get("num_nodes")
    nodes = 1 if nodes is None else nodes
    if not isinstance(nodes, int) or not 1 <= nodes <= _MOST_NODES:
        raise UsageError(
            f"num_nodes {str(nodes)[:20]!r} is out of range", hint=f"give 1 to {_MOST_NODES}"
        )
    options = list(_options(task.get("resources") or {}))[:_MOST_OPTIONS]
    asked = tuple(_skypilot_tasks_asked(one, nodes, catalogue) for one in options)
    return Submission(asked=asked, said=from_environment(envs))


def _task(text: str) -> dict[str, Any]:
    import yaml

    if len(text) > _SKYPILOT_TASKS_LARGEST:
        raise UsageError(f"a task of {len(text):,} characters", hint="give one SkyPilot task")
    try:
        documents = [one for one in yaml.safe_load_all(text) if one]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = str(error).partition("\n")[0]
        raise UsageError(f"cannot read the task: {line}", hint="give a SkyPilot YAML") from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise UsageError(
            f"not one SkyPilot task, but {len(documents)} documents",
            hint="give the tasks of a pipeline one by one",
        )
    return documents[0]


def _options(resources: Any) -> Iterator[dict[str, Any]]:
    """Yield every choice that resources leave, each with one accelerator at most."""
    if not isinstance(resources, dict):
        raise UsageError(
            "cannot read resources of the task as a table", hint="see SkyPilot's YAML"
        )
    base = {name: value for name, value in resources.items() if name not in ("any_of", "ordered")}
    choices = resources.get("any_of") or resources.get("ordered") or [{}]
    for choice in choices if isinstance(choices, list) else [choices]:
        if not isinstance(choice, dict):
            raise UsageError("cannot read any_of of the task as tables", hint="write - infra: aws")
        option = base | choice
        for accelerator in _accelerators(option.get("accelerators")):
            yield option | {"accelerators": accelerator}


def _accelerators(given: Any) -> list[tuple[str, float] | None]:
    """Return each accelerator that is named, with how many of it a machine has."""
    if not given:
        return [None]
    if isinstance(given, dict):
        return [(str(name), _number(count)) for name, count in given.items()]
    found: list[tuple[str, float] | None] = []
    for one in given if isinstance(given, list) else [given]:
        name, _, count = str(one).partition(":")
        found.append((name.strip(), _number(count or 1)))
    return found


def _number(count: Any) -> float:
    try:
        number = float(1 if count is None else count)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number <= _MOST_NODES:
        raise UsageError(
            f"a number of accelerators of {str(count)[:20]!r} is out of range",
            hint="write e.g. A100:8",
        )
    return number


def _skypilot_tasks_asked(option: Mapping[str, Any], nodes: int, catalogue: Catalogue) -> Asked:
    provider, region = _place(option)
    pricing: Literal["spot", "on-demand"] = "spot" if option.get("use_spot") else "on-demand"
    name, accelerator = option.get("instance_type"), option["accelerators"]
    if name is not None:
        return AskedMachines(
            instance_type=str(name), count=nodes, provider=provider, region=region,
            completion=pricing,
        )  # fmt: skip
    if accelerator is None:
        label = f"{nodes} machines of any type"
        return Unclear(label=label, why="names neither a machine type nor an accelerator")
    words = f"{nodes} x {accelerator[0]}:{accelerator[1]:g}"
    found = _cheapest(accelerator, provider, region, pricing, catalogue)
    if isinstance(found, str):
        return Unclear(label=words, why=found)
    owner, cheapest = found
    return AskedMachines(
        instance_type=cheapest, count=nodes, provider=owner, region=region, completion=pricing,
        note=f"{words} is judged on {owner} {cheapest}, the cheapest that has it",
    )  # fmt: skip


def _place(option: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return provider and region, of ``infra: aws/us-east-1/...`` or of their own fields."""
    parts = [part for part in str(option.get("infra") or "").split("/") if part and part != "*"]
    provider = str(option.get("cloud") or (parts[0] if parts else "")).lower() or None
    region = str(option.get("region") or (parts[1] if len(parts) > 1 else "")) or None
    return provider, region


def _cheapest(
    accelerator: tuple[str, float], provider: str | None, region: str | None, pricing: Pricing,
    catalogue: Catalogue,
) -> tuple[str, str] | str:  # fmt: skip
    """Return provider and name of the cheapest machine with it; in words where there is none."""
    name, count = accelerator
    family = _MEMORY.sub("", name)
    most_gb = _SMALLER.get(name.upper(), float("inf"))
    least_gb = float(name.rpartition("-")[2][:-2]) if family != name else 0.0
    try:
        offers = catalogue.select(
            OfferFilter(
                providers=(provider,) if provider else (), regions=(region,) if region else (),
                gpus=GpuFilter(
                    names=(family,), min_count=count, max_count=count,
                    min_memory_gb=least_gb, max_memory_gb=max(least_gb, most_gb),
                ),
                pricing=(pricing,),
            )
        )  # fmt: skip
    except AdvisorError as error:
        return str(error)
    if not len(offers.type_index):
        where = " ".join(x for x in (provider, region) if x) or "any provider"
        return f"no machine with {count:g} x {name} has a {pricing} price at {where}"
    found = catalogue.types.at(int(offers.type_index[0]))
    return str(found.provider), str(found.name)
