"""The steps of the whole job: what the hooks found, made into one number with a source.

What is given or stated counts first, then a framework's rounds (``count_rounds``), then the loops
around a step (``of_loops``), then the script's arguments: in ``total_work``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from advisor.collectors.format import Events, Reading, Recording, Rounds, StepTime, TotalWork
from advisor.collectors.hooks import format as fmt

_FIFTH = 5
_BUSY_GPU = 0.02  # a desktop's drawing stays below
_CLOCKS = (fmt.CLOCK_FIT, fmt.CLOCK_ROUND)


def has_rounds(events: Events) -> bool:
    """Whether the steps are rounds of a framework without torch's optimizers."""
    return events.clock in _CLOCKS


def rounds_of(
    events: Events, step: StepTime | None, readings: Sequence[Reading], start_ns: int
) -> Rounds | None:
    """Return what is known of the rounds; None if the steps are an optimizer's or the script's.

    ======  ====================================================================================
    name    meaning
    ======  ====================================================================================
    spread  |mean of the last fifth of the rounds seen / mean of all - 1|: how far the rounds to
            come may be from those seen, as trees grow and searches reach larger models
    cores   busy cores between the first round and the last: CPU time over time not spent waiting
    ======  ====================================================================================
    """
    if step is None or not has_rounds(events):
        return None
    told = events.facts.get("fit", []) if events.clock == fmt.CLOCK_ROUND else []
    first = told[0] if told else events.fact("rounds")
    limits = [one.get("cores") for one in told]
    known = [float(cores) for cores in limits if isinstance(cores, (int, float))]
    if events.clock == fmt.CLOCK_FIT:
        first = {"kind": "whole fits", "unit": "fit"}
    return Rounds(
        kind=str(first.get("kind", "")),
        unit=str(first.get("unit", "round")),
        device=_device(first, readings),
        cores=max(known) if known and len(known) == len(limits) else None,
        busy_cores=_busy_cores(events, step, readings, start_ns),
        compile_s=_compile_s(events, step, first),
        spread_fraction=_spread(events, step),
    )


def _device(first: dict[str, Any], readings: Sequence[Reading]) -> str:
    is_busy = any((reading.gpu_fraction or 0.0) > _BUSY_GPU for reading in readings)
    return "cpu" if str(first.get("device", "cpu")).startswith("cpu") and not is_busy else "cuda"


def _busy_cores(
    events: Events, step: StepTime, readings: Sequence[Reading], start_ns: int
) -> float | None:
    """Return CPU time over time between first and last round, waiting for a core left out."""
    begin_s = (events.steps.first_ns - start_ns) / 1e9
    end_s = (events.steps.last_ns - start_ns) / 1e9
    during = [reading for reading in readings if begin_s <= reading.t_s <= end_s]
    if len(during) < 2:
        return None
    wall_s = (during[-1].t_s - during[0].t_s) * (1.0 - step.delay_fraction)
    return (during[-1].cpu_s - during[0].cpu_s) / wall_s if wall_s > 0 else None


def _compile_s(events: Events, step: StepTime, first: dict[str, Any]) -> float | None:
    if "t_ns" not in first or not events.steps.first_ns:
        return None
    begin_ns = int(first["t_ns"])
    return max(0.0, (events.steps.first_ns - begin_ns) / 1e9 - step.raw_s)


def _spread(events: Events, step: StepTime) -> float:
    steps, warmup = events.steps, step.warmup_steps
    last = (steps.count - warmup) // _FIFTH
    if last < 1:
        return 0.0
    whole = steps.corrected(warmup, steps.count)
    return abs(steps.corrected(steps.count - last, steps.count) / whole - 1.0) if whole else 0.0


