"""A described transformer is units: blocks, all alike, and a head.

Laws over every published run of the layout tables, in the layout that it had.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from advisor import data
from advisor.estimate.knowledge.layout_model import load
from advisor.lab.fit.layouts import read_all
from advisor.planners.core.layout_case import LayoutCase
from advisor.planners.layouts.stage_cuts import partition
from advisor.planners.layouts.time import step_times
from advisor.planners.links import context_parallel_s, expert_parallel_s, tensor_parallel_s
from advisor.planners.step import block_times


@cache
def published() -> LayoutCase:
    """Return all runs, on links between stages and on nodes that nothing waits for."""
    rows = read_all(data.measurements(None))
    quiet = replace(
        load().parameters, pp_efficiency=1e30, pp_latency_s=0.0, launch_send_s=0.0, straggler=0.0
    )
    return LayoutCase(
        shapes=rows.shapes, layouts=rows.layouts, machines=rows.machines, software=rows.software,
        parameters=quiet,
    )  # fmt: skip


def columns(*values: object) -> list[np.ndarray]:
    size = np.size(published().layouts.dp)
    return [np.broadcast_to(np.asarray(value, float), (size,)) for value in values]


@cache
def runs() -> list[tuple[np.ndarray, int, int, int, int, float]]:
    """Return each run's unit times, layers of a stage, stages, micro-batches, chunks and time.

    Embedding, blocks and head; stages are even, the last one may have blocks of nothing.
    """
    case = published()
    shapes, layouts, found = case.shapes, case.layouts, step_times(case)
    inside = tensor_parallel_s(case) + context_parallel_s(case) + expert_parallel_s(case)
    line = found.compute_s + found.inside_layer_s + found.pipeline_s
    passes = block_times(case).by_unit(np.array([False, True, False]), 1.0, inside)
    one = np.stack([np.broadcast_to(u, (np.size(line), 3)) for u in passes]).sum(axis=0)
    asked = columns(
        shapes.layers, layouts.pp, layouts.accumulation_steps, layouts.virtual_stages, inside, line
    )
    made = []
    for embedded, (layers, pp, m, v, exchanged, took) in zip(one, zip(*asked, strict=True),
                                                              strict=True):  # fmt: skip
        embedding, block, head = embedded
        per_stage = int(np.ceil(layers / pp))
        units = np.array([embedding, *[block + exchanged] * (per_stage * int(pp)), head])
        made.append((units, per_stage, int(pp), int(m), int(v), float(took)))
    return made


def test_a_step_is_the_slowest_stage_for_every_micro_batch_and_the_others_to_fill() -> None:
    """Chunks of an interleaved device fill the pipeline with that much less."""
    for units, per_stage, pp, m, v, took in runs():
        edges = [0, *(1 + per_stage * i for i in range(1, pp))]
        stages = np.add.reduceat(units, edges)
        line = m * stages.max() + (stages.sum() - stages.max()) / v
        assert line == pytest.approx(took, rel=1e-9)


def test_no_even_stages_are_faster_than_the_best_cut_of_the_units() -> None:
    for units, _, pp, m, v, took in runs()[::97]:
        if v == 1:
            assert partition(units, m, stages=pp).step_s <= took * (1 + 1e-9)


def test_units_of_several_layers_share_their_time() -> None:
    block = block_times(published())
    alone = [passes.sum(axis=-1) for passes in block.by_unit(np.array([True, True, False]), 8.0)]
    alike = [passes.sum(axis=-1) for passes in block.by_unit(np.array([True] * 4 + [False]), 8.0)]
    np.testing.assert_allclose(alone, alike, rtol=1e-9)
