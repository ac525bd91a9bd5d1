"""Reasons for a layout in words: what the simpler ones would take, or that they do not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from advisor.estimate.case import StepCase, is_laid_out_by_shape
from advisor.estimate.time_columns import CODE
from advisor.estimate.ways.data_parallel import data_parallel
from advisor.estimate.ways.model_parallel import OnMachine, on_machine, space_on
from advisor.planners.core import Layout
from advisor.quantities import percent_text

_DATA_PARALLEL: Final[dict[str, Any]] = {"tp": 1, "pp": 1, "cp": 1, "ep": 1}


def reasons(
    case: StepCase, row: int, count: int, layout: Layout, step_s: float
) -> tuple[str, ...]:
    """Return why ``layout`` was chosen on ``count`` machines of a type.

    ``row``, ``count``: of the fleet's types; machines; ``layout``: the fastest that fits;
    ``step_s``: its step [s].
    """
    if not is_laid_out_by_shape(case, np.array([row])).all():
        return _of_plain(case, row, count, layout, step_s)
    on = on_machine(case, row)
    said = []
    if layout.tp * layout.pp * layout.cp * layout.ep > 1:
        said.append(_against_data_parallel(case, on, count, step_s))
    if layout.recompute != "none" and not _fits_without_recomputing(case, on, count):
        said.append("no layout without recomputation fits")
    if layout.offload:
        said.append(_against_device_memory(case, on, count, layout, step_s))
    return tuple(said)


def _against_data_parallel(case: StepCase, on: OnMachine, count: int, step_s: float) -> str:
    space = replace(space_on(case, on.problem), **_DATA_PARALLEL)
    plain = on.problem.search(count * on.per_node, case.job.global_batch, space)
    if plain.best is not None:
        return f"data parallel alone would take {plain.best.step_s / step_s:.2f} times as long"
    if plain.nearest is not None:
        return "data parallel alone does not fit"
    return "data parallel alone has too few samples for all devices"


def _against_device_memory(
    case: StepCase, on: OnMachine, count: int, layout: Layout, step_s: float
) -> str:
    moved = f"{' and '.join(sorted(layout.offload))} in host memory"
    space = replace(space_on(case, on.problem), offloads=())
    kept = on.problem.search(count * on.per_node, case.job.global_batch, space).best
    if kept is None:
        return f"only with {moved} does it fit"
    return f"without {moved} it would take {kept.step_s / step_s:.2f} times as long"


def _fits_without_recomputing(case: StepCase, on: OnMachine, count: int) -> bool:
    space = replace(space_on(case, on.problem), recomputes=("none",), offloads=())
    return on.problem.fits(count * on.per_node, case.job.global_batch, space)


def _of_plain(
    case: StepCase, row: int, count: int, layout: Layout, step_s: float
) -> tuple[str, ...]:
    """Return what a layout of whole models, or of recorded units, says for itself."""
    said = []
    if layout.zero_stage or layout.tp * layout.pp > 1:
        said.append(_against_plain(case, row, count, layout, step_s))
    if layout.accumulation_steps > 1:
        samples = layout.micro_batch * layout.accumulation_steps * layout.dp
        smaller = ", the last one smaller" if samples > case.job.global_batch else ""
        said.append(
            f"{layout.accumulation_steps} micro-batches of {layout.micro_batch} keep the batch"
            f"{smaller}"
        )
    return tuple(said)


def _against_plain(case: StepCase, row: int, count: int, layout: Layout, step_s: float) -> str:
    """Return what whole models on every device, sharded less, would take instead."""
    is_split = layout.tp * layout.pp > 1
    fewer = [z for z in case.space.zero_stages if is_split or z < layout.zero_stage]
    space = replace(case.space, **_DATA_PARALLEL, zero_stages=tuple(fewer), recomputes=("none",),
                    micro_batch=None, accumulation_steps=None)  # fmt: skip
    plain = data_parallel(replace(case, space=space, seen={}), np.array([row]), np.array([count]))
    if fewer and plain.status[0] == 0:
        stage = plain.layout(0).zero_stage
        sharded = f"with ZeRO stage {stage}" if stage else "without shards"
        return f"data parallel {sharded} would take {plain.step_s[0] / step_s:.2f} times as long"
    if not fewer:
        return f"ZeRO stage {layout.zero_stage} as asked"
    if plain.status[0] == CODE["fewer_samples_than_workers"]:
        return "data parallel alone has too few samples for all devices"
    return (
        "data parallel alone does not fit"
        if is_split
        else (f"fits only with ZeRO stage {layout.zero_stage}")
    )


# What is said of a row whose network nobody states.


# Shares of a step below this are not worth a number.
_WORTH_SAYING: Final = 0.01


def assumed_network(bytes_per_s: float, slope: float) -> str:
    """Return what is said of a row whose network nobody states.

    ``slope``: by how much ln(step) falls as the logarithm of the network rises.

    >>> assumed_network(400e9, 0.25)
    'network assumed: 3,200 Gbit/s a machine, as rented; half of it makes a step 19 % longer'
    """
    more = 2.0**slope - 1.0
    longer = f"{percent_text(more)} longer" if more >= _WORTH_SAYING else "hardly longer"
    return (
        f"network assumed: {network_text(bytes_per_s)} a machine, as rented; "
        f"half of it makes a step {longer}"
    )


def network_text(bytes_per_s: float) -> str:
    """Return a network's rate in words.

    >>> network_text(400e9), network_text(1.25e9)
    ('3,200 Gbit/s', '10 Gbit/s')
    """
    return f"{round(bytes_per_s * 8e-9):,} Gbit/s"
