"""Measured runs of transformers asked as a user asks: this model, on these machines, so laid out.

Every run becomes a described job on a fleet of its machines, and is answered by the layout
problem that ``recommend`` and ``plan`` search (``ways.model_parallel.on_machine``). What a table
knows and no question can say is put in beside: the framework's kernels, overlaps and buffers,
fp4, and boards that run below the catalogue's rates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.jobs.described import described_job
from advisor.machines.fleet import Fleet, one_type
from advisor.planners.core.columns import Layouts, Shapes
from advisor.planners.core.layer_latency import Floats
from advisor.planners.core.layout_parameters import LayoutParameters
from advisor.planners.core.nouns import Precision, Transformer
from advisor.planners.layouts.problem import LayoutProblem
from advisor.planners.memory.equations import MemoryConstants
from advisor.planners.memory.layout_memory import StageAsked
from advisor.planners.step.describe import transformer_work
from advisor.predict import Predictor
from advisor.train.layout_rows import LayoutRows, known_part, take_columns
from advisor.ways.model_parallel import on_machine
from advisor.ways.own_layouts import MeasuredLayout

# ``planners.core.columns.PRECISIONS`` -> what a question asks for, which cannot be fp4.
ASKED: Final[tuple[Precision, ...]] = ("fp16", "fp8", "fp8", "tf32")
_FP4: Final = 2


def step_s(rows: LayoutRows, parameters: LayoutParameters) -> Floats:
    """Return the product's step time of every row, with other constants than the shipped [s]."""
    found = np.full(len(rows), np.nan)
    for index, problem in problems(rows):
        layouts = layouts_of(rows, index)
        found[index] = replace(problem, parameters=parameters).times(layouts).step_s
    return found


def memory_bytes(
    rows: LayoutRows, constants: MemoryConstants, stage: StageAsked = "fullest"
) -> Floats:
    """Return the product's memory of every row, with other constants than the shipped [bytes]."""
    found = np.full(len(rows), np.nan)
    for index, problem in problems(rows):
        asked = replace(problem, memory=constants)
        found[index] = asked.used_bytes(layouts_of(rows, index), stage)
    return found


def measured_layouts(rows: LayoutRows, parameters: LayoutParameters) -> list[MeasuredLayout]:
    """Return every row as a user's own run, with these constants of the layout model."""
    found: dict[int, MeasuredLayout] = {}
    for index, problem in problems(rows):
        asked = replace(problem, parameters=parameters)
        for row in index.tolist():
            found[row] = MeasuredLayout(
                problem=asked,
                layout=one_row(rows.layouts, row),
                device=_known(str(rows.gpu[row]))[0].device,
                step_s=float(rows.measured_s[row]),
            )
    return [found[row] for row in range(len(rows))]


def problems(rows: LayoutRows) -> Iterator[tuple[NDArray[np.int64], LayoutProblem]]:
    """Yield the rows that ask for the same model on the same machines, and their problem."""
    parts = (rows.shapes, rows.machines, rows.software)
    full = [np.broadcast_to(getattr(p, f.name), len(rows)) for p in parts for f in fields(p)]
    alike: dict[tuple[Any, ...], list[int]] = {}
    for i in range(len(rows)):
        key = (str(rows.gpu[i]), *(column[i].item() for column in full))
        alike.setdefault(key, []).append(i)
    for members in alike.values():
        yield np.array(members), _problem(rows, members[0])


def layouts_of(rows: LayoutRows, index: NDArray[np.int64]) -> Layouts:
    """Return the layouts of some rows as columns."""
    return take_columns(rows.layouts, index)


def _problem(rows: LayoutRows, row: int) -> LayoutProblem:
    """Return the product's layout problem of one row, with what only the table knows."""
    shapes, machines = one_row(rows.shapes, row), one_row(rows.machines, row)
    precision = int(machines.precision)
    work = transformer_work(transformer(shapes), micro_batch=1, precision=ASKED[precision])
    case = predictor().case(
        described_job(work, name=str(rows.row_id[row])), fleet=fleet_of(rows, row)
    )
    problem = on_machine(case, 0).problem
    asked = problem.machines
    return replace(
        problem,
        machines=replace(
            asked,
            flop_per_s=float(machines.flop_per_s),
            memory_bytes_per_s=float(machines.memory_bytes_per_s),
            precision=_FP4 if precision == _FP4 else asked.precision,
        ),
        software=one_row(rows.software, row),
        trained_share=float(shapes.trained_share),
    )


def transformer(shapes: Shapes) -> Transformer:
    """Return (scalar) columns as a transformer."""
    return Transformer(
        layers=int(shapes.layers), hidden=int(shapes.hidden), heads=int(shapes.heads),
        kv_heads=int(shapes.kv_heads), ffn=int(shapes.ffn), is_gated=int(shapes.matrices) == 3,
        sequence=int(shapes.sequence), vocabulary=int(shapes.vocabulary),
        experts=int(shapes.experts), experts_per_token=int(shapes.experts_per_token),
        has_tied_embeddings=int(shapes.tables) == 1,
    )  # fmt: skip


def fleet_of(rows: LayoutRows, row: int) -> Fleet:
    """Return one type of machine: that of a row, with the links that its table states."""
    machines = one_row(rows.machines, row)
    part, _, _ = _known(str(rows.gpu[row]))
    return one_type(
        part.device,
        per_node=int(machines.devices_per_node),
        intra_bytes_per_s=float(machines.intra_bytes_per_s),
        has_own_links=True,
        network_bytes_per_s=float(machines.network_bytes_per_s),
        is_rdma=True,
        vcpus=np.inf,
        core_speed=None,
        host_memory_bytes=np.inf,
        domain_machines=int(machines.domain_machines),
    )


def _known(gpu: str) -> Any:
    found = known_part(gpu)
    if found is None:
        raise ValueError(f"rows of an unknown accelerator were read: {gpu}")
    return found


def one_row(columns: Any, row: int) -> Any:
    """Return one row of a record of columns, as Python numbers."""
    return type(columns)(
        **{
            f.name: value[row].item()
            if isinstance(value := getattr(columns, f.name), np.ndarray) and value.ndim
            else value
            for f in fields(columns)
        }
    )


@cache
def predictor() -> Predictor:
    """Physics over the packaged catalogue: fits are compared without what was learned since."""
    from advisor.catalogue import Catalogue

    return Predictor(Catalogue.load(with_overrides=False), learned=None)
