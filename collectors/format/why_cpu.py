"""The reason why a script trains on the CPU, and the change that lets it use an accelerator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from advisor.collectors.format.events import Events

Edit = tuple[tuple[str, ...], tuple[str, ...]]

_HIDES: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_CHOOSES: Final = {
    "ACCELERATE_USE_CPU": ("1", "true", "yes"),
    "JAX_PLATFORMS": ("cpu",),
    "JAX_PLATFORM_NAME": ("cpu",),
}
# Switches that keep a script on the CPU where they are given, and those that it waits for.
_OFF: Final = re.compile(
    r"(no|disable|without)_?(cuda|gpus?|accel(erator)?)|((use|force|on)_)?cpu(_only)?|cuda_off"
)
_ON: Final = re.compile(r"((use|enable|with)_)?(cuda|gpus?|accel(erator)?)")
_CHOICE: Final = re.compile(r".*(device|accelerator|platform).*")
_ACCELERATOR: Final = re.compile(r"(cuda|gpu|mps)(:\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a script was told of devices."""

    # why it used no accelerator, in words; empty where it uses one if there is one
    reason: str = ""
    change: str = ""
    # the part of it on the command line: words in a row, and what stands in their place
    edits: tuple[Edit, ...] = ()
    by_hand: str = ""
    # names in its source of what trains on several devices; empty where none was seen
    spreads: tuple[str, ...] = ()
    # the training stack that its steps ran in, of ``planners.core.STACKS``; empty where none was
    # seen
    stack: str = ""
    # loss, updates_in_backward: how it computes the loss, of ``planners.core.LOSSES``, empty where
    # it names none; its layers are updated in the backward pass
    loss: str = ""
    updates_in_backward: bool = False


def told_of(
    trainer: Events, device: str | None, command: Sequence[str], world_size: int
) -> Told | None:
    """Return what the training process was told, or None where nothing is known of it.

    ``device``: that it trained on, ``"cpu"`` or ``"cuda"``; None where no step was traced.
    """
    fact = trainer.fact("told")
    if not fact or device is None:
        return None
    spreads = tuple(fact.get("spreads", ()))
    if world_size > 1 and not spreads:
        spreads = ("torch.distributed",)
    # Alone, a script may pass over what it names.
    stack = fact.get("stack") or (_wrapped_by(spreads) if world_size > 1 else "")
    words = fact.get("words", {}) | _said_by(command)
    software: dict[str, Any] = {
        "spreads": spreads, "stack": stack, "loss": words.get("loss", ""),
        "updates_in_backward": "optimizer_in_backward" in words,
    }  # fmt: skip
    if device != "cpu":
        return Told(**software)
    found = [*_by_environment(fact), *_by_arguments(fact, command)]
    found = found or [*_by_source(fact)]
    return Told(
        reason="; ".join(reason for reason, _, _ in found),
        change="; ".join(change for _, change, _ in found),
        edits=tuple(edit for _, _, edits in found for edit in edits),
        by_hand="; ".join(change for _, change, edits in found if not edits),
        **software,
    )


def _said_by(command: Sequence[str]) -> dict[str, str]:
    """Return what arguments say of the loss and the update, by the names of the options.

    >>> _said_by(["train.py", "--use_liger_kernel", "--optim", "lomo"])
    {'loss': 'chunked', 'optimizer_in_backward': 'yes'}
    """
    from advisor.collectors.hooks.trace.libraries import GIVEN, word_of

    found: dict[str, str] = {}
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, is_assigned, value = word.lstrip("-").partition("=")
        if not is_assigned:
            value = "true" if following[:1] in ("-", "") else following
        key = name.replace("-", "_").rpartition(".")[2]
        said = GIVEN.get((key, value.lower())) or word_of(value.rpartition(".")[2])
        if said is not None:
            found[said[0]] = said[1]
    return found


def _wrapped_by(spreads: Sequence[str]) -> str:
    """Return what a script wraps its model in where it names one way to, and no framework's."""
    from advisor.collectors.hooks.trace.libraries import SPREADS

    found = {SPREADS.get(name, "") for name in spreads if name != "init_process_group"}
    return found.pop() if len(found) == 1 else ""


Found = tuple[str, str, tuple[Edit, ...]]


def _by_environment(fact: dict[str, Any]) -> list[Found]:
    found: list[Found] = []
    for name, value in fact.get("environment", {}).items():
        is_hidden = name in _HIDES and value.strip() in ("", "-1", "none", "NoDevFiles")
        if is_hidden or value.strip().lower() in _CHOOSES.get(name, ()):
            found.append((f"{name}={value} is set", f"unset {name}", ()))
    return found


