"""A recording in a few lines for a person, and as a record for a program."""

from __future__ import annotations

from dataclasses import asdict
from textwrap import wrap
from typing import Any

from advisor.collectors.memory import advised_memory_bytes
from advisor.collectors.recording import DeepStep, Loading, Recording
from advisor.collectors.units import bytes_text, duration_text
from advisor.collectors.work import length_hint


def text(seen: Recording, columns: int, prefix: str = "") -> str:
    """Return what was learned, every line with ``prefix``, broken where the terminal ends."""
    width = max(40, columns - len(prefix))
    broken = [part for line in lines(seen) for part in wrap(line, width, subsequent_indent="  ")]
    return "".join(f"{prefix}{line}\n" for line in broken)


def lines(seen: Recording) -> list[str]:
    """Return what was learned, a fact a line, then the warnings."""
    found = [f"run {seen.run_id}: {seen.status}, {seen.stop_reason}"]
    step = seen.step_time
    if step is not None:
        half = (step.high_s - step.low_s) / 2
        text = (
            f"step {duration_text(step.corrected_s)} ±{duration_text(half)} over {step.steps} "
            f"steps (raw {duration_text(step.raw_s)}, {100 * step.delay_fraction:.0f} % waiting "
            "for a core)"
        )
        found.append(text if step.is_settled else text + ", not settled")
        if seen.step_samples:
            rate = seen.step_samples / step.corrected_s
            found.append(f"{seen.step_samples:g} samples a step, {rate:.4g} samples/s")
    if seen.total_work is not None:
        work = seen.total_work
        total = "" if step is None else f", {duration_text(work.steps * step.corrected_s)} here"
        found.append(f"whole job: {work.steps} steps{total} ({work.source}, {work.confidence})")
    elif step is not None:
        found.append(f"whole job: unknown; say {length_hint(seen)}")
    if seen.deep_step is not None:
        found.append(_model_line(seen.deep_step))
    if seen.loading is not None:
        found.append(_loading_line(seen.loading))
    found.append(
        f"memory: peak {bytes_text(seen.peak_rss_bytes)}, rent at least "
        f"{advised_memory_bytes(seen.peak_rss_bytes) / 2**30:g} GiB"
    )
    return found + [f"warning: {text}" for text in seen.warnings]


def _model_line(deep: DeepStep) -> str:
    flop = sum(operator.flop for operator in deep.operators)
    return (
        f"model: {deep.parameters:,} parameters, {deep.precision} on {deep.device}, "
        f"{flop / 1e9:.3g} Gflop and {bytes_text(deep.saved_bytes)} of activations for "
        f"{deep.samples} samples"
    )


def _loading_line(loading: Loading) -> str:
    cost = loading.cpu_s_per_sample
    text = "" if cost is None else f", {duration_text(cost)} of a core a sample"
    verb = "waits" if loading.workers else "spends"
    return (
        f"input: {loading.workers} workers{text}; the loop {verb} "
        f"{duration_text(loading.wait_s)} a step"
    )


def problem(seen: Recording) -> tuple[str, str] | None:
    """Return (what went wrong, what to do) for a run that shows less than was hoped for."""
    if seen.status in ("failed", "killed") and seen.step_time is None:
        return (
            f"{seen.stop_reason} after {duration_text(seen.duration_s)}, before its first step",
            "run it without the advisor first; what it printed stands above",
        )
    if seen.step_time is None and seen.status != "interrupted":
        return (
            "no training step was seen: only resources were recorded",
            "call advisor.step() once a step, or let the script run until it trains (--for 5m)",
        )
    return None


def record(seen: Recording) -> dict[str, Any]:
    """Return the JSON record of ``advisor profile --json``; the series stay in the run."""
    values = asdict(seen)
    values.pop("readings")
    deep = values.get("deep_step")
    if deep:
        deep.pop("operators")
        deep.pop("layers")
    values["path"] = str(seen.path)
    values["advised_memory_bytes"] = advised_memory_bytes(seen.peak_rss_bytes)
    return {"schema_version": 1, **values}
