"""Measured steps of models that can be described: layers, NeuSight's suite, Lambda's suite.

Every row is a described job (``planners.step.describe``) on a device, as columns of operators
that the
step-time equation of ``planners.step.device`` is evaluated on. Only sizes that the suites state
are
used; what they leave open (attention written out or fused, precision of fp32 products) is set here
for a suite as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from advisor.errors import ModelError
from advisor.machines.devices import suite_device
from advisor.measurements import LAMBDA, LAYERS, NEUSIGHT
from advisor.planners.core.nouns import (
    DEFAULT_SETUP,
    Device,
    Operator,
    Precision,
    TrainingSetup,
    Transformer,
    Work,
)
from advisor.planners.step.describe import block_operators, transformer_work
from advisor.planners.step.describe_convolutions import convolutional_work, parse_network
from advisor.planners.step.describe_operators import Tally
from advisor.planners.step.device import KINDS
from advisor.planners.step.device_rates import vector_units
from advisor.train.device_model import HEADS, layer_frame

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
# A sweep's rows of one (GPU, model, precision) beyond this many say nothing new.
MOST_OF_A_SWEEP: Final = 8
UNITS: Final = ("tensor", "single", "shared", "separate")
PHASES: Final = ("forward", "backward", "optimizer")
# Published configurations of NeuSight's models: (layers, hidden, heads, vocabulary, is_causal).
NEUSIGHT_MODELS: Final = {
    "bert_large": (24, 1024, 16, 30522, False), "gpt2_large": (36, 1280, 20, 50257, True),
    "gpt3_xl": (24, 2048, 16, 50257, True), "opt_13": (24, 2048, 32, 50272, True),
    "gpt3_27": (32, 2560, 32, 50257, True),
}  # fmt: skip
RESNET50: Final = "224:64:3x256,4x512,6x1024,3x2048:bottleneck"
# Lambda's BERT fine-tunes on questions: 384 tokens (NVIDIA's example scripts).
LAMBDA_BERT: Final = {"bert_base_squad": (12, 768, 12), "bert_large_squad": (24, 1024, 16)}
_BERT_TOKENS: Final = 384
# What the suites' software is asked as. The fit takes attention as written out everywhere and
# leaves the rest to a family's deviation; Llama layers are asked as any Llama is, which is nearer
# (seen on these rows: not blind). NVIDIA's examples have Apex's kernels.
UNFUSED: Final = TrainingSetup(attention="unfused")
NVIDIA_EXAMPLES: Final = TrainingSetup(attention="unfused", kernels="fused")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedRows:
    """Measured steps as arrays of shape (n,), their operators as arrays of shape (m,).

    ``row`` says whose an operator is. ``peak`` is that of the products' units, ``single_peak``
    the vector units'; ``years`` since 2023; ``unit`` indexes ``UNITS``, ``kind`` ``KINDS``,
    ``phase`` ``PHASES``.
    """

    row: Ints
    flop: Array
    bytes: Array
    count: Array
    kind: Ints
    phase: Ints
    log_s: Array
    peak: Array
    single_peak: Array
    bandwidth: Array
    tdp: Array
    years: Array
    unit: Ints
    is_half: NDArray[np.bool_]
    device: NDArray[np.str_]
    chip: NDArray[np.str_]
    architecture: NDArray[np.str_]
    model: NDArray[np.str_]
    family: NDArray[np.str_]
    suite: NDArray[np.str_]

    def take(self, rows: NDArray[np.bool_]) -> DescribedRows:
        """Return the rows for which ``rows`` is true."""
        number = np.cumsum(rows) - 1
        operators = rows[self.row]
        kept = {
            f.name: getattr(self, f.name)[operators if f.name in _OF_OPERATORS else rows]
            for f in fields(self)
        }
        return DescribedRows(**kept | {"row": number[kept["row"]]})


_OF_OPERATORS: Final = ("row", "flop", "bytes", "count", "kind", "phase")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A measured step of a described job.

    Attributes
    ----------
    seconds : float
        Of the phases among ``operators``. [s]
    operators : tuple of Operator
        What was timed: no optimizer where the suite leaves the update out.
    work : Work
        The whole step, at the measured micro-batch, in the precision that was run.
    device : Device
    is_half, has_update : bool
    model, family, suite : str
    """

    seconds: float
    operators: tuple[Operator, ...]
    work: Work
    device: Device
    is_half: bool
    has_update: bool
    model: str
    family: str
    suite: str


