"""A recommendation as text for a terminal of any width."""

from __future__ import annotations

import math

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from advisor.domain import QUANTILES, Candidate, Offer, Recommendation
from advisor.quantities import digits, hours_interval, usd_interval
from advisor.ways.columns import SWAPPING, WAYS
from advisor.ways.words import degrees

# From this width on the throughput has a column; below the other one the place has none.
_WIDE = 110
_NARROW = 100
_REJECTED = {
    "does_not_fit_in_memory": "do not fit in memory",
    "fewer_samples_than_workers": "have more workers than samples in a batch",
    "network_unknown": "have an unknown network (--known-network)",
    "no_time_model": "have no time model",
    "accelerator_not_supported": "have accelerators this script cannot use unchanged",
    "runs_on_one_machine": "are several machines for a program that runs on one",
    "over_quota": "are over your quota",
    "no_checkpoints": "are spot machines for a job without checkpoints",
    "over_deadline": "are over the deadline",
    "over_budget": "are over the budget",
    "no_price": "have no price",
    "batch_does_not_divide": "have a number of devices that the batch does not divide over",
    "excluded_by_layout": "have no layout of the form asked for",
    "dominated": "are beaten in both time and cost",
}

_COMPLETIONS = {"spot-with-fallback": "spot, else on demand", "elastic-spot": "spot, elastic"}


def show(recommendation: Recommendation, console: Console) -> None:
    """Print the list, or the nearest misses where nothing satisfies the constraints."""
    candidates = recommendation.front or recommendation.nearest
    parts: list[RenderableType] = [_job_line(recommendation)]
    if not recommendation.front:
        parts.append(Text("Nothing satisfies the constraints. The nearest misses:"))
    if candidates:
        parts.append(_table(candidates, console.width))
        parts.append(_reasons(candidates))
    parts.append(_rejected(recommendation))
    parts += [Text(f"note: {note}") for note in recommendation.notes]
    console.print(Group(*parts))


def show_probes(recommendation: Recommendation, console: Console) -> None:
    """Print which short real runs are worth their price, and what to do with what they show."""
    if not recommendation.probes:
        console.print(Text("\nprobe: no short run is worth its price; the choice is clear enough"))
        return
    lines = [Text("")]
    for probe in recommendation.probes:
        offer = probe.offer
        before, after = (
            math.expm1(QUANTILES[0.9] * sd) for sd in (probe.log_sd_before, probe.log_sd_after)
        )
        lines.append(Text(
            f"probe: {probe.minutes:.0f} min on 1 x {offer.instance_type} ({offer.provider} "
            f"{offer.region}) for ${digits(probe.price_usd)} saves ${digits(probe.gain_usd)} on "
            f"average; the choice is then known to +{after:.0%} in place of +{before:.0%} (90%)"
        ))  # fmt: skip
    name = recommendation.probes[0].offer.instance_type
    lines.append(Text(f"then: advisor runs actual {recommendation.run} {name} --step-time 250ms"))
    console.print(Group(*lines))


def _job_line(recommendation: Recommendation) -> Text:
    job = recommendation.job
    if job["is_program"] and "rounds" not in job:
        return Text(
            f"run {recommendation.run}: a program without training steps, "
            f"{digits(job['measured_step_s'])} s on {job['measured_on']}"
        )
    steps = f"{job['total_steps']:,.0f} steps of {job['global_batch']} samples"
    if (rounds := job.get("rounds")) is not None:
        steps = f"{job['total_steps']:,.0f} {rounds['unit']}s of {rounds['kind']}"
    what = "step" if rounds is None else rounds["unit"]
    source = job["total_steps_source"]
    if "measured_step_s" not in job:
        return Text(f"{recommendation.run}: {steps} ({source}); described, nothing measured")
    return Text(
        f"run {recommendation.run}: {steps} ({source}); "
        f"{digits(1000 * job['measured_step_s'])} ms a {what} measured on {job['measured_on']}"
    )


def _table(candidates: tuple[Candidate, ...], width: int) -> Table:
    is_wide, is_narrow = width >= _WIDE, width < _NARROW
    coverage = candidates[0].cost_usd.coverage
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("", justify="right")
    table.add_column("configuration", overflow="fold", ratio=3)
    if not is_narrow:
        table.add_column("where", overflow="fold", ratio=2)
    table.add_column(f"time ({coverage:.0%})", justify="right")
    table.add_column(f"cost USD ({coverage:.0%})", justify="right")
    if is_wide:
        table.add_column("samples/s", justify="right")
    table.add_column("limited by")
    for candidate in candidates:
        time, time_range = hours_interval(candidate.training_time_h)
        cost, cost_range = usd_interval(candidate.cost_usd)
        cells = [str(candidate.rank), _configuration(candidate, names_place=is_narrow)]
        if not is_narrow:
            places = [_where(offer, candidate) for offer, _ in candidate.configuration.parts]
            cells.append("\n".join(places))
        cells += [f"{time}\n{time_range}", f"{cost}\n{cost_range}"]
        if is_wide:
            cells.append(digits(candidate.throughput_samples_per_s.value))
        mark = " *" if candidate.is_extrapolating else ""
        table.add_row(*(escape(cell) for cell in (*cells, candidate.bottleneck + mark)))
    return table


def _configuration(candidate: Candidate, *, names_place: bool) -> str:
    """Return the machines, where they are if there is no column for it, and their layout."""
    machines = []
    for offer, count in candidate.configuration.parts:
        place = _where(offer, candidate).replace("\n", ", ") if names_place else ""
        machines.append(_machine(offer, count) + (f"\n  {place}" if place else ""))
    shared = degrees(candidate.layout)
    if candidate.way == WAYS[SWAPPING]:
        shared = f"{shared}, {candidate.way}"
    return "\n+ ".join(machines) + ("" if shared == "one device" else f"\n  {shared}")


def _machine(offer: Offer, count: int) -> str:
    if offer.accelerator is None:
        inside = f"{offer.vcpus} vCPU, {offer.memory_gib:g} GiB"
    else:
        inside = f"{offer.accelerators:g} x {offer.accelerator}"
    return f"{count} x {offer.instance_type}\n  {inside}"


def _where(offer: Offer, candidate: Candidate) -> str:
    pricing = _COMPLETIONS.get(candidate.completion, offer.pricing)
    return f"{offer.provider} {offer.region}\n{pricing}"


def _reasons(candidates: tuple[Candidate, ...]) -> Text:
    lines = [f"{c.rank}: {'; '.join(c.reasons)}" for c in candidates]
    if any(c.is_extrapolating for c in candidates):
        lines.append("* outside what the device model was fitted on: the interval is wider")
    return Text("\n" + "\n".join(lines))


def _rejected(recommendation: Recommendation) -> Text:
    parts = [
        f"{number:,} {_REJECTED.get(reason, reason)}"
        for reason, number in sorted(recommendation.rejected.items(), key=lambda item: -item[1])
    ]
    return Text(
        f"\n{recommendation.considered:,} candidates from {recommendation.catalogue_offers:,} "
        f"offers (prices of {recommendation.catalogue_as_of}): " + ", ".join(parts)
    )
