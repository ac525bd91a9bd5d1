"""A recommendation as text for a terminal: the choice first, one screen, nothing said twice."""

from __future__ import annotations

import math
import textwrap
from typing import Final

from rich.console import Console, Group
from rich.text import Text

from advisor.domain import QUANTILES, Candidate, Offer, ProposedChange, Recommendation
from advisor.quantities import digits, hours_interval, hours_text, usd_interval, usd_text
from advisor.report.explained import REJECTED, alternatives_words, waits_words
from advisor.shown.words import PICKS
from advisor.ways.beside import shown_name
from advisor.ways.words import degrees

# Lines of the smallest terminal in use.
SCREEN_LINES: Final = 24
_COMPLETIONS: Final = {
    "spot-with-fallback": "spot, else on demand",
    "elastic-spot": "spot, elastic",
    "spot-by-deadline": "spot, on demand or waiting",
}
_CHANGES: Final = 3
_RANK: Final = 5
_TIME: Final = 13
_COST: Final = 16


def show(
    recommendation: Recommendation, console: Console, *, most: int | None = SCREEN_LINES
) -> None:
    """Print the list, or the nearest misses where nothing satisfies the constraints.

    ``most`` is the number of lines to stay within; None shows every row.
    """
    lines = text(recommendation, width=console.width, most=most)
    styled = [Text(line, style="bold" if is_choice else "") for line, is_choice in lines]
    console.print(Group(*styled))


def text(
    recommendation: Recommendation, *, width: int = 80, most: int | None = SCREEN_LINES
) -> list[tuple[str, bool]]:
    """Return the lines, and whether each is the choice itself."""
    width = max(width, 40)
    head = [(line, False) for line in _wrapped(job_line(recommendation), width)]
    head += _choice(recommendation, width)
    shared = _wrapped(_shared(recommendation), width)
    foot = [line for one in _foot(recommendation) for line in _hanging(one, width)]
    rows = _rows(recommendation, width)
    if most is not None:
        rows = _fitting(recommendation, rows, most - len(head) - len(shared) - len(foot) - 3)
    body = ["", *shared, _titles(recommendation, width), *(line for row in rows for line in row)]
    return head + [(line, False) for line in (*body, *([""] if foot else []), *foot)]


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


def job_line(recommendation: Recommendation, *, with_source: bool = False) -> str:
    """Say what the job is, and what was measured of it."""
    job = recommendation.job
    if job["is_program"] and "rounds" not in job:
        return (
            f"{recommendation.run}: a program without training steps, "
            f"{digits(job['measured_step_s'])} s on {job['measured_on']}"
        )
    steps = f"{job['total_steps']:,.0f} steps of {job['global_batch']} samples"
    if (rounds := job.get("rounds")) is not None:
        steps = f"{job['total_steps']:,.0f} {rounds['unit']}s of {rounds['kind']}"
    what = "step" if rounds is None else rounds["unit"]
    steps += f" ({job['total_steps_source']})" if with_source else ""
    if "measured_step_s" not in job:
        return f"{recommendation.run}: {steps}; described, nothing measured"
    return (
        f"{recommendation.run}: {steps}, "
        f"{digits(1000 * job['measured_step_s'])} ms a {what} on {job['measured_on']}"
    )


def _choice(recommendation: Recommendation, width: int) -> list[tuple[str, bool]]:
    if not recommendation.summary:
        missed = "Nothing satisfies the constraints. The nearest misses:"
        return [] if recommendation.front else [(missed, True)]
    first, *others = recommendation.summary
    if not recommendation.front:
        others.append("Nothing that can be rented satisfies the constraints; it is listed for "
                      "comparison.")  # fmt: skip
    lines = [(line, True) for line in _wrapped(first, width)]
    return lines + [(line, False) for line in _wrapped(" ".join(others), width)]


def _shared(recommendation: Recommendation) -> str:
    """Return what holds for every row: said once."""
    rows = recommendation.front or recommendation.nearest
    if not rows:
        return ""
    said = []
    if len({one.bottleneck for one in rows}) == 1:
        said.append(f"Most of a step is {waits_words(rows[0].bottleneck)}.")
    boot_s = recommendation.job["transfers"].get("boot_s")
    if boot_s:
        said.append(f"Times include {boot_s / 60:.3g} min to boot and to pull an image.")
    return " ".join(said)


def _titles(recommendation: Recommendation, width: int) -> str:
    rows = (*recommendation.front, *recommendation.nearest)
    if not rows:
        return ""
    coverage = rows[0].cost_usd.coverage
    title = f"{'':{_RANK}}{'machines':{width - _RANK - _TIME - _COST}}"
    return f"{title}{f'time ({coverage:.0%})':>{_TIME}}{f'cost ({coverage:.0%})':>{_COST}}"


def _rows(recommendation: Recommendation, width: int) -> list[list[str]]:
    """Return the lines of every row, and of this machine behind them."""
    rows = recommendation.front or recommendation.nearest
    labels: dict[int | str, list[str]] = {}
    for name, place in recommendation.picks.items():
        if not (name == "fastest" and place == recommendation.picks["best_value"]):
            labels.setdefault(place, []).append(PICKS[name])
    is_alike = len({one.bottleneck for one in rows}) <= 1
    found = [
        _row(one, str(one.rank), labels.get(one.rank, []), width, names_wait=not is_alike)
        for one in rows
    ]
    here = recommendation.here
    if here is not None:
        found.append(_row(here, "here", labels.get("here", []), width, names_wait=False))
    return found


