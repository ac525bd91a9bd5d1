"""Measured runs that a user could describe, as columns of the layout model.

A table that states the model, the software's setup, the layout and the machines of every run needs
no rules of its own (``layout_rows`` has those of the older tables): each run is what the product
makes of the same question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from advisor.planners.core.columns import Layouts, Machines, Shapes, Software, shapes_of
from advisor.planners.core.nouns import Layout, Precision, TrainingSetup, Transformer
from advisor.planners.layouts.runnable import layout_columns
from advisor.planners.step.describe import transformer_work
from advisor.train.layout_rows import LayoutRows, known_part
from advisor.ways.laws import PRECISION_CODES, passed_share, software_of, trained_share

_COLUMNS: Final = {
    "shapes": Shapes,
    "layouts": Layouts,
    "machines": Machines,
    "software": Software,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRun:
    """One measured run as a question, with its answer."""

    row_id: str
    table: str
    model: str
    gpu: str  # an accelerator of the catalogue
    transformer: Transformer
    setup: TrainingSetup
    precision: Precision
    layout: Layout
    per_node: int  # accelerators of a machine
    network_bytes_per_s: float  # of a machine, per direction [bytes/s]
    measured_s: float  # step time [s]


def columns_of(runs: Sequence[AskedRun]) -> LayoutRows:
    """Return runs as columns, those whose accelerator the catalogue has a rate of.

    Raises ValueError if none is left.
    """
    known = [run for run in runs if known_part(run.gpu) is not None]
    if not known:
        raise ValueError("no run on a known accelerator")
    works = [
        transformer_work(r.transformer, micro_batch=1, precision=r.precision, setup=r.setup)
        for r in known
    ]
    return LayoutRows(
        row_id=np.array([r.row_id for r in known]),
        table=np.array([r.table for r in known]),
        gpu=np.array([r.gpu for r in known]),
        model=np.array([r.model for r in known]),
        measured_s=np.array([r.measured_s for r in known]),
        devices=np.array([r.layout.devices for r in known]),
        global_batch=np.array([r.layout.global_batch for r in known]),
        precision=np.array([r.precision for r in known]),
        is_recompute_stated=np.ones(len(known), dtype=bool),
        shapes=_stacked(
            Shapes,
            [
                shapes_of(
                    r.transformer, trained_share=trained_share(w), passed_share=passed_share(w)
                )
                for r, w in zip(known, works, strict=True)
            ],
        ),
        layouts=_stacked(Layouts, [layout_columns(r.layout) for r in known]),
        machines=_stacked(Machines, [_machines(r) for r in known]),
        software=_stacked(Software, [software_of(w) for w in works]),
        left_out=len(runs) - len(known),
    )


def joined(first: LayoutRows, second: LayoutRows) -> LayoutRows:
    """Return the rows of both."""
    whole: dict[str, Any] = {}
    for f in fields(LayoutRows):
        one, other = getattr(first, f.name), getattr(second, f.name)
        if f.name in _COLUMNS:
            kind = _COLUMNS[f.name]
            whole[f.name] = kind(
                **{
                    c.name: np.concatenate(
                        [
                            np.broadcast_to(getattr(part, c.name), len(rows))
                            for part, rows in ((one, first), (other, second))
                        ]
                    )
                    for c in fields(kind)
                }
            )
        else:
            is_count = isinstance(one, int)
            whole[f.name] = one + other if is_count else np.concatenate([one, other])
    return LayoutRows(**whole)


def _machines(run: AskedRun) -> Machines:
    found = known_part(run.gpu)
    assert found is not None
    accelerator = found[0]
    return Machines(
        flop_per_s=accelerator.flop_per_s,
        memory_bytes_per_s=accelerator.memory_bytes_per_s,
        memory_bytes=accelerator.memory_bytes,
        intra_bytes_per_s=accelerator.link_bytes_per_s,
        network_bytes_per_s=run.network_bytes_per_s,
        devices_per_node=run.per_node,
        generation=accelerator.generation,
        precision=PRECISION_CODES[run.precision],
    )


def _stacked(kind: Any, records: Sequence[Any]) -> Any:
    """Return scalar records of one kind as a record of columns."""
    return kind(
        **{
            f.name: np.array([np.asarray(getattr(r, f.name)) for r in records])
            for f in fields(kind)
        }
    )
