"""From a job to its model as units on the devices of several groups of machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from advisor.catalogue import Catalogue
from advisor.machines.cluster import ClusterGroup
from advisor.planners.core.nouns import Work
from advisor.planners.layouts.described_layers import transformer_layers
from advisor.planners.memory.unit_memory import UnitTable
from advisor.planners.step.model_units import Unit, units
from advisor.ways.case import StepCase, is_laid_out_by_shape
from advisor.ways.layout_law import LayoutLaw
from advisor.ways.model_on import ModelOn, UnitLaw
from advisor.ways.model_parallel import on_machine
from advisor.ways.operator_law import OperatorLaw
from advisor.ways.places import Place, places
from advisor.ways.units import UnitModel, unit_model


def model_on(case: StepCase, catalogue: Catalogue, groups: Sequence[ClusterGroup]) -> ModelOn:
    """Return a job's model as units, with what they take on the groups' devices.

    Parameters
    ----------
    case : StepCase
        The job, with recorded layers or a described transformer, over the catalogue's fleet.
    catalogue : Catalogue
    groups : sequence of ClusterGroup

    Raises
    ------
    UsageError
        If there is no time model of an accelerator.
    """
    return model_at(case, places(case, catalogue, groups))


def model_at(case: StepCase, found: tuple[Place, ...]) -> ModelOn:
    """Return a job's model as units, with what they take at these places."""
    work, parts, table = units_of(case)
    return ModelOn(
        work=work,
        parts=parts,
        table=table,
        law=_law(replace(case, work=work), table, found, is_described=work is not case.work),
        constants=case.constants,
        places=found,
    )


def units_of(case: StepCase) -> tuple[Work, tuple[Unit, ...], UnitTable]:
    """Return the job's work with its layers, their units and those as columns; made once."""
    key = ("units and their table",)
    if key not in case.seen:
        work = with_layers(case.work)
        parts = units(work)
        table = unit_table(work, parts, logit_bytes=case.constants.memory.logit_bytes)
        case.seen[key] = work, parts, table
    found: tuple[Work, tuple[Unit, ...], UnitTable] = case.seen[key]
    return found


def with_layers(work: Work) -> Work:
    """Return the work with its layers: as recorded, or those of the described transformer."""
    if work.layers or work.transformer is None:
        return work
    return replace(work, layers=transformer_layers(work.transformer, precision=work.precision))


def unit_table(work: Work, parts: Sequence[Unit], *, logit_bytes: float) -> UnitTable:
    """Return the units as columns; a described head keeps its logits besides. [bytes]."""
    table = UnitTable.of(parts, work)
    model = work.transformer
    if model is None or not model.has_head or work.saved_bytes_per_sample > 0:
        return table
    saved = table.saved_bytes.copy()
    saved[-1] += logit_bytes * model.sequence * model.vocabulary
    return replace(table, saved_bytes=saved)


def _law(
    case: StepCase, table: UnitTable, found: Sequence[Place], *, is_described: bool
) -> UnitLaw:
    """Return the law by which equal machines of the groups would be laid out."""
    transformer = case.work.transformer
    by_shape = [is_laid_out_by_shape(p.case, np.array([p.row])).all() for p in found]
    if transformer is not None and all(by_shape):
        return LayoutLaw(
            transformer=transformer,
            table=table,
            machines={p.group.label: on_machine(p.case, p.row) for p in found},
            link_log_sd=case.constants.scaling.log_sd_communication,
        )
    return OperatorLaw(units=operator_units(case, is_described=is_described))


def operator_units(case: StepCase, *, is_described: bool) -> UnitModel:
    """Return the job's units, timed once for all ways; a described job's case has none itself."""
    if not is_described:
        return unit_model(case)
    key = ("units of a described job", id(case.fleet))
    if key not in case.seen:
        case.seen[key] = UnitModel(case)
    found: UnitModel = case.seen[key]
    return found
