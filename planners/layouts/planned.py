"""A layout with what the model says of it, and what a search saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from advisor.planners.core.nouns import Layout

PARTS: Final = (
    "compute_s",
    "inside_layer_s",
    "pipeline_s",
    "data_parallel_s",
    "optimizer_s",
    "offload_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayout:
    """A layout with what the model says of it.

    Attributes
    ----------
    memory_bytes, host_bytes : float
        On the fullest device; on a node for offload. [bytes]
    parts_s : dict of str to float
        What the step is made of (``PARTS`` of a transformer); they sum to it. [s]
    """

    layout: Layout
    step_s: float
    memory_bytes: float
    host_bytes: float
    parts_s: dict[str, float]


@dataclass(slots=True)
class Found:
    """What one search saw.

    Attributes
    ----------
    considered, fitting : int
        Valid layouts, and those that fit into memory.
    nearest : (float, Layout) or None
        The layout that misses by the fewest bytes where none fits.
    least_s : float
        The fastest step that was seen to fit. [s]
    """

    best: PlannedLayout | None = None
    considered: int = 0
    fitting: int = 0
    nearest: tuple[float, Layout] | None = None
    least_s: float = float("inf")

    def misses(self, excess_bytes: float, layout: Layout) -> None:
        """Keep a layout that does not fit if none misses by less."""
        if self.nearest is None or excess_bytes < self.nearest[0]:
            self.nearest = excess_bytes, layout