def count_rounds(events: Events, *, is_finished: bool) -> TotalWork | None:
    """Return the rounds of the whole job; None where its fits do not say.

    A fit is one training loop of a framework, told at its begin with the rounds it will make. It
    has a site: the line of the user's script that fits; a loop around it makes one fit a turn.

    ``is_finished``: whether the script ran to its own end, with hooks: then all rounds were seen.
    """
    if not has_rounds(events):
        return None
    told = events.facts.get("fit", []) if events.clock == fmt.CLOCK_ROUND else []
    if is_finished and events.completed and "obeyed" not in events.facts:
        kind = f"{told[0]['kind']}: " if told else ""
        source = f"{kind}the script was seen to its end"
        return TotalWork.of(events.completed, _epochs(told), source, "certain")
    sites: dict[str, list[dict[str, Any]]] = {}
    for fit in told:
        sites.setdefault(str(fit.get("where", "")), []).append(fit)
    parts = [_at_site(fits) for fits in sites.values()]
    if not parts or any(part is None for part in parts):
        return None
    total = sum(part for part in parts if part is not None)
    return TotalWork.of(total, _epochs(told), _source(told), _confidence(told))


def _at_site(fits: list[dict[str, Any]]) -> float | None:
    """Return the rounds of all fits that a line makes: those of a mean fit times its turns."""
    rounds = [fit.get("rounds") for fit in fits]
    known = [value for value in rounds if isinstance(value, (int, float))]
    if not known or len(known) < len(rounds):
        return None
    turns = 1
    for loop in fits[0].get("loops") or []:
        if not isinstance(loop.get("turns"), int):
            return None
        turns *= loop["turns"]
    return sum(known) / len(known) * max(turns, len(fits))


def _source(told: list[dict[str, Any]]) -> str:
    last = told[-1]
    loops = [loop["text"] for loop in last.get("loops") or []]
    around = f" in {' in '.join(loops)}" if loops else ""
    most = "at most " if any(fit.get("may_end_early") for fit in told) else ""
    return (
        f"{last['kind']}: {most}{last['rounds']:g} {last['unit']}s a fit, {last['where']}{around}"
    )


def _confidence(told: list[dict[str, Any]]) -> Literal["certain", "likely", "weak"]:
    if any(fit.get("may_end_early") for fit in told):
        return "weak"
    return "likely" if len(told) > 1 or told[0].get("loops") else "certain"


def _epochs(told: list[dict[str, Any]]) -> float | None:
    epochs = [one for fit in told if isinstance(one := fit.get("epochs"), int)]
    return float(sum(epochs)) if epochs and len(epochs) == len(told) else None


# A loader may run ahead of the steps by a few batches, and an epoch may end in a shorter step:
# a ratio this near to an integer is that integer.
_RUNS_AHEAD: Final = 0.15


def _observed(events: Events) -> float:
    """Return the training loader's batches over the steps that followed them; 1 unknown."""
    number = events.training_loader()
    counts = None if number is None else events.loaders.get(number)
    if counts is None or not counts.steps or not counts.batches:
        return 1.0
    return float(counts.batches / counts.steps)


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


# A loop of so many turns has a number where others write ``while True``: at a millisecond a step
# it is a day long, at thirty a month.
MOST_TURNS: Final = 100_000_000
_ALWAYS: Final = ("True", "1")
# Steps by which what was seen may lag behind what the loops' counters say: the hooks look in the
# middle of a turn.
_LAG_STEPS: Final = 2.0
_LAG_FRACTION: Final = 0.1


