"""A plan as text for the terminal."""

from __future__ import annotations

from advisor.plan.answer import Choice, Plan
from advisor.planners.nouns import Layout
from advisor.planners.units import GIB


def show(plan: Plan) -> str:
    """Return the answer, what else was found, and what to run."""
    best = plan.best
    groups = " + ".join(
        f"{g.count} x {g.label} ({g.node.devices} x {g.part.name})" for g in plan.cluster.groups
    )
    lines = [f"{groups}, batch {plan.global_batch}, {plan.transformer.layers} layers of "
             f"{plan.transformer.hidden}, {plan.transformer.sequence} tokens"]  # fmt: skip
    if plan.considered:
        lines.append(f"{plan.considered:,} layouts considered, {plan.fitting:,} fit")
    lines += ["", f"{best.name}: {_speed(best)}", *_details(best)]
    others = [c for c in [*plan.choices[1:], *plan.front] if c is not best]
    if others:
        lines += ["", "also:"]
        lines += [f"  {_label(c)}: {_speed(c)}" for c in others]
    lines += [f"  {name}: not possible: {why}" for name, why in plan.left_out.items()]
    lines += ["", "run:"]
    for command in best.commands:
        lines.append(f"  # {command.group}")
        lines.append(f"  {command.text}")
        for name, text in command.files.items():
            lines.append(f"  # {name}")
            lines += [f"  {line}" for line in text.splitlines()]
    return "\n".join(lines + [f"note: {note}" for note in best.notes])


def _label(choice: Choice) -> str:
    machines = ", ".join(f"{n} x {label}" for label, n in choice.machines.items())
    runs = "" if choice.commands else " (no released framework runs it)"
    return f"{choice.name} on {machines}{runs}"


def _speed(choice: Choice) -> str:
    step = choice.step_time_s
    text = (
        f"{step.value:.3g} s a step ({step.low:.3g}-{step.high:.3g}, {step.coverage:.0%}), "
        f"{choice.throughput_samples_per_s:.3g} samples/s"
    )
    cost = choice.cost_usd_per_million_samples
    return text if cost is None else f"{text}, {cost:,.0f} USD per million samples"


def _details(choice: Choice) -> list[str]:
    lines = [f"  {group}: {_layout(layout)}" for group, layout in choice.layouts.items()]
    for group, used in choice.memory_bytes.items():
        lines.append(f"  {group}: {used / GIB:.1f} GiB on the fullest device")
    shown = ("order", "layers_by_stage", "batches", "accumulation_steps", "bottleneck")
    lines += [
        f"  {name.replace('_', ' ')}: {choice.details[name]}"
        for name in shown
        if name in choice.details
    ]
    if even := choice.details.get("even_step_s"):
        gain = even / choice.step_time_s.value
        lines.append(f"  even batches would take {even:.3g} s: {gain:.2f} x as long")
    return lines


def _layout(layout: Layout) -> str:
    degrees = [
        f"{name} {degree}"
        for name, degree in (
            ("dp", layout.dp),
            ("tp", layout.tp),
            ("pp", layout.pp),
            ("cp", layout.cp),
            ("ep", layout.ep),
        )
        if degree > 1
    ] or ["one device"]
    words = [
        *degrees,
        f"micro-batch {layout.micro_batch} x {layout.accumulation_steps}",
        f"ZeRO {layout.zero_stage}",
        f"recompute {layout.recompute}",
    ]
    if layout.shard_group:
        words.append(f"shards within {layout.shard_group}")
    if layout.pp > 1:
        words.append(layout.schedule)
    if layout.virtual_stages > 1:
        words.append(f"{layout.virtual_stages} chunks a device")
    if layout.is_sequence_parallel:
        words.append("sequence parallel")
    if layout.offload:
        words.append(f"offload {', '.join(sorted(layout.offload))}")
    return ", ".join(words)
