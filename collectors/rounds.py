"""Training without torch's optimizers: what its rounds are, how many, and how alike they are.

=========  ====================================================================================
name       meaning
=========  ====================================================================================
fit        one training loop of a framework, told at its begin with the rounds it will make
site       the line of the user's script that fits: a loop around it makes one fit a turn
spread     |mean of the last fifth of the rounds seen / mean of all - 1|: how far the rounds to
           come may be from those seen, as trees grow and searches reach larger models
cores      busy cores between the first round and the last: CPU time over time not spent waiting
=========  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from advisor.collectors.events import Events
from advisor.collectors.hooks import format as fmt
from advisor.collectors.recording import Reading, Rounds, StepTime, TotalWork

_FIFTH = 5
_BUSY_GPU = 0.02  # a desktop's drawing stays below
_CLOCKS = (fmt.CLOCK_FIT, fmt.CLOCK_ROUND)


def has_rounds(events: Events) -> bool:
    """Whether the steps are rounds of a framework without torch's optimizers."""
    return events.clock in _CLOCKS


def rounds_of(
    events: Events, step: StepTime | None, readings: Sequence[Reading], start_ns: int
) -> Rounds | None:
    """Return what is known of the rounds; None if the steps are an optimizer's or the script's."""
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

    Parameters
    ----------
    is_finished : bool
        Whether the script ran to its own end, with hooks: then all rounds were seen.
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
