"""How many steps the whole job takes: what the hooks found, made into one number with a source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from advisor.collectors.events import Events
from advisor.collectors.recording import TotalWork
from advisor.collectors.rounds import count_rounds, has_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenWork:
    """What the user said on the command line; at most one of them."""

    epochs: float | None = None
    total_steps: int | None = None
    total_samples: int | None = None


def total_work(
    events: Events, given: GivenWork, *, samples_per_step: float, is_finished: bool = False
) -> TotalWork | None:
    """Return the job's length, or None where nobody says.

    Parameters
    ----------
    events : Events
        Of the process that trains.
    given : GivenWork
        Overrides everything.
    samples_per_step : float
        Over all processes; 0 where unknown.
    is_finished : bool
        Whether the script ran to its own end.
    """
    if given.total_steps is not None:
        return _work(given.total_steps, None, "--total-steps", "given")
    if given.total_samples is not None and samples_per_step > 0:
        return _work(given.total_samples / samples_per_step, None, "--total-samples", "given")
    if given.epochs is not None and (per_epoch := steps_per_epoch(events)) is not None:
        return _work(given.epochs * per_epoch, given.epochs, "--epochs", "given")
    stated = events.fact("total_work")
    if stated.get("steps"):
        return _work(stated["steps"], None, "advisor.step(total_steps=...)", "certain")
    counted = count_rounds(events, is_finished=is_finished)
    if counted is not None:
        return _work(counted.rounds, counted.epochs, counted.source, counted.confidence)
    found = events.facts.get("work", [])
    if not found or ("fit" in events.facts and has_rounds(events)):  # the loops around one fit
        return None
    for candidate in found[-1].get("candidates", []):
        if candidate.get("steps"):
            epochs, sure = candidate.get("epochs"), candidate["confidence"]
            return _work(candidate["steps"], epochs, candidate["source"], sure)
        if "loops" in candidate and (work := _from_loops(candidate, found, events)) is not None:
            return work
    return _from_arguments(found[-1].get("arguments", {}), events)


def _work(
    steps: float,
    epochs: float | None,
    source: str,
    confidence: Literal["given", "certain", "likely", "weak"],
) -> TotalWork:
    return TotalWork(
        steps=max(1, round(steps)), epochs=epochs, source=source, confidence=confidence
    )


# A loader may run ahead of the steps by a few batches, and an epoch may end in a shorter step:
# a ratio this near to an integer is that integer.
_RUNS_AHEAD = 0.15


def _observed(events: Events) -> float:
    """Return the training loader's batches over the steps that followed them; 1 unknown."""
    number = events.training_loader()
    counts = None if number is None else events.loaders.get(number)
    if counts is None or not counts.steps or not counts.batches:
        return 1.0
    return counts.batches / counts.steps


def batches_per_step(events: Events) -> float:
    """Return the training loader's batches in a whole step; 1 where no loader was seen."""
    ratio = _observed(events)
    nearest = max(1, round(ratio))
    return nearest if abs(ratio - nearest) < _RUNS_AHEAD * nearest else ratio


def steps_in(batches: int, events: Events) -> float:
    """Return the steps in a pass of so many batches.

    Batches left over at the end make a step of their own, or none, or a part of the next pass's
    first: whichever is nearest to what was seen.
    """
    whole = batches / batches_per_step(events)
    seen = batches / _observed(events)
    return min(math.floor(whole), whole, math.ceil(whole), key=lambda steps: abs(steps - seen))


def steps_per_epoch(events: Events) -> float | None:
    """Return the steps in a pass over the training data, where its length is known."""
    if has_rounds(events) and (per_epoch := events.fact("fit").get("per_epoch")):
        return float(per_epoch)
    batches = events.loader_fact().get("batches_per_epoch")
    return None if not batches else steps_in(batches, events)


