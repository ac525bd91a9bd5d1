"""One transformer on one kind of machine: its fastest layout on so many devices, and a bound.

Layouts are evaluated as blocks of columns (``planners.layouts.grid``): memory first, then time
where it fits, block by block, so that memory stays bounded however many layouts there are.
Deterministic: of equal layouts the first in the grid's order wins, which is the simpler one.
Layouts that move anything to host memory are looked at only where they could be the fastest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Final

import numpy as np

from advisor.planners.core.case import LayoutCase, LayoutConditions
from advisor.planners.core.columns import (
    Layouts,
    Shapes,
    device_parameters,
    domain_devices,
    shapes_of,
)
from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.nouns import Layout, Transformer
from advisor.planners.layouts.grid import (
    Bools,
    Ints,
    SearchSpace,
    axis_part,
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
from advisor.planners.layouts.planned import PARTS, Found, PlannedLayout
from advisor.planners.layouts.runnable import layout_columns
from advisor.planners.memory.equations import MemoryConstants
from advisor.planners.memory.layout_memory import StageAsked, host_bytes, memory_bytes
from advisor.planners.step.transformer_step import layer_times

# Entries of a block: its temporaries stay in the processor's cache.
_BLOCK: Final = 60_000
# Micro-batches among which the fewest seconds a sample are looked for: beyond, nothing saturates.
_LARGE_MICRO_BATCHES: Final = (1, 4, 16, 64, 256, 1024)

_ONE_DEVICE: Final = layout_columns(Layout())


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutProblem(LayoutConditions):
    """A transformer to be laid out on one kind of node: machines and factor are scalars.

    Attributes
    ----------
    trained_share, passed_share : float
        Of the parameters, those that are trained; of the layers, those with a backward pass.
    admits : function of Layouts, optional
        Which layouts a framework runs (``planners.layouts.runnable``); all where not given.
    """

    transformer: Transformer
    device_factor: float = 1.0
    memory: MemoryConstants = field(default_factory=MemoryConstants)
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
        same = {one.name: getattr(self, one.name) for one in fields(LayoutConditions)}
        return LayoutCase(shapes=self.shapes, layouts=layouts, **same)

    def evaluate(self, layout: Layout) -> PlannedLayout:
        """Return what one layout takes, whether it fits or not."""
        columns = layout_columns(layout)
        on_host = host_bytes(self.shapes, columns, self.machines, self.software)
        bytes_ = self.used_bytes(columns), on_host
        return _planned(layout, self.times(columns), bytes_, (), ())

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
        for start in range(0, np.size(axis.dp), _BLOCK // 16):
            part = axis_part(axis, slice(start, start + _BLOCK // 16))
            layouts, valid = block(part, recompute, shard, self.joined_devices)
            if self.admits is not None:
                valid = valid & self.admits(layouts)
            used = self.used_bytes(layouts)
            if np.any(valid & (used <= self.capacity_bytes)):
                return True
        return False

    def _stay(
        self, axis: Layouts, recompute: dict[str, Ints], shard: dict[str, Ints], found: Found
    ) -> Floats:
        """Look at all layouts with nothing in host memory.

        Returns the least time of each split among those that do not fit. [s]
        """
        missing_s = np.full(np.size(axis.dp), np.inf)
        width = max(1, _BLOCK // (recompute["recompute"].size * shard["zero_stage"].size))
        for start in range(0, np.size(axis.dp), width):
            part = slice(start, start + width)
            missing_s[part] = self._block(axis_part(axis, part), recompute, shard, found)
        return missing_s

    def _move(
        self, axis: Layouts, recompute: dict[str, Ints], shard: dict[str, Ints], missing_s: Floats,
        found: Found,
    ) -> None:  # fmt: skip
        """Look at layouts with something in host memory, the most promising splits first."""
        order = np.argsort(missing_s, kind="stable")
        order = order[np.isfinite(missing_s[order])]
        width = max(1, _BLOCK // (recompute["recompute"].size * shard["zero_stage"].size))
        for start in range(0, len(order), width):
            rows = np.sort(order[start : start + width])
            rows = rows[missing_s[rows] < found.least_s]
            if not rows.size:
                return
            self._block(axis_part(axis, rows), recompute, shard, found)

    def _block(
        self, part: Layouts, recompute: dict[str, Ints], shard: dict[str, Ints],
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
        if float(step_s[index]) < found.least_s:
            found.least_s = float(step_s[index])
            place = tuple(int(i) for i in index)
            layout = layout_at(layouts, place, shape)
            found.best = _planned(layout, times, (used, on_host), place, shape)
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
        if np.isfinite(excess[index]):
            place = tuple(int(i) for i in index)
            found.misses(float(excess[index]), layout_at(layouts, place, shape))

    def least_step_s(self, devices: int, global_batch: int, device_s: float) -> float:
        """Return a bound from below on the step in any layout; inf where none can fit [s].

        Computing alone, shared evenly; and where the state is larger than all devices' memory,
        what the hosts take to update the part of it that lies with them.

        Parameters
        ----------
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
    layout: Layout,
    times: StepTimes,
    bytes_: tuple[Floats, Floats],
    place: tuple[int, ...],
    shape: tuple[int, ...],
) -> PlannedLayout:
    """Return a layout with its entry of a block of the shape."""

    def at(values: np.ndarray) -> float:
        return float(np.broadcast_to(values, shape)[place])

    return PlannedLayout(
        layout=layout,
        step_s=at(times.step_s),
        memory_bytes=at(bytes_[0]),
        host_bytes=at(bytes_[1]),
        parts_s={part: at(getattr(times, part)) for part in PARTS},
    )
