"""Answers of every way as columns: one row an (instance type, count).

Rows that cannot run keep their reason in ``status``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.answer import Bottleneck
from advisor.planners.core import OFFLOADS, Layout, Layouts
from advisor.planners.layouts import layout_at
from advisor.reasons import OF_ESTIMATES

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

STATUSES: Final = ("ok", *OF_ESTIMATES)
CODE: Final = {status: code for code, status in enumerate(STATUSES)}
# How the ways are called in answers, in the order in which their files were imported.
_WAYS: Final[list[str]] = []
WAITS: Final[tuple[Bottleneck, ...]] = (
    "compute", "memory", "launch", "copy", "network", "pipeline", "offload", "input",
)  # fmt: skip


def way_code(name: str) -> int:
    """Return the number of a way of training, as ``TimeColumns.way`` holds it."""
    if name not in _WAYS:
        _WAYS.append(name)
    return _WAYS.index(name)


def way_name(code: int) -> str:
    """Return what a way of training is called in answers."""
    return _WAYS[code]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeColumns:
    """One row a (type, count). Times are per optimizer step; nan where ``status`` is not 0."""

    type_index: Integers
    count: Integers
    status: Integers
    way: Integers
    # step_s, log_sd: step time [s] and one standard deviation of the error of its logarithm
    step_s: Floats
    log_sd: Floats
    shares: dict[Bottleneck, Floats]  # what the step waits for (``WAITS``); they sum to 1
    layouts: Layouts  # the layout of every row, as integer arrays
    # memory_bytes, host_bytes: on the fullest device; of a machine's main memory for what is
    # offloaded
    memory_bytes: Floats
    host_bytes: Floats
    # startup_s, data_in_s: before the first step: the program's own start, and bringing in its
    # data [s]
    startup_s: Floats
    data_in_s: Floats
    is_extrapolating: Booleans
    # by how much the steps took longer at the rate that others keep up on the chip, in logarithms;
    # nan where nobody knows, None before ``best`` has looked
    log_usual: Floats | None = None
    # corrected by what was learned from runs; None where nothing is
    is_learned: Booleans | None = None
    # of several machines whose network nobody states: what one is taken to have, nan of the others
    # [bytes/s]; and by how much ln(step) falls as the logarithm of that rises. None before
    # ``best`` has looked
    assumed_network_bytes_per_s: Floats | None = None
    network_slope: Floats | None = None

    def assumed_network(self, row: int) -> tuple[float, float] | None:
        """Return a row's assumed network [bytes/s] and its slope; None where it is stated."""
        if self.assumed_network_bytes_per_s is None or self.network_slope is None:
            return None
        rate = float(self.assumed_network_bytes_per_s[row])
        return None if np.isnan(rate) else (rate, float(self.network_slope[row]))

    @property
    def dp(self) -> Integers:
        """Data-parallel ranks."""
        return np.asarray(self.layouts.dp, np.int64)

    @property
    def micro_batch(self) -> Integers:
        """Samples of a micro-batch of one rank."""
        return np.asarray(self.layouts.micro_batch, np.int64)

    @property
    def accumulation_steps(self) -> Integers:
        """Micro-batches of a step."""
        return np.asarray(self.layouts.accumulation_steps, np.int64)

    @property
    def zero_stage(self) -> Integers:
        """ZeRO stage."""
        return np.asarray(self.layouts.zero_stage, np.int64)

    @property
    def workers(self) -> Integers:
        """Devices that work together."""
        parts = self.layouts
        return np.asarray(self.dp * parts.tp * parts.pp * parts.cp, np.int64)

    def layout(self, row: int) -> Layout:
        """Return the layout of one row as an object."""
        return layout_at(self.layouts, (row,), (len(self.count),))


def integer_layouts(rows: int, **columns: Any) -> Layouts:
    """Return layouts of one length as integer arrays; what is not given is plain data parallel."""
    dp = np.broadcast_to(np.asarray(columns.get("dp", 1), np.int64), (rows,))
    plain: dict[str, Any] = {
        **dict.fromkeys(("tp", "pp", "cp", "ep", "micro_batch", "accumulation_steps"), 1),
        **dict.fromkeys(("virtual_stages", "reshards", "average_every"), 1),
        **dict.fromkeys(
            (
                "zero_stage",
                "recompute",
                "partial_layers",
                "is_sequence_parallel",
                "holds_all",
                "updates_in_backward",
                "etp",
                "backward",
            ),
            0,
        ),
        **{f"offloads_{name}": 0 for name in OFFLOADS},
        "dp": dp,
        "shard_group": dp,
    }
    whole = {
        name: np.broadcast_to(np.asarray(value, np.int64), (rows,)).copy()
        for name, value in (plain | columns).items()
    }
    return Layouts(**whole)


def no_times(
    way: int, type_index: Integers, count: Integers, status: Integers, *, startup_s: Floats,
    data_in_s: Floats, dp: Integers | int = 1,
) -> TimeColumns:  # fmt: skip
    """Return columns of rows that are not estimated yet; they know why they cannot be."""
    n = len(count)
    none, zeros = np.full(n, np.nan), np.zeros(n)
    return TimeColumns(
        type_index=type_index, count=count, status=status, way=np.full(n, way),
        step_s=none, log_sd=none.copy(), shares={name: none.copy() for name in WAITS},
        layouts=integer_layouts(n, dp=dp), memory_bytes=none.copy(), host_bytes=zeros,
        startup_s=startup_s, data_in_s=data_in_s, is_extrapolating=zeros > 0,
    )  # fmt: skip


def shares_of(parts_s: dict[Bottleneck, Floats]) -> tuple[Floats, dict[Bottleneck, Floats]]:
    """Return the sum of a step's parts, and each part's share of it; what is missing is 0."""
    rows = len(next(iter(parts_s.values())))
    total = np.sum(list(parts_s.values()), axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return total, {name: parts_s.get(name, np.zeros(rows)) / total for name in WAITS}
