"""What the hooks said of a process beside its steps: each fact as a noun, read by its fields.

``noun`` reads all of them. What is more than reading stands beside the noun that it makes: which
limits bind, which norms are of whole steps, which saves are checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from itertools import repeat
from statistics import median, mode
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

from advisor.collectors.format.contention import Corrected, Stretch, correct
from advisor.collectors.format.events import Events

T = TypeVar("T")


def noun(kind: type[T], fact: Mapping[str, Any], **known: Any) -> T:
    """Return a noun whose fields stand in a fact by their names; ``known``: those that do not.

    What a fact does not say has the field's default: recordings of before say less.

    Raises TypeError if a value is not of its field's type, or a field without default is missing.

    >>> noun(Collective, {"name": "all_reduce", "calls": 2, "bytes": 8, "later": 1}).calls
    2
    """
    said = {
        name: typed(hint, fact[name])
        for name, hint in _hints(cast(Any, kind)).items()
        if name in fact and name not in known
    }
    return kind(**said, **known)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


_JSON: Final[Mapping[Any, tuple[type, ...]]] = {
    int: (int, float), float: (int, float), bool: (bool,), str: (str,),
}  # fmt: skip


def typed(hint: Any, value: Any) -> Any:
    """Return a JSON value as a field has it: tuples for lists, nouns for objects."""
    parts = get_args(hint)
    if isinstance(hint, UnionType):
        return None if value is None else typed(next(p for p in parts if p is not NoneType), value)
    if get_origin(hint) is tuple:
        each = repeat(parts[0]) if parts[-1] is ... else parts
        return tuple(map(typed, each, value))
    if is_dataclass(hint):
        return noun(cast(Any, hint), value)
    if not isinstance(value, _JSON.get(hint, (object,))):
        raise TypeError(f"{value!r:.80} is not of type {hint.__name__}")
    return value


# What takes each limit away, in words.
_CALL: Final = "torch.set_num_threads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits that a script ran under, wherever it runs; None where there was none.

    What the script or its environment set stays on another machine; what a framework took because
    that many cores were there grows with the machine.
    """

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
    who = "its CPU affinity" if affinity <= cpu_limit else "a CPU quota"
    return Limits(threads=threads, threads_source=source, cores=cores, cores_source=who)


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
    passes = tuple(noun(RoutedPass, one, is_training=bool(one["training"])) for one in routes)
    found = noun(Routing, routers, passes=passes)
    for one in passes:
        sizes = {len(layer) for layer in one.experts}
        is_whole = len(one.experts) == len(found.layers) and len(sizes) == 1
        is_whole = is_whole and not max(sizes) % found.top
        if not is_whole or not all(0 <= e < found.experts for layer in one.experts for e in layer):
            raise ValueError(f"routes of {len(one.experts)} layers to {found.experts} experts")
    return found


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
    devices: int = 1
    rank: int = 0
    why: str = ""  # what it wanted that was not there; empty where a rehearsal was asked for
    compiles: bool = False  # ``torch.compile`` was left out
    # what was made up, left out or stood in for, with the script's lines
    notes: tuple[str, ...] = ()
    # whether a made-up value stands in a line that decides where the script goes on
    has_decided: bool = False
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
    notes = tuple(f"{text}, {times} times" if times > 1 else text for text, times in found)
    device = str(fact.get("device", {}).get("name", ""))
    held = dict(step.get("held", {}))
    return noun(Rehearsed, {**step, **fact}, device=device, notes=notes, held_bytes=held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Why the script ended with an error: see ``hooks.ending``."""

    cause: str = ""  # package, file, network, ...; "error" where its cause is not known
    what: str = ""  # the package, file or host; the error's words
    where: str = ""  # the script's line, "" where none was on the way
    python: str = ""  # the interpreter that ran it


def ended_of(processes: Sequence[Events]) -> Ended | None:
    """Return what the first process that ended with an error said; the others wait for it."""
    said = [one.fact("ended_by") for one in processes if "ended_by" in one.facts]
    return noun(Ended, min(said, key=lambda fact: int(fact.get("t_ns", 0)))) if said else None
