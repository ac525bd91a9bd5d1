"""Limits on what a script uses of a machine: part of the job, wherever it runs.

What the script or its environment set stays on another machine; what a framework took because
that many cores were there grows with the machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, mode
from typing import Any, Final

from advisor.collectors.errors import printable
from advisor.collectors.format.contention import Corrected, Stretch, correct
from advisor.collectors.format.events import Events

# What takes each limit away, in words.
_CALL: Final = "torch.set_num_threads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits that a script ran under; None where there was none."""

    # threads that one process computes with, where the script or its environment set them
    threads: int | None = None
    threads_source: str = ""  # who set them: ``"torch.set_num_threads"``, ``"OMP_NUM_THREADS"``
    # cores that all processes together may use, where the machine has more [cores]
    cores: float | None = None
    cores_source: str = ""  # who took the others away: ``"its CPU affinity"``, ``"a CPU quota"``

    def compute_threads(self, processes: int = 1) -> float | None:
        """Return the cores that so many processes can compute with; None without a limit.

        Examples
        --------
        >>> Limits(threads=2, cores=3.0).compute_threads(2)
        3.0
        """
        known = [] if self.threads is None else [float(self.threads * processes)]
        known += [] if self.cores is None else [self.cores]
        return min(known, default=None)

    def notes(self) -> tuple[str, ...]:
        """Return in words what is kept on other machines, and that lifting it may help."""
        found = []
        if self.threads is not None:
            threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
            found.append(
                f"the script computes with {threads} ({self.threads_source}), on every machine; "
                "lifting this limit may help: change it and profile again"
            )
        if self.cores is not None:
            cores = "1 core" if self.cores == 1 else f"{self.cores:g} cores"
            found.append(
                f"the script is kept to {cores} ({self.cores_source}), on every machine; "
                "lifting this limit may help: profile again without it"
            )
        return tuple(found)


def limits_of(fact: Mapping[str, Any], logical_cpus: int, cpu_limit: float) -> Limits:
    """Return the limits by what the hooks saw in the script's process.

    ``cpu_limit``: what the profiler itself may use: affinity and quota [cores].
    """
    threads, source = _threads(fact)
    affinity = fact.get("affinity", logical_cpus)
    cores = min(float(affinity), cpu_limit)
    if not fact or cores >= logical_cpus:
        return Limits(threads=threads, threads_source=source)
    return Limits(
        threads=threads,
        threads_source=source,
        cores=cores,
        cores_source="its CPU affinity" if affinity <= cpu_limit else "a CPU quota",
    )


def _threads(fact: Mapping[str, Any]) -> tuple[int | None, str]:
    """Return the threads that somebody set, and who; a value without effect is none."""
    threads = fact.get("threads")
    if threads is None:
        return None, ""
    if fact.get("called") == threads:
        return threads, _CALL
    for name, value in fact.get("environment", {}).items():
        if value == threads:
            return threads, name
    return None, ""


# Squared gradient norms of one pass and of whole steps, from the sampled steps of all ranks.


FEWEST: Final = 8  # steps; fewer say nothing of a mean


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientNorms:
    """Norms of mean gradients at two batch sizes, step by step.

    A loss scale is in both: their ratio is what they tell.
    """

    # small_batch, large_batch: of one pass of one rank, and of a step over all of them [samples]
    small_batch: float
    large_batch: float
    # small_norm2, large_norm2: |G|^2 of each sampled step, one of each
    small_norm2: tuple[float, ...]
    large_norm2: tuple[float, ...]


