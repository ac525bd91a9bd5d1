"""The work of a training step of encoders side by side: CLIP's two towers, wav2vec 2.0's one.

A tower is a stack of equal encoder layers behind words, patches of a picture, or convolutions over
sound. What compares two towers' outputs is too small to count.

Sources: A. Radford et al., ICML 2021 (CLIP); X. Zhai et al., ICCV 2023 (SigLIP); A. Baevski et
al., NeurIPS 2020 (wav2vec 2.0), whose samples are 250,000 numbers of sound; W.-N. Hsu et al., 2021
(HuBERT). Sizes are held to published counts by ``tests/test_model_counts.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from advisor.planners.core import (
    DEFAULT_SETUP,
    Precision,
    TrainingSetup,
    Work,
    check_counts,
    check_dimensions,
    check_not_negative,
    refused,
)
from advisor.planners.step.describe_families import head_of
from advisor.planners.step.ledger import ACTIVATION, LAYER_NORM, BlockLedger, Tally

PAIRS: Final = ("clip", "siglip")
OF_SOUND: Final = ("wav2vec2", "hubert")
_SAMPLES: Final = 250_000  # numbers of sound, 15.6 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A convolution along time: ``groups`` of channels do not meet."""

    channels: int
    width: int
    kernel: int
    stride: int = 1
    groups: int = 1

    def __post_init__(self) -> None:
        names = ("channels", "width", "kernel", "stride", "groups")
        check_counts("convolution", **{name: getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """An encoder in a few numbers."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    tokens: int  # of a sample
    vocabulary: int = 0  # words that are looked up; 0 where it sees or hears
    patch: int = 0  # numbers of a patch, which are projected onto the width
    front: tuple[Convolution, ...] = ()  # over sound, and the last one among the tokens
    classes: int = 0  # columns that the output is projected onto
    is_classified: bool = False  # every token is, not the sample
    other_parameters: int = 0  # positions, classes, biases and normalisations in front and behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Towers:
    """Encoders that are trained together."""

    towers: tuple[Tower, ...]
    input_bytes: float  # of a sample [bytes]

    @property
    def vocabulary(self) -> int:
        """Words that a tower looks up; 0 where none reads."""
        return max(tower.vocabulary for tower in self.towers)


def towers_work(
    model: Towers, *, micro_batch: int, precision: Precision = "bf16",
    setup: TrainingSetup = DEFAULT_SETUP,
) -> Work:  # fmt: skip
    """Return what a training step of the towers computes on one device.

    Raises PlanningError if a size is not positive, or heads do not divide a width.
    """
    ledger = _TowerLedger(tally=Tally.of(precision, setup), batch=micro_batch)
    for number, tower in enumerate(model.towers):
        _check(tower, micro_batch)
        ledger.tower(number, tower)
    return ledger.work(input_bytes_per_sample=model.input_bytes)


def _check(tower: Tower, micro_batch: int) -> None:
    names = ("layers", "hidden", "heads", "ffn", "tokens")
    check_dimensions({name: getattr(tower, name) for name in names} | {"micro_batch": micro_batch})
    rest = ("vocabulary", "patch", "classes", "other_parameters")
    check_not_negative("tower", **{name: getattr(tower, name) for name in rest})
    if tower.hidden % tower.heads:
        raise refused(
            f"a width of {tower.hidden} over {tower.heads} heads", "heads divide the width"
        )


class _TowerLedger(BlockLedger):
    """Adds the layers of towers."""

    def tower(self, number: int, tower: Tower) -> None:
        """Add one tower."""
        rows, h = self.batch * tower.tokens, tower.hidden
        self.own(tower.other_parameters)
        self._front(tower)
        if tower.vocabulary:
            self.embedding(rows, tower.vocabulary, h)
        if tower.patch:
            self.linear("patches", rows, tower.patch, h, has_bias=False)
        for index in range(tower.layers):
            since = self.mark()
            self.attention(tower.tokens, tower.tokens, hidden=h, heads=tower.heads, width=h)
            self.feed_forward(rows, h, tower.ffn)
            self.close_layer(f"tower{number}.{index}.block", since, rows * h)
        self.norm(rows, h)
        if tower.classes:
            kept = rows if tower.is_classified else self.batch
            self.linear("head", kept, h, tower.classes, has_bias=False)

    def _front(self, tower: Tower) -> None:
        element = self.tally.element
        frames = float(tower.tokens * math.prod(one.stride for one in tower.front))
        for one in tower.front:
            self.along_time(self.batch * frames, one.channels, one.width, one.kernel,
                            stride=one.stride, groups=one.groups, has_bias=False)  # fmt: skip
            frames /= one.stride
            written = self.batch * frames * one.width
            self.pointwise("norm", "normalisation", written, *LAYER_NORM)
            self.pointwise("activation", "elementwise", written, *ACTIVATION)
            self.keep(2 * element * written)
        if tower.front:
            inner = tower.front[-2].width
            self.linear("features", self.batch * tower.tokens, inner, tower.hidden)


_TEXT: Final[dict[str, dict[str, int]]] = {
    "clip": {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
             "num_attention_heads": 8, "vocab_size": 49408, "max_position_embeddings": 77},
    "siglip": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
               "num_attention_heads": 12, "vocab_size": 32000, "max_position_embeddings": 64},
}  # fmt: skip
VISION: Final[dict[str, dict[str, int]]] = {
    kind: {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
           "num_attention_heads": 12, "image_size": 224, "patch_size": patch, "num_channels": 3}
    for kind, patch in (("clip", 32), ("siglip", 16))
}  # fmt: skip
_SOUND: Final[dict[str, Any]] = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "vocab_size": 32, "conv_dim": [512] * 7,
    "conv_stride": [5, 2, 2, 2, 2, 2, 2], "conv_kernel": [10, 3, 3, 3, 3, 2, 2],
    "num_conv_pos_embeddings": 128, "num_conv_pos_embedding_groups": 16,
}  # fmt: skip


def read_towers(
    config: Mapping[str, Any], *, sequence: int | None = None, image: int | None = None
) -> Towers:
    """Return the towers that a configuration describes.

    ``sequence``: words beside a picture, or frames of sound (50 a second); ``image``: its side.

    Raises PlanningError if a dimension is not as these models have it.
    """
    kind = str(config.get("model_type"))
    return _sound(config, sequence) if kind in OF_SOUND else _pair(config, kind, sequence, image)


def _tower(part: Mapping[str, Any]) -> dict[str, Any]:
    names = {"layers": "num_hidden_layers", "hidden": "hidden_size",
             "heads": "num_attention_heads", "ffn": "intermediate_size"}  # fmt: skip
    return {name: int(part[key]) for name, key in names.items()}


def _pair(config: Mapping[str, Any], kind: str, sequence: int | None, image: int | None) -> Towers:
    text = {**_TEXT[kind], **(config.get("text_config") or {})}
    vision = {**VISION[kind], **(config.get("vision_config") or {})}
    t, v, f = (int(part[name]) for part, name in (
        (text, "hidden_size"), (vision, "hidden_size"), (vision, "intermediate_size")
    ))  # fmt: skip
    size, words = int(vision["patch_size"]), int(text["max_position_embeddings"])
    cells = (int(vision["image_size"]) // size) ** 2
    seen = (int(image or vision["image_size"]) // size) ** 2
    channels = int(vision["num_channels"])
    if kind == "clip":
        shared = int(config.get("projection_dim") or 512)
        # Class token, a normalisation in front, and the temperature.
        behind, special = (0, (1 + 1 + 2) * v + 1), 1
    else:
        shared, special = 0, 0
        # Words' head; a query that gathers the patches, with a block of its own; two scalars.
        gathers = v + 4 * v * v + 4 * v + 2 * v + 2 * v * f + f + v
        behind = (t * t + t, v + gathers + 2)
    return Towers(
        input_bytes=8.0 * words + 4.0 * channels * (image or int(vision["image_size"])) ** 2,
        towers=(
            Tower(
                **_tower(text), tokens=sequence or words, vocabulary=int(text["vocab_size"]),
                classes=shared, other_parameters=words * t + behind[0],
            ),
            Tower(
                **_tower(vision), tokens=seen + special, patch=channels * size**2, classes=shared,
                other_parameters=cells * v + behind[1],
            ),
        ),
    )  # fmt: skip


def _sound(config: Mapping[str, Any], sequence: int | None) -> Towers:
    config = {**_SOUND, **config}
    h, widths = int(config["hidden_size"]), [int(width) for width in config["conv_dim"]]
    strides = [int(stride) for stride in config["conv_stride"]]
    every = math.prod(strides)
    tokens = sequence or _SAMPLES // every
    kernels = [int(kernel) for kernel in config["conv_kernel"]]
    front = [
        Convolution(channels=c, width=w, kernel=k, stride=s)
        for c, w, k, s in zip([1, *widths[:-1]], widths, kernels, strides, strict=True)
    ]
    kernel, groups = (int(config[f"num_conv_pos_embedding{name}"]) for name in ("s", "_groups"))
    front.append(Convolution(channels=h, width=h, kernel=kernel, groups=groups))
    normed = widths[:1] if config.get("feat_extract_norm", "group") == "group" else widths
    biases = sum(widths) if config.get("conv_bias") else 0
    # Normalised features, a vector for what is masked, and the scales of the tokens' kernel.
    other = 2 * sum(normed) + biases + 2 * widths[-1] + h + h + kernel
    head = head_of(config)
    classes = 0 if head.endswith(("Model", "ForPreTraining")) else int(config["vocab_size"])
    if head.endswith("ForPreTraining"):
        other += _quantiser(config, widths[-1], h)
    tower = Tower(
        **_tower(config), tokens=tokens, front=tuple(front), classes=classes, is_classified=True,
        other_parameters=other + classes,
    )  # fmt: skip
    return Towers(towers=(tower,), input_bytes=4.0 * tokens * every)


def _quantiser(config: Mapping[str, Any], features: int, hidden: int) -> int:
    """Return the parameters of the code that wav2vec 2.0 learns beside the encoder."""
    codes = int(config.get("num_codevectors_per_group", 320))
    groups = int(config.get("num_codevector_groups", 2))
    width = int(config.get("codevector_dim", 256))
    shared = int(config.get("proj_codevector_dim", 256))
    chosen = codes * width + (features + 1) * groups * codes
    return chosen + (hidden + width + 2) * shared
