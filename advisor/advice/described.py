"""Models that were described, not run: what of the training software could be chosen otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from advisor.advice.facts import Facts, source
from advisor.advice.record import Advice, How
from advisor.errors import AdvisorError
from advisor.jobs.loading import job_of
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.setup import TrainingSetup
from advisor.question import JobSpec, SetupRequest

_MODEL: Final = "the device model, asked about the described model in other software"
# Training from scratch takes about 20 tokens a parameter (Hoffmann et al., 2022); with fewer
# tokens than parameters a model is being tuned.
_TUNED_BELOW: Final = 1.0
_RANK: Final = 16

# Name, what is chosen, the change, the condition, the flag, whether the model is kept.
_CURES: Final[tuple[tuple[str, dict[str, Any], str, str, str, bool], ...]] = (
    ("fused-kernels", {"kernels": "fused"},
     "Use fused kernels for norms, activations and losses (Liger, Megatron).",
     "Where kernels exist for the model's family.", "--kernels fused", True),
    ("bf16-weights", {"weights": "bf16"},
     "Keep weights, gradients and moments in bf16.",
     "With stochastic rounding, or small learning rates lose updates.", "--weights bf16", False),
    ("adafactor", {"optimizer": "adafactor"},
     "Use Adafactor: a row and a column of state a matrix.",
     "Its learning rate is tuned anew.", "--optimizer adafactor", False),
    ("overlap", {"overlaps": True},
     "Reduce gradients behind the backward pass.",
     "DDP and FSDP do so by default.", "--overlap", True),
)  # fmt: skip
_TUNING: Final[tuple[tuple[str, dict[str, Any], str, str, str, bool], ...]] = (
    ("lora", {"adapter_rank": _RANK},
     f"Train low-rank adapters of rank {_RANK} (LoRA) in place of all weights.",
     "For tuning; compare with full tuning on your own task.", f"--lora {_RANK}", False),
    ("qlora", {"adapter_rank": _RANK, "base_bits": 4},
     f"Train adapters of rank {_RANK} beside weights in 4 bits (QLoRA).",
     "For tuning, where memory decides: products are slower.", f"--lora {_RANK} --base-bits 4",
     False),
    ("freeze", {"frozen_fraction": 0.5},
     "Freeze the first half of the layers.",
     "For tuning on data like that of the first training.", "--frozen 50%", False),
)  # fmt: skip


def _other_software(facts: Facts) -> Iterator[Advice | None]:
    """Offer a described transformer other training software."""
    job, work = facts.job, facts.job.work
    if work is None or work.transformer is None or job.measured is not None:
        return
    tokens = job.total_steps * job.global_batch * work.transformer.sequence
    is_tuned = tokens < _TUNED_BELOW * work.parameters
    for name, chosen, change, condition, flag, is_kept in _CURES + (_TUNING if is_tuned else ()):
        if _is_so(work.setup, chosen) or (is_tuned and work.setup.has_adapters):
            continue
        try:
            changed = job_of(JobSpec(), SetupRequest(**chosen), job=job)
        except (AdvisorError, PlanningError):
            continue  # contradicts what is chosen already
        yield facts.priced(
            changed, name=name, change=change, rests_on=_MODEL,
            condition=condition, how=How(kind="flag", text=flag), is_model_kept=is_kept,
        )  # fmt: skip


def _is_so(setup: TrainingSetup, chosen: dict[str, Any]) -> bool:
    return all(getattr(setup, name) == value for name, value in chosen.items())


advise: Final = source("described", _other_software)
