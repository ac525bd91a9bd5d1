"""A recorded model as the units that a layout may cut: repeated blocks, and single layers.

| here               | papers | meaning                                                       |
|--------------------|--------|---------------------------------------------------------------|
| ``units``          | layers | what is never cut inside: a block with its residual sums      |
| ``hidden``         | h      | width of the stream between blocks                            |
| ``tokens``         | s      | of a sample                                                   |
| ``whole_share``    | -      | parameters of a unit that tensor parallelism leaves whole     |

A block is what an integer in a module's name counts: ``blocks.3.mlp.0`` belongs to ``blocks.3``.
Inside of it residual sums cross, so that it is cut nowhere. Layers without parameters outside of
blocks stay with the layer before them. What cannot be seen in a recording: connections that jump
over units (U-Net), which a cut would have to carry too.

Tensor parallelism (Shoeybi et al., Megatron-LM, 2019) divides the products of attention and of the
feed-forward block over ranks, and leaves the normalisations whole. It needs to know which layers
these are: repeated blocks of equal size, each with a normalisation of the model's width and
products that are multiples of it, and attention in the step.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from advisor.planners.core.nouns import Layer, OperatorKind, Work

_COUNTED: Final = re.compile(r"^((?:[^.\d][^.]*\.)*\d+)\.")
# What a module's class says of its arithmetic; "Conv1D" is what transformers calls a product.
_KINDS: Final[tuple[tuple[OperatorKind, str], ...]] = (
    ("matmul", r"Linear|Conv1D$|Attention$"),
    ("normalisation", r"Norm"),
    ("convolution", r"Conv"),
    ("recurrent", r"LSTM|GRU|RNN"),
    ("embedding", r"Embedding"),
    ("reduction", r"Pool|Softmax|Loss"),
)
# A head is never divided; where their number is unknown, a rank gets columns for one of the usual
# 64 (Vaswani et al., 2017, table 3, and nearly all since).
_HEAD_WIDTH: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Consecutive layers that stay on one device.

    Attributes
    ----------
    is_block : bool
        One of several that are counted in the model (``blocks.0``, ``blocks.1``, ...).
    """

    name: str
    layers: tuple[Layer, ...]
    is_block: bool = False

    @property
    def parameters(self) -> int:
        """Parameters of all its layers."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def output_bytes_per_sample(self) -> float:
        """Activation handed to the next unit: that of its last layer [bytes]."""
        return self.layers[-1].output_bytes_per_sample

    @property
    def saved_bytes_per_sample(self) -> float:
        """Activations kept for the backward pass [bytes]."""
        return sum(layer.saved_bytes_per_sample for layer in self.layers)

    @property
    def whole_share(self) -> float:
        """Part of the parameters that tensor parallelism leaves whole: the normalisations'."""
        whole = sum(layer.parameters for layer in self.layers if is_normalisation(layer))
        return whole / self.parameters if self.parameters else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerBlocks:
    """What makes a recorded model a transformer.

    Attributes
    ----------
    widest_tp : int
        Most tensor-parallel ranks: heads where they are known, a head of 64 a rank otherwise.
    """

    blocks: int
    hidden: int
    tokens: int
    element_bytes: int
    widest_tp: int

    def degrees(self, most: int) -> tuple[int, ...]:
        """Return the tensor-parallel degrees that divide the width (and heads), up to ``most``."""
        limit = min(most, self.widest_tp)
        return tuple(
            t for t in range(1, limit + 1) if self.widest_tp % t == 0 and self.hidden % t == 0
        )


def units(work: Work) -> tuple[Unit, ...]:
    """Return the units of a model in forward order; one where no layers were recorded.

    Examples
    --------
    >>> names = ["embed", "blocks.0.norm", "blocks.0.fc", "blocks.1.norm", "blocks.1.fc", "head"]
    >>> layers = tuple(Layer(name=n, parameters=8) for n in names)
    >>> work = Work(operators=(), micro_batch=1, parameters=48, trainable_parameters=48,
    ...             parameter_bytes=192.0, optimizer_state_bytes=0.0, saved_bytes_per_sample=0.0,
    ...             layers=layers)
    >>> [u.name for u in units(work)]
    ['embed', 'blocks.0', 'blocks.1', 'head']
    """
    if not work.layers:
        return (_whole(work),)
    found: list[Unit] = []
    for name, group in groupby(work.layers, key=_block_of):
        layers = tuple(group)
        if name:
            found.append(Unit(name=name, layers=layers, is_block=True))
            continue
        for layer in layers:
            if found and layer.parameters == 0 and not found[-1].is_block:
                found[-1] = Unit(name=found[-1].name, layers=(*found[-1].layers, layer))
            else:
                found.append(Unit(name=layer.name, layers=(layer,)))
    return tuple(found)