def of_loops(
    loops: list[dict[str, Any]], found: list[dict[str, Any]], events: Events
) -> tuple[float, float | None, Literal["likely", "weak"]] | None:
    """Multiply the loops around a step; divide by the innermost one's turns in a step.

    ``found``: all that was seen of the work, in order, ``loops`` last.

    Returns
    -------
    (float, float or None, str) or None
        Steps, steps of an epoch where there are epochs, and how sure that is; None where a loop's
        turns are unknown, or it was seen to end before them.
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
    return whole, _steps_per_epoch(loops, sizes), confidence


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

    ``samples_per_step``: over all processes; 0 where unknown.
    """
    if given.total_steps is not None:
        return TotalWork.of(given.total_steps, None, "--total-steps", "given")
    if given.total_samples is not None and samples_per_step > 0:
        steps = given.total_samples / samples_per_step
        return TotalWork.of(steps, None, "--total-samples", "given")
    if given.epochs is not None and (per_epoch := _steps_of_an_epoch(events)) is not None:
        return TotalWork.of(given.epochs * per_epoch, given.epochs, "--epochs", "given")
    stated = events.fact("total_work")
    if stated.get("steps"):
        return TotalWork.of(stated["steps"], None, "advisor.step(total_steps=...)", "certain")
    counted = count_rounds(events, is_finished=is_finished)
    if counted is not None:
        return counted
    found = _sightings(events)
    if not found or ("fit" in events.facts and has_rounds(events)):  # the loops around one fit
        return None
    for candidate in found[-1].get("candidates", []):
        epochs, sure = candidate.get("epochs"), candidate.get("confidence")
        steps = candidate.get("steps") or (epochs or 0) * (steps_per_epoch(events) or 0)
        if 0 < steps < MOST_TURNS:
            return TotalWork.of(steps, epochs, candidate["source"], sure)
        if "loops" in candidate:
            if steps := _of_rounds(candidate["loops"], found, events, samples_per_step):
                source, is_played = candidate["source"], bool(events.fact("environment"))
                return TotalWork.of(steps, None, source, "likely" if is_played else "weak")
            if length := of_loops(candidate["loops"], found, events):
                steps, per_epoch, sure = length
                epochs = steps / per_epoch if per_epoch else None
                return TotalWork.of(steps, epochs, candidate["source"], sure)
            if is_episodic(candidate["loops"]):  # an argument would say an episode's length
                return None
    return _from_arguments(found[-1].get("arguments", {}), events, samples_per_step)


def _of_rounds(
    loops: list[dict[str, Any]], found: list[dict[str, Any]], events: Events, samples: float
) -> float:
    """Return the steps of rounds of acting and learning, by the loop that counts their frames.

    A round has as many frames as were counted before the first update. It makes the updates that
    were seen until the next began; else those of the loops inside, where an unknown innermost one
    learns from each frame once. 0 where nothing counts frames.
    """
    where = loops[-1]["where"]
    seen = [loop for _, loop in _seen(_one_count(found), len(loops) - 1) if loop["where"] == where]
    first, last = (one.get("bound") or {"is_own": True} for one in (seen[0], seen[-1]))
    if first["is_own"] or last["is_own"] or first["counter"] < 1:
        return 0.0
    frames, rounds = first["counter"], math.ceil(last["limit"] / first["counter"])
    if last["counter"] % frames:  # it is counted between updates
        return 0.0
    played = events.fact("environment")
    if played.get("frames") and played["frames"] % frames == 0:
        return float(rounds * played["updates"] * frames / played["frames"])
    if not any(name in loops[-1]["text"] for name in fmt.LENGTHS["frames"]):
        return 0.0
    turns = [_turns(loop) for loop in loops[:-1]]
    if turns and turns[0] is None and 0 < samples <= frames:
        turns[0] = math.ceil(frames / samples)
    return float(rounds * math.prod(turns)) if all(turns) else 0.0  # type: ignore[arg-type]


def _sightings(events: Events) -> list[dict[str, Any]]:
    """Return what was seen of the work, loops with a number in place of no end made endless."""
    return [
        {**fact, "candidates": [_with_ends(one) for one in fact.get("candidates", [])]}
        for fact in events.facts.get("work", [])
    ]


def _with_ends(candidate: dict[str, Any]) -> dict[str, Any]:
    if "loops" not in candidate:
        return candidate
    loops = [
        {**loop, "turns": None, "is_endless": True} if (loop["turns"] or 0) >= MOST_TURNS else loop
        for loop in candidate["loops"]
    ]
    return {**candidate, "loops": loops}


def endless_loop(events: Events) -> str:
    """Return how the job is endless, or how long by the clock; "" where it is neither.

    Endless is the outermost loop around the steps if it never ends by itself.

    Neither has it a bound nor another way out. What other conditions decide, nobody knows.
    """
    found = _sightings(events)
    for candidate in found[-1].get("candidates", []) if found else []:
        for loop in candidate.get("loops", [])[-1:]:
            is_for = bool(loop.get("target"))
            is_open = (
                loop["turns"] is None and loop.get("bound") is None and not loop.get("may_end")
            )
            if is_open and (loop.get("is_endless") if is_for else loop["text"] in _ALWAYS):
                return f"endless ({'for' if is_for else 'while'} {loop['text']}, {loop['where']})"
    name, hours = _number(found[-1].get("arguments", {}) if found else {}, "hours")
    return f"{hours:g} h long, whatever is done in them (argument --{name})" if hours else ""


