"""One question to the layout model: which transformers, how laid out, on what, run by what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from advisor.planners.core.columns import Column, Layouts, Machines, Shapes, Software
from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.layer_table import LayerTable
from advisor.planners.core.layout_parameters import LayoutParameters

# Share of the datasheet's bandwidth that streaming kernels reach (measured, A100 and H100).
STREAM_SHARE: Final = 0.856


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutConditions:
    """Machines, the software on them, and the constants of the layout model.

    Attributes
    ----------
    layer_table : LayerTable or None
        Times of a layer by micro-batch, where another law than that of the shapes gives them.
    device_factor : Column
        What measured steps of the job say of the model's times on the device: a factor.
    """

    machines: Machines
    software: Software = field(default_factory=Software)
    parameters: LayoutParameters = field(default_factory=LayoutParameters)
    layer_table: LayerTable | None = None
    device_factor: Column = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCase(LayoutConditions):
    """Columns of a question to the model; all of them broadcast."""

    shapes: Shapes
    layouts: Layouts

    @property
    def tokens(self) -> Floats:
        """Tokens of a micro-batch on one rank: b s / cp."""
        samples = self.layouts.micro_batch * np.asarray(self.shapes.sequence, float)
        return np.asarray(samples / self.layouts.cp)

    @property
    def stream_bytes_per_s(self) -> Floats:
        """Memory bandwidth that elementwise kernels reach [bytes/s]."""
        return STREAM_SHARE * np.asarray(self.machines.memory_bytes_per_s, float)
