"""One row of a recommendation in full: what it waits for, costs and assumes, and what it beats."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from advisor.domain import Bottleneck, Candidate, Recommendation
from advisor.errors import UsageError
from advisor.quantities import digits, hours_interval, hours_text, usd_interval, usd_text
from advisor.ranking.summary import offer_words
from advisor.ways.words import layout_words

REJECTED: Final = {
    "does_not_fit_in_memory": "do not fit in memory",
    "fewer_samples_than_workers": "have more workers than samples in a batch",
    "network_unknown": "have an unknown network (--known-network)",
    "no_time_model": "have no time model",
    "accelerator_not_supported": "have accelerators this script cannot use unchanged",
    "runs_on_one_machine": "are several machines for a program that runs on one",
    "over_quota": "are over your quota",
    "over_hourly": "cost more per hour than you allow (--max-hourly)",
    "no_checkpoints": "are spot machines for a job without checkpoints",
    "over_deadline": "are over the deadline",
    "over_budget": "are over the budget",
    "no_price": "have no price",
    "batch_does_not_divide": "have a number of devices that the batch does not divide over",
    "excluded_by_layout": "have no layout of the form asked for",
    "dominated": "are beaten in both time and cost",
    "too_little_gain": "gain too little over a row that is shown (--gain)",
}
_WAITS: Final[dict[Bottleneck, str]] = {
    "compute": "arithmetic (compute)",
    "memory": "reading and writing device memory (memory bandwidth)",
    "network": "devices exchanging gradients and activations (network)",
    "input": "waiting for data (input pipeline)",
    "launch": "the device waiting to be told what to do (kernel launches)",
    "pipeline": "waiting for other stages (pipeline bubble)",
    "offload": "moving states to host memory and back (offload)",
}
_PARTS: Final = {
    "start_up": "booting and starting",
    "data_in": "bringing in the data",
    "steps": "training steps",
    "epoch_ends": "ends of epochs (validation)",
    "whole_run": "evaluation, stalls, stops by hand",
    "checkpoints": "writing checkpoints",
    "interruptions": "failures and interruptions",
    "shortest_bill": "shortest bill",
    "storage": "storage",
    "results_out": "downloading the results",
}
_WORTH_SAYING: Final = 0.001
_NAME: Final = 36


def waits_words(bottleneck: Bottleneck) -> str:
    """Return what a step waits for in lay words, the term of the trade in brackets."""
    return _WAITS[bottleneck]


def part_words(name: str) -> str:
    """Return what a part of the job's time and cost is."""
    return _PARTS.get(name, name)


def alternatives_words(one: Candidate, most: int = 2) -> str:
    """Name the nearest alternatives, and say how many more there are."""
    if not one.alternatives:
        return ""
    own = one.configuration.parts[0][0]
    named = []
    for other in one.alternatives[:most]:
        offer, count = other.configuration.parts[0]
        place = f"{offer.provider} {offer.region}"
        is_region = offer.instance_type == own.instance_type and offer.provider == own.provider
        named.append(offer.region if is_region else f"{count} x {offer.instance_type} ({place})")
    more = len(one.alternatives) - len(named)
    if not named:
        return f"or {more} other{'s' if more > 1 else ''} (--explain {one.rank})"
    return f"or {', '.join(named)}" + (f" and {more} more" if more else "")


def text(recommendation: Recommendation, rank: int, *, width: int = 80) -> str:
    """Return everything that is known of one row.

    Raises
    ------
    UsageError
        If there is no such row.
    """
    rows = recommendation.front or recommendation.nearest
    one = next((row for row in rows if row.rank == rank), None)
    if one is None:
        raise UsageError(
            f"there is no row {rank}", hint=f"give 1 to {len(rows)}" if rows else "nothing to rent"
        )
    return "\n".join(_lines(recommendation, one, max(width, 40)))


def _lines(recommendation: Recommendation, one: Candidate, width: int) -> Iterator[str]:
    yield from _wrapped(f"{one.rank}: {offer_words(one.configuration)}", width)
    time, cost = hours_interval(one.training_time_h), usd_interval(one.cost_usd)
    yield _pair("time", f"{time[0]} ({time[1]})")
    yield _pair("cost", f"{cost[0]} ({cost[1]})")
    step = one.step_time_s
    yield _pair("step", f"{digits(1e3 * step.value)} ms "
                f"({digits(1e3 * step.low)}-{digits(1e3 * step.high)})")  # fmt: skip
    yield _pair("samples a second", digits(one.throughput_samples_per_s.value))
    yield _pair("memory of a device", f"{digits(one.memory_gib)} GiB")
    yield from _wrapped(_pair("layout", layout_words(one.layout)), width, _NAME)
    yield from ("", "what a step goes to")
    for name, share in sorted(one.shares.items(), key=lambda item: -item[1]):
        if share >= _WORTH_SAYING:
            yield f"  {share:>5.1%}  {waits_words(name)}"
    yield from _breakdown(one)
    yield from ("", "why it is on the list, and what it assumes")
    for said in dict.fromkeys(one.reasons):
        yield from _wrapped(f"  - {said}", width, 4)
    if one.alternatives:
        yield from ("", "what the model cannot tell apart from it")
        for other in one.alternatives:
            price = f"{hours_text(other.training_time_h)}, {usd_text(other.cost_usd)}"
            yield from _wrapped(f"  {offer_words(other.configuration)}: {price}", width, 4)
    yield from _looked_at(recommendation, width)


def _breakdown(one: Candidate) -> Iterator[str]:
    yield from ("", "where time and cost go")
    for name, part in one.breakdown.items():
        has_cost = part.cost_usd is not None and part.cost_usd > _WORTH_SAYING * one.cost_usd.value
        if part.time_h > _WORTH_SAYING * one.training_time_h.value or has_cost:
            time = hours_text(part.time_h) if part.time_h > 0 else ""
            cost = usd_text(part.cost_usd) if part.cost_usd else ""
            yield f"  {part_words(name):{_NAME - 2}}{time:>10}{cost:>12}"
    for bill in one.bills:
        yield (
            f"  {f'rented {bill.pricing}':{_NAME - 2}}{hours_text(bill.time_h):>10}"
            f"{usd_text(bill.price_usd_per_h):>12}/h"
        )


def _looked_at(recommendation: Recommendation, width: int) -> Iterator[str]:
    yield from ("", f"{recommendation.considered:,} candidates of "
                f"{recommendation.catalogue_offers:,} offers, prices of "
                f"{recommendation.catalogue_as_of}")  # fmt: skip
    for reason, number in sorted(recommendation.rejected.items(), key=lambda item: -item[1]):
        yield f"  {number:>10,} {REJECTED.get(reason, reason)}"
    yield from ("", "notes") if recommendation.notes else ()
    for note in recommendation.notes:
        yield from _wrapped(f"  - {note}", width, 4)


def _pair(name: str, value: str) -> str:
    return f"{name:{_NAME}}{value}"


def _wrapped(words: str, width: int, indent: int = 0) -> list[str]:
    return textwrap.wrap(
        words, width, subsequent_indent=" " * indent, break_on_hyphens=False,
        break_long_words=False, drop_whitespace=True, replace_whitespace=False,
    )  # fmt: skip
