"""A candidate's layout as it is drawn: which device holds what, which pass runs when."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

from advisor.domain import from_record
from advisor.planners.core.nouns import Layout
from advisor.planners.layouts.pipeline import bubble_fraction
from advisor.planners.layouts.timeline import timeline
from advisor.words import degrees, layout_words

MOST_INSTANCES: Final = 16
MOST_CELLS: Final = 16  # of one instance
_MOST_PASSES: Final = 1200


def drawing(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return devices and schedule of a candidate's layout.

    Returns
    -------
    dict
        ``words`` and ``degrees``; ``instances``: at most ``MOST_INSTANCES``, each with its
        ``label`` and ``cells`` of [stage, replica, context, tensor] in the order of ranks
        (tensor-parallel ranks beside one another, then context, replicas, stages, as Megatron-LM
        numbers them); ``instances_in_all``; ``schedule``: see ``schedule_of``, or null without
        stages.
    """
    layout = from_record(Layout, record["layout"])
    ranks = _ranks(layout)
    instances: list[dict[str, Any]] = []
    for part in record["configuration"]:
        per = max(round(part["accelerators_per_instance"]), 1)
        for _ in range(part["count"]):
            cells = list(itertools.islice(ranks, per))
            if len(instances) < MOST_INSTANCES:
                instances.append(
                    {
                        "label": part["instance_type"],
                        "device": part["accelerator"] or f"{part['vcpus']} vCPU",
                        "cells": cells[:MOST_CELLS],
                        "cells_in_all": len(cells),
                    }
                )
    return {
        "words": layout_words(record["layout"]),
        "degrees": degrees(record["layout"]),
        "devices": layout.devices,
        "instances": instances,
        "instances_in_all": sum(part["count"] for part in record["configuration"]),
        "schedule": schedule_of(layout),
    }


def _ranks(layout: Layout) -> itertools.product[tuple[int, ...]]:
    """Yield stage, replica, context and tensor rank of every device."""
    sizes = (layout.pp, layout.dp, layout.cp, layout.tp)
    return itertools.product(*(range(size) for size in sizes))


def schedule_of(layout: Layout) -> dict[str, Any] | None:
    """Return the passes of a step over the stages; None without stages or with too many to draw.

    Returns
    -------
    dict
        ``passes``: [stage, begin, end, is backward, micro-batch, chunk], times in forward passes;
        ``micro_batches`` of a step and how many are ``drawn``; ``bubble_fraction``: what even
        stages wait of the step's ideal time, all micro-batches of it.
    """
    p, m, v = layout.pp, layout.accumulation_steps, layout.virtual_stages
    if p < 2:
        return None
    drawn = min(m, max(2 * p, 8))
    if v > 1:
        drawn = max(drawn // p * p, p)
    if 2 * p * drawn * v > _MOST_PASSES:
        return None
    passes = timeline(p, drawn, schedule=layout.schedule, virtual_stages=v)
    return {
        "name": layout.schedule,
        "stages": p,
        "chunks": v,
        "micro_batches": m,
        "drawn": drawn,
        "bubble_fraction": float(bubble_fraction(p, m, v)),
        "passes": [
            [one.stage, one.begin, one.end, one.is_backward, one.micro_batch, one.chunk]
            for one in passes
        ],
    }