def _by_arguments(fact: dict[str, Any], command: Sequence[str]) -> list[Found]:
    """Return the arguments that keep the script on the CPU, parsed by argparse or by others."""
    found: dict[str, Found] = {}
    for name, value in fact.get("switches", {}).items():
        key = name.lower().replace("-", "_")
        if value is True and _OFF.fullmatch(key):
            found[key] = _dropped(_flag_in(command, key) or _flag(name))
        elif value is False and _ON.fullmatch(key):
            flag = _flag(name)
            found[key] = (f"{flag} is not given", f"add {flag}", (((), (flag,)),))
        elif isinstance(value, str) and value.lower() == "cpu" and _CHOICE.fullmatch(key):
            found[key] = _chosen(name, command)
    words = list(command)
    for number, word in enumerate(words):
        name, is_assigned, value = word.lstrip("-").partition("=")
        key = name.lower().replace("-", "_")
        last = key.rpartition(".")[2]
        following = words[number + 1] if number + 1 < len(words) else ""
        if key in found:
            continue
        if word.startswith("--") and not is_assigned and _OFF.fullmatch(key):
            found[key] = _dropped(word)
        elif value.lower() == "cpu" and _CHOICE.fullmatch(last):
            found[key] = _replaced((word,), (f"{word[: -len(value)]}{_accelerator(last)}",))
        elif word.startswith("-") and following == "cpu" and _CHOICE.fullmatch(last):
            found[key] = _replaced((word, following), (word, _accelerator(last)))
    return list(found.values())


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _flag_in(command: Sequence[str], key: str) -> str | None:
    """Return the word of the command line that stands for a parsed argument."""
    return next(
        (word for word in command
         if word.startswith("-") and word.lstrip("-").lower().replace("-", "_") == key), None
    )  # fmt: skip


def _dropped(flag: str) -> Found:
    return f"{flag} is given", f"drop {flag}", (((flag,), ()),)


def _chosen(name: str, command: Sequence[str]) -> Found:
    """Return the change of an argument that names the CPU, by its default or on the command."""
    words, device = list(command), _accelerator(name.lower())
    for flag in (_flag(name), f"--{name}"):
        for number, word in enumerate(words):
            if word == flag and words[number + 1 : number + 2] == ["cpu"]:
                return _replaced((word, "cpu"), (word, device))
            if word == f"{flag}=cpu":
                return _replaced((word,), (f"{flag}={device}",))
    flag = _flag(name)
    return f"{flag} is cpu by default", f"add {flag} {device}", (((), (flag, device)),)


def _accelerator(name: str) -> str:
    """Return what an argument calls an accelerator: Lightning's ``accelerator`` says gpu."""
    return "gpu" if "accelerator" in name or "platform" in name else "cuda"


def _replaced(words: tuple[str, ...], others: tuple[str, ...]) -> Found:
    old, new = " ".join(words), " ".join(others)
    return f"{old} is given", f"{new} in place of {old}", ((words, others),)


def _by_source(fact: dict[str, Any]) -> list[Found]:
    fixed = fact.get("fixed", [])
    if fixed:
        places = ", ".join(one["where"] for one in fixed[:3])
        return [("the script fixes the CPU", f'"cuda" in place of "cpu" at {places}', ())]
    if fact.get("files") and not fact.get("mentions"):
        change = 'move the model and every batch to the accelerator: .to("cuda")'
        return [("the script names no accelerator", change, ())]
    return []


def on_accelerators(command: Sequence[str], told: Told | None) -> tuple[str, ...]:
    """Return the command line with the edits that let the script use an accelerator.

    >>> told = Told(edits=((("--no-cuda",), ()), (("--device", "cpu"), ("--device", "cuda"))))
    >>> on_accelerators(["train.py", "--no-cuda", "--device", "cpu", "-b", "8"], told)
    ('train.py', '--device', 'cuda', '-b', '8')
    """
    words = list(command)
    for old, new in () if told is None else told.edits:
        size = len(old)
        places = [n for n in range(len(words)) if size and tuple(words[n : n + size]) == old]
        for place in reversed(places):
            words[place : place + size] = new
        if not size:
            words += new
    return tuple(words)


def on_processors(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command line of a script for a machine without accelerators.

    >>> on_processors(["train.py", "--device=cuda:0", "--accelerator", "gpu", "--lr", "1e-3"])
    ('train.py', '--device=cpu', '--accelerator', 'cpu', '--lr', '1e-3')
    """
    words = list(command)
    for number, word in enumerate(words):
        name, is_assigned, value = word.lstrip("-").partition("=")
        key = name.lower().replace("-", "_").rpartition(".")[2]
        if (not word.startswith("-") and not is_assigned) or not _CHOICE.fullmatch(key):
            continue
        if is_assigned and _ACCELERATOR.fullmatch(value):
            words[number] = f"{word[: -len(value)]}cpu"
        elif not is_assigned and _ACCELERATOR.fullmatch("".join(words[number + 1 : number + 2])):
            words[number + 1] = "cpu"
    return tuple(words)
