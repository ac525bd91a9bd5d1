"""Moments of a recorded step: what lived beside weights and optimizer state.

The replay of a step's allocations at every size of the batch at once: whatever the micro-batch,
the step's peak is one of these moments (the upper hull of fixed and growing bytes).
"""

from __future__ import annotations

from dataclasses import dataclass

from advisor.planners.core.checks import check_not_negative


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One moment that is the step's peak for some size of the micro-batch.

    Attributes
    ----------
    gradient_bytes : float
        Of the parameters' gradients that were there. [bytes]
    temporary_bytes : float
        What else does not grow with the micro-batch: what an optimizer computes with, a
        micro-batch's gradient before it is added. [bytes]
    growing_bytes_per_sample : float
        Activations, their gradients, logits. [bytes/sample]
    blocks : int
        Storages that lived; 0 where nobody counted.
    is_update : bool
        The temporaries are what an accelerator's optimizer updates parameters in groups with.
    """

    gradient_bytes: float
    temporary_bytes: float
    growing_bytes_per_sample: float
    blocks: int = 0
    is_update: bool = False

    def __post_init__(self) -> None:
        check_not_negative(
            "moment",
            gradient_bytes=self.gradient_bytes,
            temporary_bytes=self.temporary_bytes,
            growing_bytes_per_sample=self.growing_bytes_per_sample,
            blocks=self.blocks,
        )
