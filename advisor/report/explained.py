"""One row of a recommendation in full: what it waits for, costs and assumes, and what it beats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from advisor import words
from advisor.errors import UsageError
from advisor.quantities import digits, hours_text, usd_text
from advisor.words import wrapped

Record = Mapping[str, Any]

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
    "not_asked": "mix types of machines and were not estimated (--mixed estimates all)",
    "too_little_gain": "gain too little over a row that is shown (--gain)",
}
_WAITS: Final[dict[str, str]] = {
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


def waits_words(bottleneck: str) -> str:
    """Return what a step waits for in lay words, the term of the trade in brackets."""
    return _WAITS[bottleneck]


def part_words(name: str) -> str:
    """Return what a part of the job's time and cost is."""
    return _PARTS.get(name, name)


def alternatives_words(one: Record, most: int = 2) -> str:
    """Name the nearest alternatives, and say how many more there are."""
    others = one["alternatives"]
    if not others:
        return ""
    own = one["configuration"][0]
    named = []
    for other in others[:most]:
        part = other["configuration"][0]
        place = f"{part['provider']} {part['region']}"
        is_region = all(part[name] == own[name] for name in ("instance_type", "provider"))
        named.append(part["region"] if is_region else f"{words.machine(part)} ({place})")
    more = len(others) - len(named)
    if not named:
        return f"or {more} other{'s' if more > 1 else ''} (--explain {one['rank']})"
    return f"or {', '.join(named)}" + (f" and {more} more" if more else "")


def text(record: Record, rank: int, *, width: int = 80) -> str:
    """Return everything that is known of one row of the record of ``advisor recommend --json``.

    Raises
    ------
    UsageError
        If there is no such row.
    """
    rows = record["front"] or record["nearest"]
    one = next((row for row in rows if row["rank"] == rank), None)
    if one is None:
        raise UsageError(
            f"there is no row {rank}", hint=f"give 1 to {len(rows)}" if rows else "nothing to rent"
        )
    return "\n".join(_lines(record, one, max(width, 40)))


def _lines(record: Record, one: Record, width: int) -> Iterator[str]:
    yield from wrapped(f"{one['rank']}: {words.offer_words(one['configuration'])}", width)
    yield _pair("time", words.time_text(one))
    yield _pair("cost", words.cost_text(one))
    step = {name: 1e3 * one["step_time_s"][name] for name in ("value", "low", "high")}
    bounds = f"{digits(step['low'])}-{digits(step['high'])}"
    yield _pair("step", f"{digits(step['value'])} ms ({bounds})")
    yield _pair("samples a second", digits(one["throughput_samples_per_s"]["value"]))
    yield _pair("memory of a device", f"{digits(one['memory_gib'])} GiB")
    layout = words.layout_words(one["layout"])
    yield from wrapped(_pair("layout", layout), width, indent=" " * _NAME)
    yield from ("", "what a step goes to")
    for name, share in sorted(one["shares"].items(), key=lambda item: -item[1]):
        if share >= _WORTH_SAYING:
            yield f"  {share:>5.1%}  {waits_words(name)}"
    yield from _breakdown(one)
    yield from ("", "why it is on the list, and what it assumes")
    for said in dict.fromkeys(one["reasons"]):
        yield from wrapped(f"  - {said}", width, indent="    ")
    if one["alternatives"]:
        yield from ("", "what the model cannot tell apart from it")
        for other in one["alternatives"]:
            price = f"{hours_text(other['training_time_h'])}, {usd_text(other['cost_usd'])}"
            machines = words.offer_words(other["configuration"])
            yield from wrapped(f"  {machines}: {price}", width, indent="    ")
    yield from _looked_at(record, width)


def _breakdown(one: Record) -> Iterator[str]:
    yield from ("", "where time and cost go")
    least_h, least_usd = (
        _WORTH_SAYING * one[name]["value"] for name in ("training_time_h", "cost_usd")
    )
    for name, part in one["breakdown"].items():
        if part["time_h"] > least_h or (part["cost_usd"] or 0.0) > least_usd:
            time = hours_text(part["time_h"]) if part["time_h"] > 0 else ""
            cost = usd_text(part["cost_usd"]) if part["cost_usd"] else ""
            yield f"  {part_words(name):{_NAME - 2}}{time:>10}{cost:>12}"
    for bill in one["bills"]:
        rented = f"rented {bill['pricing']}"
        time, price = hours_text(bill["time_h"]), usd_text(bill["price_usd_per_h"])
        yield f"  {rented:{_NAME - 2}}{time:>10}{price:>12}/h"


def _looked_at(record: Record, width: int) -> Iterator[str]:
    catalogue = record["catalogue"]
    yield from ("", f"{record['considered']:,} candidates of {catalogue['offers']:,} offers, "
                f"prices of {catalogue['as_of']}")  # fmt: skip
    for reason, number in sorted(record["rejected"].items(), key=lambda item: -item[1]):
        yield f"  {number:>10,} {REJECTED.get(reason, reason)}"
    yield from ("", "notes") if record["notes"] else ()
    for note in record["notes"]:
        yield from wrapped(f"  - {note}", width, indent="    ")


def _pair(name: str, value: str) -> str:
    return f"{name:{_NAME}}{value}"