def read_described(data: Path) -> DescribedRows:
    """Read every suite that lies under ``data``.

    Raises
    ------
    ModelError
        If none is there, or one has other columns.
    """
    return columns(read_steps(data))


def read_steps(data: Path) -> list[MeasuredStep]:
    """Read the steps of every suite that lies under ``data``; as ``read_described``."""
    rows: list[MeasuredStep] = []
    for suite, reader in ((LAYERS, _layers), (NEUSIGHT, neusight_rows), (LAMBDA, _lambda)):
        if suite.is_in(data):
            try:
                rows += reader(data)
            except (KeyError, ValueError) as error:
                raise ModelError(
                    f"cannot read {suite.title}: {error}",
                    hint="name the measurements with --data",
                ) from error
    if not rows:
        raise ModelError(f"no measurements under {data}", hint="name their folder with --data")
    return rows


def _layers(data: Path) -> Iterator[MeasuredStep]:
    frame = layer_frame(data)
    thinned = pd.concat(
        [
            sweep.iloc[np.unique(np.linspace(0, len(sweep) - 1, MOST_OF_A_SWEEP).astype(int))]
            for _, sweep in frame.groupby(["accelerator", "model", "precision"])
        ]
    )
    for row in thinned.to_dict("records"):
        device = suite_device(row["accelerator"])
        if device is None:
            continue
        name = row["model"].replace("deepspeed", "").replace("llamav2", "llama")
        is_half = row["precision"] == "float16"
        hidden = int(row["hidden"])
        is_gated = name.startswith("llama")
        ffn = (row["parameters_per_layer"] - 4 * hidden**2) / ((3 if is_gated else 2) * hidden)
        model = Transformer(
            layers=1, hidden=hidden, heads=HEADS.get(name, max(hidden // 128, 1)),
            sequence=int(row["sequence"]), vocabulary=0, ffn=max(int(ffn), 1), is_gated=is_gated,
            has_flash_attention=False,
        )  # fmt: skip
        precision: Precision = "fp16" if is_half else "fp32"
        tally = Tally(element=2 if is_half else 4, dtype=precision)
        yield MeasuredStep(
            seconds=row["forward_s"] + row["backward_s"],
            operators=tuple(block_operators(tally, model, int(row["micro_batch"]))),
            work=transformer_work(
                replace(model, has_flash_attention=True),
                micro_batch=int(row["micro_batch"]),
                precision=precision,
                setup=DEFAULT_SETUP if name.startswith("llama") else UNFUSED,
            ),
            device=device, is_half=is_half, has_update=False, model=name,
            family=name.split("_")[0], suite="layers",
        )  # fmt: skip


def neusight_rows(data: Path) -> Iterator[MeasuredStep]:
    """Yield NeuSight's single-device training rows of dense transformers; no update is timed."""
    frame = NEUSIGHT.read("latencies", data)
    frame = frame[(frame["mode"] == "train") & frame["layout"].isna()]
    for row in frame.to_dict("records"):
        device = suite_device(row["accelerator"])
        known = NEUSIGHT_MODELS.get(row["model"])
        if device is None or known is None:
            continue
        layers, hidden, heads, vocabulary, is_causal = known
        model = Transformer(
            layers=layers, hidden=hidden, heads=heads, vocabulary=vocabulary,
            sequence=int(row["sequence"]), is_causal=is_causal, has_flash_attention=False,
        )  # fmt: skip
        work = transformer_work(
            model, micro_batch=int(row["batch"]), precision="fp32", setup=UNFUSED
        )
        yield MeasuredStep(
            seconds=row["measured_s"],
            operators=tuple(o for o in work.operators if o.phase != "optimizer"),
            work=work, has_update=False, device=_as_seen(device), is_half=False,
            model=row["model"], family="neusight", suite="neusight",
        )  # fmt: skip


def _lambda(data: Path) -> Iterator[MeasuredStep]:
    frame = LAMBDA.read("throughputs", data)
    frame = frame[(frame["accelerators"] == 1) & frame["model"].isin(["resnet50", *LAMBDA_BERT])]
    measured = ["units_per_s", "batch_per_accelerator"]
    cells = frame.groupby(["accelerator", "precision", "model"])[measured].median()
    for cell in cells.dropna().reset_index().to_dict("records"):
        precision, name = str(cell["precision"]), str(cell["model"])
        device = suite_device(str(cell["accelerator"]))
        if device is None or cell["batch_per_accelerator"] < 1:
            continue
        batch = int(cell["batch_per_accelerator"])
        # Lambda's fp32 is what the framework does by default: TF32 where the chip has it.
        single: Precision = "tf32" if device.tf32_flop_per_s else "fp32"
        asked: Precision = "fp16" if precision == "fp16" else single
        if name == "resnet50":
            work = convolutional_work(
                parse_network(RESNET50),
                micro_batch=batch,
                precision=asked,
            )
        else:
            layers, hidden, heads = LAMBDA_BERT[name]
            model = Transformer(
                layers=layers, hidden=hidden, heads=heads, sequence=_BERT_TOKENS,
                vocabulary=30522, is_causal=False, has_flash_attention=False, has_head=False,
            )  # fmt: skip
            work = transformer_work(
                model, micro_batch=batch, precision=asked, setup=NVIDIA_EXAMPLES
            )
        yield MeasuredStep(
            seconds=batch / cell["units_per_s"], operators=work.operators, work=work,
            has_update=True, device=device, is_half=precision == "fp16", model=name,
            family="resnet" if name == "resnet50" else "lambda bert", suite="lambda",
        )  # fmt: skip


def columns(rows: list[MeasuredStep]) -> DescribedRows:
    """Return the rows as columns; operators of equal sizes are taken together."""
    merged = [_merged(row.operators) for row in rows]
    operators = [operator for one in merged for operator in one]
    devices = [row.device for row in rows]
    units = [vector_units(d) for d in devices]
    is_half = np.array([row.is_half for row in rows])
    # Lambda's fp32 is what the framework does by default: TF32 where the chip has it.
    is_tf32 = np.array(
        [row.suite == "lambda" and not row.is_half and bool(row.device.tf32_flop_per_s)
         for row in rows]
    )  # fmt: skip
    is_tensor = (is_half & (np.array(units) != "single")) | is_tf32
    single = np.array([d.fp32_flop_per_s or 1.0 for d in devices])
    half = np.array([d.fp16_flop_per_s or d.bf16_flop_per_s or 1.0 for d in devices])
    tf32 = np.array([d.tf32_flop_per_s or 1.0 for d in devices])
    return DescribedRows(
        log_s=np.log([row.seconds for row in rows]),
        row=np.repeat(np.arange(len(rows)), [len(one) for one in merged]),
        flop=np.array([o.flop for o in operators]),
        bytes=np.array([o.bytes for o in operators]),
        count=np.array([o.count for o in operators]),
        kind=np.array([KINDS.index(o.kind) for o in operators]),
        phase=np.array([PHASES.index(o.phase) for o in operators]),
        peak=np.where(is_tf32, tf32, np.where(is_tensor, half, single)),
        single_peak=single,
        bandwidth=np.array([d.memory_bytes_per_s for d in devices]),
        tdp=np.array([d.tdp_w or np.inf for d in devices]),
        years=np.array([(d.release_year or 2023.0) - 2023.0 for d in devices]),
        unit=np.where(is_tensor, 0, [UNITS.index(u) for u in units]),
        is_half=is_half,
        device=np.array([d.name for d in devices]),
        chip=np.array([chip_of(d.name) for d in devices]),
        architecture=np.array([d.architecture for d in devices]),
        model=np.array([row.model for row in rows]),
        family=np.array([row.family for row in rows]),
        suite=np.array([row.suite for row in rows]),
    )  # fmt: skip


def _merged(operators: tuple[Operator, ...]) -> list[Operator]:
    """Join operators that are calls of the same sizes: their maxima are the same."""
    found: dict[tuple[object, ...], Operator] = {}
    for one in operators:
        key = (one.kind, one.phase, one.flop / one.count, one.bytes / one.count)
        known = found.get(key)
        found[key] = one if known is None else replace(
            known, count=known.count + one.count, flop=known.flop + one.flop,
            bytes=known.bytes + one.bytes, fixed_bytes=0.0,
        )  # fmt: skip
    return list(found.values())


def _as_seen(device: Device) -> Device:
    """Return what PyTorch sees as one device: of two dies on a board, one (MI250, MI250X)."""
    if not device.name.startswith("MI250"):
        return device
    return replace(
        device,
        memory_bytes_per_s=device.memory_bytes_per_s / 2,
        fp32_flop_per_s=(device.fp32_flop_per_s or 0.0) / 2,
        tdp_w=(device.tdp_w or 0.0) / 2,
    )


def chip_of(name: str) -> str:
    """Return the chip of a board: A100-SXM4-40GB is an A100, MI210 and MI250 carry one die."""
    if name.startswith(("MI210", "MI250")):
        return "MI200"
    return name.split("-SXM")[0].split("-PCIe")[0].split("-NVL")[0]
