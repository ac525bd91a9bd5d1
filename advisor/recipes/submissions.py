"""What is submitted to a scheduler or a cloud: the script inside, its variables, its devices.

Read are SkyPilot's and dstack's tasks, and Kubernetes' objects with containers.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

SHELLS: Final = ("-c", "-lc", "-ec")
# How tasks of SkyPilot count their machines.
_NODES: Final = re.compile(r'(?:`|\$\()echo "?\$\{?SKYPILOT_NODE_IPS\}?"? *\| *wc -l *(?:`|\))')


# A script, the variables that it is given, and the devices that are asked for over all machines.
Submitted = tuple[str, dict[str, str], int | None]


def submitted(table: Mapping[str, Any]) -> Submitted | None:
    """Return the script that a file submits; None of other files."""
    if "run" in table and table.keys() & {"resources", "setup", "num_nodes"}:
        return _skypilot(table)
    if table.get("type") == "task" and "commands" in table:
        return _dstack(table)
    if "apiVersion" in table and "kind" in table:
        return _kubernetes(table)
    return None


def _skypilot(table: Mapping[str, Any]) -> Submitted:
    named = _table(table.get("resources")).get("accelerators")
    first = named[0] if isinstance(named, list) and named else named
    said = next(iter(_table(first).values()), None) or str(first or "").partition(":")[2]
    each, nodes = _whole(said, 1 if first else 0), _whole(table.get("num_nodes"), 1)
    variables = _variables(table.get("envs")) | {"SKYPILOT_NUM_NODES": str(nodes),
                       "SKYPILOT_NUM_GPUS_PER_NODE": str(each or 1)}  # fmt: skip
    script = _NODES.sub(str(nodes), str(table.get("run") or ""))
    return (script, variables, each * nodes or None)


def _dstack(table: Mapping[str, Any]) -> Submitted:
    lines = table["commands"] if isinstance(table["commands"], list) else []
    gpu = _table(table.get("resources")).get("gpu")
    match = re.search(r":(\d+)", str(gpu or ""))
    said = gpu.get("count") if isinstance(gpu, dict) else match[1] if match else None
    each, nodes = _whole(said, 1 if gpu else 0), _whole(table.get("nodes"), 1)
    variables = _variables(table.get("env")) | {
        "DSTACK_GPUS_PER_NODE": str(each or 1), "DSTACK_NODES_NUM": str(nodes),
        "DSTACK_GPUS_NUM": str((each or 1) * nodes),
    }  # fmt: skip
    return ("\n".join(map(str, lines)), variables, each * nodes or None)


def _kubernetes(table: Mapping[str, Any]) -> Submitted:
    """Read the last container's command; all containers' devices are counted."""
    ranks, script = 0, ""
    variables: dict[str, str] = {}
    for replicas, spec in _containers(table, 1):
        said = [spec.get(name) for name in ("command", "args")]
        words = [str(one) for part in said if isinstance(part, list) for one in part]
        limits = _table(_table(spec.get("resources")).get("limits"))
        ranks += replicas * _whole(limits.get("nvidia.com/gpu", limits.get("amd.com/gpu")), 0)
        variables |= _variables(spec.get("env"))
        is_shell = len(words) > 2 and words[1] in SHELLS
        script = "\n".join(words[2:]) if is_shell else shlex.join(words)
    return (script, variables, ranks or None)


def _containers(value: Any, replicas: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the containers below an object, with how many of each there are."""
    if isinstance(value, list):
        for one in value:
            yield from _containers(one, replicas)
    if not isinstance(value, dict):
        return
    names = ("replicas", "parallelism", "numNodes")
    many = next((value[name] for name in names if isinstance(value.get(name), int)), 1)
    for name, inner in value.items():
        if name == "containers" and isinstance(inner, list):
            yield from ((replicas * many, one) for one in inner if isinstance(one, dict))
        elif isinstance(inner, dict | list):
            yield from _containers(inner, replicas * many)


def _variables(said: Any) -> dict[str, str]:
    """Return variables: of a mapping, of a list of NAME=VALUE, of a list of names and values."""
    pairs = [one.partition("=")[::2] if isinstance(one, str) else
             (_table(one).get("name"), _table(one).get("value")) for one in said or ()
            ] if isinstance(said, list) else list(_table(said).items())  # fmt: skip
    return {str(name): str(value) for name, value in pairs if value not in (None, "")}


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any, default: int) -> int:
    return int(value) if re.fullmatch(r"\d{1,6}", str(value)) else default
