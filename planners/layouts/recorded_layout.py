"""Model and machine that the planners of recorded models start from, and the layout they return.

A recorded model is an ordinary script's: its units of layers (``planners.step.model_units``) with
their times on a device (``planners.step.unit_times``) and their memory
(``planners.memory.unit_memory``), not the dimensions of a transformer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from advisor.planners.core.nouns import Node, Work
from advisor.planners.layouts.planned import PlannedLayout
from advisor.planners.links.data_parallel import ScalingParameters
from advisor.planners.memory.training_memory import MemoryParameters
from advisor.planners.memory.unit_memory import UnitTable
from advisor.planners.step.model_units import TransformerBlocks
from advisor.planners.step.unit_times import UnitTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedModel:
    """A recorded model and the constants that its planners need.

    Attributes
    ----------
    usable_fraction : float
        Share of a device's memory that a layout may fill.
    host_update_bytes_per_s, offload_overlap : float
        Rate at which a host's CPUs update the optimizer's bytes; hidden share of what moves.
    """

    work: Work
    table: UnitTable
    blocks: TransformerBlocks | None
    memory: MemoryParameters
    scaling: ScalingParameters
    usable_fraction: float = 1.0
    host_update_bytes_per_s: float = 20e9
    offload_overlap: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMachine:
    """One kind of machine as the search needs it.

    Attributes
    ----------
    times : mapping of int to UnitTimes
        By tensor-parallel degree; 1 is always there.
    load_s_per_sample : float
        Of one device's share of the machine's loader cores. [s]
    loads_inline : bool
        Loading happens in the training loop, not beside it.
    """

    node: Node
    times: Mapping[int, UnitTimes]
    load_s_per_sample: float = 0.0
    loads_inline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLayout(PlannedLayout):
    """A layout of a recorded model with what the planner says of it.

    Attributes
    ----------
    log_sd : float
        One standard deviation of ln(error).
    """

    stages: tuple[int, ...]
    log_sd: float


# Repeats of one run on one machine with the same software scatter by 3 % (reference: MLPerf
# rounds): a layout that gains less is not worth its complexity.
INDISTINGUISHABLE: Final = 1.03
