"""What a bill holds at least, and the step that it is a whole multiple of.

They are the provider's (``providers.csv``), or whole blocks of a capacity block of the user's.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from advisor.catalogue.offer_columns import Floats, Ints, TypeColumns
from advisor.planners.core import HOUR_S
from advisor.providers import providers

SHORTEST_BILL_H: Final = 60 / HOUR_S


def bills(types: TypeColumns, type_index: Ints) -> tuple[Floats, Floats]:
    """Return the shortest bill and the step of bills of the types at ``type_index`` [h]."""
    step = np.zeros(len(types))
    for name, one in providers().items():
        if one.bill_step_s or one.bill_step_accelerated_s:
            own = np.asarray(types.provider == name)
            accelerated = types.accelerator_count[own] > 0
            step[own] = np.where(accelerated, one.bill_step_accelerated_s, one.bill_step_s)
    step /= HOUR_S
    return np.maximum(step, SHORTEST_BILL_H)[type_index], step[type_index]


def charged_h(hours: Floats, shortest_h: Floats | float, step_h: Floats | float) -> Floats:
    """Return the hours that a bill holds for machines rented so long [h].

    ``shortest_h``, ``step_h``: as of ``bills``; broadcast.

    Examples
    --------
    >>> charged_h(np.array([0.001, 0.51, 1.0]), 0.5, 0.5).tolist()
    [0.5, 1.0, 1.0]
    """
    charged = np.maximum(hours, shortest_h)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.ceil(charged / step_h - 1e-9) * step_h
    return np.asarray(np.where(np.asarray(step_h) > 0, whole, charged))
