"""A diffusion U-Net's dimensions from the configuration that diffusers writes, as a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from advisor.planners.core.errors import PlanningError
from advisor.planners.step.diffusion_unet import DiffusionUNet

CLASS: Final = "UNet2DConditionModel"
# Pixels of a latent cell's side: the autoencoders of Stable Diffusion halve three times.
_PIXELS: Final = 8
# CLIP's text encoder reads 77 tokens (Radford et al., 2021).
_TEXT_TOKENS: Final = 77
_PLAIN: Final = ("DownBlock2D", "UpBlock2D")
_WITH_TEXT: Final = ("CrossAttnDownBlock2D", "CrossAttnUpBlock2D")
# Fields that change the form of the model where they say anything but this.
_ORDINARY: Final[dict[str, tuple[object, ...]]] = {
    "class_embed_type": (None,),
    "encoder_hid_dim": (None,),
    "dual_cross_attention": (None, False),
    "only_cross_attention": (None, False),
    "resnet_time_scale_shift": (None, "default"),
    "time_embedding_type": (None, "positional"),
    "mid_block_type": (None, "UNetMidBlock2DCrossAttn"),
}


def read_unet(config: Mapping[str, Any], *, image: int | None = None) -> DiffusionUNet:
    """Return the U-Net that a configuration describes.

    Parameters
    ----------
    config : mapping
        The content of ``unet/config.json``.
    image : int, optional
        Side of the picture [pixels]; the configuration's ``sample_size`` where not given.

    Raises
    ------
    PlanningError
        If a dimension is not stated, or the model has parts that the description does not know.
    """
    for name, known in _ORDINARY.items():
        if config.get(name) not in known:
            raise _refused(f"a U-Net with {name} {config[name]!r} cannot be described")
    try:
        widths = tuple(int(width) for width in config["block_out_channels"])
        channels = int(config["in_channels"])
        pixels = 1 if channels == 3 else _PIXELS
        down = config["down_block_types"]
        if unknown := set(down) - {_PLAIN[0], _WITH_TEXT[0]}:
            raise _refused(f"a U-Net with {', '.join(sorted(unknown))} cannot be described")
        layers = _by_level(config.get("transformer_layers_per_block") or 1, len(widths))
        heads = config.get("num_attention_heads") or config["attention_head_dim"]
        (blocks,) = set(_by_level(config["layers_per_block"], len(widths)))
        return DiffusionUNet(
            side=image // pixels if image else int(config["sample_size"]),
            channels=channels,
            out_channels=int(config["out_channels"]),
            widths=widths,
            blocks=blocks,
            transformers=tuple(
                n if kind == _WITH_TEXT[0] else 0 for n, kind in zip(layers, down, strict=True)
            ),
            middle_transformers=layers[-1],
            heads=_by_level(heads, len(widths)),
            text_tokens=_TEXT_TOKENS,
            text_width=int(config["cross_attention_dim"]),
            condition_width=int(config.get("projection_class_embeddings_input_dim") or 0),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _refused(f"not the configuration of a {CLASS}: {error}") from error


def _by_level(value: Any, levels: int) -> tuple[int, ...]:
    """Return one number a level: of a list, or the same for all."""
    if isinstance(value, int):
        return (value,) * levels
    found = tuple(int(each) for each in value)
    if len(found) != levels:
        raise ValueError(f"{list(value)} for {levels} levels")
    return found


def _refused(message: str) -> PlanningError:
    return PlanningError(
        message, hint="profile one step of it instead: advisor profile train.py", exit_code=2
    )
