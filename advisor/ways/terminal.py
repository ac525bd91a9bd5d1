"""A plan as text for the terminal."""

from __future__ import annotations

import shutil
import textwrap
from typing import Final

from advisor.planners.core.units import GIB
from advisor.quantities import digits, hours_interval, seconds_interval, seconds_text, usd_interval
from advisor.ways.answer import Choice, Plan
from advisor.ways.words import layout_words, units_words

_SHOWN: Final = (
    "order", "groups", "layers_by_stage", "first_layer_by_stage", "samples_by_device", "batches",
    "accumulation_steps", "bottleneck",
)  # fmt: skip
# Shares of a step below this are not worth a word.
_WORTH_SAYING: Final = 0.02


def show(plan: Plan, *, width: int | None = None) -> str:
    """Return the answer, what else was found, and what to run.

    Parameters
    ----------
    plan : Plan
    width : int, optional
        Columns; the terminal's otherwise.
    """
    columns = width or shutil.get_terminal_size().columns
    best = plan.best
    groups = " + ".join(
        f"{g.count} x {g.label} ({g.node.devices} x {g.part.name})" for g in plan.cluster.groups
    )
    lines = [f"{groups}, batch {plan.global_batch}, {plan.subject}"]
    if plan.considered:
        lines.append(f"{plan.considered:,} layouts considered, {plan.fitting:,} fit")
    lines += ["", f"{best.name}: {_speed(best)}", *_details(best)]
    seen = [(c.machines, c.layouts) for c in plan.choices]
    fewer = [c for c in plan.front if (c.machines, c.layouts) not in seen]
    others = [*plan.choices[1:], *fewer]
    if others:
        lines += ["", "also:"]
        for c in others:
            lines += [f"  {_label(c)}: {_speed(c)}", *_said_of_others(c)]
    lines += [f"  {name}: not possible: {why}" for name, why in plan.left_out.items()]
    lines = [part for line in lines for part in _wrapped(line, columns)]
    lines += ["", "run:"]
    for command in best.commands:
        lines.append(f"  # {command.group}")
        lines += _command(command.text, columns)
        for name, text in command.files.items():
            lines.append(f"  # {name}")
            lines += [f"  {line}" for line in text.splitlines()]
    notes = [*best.notes, *plan.model.get("notes", ()), *plan.model.get("assumptions", ())]
    return "\n".join(lines + [x for n in notes for x in _wrapped(f"note: {n}", columns)])


def _said_of_others(choice: Choice) -> list[str]:
    """Return what a way that nobody can run yet has to say for itself."""
    if "gain_over_pipeline" not in choice.details:
        return []
    return [f"    {note}" for note in choice.notes]


def _wrapped(line: str, columns: int) -> list[str]:
    """Return a line as several that fit, the later ones indented beyond the first."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(
        line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ) or [""]


def _command(text: str, columns: int) -> list[str]:
    """Return a shell command as lines that can be pasted: what it says first, then the words."""
    words, _, comment = text.partition("  # ")
    lines = _wrapped(f"  # {comment}", columns) if comment else []
    lines = [line if line.startswith("  #") else f"  # {line.strip()}" for line in lines]
    parts = textwrap.wrap(
        f"  {words}",
        columns - 2,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines + [f"{part} \\" for part in parts[:-1]] + parts[-1:]


def _label(choice: Choice) -> str:
    machines = ", ".join(f"{n} x {label}" for label, n in choice.machines.items())
    runs = "" if choice.commands else " (no released framework runs it)"
    return f"{choice.name} on {machines}{runs}"


def _speed(choice: Choice) -> str:
    step, around = seconds_interval(choice.step_time_s)
    text = (
        f"{step} a step ({around}, {choice.step_time_s.coverage:.0%}), "
        f"{digits(choice.throughput_samples_per_s)} samples/s"
    )
    cost = choice.cost_usd_per_million_samples
    if choice.training_time_h is not None:
        value, bounds = hours_interval(choice.training_time_h)
        text += f"; whole job {value} ({bounds})"
    if choice.cost_usd is not None:
        value, bounds = usd_interval(choice.cost_usd)
        return f"{text}, {value} ({bounds})"
    return text if cost is None else f"{text}, {_money(cost)} USD per million samples"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items())
    return str(value)


def _shares(parts_s: dict[str, float], step_s: float) -> str:
    """Say what the step is made of, largest first, small parts left out."""
    ordered = sorted(parts_s.items(), key=lambda item: -item[1])
    return "step: " + ", ".join(
        f"{name.removesuffix('_s').replace('_', ' ')} {part / step_s:.0%}"
        for name, part in ordered
        if part >= _WORTH_SAYING * step_s
    )


def _money(usd: float) -> str:
    return f"{usd:,.0f}" if usd >= 100 else f"{usd:.3g}"


def _details(choice: Choice) -> list[str]:
    lines = [f"  {group}: {layout_words(layout)}" for group, layout in choice.layouts.items()]
    for group, used in choice.memory_bytes.items():
        lines.append(f"  {group}: {used / GIB:.1f} GiB on the fullest device")
    lines += [f"  {words}" for words in units_words(choice.units)]
    lines += [
        f"  {name.replace('_', ' ')}: {_value(choice.details[name])}"
        for name in _SHOWN
        if name in choice.details
    ]
    if parts := choice.details.get("parts_s"):
        lines.append(f"  {_shares(parts, choice.step_time_s.value)}")
    if even := choice.details.get("even_step_s"):
        gain = even / choice.step_time_s.value
        lines.append(f"  even batches would take {seconds_text(even)}: {gain:.2f} x as long")
    return lines
