"""Measured runs asked by flags alone: ``Predictor.step_columns`` with the layout fixed.

Beside ``asked_layouts``: nothing is put in that no flag says. The software is the nearest
``TrainingSetup``, the schedule and sequence parallelism are the search's own, and a layout that
does not fit by the product's memory rule, or that no released framework accepts, has no answer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.jobs.described import described_job
from advisor.planners.core.columns import RECOMPUTES, Offload
from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.layout_parameters import LayoutParameters
from advisor.planners.core.nouns import Recompute, TrainingSetup
from advisor.planners.core.setup import Kernels
from advisor.planners.layouts.grid import SearchSpace
from advisor.planners.step.describe import transformer_work
from advisor.predict import Predictor
from advisor.train.layout_rows import LayoutRows
from advisor.validation.asked_layouts import ASKED, fleet_of, one_row, predictor, transformer
from advisor.ways.columns import STATUSES

# ``planners.core.columns.FUSIONS`` -> the nearest kernels that a flag names.
_KERNELS: Final[tuple[Kernels, ...]] = ("eager", "fused", "compiled", "fused")
# Adapters of the rows that train nothing else; their rank hardly changes a step.
_RANK: Final = 16


def step_s(rows: LayoutRows, parameters: LayoutParameters) -> tuple[Floats, NDArray[np.str_]]:
    """Return the product's answers by flags alone [s], and the status of every row.

    Parameters
    ----------
    rows : LayoutRows
    parameters : LayoutParameters
        Constants of the layout model.
    """
    known = predictor().constants
    layout = replace(known.layout, parameters=parameters)
    asking = Predictor(
        predictor().catalogue, constants=replace(known, layout=layout), learned=None
    )
    found, status = np.full(len(rows), np.nan), np.full(len(rows), "", dtype="U32")
    for row in range(len(rows)):
        found[row], status[row] = _answer(asking, rows, row)
    return found, status


def _answer(asking: Predictor, rows: LayoutRows, row: int) -> tuple[float, str]:
    shapes, layouts = one_row(rows.shapes, row), one_row(rows.layouts, row)
    machines = one_row(rows.machines, row)
    nodes, rest = divmod(int(rows.devices[row]), int(machines.devices_per_node))
    batch = int(layouts.dp * layouts.micro_batch * layouts.accumulation_steps)
    if rest or layouts.micro_batch % 1 or layouts.dp % 1:
        return np.nan, "not whole machines or batches"
    work = transformer_work(
        transformer(shapes), micro_batch=1, precision=ASKED[int(machines.precision)],
        setup=setup_of(one_row(rows.software, row), float(shapes.trained_share)),
    )  # fmt: skip
    columns = asking.step_columns(
        described_job(work, name=str(rows.row_id[row]), global_batch=batch),
        np.array([0]),
        np.array([nodes]),
        fleet=fleet_of(rows, row),
        space=space_of(layouts, is_recompute_stated=bool(rows.is_recompute_stated[row])),
    )
    return float(columns.step_s[0]), STATUSES[int(columns.status[0])]


def setup_of(software: Any, trained_share: float) -> TrainingSetup:
    """Return what flags can say of a table's software."""
    return TrainingSetup(
        kernels=_KERNELS[int(software.fusion)],
        attention="flash" if software.attention else "unfused",
        gradients="bf16" if software.gradient_bytes < 4 else "fp32",
        overlaps=bool(software.overlaps_dp),
        adapter_rank=None if trained_share else _RANK,
    )


def space_of(layouts: Any, *, is_recompute_stated: bool) -> SearchSpace:
    """Return the space that holds one measured layout; what its table leaves open stays open."""
    stated: tuple[Recompute, ...] = (RECOMPUTES[int(layouts.recompute)],)
    offloads: dict[Offload, bool] = {
        "optimizer": bool(layouts.offloads_optimizer),
        "parameters": bool(layouts.offloads_parameters),
    }
    interleaves = layouts.virtual_stages > 1
    return SearchSpace(
        tp=int(layouts.tp),
        pp=int(layouts.pp),
        cp=int(layouts.cp),
        ep=int(layouts.ep),
        micro_batch=int(layouts.micro_batch),
        schedules=("interleaved",) if interleaves else ("1f1b",),
        zero_stages=(int(layouts.zero_stage),),
        recomputes=stated if is_recompute_stated else RECOMPUTES,
        offloads=tuple(name for name, moves in offloads.items() if moves),
    )
