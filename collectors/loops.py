"""The length of a job from the loops around a step, as the hooks saw them at several steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from advisor.collectors.events import Events
from advisor.collectors.passes import steps_in

# Steps by which what was seen may lag behind what the loops' counters say: the hooks look in the
# middle of a turn.
_LAG_STEPS: Final = 2.0
_LAG_FRACTION: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Steps of a whole job; ``epochs`` and ``steps_per_epoch`` where it has epochs."""

    steps: float
    epochs: float | None
    steps_per_epoch: float | None
    confidence: Literal["likely", "weak"]


def of_loops(
    loops: list[dict[str, Any]], found: list[dict[str, Any]], events: Events
) -> Length | None:
    """Multiply the loops around a step; divide by the innermost one's turns in a step.

    Parameters
    ----------
    found : list of dict
        All that was seen of the work, in order, ``loops`` last.

    Returns
    -------
    Length or None
        None where a loop's turns are unknown, or it was seen to end before them.
    """
    found = _one_count(found)
    loops, confidence = _fed(loops, events)
    sizes = _steps_by_level(loops, found, events)
    steps = sizes[-1]
    if steps is not None and _is_contradicted(sizes, found):
        steps = None
    bounds = [one for level in range(len(loops)) if (one := _job_bound(found, level)) is not None]
    if steps is None and not bounds:
        return None
    # A bound on a loop of unknown turns is the most that it can be.
    is_most = any(one["turns"] is None and not one.get("is_endless", True) for one in loops)
    if (loops[-1].get("may_end") and not bounds) or is_most:
        confidence = "weak"
    whole = min([*bounds, *([] if steps is None else [steps])])
    per_epoch = _steps_per_epoch(loops, sizes)
    epochs = whole / per_epoch if per_epoch else None
    return Length(steps=whole, epochs=epochs, steps_per_epoch=per_epoch, confidence=confidence)


