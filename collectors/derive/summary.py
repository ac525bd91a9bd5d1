"""A recording in a few lines for a person, and as a record for a program."""

from __future__ import annotations

import signal
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from advisor.collectors.derive.causes import early_end
from advisor.collectors.derive.certainty import shortfall_of
from advisor.collectors.derive.resources import advised_memory_bytes
from advisor.collectors.derive.work import length_hint
from advisor.collectors.errors import bytes_text, counted, duration_text, number_text
from advisor.collectors.format import (
    DeepStep,
    Loading,
    ProcessSeries,
    RankSeries,
    Recording,
    Rehearsed,
    Rounds,
)


def summary_text(seen: Recording, columns: int, prefix: str = "") -> str:
    """Return what was learned, every line with ``prefix``, broken where the terminal ends."""
    width = max(40, columns - len(prefix))
    broken = [
        part for line in summary_lines(seen) for part in wrap(line, width, subsequent_indent="  ")
    ]
    return "".join(f"{prefix}{line}\n" for line in broken)


def summary_lines(seen: Recording) -> list[str]:
    """Return what was learned, a fact a line, then the warnings."""
    found = [f"run {seen.run_id}: {seen.status}, {seen.stop_reason}"]
    step = seen.step_time
    if step is not None:
        half = (step.high_s - step.low_s) / 2
        text = (
            f"step {duration_text(step.corrected_s)} ±{duration_text(half)} over "
            f"{counted(step.steps, 'step')} (raw {duration_text(step.raw_s)}, "
            f"{100 * step.delay_fraction:.0f} % waiting "
            "for a core)"
        )
        found.append(text if step.is_settled else text + ", not settled")
        if seen.step_samples:
            rate = seen.step_samples / step.corrected_s
            found.append(
                f"{counted(seen.step_samples, 'sample')} per step, {number_text(rate)} samples/s"
            )
    if seen.rehearsal is not None:
        found += _rehearsal_lines(seen, seen.rehearsal)
    if seen.total_work is not None:
        work = seen.total_work
        total = "" if step is None else f", {duration_text(work.steps * step.corrected_s)} here"
        found.append(
            f"whole job: {counted(work.steps, 'step')}{total} ({work.source}, {work.confidence})"
        )
    elif step is not None or seen.rehearsal is not None:
        found.append(f"whole job: {seen.endless or 'unknown'}; give {length_hint(seen)}")
    if seen.rounds is not None:
        found.append(_rounds_line(seen.rounds))
    if seen.deep_step is not None:
        found.append(_model_line(seen.deep_step))
    if seen.told is not None and seen.told.stack:
        found.append(f"training stack: {seen.told.stack}")
    if seen.told is not None and (seen.told.loss or seen.told.updates_in_backward):
        said = [f"{seen.told.loss} loss"] if seen.told.loss else []
        said += ["optimizer in the backward pass"] if seen.told.updates_in_backward else []
        found.append(f"training software: {', '.join(said)}")
    if seen.told is not None and seen.told.change:
        found.append(f"on the CPU: {seen.told.reason}; for an accelerator: {seen.told.change}")
    if seen.loading is not None:
        found.append(_loading_line(seen.loading))
    if seen.fallbacks:
        found.append(f"warning: {seen.fallback_words}")
    if seen.rehearsal is not None:
        return found + [f"warning: {text}" for text in seen.warnings]
    found += _rank_lines(seen)
    found.append(_memory_line(seen))
    return found + [f"warning: {text}" for text in seen.warnings]


# A system kills for memory near the limit: files' pages and its own, which count too, are little.
_NEAR_LIMIT = 0.9


def _memory_line(seen: Recording) -> str:
    """Say the peak and what to rent; of a run that was killed for memory the peak is no peak."""
    peak, limit = seen.peak_rss_bytes, seen.host.memory_limit_bytes
    if seen.exit_code == 128 + signal.SIGKILL and peak >= _NEAR_LIMIT * limit > 0:
        return (
            f"memory: {bytes_text(peak)} of the {bytes_text(limit)} allowed when it was killed, "
            "most likely for memory: record it where there is more, or rehearse it (advisor "
            "profile --rehearse)"
        )
    needed = advised_memory_bytes(peak) / 2**30
    return f"memory: peak {bytes_text(peak)}, rent at least {needed:g} GiB"


