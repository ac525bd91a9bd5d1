"""Commands that start a training: the tool, its arguments, the recipe it names, the ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from advisor.recipes.shell import ROUNDS, commands
from advisor.recipes.slurm import slurm_ranks
from advisor.recipes.submissions import SHELLS
from advisor.recipes.tables import tables
from advisor.recipes.text import plain

_RANKS: Final = ("nproc_per_node", "num_processes", "num_gpus", "NGPU")
_NODES: Final = ("nnodes", "num_nodes", "num_machines", "nodes", "N")
# Whose precision and sharding accelerate's flags are; others read its file alone.
_OF_ACCELERATE: Final = ("trainer", "llamafactory", "diffusers", "kohya")
_FILE_ALONE: Final = {"config_file": "accelerate_config"}
_ENDS: Final = (".yaml", ".yml", ".toml", ".json")
_NUMBER: Final = re.compile(r"-\d[\d.e-]*")
_NAMED: Final = re.compile(r"[+~]{0,2}([A-Za-z_][\w.]*)=(.*)", re.S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A command that trains: with which tool, on which arguments, and a recipe that it names."""

    tool: str
    arguments: dict[str, Any]
    file: str | None
    ranks: int | None
    rounds: int = 1  # of loops around it, of which this is the first


def starts(
    text: str, given: Mapping[str, str] | None = None, ranks: int | None = None
) -> list[Start]:
    """Return the trainings that a script starts; ``ranks``: of what it asks for."""
    asked = ranks or slurm_ranks(text)
    lines, known = commands(text, dict(given or {}))
    for words in list(lines):  # bash -c "torchrun ..."
        inner = (word for flag, word in pairwise(words) if flag in SHELLS)
        begun = words[:1] if words[0].startswith(ROUNDS) else []
        lines += [[*begun, *one] for word in inner for one in commands(word, known)[0]]
    return [start for words in lines if (start := _start(words, asked)) is not None]


def _start(words: list[str], asked: int | None) -> Start | None:
    for program in tables()["programs"]:
        verbs, needs = program.get("verbs", "").split(), program.get("with", "")
        for place, word in enumerate(words):
            rest = words[place + 1 :]
            if not re.fullmatch(program["word"], word) or (verbs and {*rest[:1]} - {*verbs}):
                continue
            if (verbs and not rest) or not any(re.search(needs, one) for one in rest or [""]):
                continue
            return _read(program, word, words[:place], rest, asked)
    return None


def _read(
    program: Mapping[str, str], word: str, before: list[str], rest: list[str], asked: int | None
) -> Start:
    tool, (arguments, others) = program["tool"], _arguments(rest)
    launcher, _ = _arguments(before)
    if tool == "torchtune":  # `tune run` is its own launcher
        launcher |= {n: arguments.pop(n) for n in (*_RANKS, *_NODES) if n in arguments}
        asked = 1 if any("single_device" in one for one in others) else asked
    file = arguments.pop(program["flag"], None) if "flag" in program else None
    file = launcher.get("CONFIG_FILE") if tool == "torchtitan" and file is None else file
    if "flag" not in program:
        file = next((one for one in others if one.endswith(_ENDS)), None)
    more = {"script": word} if tool in ("diffusers", "bridge", "kohya", "trainer") else {}
    if program["word"] == "trl" and rest[0] != "sft":
        more["trainer_type"] = rest[0]
    if any("accelerate" in one for one in before):
        names = tables()["accelerate"] if tool in _OF_ACCELERATE else _FILE_ALONE
        more |= {names[one]: said for one, said in launcher.items() if one in names}
    return Start(
        tool=tool, arguments=arguments | more, file=None if file is None else str(file),
        ranks=_count(launcher, asked), rounds=launcher.get(ROUNDS, 1),
    )  # fmt: skip


def _count(launcher: Mapping[str, Any], asked: int | None) -> int | None:
    """Return the ranks that a launcher starts; those of accelerate are of all machines."""
    each = next((launcher[name] for name in _RANKS if isinstance(launcher.get(name), int)), None)
    nodes = next((launcher[name] for name in _NODES if isinstance(launcher.get(name), int)), 1)
    if each is None:
        # deepspeed --include host:0,1@other:0,1
        included = re.sub(r"@?[^@:]*:", ",", str(launcher.get("include", ""))).strip(",")
        seen = included or str(launcher.get("CUDA_VISIBLE_DEVICES", ""))
        return asked or (seen.count(",") + 1 if re.fullmatch(r"\d+(,\d+)*", seen) else None)
    is_total = "num_processes" in launcher and "nproc_per_node" not in launcher
    return int(each if is_total else max(each * nodes, asked or 1))


def _arguments(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return ``--name value``, ``--name=value`` and ``name=value``, and the other words."""
    found: dict[str, Any] = {}
    others: list[str] = []
    name = ""
    for word in words:
        is_flag = word.startswith("-") and not _NUMBER.fullmatch(word)
        if match := _NAMED.fullmatch(word.lstrip("-") if is_flag else word):
            value = None if match[2] in ("null", "None") else plain(match[2])
            found[match[1].replace("-", "_") if is_flag else match[1]] = value
            name = ""
        elif is_flag:
            name, _, value = word.lstrip("-").replace("-", "_").partition("=")
            found[name] = plain(value) if value else True
        else:
            value = plain(word)
            held = found.get(name)
            # Numbers and words do not stand in one list: what follows begins something else.
            kind = held[0] if isinstance(held, list) else held
            if not name or (held is not True and isinstance(kind, str) != isinstance(value, str)):
                others.append(word)
                name = ""
            elif held is True:
                found[name] = value
            elif str(word).endswith((*_ENDS, ".py")):
                others.append(word)
            else:
                found[name] = [*(held if isinstance(held, list) else [held]), value]
    return found, others
