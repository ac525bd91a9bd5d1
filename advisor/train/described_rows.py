"""Measured steps of models that can be described: layers, NeuSight's suite, Lambda's suite.

Every row is a described job (``planners.step.describe``) on a device, as columns of operators that
the step-time equation of ``planners.step.device`` is evaluated on. Only sizes that the suites
state are used; what they leave open (attention written out or fused, precision of fp32 products)
is set here for a suite as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from advisor.errors import ModelError
from advisor.lab.data import GAVEL, LAMBDA, LAYERS, NEUSIGHT, NVIDIA_EXAMPLES, PROFET
from advisor.machines.devices import suite_device
from advisor.planners.core.nouns import (
    Device,
    Precision,
    TrainingSetup,
    Transformer,
)
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.describe_convolutions import convolutional_work, parse_network
from advisor.train.described_images import gavel_rows, nvidia_rows, profet_rows
from advisor.train.layer_steps import UNFUSED, layer_frame, layer_steps
from advisor.train.measured_step import MeasuredStep, thinned

# Published configurations of NeuSight's models: (layers, hidden, heads, vocabulary, is_causal).
# Its GPT3-XL has the 24 heads of 128 of Brown et al. (table 2.1), side by side, which are 3,072
# wide and not the 2,048 of the table: on every device, and by the suite's own roofline, it takes
# as long as its GPT3-2.7B, of which 2,048 would be half.
NEUSIGHT_MODELS: Final = {
    "bert_large": (24, 1024, 16, 30522, False), "gpt2_large": (36, 1280, 20, 50257, True),
    "gpt3_xl": (24, 3072, 24, 50257, True), "opt_13": (24, 2048, 32, 50272, True),
    "gpt3_27": (32, 2560, 32, 50257, True),
}  # fmt: skip
RESNET50: Final = "224:64:3x256,4x512,6x1024,3x2048:bottleneck"
# Lambda's BERT fine-tunes on questions: 384 tokens (NVIDIA's example scripts).
LAMBDA_BERT: Final = {"bert_base_squad": (12, 768, 12), "bert_large_squad": (24, 1024, 16)}
_BERT_TOKENS: Final = 384
# What the suites' software is asked as, beside ``UNFUSED``: NVIDIA's examples have Apex's kernels.
APEX: Final = TrainingSetup(attention="unfused", kernels="fused")


def read_steps(data: Path) -> list[MeasuredStep]:
    """Read the steps of every suite that lies under ``data``.

    Raises ModelError if none is there, or one has other columns.
    """
    rows: list[MeasuredStep] = []
    readers = (
        (LAYERS, "profiles", _layers), (NEUSIGHT, "latencies", neusight_rows),
        (LAMBDA, "throughputs", _lambda), (GAVEL, "throughputs", gavel_rows),
        (PROFET, "steps", profet_rows), (NVIDIA_EXAMPLES, "throughputs", nvidia_rows),
    )  # fmt: skip
    for suite, table, reader in readers:
        if suite.has(table, data):
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
    yield from layer_steps(thinned(layer_frame(data), ["accelerator", "model", "precision"]))


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
            work = transformer_work(model, micro_batch=batch, precision=asked, setup=APEX)
        yield MeasuredStep(
            seconds=batch / cell["units_per_s"], operators=work.operators, work=work,
            has_update=True, device=device, is_half=precision == "fp16", model=name,
            family="resnet" if name == "resnet50" else "lambda bert", suite="lambda",
        )  # fmt: skip


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
