"""Shortest bill of a provider, and the step that a bill is a whole multiple of.

===========  ============  ========  =====  ================================================
provider     machines      shortest  step   source
===========  ============  ========  =====  ================================================
scaleway     without GPU   1 h       1 h    scaleway/docs-content, pull 5727 (2025-10-28)
scaleway     with GPU      1 min     1 min  the same
lambda       all           1 min     1 min  old.docs.lambdalabs.com, on-demand invoicing
hyperstack   all           1 min     1 min  hyperstack.cloud/gpu-pricing, read 2026-08-26
all others   all           1 min     none   AWS and Google: by the second from a minute on
===========  ============  ========  =====  ================================================

A capacity block of the user's (``overrides.csv``) is sold in whole blocks.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue.columns import TypeColumns
from advisor.planners.core.units import HOUR_S

Floats = NDArray[np.float64]

SHORTEST_BILL_H: Final = 60 / HOUR_S
# Provider: step of a bill for machines without accelerators, and with [s].
_STEPS_S: Final = {"scaleway": (3600.0, 60.0), "lambda": (60.0, 60.0), "hyperstack": (60.0, 60.0)}


def bills(types: TypeColumns, type_index: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return the shortest bill and the step of bills of the types at ``type_index`` [h]."""
    step = np.zeros(len(types))
    for provider, (plain, accelerated) in _STEPS_S.items():
        own = np.asarray(types.provider == provider)
        step[own] = np.where(types.accelerator_count[own] > 0, accelerated, plain) / HOUR_S
    return np.maximum(step, SHORTEST_BILL_H)[type_index], step[type_index]


def charged_h(hours: Floats, shortest_h: Floats | float, step_h: Floats | float) -> Floats:
    """Return the hours that a bill holds for machines rented so long [h].

    Parameters
    ----------
    shortest_h, step_h : float or float array
        As of ``bills``; broadcast.

    Examples
    --------
    >>> charged_h(np.array([0.001, 0.51, 1.0]), 0.5, 0.5).tolist()
    [0.5, 1.0, 1.0]
    """
    charged = np.maximum(hours, shortest_h)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.ceil(charged / step_h - 1e-9) * step_h
    return np.asarray(np.where(np.asarray(step_h) > 0, whole, charged))
