"""How much further the layout model errs outside the box of what it was fitted on.

Whole levels are left out of the fit, one at a time: on each generation of GPUs all models wider
(or narrower) than some, all runs on more devices, one chip, one precision, one stack, all mixtures
of experts. What these rows err by over what left-out tables of the generation do, as mean squares,
is put down to their distance, and every level left out counts the same:

    a^2 = max(mean over levels of (mean e^2 - s^2) / mean d^2, 0)

with d the e-folds of the width or doublings of the devices beyond the box, and 1 for the others.
A level that errs less than tables do counts as well, so that what extrapolates adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.estimate.knowledge.layout_model import LayoutModel, Outside, TableErrors, chip_of
from advisor.lab.fit.layout_rows import LayoutRows, known_part
from advisor.planners.core.arrays import GENERATIONS, Floats

Bools = NDArray[np.bool_]
# Where a box is cut: widths and numbers of devices, with so many rows on both sides.
_WIDTHS: Final = (2048.0, 4096.0, 6144.0, 8192.0)
_DEVICES: Final = (8, 32, 128, 512)
# Where no table has mixtures enough to leave them out: what NeMo's releases of nine months make of
# the same one on the same GPUs differs by 1.03 to 2.9 times, 1.6 in the mean (``ln`` of half).
_OF_EXPERTS: Final = 0.25
_LEAST_ROWS: Final = 3
_LEAST_LEFT: Final = 5


def measured(rows: LayoutRows) -> dict[str, Any]:
    """Return what rows of one table and generation were, by fields of ``TableErrors``."""
    hidden = np.asarray(rows.shapes.hidden, float)
    return {
        "chips": tuple(dict.fromkeys(_chips(rows).tolist())),
        "precisions": tuple(np.unique(_whole(rows, rows.machines.precision)).astype(int).tolist()),
        "stacks": tuple(dict.fromkeys(rows.stack.tolist())),
        "widths": (float(hidden.min()), float(hidden.max())),
        "devices": int(rows.devices.max()),
        "has_experts": bool((_whole(rows, rows.shapes.experts) > 1).any()),
    }


def with_outside(model: LayoutModel, found: dict[Outside, float]) -> LayoutModel:
    """Return the model with what leaving the box adds, its own left-out tables among it."""
    model = replace(model, outside_log_sd=found)
    return replace(model, errors=explained(model, model.errors))


def explained(model: LayoutModel, errors: tuple[TableErrors, ...]) -> tuple[TableErrors, ...]:
    """Return errors of left-out tables with what their distance from the others explains."""
    return tuple(replace(e, outside_log_sd=round(_distance(model, e), 5)) for e in errors)


def _distance(model: LayoutModel, e: TableErrors) -> float:
    others = replace(model, errors=tuple(one for one in model.errors if one.table != e.table))
    found = [
        others.outside(
            GENERATIONS.index(e.generation), chip=chip, precision=precision, stack=stack,
            hidden=e.widths[1], devices=e.devices, has_experts=e.has_experts,
        )
        for chip in e.chips for precision in e.precisions for stack in e.stacks
    ]  # fmt: skip
    return float(np.mean([np.sqrt(sum(sd**2 for sd in one.values())) for one in found]))


def outside_log_sds(
    rows: LayoutRows, model: LayoutModel, errors_without: Callable[[Bools], Floats]
) -> dict[Outside, float]:
    """Return the deviation that each way out of the box adds, by levels left out.

    ``errors_without``: ln(predicted / measured) of rows by a fit without them.
    """
    usual = {
        name: float(np.mean([np.mean(np.square(e.log_errors)) for e in of]))
        for name in GENERATIONS
        if (of := [e for e in model.errors if e.generation == name])
    }
    added: dict[Outside, list[float]] = {}
    unknown: dict[Outside, float] = {"experts": _OF_EXPERTS}
    for way, generation, out, distance in _levels(rows):
        squares = np.mean(np.square(errors_without(out))) - usual[GENERATIONS[generation]]
        added.setdefault(way, []).append(float(squares / np.mean(np.square(distance[out]))))
    known = {way: np.sqrt(max(float(np.mean(of)), 0.0)) for way, of in added.items()}
    return unknown | {way: round(float(sd), 4) for way, sd in known.items()}


def _levels(rows: LayoutRows) -> Iterator[tuple[Outside, int, Bools, Floats]]:
    """Yield ways out of the box, generations, the rows that are out, and how far all rows are."""
    hidden, once = _whole(rows, rows.shapes.hidden), np.ones(len(rows))
    generations = _whole(rows, rows.machines.generation).astype(int)
    kinds: dict[Outside, NDArray[Any]] = {
        "chip": _chips(rows), "precision": _whole(rows, rows.machines.precision),
        "stack": rows.stack, "experts": _whole(rows, rows.shapes.experts) > 1,
    }  # fmt: skip
    for generation in np.unique(generations).tolist():
        here = generations == generation
        cuts: list[tuple[Outside, Bools, Floats]] = [
            *(("wide", hidden > w, np.log(hidden / w)) for w in _WIDTHS),
            *(("narrow", hidden < w, np.log(w / hidden)) for w in _WIDTHS),
            *(("devices", rows.devices > n, np.log2(rows.devices / n)) for n in _DEVICES),
            *(
                (way, column == value, once)
                for way, column in kinds.items()
                for value in np.unique(column[here])
                if way != "experts" or value
            ),
        ]
        for way, level, distance in cuts:
            out = here & level
            if out.sum() >= _LEAST_ROWS and (here & ~level).sum() >= _LEAST_LEFT:
                yield way, int(generation), out, distance


def _chips(rows: LayoutRows) -> NDArray[np.str_]:
    parts = [known_part(str(name)) for name in rows.gpu]
    return np.array([chip_of(part.name) if part else "" for part in parts])


def _whole(rows: LayoutRows, column: Any) -> Floats:
    return np.broadcast_to(np.asarray(column, float), (len(rows),))
