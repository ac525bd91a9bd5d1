"""One estimate as text: the step and its parts, the whole job, and where the numbers are from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from advisor import words
from advisor.quantities import digits, hours_text
from advisor.words import wrapped

Record = Mapping[str, Any]

_INDENT: Final = 20
_SHARE_SHOWN: Final = 0.005


def text(record: Record, *, width: int = 80) -> str:
    """Return the record of ``advisor predict --json`` for a terminal of ``width`` columns."""
    width, step = max(width, 40), record["step_time_s"]
    scale, unit = (1e3, "ms") if step["value"] < 1 else (1.0, "s")
    bounds = (
        f"{step['coverage']:.0%}: {digits(scale * step['low'])}-{digits(scale * step['high'])}"
    )
    runs_as = f", products in {record['runs_as']}" if record["runs_as"] else ""
    lines = [f"{record['job']} on {target_words(record['configuration'])}{runs_as}"]
    lines.append(_row("step", f"{digits(scale * step['value'])} {unit}  ({bounds})"))
    for name, share in sorted(record["shares"].items(), key=lambda item: -item[1]):
        if share >= _SHARE_SHOWN:
            part = digits(share * step["value"] * scale)
            lines.append(_row(f"  {name}", f"{part} {unit}  {share:.0%}"))
    lines.append(_row("samples/s", digits(record["throughput_samples_per_s"]["value"])))
    lines += _units(record["units"])
    there = record["device_memory_gib"]
    memory = f"{digits(record['memory_gib'])}{f' of {digits(there)}' if there else ''} GiB"
    lines.append(_row("memory of a device", memory))
    layout = _row("layout", words.layout_words(record["layout"]))
    lines += wrapped(layout, width, indent=" " * _INDENT)
    for name, key, interval in (
        ("whole job", "training_time_h", words.hours), ("cost", "cost_usd", words.usd)
    ):  # fmt: skip
        if record[key] is not None:
            value, bounds = interval(record[key])
            lines.append(_row(name, f"{value}  ({bounds})"))
    if record["completion"] != "on-demand":
        lines.append(_row("completion", _completion(record)))
    if record["extrapolating"]:
        lines.append("outside what the device model was fitted on: the interval is wider")
    for note in record["notes"]:
        lines += wrapped(f"note: {note}", width, indent="  ")
    lines += ["", "where the numbers are from"]
    for fact in record["sources"]:
        said = f"{fact['what']}: {fact['value']}" + (f" ({fact['note']})" if fact["note"] else "")
        lines += wrapped(said, width, first=f"  {fact['source']:11}", indent=" " * 13)
    return "\n".join(lines)


def target_words(parts: list[Record]) -> str:
    """Return what an estimate is for: ``"2 x g5.xlarge (aws)"``, ``"1 x L4"``, this machine."""
    (part,) = parts
    if part["pricing"] == "own":
        return f"this machine ({part['instance_type']})"
    return words.machine(part) + (f" ({part['provider']})" if part["provider"] else "")


def _completion(record: Record) -> str:
    rented = " + ".join(
        f"{hours_text(bill['time_h'])} {bill['pricing']} at ${digits(bill['price_usd_per_h'])}/h"
        for bill in record["bills"]
    )
    return f"{record['completion']}: {rented}"


def _units(units: Record | None) -> list[str]:
    if units is None:
        return []
    lines = []
    if units["tokens_per_s"] is not None:
        lines.append(_row("tokens/s", digits(units["tokens_per_s"])))
    if (used := units["utilisation"]) is not None:
        of = f"of {digits(used['peak_flop_per_s'] / 1e12)} Tflop/s a device in {used['precision']}"
        lines.append(_row("MFU", f"{used['fraction']:.0%} {of}"))
    if units["accelerator_hours"] is not None:
        lines.append(_row("GPU-hours", digits(units["accelerator_hours"])))
    return lines


def _row(name: str, value: str) -> str:
    return f"{name:{_INDENT}}{value}"