def _rehearsal_lines(seen: Recording, rehearsal: Rehearsed) -> list[str]:
    """Say what was rehearsed, as what, and what the device held and exchanged."""
    ranks = f", rank {rehearsal.rank} of {seen.world_size}" if seen.world_size > 1 else ""
    found = [f"{rehearsal.words} (as {rehearsal.devices} x {rehearsal.device}{ranks})"]
    if seen.step_samples:
        found.append(f"{counted(seen.step_samples, 'sample')} per step")
    if rehearsal.peak_bytes:
        parts = sorted(rehearsal.held_bytes.items(), key=lambda one: -one[1])
        held = ", ".join(f"{kind} {bytes_text(size)}" for kind, size in parts if size)
        text = f"device memory: peak {bytes_text(rehearsal.peak_bytes)} ({held})"
        if rehearsal.reserved_bytes:
            text += f", {bytes_text(rehearsal.reserved_bytes)} in the allocator's segments"
        found.append(text)
    found += [
        f"each step: {one.name} {counted(one.calls, 'time')}, {bytes_text(one.bytes)} in all"
        for one in rehearsal.collectives
    ]
    deep = seen.deep_step
    if deep is not None and deep.ranks > 1:
        found.append(
            f"{deep.ranks} ranks divide the work of each sample; the figures are their sum"
        )
    if deep is not None and deep.elsewhere:
        found.append(
            f"warning: the figures cover this rank only; other ranks run {deep.elsewhere}"
        )
    return found + [f"note: {note}" for note in rehearsal.notes]


def _rank_lines(seen: Recording) -> list[str]:
    if len(seen.ranks) < 2:
        return []
    found = []
    link = seen.bandwidth_bit_per_s
    over = "over loopback" if link is None else f"on links of {link / 1e9:g} Gbit/s"
    if seen.workers > 1:
        found.append(f"{seen.workers} ranks {over}")
    if seen.wrapping == "wrapped":
        found.append(
            "the script joins no process group and was wrapped: each rank has its own share of "
            "every loader that shuffles, and gradients are averaged after each backward pass "
            f"(a step trains on {seen.world_size} times the script's batch)"
        )
    for one in seen.ranks:
        parts = [f"rank {one.rank}: {counted(len(one.step_s), 'step')}"]
        if one.wait_s:
            wait_s = sum(one.wait_s) / len(one.wait_s)
            parts.append(f"waits {duration_text(wait_s)} per step for the others")
        if one.sent_bytes_per_step is not None and one.received_bytes_per_step is not None:
            parts.append(
                f"sends {bytes_text(int(one.sent_bytes_per_step))} and receives "
                f"{bytes_text(int(one.received_bytes_per_step))} per step"
            )
        found.append(", ".join(parts))
    return found


def _model_line(deep: DeepStep) -> str:
    sides = (one for one in (deep.least_operators, deep.operators) if one)
    texts = (number_text(sum(side["flop"]) / 1e9) for side in sides)
    flop = " to ".join(dict.fromkeys(texts))
    return (
        f"model: {deep.parameters:,} parameters, {deep.precision} on {deep.device}, "
        f"{flop} Gflop and {bytes_text(deep.saved_bytes)} of activations for "
        f"{counted(deep.samples, 'sample')}"
    )


def _rounds_line(rounds: Rounds) -> str:
    """Say what a step is where no optimizer of torch makes it, and what it may use."""
    text = f"a step is a {rounds.unit} of {rounds.kind}"
    if rounds.cores is not None:
        text += f", on {rounds.cores:g} core{'s' * (rounds.cores != 1)} at most"
    if rounds.compile_s is not None and rounds.compile_s > 1.0:
        text += f"; {duration_text(rounds.compile_s)} before the first (compilation, data)"
    return text


