"""Fine-tuning of image models: kohya's sd-scripts, and the training scripts of diffusers.

Defaults and meanings: sd-scripts 0.9 (``library/train_util.py``: ``add_training_arguments``,
``add_sd_models_arguments``; ``sdxl_train_network.py``, ``flux_train_network.py``) and diffusers
0.35 (``examples/text_to_image``, ``examples/dreambooth``: ``parse_args``), as their repositories
have them; read 2026-11-29.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Final

from advisor.recipes.facts import Config
from advisor.recipes.hugging_face import processes

MARKS: Final = (("pretrained_model_name_or_path", "network_module"),
                ("pretrained_model_name_or_path", "train_batch_size"))  # fmt: skip
DIFFUSERS_MARKS: Final = ()  # arguments alone, no file
_OPTIMIZERS: Final = {
    "adamw": "adamw", "adamw8bit": "adamw-8bit", "pagedadamw8bit": "paged-adamw-8bit",
    "pagedadamw": "paged-adamw", "pagedadamw32bit": "paged-adamw", "lion": "lion",
    "lion8bit": "lion-8bit", "adafactor": "adafactor", "sgdnesterov": "sgd-momentum",
    "adam": "adamw", "8bit": "adamw-8bit",
}  # fmt: skip
# Files and folders by which the models are commonly named.
_KNOWN: Final = (
    ("flux1-schnell", "flux-schnell"), ("flux1", "flux"), ("flux.1", "flux"), ("flux", "flux"),
    ("sd3.5_large", "sd3.5"), ("sd3", "sd3"), ("sd_xl", "sdxl"), ("sdxl", "sdxl"),
    ("xl-base", "sdxl"), ("v1-5", "sd-1.5"), ("v1-4", "sd-1.5"), ("sd15", "sd-1.5"),
    ("v2-1", "sd-2.1"), ("stable-diffusion-2", "sd-2.1"),
)  # fmt: skip


def read(config: Config) -> dict[str, Any]:
    """Return what a TOML or the arguments of sd-scripts say."""
    named = config.text("pretrained_model_name_or_path")
    is_adapted = config.text("network_module") is not None
    facts = _common(config, named) | {
        "micro_batch": config.whole("train_batch_size") or 1,
        "total_steps": config.whole("max_train_steps"),
        "epochs_said": config.number("max_train_epochs"),
        "optimizer": config.choice(_OPTIMIZERS, "optimizer_type", default="AdamW"),
    }
    if facts["total_steps"] is None and facts["epochs_said"] is None:
        facts["total_steps"] = 1600
    if is_adapted:
        facts |= {"lora": config.whole("network_dim") or 4, "lora_targets": "attention"}
    if config.flag("fp8_base"):
        facts["base_bits"] = 8 if is_adapted else None
    return facts


def read_diffusers(config: Config) -> dict[str, Any]:
    """Return what the arguments of a training script of diffusers say."""
    named = config.text("pretrained_model_name_or_path")
    script = config.text("script") or ""
    rank = config.whole("rank", "lora_rank") or (4 if "lora" in script else None)
    is_8bit = config.flag("use_8bit_adam")
    config.read |= {"center_crop", "random_flip", "scale_lr", "allow_tf32"}
    steps = config.whole("max_train_steps")
    side = 1024 if "sdxl" in script or "flux" in script else 512
    config.keys.setdefault("resolution", side)
    return _common(config, named) | {
        "micro_batch": config.whole("train_batch_size")
        or (16 if "text_to_image" in script else 4),
        "total_steps": steps,
        "epochs_said": None
        if steps
        else config.number("num_train_epochs") or (100.0 if "text_to_image" in script else 1.0),
        "optimizer": "adamw-8bit" if is_8bit else "adamw",
        "lora": rank,
        "lora_targets": "attention" if rank else None,
    }


def _common(config: Config, named: str | None) -> dict[str, Any]:
    """Return what both say alike; recomputation of an image model is not described."""
    side = config.get("resolution")
    config.read |= {"cache_latents", "cache_latents_to_disk", "sdpa", "xformers", "enable_bucket",
                    "min_bucket_reso", "max_bucket_reso", "bucket_no_upscale", "save_model_as",
                    "network_train_unet_only", "cache_text_encoder_outputs", "clip_skip",
                    "bucket_reso_steps", "no_half_vae", "cache_text_encoder_outputs_to_disk",
                    "timestep_sampling", "model_prediction_type", "guidance_scale", "shift",
                    "enable_xformers_memory_efficient_attention", "highvram", "ae", "clip_l",
                    "t5xxl", "discrete_flow_shift", "vae", "num_cpu_threads_per_process",
                    "fp8_base"}  # fmt: skip
    if isinstance(side, str | list):
        numbers = side.split(",") if isinstance(side, str) else side
        sides = [int(one) for one in numbers if str(one).strip().isdigit()]
        config.keys["resolution"] = max(sides, default=side)
    products = config.text("mixed_precision") or "no"
    whole = config.flag("full_bf16") or config.flag("full_fp16")
    return {
        "model": _model(named),
        "image": config.whole("resolution"),
        "accumulation": config.whole("gradient_accumulation_steps") or 1,
        "ranks": processes(config),
        "precision": products if products in ("bf16", "fp16") else "fp32",
        "weights": "bf16" if whole else "fp32",
        "data": config.words("train_data_dir", "dataset_name", "instance_data_dir",
                             "dataset_config"),
    }  # fmt: skip


def _model(named: str | None) -> str | None:
    """Return the known model that a file or a folder is named after; else the name itself."""
    if named is None:
        return None
    if named.count("/") == 1 and not named.endswith((".safetensors", ".ckpt")):
        return named
    stem = PurePosixPath(named.replace("\\", "/")).stem.lower()
    return next((known for part, known in _KNOWN if part in stem), stem)
