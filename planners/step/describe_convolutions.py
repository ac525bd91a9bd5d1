"""The work of a training step of a convolutional network described in a few numbers.

A network is a stem, stages of equal blocks, and a classifier: VGG (plain blocks), ResNet-18 and
-34 (basic blocks) and ResNet-50 to -152 (bottleneck blocks) are of this form, and so is any
network that a Hugging Face ``resnet`` configuration describes. What is of none of these forms is
listed, call by call: YOLO's detectors.

Source of the forms: K. He et al., "Deep Residual Learning for Image Recognition", CVPR 2016,
table 1, with the stride in the 3 x 3 convolution as torchvision has it; K. Simonyan, A.
Zisserman, ICLR 2015, table 1. Held to a traced step by ``tests/test_describe.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from advisor.planners.core import (
    DEFAULT_SETUP,
    OperatorKind,
    PlanningError,
    Precision,
    TrainingSetup,
    Work,
    check_dimensions,
    refused,
)
from advisor.planners.step.ledger import SUM_PASSES, BlockLedger, Pair, Tally

BlockKind = Literal["plain", "basic", "bottleneck", "convnext"]
_KINDS: Final[dict[str, BlockKind]] = {
    kind: kind for kind in get_args(BlockKind) if kind != "convnext"
}
# Of the inner width of a bottleneck, by the outer one.
_BOTTLENECK: Final = 4
# Passes of (forward, backward) and calls of each.
_BATCH_NORM: Final = ((2, 3), (1, 1))
_RELU: Final = ((2, 3), (1, 1))
_POOL: Final = ((1, 1), (1, 1))
# Of listed networks: what a passage is, and its passes.
_PASSAGES: Final[dict[str, tuple[OperatorKind, Pair]]] = {
    "p": ("reduction", (2, 2)), "k": ("copy", (2, 2)),
    "a": ("elementwise", (SUM_PASSES, SUM_PASSES)),
}  # fmt: skip
_LONGEST_TEXT: Final = 2000
_FORM: Final = "IMAGE:STEM:BLOCKSxWIDTH,...:KIND[:HIDDEN,...[:CLASSES]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionalNetwork:
    """A convolutional network in a few numbers."""

    image: int  # side of the square input [pixels]
    stem: int  # channels of the 7 x 7 convolution (stride 2, then pooled) in front; 0 for none
    # every stage but the first halves the sides; plain stages halve them at their end
    stages: tuple[tuple[int, int], ...]
    # one 3 x 3 convolution; two; 1 x 1, 3 x 3, 1 x 1 with a quarter of the width inside; or 7 x 7
    # channel by channel, and dense layers with four times the width inside (Liu et al., 2022)
    kind: BlockKind = "bottleneck"
    hidden: tuple[int, ...] = ()  # widths of dense layers between features and classes
    classes: int = 1000
    channels: int = 3


def parse_network(text: str) -> ConvolutionalNetwork:
    """Read a network written as ``IMAGE:STEM:BLOCKSxWIDTH,...:KIND[:HIDDEN,...[:CLASSES]]``.

    Raises PlanningError if the text is not of this form.

    Examples
    --------
    >>> resnet50 = parse_network("224:64:3x256,4x512,6x1024,3x2048:bottleneck")
    >>> convolutional_work(resnet50, micro_batch=1).parameters
    25557032
    """
    if len(text) > _LONGEST_TEXT:
        raise _unread(text)
    try:
        image, stem, stages, kind, *rest = text.split(":")
        hidden, classes = rest if len(rest) == 2 else (*rest, *[""] * (2 - len(rest)))
        pairs = [stage.split("x") for stage in stages.split(",")]
        return ConvolutionalNetwork(
            image=int(image),
            stem=int(stem),
            stages=tuple((int(blocks), int(width)) for blocks, width in pairs),
            kind=_KINDS[kind],
            hidden=tuple(int(width) for width in hidden.split(",") if width),
            classes=int(classes or 1000),
        )
    except (ValueError, KeyError) as error:
        raise _unread(text) from error


def read_listed(config: Mapping[str, Any], image: int | None) -> ListedNetwork:
    """Return the network whose calls a configuration lists, as ``datasets/models`` has them."""
    calls = ((one[0], *map(int, one[1:].split(":"))) for one in config["calls"].split())
    sized: Any = tuple(calls)
    return ListedNetwork(image=image or int(config["image_size"]), calls=sized)


def _unread(text: str) -> PlanningError:
    return refused(
        f"not a convolutional network: {text[:_LONGEST_TEXT]!r}",
        f"{_FORM}, KIND plain, basic or bottleneck; "
        "ResNet-50 is 224:64:3x256,4x512,6x1024,3x2048:bottleneck",
    )


def convolutional_work(
    network: ConvolutionalNetwork, *, micro_batch: int, precision: Precision = "fp16",
    setup: TrainingSetup = DEFAULT_SETUP,
) -> Work:  # fmt: skip
    """Return what a training step of the network with AdamW computes on one device.

    Raises PlanningError if a size is not positive, or the image is too small for its stages.
    """
    _check_network(network, micro_batch)
    builder = _Builder(tally=Tally.of(precision, setup), batch=micro_batch)
    side, channels = builder.stem(network)
    for index, (blocks, width) in enumerate(network.stages):
        if network.kind == "convnext" and index > 0:
            builder.norm(builder.batch * side**2, channels)
            side, channels = builder.convolution(side, channels, width, 2, 2), width
        for block in range(blocks):
            stride = 2 if network.kind != "plain" and index > 0 and block == 0 else 1
            side = builder.block(network.kind, side, channels, width, stride)
            channels = width
        if network.kind == "plain":
            side = builder.pool(side, channels)
    builder.classifier(side, channels, network)
    return builder.work(input_bytes_per_sample=4.0 * network.channels * network.image**2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedNetwork:
    """A convolutional network as what it computes, one call after another.

    A call is what it does, the image's side over that of its input, channels in and out, kernel
    and stride: a convolution with normalisation and activation (``c``), without activation
    (``l``), the same channel by channel (``d``, ``e``), or with a bias alone (``b``); a passage
    over all channels: pooling in place (``p``), a sum (``a``), a copy (``k``); attention between
    cells (``t``, its heads in place of channels out); the loss of so many numbers a cell (``o``).
    """

    image: int
    calls: tuple[tuple[str, int, int, int, int, int], ...]


def listed_work(
    network: ListedNetwork, *, micro_batch: int, precision: Precision = "fp16",
    setup: TrainingSetup = DEFAULT_SETUP,
) -> Work:  # fmt: skip
    """Return what a training step of a listed network computes on one device.

    Raises PlanningError if a size is not positive, or the image is no multiple of a share.
    """
    check_dimensions({"image": network.image, "micro_batch": micro_batch})
    if odd := next((share for _, share, *_ in network.calls if network.image % share), 0):
        raise refused(
            f"an image of {network.image} pixels is divided by {odd}", "give a multiple of 32"
        )
    builder = _Builder(tally=Tally.of(precision, setup), batch=micro_batch)
    for call in network.calls:
        builder.listed(network.image, *call)
    return builder.work(input_bytes_per_sample=12.0 * network.image**2)


def _check_network(network: ConvolutionalNetwork, micro_batch: int) -> None:
    sizes: dict[str, float] = {
        "image": network.image, "channels": network.channels, "classes": network.classes,
        "stages": len(network.stages), "micro_batch": micro_batch,
    }  # fmt: skip
    for number, (blocks, width) in enumerate(network.stages, start=1):
        sizes |= {f"blocks of stage {number}": blocks, f"width of stage {number}": width}
    sizes |= {f"dense layer {i}": width for i, width in enumerate(network.hidden, start=1)}
    sizes["blocks of all stages"] = sum(blocks for blocks, _ in network.stages)
    check_dimensions(sizes)
    if network.stem < 0:
        raise refused(f"a stem of {network.stem} channels", "0 for none")
    halvings = len(network.stages) - (network.kind != "plain") + (2 if network.stem else 0)
    if network.image < 2**halvings:
        raise refused(
            f"an image of {network.image} pixels is halved {halvings} times",
            f"give an image of {2**halvings} pixels at least, or fewer stages",
        )


@dataclass(slots=True, kw_only=True)
class _Builder(BlockLedger):
    """Adds the layers of convolutional networks."""

    def stem(self, network: ConvolutionalNetwork) -> tuple[int, int]:
        """Return side and channels behind the stem."""
        if not network.stem:
            return network.image, network.channels
        if network.kind == "convnext":
            side = self.convolution(network.image, network.channels, network.stem, 4, 4)
            self.norm(self.batch * side**2, network.stem)
            return side, network.stem
        side = self.normalised(network.image, network.channels, network.stem, 7, 2)
        self.relu(side, network.stem)
        return self.pool(side, network.stem), network.stem

    def block(self, kind: BlockKind, side: int, channels: int, width: int, stride: int) -> int:
        """Add a block with its shortcut; return the side behind it."""
        if kind == "convnext":
            self.convolution(side, width, width, 7, 1, is_depthwise=True)
            self.feed_forward(self.batch * side**2, width, 4 * width, is_scaled=True)
            return side
        if kind == "plain":
            out = self.convolution(side, channels, width, 3, 1)
            self.relu(out, width)
            return out
        if kind == "basic":
            out = self.normalised(side, channels, width, 3, stride)
            self.relu(out, width)
            self.normalised(out, width, width, 3, 1)
        else:
            inner = width // _BOTTLENECK
            self.relu(self.normalised(side, channels, inner, 1, 1), inner)
            out = self.normalised(side, inner, inner, 3, stride)
            self.relu(out, inner)
            self.normalised(out, inner, width, 1, 1)
        if stride != 1 or channels != width:
            self.normalised(side, channels, width, 1, stride)
        elements = self.batch * width * out**2
        self.pointwise("add", "elementwise", elements, (SUM_PASSES, SUM_PASSES), (1, 1))
        self.relu(out, width)
        return out

    def listed(
        self,
        image: int,
        name: str,
        share: int,
        channels: int,
        width: int,
        kernel: int,
        stride: int,
    ) -> None:
        """Add a call of a listed network."""
        side, element = image // share, self.tally.element
        cells = self.batch * side**2
        if name == "b":
            self.convolution(side, channels, width, kernel, stride)
        elif name in "clde":
            out = self.normalised(side, channels, width, kernel, stride, name in "de")
            if name in "cd":
                self.relu(out, width)
                self.keep(element * self.batch * width * out**2)  # SiLU's input
        elif name == "t":  # keys and queries are half as wide as values
            pairs, seen = cells * side**2, 0.75 * channels
            self.add(self.tally.attention(pairs, width, seen, cells * channels, is_fused=False))
            self.keep(element * width * pairs)
        elif name == "o":
            self.add(self.tally.loss(cells * width))
        else:
            kind, passes = _PASSAGES[name]
            self.pointwise(kind, kind, cells * width, passes, (1, 1))
            self.keep(8.0 * cells * width if name == "p" else 0.0)  # positions of the largest

    def normalised(
        self, side: int, channels: int, width: int, kernel: int, stride: int,
        is_depthwise: bool = False,
    ) -> int:  # fmt: skip
        """Add a convolution and its batch normalisation; return the side behind them."""
        out = self.convolution(
            side, channels, width, kernel, stride, has_bias=False, is_depthwise=is_depthwise
        )
        elements = self.batch * width * out**2
        self.own(2 * width, 2)
        self.keep(self.tally.element * elements)
        self.pointwise("batch_norm", "normalisation", elements, *_BATCH_NORM)
        return out

    def relu(self, side: int, width: int) -> None:
        """Add an activation; its result is kept as the input of what follows."""
        self.pointwise("relu", "elementwise", self.batch * width * side**2, *_RELU)

    def pool(self, side: int, width: int) -> int:
        """Add a pooling that halves the sides."""
        elements = self.batch * width * side**2
        self.pointwise("max_pool", "reduction", elements, *_POOL)
        self.keep(8.0 * elements / 4)  # positions of the largest, 64-bit
        return -(-side // 2)

    def classifier(self, side: int, channels: int, network: ConvolutionalNetwork) -> None:
        """Add dense layers; features are averaged first where there is but one of them."""
        features = channels * side**2 if network.hidden else channels
        if network.kind == "convnext":
            self.norm(self.batch, features)
        for width in (*network.hidden, network.classes):
            self.linear("linear", self.batch, features, width)
            features = width
        self.add(self.tally.loss(self.batch * network.classes))
