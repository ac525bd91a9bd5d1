"""One transformer on one kind of machine: its fastest layout on so many devices, and a bound.

Layouts are evaluated as blocks of columns (``planners.layouts.grid``): memory first, then time
where it fits, block by block, so that memory stays bounded however many layouts there are.
Deterministic: of equal layouts the first in the grid's order wins, which is the simpler one.
Layouts that move anything to host memory are looked at only where they could be the fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from advisor.planners.core.case import LayoutCase
from advisor.planners.core.columns import (
    Layouts,
    Machines,
    Shapes,
    Software,
    device_parameters,
    domain_devices,
)
from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.layer_table import LayerTable
from advisor.planners.core.layout_parameters import LayoutParameters
from advisor.planners.core.nouns import Layout, Transformer
from advisor.planners.layouts.grid import (
    Bools,
    Ints,
    SearchSpace,
    Splits,
    block,
    layout_at,
    recomputes,
    shards,
    splits,
)
from advisor.planners.layouts.layout_time import (
    StepTimes,
    calibrated,
    step_times,
)
from advisor.planners.layouts.planned import PARTS, PlannedLayout
from advisor.planners.layouts.runnable import layout_columns
from advisor.planners.memory.layout_memory import (
    MemoryConstants,
    StageAsked,
    host_bytes,
    memory_bytes,
)
from advisor.planners.step.transformer_step import layer_times

# Entries of a block: its temporaries stay in the processor's cache.
_BLOCK: Final = 60_000
# Micro-batches among which the fewest seconds a sample are looked for: beyond, nothing saturates.
_LARGE_MICRO_BATCHES: Final = (1, 4, 16, 64, 256, 1024)


def shapes_of(
    transformer: Transformer, *, trained_share: float = 1.0, passed_share: float = 1.0
) -> Shapes:
    """Return a transformer as (scalar) columns."""
    return Shapes(
        layers=transformer.layers,
        hidden=transformer.hidden,
        heads=transformer.heads,
        kv_heads=transformer.kv_heads or transformer.heads,
        ffn=transformer.ffn or 4 * transformer.hidden,
        matrices=3 if transformer.is_gated else 2,
        sequence=transformer.sequence,
        vocabulary=transformer.vocabulary,
        experts=transformer.experts,
        experts_per_token=transformer.experts_per_token,
        trained_share=trained_share,
        passed_share=passed_share,
        tables=2 if transformer.has_head and not transformer.has_tied_embeddings else 1,
    )


_ONE_DEVICE: Final = Layouts(
    dp=1, tp=1, pp=1, micro_batch=1, accumulation_steps=1, shard_group=1
)  # fmt: skip


@dataclass(slots=True)
class Found:
    """What one search saw.

    Attributes
    ----------
    best : PlannedLayout or None
        The fastest that fits.
    considered, fitting : int
        Valid layouts, and those that fit into memory.
    nearest : (float, Layout) or None
        The layout that misses by the fewest bytes where none fits.
    """

    best: PlannedLayout | None = None
    considered: int = 0
    fitting: int = 0
    nearest: tuple[float, Layout] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutProblem:
    """A transformer, the machines it is laid out on, and the constants of the model.

    Attributes
    ----------
    transformer : Transformer
    machines : Machines
        Scalars: one kind of node.
    software : Software
    parameters : LayoutParameters
    memory : MemoryConstants
    layer_table : LayerTable or None
        Times of a layer on the device, where the law of the transformer's shapes does not hold.
    device_factor : float
        What measured steps of the job say of the device.
    trained_share, passed_share : float
        Of the parameters, those that are trained; of the layers, those with a backward pass.
    admits : function of Layouts, optional
        Which layouts a framework runs (``planners.layouts.runnable``); all where not given.
    """

    transformer: Transformer
    machines: Machines
    software: Software = field(default_factory=Software)
    parameters: LayoutParameters = field(default_factory=LayoutParameters)
    memory: MemoryConstants = field(default_factory=MemoryConstants)
    layer_table: LayerTable | None = None
    device_factor: float = 1.0
    trained_share: float = 1.0
    passed_share: float = 1.0
    admits: Callable[[Layouts], Bools] | None = None

    @property
    def shapes(self) -> Shapes:
        """The transformer as scalar columns."""
        return shapes_of(
            self.transformer, trained_share=self.trained_share, passed_share=self.passed_share
        )

    @property
    def joined_devices(self) -> int:
        """Devices that the link inside a node joins: those of a node, or of an NVLink domain."""
        return int(domain_devices(self.machines))

    @property
    def capacity_bytes(self) -> float:
        """Device memory that a layout may fill [bytes]."""
        return float(self.machines.memory_bytes) - float(self.machines.kept_free_bytes)

    def case(self, layouts: Layouts) -> LayoutCase:
        """Return the question of what these layouts take."""
        return LayoutCase(
            shapes=self.shapes,
            layouts=layouts,
            machines=self.machines,
            software=self.software,
            parameters=self.parameters,
            layer_table=self.layer_table,
            device_factor=self.device_factor,
        )

    def evaluate(self, layout: Layout) -> PlannedLayout:
        """Return what one layout takes, whether it fits or not."""
        columns = layout_columns(layout)
        on_host = host_bytes(self.shapes, columns, self.machines, self.software)
        times = self.times(columns)
        return PlannedLayout(
            layout=layout,
            step_s=float(times.step_s),
            memory_bytes=float(self.used_bytes(columns)),
            host_bytes=float(on_host),
            parts_s={part: float(getattr(times, part)) for part in PARTS},
        )

    def times(self, layouts: Layouts) -> StepTimes:
        """Return the step of every layout and its parts, fitting or not [s]."""
        return step_times(self.case(layouts))

    def used_bytes(self, layouts: Layouts, stage: StageAsked = "fullest") -> Floats:
        """Return the memory of the fullest device in every layout, or of the first stage's."""
        return memory_bytes(self.shapes, layouts, self.software, self.memory, stage=stage)

    def search(self, devices: int, global_batch: int, space: SearchSpace) -> Found:
        """Return the fastest layout over all of ``devices`` that fits.

        What moves to host memory and back only adds to a step. So layouts that move anything are
        looked at only where they would be faster than what fits without, if moving were free.
        """
        found = Found()
        axis = splits(self.transformer, devices, global_batch, space)
        moves, stays = _moving(shards(space))
        missing_s = self._stay(axis, recomputes(space), stays, found)
        if moves["zero_stage"].size:
            self._move(axis, recomputes(space), moves, missing_s, found)
        return found

    def fits(self, devices: int, global_batch: int, space: SearchSpace) -> bool:
        """Whether any layout fits into memory; no time is computed."""
        axis = splits(self.transformer, devices, global_batch, space)
        recompute, shard = recomputes(space), shards(space)
        for start in range(0, len(axis), _BLOCK // 16):
            part = axis.columns(slice(start, start + _BLOCK // 16))
            layouts, valid = block(part, recompute, shard, self.joined_devices)
            if self.admits is not None:
                valid = valid & self.admits(layouts)
            used = self.used_bytes(layouts)
            if np.any(valid & (used <= self.capacity_bytes)):
                return True
        return False

    def _stay(
        self, axis: Splits, recompute: dict[str, Ints], shard: dict[str, Ints], found: Found
    ) -> Floats:
        """Look at all layouts with nothing in host memory.

        Returns the least time of each split among those that do not fit. [s]
        """
        missing_s = np.full(len(axis), np.inf)
        width = max(1, _BLOCK // (recompute["recompute"].size * shard["zero_stage"].size))
        for start in range(0, len(axis), width):
            part = slice(start, start + width)
            missing_s[part] = self._block(axis.columns(part), recompute, shard, found)
        return missing_s

    def _move(
        self, axis: Splits, recompute: dict[str, Ints], shard: dict[str, Ints], missing_s: Floats,
        found: Found,
    ) -> None:  # fmt: skip
        """Look at layouts with something in host memory, the most promising splits first."""
        order = np.argsort(missing_s, kind="stable")
        order = order[np.isfinite(missing_s[order])]
        width = max(1, _BLOCK // (recompute["recompute"].size * shard["zero_stage"].size))
        for start in range(0, len(order), width):
            rows = np.sort(order[start : start + width])
            if found.best is not None:
                rows = rows[missing_s[rows] < found.best.step_s]
            if not rows.size:
                return
            self._block(axis.columns(rows), recompute, shard, found)

    def _block(
        self, part: dict[str, Ints], recompute: dict[str, Ints], shard: dict[str, Ints],
        found: Found,
    ) -> Floats:  # fmt: skip
        """Look at a block; return the least time of each split that does not fit [s]."""
        layouts, valid = block(part, recompute, shard, self.joined_devices)
        if self.admits is not None:
            valid = valid & self.admits(layouts)
        used = self.used_bytes(layouts)
        on_host = host_bytes(self.shapes, layouts, self.machines, self.software)
        shape = np.broadcast_shapes(used.shape, valid.shape, on_host.shape)
        fits = valid & (used <= self.capacity_bytes)
        fits = fits & (on_host <= self.machines.host_memory_bytes)
        found.considered += int(np.count_nonzero(valid)) * (
            int(np.prod(shape)) // int(np.prod(valid.shape))
        )
        count = int(np.count_nonzero(fits))
        found.fitting += count
        if not count:
            self._miss(layouts, used, valid, shape, found)
        times = self.times(layouts)
        step_s = np.where(fits, times.step_s, np.inf)
        index = np.unravel_index(int(np.argmin(step_s)), shape)
        least = float(step_s[index])
        if least < (np.inf if found.best is None else found.best.step_s):
            found.best = _planned(layouts, times, (used, on_host), index, shape)
        missing_s = np.where(valid & ~fits, times.step_s, np.inf)
        return np.asarray(np.broadcast_to(missing_s, shape).min(axis=(1, 2)))

    def _miss(
        self,
        layouts: Layouts,
        used: np.ndarray,
        valid: np.ndarray,
        shape: tuple[int, ...],
        found: Found,
    ) -> None:
        excess = np.where(valid, used - self.capacity_bytes, np.inf)
        excess = np.broadcast_to(excess, shape)
        index = np.unravel_index(int(np.argmin(excess)), shape)
        least = float(excess[index])
        if np.isfinite(least) and (found.nearest is None or least < found.nearest[0]):
            found.nearest = least, layout_at(layouts, tuple(int(i) for i in index), shape)

    def least_step_s(self, devices: int, global_batch: int, device_s: float) -> float:
        """Return a bound from below on the step in any layout; inf where none can fit [s].

        Computing alone, shared evenly; and where the state is larger than all devices' memory,
        what the hosts take to update the part of it that lies with them.

        Parameters
        ----------
        devices, global_batch : int
        device_s : float
            ``least_device_s_per_sample``, which is the same for all machines with the device.
        """
        software, machines = self.software, self.machines
        parameters = float(device_parameters(self.shapes, _ONE_DEVICE))
        state_bytes = self._state_bytes()
        nodes = devices / float(machines.devices_per_node)
        room = devices * (self.capacity_bytes - self.memory.context_bytes) / self.memory.slack
        computing_s = device_s * global_batch / devices
        if state_bytes <= room:
            return computing_s
        if state_bytes > room + nodes * float(machines.host_memory_bytes):
            return float("inf")
        touched = float(software.gradient_bytes) + float(software.optimizer_state_bytes)
        update_s = touched * self.trained_share * parameters / nodes
        return computing_s + update_s / self.parameters.host_update_bytes_per_s

    def _state_bytes(self) -> float:
        software = self.software
        trained = float(software.gradient_bytes) + float(software.optimizer_state_bytes)
        each = float(software.weight_bytes) + self.trained_share * trained
        return float(device_parameters(self.shapes, _ONE_DEVICE)) * each

    def least_state_bytes(self) -> float:
        """Return what the state takes of all devices together, one copy of it [bytes]."""
        return self.memory.slack * self._state_bytes()

    def least_device_s_per_sample(self) -> float:
        """Return device-seconds that a sample takes at least, in any layout [s].

        A whole model on one device at the best micro-batch, every tile and wave full and nothing
        waited for: splitting only adds to it. A bound from below, for pruning.
        """
        ideal = replace(
            self.parameters, wave_exponent=0.0, misaligned_gemm=1.0, misaligned_heads=1.0
        )
        micro = np.array(_LARGE_MICRO_BATCHES, float)
        layouts = replace(_ONE_DEVICE, micro_batch=micro)
        case = replace(self.case(layouts), parameters=ideal)
        layer = calibrated(layer_times(case), self.device_factor)
        each = (layer.forward_s + layer.backward_s) * self.transformer.layers / micro
        return float(np.min(each))


def _moving(shard: dict[str, Ints]) -> tuple[dict[str, Ints], dict[str, Ints]]:
    """Return the shards with something in host memory, and those with nothing there."""
    moves = np.sum([column for name, column in shard.items() if "offloads" in name], axis=0) > 0
    return tuple(
        {name: column[:, :, which.ravel()] for name, column in shard.items()}
        for which in (moves, ~moves)
    )  # type: ignore[return-value]


def _planned(
    layouts: Layouts,
    times: StepTimes,
    bytes_: tuple[Floats, Floats],
    index: Sequence[np.intp],
    shape: tuple[int, ...],
) -> PlannedLayout:
    place = tuple(int(i) for i in index)

    def at(values: np.ndarray) -> float:
        return float(np.broadcast_to(values, shape)[place])

    return PlannedLayout(
        layout=layout_at(layouts, place, shape),
        step_s=at(times.step_s),
        memory_bytes=at(bytes_[0]),
        host_bytes=at(bytes_[1]),
        parts_s={part: at(getattr(times, part)) for part in PARTS},
    )
