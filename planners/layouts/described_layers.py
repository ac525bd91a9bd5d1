"""The layers of a transformer described in a few numbers, as a recording of it would list them.

| here           | paper | meaning                                                         |
|----------------|-------|-----------------------------------------------------------------|
| ``s``, ``h``   | s, h  | tokens of a sample, width of the residual stream                |
| ``saved``      | -     | activations that a block keeps for its backward pass [bytes]    |

Planners of unlike devices cut a model between its units of layers; a recording has them, a
description gets them here: embedding, equal blocks, last normalisation and head. What a block
keeps is ``planners.memory.training_memory``'s formula, spread over its layers by what they write;
the logits are that module's too and are left out. Parameters add up to ``transformer_parameters``.
"""

from __future__ import annotations

from dataclasses import replace

from advisor.planners.core.nouns import Layer, Precision, Transformer
from advisor.planners.memory.training_memory import layer_activation_bytes
from advisor.planners.step.describe_operators import activation_bytes


def transformer_layers(model: Transformer, *, precision: Precision = "bf16") -> tuple[Layer, ...]:
    """Return the layers of a transformer in forward order; nothing of them is measured.

    Raises
    ------
    PlanningError
        If the precision is unknown.

    Examples
    --------
    >>> tiny = Transformer(layers=2, hidden=64, heads=4, sequence=32, vocabulary=100)
    >>> [layer.name for layer in transformer_layers(tiny)][:3]
    ['embedding', 'blocks.0.norm1', 'blocks.0.qkv']
    """
    element = float(max(activation_bytes(precision), 2))
    h, s = model.hidden, float(model.sequence)
    stream = element * s * h
    positions = 0 if model.is_gated else model.sequence * h
    embedding = Layer(
        name="embedding",
        parameters=model.vocabulary * h + positions,
        output_bytes_per_sample=stream,
        kind="Embedding",
    )
    block = _block(model, element)
    blocks = (
        replace(layer, name=f"blocks.{i}.{layer.name}")
        for i in range(model.layers)
        for layer in block
    )
    last = _norm(model, "norm", stream)
    head = _product(
        "head", model.vocabulary * h if model.has_head else 0, s, element * s * model.vocabulary
    )
    if model.has_tied_embeddings:
        # The embedding's table again: its work is done here, its parameters are counted there.
        head = replace(head, parameters=0)
    return (embedding, *blocks, last, *((head,) if model.has_head and model.vocabulary else ()))


def _block(model: Transformer, element: float) -> list[Layer]:
    h, s = model.hidden, float(model.sequence)
    head = model.head_width or h // model.heads
    width, kv = head * model.heads, head * (model.kv_heads or model.heads)
    f = model.ffn or 4 * h
    up = h * f * (2 if model.is_gated else 1)
    met = s * model.experts_per_token
    stream = element * s * h
    layers = [
        _norm(model, "norm1", stream),
        _product("qkv", h * (width + 2 * kv), s, element * s * (width + 2 * kv)),
        _attention(model, width, element),
        _product("projection", width * h, s, stream),
        _norm(model, "norm2", stream),
        _product("up", up, met, element * met * up / h, copies=model.experts),
        _product("down", f * h, met, stream, copies=model.experts),
    ]
    if model.experts > 1:
        layers.insert(5, _product("router", h * model.experts, s, element * s * model.experts))
    saved = float(layer_activation_bytes(model, s, element_bytes=element))
    written = sum(layer.output_bytes_per_sample for layer in layers)
    return [
        replace(layer, saved_bytes_per_sample=layer.output_bytes_per_sample * saved / written)
        for layer in layers
    ]


def _norm(model: Transformer, name: str, stream: float) -> Layer:
    """Return a normalisation: one parameter a column (root mean square), or two."""
    columns = 1 if model.is_gated else 2
    return Layer(
        name=name,
        parameters=columns * model.hidden,
        output_bytes_per_sample=stream,
        kind="RMSNorm" if model.is_gated else "LayerNorm",
    )


def _product(
    name: str, weights: int, rows: float, output_bytes: float, *, copies: int = 1
) -> Layer:
    """Return a product: two operations a weight and row, four in the backward pass."""
    return Layer(
        name=name,
        parameters=weights * copies,
        forward_flop_per_sample=2.0 * weights * rows,
        backward_flop_per_sample=4.0 * weights * rows,
        output_bytes_per_sample=output_bytes,
        kind="Linear",
    )


def _attention(model: Transformer, width: int, element: float) -> Layer:
    """Return the products of queries, keys and values, halved where half of them is masked."""
    s = float(model.sequence)
    flop = 4.0 * s * s * width
    backward = 2.0
    if model.has_flash_attention:
        flop *= 0.5 if model.is_causal else 1.0
        backward = 2.5
    return Layer(
        name="attention",
        parameters=0,
        forward_flop_per_sample=flop,
        backward_flop_per_sample=backward * flop,
        output_bytes_per_sample=element * s * width,
        kind="Attention",
    )