def _from_loops(
    candidate: dict[str, Any], found: list[dict[str, Any]], events: Events
) -> TotalWork | None:
    """Multiply the loops around a step; divide by the innermost one's turns in a step."""
    loops = candidate["loops"]
    inner = loops[0]
    confidence: Literal["likely", "weak"] = "likely"
    batches = events.loader_fact().get("batches_per_epoch")
    if inner["turns"] is None and batches and events.training_loader() is not None:
        # Whatever is looped over, the training loader feeds it.
        inner = {**inner, "turns": batches, "is_loader": True}
        loops, confidence = [inner, *loops[1:]], "weak"
    inner_turns = _turns(inner)
    steps: float | None = None
    if inner_turns is not None and inner["is_loader"]:
        steps = steps_in(inner_turns, events)
    elif inner_turns is not None:
        steps = inner_turns / _turns_per_step(found)
    per_epoch = steps if inner["is_loader"] else None
    for loop in loops[1:]:
        turns = _turns(loop)
        steps = None if steps is None or turns is None else steps * turns
    bounds = [one for level in range(len(loops)) if (one := _job_bound(found, level)) is not None]
    if steps is None and not bounds:
        return None
    whole = min([*bounds, *([] if steps is None else [steps])])
    epochs = whole / per_epoch if per_epoch else None
    return _work(whole, epochs, candidate["source"], confidence)


def _turns(loop: dict[str, Any]) -> int | None:
    """Return the loop's turns, no more than where its own counter breaks it off."""
    turns, bound = loop["turns"], loop.get("bound")
    known = [] if turns is None else [turns]
    if bound is not None and bound["is_own"]:
        known.append(bound["limit"])
    return min(known, default=None)


def _seen(found: list[dict[str, Any]], level: int) -> list[tuple[int, dict[str, Any]]]:
    """Return (step, loop) of the loop at a level as it was seen at several steps."""
    return [
        (fact["step"], candidate["loops"][level])
        for fact in found
        for candidate in fact.get("candidates", [])
        if len(candidate.get("loops", ())) > level
    ]


def _turns_per_step(found: list[dict[str, Any]]) -> float:
    """Return how far the innermost loop's counter goes in a step, seen at two steps."""
    seen = _seen(found, 0)
    outer = [_counters(fact) for fact in found]
    steady = [
        (earlier, later)
        for later in range(len(seen) - 1, 0, -1)
        for earlier in range(later)
        if outer[earlier][1:] == outer[later][1:]  # else the counter began anew in between
    ]
    for earlier, later in steady:
        pair = [seen[earlier], seen[later]]
        per_step = _advance(pair, [loop["variable"] for _, loop in pair])
        if per_step is not None:
            return per_step
    return 1.0


def _counters(fact: dict[str, Any]) -> list[int | None]:
    """Return the counters of all loops around a step, innermost first."""
    for candidate in fact.get("candidates", []):
        if candidate.get("loops"):
            return [loop["variable"] for loop in candidate["loops"]]
    return []


def _job_bound(found: list[dict[str, Any]], level: int) -> float | None:
    """Return the steps after which a counter that runs through the job breaks a loop off."""
    seen = _seen(found, level)
    bounds = [loop.get("bound") for _, loop in seen]
    last = bounds[-1] if bounds else None
    if last is None or last["is_own"]:
        return None
    per_step = _advance(seen, [None if one is None else one["counter"] for one in bounds])
    return last["limit"] / per_step if per_step else None


def _advance(seen: list[tuple[int, dict[str, Any]]], counters: list[int | None]) -> float | None:
    """Return how far a counter goes in a step; None if it was not seen to go on."""
    if len(seen) < 2 or seen[0][1]["where"] != seen[-1][1]["where"]:
        return None
    first, last = counters[0], counters[-1]
    if first is None or last is None or last <= first:
        return None
    return (last - first) / (seen[-1][0] - seen[0][0])


def _from_arguments(arguments: dict[str, float], events: Events) -> TotalWork | None:
    """Fall back on an argument that says it: steps, or epochs of a loader of known length."""
    for name in ("max_steps", "total_steps", "num_steps", "steps", "max_iters", "iterations"):
        if arguments.get(name, 0) > 0:
            return _work(arguments[name], None, f"argument --{name}", "weak")
    per_epoch = steps_per_epoch(events)
    for name in ("epochs", "num_epochs", "max_epochs", "num_train_epochs", "n_epochs"):
        if per_epoch is not None and arguments.get(name, 0) > 0:
            epochs = float(arguments[name])
            return _work(epochs * per_epoch, epochs, f"argument --{name}", "weak")
    return None
