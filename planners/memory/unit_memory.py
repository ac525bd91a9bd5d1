"""Memory of a recorded model's stages, unit by unit: what a partition may add up.

| here             | papers | meaning                                                            |
|------------------|--------|--------------------------------------------------------------------|
| ``state_bytes``  | 16 P   | weights, gradients, optimizer state of a unit, by ZeRO stage       |
| ``kept_bytes``   | -      | activations of a unit that one micro-batch keeps                   |
| ``live_bytes``   | -      | of the unit whose activations are computed again, all at once      |
| ``base_bytes``   | -      | context, and the micro-batch's own samples                         |

Recomputation is by unit: only a unit's input is kept, and one unit is live (Chen et al., 2016,
section 3, with segments of one block, as ``torch.utils.checkpoint`` is used). Everything else is
``planners.memory.training_memory``, whose total over all units this equals.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.nouns import Work
from advisor.planners.memory.equations import state_bytes
from advisor.planners.memory.step_moments import excess_bytes, rounding_bytes
from advisor.planners.memory.training_memory import MemoryParameters, training_memory_bytes
from advisor.planners.step.model_units import Unit

# What becomes of the activations between forward and backward.
Kept = Literal["kept", "recomputed", "offloaded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTable:
    """A model's units as columns of shape (n_units,).

    Attributes
    ----------
    parameters, whole_share : arrays
        Parameters, and the part of them that tensor parallelism leaves whole.
    saved_bytes, input_bytes, output_bytes : arrays
        Kept for the backward pass, taken from the unit before, handed on. [bytes/sample]
    """

    names: tuple[str, ...]
    parameters: Floats
    whole_share: Floats
    saved_bytes: Floats
    input_bytes: Floats
    output_bytes: Floats
    is_block: NDArray[np.bool_]

    @classmethod
    def of(cls, parts: Sequence[Unit], work: Work) -> UnitTable:
        """Return the units of a model as columns."""
        output = np.array([p.output_bytes_per_sample for p in parts])
        return cls(
            names=tuple(p.name for p in parts),
            parameters=np.array([float(p.parameters) for p in parts]),
            whole_share=np.array([p.whole_share if p.is_block else 1.0 for p in parts]),
            saved_bytes=np.array([p.saved_bytes_per_sample for p in parts]),
            input_bytes=np.concatenate([[work.input_bytes_per_sample], output[:-1]]),
            output_bytes=output,
            is_block=np.array([p.is_block for p in parts]),
        )

    def held_parameters(self, tp: int = 1) -> Floats:
        """Return each unit's parameters on one of ``tp`` ranks."""
        return self.parameters * (self.whole_share + (1 - self.whole_share) / tp)

    def kept_bytes(self, tp: int, way: Kept) -> Floats:
        """Return each unit's activations that one sample keeps on one rank [bytes].

        The inputs of a block's two halves are whole on every rank (Korthikanti et al., 2022,
        equation 2 without sequence parallelism), the rest is divided.
        """
        if way == "offloaded":
            return np.zeros_like(self.saved_bytes)
        if way == "recomputed":
            return np.minimum(self.input_bytes, self.saved_bytes)
        whole = np.minimum(2 * self.input_bytes, self.saved_bytes)
        divided = whole + (self.saved_bytes - whole) / tp
        return np.where(self.is_block & (tp > 1), divided, self.saved_bytes)

    def live_bytes(self, tp: int, way: Kept) -> float:
        """Return what is on the device beside the kept activations [bytes/sample].

        One unit while it is recomputed; two while one is copied to the host and back.
        """
        units = {"kept": 0.0, "recomputed": 1.0, "offloaded": 2.0}[way]
        return units * float(self.kept_bytes(tp, "kept").max())


def unit_state_bytes(
    work: Work,
    table: UnitTable,
    *,
    tp: int,
    dp: int,
    zero_stage: int,
    offload: AbstractSet[str],
    memory: MemoryParameters,
) -> Floats:
    """Return what each unit's parameters take on a device, slack included, (n_units,) [bytes]."""
    bare = replace(
        work, saved_bytes_per_sample=0.0, input_bytes_per_sample=0.0, transformer=None, moments=()
    )
    total = training_memory_bytes(
        bare, 1, dp=dp, zero_stage=zero_stage, offload=offload, is_alone=False,
        parameters=memory,
    )  # fmt: skip
    each = (float(total) - memory.context_bytes) / max(work.parameters, 1)
    return table.held_parameters(tp) * each


def base_bytes(work: Work, micro_batch: Floats, memory: MemoryParameters) -> Floats:
    """Return what a device holds whatever its units [bytes].

    Context, the micro-batch's samples, and what the recorded step held beside gradients and saved
    activations, wherever in the model that was.
    """
    passing = micro_batch * work.input_bytes_per_sample + excess_bytes(work, micro_batch)
    return np.asarray(memory.context_bytes + rounding_bytes(work) + memory.slack * passing)


def offloaded_bytes(
    work: Work,
    table: UnitTable,
    *,
    tp: int,
    dp: int,
    zero_stage: int,
    kept_bytes: float,
    offload: AbstractSet[str],
) -> float:
    """Return the host memory that one device's offloading takes, all units on it [bytes]."""
    share = float(table.held_parameters(tp).sum()) / max(work.parameters, 1)
    states = state_bytes(
        work.parameter_bytes * share if "parameters" in offload else 0.0,
        0.0,
        (work.optimizer_state_bytes + work.parameter_bytes) * share
        if "optimizer" in offload
        else 0.0,
        dp=dp,
        zero_stage=zero_stage,
    )
    return float(states) + (kept_bytes if "activations" in offload else 0.0)
