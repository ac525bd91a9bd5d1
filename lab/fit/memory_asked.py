"""Readings of memory that a user could ask for (``lab.data.MEMORY``), as columns.

Each row is what its user would type: the model's dimensions, what is trained, the micro-batch and
length, the devices and their sharding, recomputation, offload and loss where the source says so,
and the software by the nearest name. What the source does not say stays at the product's defaults.

Left out are rows without a model that flags describe (diffusion, T5, BERT), on devices that the
catalogue does not know, and readings without a micro-batch or a length. A failure needs no less
than a micro-batch of one, so that one is taken where its source says nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from advisor.estimate.knowledge.layout_model import usual_stack
from advisor.jobs.model_facts import as_commonly_run, restacked
from advisor.lab.data import MEMORY
from advisor.lab.fit.asked import AskedRun
from advisor.lab.fit.layout_rows import known_part
from advisor.planners.core.errors import GIB, bytes_per_s
from advisor.planners.core.nouns import Layout
from advisor.planners.core.setup import DEFAULT_SETUP, Precision, Transformer
from advisor.planners.step.describe import transformer_work

# Names in the tables that the catalogue does not know; an H800 has an H100's memory.
_GPUS: Final = {
    "H800-80GB": "H100-SXM5-80GB", "A100-80GB (2 of 40 GB asked)": "A100-SXM4-40GB",
    "24 GB asked": "RTX-4090", "A100-80GB": "A100-SXM4-80GB", "A100-40GB": "A100-SXM4-40GB",
    "L40S-48GB": "L40S", "RTX3090": "RTX-3090", "RTX4090": "RTX-4090",
    "A800-80GB": "A800-SXM4-80GB", "V100-32GB": "V100-SXM2-32GB",
}  # fmt: skip
_ZERO: Final = {"zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}
# Word in a row's software -> what its user names; the first that is there. Lightning's loops of
# litgpt have no name; LLaMA-Factory, as TRL, keeps in 16 bits what is not quantised.
_STACKS: Final = {
    "SFTTrainer": "trl", "Unsloth": "unsloth", "DeepSpeed": "deepspeed", "ColossalAI": "deepspeed",
    "torchtune": "torchtune", "nanoGPT": "ddp-compiled", "Megatron": "nemo", "swift": "trainer",
    "peft": "trainer", "Hugging Face": "trainer", "LLaMA-Factory": "trl", "Qwen": "trainer",
}  # fmt: skip
# Software that is what its name says here; of the rest it is the nearest: ms-swift, LLaMA-Factory
# and ColossalAI have loops and kernels of their own.
_NAMED: Final = (
    "SFTTrainer", "DeepSpeed", "torchtune", "nanoGPT", "peft", "Hugging Face", "Qwen",
)  # fmt: skip
# Words of a row's adapter -> ``--lora-targets``; or its modules by name.
_TARGETS: Final = {
    "query and value": "query-value", "all linear": "all-linear",
    "c_attn c_proj w1 w2": "all-linear",
    "attention input projections": "q_proj,k_proj,v_proj",
}  # fmt: skip
_MODULE: Final = re.compile(r"\b(?:[qkvo]|gate|up|down)_proj\b")
_OPTIMIZERS: Final = {
    "adamw 8-bit": "adamw-8bit", "muon": "muon", "muon (Adam for embeddings)": "muon",
}  # fmt: skip
_LOSSES: Final = ("eager", "fused", "chunked")
_DIMENSIONS: Final = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary")
_PARTS: Final = ("optimizer", "gradients", "parameters", "activations")
# Models whose head is their embedding, by their config.json: what ``--model NAME`` knows.
_TIED: Final = ("Llama-3.2-3B", "Qwen2.5-3B", "GPT-2-124M", "bloomz-7b1", "Falcon-40B")
_NETWORK_BYTES_PER_S: Final = bytes_per_s(1600)  # of memory it tells nothing
_RANK: Final = 8  # of adapters whose source does not say theirs: peft's default
_SEQUENCE: Final = 512  # of a failure whose source does not say it


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedMemory:
    """One row as a question, with what was read, and how."""

    run: AskedRun
    technique: str
    definition: str
    measured_bytes: float  # nan where nothing was read
    is_failure: bool
    is_named: bool  # its software is what a user can name


def asked_memory(data: Path) -> list[AskedMemory]:
    """Return the measured rows under ``data`` that can be asked.

    Raises AbsentDataError if the tables are not there. Raises ModelError if one cannot be read.
    """
    import pandas as pd

    tables = [MEMORY.read(name, data) for name in ("runs", "collected")]
    return list(_asked(pd.concat(tables, ignore_index=True)))


def _asked(frame: Any) -> Iterator[AskedMemory]:
    kept = frame[(frame.is_measured == 1) & frame[list(_DIMENSIONS)].notna().all(axis=1)]
    for row in kept.to_dict("records"):
        gpu = known_part(_GPUS.get(str(row["accelerator"]), str(row["accelerator"])))
        is_failure = row["verdict"] == "oom"
        is_stated = not math.isnan(row["micro_batch"] * row["sequence"] * row["accelerators"])
        if gpu is None or not (is_stated or is_failure):
            continue
        yield AskedMemory(
            run=_run(row, str(gpu.name)), technique=row["technique"], is_failure=is_failure,
            definition=row["definition"], measured_bytes=float(row["memory_gib"]) * GIB,
            is_named=any(word in str(row["stack"]) for word in _NAMED),
        )  # fmt: skip


def _said(value: Any, otherwise: int) -> int:
    return otherwise if math.isnan(value) else int(value)


def _run(row: dict[str, Any], gpu: str) -> AskedRun:
    names = (*_DIMENSIONS, "experts", "experts_per_token")
    sizes: dict[str, Any] = {name: int(row[name]) for name in names}
    model = Transformer(
        **sizes,
        is_gated=bool(row["is_gated"]),
        sequence=_said(row["sequence"], _SEQUENCE),
        has_tied_embeddings=row["model"] in _TIED,
    )
    said, precision = _setup(row), _precision(str(row["precision"]))
    work = transformer_work(
        model, micro_batch=1, precision=precision, setup=restacked(DEFAULT_SETUP, said)
    )
    layout = _layout(row)
    usual = usual_stack(work, is_split=layout.pp > 1)
    if "stack" not in said and usual is not None:
        work = as_commonly_run(work, usual)
    return AskedRun(
        row_id=row["row_id"], table=row["source"], model=row["model"], gpu=gpu, transformer=model,
        setup=work.setup, precision=precision, layout=layout, per_node=layout.devices,
        network_bytes_per_s=_NETWORK_BYTES_PER_S, measured_s=math.nan,
        stack=work.setup.stack or "ddp",
    )  # fmt: skip


def _setup(row: dict[str, Any]) -> dict[str, Any]:
    """Return what is typed of the software; the rest is as the stack has it."""
    software, precision = str(row["stack"]), str(row["precision"])
    said: dict[str, Any] = {}
    named = next((stack for word, stack in _STACKS.items() if word in software), None)
    if row["sharding"] == "fsdp" and named is None:
        named = "fsdp@2.1.0" if "torch 2.1" in software else "fsdp"
    elif row["sharding"] in _ZERO and row["sharding"] != "fsdp":
        named = "deepspeed"
    if named is not None:
        said["stack"] = named
    if row["technique"] != "full":
        said |= {"adapter_rank": _said(row["rank"], _RANK), "base_bits": int(row["base_bits"])}
        if (targets := _targets(str(row["adapter"]))) is not None:
            said["adapter_targets"] = targets
    if row["technique"] == "full" or "fp32 weights" in precision:
        is_wide = "mixed" in precision or "fp32 weights" in precision
        said["weights"] = "fp32" if is_wide else "bf16"
    if "no flash attention" in str(row["note"]):
        said["attention"] = "unfused"
    if row["loss"] in _LOSSES:
        said["loss"] = row["loss"]
    if row["optimizer"] in _OPTIMIZERS:
        said["optimizer"] = _OPTIMIZERS[row["optimizer"]]
    return said


def _targets(adapter: str) -> str | None:
    """Return what a row's adapters stand beside, as a user types it; None where it says nothing.

    Adapters of other kinds are asked as LoRA's on the same matrices.
    """
    modules = _MODULE.findall(adapter)
    if modules:
        return ",".join(modules)
    return next((targets for word, targets in _TARGETS.items() if word in adapter), None)


def _precision(said: str) -> Precision:
    if "fp16" in said and "bf16" not in said:
        return "fp16"
    return "fp32" if said == "fp32" else "bf16"


def _layout(row: dict[str, Any]) -> Layout:
    """Return the layout that ran; layers spread over devices are stages with one micro-batch."""
    devices, micro_batch = _said(row["accelerators"], 1), _said(row["micro_batch"], 1)
    is_spread = str(row["sharding"]).startswith("layers")
    moved = str(row["offload"])
    parts: frozenset[Any] = frozenset(part for part in _PARTS if part in moved)
    if "cpu" in moved and not parts:
        parts = frozenset(("optimizer", "gradients"))  # DeepSpeed's switch
    recompute: Any = row["recompute"] if row["recompute"] in ("none", "full") else None
    usual: Any = "full" if row["technique"] != "full" or row["verdict"] != "oom" else "none"
    split = re.search(r"sequence parallel (\d+)", str(row["note"]))
    cp = int(split[1]) if split else 1
    return Layout(
        pp=devices if is_spread else 1, cp=cp, dp=1 if is_spread else devices // cp,
        micro_batch=micro_batch,
        zero_stage=_ZERO.get(str(row["sharding"]), 0) if devices > 1 else 0,
        recompute=recompute or usual, offload=parts,
        updates_in_backward=row["optimizer_in_backward"] == 1,
    )  # fmt: skip