def _one_count(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the sightings since the steps were last counted from the beginning."""
    begin = max(
        (n for n in range(1, len(found)) if found[n]["step"] <= found[n - 1]["step"]), default=0
    )
    return found[begin:]


def is_episodic(loops: list[dict[str, Any]]) -> bool:
    """Return whether an inner loop, fed by no loader, may end at any turn: an episode does."""
    return any(loop.get("may_end") and not loop["is_loader"] for loop in loops[:-1])


def _fed(
    loops: list[dict[str, Any]], events: Events
) -> tuple[list[dict[str, Any]], Literal["likely", "weak"]]:
    """Return the loops, the innermost one over the training loader if nothing else is known."""
    inner = loops[0]
    batches = events.loader_fact().get("batches_per_epoch")
    is_endless = inner.get("is_endless") and inner.get("target")  # a ``for`` over ``count()``
    is_unknown = inner["turns"] is None and not is_endless
    if is_unknown and batches and events.training_loader() is not None:
        # Whatever is looped over, the training loader feeds it.
        return [{**inner, "turns": batches, "is_loader": True}, *loops[1:]], "weak"
    return loops, "likely"


def _steps_by_level(
    loops: list[dict[str, Any]], found: list[dict[str, Any]], events: Events
) -> list[float | None]:
    """Return the steps in all turns of each loop, innermost first; None where unknown."""
    sizes: list[float | None] = []
    steps: float | None = None
    for level, loop in enumerate(loops):
        turns = _turns(loop)
        if level == 0 and turns is not None:
            is_fed = loop["is_loader"]
            steps = steps_in(turns, events) if is_fed else turns / _turns_per_step(found)
        elif level > 0:
            steps = None if steps is None or turns is None else steps * turns
        is_inner = level < len(loops) - 1
        if loop.get("may_end") and is_inner and not loop["is_loader"]:
            steps = None  # an episode, or a search: it may end at any turn
        if (pass_ := _pass_bound(found, level)) is not None:
            steps = pass_ if steps is None else min(steps, pass_)
        sizes.append(steps)
    return sizes


def _turns(loop: dict[str, Any]) -> int | None:
    """Return the loop's turns, no more than where its own counter breaks it off."""
    turns, bound = loop["turns"], loop.get("bound")
    known = [] if turns is None else [turns]
    if bound is not None and bound["is_own"]:
        known.append(bound["limit"])
    return min(known, default=None)


def _steps_per_epoch(loops: list[dict[str, Any]], sizes: list[float | None]) -> float | None:
    """Return the steps of an epoch: a pass over the loader, or a turn of a loop over epochs."""
    if loops[0]["is_loader"]:
        return sizes[0]
    for level in range(1, len(loops)):
        words = f"{loops[level].get('target', '')} {loops[level]['text']}".lower()
        if "epoch" in words:
            return sizes[level - 1]
    return None


def _loops_of(fact: dict[str, Any]) -> list[dict[str, Any]]:
    for candidate in fact.get("candidates", []):
        if candidate.get("loops"):
            return list(candidate["loops"])
    return []


def _seen(found: list[dict[str, Any]], level: int) -> list[tuple[int, dict[str, Any]]]:
    """Return (step, loop) of the loop at a level as it was seen at several steps."""
    return [
        (fact["step"], loops[level]) for fact in found if len(loops := _loops_of(fact)) > level
    ]


def _steady(found: list[dict[str, Any]], level: int) -> list[tuple[int, int]]:
    """Return pairs of sightings between which no loop around the one at ``level`` turned."""
    outer = [
        [loop["variable"] for loop in _loops_of(fact)][level + 1 :]
        for fact in found
        if len(_loops_of(fact)) > level
    ]
    return [
        (earlier, later)
        for later in range(len(outer) - 1, 0, -1)
        for earlier in range(later)
        if outer[earlier] == outer[later]  # else the counter began anew in between
    ]


def _turns_per_step(found: list[dict[str, Any]]) -> float:
    """Return how far the innermost loop's counter goes in a step, seen at two steps."""
    seen = _seen(found, 0)
    for earlier, later in _steady(found, 0):
        pair = [seen[earlier], seen[later]]
        per_step = _advance(pair, [loop["variable"] for _, loop in pair])
        if per_step is not None:
            return per_step
    return 1.0


def _pass_bound(found: list[dict[str, Any]], level: int) -> float | None:
    """Return the steps after which a counter that begins anew each time breaks a loop off."""
    seen = _seen(found, level)
    last = seen[-1][1].get("bound") if seen else None
    if last is None or last["is_own"] or not last.get("reset"):
        return None
    for earlier, later in _steady(found, level):
        pair = [seen[earlier], seen[later]]
        per_step = _advance(pair, [_counter(loop) for _, loop in pair])
        if per_step is not None:
            return float(last["limit"] / per_step)
    return None


def _job_bound(found: list[dict[str, Any]], level: int) -> float | None:
    """Return the steps after which a counter that runs through the job breaks a loop off.

    A job that goes on from a checkpoint begins with its counter somewhere.
    """
    seen = _seen(found, level)
    last = seen[-1][1].get("bound") if seen else None
    if last is None or last["is_own"] or last.get("reset"):
        return None
    per_step = _advance(seen, [_counter(loop) for _, loop in seen])
    if not per_step:
        return None
    began = last["counter"] - seen[-1][0] * per_step
    begun_at = 0.0 if -per_step <= began <= per_step else began
    return float((last["limit"] - begun_at) / per_step)


def _counter(loop: dict[str, Any]) -> int | None:
    bound = loop.get("bound")
    return None if bound is None else bound["counter"]


def _advance(seen: list[tuple[int, dict[str, Any]]], counters: list[int | None]) -> float | None:
    """Return how far a counter goes in a step; None if it was not seen to go on."""
    if len(seen) < 2 or seen[0][1]["where"] != seen[-1][1]["where"]:
        return None
    first, last = counters[0], counters[-1]
    if first is None or last is None or last <= first:
        return None
    return (last - first) / (seen[-1][0] - seen[0][0])


def _is_contradicted(sizes: list[float | None], found: list[dict[str, Any]]) -> bool:
    """Return whether the loops turned on before they had made the steps they should have.

    So do episodes that end early, and batches that are passed over.
    """
    positions = []
    for fact in found:
        loops = _loops_of(fact)
        counters = [loop["variable"] for loop in loops][1:]
        if len(loops) != len(sizes) or any(counter is None for counter in counters):
            return False
        steps = sum(
            counter * size
            for counter, size in zip(counters, sizes[:-1], strict=True)
            if counter is not None and size is not None
        )
        positions.append((fact["step"], steps))
    (first, begin), (last, end) = positions[0], positions[-1]
    expected = end - begin - first  # at least: the first sighting is that far into its pass
    return bool(expected > (last - first) * (1 + _LAG_FRACTION) + _LAG_STEPS)
