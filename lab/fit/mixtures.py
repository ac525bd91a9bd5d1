"""Published steps of mixtures of experts (``lab.data.MIXTURES``) as questions.

What the tables do not state is filled here, each a fact of that stack or marked as a guess:

- The network is NVIDIA's own clusters', 400 Gb/s a GPU; no source prints it (a guess).
- States are sharded (``use_distributed_optimizer``) and nothing is repeated; Megatron-Bridge
  repeats normalisations and activations of experts in some rows, which costs little.
- Tokens are sent once a node from Megatron-Bridge's containers of 25.11 on; before, for each
  expert, and nothing behind. Megatron-Bridge forces them even.

SimuMax's steps of four layers of DeepSeek's models on eight B200s are of the same kind: Megatron
Core, every copy sent, tokens even as its simulator takes them to be.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from advisor.errors import ModelError
from advisor.jobs.model_facts import restacked
from advisor.lab.data import BLACKWELL, MIXTURES
from advisor.lab.fit.asked import AskedRun
from advisor.planners.core.errors import bytes_per_s
from advisor.planners.core.nouns import Layout
from advisor.planners.core.setup import DEFAULT_SETUP, Latent, TrainingSetup, Transformer
from advisor.planners.step.describe_configs import read_config

TABLES: Final = "mixtures "  # how their tables' names begin
# Gb/s a GPU: ConnectX-7 of DGX H100, B200 and GB200 alike.
_NETWORK_GBIT_PER_S: Final = 400
_GPUS: Final = {
    "H100": "H100-SXM5-80GB", "H100-80GB": "H100-SXM5-80GB", "B200": "B200-SXM-180GB",
    "B300": "B300-SXM-270GB", "GB200": "GB200-186GB", "GB300": "GB300-279GB",
}  # fmt: skip
_RACK: Final = ("GB200", "GB300")
# The first Megatron-Bridge container whose recipes have a dispatcher of their own.
_SENDS_ONCE_FROM: Final = "NeMo container 25.11"
# Both models' attention (their ``config.json``).
_LATENT: Final = Latent(query_rank=1536, rank=512, rotated=64, value_width=128)


def read_mixtures(data: Path) -> tuple[list[AskedRun], int]:
    """Read the steps under ``data``, and how many are left out.

    Left out are those that drop tokens: no question says so.

    Raises ModelError if the table is missing or damaged.
    """
    try:
        rows = MIXTURES.read("steps", data).to_dict("records")
        kept = [row for row in rows if str(row["balance"]) != "token drop"]
        return [_run(row) for row in kept], len(rows) - len(kept)
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"cannot read {MIXTURES.title}: {error}",
            hint="name a folder laid out like shared/data",
        ) from error


def _run(row: Mapping[Any, Any]) -> AskedRun:
    def whole(name: str) -> int:
        return 1 if row[name] != row[name] else int(row[name])

    dp = whole("accelerators") // (whole("tp") * whole("pp") * whole("cp"))
    is_bridge = "Bridge" in str(row["source"])
    model = read_config(json.loads(row["config"]), sequence=whole("sequence"))
    assert isinstance(model, Transformer)
    per_node = min(whole("accelerators_per_node"), whole("accelerators"))
    gpu = str(row["accelerator"])
    return AskedRun(
        row_id=row["row_id"],
        table=f"{TABLES}{row['release']}",
        model=str(row["model"]),
        gpu=_GPUS[gpu],
        transformer=model,
        setup=restacked(DEFAULT_SETUP, {"stack": "nemo"}),
        precision="bf16" if row["precision"] == "BF16" else "fp8",
        layout=Layout(
            dp=dp, tp=whole("tp"), pp=whole("pp"), cp=whole("cp"), ep=whole("ep"),
            etp=None if row["etp"] != row["etp"] or is_bridge else whole("etp"),
            micro_batch=whole("micro_batch"),
            accumulation_steps=whole("global_batch") // dp // whole("micro_batch"),
            virtual_stages=whole("vpp"),
            schedule="interleaved" if whole("vpp") > 1 else "1f1b",
            zero_stage=1 if dp > 1 else 0,
            is_sequence_parallel=whole("tp") > 1,
        ),
        per_node=per_node,
        domain_machines=72 // per_node if gpu in _RACK else 1,
        network_bytes_per_s=bytes_per_s(_NETWORK_GBIT_PER_S * per_node),
        measured_s=float(row["step_s"]),
        stack="nemo",
        software=_facts(str(row["release"])),
    )  # fmt: skip


def _facts(release: str) -> dict[str, float]:
    """Return what a release does otherwise than the stack does today."""
    if release >= _SENDS_ONCE_FROM and release.startswith("NeMo container"):
        return {}
    return {"sends_once": 0, "overlaps_ep": 0}


def fold(model: str) -> str:
    """Return the name of the constants fitted without a model."""
    return f"mixtures without model {model}"


def read_deepseek(data: Path) -> list[AskedRun]:
    """Read SimuMax's steps with experts (``lab.data.BLACKWELL``) that have one stage.

    Of two stages one has two layers with experts, the other a dense one: a layer is the mean of
    all in the layout model.
    """
    rows = BLACKWELL.read("steps", data).to_dict("records")
    return [_deepseek_run(row) for row in rows if int(row["experts"]) > 1 and int(row["pp"]) == 1]


def _deepseek_run(row: Mapping[Any, Any]) -> AskedRun:
    def whole(*names: str) -> dict[str, Any]:
        return {name: int(row[name]) for name in names}

    sizes = ("layers", "hidden", "heads", "sequence", "vocabulary", "experts", "experts_per_token",
             "shared_ffn", "dense_layers")  # fmt: skip
    model = Transformer(
        **whole(*sizes), ffn=int(row["expert_ffn"]), dense_ffn=int(row["ffn"]), latent=_LATENT,
        head_width=192, is_gated=True, has_tied_embeddings=False,
    )  # fmt: skip
    return AskedRun(
        row_id=row["case"], table=f"{TABLES}SimuMax", model=row["model"], gpu=row["accelerator"],
        transformer=model, setup=TrainingSetup(kernels="fused", overlaps=False), precision="bf16",
        layout=Layout(
            **whole("dp", "tp", "pp", "ep", "micro_batch"),
            accumulation_steps=int(row["micro_batches"]), zero_stage=int(row["zero_stage"]),
            is_sequence_parallel=int(row["tp"]) > 1,
        ),
        per_node=int(row["accelerators"]),
        network_bytes_per_s=bytes_per_s(_NETWORK_GBIT_PER_S * int(row["accelerators"])),
        measured_s=float(row["step_s"]), stack="megatron-core", software={"evens_tokens": 1},
    )  # fmt: skip
