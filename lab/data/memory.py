"""Readings of training memory, and runs that ran out of it: what was collected, in our form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from advisor.lab.data.dataset import Dataset, PublishedTable, github

if TYPE_CHECKING:
    import pandas as pd

_TECHNIQUES: Final = ("full", "qlora", "lora")
# What the source read -> (our word for it, whether the source says so)
_DEFINITIONS: Final = {
    "peak_reserved": ("reserved", 1), "max_allocated": ("allocated", 1), "monitor": ("monitor", 1),
    "max_allocated (unsaid)": ("allocated", 0), "unsaid (VRAM usage, MB)": ("allocated", 0),
    "unsaid (peak)": ("allocated", 0), "estimate": ("estimate", 1),
    "estimate of states only": ("estimate", 1),
}  # fmt: skip
_FORM: Final = (
    "row_id", "source", "path", "commit", "licence", "model", "layers", "hidden", "heads",
    "kv_heads", "ffn", "is_gated", "vocabulary", "experts", "experts_per_token", "technique",
    "adapter", "rank", "base_bits", "optimizer", "precision", "micro_batch", "sequence",
    "accelerators", "accelerator", "sharding", "recompute", "loss", "offload",
    "optimizer_in_backward", "stack", "memory_gib", "definition", "is_definition_stated",
    "verdict", "is_measured", "note",
)  # fmt: skip


def _numbers(column: pd.Series[Any]) -> pd.Series[Any]:
    import pandas as pd

    return pd.to_numeric(column, errors="coerce")


def _base_bits(row: Any) -> int:
    """Return bits of a frozen weight: what the name of the precision says of a quantised base."""
    quantised = str(row.technique).startswith("q")
    return 8 if quantised and "int8" in str(row.precision) else 4 if quantised else 16


def _technique(published: str) -> str:
    word = published.split(" ")[0].split(",")[0]
    return word if word in _TECHNIQUES else "adapter"


def _tidy(rows: pd.DataFrame) -> pd.DataFrame:
    """Split what the collected table says in one cell: technique, experts, definition."""
    said, ffn = rows.technique.fillna(""), rows.ffn.fillna("").astype(str)
    experts = ffn.str.extract(r"^(\d+) x (\d+) experts, top (\d+)$")
    defined = rows.definition.map(lambda word: _DEFINITIONS[word])
    return rows.assign(
        technique=said.map(_technique),
        adapter=said.where(said != "full", ""),
        rank=_numbers(said.str.extract(r" r(\d+)")[0]),
        base_bits=[_base_bits(row) for row in rows.itertuples()],
        ffn=_numbers(experts[0].fillna(ffn)),
        experts=_numbers(experts[1]).fillna(1),
        experts_per_token=_numbers(experts[2]).fillna(1),
        sequence=_numbers(rows.sequence),
        accelerators=_numbers(rows.accelerators),
        definition=[word for word, _ in defined],
        is_definition_stated=[is_stated for _, is_stated in defined],
        is_measured=(rows.measured == "measured").astype(int),
    )


MEMORY: Final = Dataset(
    name="memory", title="readings of training memory and runs that ran out of it", ships=True,
    licence="by row: Apache-2.0, BSD-2-Clause, facts of public threads",
    upstream=github(
        "modelscope/ms-swift@3602360a5", "Lightning-AI/litgpt@26857050",
        "huggingface/peft@5d602fdbf", "hpcaitech/ColossalAI@4f9953be3",
        "huggingface/diffusers@58eb52c08", "deepspeedai/DeepSpeed@edaa72212",
        "hiyouga/LLaMA-Factory@ff6d4d12e", "linkedin/Liger-Kernel@ead96b61",
        "foundation-model-stack/fms-acceleration@04702cc5b", "QwenLM/Qwen@03cd81f5e",
    ),
    tables={
        "runs": PublishedTable.of(
            "memory/runs.csv.gz", "measurements/memory/memory.csv",
            "row_id=id source path commit licence model layers hidden heads kv_heads ffn "
            "is_gated=gated vocabulary technique optimizer precision micro_batch sequence "
            "accelerators=devices accelerator=gpu sharding recompute loss offload "
            "optimizer_in_backward stack memory_gib definition verdict measured note",
            form=_FORM, tidy=_tidy, tell="technique memory_gib definition verdict",
        ),
        # Typed by hand from public pages: no published form.
        "collected": PublishedTable(
            file="memory/collected.csv", published="memory/collected.csv", columns={}, form=_FORM
        ),
        "kernels": PublishedTable.of(
            "memory/kernels.csv.gz", "measurements/memory/kernels.csv",
            "row_id=id path commit licence kernel provider mode x_name x_value config "
            "accelerator=gpu peak_mib day stack",
        ),
    },
)  # fmt: skip