def _row(
    one: Candidate, name: str, labels: list[str], width: int, *, names_wait: bool
) -> list[str]:
    """Return two lines or three: machines, what is in them and where, what is particular."""
    room = width - _RANK - _TIME - _COST
    time, time_range = hours_interval(one.training_time_h)
    is_free = one.cost_usd.high == 0
    cost, cost_range = ("free", "") if is_free else usd_interval(one.cost_usd)
    mark = " *" if one.is_extrapolating else ""
    left = [" + ".join(_machine(offer, n) for offer, n in one.configuration.parts) + mark]
    left += [_inside(offer, one) for offer, _ in one.configuration.parts]
    shared = degrees(one.layout)
    if said := shown_name(one.way):
        shared = f"{shared}, {said}"
    particular = [", ".join(labels)] if labels else []
    particular += [shared] if shared != "one device" else []
    particular += [f"mostly {one.bottleneck}"] if names_wait else []
    lines = []
    for number, words in enumerate(left):
        right = ((time, cost), (time_range, cost_range))[number] if number < 2 else ("", "")
        first, *rest = textwrap.wrap(words, room - 1, break_on_hyphens=False) or [""]
        numbers = f"{right[0]:>{_TIME}}{right[1]:>{_COST}}"
        lines.append(f"{name if not number else '':>{_RANK - 1}} {first:{room}}{numbers}")
        lines += [f"{'':{_RANK}}{more}" for more in rest]
    line = _particular(particular, one, width - _RANK)
    lines += [f"{'':{_RANK}}{line}"] if line else []
    return [line.rstrip() for line in lines]


def _particular(pieces: list[str], one: Candidate, room: int) -> str:
    """Return one line of what is particular; alternatives are named as far as there is room."""
    others = (alternatives_words(one, most) for most in (2, 1, 0)) if one.alternatives else ("",)
    for words in others:
        line = "; ".join([*pieces, *([words] if words else [])])
        if len(line) <= room:
            return line
    return textwrap.shorten("; ".join(pieces), room, placeholder=" ...")


def _machine(offer: Offer, count: int) -> str:
    return "this machine" if offer.pricing == "own" else f"{count} x {offer.instance_type}"


def _inside(offer: Offer, one: Candidate) -> str:
    """Return what is in a machine and where it is, in one line."""
    inside = f"{offer.vcpus} vCPU, {offer.memory_gib:.4g} GiB"
    if offer.accelerator is not None:
        inside = f"{offer.accelerators:g} x {offer.accelerator}"
    if offer.pricing == "own":
        return f"{offer.instance_type}, {inside}"
    pricing = _COMPLETIONS.get(one.completion, offer.pricing)
    price = "" if pricing == "on-demand" else f", {pricing}"
    price += f", {offer.terms}" if offer.terms else ""
    return f"{inside}, {offer.provider} {offer.region}{price}"


def _fitting(recommendation: Recommendation, rows: list[list[str]], room: int) -> list[list[str]]:
    """Return as many rows as fit: the best value, this machine, the other picks, the others."""
    shown = recommendation.front or recommendation.nearest
    places = {one.rank: place for place, one in enumerate(shown)}
    named = [places[rank] for rank in recommendation.picks.values() if isinstance(rank, int)]
    wanted = [*named[:1], *range(len(shown), len(rows)), *named, *range(len(shown))]
    kept: list[int] = []
    for place in dict.fromkeys(wanted):
        if not kept or sum(len(rows[i]) for i in (*kept, place)) <= room:
            kept.append(place)
    return [rows[place] for place in sorted(kept)]


def _foot(recommendation: Recommendation) -> list[str]:
    """Return what was looked at, and where to read on."""
    shown = recommendation.front or recommendation.nearest
    lines = [line for change in recommendation.changes[:_CHANGES] for line in [_change(change)]]
    lines = [*(["What would change it:"] if lines else []), *lines]
    if any(one.is_extrapolating for one in shown):
        lines.append("* outside what the device model was fitted on: the interval is wider")
    looked = (
        f"{recommendation.considered:,} candidates of {recommendation.catalogue_offers:,} offers, "
        f"prices of {recommendation.catalogue_as_of}"
    )
    if not recommendation.front:
        counts = sorted(recommendation.rejected.items(), key=lambda item: -item[1])[:3]
        said = ", ".join(f"{n:,} {REJECTED.get(reason, reason)}" for reason, n in counts)
        return [*lines, f"{looked}: {said}."]
    return [*lines, f"{looked}; more: --explain {shown[0].rank}"]


def _change(change: ProposedChange) -> str:
    """Return what to do, and what the best value takes and costs then."""
    time, cost = hours_text(change.training_time_h.value), usd_text(change.cost_usd.value)
    line = f"  {time}, {cost}: {change.do}"
    if change.pick is None:
        return line
    pick = " + ".join(_machine(offer, count) for offer, count in change.pick.configuration.parts)
    time, cost = (
        hours_text(change.pick.training_time_h.value), usd_text(change.pick.cost_usd.value)
    )  # fmt: skip
    return f"{line}; then rent {pick} ({time}, {cost})"


def _hanging(words: str, width: int) -> list[str]:
    """Return a line wrapped; what is indented goes on further in."""
    rest = "    " if words.startswith("  ") else ""
    return textwrap.wrap(
        words, width, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )


def _wrapped(words: str, width: int, *, indent: str = "") -> list[str]:
    return textwrap.wrap(
        words, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