def gradient_norms(
    processes: Sequence[Events], *, samples: float | None, passes: int, ranks: int
) -> GradientNorms | None:
    """Return the norms that the hooks took; None where a step has one gradient norm only.

    ``passes``: micro-batches of a step of one rank, as loader and backward passes say together:
    passes for several losses of one batch are no parts of one gradient.
    """
    if not samples or passes * ranks < 2:
        return None
    facts = [fact for one in processes for fact in one.facts.get("gradient_norms", [])]
    rows = [row for fact in facts for row in fact.get("rows", ())]
    if not rows or mode(row[0] for row in rows) != passes:
        return None
    kept = [row for row in rows if row[0] == passes and all(map(_is_norm, row[1:]))]
    if len(kept) < FEWEST:
        return None
    return GradientNorms(
        small_batch=samples / (passes * ranks),
        large_batch=samples,
        small_norm2=tuple(float(row[1]) for row in kept),
        # Passes add up: the mean gradient is a share of what was in ``.grad``.
        large_norm2=tuple(float(row[2]) / passes**2 for row in kept),
    )


def _is_norm(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0


# Experts that the tokens of a mixture were sent to, as the hooks saw it (``hooks.chores``).


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedPass:
    """The first tokens of one forward pass."""

    step: int
    is_training: bool  # whether the routers were in training mode, in which some add noise
    experts: tuple[tuple[int, ...], ...]  # by layer, the experts of one token after the other


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The layers of a model that route, and where tokens went."""

    layers: tuple[str, ...]
    # experts, top: experts of a layer, and how many each token uses
    experts: int
    top: int
    # expert_bytes, dense_bytes: weights of one expert, and of all that is no expert [bytes]
    expert_bytes: int
    dense_bytes: int
    passes: tuple[RoutedPass, ...]  # in time; empty if none was seen whole


def routing_of(routers: Mapping[str, Any], routes: Sequence[Mapping[str, Any]]) -> Routing | None:
    """Return what the facts say; None where no layer routes."""
    if not routers:
        return None
    layers = tuple(str(name) for name in routers["layers"])
    experts, top = int(routers["experts"]), int(routers["top"])
    passes = []
    for route in routes:
        seen = tuple(tuple(int(one) for one in layer) for layer in route["experts"])
        sizes = {len(layer) for layer in seen}
        is_whole = len(seen) == len(layers) and len(sizes) == 1 and not max(sizes) % top
        if not is_whole or not all(0 <= one < experts for layer in seen for one in layer):
            raise ValueError(f"routes of {len(seen)} layers to {experts} experts")
        passes.append(
            RoutedPass(step=int(route["step"]), is_training=bool(route["training"]), experts=seen)
        )
    return Routing(
        layers=layers,
        experts=experts,
        top=top,
        expert_bytes=int(routers["expert_bytes"]),
        dense_bytes=int(routers["dense_bytes"]),
        passes=tuple(passes),
    )


# Checkpoints of a recorded process, from its calls of ``torch.save``.


# A script may save small things beside its checkpoints: those within this share of the largest
# are taken to be checkpoints.
_ALIKE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """The checkpoints that were seen."""

    count: int
    # seconds, raw_seconds: median standstill of one, without neighbours and by the clock [s]
    seconds: float
    size_bytes: int | None  # of the largest; None where files could not be measured [bytes]
    raw_seconds: float = 0.0
    half_width_s: float = 0.0  # how far the correction may be off [s]


def saves_of(facts: Sequence[Mapping[str, Any]], kept_share: float = 0.0) -> Saves | None:
    """Return the checkpoints among the saves, None where nothing was saved.

    ``kept_share`` is the share of the waiting for a core that is the job's own.
    """
    if not facts:
        return None
    largest = max((one["bytes"] or 0) for one in facts)
    alike = [one for one in facts if (one["bytes"] or 0) >= _ALIKE * largest]
    times = [_time(one, kept_share) for one in alike]
    return Saves(
        count=len(alike),
        seconds=median(one.corrected_s for one in times),
        size_bytes=int(largest) or None,
        raw_seconds=median(one.raw_s for one in times),
        half_width_s=median(one.half_width_s for one in times),
    )


def _time(fact: Mapping[str, Any], kept_share: float) -> Corrected:
    wall_ns, delay_ns = 1e9 * float(fact["seconds"]), 1e9 * float(fact.get("delay_s", 0.0))
    return correct(Stretch(wall_ns=wall_ns, delay_ns=delay_ns, kept_ns=kept_share * delay_ns))


# What a rehearsal was of, and what its traced step held and exchanged.


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """All calls of one collective in a rehearsed step."""

    name: str
    calls: int
    bytes: int  # handed to it by this rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """A recording in which nothing was computed."""

    device: str  # what the script found, e.g. ``"NVIDIA H100 80GB HBM3"``
    devices: int
    rank: int
    why: str  # what it wanted that was not there; empty where a rehearsal was asked for
    compiles: bool  # ``torch.compile`` was left out
    # what was made up, left out or stood in for, with the script's lines
    notes: tuple[str, ...]
    # whether a made-up value stands in a line that decides where the script goes on
    has_decided: bool
    # peak_bytes, reserved_bytes: of blocks in the traced step, and of the caching allocator's
    # segments; None where it was not followed [bytes]
    peak_bytes: int | None = None
    reserved_bytes: int | None = None
    held_bytes: Mapping[str, int] = field(default_factory=dict)  # at the peak, by what they hold
    collectives: tuple[Collective, ...] = ()

    @property
    def words(self) -> str:
        """What is said of it beside every answer."""
        return (
            "rehearsed: operators, shapes, loops, memory and collectives are the script's, "
            "nothing was computed; times are the device model's"
        )


def rehearsed_of(events: Events) -> Rehearsed | None:
    """Return what the hooks say of a rehearsal; None of a script that was run for real."""
    fact, step = events.fact("rehearsal"), events.fact("rehearsed_step")
    if not fact:
        return None
    found = sorted(fact.get("notes", {}).items(), key=lambda one: -one[1])
    return Rehearsed(
        device=str(fact.get("device", {}).get("name", "")),
        devices=int(fact.get("devices", 1)),
        rank=int(fact.get("rank", 0)),
        why=str(fact.get("why", "")),
        compiles=bool(fact.get("compiles")),
        notes=tuple(f"{text}, {times} times" if times > 1 else text for text, times in found),
        has_decided=bool(fact.get("has_decided")),
        peak_bytes=step.get("peak_bytes"),
        reserved_bytes=step.get("reserved_bytes"),
        held_bytes=dict(step.get("held", {})),
        collectives=tuple(
            Collective(name=one["name"], calls=one["calls"], bytes=one["bytes"])
            for one in step.get("collectives", [])
        ),
    )


# The reason why a script trains on the CPU, and the change that lets it use an accelerator.


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
    if device != "cpu":
        return Told(spreads=spreads, stack=stack)
    found = [*_by_environment(fact), *_by_arguments(fact, command)]
    found = found or [*_by_source(fact)]
    return Told(
        reason="; ".join(reason for reason, _, _ in found),
        change="; ".join(change for _, change, _ in found),
        edits=tuple(edit for _, _, edits in found for edit in edits),
        by_hand="; ".join(change for _, change, edits in found if not edits),
        spreads=spreads,
        stack=stack,
    )


_WRAPPERS: Final = {
    "FSDP": "fsdp", "FullyShardedDataParallel": "fsdp", "fully_shard": "fsdp",
    "DistributedDataParallel": "ddp",
}  # fmt: skip


def _wrapped_by(spreads: Sequence[str]) -> str:
    """Return what a script wraps its model in where it names one way to, and no framework's."""
    found = {_WRAPPERS.get(name, "") for name in spreads if name != "init_process_group"}
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


# The error that a process of the script ended with.


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Why the script ended with an error: see ``hooks.ending``."""

    cause: str  # package, file, network, ...; "error" where its cause is not known
    what: str  # the package, file or host; the error's words
    where: str  # the script's line, "" where none was on the way
    python: str  # the interpreter that ran it


def ended_of(processes: Sequence[Events]) -> Ended | None:
    """Return what the first process that ended with an error said; the others wait for it."""
    said = [one.fact("ended_by") for one in processes if "ended_by" in one.facts]
    if not said:
        return None
    first = min(said, key=lambda fact: int(fact.get("t_ns", 0)))
    names = ("cause", "what", "where", "python")
    return Ended(**{name: printable(str(first.get(name, ""))) for name in names})
