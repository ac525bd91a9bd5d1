"""The optimizer's update: fused kernels, fewer bytes of state, gradients that are dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from advisor.advice.edits import Cut, cut_of, without
from advisor.advice.facts import Facts, source
from advisor.advice.record import Advice, How
from advisor.advice.script import SourceScript, argument, has_argument
from advisor.advice.software import MODEL, moved_once
from advisor.collectors.recording import OperatorCount
from advisor.jobs.loading import job_of
from advisor.machines.host import host_device
from advisor.question import JobSpec, SetupRequest

# Fused updates of PyTorch (torch.optim, ``fused=``), and the fp32 numbers of a parameter that one
# pass reads and writes: weight twice, gradient once, each moment twice.
_FUSED: Final = {"Adam": 7.0, "AdamW": 7.0, "SGD": 5.0, "Adagrad": 5.0}
# What a fused update costs beside its pass over memory, and for each tensor: Adam's with 4 to 100
# tensors of 1,000 numbers, one thread of an AMD EPYC (benchmarks/eager_calls.py, 2026-11-22). [s]
_FUSED_CALL_S: Final = 26e-6
_FUSED_TENSOR_S: Final = 3.9e-6
# Numbers changed in place over those copied by the benchmark, whose destination is read first.
_IN_PLACE: Final = 1.5
# Of what the recorded update ran in: a kernel of its own, or over lists of tensors.
_KERNELS: Final = ("aten::_fused_", "fused_")
_ZEROS: Final = ("aten::zero_", "aten::_foreach_zero_")


def _fused(facts: Facts) -> Iterator[Advice | None]:
    """Offer ``fused=True`` where the update runs operator by operator, as it was recorded."""
    job, recording = facts.job, facts.recording
    if recording is None or recording.deep_step is None or job.measured is None:
        return
    if facts.has_accelerators and recording.deep_step.device == "cpu":
        return  # on accelerators PyTorch updates lists of tensors by itself
    names = set(recording.optimizers)
    if not names or not names <= set(_FUSED) or job.work is None:
        return
    cut = cut_of(facts, _is_update)
    if cut is None or any(one.name.startswith(_KERNELS) for one in cut.operators):
        return
    cut = _as_timed(cut, recording.deep_step.update_s, job.measured.step_s)
    tensors = _most_calls(cut.operators)
    update = moved_once(
        job.work.trainable_parameters, max(_FUSED[name] for name in names), tensors
    )
    device = host_device(job.measured.host, job.measured.threads, job.measured.device)
    if device is None:
        return
    instead_s = update.bytes / (_IN_PLACE * device.memory_bytes_per_s)
    instead_s += _FUSED_CALL_S + tensors * _FUSED_TENSOR_S
    yield facts.priced(
        without(job, cut, instead=(update,), instead_s=min(instead_s, cut.seconds)),
        name="fused-optimizer",
        change=f"Update the parameters in one kernel: {sorted(names)[0]}(..., fused=True).",
        evidence="measured",
        rests_on=f"the update took {cut.share:.1%} of the recorded step in "
        f"{sum(one.count for one in cut.operators):,} operators; fused it moves "
        f"{update.bytes / 1e6:.3g} MB once",
        condition="Parameters of floating point on a CPU or GPU; not beside foreach=True.",
        how=How(kind="lines", text=_fused_lines(facts, names)),
    )


def _as_timed(cut: Cut, update_s: float | None, step_s: float) -> Cut:
    """Return the update with the time that it took in ordinary steps, where that was taken.

    Its operators alone are less: between them PyTorch goes through the parameters in Python.
    """
    if update_s is None or step_s <= 0:
        return cut
    return replace(cut, seconds=min(update_s, step_s), share=min(update_s / step_s, 1.0))


def _most_calls(operators: Iterable[OperatorCount]) -> int:
    """Return how often the update called what it calls most: once a tensor, or twice."""
    calls: Counter[str] = Counter()
    for one in operators:
        calls[one.name] += one.count
    return max(calls.values())


def _is_update(one: OperatorCount) -> bool:
    return one.phase == "optimizer" and not one.name.startswith("profiler::")


def _fused_lines(facts: Facts, names: set[str]) -> str:
    """Return the change of the script, or of any."""
    script = SourceScript.of(facts.recording)
    calls = () if script is None else script.named(*names)
    if script is None or not calls or any(has_argument(call, "fused") for call in calls):
        return f"torch.optim.{sorted(names)[0]}(..., fused=True)"
    return script.with_arguments(*calls, fused="True")


def _eight_bits(facts: Facts) -> Iterator[Advice | None]:
    """Offer 8-bit moments where Adam's fp32 ones are kept on accelerators."""
    assert facts.job.work is not None
    if facts.job.work.setup.optimizer != "adamw" or not facts.has_accelerators:
        return
    yield facts.priced(
        job_of(JobSpec(), SetupRequest(optimizer="adamw-8bit"), job=facts.job),
        name="8-bit-optimizer",
        change="Keep Adam's moments in 8 bits: bitsandbytes.optim.AdamW8bit.",
        rests_on=f"{MODEL}; 2 bytes of state a parameter in place of 8 (Dettmers et al., 2022)",
        condition="NVIDIA GPUs; embeddings are best kept in 32 bits.",
        how=How(
            kind="lines",
            text="import bitsandbytes\n"
            "optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=...)",
        ),
        is_model_kept=False,
    )


def _dropped_gradients(facts: Facts) -> Iterator[Advice | None]:
    """Offer to drop gradients where they are written over with zeros every step."""
    script = SourceScript.of(facts.recording)
    if script is None:
        return
    calls = [c for c in script.named("zero_grad") if argument(c, "set_to_none") is False]
    gradients = _gradient_sizes(facts)
    cut = cut_of(facts, lambda one: one.name in _ZEROS and one.shapes.split(",")[0] in gradients)
    if not calls or cut is None:
        return
    yield facts.priced(
        without(facts.job, cut),
        name="drop-gradients",
        change="Drop gradients in place of zeroing them: zero_grad(set_to_none=True).",
        evidence="measured",
        rests_on=f"zeroing gradients took {cut.share:.1%} of the recorded step",
        condition="Unless code reads .grad between zero_grad and backward.",
        how=How(kind="lines", text=script.with_arguments(*calls, set_to_none="True")),
    )


def _gradient_sizes(facts: Facts) -> set[str]:
    """Return the sizes of what the update reads, as operators write them."""
    recording = facts.recording
    if recording is None or recording.deep_step is None:
        return set()
    updates = (one for one in recording.deep_step.operators if one.phase == "optimizer")
    return {size for one in updates for size in one.shapes.split(",") if size}


advise: Final = source("optimizers", _fused, _eight_bits, _dropped_gradients)
