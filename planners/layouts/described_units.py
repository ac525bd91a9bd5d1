"""The layers of a transformer described in a few numbers, as a recording of it would list them.

Planners of unlike devices cut a model between its units of layers; a recording has them, a
description gets them here: embedding, equal blocks, last normalisation and head. Their operations
are the ledger's. What a block keeps for its backward pass is ``planners.memory.recorded_steps``'s
formula, spread over its layers by what they write; the logits are that module's too and are left
out. Parameters add up to ``transformer_parameters``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from advisor.planners.core import (
    DEFAULT_SETUP,
    Layer,
    Operator,
    Precision,
    Transformer,
    head_width,
    key_value_width,
    model_matrices,
    scored_width,
    transformer_parameters,
)
from advisor.planners.memory import recorded_activation_bytes
from advisor.planners.step import Tally


def transformer_layers(model: Transformer, *, precision: Precision = "bf16") -> tuple[Layer, ...]:
    """Return the layers of a transformer in forward order; nothing of them is measured.

    Raises PlanningError if the precision is unknown.

    Examples
    --------
    >>> tiny = Transformer(layers=2, hidden=64, heads=4, sequence=32, vocabulary=100)
    >>> [layer.name for layer in transformer_layers(tiny)][:3]
    ['embedding', 'blocks.0.norm1', 'blocks.0.qkv']
    """
    tally = Tally.of(precision, DEFAULT_SETUP)
    h, s, element = model.hidden, float(model.sequence), float(tally.element)
    stream = element * s * h
    block = _block(model, tally)
    last = _norm(model, "norm", stream)
    made = tally.product("head", s, h, model.vocabulary)
    head = _layer("head", model.vocabulary * h, element * s * model.vocabulary, made)
    if model.has_tied_embeddings:
        # The embedding's table again: its work is done here, its parameters are counted there.
        head = replace(head, parameters=0)
    behind = (last, head) if model.has_head and model.vocabulary else (last,)
    # Positions, and what stands nowhere in particular.
    counted = model.layers * sum(one.parameters for one in block)
    counted += sum(one.parameters for one in behind)
    embedding = Layer(
        name="embedding",
        parameters=max(transformer_parameters(model) - counted, 0),
        output_bytes_per_sample=stream,
        kind="Embedding",
    )
    blocks = (
        replace(layer, name=f"blocks.{i}.{layer.name}")
        for i in range(model.layers)
        for layer in block
    )
    return (embedding, *blocks, *behind)


def _block(model: Transformer, tally: Tally) -> list[Layer]:
    """Return the layers of the mean block."""
    h, s, element = model.hidden, float(model.sequence), float(tally.element)
    width, kv = head_width(model) * model.heads, key_value_width(model)
    stream, columns = element * s * h, 0.0
    weights: dict[str, float] = {}
    met: dict[str, list[Operator]] = {}
    for m in model_matrices(model):
        name = m.name if m.name in ("projection", "router", "up", "down") else "qkv"
        weights[name] = weights.get(name, 0.0) + m.parameters / model.layers
        rows = s * m.met / model.layers
        met.setdefault(name, []).extend(
            tally.product(m.name, rows, m.inner, m.columns, count=m.count)
        )
        if name == "up":
            columns += m.count * m.met * m.columns / model.layers
    written = {
        "qkv": element * s * (width + 2 * kv), "projection": stream, "down": stream,
        "router": element * s * model.experts, "up": element * s * columns,
    }  # fmt: skip
    made = {name: _layer(name, int(weights[name]), written[name], met[name]) for name in weights}
    attention = tally.attention(
        s * s, model.heads, scored_width(model), 0.0, is_fused=model.has_flash_attention,
        seen=0.5 if model.is_causal else 1.0,
    )  # fmt: skip
    if "projection" in made:
        products = [o for o in attention if o.kind != "reduction"]
        made["attention"] = _layer("attention", 0, element * s * width, products, "Attention")
    made |= {name: _norm(model, name, stream) for name in ("norm1", "norm2")}
    order = ["norm1", "qkv", "attention", "projection", "norm2", "router", "up", "down"]
    layers = [made[name] for name in order if name in made]
    saved = float(recorded_activation_bytes(model, s, element_bytes=element))
    total = sum(layer.output_bytes_per_sample for layer in layers)
    return [
        replace(layer, saved_bytes_per_sample=layer.output_bytes_per_sample * saved / total)
        for layer in layers
    ]


def _norm(model: Transformer, name: str, stream: float) -> Layer:
    """Return a normalisation: one parameter a column (root mean square), or two."""
    is_plain = model.surroundings.has_root_mean_square
    # Where all that is not a product was counted, it stands with the embedding.
    columns = (1 if is_plain else 2) * model.hidden if model.other_parameters is None else 0
    return _layer(name, columns, stream, (), "RMSNorm" if is_plain else "LayerNorm")


def _layer(
    name: str, parameters: int, output_bytes: float, made: Sequence[Operator], kind: str = "Linear"
) -> Layer:
    """Return a layer of these operators, of one sample."""
    forward, backward = (
        sum(o.flop for o in made if o.phase == phase) for phase in ("forward", "backward")
    )
    return Layer(
        name=name, parameters=parameters, forward_flop_per_sample=forward,
        backward_flop_per_sample=backward, output_bytes_per_sample=output_bytes, kind=kind,
    )  # fmt: skip
