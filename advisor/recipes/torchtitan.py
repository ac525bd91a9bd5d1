"""torchtitan's TOML, which its releases up to 0.2 read.

Defaults and meanings: torchtitan 0.2 (``config/job_config.py``; 0.3 has the same fields in
``config/configs.py``; ``models/*/__init__.py``: the flavors); read 2026-11-29.
"""

from __future__ import annotations

import math
from typing import Final

from advisor.recipes.facts import Config, Facts
from advisor.recipes.tables import meanings

_DEGREES: Final = ("tp", "pp", "cp")


def read(config: Config, facts: Facts) -> Facts:
    """Return what a torchtitan recipe says; its ranks follow from degrees, if all are given."""
    name, flavor = config.text("model.name") or "llama3", config.text("model.flavor") or ""
    split = math.prod(facts[one] or 1 for one in _DEGREES)
    copies, shards = (
        config.whole(f"parallelism.data_parallel_{one}_degree",
                     f"training.data_parallel_{one}_degree") for one in ("replicate", "shard")
    )  # fmt: skip
    ranks = config.ranks or (shards and (copies or 1) * shards * split)
    ranks = ranks or config.devices
    converters = " ".join(config.words("model.converters"))
    is_fp8 = config.flag("float8.enable_float8_linear", "float8.enable_fp8_linear")
    has_stages = (facts["pp"] or 1) > 1
    facts |= {
        "model": meanings("flavors").get(f"{name} {flavor}".lower(), f"{name}-{flavor}"),
        "precision": "fp8" if is_fp8 or "float8" in converters else "bf16",
        "offload": config.flag("training.enable_cpu_offload") and ("optimizer", "parameters"),
        "schedule": facts["schedule"] if has_stages else None,
    }
    if ranks and not facts["batch"]:
        facts["batch"] = facts["micro_batch"] * max(ranks // split, 1)
    if has_stages:  # its micro-batches are cut from the local batch
        facts["micro_batch"] = None
    return facts | {one: None for one in (*_DEGREES, "ep", "etp") if facts[one] == 1}
