"""Measured steps of described jobs as columns, which the step-time equation is evaluated on."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from advisor.machines.devices import device_parameters
from advisor.planners.core import Device, Operators, Work, concatenate, select
from advisor.planners.step.device import KINDS, PRODUCTS, copy_s
from advisor.planners.step.device_rates import (
    Devices,
    generations_before_maxwell,
    log_rates,
    vector_units,
)

# A measured step of a described job: what the suites of ``described_rows`` consist of.


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A measured step of a described job."""

    seconds: float  # of the phases among ``operators`` [s]
    # what was timed: no optimizer where the suite leaves the update out
    operators: Operators
    work: Work  # the whole step, at the measured micro-batch, in the precision that was run
    device: Device
    is_half: bool
    has_update: bool
    model: str
    family: str
    suite: str
    host: str = ""  # the machine that was measured, where the calls of a script are its limit


# A sweep's rows of one (GPU, model, precision) beyond this many say nothing new.
MOST_OF_A_SWEEP: Final = 8


def thinned(frame: pd.DataFrame, labels: list[str]) -> pd.DataFrame:
    """Return at most ``MOST_OF_A_SWEEP`` rows of each group, evenly from first to last."""
    return pd.concat(
        [
            sweep.iloc[np.unique(np.linspace(0, len(sweep) - 1, MOST_OF_A_SWEEP).astype(int))]
            for _, sweep in frame.groupby(labels)
        ]
    )


Array = NDArray[np.float64]
Ints = NDArray[np.int64]
CONVOLUTIONS: Final = ("convolution", "winograd")
UNITS: Final = ("tensor", "single", "shared", "separate")
PHASES: Final = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedRows:
    """Measured steps as arrays of shape (n,), their operators as arrays of shape (m,).

    ``row`` says whose an operator is, ``is_matrix`` whether matrix units take it. ``peak`` is that
    of the products' units, ``matrix_peak`` of the matrix units and ``best`` the fastest product
    measured on them (infinite where none was), ``single_peak`` the vector units' peak. Of a
    recorded script, ``call_s`` is what a call takes on an unseen host, ``copied_s`` the copy of
    its loader's batch, and ``host`` that machine; 0 and empty for a described job. ``years`` since
    2023; ``age`` as ``generations_before_maxwell``; ``log_rates`` of shape (n, 3); ``vector_unit``
    indexes ``UNITS`` without the first, ``kind`` ``KINDS``, ``phase`` ``PHASES``.
    """

    row: Ints
    flop: Array
    bytes: Array
    count: Array
    kind: Ints
    phase: Ints
    is_matrix: NDArray[np.bool_]
    log_s: Array
    call_s: Array
    copied_s: Array
    peak: Array
    matrix_peak: Array
    best: Array
    single_peak: Array
    bandwidth: Array
    tdp: Array
    years: Array
    age: Array
    log_rates: Array
    vector_unit: Ints
    is_half: NDArray[np.bool_]
    device: NDArray[np.str_]
    chip: NDArray[np.str_]
    architecture: NDArray[np.str_]
    model: NDArray[np.str_]
    family: NDArray[np.str_]
    suite: NDArray[np.str_]
    host: NDArray[np.str_]

    def take(self, rows: NDArray[np.bool_]) -> DescribedRows:
        number = np.cumsum(rows) - 1
        operators = rows[self.row]
        kept = {
            f.name: getattr(self, f.name)[operators if f.name in _OF_OPERATORS else rows]
            for f in fields(self)
        }
        return DescribedRows(**kept | {"row": number[kept["row"]]})


_OF_OPERATORS: Final = ("row", "flop", "bytes", "count", "kind", "phase", "is_matrix")


