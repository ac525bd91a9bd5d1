"""What would change the answer, and what its error is known to be.

Changes are asked of the same estimate; an error is as it was stored when last measured
(``known_error``).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

from advisor import data
from advisor.advice import FASTER, FEEDING, Advice, Facts, facts_here, facts_on
from advisor.advice import cures_for as cures
from advisor.answer import Candidate, Estimate, KnownError, ProposedChange
from advisor.ask import Constraints
from advisor.catalogue import Catalogue
from advisor.collectors import bounded
from advisor.collectors.format import Recording
from advisor.estimate import BESIDE_WAYS, SPACE, Predictor
from advisor.jobs import NO_LENGTH, Job
from advisor.machines import suite_device
from advisor.words import card_name

# The best value of another job, and what is listed first (0) or last (-1) under other limits.
AskAgain = Callable[[Job], Candidate | None]
Limited = Callable[..., Candidate | None]
# A change of the answer, and the advice that it rests on.
Cured = tuple[ProposedChange, Advice]
# Effects below this on time and cost are not worth a line.
LEAST_EFFECT: Final = 0.05
# Share of a listed row's step from which waiting for data is looked into.
_WAITS: Final = 0.05
# What holds of the script as it is: the answer assumes that it is changed.
_ASSUMED: Final = ("device", "ddp")


def changes(
    job: Job, request: Constraints, predictor: Predictor, chosen: Candidate,
    here: Candidate | None,
    front: Sequence[Candidate] = (), *, recording: Recording | None = None,
    ask: AskAgain | None = None,
) -> tuple[ProposedChange, ...]:  # fmt: skip
    """Return what would make the chosen machines faster or cheaper, the largest gain first.

    ``recording``: what was seen of the job: more cures can be shown to apply; ``ask``: the best
    value of another job: the strongest change then says which machines that is after it.
    """
    if len(chosen.configuration.parts) != 1:
        return ()
    facts = facts_on(predictor, job, chosen, recording, constraints=request)
    found = _cured(cures(facts), facts)
    if ask is not None:
        found += _fed(facts, predictor, front, ask)
    return (
        *_device(job, chosen, here), *_spread(job, chosen, front), *_repicked(found, facts, ask)
    )  # fmt: skip


def changes_here(
    job: Job, request: Constraints, predictor: Predictor, *, recording: Recording | None = None
) -> tuple[ProposedChange, ...]:
    """Return what would make the job faster on this machine, or cheaper; see ``changes``."""
    facts = facts_here(predictor, job, recording, constraints=request)
    if facts is None:
        return ()
    return tuple(_repicked(_cured(cures(facts, FASTER), facts), facts, None))


def _cured(found: Sequence[Advice], facts: Facts) -> list[Cured]:
    return [(change, one) for one in found if (change := _proposed(one, facts)) is not None]


def _fed(
    facts: Facts, predictor: Predictor, front: Sequence[Candidate], ask: AskAgain
) -> Iterator[Cured]:
    """Go through what mends the feed where listed machines wait for data; the best value after it.

    Several devices share the loading: where they are the best value because of that, they hardly
    gain by it, and fewer of them are the best value then.
    """
    best: dict[str, Advice] = {}
    for one in front:
        if len(one.configuration.parts) == 1 and one.shares.get("input", 0.0) >= _WAITS:
            there = facts_on(
                predictor, facts.job, one, facts.recording, constraints=facts.constraints
            )
            for advice in cures(there, FEEDING):
                if advice.name not in best or advice.strength > best[advice.name].strength:
                    best[advice.name] = advice
    for advice in best.values():
        pick = None if advice.job is None else ask(advice.job)
        if pick is None:
            continue
        is_other = _machines(pick) != _machines(facts.now)
        change = _change(advice.name, _do(advice), pick, facts.now)
        if _worth(change) < 1.0 - LEAST_EFFECT:
            yield replace(change, pick=pick if is_other else None), advice


def relaxed(
    request: Constraints, chosen: Candidate, front: Sequence[Candidate],
    rejected: Mapping[str, int], ask: Limited,
) -> tuple[ProposedChange, ...]:  # fmt: skip
    """Return what twice the budget and twice the time would buy, where the limits bind.

    ``rejected``: candidates by what ruled them out.
    """
    found = []
    for name, limit, place, of, now in (
        ("budget", "budget_usd", 0, "training_time_h", front[:1]),
        ("deadline", "deadline_h", -1, "cost_usd", front[-1:]),
    ):
        bound = getattr(request, limit)
        if bound is None or not rejected.get(f"over_{name}"):
            continue
        more = ask(place, **{limit: 2.0 * bound})
        if more and _gains(getattr(more, of), getattr(now[0], of)):
            flag = f"--{name} {2.0 * bound:g}{'h' if name == 'deadline' else ''}"
            found.append(_change(name, flag, more, chosen))
    return tuple(found)


def mixed(
    request: Constraints, chosen: Candidate, front: Sequence[Candidate], ask: Limited
) -> tuple[ProposedChange, ...]:
    """Return what unlike machines together would take, where they were left out."""
    if request.mixed is not False:
        return ()
    best = ask(0, mixed=None)
    if best is None or not _gains(best.training_time_h, front[0].training_time_h):
        best = ask(-1, mixed=None)
        if best is None or not _gains(best.cost_usd, front[-1].cost_usd):
            return ()
    return (_change("mixed", "unlike machines together (without --no-mixed)", best, chosen),)


def swapped(
    request: Constraints, catalogue: Catalogue, chosen: Candidate, front: Sequence[Candidate],
    ask: Limited,
) -> tuple[ProposedChange, ...]:  # fmt: skip
    """Return what own consumer cards that swap layers would reach (ATOM), if that is faster."""
    offers = [offer for one in front for offer, _ in one.configuration.parts]
    names = {one.accelerator for one in offers if one.accelerator and one.price_kind == "own"}
    space = request.space or SPACE
    if space.swaps or not any(catalogue.accelerators[name].is_consumer for name in names):
        return ()
    best = ask(0, space=replace(space, swaps=True))
    if best is None or best.way not in {way.name for way in BESIDE_WAYS}:
        return ()
    if not _gains(best.training_time_h, front[0].training_time_h):
        return ()
    (offer, count), *_ = best.configuration.parts
    do = (
        f"{best.way} (ATOM) on {count} x {offer.instance_type}, weights averaged every "
        f"{best.layout.average_every} steps; no released framework does it, and advisor plan "
        f"--cluster '{count}x {offer.instance_type}' has the pipelines beside it"
    )
    return (_change("unreleased", do, best, chosen),)


def unreleased(
    job: Job, request: Constraints, predictor: Predictor, chosen: Candidate,
    front: Sequence[Candidate],
) -> tuple[ProposedChange, ...]:  # fmt: skip
    """Return what a system without a released framework would reach on listed unlike machines.

    The best of them where no row that is listed is as fast and as cheap.
    """
    found = [
        reached
        for one in front
        if len(one.configuration.parts) > 1
        and (reached := _reached(job, request, predictor, one, chosen)) is not None
        and not any(
            listed.training_time_h.value <= reached.training_time_h.value
            and listed.cost_usd.value <= reached.cost_usd.value
            for listed in front
        )
    ]
    return tuple(sorted(found, key=_worth)[:1])


def _reached(
    job: Job, request: Constraints, predictor: Predictor, one: Candidate, chosen: Candidate
) -> ProposedChange | None:
    """Return the row trained as no released framework can; None where that is no faster."""
    from advisor.estimate import best_unreleased, model_on  # of unlike machines alone
    from advisor.machines import group_of_type

    catalogue = predictor.catalogue
    cluster = tuple(
        group_of_type(catalogue.instance_type(f"{o.provider}:{o.instance_type}"), n, catalogue)
        for o, n in one.configuration.parts
    )
    case = predictor.case(job, space=request.space, known_network=request.known_network)
    best = best_unreleased(model_on(case, cluster), cluster, global_batch=job.global_batch)
    if best is None or best.step_time_s.value >= one.step_time_s.value:
        return None
    factor = best.step_time_s.value / one.step_time_s.value
    then = replace(
        one, training_time_h=one.training_time_h.scaled(factor),
        cost_usd=one.cost_usd.scaled(factor),
    )  # fmt: skip
    do = (
        f"what a system without a released framework ({best.name}) would reach on the machines of "
        f"#{one.rank}: {best.details['split']}"
    )
    return _change("unreleased", do, then, chosen)


def by_worth(found: Sequence[ProposedChange]) -> tuple[ProposedChange, ...]:
    """Return the two that save most, then what the answer assumes, then all else by its worth.

    The worth of a change is what it makes of time and cost together.
    """
    ordered = sorted(found, key=_worth)
    assumed = [one for one in found if one.name in _ASSUMED]
    others = [one for one in ordered if one.name not in _ASSUMED]
    return (*others[:2], *assumed, *others[2:])


def _worth(one: ProposedChange) -> float:
    return one.time_factor * one.cost_factor


def _gains(then: Estimate, now: Estimate) -> bool:
    return then.value < (1.0 - LEAST_EFFECT) * now.value


def _proposed(one: Advice, facts: Facts) -> ProposedChange | None:
    """Return a cure that makes the job clearly faster or cheaper as a change of the answer."""
    factors = [one.time_factor, *([one.cost_factor] if facts.now.cost_usd.value > 0 else [])]
    if min(factors) >= 1.0 - LEAST_EFFECT:
        return None
    if one.then is not None and not facts.is_here:
        return _change(one.name, _do(one), one.then, facts.now)
    # On this machine what is recorded and what the model says are two numbers of one thing.
    found, now = _change(one.name, _do(one), facts.now, facts.now), facts.now
    return replace(
        found, time_factor=one.time_factor, cost_factor=one.cost_factor,
        training_time_h=now.training_time_h.scaled(one.time_factor),
        cost_usd=now.cost_usd.scaled(one.cost_factor),
    )  # fmt: skip


def _do(one: Advice) -> str:
    words = one.change.removesuffix(".")
    return words[:1].lower() + words[1:]


def _repicked(found: Sequence[Cured], facts: Facts, ask: AskAgain | None) -> list[ProposedChange]:
    """Return each change once, where it is worth most, the strongest first.

    The strongest says the best value after it, where that is on other machines.
    """
    best: dict[str, Cured] = {}
    for one in sorted(found, key=lambda one: _worth(one[0])):
        best.setdefault(one[0].name, one)
    changes = [change for change, _ in best.values()]
    is_open = bool(changes) and changes[0].pick is None
    job = next((advice.job for _, advice in best.values()), None) if is_open else None
    pick = None if ask is None or job is None or job is facts.job else ask(job)
    if pick is not None and _machines(pick) != _machines(facts.now):
        changes[0] = replace(changes[0], pick=pick)
    return changes


def _machines(one: Candidate) -> tuple[tuple[str, str, str, int], ...]:
    parts = one.configuration.parts
    return tuple((o.provider, o.instance_type, o.pricing, count) for o, count in parts)


def _change(name: str, do: str, one: Candidate, chosen: Candidate) -> ProposedChange:
    before_h, before_usd = chosen.training_time_h.value, chosen.cost_usd.value
    cost = one.cost_usd.value
    return ProposedChange(
        name=name,
        do=do,
        training_time_h=one.training_time_h,
        cost_usd=one.cost_usd,
        time_factor=one.training_time_h.value / before_h,
        cost_factor=cost / before_usd if before_usd > 0 else 1.0,
    )


def _spread(job: Job, chosen: Candidate, front: Sequence[Candidate]) -> tuple[ProposedChange, ...]:
    """Return what the script needs to train on several devices: the answer assumes it."""
    alone = [one for one in front if one.layout.devices == 1]
    if job.told is None or job.told.spreads or chosen.layout.devices == 1 or not alone:
        return ()
    best = min(alone, key=lambda one: one.training_time_h.value * one.cost_usd.value)
    do = (
        f"without DDP or FSDP in the script, take #{best.rank} (advisor plan prints what it needs)"
    )
    return (_change("ddp", do, best, chosen),)


def _device(job: Job, chosen: Candidate, here: Candidate | None) -> tuple[ProposedChange, ...]:
    """Return what the script needs to use an accelerator at all: the answer assumes it."""
    offer, _ = chosen.configuration.parts[0]
    if job.told is None or not job.told.change or offer.accelerator is None or here is None:
        return ()
    do = f"the script as it is, on this machine; for a GPU {job.told.change} ({job.told.reason})"
    return (replace(_change("device", do, here, chosen), cost_factor=1.0),)


_ERROR: Final = ": median APE"
_ROWS: Final = ": rows"
# How a job is known -> the protocol that asks it so, and such jobs in words.
ASKED: Final[Mapping[str, tuple[str | None, str]]] = {
    "described": ("described", "described jobs"),
    "laid out": ("layouts", "described transformers"),
    "fine-tuned": ("finetune", "described fine-tuning"),
    "runs": ("gpu", "jobs known by their runs elsewhere"),
    "one run": ("instance", "jobs with one run on a GPU"),
    "on a GPU": ("instance", "jobs with one run on a GPU"),
    "on a CPU": ("recorded", "scripts recorded on a CPU"),
    # Its operators are those of a recording (tests/test_rehearsal.py).
    "rehearsed": ("recorded", "scripts recorded on a CPU (a rehearsal sees the same)"),
    "as a program": (None, "a job of which only the whole run is known"),
}


_BY_BAND: Final = ("layouts", "finetune")  # whose errors are told by the number of devices


@cache
def stored_errors(protocol: str) -> tuple[Mapping[str, Any], str]:
    """Return the stored record of a protocol and its day; nothing where none is stored.

    A protocol whose measurements do not ship has figures of a copy that was fetched.
    """
    folder = data.root("datasets") / "accuracy"
    for path in (folder / f"{protocol}.json", folder / "fetched" / f"{protocol}.json"):
        try:
            record = bounded.read_json(path)
            return record["record"], str(record["day"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return {}, ""


# Numbers of devices that errors are told apart by: the largest of each band.
_BANDS: Final = (1, 8, 64, 512)
# A whole job that takes longer is looked up among training campaigns, not among steps. [h]
_CAMPAIGN_H: Final = 24.0
_LEAST_ROWS: Final = 5


def device_band(devices: float) -> str:
    """Return the numbers of devices whose errors are looked up together.

    >>> device_band(1), device_band(16), device_band(2048)
    ('1 device', '9 to 64 devices', 'more than 512 devices')
    """
    if devices <= 1:
        return "1 device"
    for low, high in itertools.pairwise(_BANDS):
        if devices <= high:
            return f"{low + 1} to {high} devices"
    return f"more than {_BANDS[-1]} devices"


def known_error(job: Job, one: Candidate, catalogue: Catalogue) -> KnownError | None:
    """Return the error of such jobs on as many accelerators of the family; None unmeasured.

    It says how far estimates of such jobs were off on such hardware, as stored when last measured:

    ======================================  =============  ======================================
    how the job is known                    protocol       asked as
    ======================================  =============  ======================================
    described, never run, one device        ``described``  a description, accelerator left out
    described transformer, several devices  ``layouts``    as typed, its table left out
    fine-tuned transformer, described       ``finetune``   model, batch, GPUs, the model left out
    several runs elsewhere, one device      ``gpu``        all its other runs, its chip left out
    one run or recording on a GPU           ``instance``   one run on a T4, the GPU never seen
    recorded on a CPU, or rehearsed         ``recorded``   image networks, the GPU left out
    described, days on many devices         ``campaigns``  whole training runs, family left out
    ======================================  =============  ======================================

    All but the last are errors of a step. What no protocol asks as the user does, on as many
    devices, is said to be unmeasured, in words. The figures ship in ``datasets/accuracy``.

    ``one``: its first part's accelerators count.
    """
    name = one.configuration.parts[0][0].accelerator if one.configuration.parts else None
    own = None if name is None else catalogue.accelerators.get(name)
    devices = _devices(one)
    known, band, of = how_known(job, devices=devices), device_band(devices), "step"
    protocol, jobs = ASKED[known]
    if own is None or protocol is None:
        return None
    is_long = job.total_source != NO_LENGTH and one.training_time_h.value > _CAMPAIGN_H
    if known == "laid out" and is_long and devices > _BANDS[1]:
        protocol, jobs, band, of = "campaigns", "whole training runs", "all sizes", "whole job"
    elif protocol not in _BY_BAND and devices > 1:
        return None  # its rows are of one device
    record, day = stored_errors(protocol)
    key = f"{own.architecture}, {band}" if protocol in _BY_BAND else own.architecture
    found = _overall(record) if of == "whole job" else errors_told(record, catalogue).get(key)
    if found is None:
        return None
    error, accelerators, rows = found
    return KnownError(
        family=f"{own.vendor} {own.architecture}", median_ape_fraction=error,
        accelerators=accelerators, rows=rows, protocol=protocol, day=day, jobs=jobs, devices=band,
        of=of,
    )  # fmt: skip


def _overall(record: Mapping[str, Any]) -> tuple[float, int, int] | None:
    """Return the error of all rows of a protocol, as ``errors_told`` does of a family."""
    found = record.get("overall", {})
    error, rows = found.get("median_ape_fraction"), int(found.get("rows", 0))
    return None if error is None or rows < _LEAST_ROWS else (float(error), 0, rows)


def errors_told(
    record: Mapping[str, Any], catalogue: Catalogue
) -> dict[str, tuple[float, int, int]]:
    """Return what is told of a protocol: its median error, accelerators and rows.

    By chip family; by family and number of devices (enough rows) where the rows are of several.
    """
    if record.get("protocol") in _BY_BAND:
        bands = _figures_by_name(record)
        return {name: (error, 0, rows) for name, error, rows in bands if rows >= _LEAST_ROWS}
    found: dict[str, list[tuple[float, int]]] = {}
    for card, error, rows in _by_card(record):
        if seen := catalogue.accelerators.get(card):
            found.setdefault(seen.architecture, []).append((error, rows))
    return {
        name: (statistics.median(e for e, _ in own), len(own), sum(rows for _, rows in own))
        for name, own in found.items()
    }


def _devices(one: Candidate) -> float:
    return sum(offer.accelerators * count for offer, count in one.configuration.parts)


def how_known(job: Job, *, devices: float = 1) -> str:
    """Return how a job is known, as a key of ``ASKED``."""
    if job.actuals:
        return "runs" if len(job.actuals) > 1 else "one run"
    if job.work is None:
        return "as a program"
    if job.measured is not None:
        return "on a GPU" if job.measured.device == "cuda" else "on a CPU"
    if job.is_rehearsed:
        return "rehearsed"
    setup = job.work.setup
    if job.work.transformer is None:
        return "described"
    if setup.has_adapters or setup.stack == "trainer":
        return "fine-tuned"
    return "laid out" if devices > 1 else "described"


def unmeasured_words(job: Job, one: Candidate) -> str:
    """Return in words what no protocol has measured of such a job on such machines."""
    name = one.configuration.parts[0][0].accelerator if one.configuration.parts else None
    devices = _devices(one)
    where = "other machines without a GPU"
    if name is not None:
        where = card_name(name) if devices <= 1 else f"{devices:,.0f} x {card_name(name)}"
    known = ASKED[how_known(job, devices=devices)][1]
    return (
        f"We have no test results on {where} for {known}. Expect the true value inside the range, "
        "not at the estimate."
    )


def _by_card(record: Mapping[str, Any]) -> Iterator[tuple[str, float, int]]:
    """Yield accelerators of the catalogue with their error and rows, as a protocol has them."""
    groups = [(suite_device(str(one["group"])), one) for one in record.get("groups", [])]
    if any(device is not None for device, _ in groups):
        for device, one in groups:
            if device is not None:
                yield device.name, float(one["median_ape_fraction"]), int(one["rows"])
        return
    yield from _figures_by_name(record)  # groups are models: accelerators stand here


def _figures_by_name(record: Mapping[str, Any]) -> Iterator[tuple[str, float, int]]:
    """Yield what has an error and rows among a protocol's figures."""
    figures = record.get("figures", {})
    for name in (one.removesuffix(_ERROR) for one in figures if one.endswith(_ERROR)):
        if name + _ROWS in figures:
            yield name, float(figures[name + _ERROR]), int(figures[name + _ROWS])
