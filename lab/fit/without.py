"""The constants that answers read, fitted again without some rows: what ``--blind`` asks with.

``Hidden`` names the rows in the words of every table; ``FittedTables.without`` leaves them out of
every table that a constant is fitted on, and runs the fits of ``advisor train`` on the rest, from
the priors. A folder of constants none of whose rows is hidden stays as it ships. The rates of
collectives (``scaling``) were fitted on no row of a group that ships.

Widths and correlations come from errors on what these fits leave out in turn, so each is a fit
inside a fit. To keep them to minutes, devices, models and chip families are left out of the device
model together in ``PARTS`` parts, tables likewise out of the layout model, and of each of these
``ASKED`` runs are asked. How well the tables determine the layout model's constants
(``LayoutModel.log_spread``) is not known from parts: only a user's own runs ask for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from advisor.answer import from_record
from advisor.estimate.case import Constants, constants
from advisor.estimate.knowledge.layout_model import LayoutModel
from advisor.lab.fit import memory
from advisor.lab.fit.described import known_steps
from advisor.lab.fit.described_columns import MeasuredStep, chip_of, columns
from advisor.lab.fit.device import fit_steps, parameters_of, processor_rows
from advisor.lab.fit.efficiencies import StepModel
from advisor.lab.fit.hosts import fit_call
from advisor.lab.fit.layout_rows import LayoutRows, known_part
from advisor.lab.fit.layouts import read_all, train, usable
from advisor.planners.core.nouns import Device
from advisor.planners.step.calibrate import CalibrationParameters

if TYPE_CHECKING:
    import pandas as pd

Bools = NDArray[np.bool_]
PARTS: Final = 4
ASKED: Final = 25
DEVICE_MODEL: Final = (
    "device_model: constants and the process of errors; widths off what "
    f"{PARTS} parts of devices, models and chip families leave out in turn"
)
CALLS: Final = "what a call takes on the suites' hosts"
LAYOUT_MODEL: Final = (
    "layout_model: constants; widths off what "
    f"{PARTS} parts of the other tables leave out in turn, {ASKED} runs of each"
)
MEMORY: Final = "memory: context, slack and their scatter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Rows that whoever answers may not have seen: those of any of these names.

    ``devices`` and ``models`` are hidden in steps and in layouts, ``chips`` in steps, and whole
    ``tables`` in layouts and readings of memory.
    """

    devices: frozenset[str] = frozenset()
    chips: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()

    def hides(self, step: MeasuredStep) -> bool:
        name = step.device.name
        return name in self.devices or chip_of(name) in self.chips or step.model in self.models

    def hides_layouts(self, rows: LayoutRows) -> Bools:
        devices = np.array([_device(str(gpu)) for gpu in rows.gpu])
        return np.asarray(
            np.isin(devices, sorted(self.devices))
            | np.isin(rows.model, sorted(self.models))
            | np.isin(rows.table, sorted(self.tables))
        )


def _device(gpu: str) -> str:
    known = known_part(gpu)
    return gpu if known is None else known.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known without the hidden rows, and what had to be fitted again for it."""

    constants: Constants
    call_s: float | None = None  # fitted again; None: as ``jobs.recorded_work.call_s`` has it
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FittedTables:
    """What the constants under ``trained_models`` are fitted on."""

    folder: Path
    # without which of its rows -> the layout model fitted on the others
    _layout_models: dict[bytes, LayoutModel] = field(default_factory=dict, init=False)

    @cached_property
    def steps(self) -> list[MeasuredStep]:
        return known_steps(self.folder)

    @cached_property
    def processors(self) -> pd.DataFrame:
        return processor_rows(self.folder)

    @cached_property
    def layouts(self) -> LayoutRows:
        return usable(read_all(self.folder))

    @cached_property
    def memory(self) -> memory.MemoryRows:
        return memory.read_memory(self.folder)

    def without(self, hidden: Hidden) -> Known:
        """Fit again every folder that has a hidden row."""
        found = Known(constants=constants())
        for fit in (self._steps_without, self._layouts_without, self._memory_without):
            found = fit(hidden, found)
        return found

    def _steps_without(self, hidden: Hidden, known: Known) -> Known:
        kept = [step for step in self.steps if not hidden.hides(step)]
        if len(kept) == len(self.steps):
            return known
        call_s = self._call_without(kept)
        if call_s is not None:
            kept = [with_call(step, call_s) for step in kept]
        found = fit_steps(kept, self.processors, parts=PARTS)
        return Known(
            constants=replace(
                known.constants,
                device=found.parameters,
                residual=found.process,
                calibration=from_record(CalibrationParameters, found.record["calibration"]),
            ),
            call_s=call_s,
            changed=(*known.changed, DEVICE_MODEL, *([CALLS] if call_s is not None else [])),
        )

    @staticmethod
    def _call_without(kept: Sequence[MeasuredStep]) -> float | None:
        """Return a call of the hosts that are left, by a device model of described steps alone."""
        described = [step for step in kept if not step.host]
        if not described:
            return None
        rows = columns(described)
        found = StepModel(rows).fit(np.ones(rows.log_s.size, bool))
        call = fit_call(kept, parameters_of(found.constants, {}, rows))
        return None if call is None else call.call_s

    def _layouts_without(self, hidden: Hidden, known: Known) -> Known:
        out = hidden.hides_layouts(self.layouts)
        if not out.any():
            return known
        key = out.tobytes()
        if key not in self._layout_models:
            kept = self.layouts.take(~out)
            self._layout_models[key] = train(kept, version="blind", parts=PARTS, most=ASKED)
        return replace(
            known,
            constants=replace(known.constants, layout=self._layout_models[key]),
            changed=(*known.changed, LAYOUT_MODEL),
        )

    def _memory_without(self, hidden: Hidden, known: Known) -> Known:
        out = hidden.hides_layouts(self.memory.rows)
        if not (out & self.memory.is_reading).any():
            return known
        fitted = memory.fit_rows(self.memory, self.memory.is_reading & ~out)
        return replace(
            known,
            constants=replace(known.constants, memory=fitted),
            changed=(*known.changed, MEMORY),
        )


def with_call(step: MeasuredStep, call_s: float) -> MeasuredStep:
    """Return a step as known with another call, where its script's calls are counted."""
    if step.work.call_s is None:
        return step
    return replace(step, work=replace(step.work, call_s=call_s))


def of_devices(*devices: Device) -> Hidden:
    return Hidden(devices=frozenset(device.name for device in devices))


def in_parts(names: Sequence[str], parts: int = PARTS) -> Mapping[str, frozenset[str]]:
    """Return with which others each name is hidden: whole names, in a few parts.

    >>> sorted(in_parts(["a", "b", "c", "a"], 2)["c"])
    ['a', 'c']
    """
    every = sorted(set(names))
    return {name: frozenset(every[i % parts :: parts]) for i, name in enumerate(every)}