def as_it_ended(found: TotalWork | None, events: Events, given: GivenWork) -> TotalWork | None:
    """Return the length of a script that ran to its own end: what it was, whatever was found.

    What the user says is about the whole job, and stays; so does what was found and is right.
    Frameworks' own rounds know their end themselves.
    """
    is_said = given != GivenWork() or "total_work" in events.facts or has_rounds(events)
    is_right = found is not None and found.steps == events.completed
    if is_said or is_right or not events.completed or "obeyed" in events.facts:
        return found
    return TotalWork.of(events.completed, None, "the run finished by itself", "certain")


def _steps_of_an_epoch(events: Events) -> float | None:
    """Return the steps of an epoch: of the training loader's, else of a loop over epochs."""
    per_epoch = steps_per_epoch(events)
    if per_epoch is not None or events.loader_fact():
        return per_epoch
    found = _sightings(events)
    for candidate in found[-1].get("candidates", []) if found else []:
        if "loops" in candidate and (length := of_loops(candidate["loops"], found, events)):
            return length[1]
    return None


def length_options(seen: Recording) -> list[str]:
    """Return the options that can say how long the job of a recording is.

    ``--epochs`` needs the length of an epoch, ``--total-samples`` the samples of a step.
    """
    loading, work = seen.loading, seen.total_work
    has_loader = loading is not None and bool(loading.batches_per_epoch or loading.dataset_samples)
    has_epochs = has_loader or (work is not None and bool(work.epochs))
    epochs = ["--epochs"] if has_epochs else []
    return [*epochs, "--total-steps", *(["--total-samples"] if seen.step_samples else [])]


def length_hint(seen: Recording) -> str:
    """Return which options say how long the job is, as a sentence's object."""
    options = [f"{option} N" for option in length_options(seen)]
    return " or ".join([", ".join(options[:-1]), options[-1]] if options[1:] else options)


def unused(given: GivenWork, work: TotalWork | None, seen: Recording) -> str:
    """Return a warning if a length that was given could not be used; empty otherwise."""
    if work is not None and work.confidence == "given":
        return ""
    if given.epochs is not None:
        what = f"--epochs {given.epochs:g} has no effect: how many steps an epoch has was not seen"
    elif given.total_samples is not None:
        what = f"--total-samples {given.total_samples} has no effect: no batch size was seen"
    else:
        return ""
    return f"{what}; use {length_hint(seen)}"


def _from_arguments(
    arguments: dict[str, float], events: Events, samples_per_step: float
) -> TotalWork | None:
    """Fall back on an argument that says it: steps, or what makes so many of them.

    Epochs are of a loader of known length. Tokens are divided by those of a step. Frames of an
    environment are each trained on as often as there are passes over them, or a step comes after
    so many.
    """
    per_epoch = steps_per_epoch(events)
    tokens = _number(arguments, "tokens_per_step")[1]
    sequence = _number(arguments, "sequence")[1]
    if tokens <= sequence:  # none, or of samples
        tokens = (tokens or samples_per_step) * sequence
    frames = _number(arguments, "frames_per_step")[1]
    if not frames:
        frames = samples_per_step / max(_number(arguments, "passes")[1], 1.0)
    per_step = {
        "frames": frames, "steps": 1.0, "epochs": 1.0 / per_epoch if per_epoch else 0.0,
        "samples": samples_per_step, "tokens": tokens,
    }  # fmt: skip
    for kind, units in per_step.items():
        name, value = _number(arguments, kind)
        if value and units and value >= units:
            epochs = value if kind == "epochs" else None
            return TotalWork.of(value / units, epochs, f"argument --{name}", "weak")
    return None


def _number(arguments: dict[str, float], kind: str) -> tuple[str, float]:
    """Return the first argument of a kind that is a number of something, and it; else 0."""
    return next(
        (
            (name, float(value)) for name in fmt.LENGTHS[kind]
            if 0 < (value := arguments.get(name) or 0.0) < _MOST[kind]
        ),
        ("", 0.0),
    )  # fmt: skip


_MOST: Final = {**dict.fromkeys(fmt.LENGTHS, float(MOST_TURNS)), "tokens": 1e15, "frames": 1e12}
