"""Limits on the use of the machine, as the script's own process sees them."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Variables that the frameworks' thread pools read when they start.
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def facts(torch: Any, called: int | None, is_rank: bool = False) -> dict[str, Any]:
    """Return the limits in force."""
    try:
        affinity = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on Linux
        affinity = os.cpu_count() or 1
    said = {name: os.environ.get(name, "").split(",")[0].strip() for name in _VARIABLES}
    if is_rank:  # the cores of this machine are shared out: no limit of the script
        affinity, said = os.cpu_count() or 1, {}
    return {
        "threads": None if torch is None else torch.get_num_threads(),
        "called": called,
        "environment": {name: int(value) for name, value in said.items() if value.isdigit()},
        "affinity": affinity,
    }