def columns(rows: list[MeasuredStep]) -> DescribedRows:
    """Return the rows as columns; operators of equal sizes are taken together."""
    merged = [_merged(row.operators) for row in rows]
    operators = concatenate(merged)
    devices = [row.device for row in rows]
    table = Devices(devices)
    units = vector_units(table).tolist()
    call_s = np.array([row.work.call_s or 0.0 for row in rows])
    is_half = np.array([row.is_half for row in rows])
    is_tf32 = np.array(
        [row.work.precision == "tf32" and bool(row.device.tf32_flop_per_s) for row in rows]
    )  # fmt: skip
    is_tensor = (is_half & (np.array(units) != "single")) | is_tf32
    single = np.array([d.fp32_flop_per_s or 1.0 for d in devices])
    half = np.array([d.fp16_flop_per_s or d.bf16_flop_per_s or 1.0 for d in devices])
    tf32 = np.array([d.tf32_flop_per_s or 1.0 for d in devices])
    peak = np.where(is_tf32, tf32, np.where(is_tensor, half, single))
    # Of a recorded script in 32 bits, convolutions run as TF32 where the device has it.
    has_tf32 = np.array([bool(d.tf32_flop_per_s) for d in devices]) & ~is_half & (call_s > 0)
    matrix_peak = np.where(has_tf32, tf32, peak)
    row = np.repeat(np.arange(len(rows)), [len(one) for one in merged])
    kind = np.array([KINDS.index(one) for one in operators.kind])
    is_product, is_convolution = (
        np.isin(kind, [KINDS.index(k) for k in kinds]) for kinds in (PRODUCTS, CONVOLUTIONS)
    )
    return DescribedRows(
        log_s=np.log([row.seconds for row in rows]),
        row=row,
        is_matrix=(is_product & is_tensor[row]) | (is_convolution & has_tf32[row]),
        call_s=call_s,
        copied_s=np.array([copied_s(row) for row in rows]),
        flop=operators.flop,
        bytes=operators.bytes,
        count=operators.kernels,
        kind=kind,
        phase=np.array([PHASES.index(one) for one in operators.phase]),
        peak=peak,
        matrix_peak=matrix_peak,
        best=np.array([_best_share(d) for d in devices]) * matrix_peak,
        single_peak=single,
        bandwidth=np.array([d.memory_bytes_per_s for d in devices]),
        tdp=np.array([d.tdp_w or np.inf for d in devices]),
        years=np.array([(d.release_year or 2023.0) - 2023.0 for d in devices]),
        age=generations_before_maxwell(table),
        log_rates=log_rates(table),
        vector_unit=np.array([UNITS.index(u) - 1 for u in units]),
        is_half=is_half,
        device=np.array([d.name for d in devices]),
        chip=np.array([chip_of(d.name) for d in devices]),
        architecture=np.array([d.architecture for d in devices]),
        model=np.array([row.model for row in rows]),
        family=np.array([row.family for row in rows]),
        suite=np.array([row.suite for row in rows]),
        host=np.array([row.host for row in rows], dtype=np.str_),
    )  # fmt: skip


def copied_s(row: MeasuredStep) -> float:
    """Return what copying the batch to the device takes; by links, nothing of it is fitted [s]."""
    if not row.work.call_s or not row.work.input_bytes_per_sample:
        return 0.0
    return float(copy_s(row.work, Devices([row.device]), device_parameters())[0])


def _best_share(device: Device) -> float:
    """Return the share of the 16-bit peak that the fastest product reached, infinite if none."""
    half = device.fp16_flop_per_s or device.bf16_flop_per_s or 1.0
    return (device.best_fp16_flop_per_s or np.inf) / half


def _merged(made: Operators) -> Operators:
    """Join operators that are calls of the same sizes: their maxima are the same."""
    sizes = made.flop / made.count, made.bytes / made.count
    numbers: dict[tuple[object, ...], int] = {}
    number = [
        numbers.setdefault(key, len(numbers))
        for key in zip(made.kind, made.phase, *sizes, strict=True)
    ]
    flop, moved, count, kernels = (
        np.asarray(np.bincount(number, column), float)
        for column in (made.flop, made.bytes, made.count, made.kernels)
    )
    first = select(made, np.unique(number, return_index=True)[1])
    none = np.zeros(len(first))
    return replace(
        first,
        flop=flop,
        bytes=moved,
        fixed_bytes=none,
        count=count,
        listed=np.minimum(kernels, count),
    )


def chip_of(name: str) -> str:
    """Return the chip of a board: A100-SXM4-40GB is an A100, MI210 and MI250 carry one die."""
    if name.startswith(("MI210", "MI250")):
        return "MI200"
    return name.split("-SXM")[0].split("-PCIe")[0].split("-NVL")[0]