def _whole(work: Work) -> Unit:
    layer = Layer(
        name="model",
        parameters=work.parameters,
        saved_bytes_per_sample=work.saved_bytes_per_sample,
    )
    return Unit(name="model", layers=(layer,))


def _block_of(layer: Layer) -> str:
    match = _COUNTED.match(layer.name)
    return match[1] if match else ""


def is_normalisation(layer: Layer) -> bool:
    """Whether a layer normalises: those are not divided over tensor-parallel ranks."""
    return layer_kind(layer) == "normalisation"


def layer_kind(layer: Layer) -> OperatorKind:
    """Return the class of operators that most of a layer's time goes to, by its module's class.

    >>> layer_kind(Layer(name="c", parameters=9, kind="Conv2d"))
    'convolution'
    """
    for kind, pattern in _KINDS:
        if re.search(pattern, layer.kind):
            return kind
    return "elementwise"


def transformer_blocks(
    work: Work, parts: tuple[Unit, ...], *, heads: int | None = None
) -> TransformerBlocks | str:
    """Recognise a transformer in a recorded model, or say what is missing for it.

    Parameters
    ----------
    heads : int, optional
        Attention heads, where the user says so: no recording has them.

    Returns
    -------
    TransformerBlocks, or the reason why not in words
    """
    if len(parts) < 2:
        return "the recording has no layers"
    blocks = _equal_blocks(parts)
    if len(blocks) < 2:
        return "no block of layers is repeated"
    if not _has_attention(work):
        return "the step has no attention"
    hidden = _width(blocks[0])
    if hidden is None:
        return f"no width is common to the layers of {blocks[0].name}"
    element = _element_bytes(work)
    tokens = round(blocks[0].output_bytes_per_sample / (hidden * element))
    if tokens < 1:
        return f"the output of {blocks[0].name} is narrower than its {hidden} columns"
    return TransformerBlocks(
        blocks=len(blocks),
        hidden=hidden,
        tokens=tokens,
        element_bytes=element,
        widest_tp=heads or max(1, hidden // _HEAD_WIDTH),
    )


def _equal_blocks(parts: tuple[Unit, ...]) -> list[Unit]:
    """Return the blocks of the most frequent size."""
    counted = [u for u in parts if u.is_block]
    if not counted:
        return []
    (size, _), *_ = Counter(u.parameters for u in counted).most_common(1)
    return [u for u in counted if u.parameters == size]


def _has_attention(work: Work) -> bool:
    kinds = {o.kind for o in work.operators}
    names = {o.name.split("::")[-1] for o in work.operators}
    return "attention" in kinds or ("bmm" in names and any("softmax" in n for n in names))


def _width(block: Unit) -> int | None:
    """Return h: two (LayerNorm) or one (RMSNorm) parameters a column, dividing every product."""
    products = [x.parameters for x in block.layers if layer_kind(x) == "matmul"]
    for layer in block.layers:
        if not is_normalisation(layer) or not layer.parameters:
            continue
        per_column = 1 if "rms" in layer.kind.lower() else 2
        hidden = layer.parameters // per_column
        # h^2 is the least that a projection of the whole stream can have.
        if products and max(products) >= hidden * hidden and _is_width(hidden, products):
            return hidden
    return None


def _is_width(hidden: int, products: list[int]) -> bool:
    """Whether every product reads or writes the stream: n h weights and a bias, or none."""
    return all(p % hidden == 0 or p % (hidden + 1) == 0 for p in products)


def _element_bytes(work: Work) -> int:
    """Return the bytes of an activation: two under autocast to 16 bits, else four."""
    return 2 if work.precision in ("bf16", "fp16", "fp8") else 4
