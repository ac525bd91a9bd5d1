"""Trainings on images: kohya's sd-scripts, the training scripts of diffusers, Ultralytics.

Defaults and meanings: sd-scripts 0.9 (``library/train_util.py``: ``add_training_arguments``,
``add_sd_models_arguments``; ``sdxl_train_network.py``, ``flux_train_network.py``) and diffusers
0.35 (``examples/text_to_image``, ``examples/dreambooth``: ``parse_args``), as their repositories
have them; ultralytics 8.4 (``cfg/default.yaml``, ``engine/trainer.py``) as its package on PyPI has
it; read 2026-11-29. Recomputation of an image model is not described.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from advisor.errors import UsageError
from advisor.recipes.facts import Config, Facts
from advisor.recipes.tables import meanings
from advisor.recipes.text import table_in


def read(config: Config, facts: Facts) -> Facts:
    """Return what a TOML or the arguments of sd-scripts say."""
    if (beside := config.text("dataset_config")) is not None:
        facts |= _of_data(config, beside)
    facts |= {"model": _model(config), "image": _side(facts)}
    if facts["epochs_said"] is not None:  # whatever number of steps is said
        facts["total_steps"] = None
    if facts["total_steps"] is None and facts["epochs_said"] is None:
        facts["total_steps"] = 1600
    if config.text("network_module") is not None:
        facts |= {"lora": config.whole("network_dim") or 4, "lora_targets": "attention"}
    return facts


def _of_data(config: Config, named: str) -> Facts:
    """Return the side of images and the batch that the configuration of data sets says."""
    path = config.path.parent / PurePosixPath(named).name
    if not path.is_file():
        config.asked[f"the data sets of {named}, which is not here"] = "--image, --micro-batch"
        return {}
    table = table_in(path)
    sets = table.get("datasets")
    parts = [table.get("general"), *(sets[:1] if isinstance(sets, list) else [])]
    named_there = {k: v for part in parts if isinstance(part, dict) for k, v in part.items()}
    own = Config(path=path, table=named_there)
    side, batch = own.words("resolution"), own.whole("batch_size")
    return ({"image": side} if side else {}) | ({"micro_batch": batch} if batch else {})


def read_diffusers(config: Config, facts: Facts) -> Facts:
    """Return what the arguments of a training script of diffusers say."""
    script = config.text("script") or ""
    is_text, is_large = "text_to_image" in script, "sdxl" in script or "flux" in script
    epochs = config.number("num_train_epochs") or (100.0 if is_text else 1.0)
    facts |= {
        "model": _model(config),
        "image": _side(facts) or (1024 if is_large else 512),
        "micro_batch": facts["micro_batch"] or (16 if is_text else 4),
        "epochs_said": None if facts["total_steps"] else epochs,
    }
    if rank := config.whole("rank", "lora_rank") or (4 if "lora" in script else None):
        facts |= {"lora": rank, "lora_targets": "attention"}
    return facts


def read_ultralytics(config: Config, facts: Facts) -> Facts:
    """Return what Ultralytics' YAML or arguments say.

    ``batch`` is that of all devices; gradients accumulate to ``nbs`` samples. Detectors of YOLOv5,
    YOLOv8 and YOLO11 are known by name; no other network is.

    Raises UsageError if the batch is chosen on the machine.
    """
    devices = [one for one in config.words("device") if one.strip("[]").isdigit()]
    ranks = config.ranks or len(devices) or config.devices or 1
    batch, nominal = config.number("batch"), config.whole("nbs") or 64
    name = PurePosixPath(config.text("model") or "").stem
    is_known = re.fullmatch(r"yolo(v5|v8|11)[nsmlx]u?", name)
    side = config.whole("imgsz") or 640
    network: Facts = {"model": name, "image": side} if is_known else {"cnn": None}
    if config.get("batch") is not None and (batch is None or batch < 1):
        raise UsageError(
            f"{config.path} lets Ultralytics choose the batch on the machine",
            hint="say it in the file: batch=16",
        )
    step = int(batch or 16)
    return (
        facts
        | network
        | {
            "micro_batch": max(step // ranks, 1),
            "ranks": len(devices) or None,
            "batch": step * max(round(nominal / step), 1),
            "total_steps": None,
        }
    )


def _side(facts: Facts) -> int | None:
    """Return the longer side of the images."""
    return max((int(one) for one in facts["image"] if one.isdigit()), default=None)


def _model(config: Config) -> str | None:
    """Return the known model that a file or a folder is named after; else the name itself."""
    named = config.text("pretrained_model_name_or_path")
    if named is None:
        return None
    is_file = named.endswith((".safetensors", ".ckpt"))
    last = named.replace("\\", "/").rpartition("/")[2].lower()
    stem = last.removesuffix(".safetensors").removesuffix(".ckpt")
    if named.count("/") == 1 and not is_file:
        return named
    if found := next((known for part, known in meanings("images").items() if part in stem), None):
        return found
    # A file under a name of its own: each script of sd-scripts trains one family.
    script = PurePosixPath(config.text("script") or "").name
    family = next((one for one in ("sdxl", "flux", "sd3") if script.startswith(one)), None)
    older = "sd-2.1" if config.flag("v2") else "sd-1.5"
    return family or (older if script.startswith("train_") else stem)
