"""One estimate as text: the step and its parts, the whole job, and where the numbers are from."""

from __future__ import annotations

import textwrap
from typing import Final

from advisor.domain import Estimate, Fact
from advisor.predict.estimate import StepEstimate
from advisor.quantities import digits, hours_interval, hours_text, usd_interval
from advisor.ways.words import layout_words

_INDENT: Final = 20
_SHARE_SHOWN: Final = 0.005


def text(estimate: StepEstimate, *, width: int = 80) -> str:
    """Return the estimate for a terminal of ``width`` columns."""
    step, unit = _in_unit(estimate.step_time_s)
    lines = [f"{estimate.job} on {estimate.target}{_runs_as(estimate)}"]
    lines.append(_row("step", f"{step} {unit}  ({_bounds(estimate.step_time_s)})"))
    scale = 1e3 if unit == "ms" else 1.0
    for name, seconds in sorted(estimate.parts_s.items(), key=lambda item: -item[1]):
        share = seconds / estimate.step_time_s.value
        if share >= _SHARE_SHOWN:
            lines.append(_row(f"  {name}", f"{digits(seconds * scale)} {unit}  {share:.0%}"))
    lines.append(_row("samples/s", digits(estimate.throughput_samples_per_s.value)))
    lines += _units(estimate)
    lines.append(_row("memory of a device", _memory(estimate)))
    lines += _words("layout", layout_words(estimate.layout), width)
    if estimate.training_time_h is not None:
        value, bounds = hours_interval(estimate.training_time_h)
        lines.append(_row("whole job", f"{value}  ({bounds})"))
    if estimate.cost_usd is not None:
        value, bounds = usd_interval(estimate.cost_usd)
        lines.append(_row("cost", f"{value}  ({bounds})"))
    if estimate.completion not in (None, "on-demand"):
        lines.append(_row("completion", _completion(estimate)))
    if estimate.is_extrapolating:
        lines.append("outside what the device model was fitted on: the interval is wider")
    for note in estimate.notes:
        lines += textwrap.wrap(f"note: {note}", width=max(width, 40), subsequent_indent="  ")
    lines += ["", "where the numbers are from"]
    for fact in estimate.facts:
        lines += _fact(fact, width)
    return "\n".join(lines)


def _completion(estimate: StepEstimate) -> str:
    rented = " + ".join(
        f"{hours_text(bill.time_h)} {bill.pricing} at ${digits(bill.price_usd_per_h)}/h"
        for bill in estimate.bills
    )
    return f"{estimate.completion}: {rented}"


def _units(estimate: StepEstimate) -> list[str]:
    units = estimate.units
    if units is None:
        return []
    lines = []
    if units.tokens_per_s is not None:
        lines.append(_row("tokens/s", digits(units.tokens_per_s)))
    if units.utilisation is not None:
        peak = units.utilisation.peak_flop_per_s / 1e12
        of = f"of {digits(peak)} Tflop/s a device in {units.utilisation.precision}"
        lines.append(_row("MFU", f"{units.utilisation.fraction:.0%} {of}"))
    if units.accelerator_hours is not None:
        lines.append(_row("GPU-hours", digits(units.accelerator_hours)))
    return lines


def _runs_as(estimate: StepEstimate) -> str:
    return f", products in {estimate.runs_as}" if estimate.runs_as else ""


def _in_unit(step: Estimate) -> tuple[str, str]:
    return (digits(1e3 * step.value), "ms") if step.value < 1 else (digits(step.value), "s")


def _bounds(step: Estimate) -> str:
    scale = 1e3 if step.value < 1 else 1.0
    return f"{step.coverage:.0%}: {digits(scale * step.low)}-{digits(scale * step.high)}"


def _memory(estimate: StepEstimate) -> str:
    there = estimate.device_memory_gib
    return f"{digits(estimate.memory_gib)}{f' of {digits(there)}' if there else ''} GiB"


def _row(name: str, value: str) -> str:
    return f"{name:{_INDENT}}{value}"


def _words(name: str, value: str, width: int) -> list[str]:
    """Return a row whose value may take several lines."""
    return textwrap.wrap(
        _row(name, value), width=max(width, 40), subsequent_indent=" " * _INDENT,
        break_on_hyphens=False,
    )  # fmt: skip


def _fact(fact: Fact, width: int) -> list[str]:
    words = f"{fact.what}: {fact.value}" + (f" ({fact.note})" if fact.note else "")
    return textwrap.wrap(
        words, width=max(width, 40), initial_indent=f"  {fact.source:11}",
        subsequent_indent=" " * 13, break_on_hyphens=False,
    )  # fmt: skip
