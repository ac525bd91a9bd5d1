"""What an imported run says, in a line, and what it leaves unsaid."""

from __future__ import annotations

from typing import Final

from advisor.quantities import percent_text, seconds_text, size_text
from advisor.records.nouns import RunRecord

_KERNELS: Final = "_kernel_fraction"
_MEMORY: Final = ("gpu_memory_bytes", "memory_bytes")
_PEAKS: Final = ("gpu_memory_peak_bytes", "memory_peak_bytes")


def words_of(run: RunRecord) -> str:
    """Return what a run says of step, input, kernels, use and memory, and what it does not say."""
    facts = {name: value for name, value in run.facts.items() if isinstance(value, float)}
    means = {
        name: sum(values) / len(values)
        for series in run.series
        for name, values in series.channels.items()
        if values
    }
    step_s = run.time_s if run.time_kind == "step" else facts.get("step_time_s")
    rate = means.get("steps_per_s")
    step_s = 1.0 / rate if step_s is None and rate else step_s
    kinds = sorted(
        ((value, name.removesuffix(_KERNELS)) for name, value in facts.items()
         if name.endswith(_KERNELS)), reverse=True,
    )  # fmt: skip
    use = facts.get("gpu_fraction", means.get("gpu_fraction"))
    cores = means.get("cpu_cores")
    peaks = [value for s in run.series for n in _MEMORY for value in s.channels.get(n, ())]
    peak = facts.get(
        "gpu_memory_peak_bytes", facts.get("memory_peak_bytes", max(peaks, default=0))
    )
    parts = {
        "step": "" if step_s is None else seconds_text(step_s),
        "input": _share(facts.get("input_wait_fraction")),
        "kernels": ", ".join(f"{name} {percent_text(value)}" for value, name in kinds),
        "use": _share(use) or ("" if cores is None else f"{cores:.3g} cores"),
        "memory": size_text(peak) if peak else "",
    }
    said = "; ".join(f"{name} {text}" for name, text in parts.items() if text)
    unsaid = ", ".join(name for name, text in parts.items() if not text)
    is_step = run.time_kind == "step" or run.time_s is None
    took = "" if is_step else f"{seconds_text(run.time_s or 0.0)}; "
    name = run.record_id.partition("/")[2] or run.record_id
    return f"  {name}: {took}{said or 'its time alone'}" + (
        f" (not said: {unsaid})" if unsaid else ""
    )


def _share(value: float | None) -> str:
    return "" if value is None else percent_text(value)
