"""Why a job does not run on machines, for every verb: by how much it misses, and what would do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from advisor.estimate.case import StepCase, is_laid_out_by_shape
from advisor.estimate.time_columns import STATUSES, TimeColumns
from advisor.estimate.ways.model_parallel import (
    on_machine,
    search,
    space_on,
    stack_spaces,
    within_links,
)
from advisor.estimate.ways.recorded_units import UnitModel
from advisor.planners.core import PlanningError
from advisor.planners.layouts import check, nothing_fits

# Reasons that a search over layouts has more to say about.
_OF_LAYOUTS: Final = (
    "does_not_fit_in_memory", "fewer_samples_than_workers", "excluded_by_layout",
    "batch_does_not_divide",
)  # fmt: skip
_OTHERS: Final[Mapping[str, tuple[str, str]]] = {
    "does_not_fit_in_memory": (
        "its processes do not fit in memory", "choose devices or machines with more memory"
    ),
    "fewer_samples_than_workers": (
        "a batch has fewer samples than there are devices", "raise --batch, or use fewer devices"
    ),
    "network_unknown": (
        "nobody states the network between its machines", "leave --known-network out"
    ),
    "no_time_model": ("no time model covers its devices", "choose another type"),
    "accelerator_not_supported": (
        "the script cannot use its devices unchanged", "choose a type with the devices it is for"
    ),
    "runs_on_one_machine": ("a program without training steps runs on one machine", "--count 1"),
    "excluded_by_layout": (
        "no layout of the requested form", "leave degrees, ZeRO stage and recomputation open"
    ),
    "recorded_step_uncertain": (
        "its recorded step is too uncertain to estimate this machine",
        "profile it for longer (advisor profile --for 2m SCRIPT), or name another: "
        "--gpu L4, --on c7i.4xlarge",
    ),
}  # fmt: skip


def refusal(case: StepCase | None, columns: TimeColumns, row: int) -> PlanningError:
    """Return why a row of the columns has no estimate, with exit code 3, or 2 for contradictions.

    ``case``: that the columns were asked of; None of a program without steps, or where the
    status alone has to do.
    """
    status = STATUSES[int(columns.status[row])]
    found = None
    if case is not None and status in _OF_LAYOUTS:
        kind, count = int(columns.type_index[row]), int(columns.count[row])
        is_by_shape = bool(is_laid_out_by_shape(case, np.array([kind])).all())
        found = (_of_shapes if is_by_shape else _of_units)(case, kind, count)
    if found is not None:
        return found
    why, hint = _OTHERS.get(status, (status.replace("_", " "), "choose another type or count"))
    return PlanningError(why, hint=hint, exit_code=3)


def _of_units(case: StepCase, kind: int, count: int) -> PlanningError | None:
    return UnitModel(case).refusal(kind, count)


def _of_shapes(case: StepCase, kind: int, count: int) -> PlanningError:
    on = on_machine(case, kind)
    devices, batch = count * on.per_node, case.job.global_batch
    try:
        check(on.problem, devices, batch, space_on(case, on.problem))
    except PlanningError as error:
        return error
    # Where the search ended: in all that the stack can.
    space = within_links(stack_spaces(case.space, case.work.setup)[-1], on.problem)
    found = search(case, on, count)
    return nothing_fits(on.problem, found, devices, batch, space, case.space)
