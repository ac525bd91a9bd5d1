"""Commands that start a training: the tool, its arguments, the recipe it names, the ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from advisor.recipes.shell import commands
from advisor.recipes.submissions import slurm_ranks
from advisor.recipes.text import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A command that trains: with which tool, on which arguments, and a recipe that it names."""

    tool: str
    arguments: dict[str, Any]
    file: str | None = None
    ranks: int | None = None


# Word of a command, the tool, and the flag that names its recipe ("" for the next word).
_PROGRAMS: Final = (
    (r"axolotl(\.cli\.train)?", "axolotl", ""),
    (r"llamafactory-cli|lmf|.*/?src/train\.py|train_bash\.py", "llamafactory", ""),
    (r"tune", "torchtune", "config"), (r"litgpt", "litgpt", "config"), (r"trl", "trl", "config"),
    (r"torchtitan\.train|.*run_train\.sh|.*torchtitan/train\.py", "torchtitan", "job.config_file"),
    (r"(.*/)?(pretrain|finetune|train)_?(gpt|llama|mixtral|mamba|retro)\w*\.py", "megatron", ""),
    (r"(.*/)?megatron_gpt_pretraining\.py", "nemo", "config_name"),
    (r"(.*/)?run_train\.py", "nanotron", "config_file"),
    (r"(.*/)?(sdxl_|flux_|sd3_)?train_(network|db|control_net)\.py|(.*/)?(sdxl|flux|sd3)_train"
     r"(_network)?\.py|(.*/)?fine_tune\.py", "kohya", "config_file"),
    (r"(.*/)?train_(text_to_image|dreambooth|controlnet|unconditional|instruct)\w*\.py",
     "diffusers", ""),
    (r"yolo", "ultralytics", ""),
)  # fmt: skip
_SUBVERBS: Final = {
    "axolotl": {"train"}, "llamafactory": {"train"}, "torchtune": {"run"}, "trl": {"sft", "dpo",
    "grpo", "kto", "reward", "rloo"}, "litgpt": {"finetune", "finetune_lora", "finetune_full",
    "pretrain", "finetune_adapter"}, "ultralytics": {"train", "detect", "segment", "classify"},
}  # fmt: skip
_ENDS: Final = (".py", ".yaml", ".yml", ".toml", ".json")
_RANKS: Final = ("nproc_per_node", "num_processes", "num_gpus")
_NODES: Final = ("nnodes", "num_nodes", "num_machines")


def starts(
    text: str, given: Mapping[str, str] | None = None, ranks: int | None = None
) -> list[Start]:
    """Return the trainings that a script starts; ``ranks``: of what it asks for."""
    asked = ranks or slurm_ranks(text)
    found, known = commands(text, dict(given or {}))
    lines = list(found)
    for words in found:  # bash -c "torchrun ..."
        inner = (word for flag, word in pairwise(words) if flag in ("-c", "-lc", "-ec"))
        lines += [one for word in inner for one in commands(word, known)[0]]
    return [start for words in lines if (start := _start(words, asked)) is not None]


def _start(words: list[str], asked: int | None) -> Start | None:
    for place, word in enumerate(words):
        tool, flag = next(
            ((tool, flag) for pattern, tool, flag in _PROGRAMS if re.fullmatch(pattern, word)),
            (None, ""),
        )
        is_script = word.endswith(".py") and any("model_name_or_path" in w for w in words)
        if tool is None and is_script and not word.startswith("-"):
            tool = "trainer"
        if tool is None or (word.startswith("-") and "=" not in word):
            continue
        rest = words[place + 1 :]
        verbs = _SUBVERBS.get(tool, set())
        if verbs and word.rpartition(".")[2] not in ("train", "py"):
            if not rest or rest[0] not in verbs:
                continue
            rest = rest[1:]
        before, after = _arguments(words[:place])[0], _arguments(rest)
        arguments, plain_words = after
        file = _file(tool, flag, arguments, plain_words, words[:place])
        ranks = _count(before | (arguments if tool == "torchtune" else {}), asked)
        if tool == "diffusers":
            arguments["script"] = word
        if tool == "torchtune":
            ranks = 1 if any("single_device" in one for one in plain_words) else ranks
            arguments = {n: v for n, v in arguments.items() if n not in (*_RANKS, *_NODES)}
        name = {"trl": "trainer"}.get(tool, tool)
        if tool == "trl" and words[place + 1] != "sft":
            arguments["trainer_type"] = words[place + 1]
        if "config_file" in before and name in ("trainer", "axolotl", "diffusers", "kohya"):
            arguments["accelerate_config"] = before["config_file"]
        return Start(tool=name, arguments=arguments, file=file, ranks=ranks)
    return None


def _file(
    tool: str, flag: str, arguments: dict[str, Any], words: list[str], before: list[str]
) -> str | None:
    if flag:
        found = arguments.pop(flag, None)
        for one in (*before, *words):  # CONFIG_FILE=... ./run_train.sh
            if one.startswith("CONFIG_FILE="):
                found = one.partition("=")[2].strip("\"'")
        return None if found is None else str(found)
    is_named = tool in ("axolotl", "llamafactory", "trainer")
    return next((one for one in words if is_named and one.endswith(_ENDS[1:])), None)


def _count(arguments: Mapping[str, Any], asked: int | None) -> int | None:
    each = next((arguments[name] for name in _RANKS if name in arguments), None)
    nodes = next((arguments[name] for name in _NODES if name in arguments), 1)
    if not isinstance(each, int) or isinstance(each, bool):
        return asked
    is_total = "num_processes" in arguments and "nproc_per_node" not in arguments
    times = 1 if is_total or not isinstance(nodes, int) else nodes
    return max(each * times, 1) if asked is None or times > 1 or is_total else max(each, asked)


def _arguments(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return ``--name value``, ``--name=value`` and ``name=value``, and the other words."""
    found: dict[str, Any] = {}
    others: list[str] = []
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        is_flag = word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?(e-?\d+)?", word)
        if not is_flag:
            name, sign, value = word.partition("=")
            if sign and re.fullmatch(r"[+~]{0,2}[A-Za-z_][\w.]*", name):
                found[name.lstrip("+~")] = plain(value)
            else:
                others.append(word)
            continue
        name, sign, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if sign:
            found[name] = plain(value)
            continue
        values: list[Any] = []
        while place < len(words) and (
            not words[place].startswith("-") or re.fullmatch(r"-\d[\d.e-]*", words[place])
        ):
            is_next = re.match(r"[+~]{0,2}[A-Za-z_][\w.]*=", words[place])
            value = plain(words[place])
            # Numbers and words do not stand in one list: what follows begins something else.
            is_other = values and isinstance(values[0], str) != isinstance(value, str)
            if values and (is_next or is_other or str(value).endswith(_ENDS)):
                break
            values.append(value)
            place += 1
        found[name] = True if not values else values[0] if len(values) == 1 else values
    return found, others
