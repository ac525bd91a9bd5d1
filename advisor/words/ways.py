"""Plans and estimates as text for the terminal: what to run, what trains in a time, one job."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, Final

from advisor.collectors.errors import counted
from advisor.quantities import (
    count_text,
    digits,
    hours_interval,
    hours_text,
    percent_text,
    seconds_interval,
    seconds_text,
    usd_interval,
)
from advisor.words import pieces
from advisor.words.pieces import indented, wrapped
from advisor.words.summary import slower_words

Record = Mapping[str, Any]

_SHOWN: Final = (
    "order", "groups", "layers_by_stage", "first_layer_by_stage", "samples_by_device", "batches",
    "accumulation_steps",
)  # fmt: skip
# Shares of a step below this are not worth a word.
_WORTH_SAYING: Final = 0.02


def show(record: Record, *, width: int | None = None, has_memory: bool = False) -> str:
    """Return the answer, what else was found, and what to run.

    ``record``: of ``advisor plan --json``; ``width``: columns; the terminal's otherwise;
    ``has_memory``: with the terms of a device's memory.
    """
    columns = width or shutil.get_terminal_size().columns
    best, *others = record["plans"]
    groups = record["cluster"]["groups"]
    lines = [f"{_machines(record)}, batch {record['global_batch']}, {record['subject']}"]
    if record["fitting"]:
        lines.append(
            f"{counted(record['considered'], 'layout')} considered, {record['fitting']:,} fit"
        )
    lines += ["", f"{best['name']}: {_speed(best)}", *_details(best, groups)]
    lines += pieces.memory_table(best, columns) if has_memory else []
    seen = [(one["configuration"], one["layouts"]) for one in record["plans"]]
    fewer = record["front"]
    others += [one for one in fewer if (one["configuration"], one["layouts"]) not in seen]
    if others:
        lines += ["", "also:"]
        for one in others:
            runs = "" if one["commands"] else " (no released framework runs it)"
            machines = ", ".join(map(pieces.machine, one["configuration"]))
            lines.append(f"  {one['name']} on {machines}{runs}: {_speed(one)}")
            lines += [f"    {one['details']['split']}"] if "split" in one["details"] else []
            if "average_every" in one["details"]:  # nobody can run it: it speaks for itself
                lines += [f"    {note}" for note in one["notes"]]
    lines += [f"  {name}: not possible: {why}" for name, why in record["left_out"].items()]
    lines = [part for line in lines for part in indented(line, columns)]
    lines += ["", "run:"]
    for command in best["commands"]:
        lines.append(f"  # {command['group']}")
        lines += _command(command["command"], columns)
        for name, text in command["files"].items():
            lines.append(f"  # {name}")
            lines += [f"  {line}" for line in text.splitlines()]
    model = record["model"]
    notes = [*best["notes"], *model.get("notes", ()), *model.get("assumptions", ())]
    return "\n".join(lines + [x for n in notes for x in indented(f"note: {n}", columns)])


def within_text(record: Record, *, width: int | None = None) -> str:
    """Return the record of ``advisor plan --for ... --json`` as a table, and what it rests on."""
    columns = width or shutil.get_terminal_size().columns
    rows = record["rows"]
    lines = [f"{_machines(record)} for {hours_text(record['within_h'])}:", ""]
    is_one = len(rows) == 1 and not record["left_out"]
    said = _one_trained(record) if is_one else [*_size_lines(record), *_size_notes(record)]
    lines += [part for line in said for part in indented(line, columns)]
    return "\n".join(lines)


def _size_lines(record: Record) -> list[str]:
    """Return a table with one row a size."""
    rows = record["rows"]
    best = record["compute_optimal"]
    cells = [_size_head(rows[0]), *(_size_cells(row, is_best=row["name"] == best) for row in rows)]
    sizes = [max(map(len, column)) for column in zip(*cells, strict=True)][:-1]
    lines = []
    for *numbers, layout in cells:
        right = [cell.rjust(size) for cell, size in zip(numbers, sizes, strict=True)]
        lines.append("  ".join([*right, layout]))
    return [*lines, ""]


def _size_notes(record: Record) -> list[str]:
    notes = []
    if record["compute_optimal"] is not None:
        ratio = f"{record['optimal_tokens_per_parameter']:g} tokens per parameter"
        notes.append(f"* nearest to the compute-optimal {ratio}")
    notes += [f"{name} does not train here: {why}" for name, why in record["left_out"].items()]
    return [*notes, *record["sources"]]


def _machines(record: Record) -> str:
    return " + ".join(
        f"{g['machines']} x {g['label']} ({g['accelerators_per_machine']} x {g['accelerator']})"
        for g in record["cluster"]["groups"]
    )


def _is_tuned(row: Record) -> bool:
    return bool(row["trainable_parameters"] < row["parameters"])


def _size_head(row: Record) -> tuple[str, ...]:
    tokens = f"tokens ({percent_text(row['steps']['coverage'])})"
    more = f"{count_text(_TUNING_TOKENS)} tokens take" if _is_tuned(row) else "per parameter"
    return "model", tokens, more, "steps", "step time", "layout"


def _size_cells(row: Record, *, is_best: bool) -> tuple[str, ...]:
    step_s, tokens = row["plan"]["step_time_s"]["value"], row["tokens"]
    more = digits(row["tokens_per_parameter"])
    if _is_tuned(row):
        steps = _TUNING_TOKENS * row["steps"]["value"] / tokens["value"]
        more = seconds_text(step_s * steps)
    return (
        f"{'*' if is_best else ''}{row['name']}",
        pieces.interval_text(pieces.count_words(tokens)), more, digits(row["steps"]["value"]),
        seconds_text(step_s), pieces.degrees(row["plan"]["layout"]).replace(" x ", ", "),
    )  # fmt: skip


# Three passes over 52,000 instructions (Taori et al. 2023, Alpaca) are some ten million tokens.
_TUNING_TOKENS: Final = 1e7


def _one_trained(record: Record) -> list[str]:
    """Return what else is to be said of the only job: samples, epochs, and how it is trained."""
    (row,) = record["rows"]
    said = [
        f"{name}: {pieces.interval_text(pieces.count_words(row[name]))}"
        for name in ("steps", "samples", "tokens", "epochs")
        if row[name] is not None
    ]
    best = row["plan"]
    return [*said, f"{best['name']}: {_speed(best)}", *_details(best, record["cluster"]["groups"])]


def _command(text: str, columns: int) -> list[str]:
    """Return a shell command as lines that can be pasted: what it says first, then the words."""
    said, _, comment = text.partition("  # ")
    lines = indented(f"  # {comment}", columns) if comment else []
    lines = [line if line.startswith("  #") else f"  # {line.strip()}" for line in lines]
    return lines + pieces.pasteable(said, columns)


def _speed(one: Record) -> str:
    step, around = seconds_interval(one["step_time_s"])
    rate = one["throughput_samples_per_s"]["value"]
    share = percent_text(one["step_time_s"]["coverage"])
    text = f"{step} a step ({around}, {share}), {digits(rate)} samples/s"
    if one["training_time_h"] is not None:
        text += f"; whole job {pieces.time_text(one)}"
    if one["cost_usd"] is not None:
        return f"{text}, {pieces.cost_text(one)}"
    prices = [part["price_usd_per_h"] for part in one["configuration"]]
    if None in prices:
        return text
    hourly = sum(part["price_usd_per_h"] * part["count"] for part in one["configuration"])
    return f"{text}, {_money(1e6 / rate / 3600 * hourly)} USD per million samples"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(number)}" for name, number in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    return str(value)


def _money(usd: float) -> str:
    return f"{usd:,.0f}" if usd >= 100 else digits(usd)


def _details(one: Record, groups: Sequence[Record]) -> list[str]:
    details, step_s = one["details"], one["step_time_s"]["value"]
    lines = [f"  {name}: {pieces.layout_words(each)}" for name, each in one["layouts"].items()]
    there = {group["label"]: group for group in groups}
    for name, needed in one["memory_gib_by_group"].items():
        held = one["memory"] if one["memory"].get("group", name) == name else {}
        known = {**there.get(name, one), "memory_gib": needed, "memory": held}
        memory = pieces.memory_words(known)
        lines.append(f"  {name}: the fullest device {memory}")
    lines += [f"  {said}" for said in pieces.units_words(one["units"])]
    lines += [f"  {n.replace('_', ' ')}: {_value(details[n])}" for n in _SHOWN if n in details]
    if bottleneck := one["bottleneck"] or details.get("bottleneck"):
        lines.append(f"  bottleneck: {_value(bottleneck)}")
    ordered = sorted(one["shares"].items(), key=lambda item: -item[1])
    said = ", ".join(
        f"{name.removesuffix('_s').replace('_', ' ')} {percent_text(share)}"
        for name, share in ordered
        if share >= _WORTH_SAYING
    )
    lines += [f"  step: {said}"] if ordered else []
    if said := pieces.ledger_words(one):
        lines.append(f"  whole job: {said}")
    if even := details.get("even_step_s"):
        gain = even / step_s
        lines.append(f"  even batches would take {seconds_text(even)} ({slower_words(gain)})")
    return lines


_INDENT: Final = 20
_SHARE_SHOWN: Final = 0.005


def prediction_text(record: Record, *, width: int = 80, has_memory: bool = False) -> str:
    """Return the record of ``advisor predict --json`` for a terminal of ``width`` columns."""
    width, step = max(width, 40), record["step_time_s"]
    scale, unit = (1e3, "ms") if step["value"] < 1 else (1.0, "s")
    share = percent_text(step["coverage"])
    bounds = f"{share}: {digits(scale * step['low'])}-{digits(scale * step['high'])}"
    runs_as = f", products in {record['runs_as']}" if record["runs_as"] else ""
    title = f"{record['job']} on {target_words(record['configuration'])}{runs_as}"
    lines = wrapped(title, width, indent="    ")
    lines.append(_row("step", f"{digits(scale * step['value'])} {unit}  ({bounds})"))
    for name, share in sorted(record["shares"].items(), key=lambda item: -item[1]):
        if share >= _SHARE_SHOWN:
            part = digits(share * step["value"] * scale)
            lines.append(_row(f"  {name}", f"{part} {unit}  {percent_text(share)}"))
    lines.append(_row("samples/s", digits(record["throughput_samples_per_s"]["value"])))
    lines += _units(record["units"])
    lines.append(_row("memory per device", pieces.memory_words(record)))
    lines += pieces.memory_table(record, width) if has_memory else []

    def folded(name: str, value: str) -> list[str]:
        return wrapped(_row(name, value), width, indent=" " * _INDENT) if value else []

    lines += folded("layout", pieces.layout_words(record["layout"]))
    if record["training_time_h"] is not None:
        lines.append(
            _row("whole job", "{}  ({})".format(*hours_interval(record["training_time_h"])))
        )
    lines += folded("", pieces.ledger_words(record))
    if record["cost_usd"] is not None:
        lines.append(_row("cost", "{}  ({})".format(*usd_interval(record["cost_usd"]))))
    lines += folded("", pieces.surplus_words(record))
    lines += folded("  learned", pieces.direct_cost_text(record))
    if record["training_time_h"] is None:
        lines += _rate(record, width)
    if record["completion"] != "on-demand":
        lines.append(_row("completion", _completion(record)))
    if record["extrapolating"]:
        lines.append("not like anything we measured, so the range is wider")
    for note in record["notes"]:
        lines += wrapped(f"note: {note}", width, indent="  ")
    if "effects" in record:
        lines += ["", *_effects(record["effects"], width)]
    lines += ["", "where the numbers are from"]
    for fact in record["sources"]:
        said = f"{fact['what']}: {fact['value']}" + (f" ({fact['note']})" if fact["note"] else "")
        lines += wrapped(said, width, first=f"  {fact['source']:11}", indent=" " * 13)
    return "\n".join(lines)


def _rate(record: Record, width: int) -> list[str]:
    """Say what a million tokens or samples cost where nobody said how long the job is."""
    prices = record.get("usd_per_million") or {}
    lines = [_row(f"USD/M {name}", _money(usd)) for name, usd in prices.items()]
    asked = "The length of the job was not given: add --tokens or --total-steps for its time"
    return [*lines, *wrapped(f"{asked}{' and cost' if prices else ''}.", width)]


def _effects(effects: Mapping[str, Mapping[str, float]], width: int) -> list[str]:
    """Say by which factor each group of features moved what was learned, most first."""
    if not effects:
        return ["no learned model covers this job on these machines; the estimate is analytic"]
    lines = ["what moved the learned estimates, relative to typical values"]
    for what, groups in effects.items():
        ordered = sorted(groups.items(), key=lambda one: -abs(math.log(one[1])))
        said = ", ".join(f"{name} x {factor:.2f}" for name, factor in ordered)
        lines += wrapped(said, width, first=f"  {what:11}", indent=" " * 13)
    return lines


def target_words(parts: list[Record]) -> str:
    """Return what an estimate is for: ``"2 x g5.xlarge (aws)"``, ``"1 x L4"``, this machine.

    Accelerators of which no more is known are said with the machines that they are taken to fill.
    """
    (part,) = parts
    count, each = part["count"], part["accelerators_per_instance"]
    if part["pricing"] == "own":
        return f"this machine ({part['instance_type']})"
    if part["pricing"] == "given" and part["instance_type"] != part["accelerator"]:
        inside = f"{count} machines of {each:g}, network assumed"
        return f"{count * each:g} x {part['accelerator']} ({inside})"
    return pieces.machine(part) + (f" ({part['provider']})" if part["provider"] else "")


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
        lines.append(_row("MFU", f"{percent_text(used['fraction'])} {of}"))
    if units["accelerator_hours"] is not None:
        lines.append(_row("GPU-hours", digits(units["accelerator_hours"])))
    return lines


def _row(name: str, value: str) -> str:
    return f"{name:{_INDENT}}{value}"