def _loading_line(loading: Loading) -> str:
    cost = loading.cpu_s_per_sample
    if loading.is_environment:
        return f"environment: {duration_text(loading.wait_s)} per step, on one core"
    text = "" if cost is None else f", {duration_text(cost)} of core time per sample"
    verb = "waits" if loading.workers else "spends"
    return (
        f"input: {counted(loading.workers, 'worker')}{text}; the loop {verb} "
        f"{duration_text(loading.wait_s)} per step"
    )


def recording_problem(seen: Recording) -> tuple[str, str] | None:
    """Return (what went wrong, what to do) for a run that shows less than was hoped for."""
    if seen.wrapping.startswith("refused"):
        return (
            f"the script cannot be run as {seen.workers} ranks, {seen.wrapping}",
            "leave out --workers, or let the script join a process group itself",
        )
    if seen.workers > 1 and seen.world_size == 1 and seen.status not in ("failed", "killed"):
        return (
            f"{seen.workers} copies of the script ran but never trained together: no process "
            "group and no torch optimizer was seen",
            "leave out --workers",
        )
    if seen.status in ("failed", "killed") and seen.step_time is None:
        return early_end(seen)
    if seen.rehearsal is not None and seen.deep_step is not None:
        return None
    if seen.step_time is None and seen.deep_step is not None:
        return (
            "no step but the traced one was seen to its end: GPUs are answered (advisor "
            "recommend), this machine is not",
            "for this machine, profile for longer: advisor profile --for 10m SCRIPT",
        )
    if seen.step_time is None and seen.status != "interrupted":
        return (
            "no training step was seen, so only resources were recorded",
            "call advisor.step() once a step, or let the script run until it trains (--for 5m)"
            + (
                "" if seen.rehearsal else "; or compute nothing: advisor profile --rehearse SCRIPT"
            ),
        )
    missing = shortfall_of(seen)
    if missing is None or seen.deep_step is None or seen.deep_step.device != "cpu":
        return missing
    return (
        f"{missing[0]}; GPUs are answered all the same (advisor recommend), this machine is not",
        missing[1],
    )


def summary_record(seen: Recording) -> dict[str, Any]:
    """Return the JSON record of ``advisor profile --json``; the series stay in the run."""
    values = asdict(seen)
    for series in ("readings", "ranks", "processes"):
        values.pop(series)
    values["ranks"] = [_rank_record(one) for one in seen.ranks]
    values["processes"] = [_process_record(one) for one in seen.processes]
    last = seen.readings[-1] if seen.readings else None
    values["minor_faults"] = None if last is None else last.minor_faults
    values["major_faults"] = None if last is None else last.major_faults
    deep = values.get("deep_step")
    if deep:
        for table in ("operators", "least_operators", "layers"):
            deep.pop(table)
    values["path"] = str(seen.path)
    missing = shortfall_of(seen)
    values["not_known"] = None if missing is None else {"what": missing[0], "hint": missing[1]}
    values["advised_memory_bytes"] = advised_memory_bytes(seen.peak_rss_bytes)
    return {"schema_version": 1, **values}


def _rank_record(one: RankSeries) -> dict[str, Any]:
    """Return a rank in means; the steps themselves stay in the run."""
    step_s, wait_s, sides = one.step_s, one.wait_s, ("sent", "received", "payload")
    return {
        "rank": one.rank,
        "pid": one.pid,
        "steps": len(step_s),
        "step_s": sum(step_s) / len(step_s) if step_s else None,
        "wait_s": sum(wait_s) / len(wait_s) if wait_s else None,
        **{f"{of}_bytes_per_step": getattr(one, f"{of}_bytes_per_step") for of in sides},
    }


def _process_record(one: ProcessSeries) -> dict[str, Any]:
    """Return a process as it was last seen, and its largest resident memory."""
    counters = ("cpu_s", "minor_faults", "major_faults", "received_bytes", "sent_bytes")
    return {
        "pid": one.pid,
        "rank": one.rank,
        "peak_rss_bytes": max(one.rss_bytes),
        **{name: getattr(one, name)[-1] for name in counters},
    }
