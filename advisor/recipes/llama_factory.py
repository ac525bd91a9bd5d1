"""LLaMA-Factory's YAML or JSON.

Defaults and meanings: llamafactory 0.9.5 (``hparams/data_args.py``, ``finetuning_args.py``,
``model_args.py``; ``model/adapter.py``: ``cast_trainable_params_to_fp32``), on the
``TrainingArguments`` of transformers, as its package on PyPI has it; read 2026-11-29.
"""

from __future__ import annotations

from advisor.collectors import bounded
from advisor.recipes.facts import Config, Facts, local_samples
from advisor.recipes.hugging_face import adapted, precision, refuse_stage, sharded


def read(config: Config, facts: Facts) -> Facts:
    """Return what a LLaMA-Factory recipe says; what is trained is upcast to fp32 by default."""
    stage, kind = config.text("stage") or "sft", config.text("finetuning_type") or "lora"
    refuse_stage(config, stage, ("sft", "pt"))
    refuse_stage(config, kind, ("lora", "full"))
    products, is_fp8 = precision(config), config.flag("fp8")
    is_packed = config.flag("packing", default=stage == "pt")
    facts |= {
        "precision": "fp8" if is_fp8 else products,
        "packed": config.flag("neat_packing") or is_packed,
        "samples": _samples(config, facts["data"]),
    }
    for name, key in (("muon", "use_muon"), ("galore", "use_galore")):
        facts |= {"optimizer": name} if config.flag(key) else {}
    if config.flag("enable_liger_kernel"):
        facts |= {"loss": "chunked", "kernels": facts["kernels"] or "fused"}
    if kind == "lora":
        bits = config.whole("quantization_bit") or 16
        bits = bits if bits in (4, 8) else 16 if bits > 8 else 4
        facts |= adapted(
            config.whole("lora_rank") or 8, config.words("lora_target") or ["all"], bits
        )
    return sharded(config, facts)


def _samples(config: Config, names: list[str]) -> int | None:
    """Return the samples of data sets here, whose files ``dataset_info.json`` names."""
    folder = config.path.parent / (config.text("dataset_dir") or "data")
    known, most = bounded.read_object(folder / "dataset_info.json"), config.whole("max_samples")
    files = [known[one].get("file_name") for one in names if isinstance(known.get(one), dict)]
    counts = [local_samples(folder, [file]) for file in files if file]
    if not counts or len(counts) < len(names) or None in counts:
        return None
    return sum(min(count or 0, most or count or 0) for count in counts)
