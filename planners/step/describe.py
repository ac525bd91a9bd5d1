"""The work of a training step from a model described in a few numbers, nothing executed.

The operators are those that PyTorch's eager mode runs, with the traffic that the collector counts
(operands read plus results written), so that a described job and a recorded one meet the device
model alike.

| here         | paper | meaning                                                        |
|--------------|-------|----------------------------------------------------------------|
| ``tokens``   | T     | tokens of a step: b s                                          |
| ``hidden``   | h     | width of the residual stream                                   |
| ``scores``   | S     | attention scores of a layer: b a s^2                           |
| ``element``  | e     | bytes of an activation                                         |

Sources: Narayanan et al., SC'21, section 5.1 for the products; the passes over memory of each
pointwise operator were read off traced steps of transformers 5.23 (GPT-2, BERT, Llama) and are
held to such traces by ``tests/test_describe.py``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.planners.core import (
    DEFAULT_SETUP,
    Operator,
    Operators,
    Phase,
    Precision,
    TrainingSetup,
    Transformer,
    Work,
    check_dimensions,
    concatenate,
    head_width,
    key_value_width,
    model_matrices,
    put,
    refused,
    scored_width,
    select,
    transformer_parameters,
)
from advisor.planners.step.ledger import (
    ACTIVATIONS,
    FP32_BYTES,
    SUM_PASSES,
    Tally,
    activation_bytes,
    update,
)

# Passes of (forward, backward) over a tensor, and calls of each.
ROTATION: Final = ((10, 8), (5, 5))  # of queries and keys by position


def transformer_work(
    model: Transformer, *, micro_batch: int, precision: Precision = "bf16",
    setup: TrainingSetup = DEFAULT_SETUP,
) -> Work:  # fmt: skip
    """Return what a training step of a transformer computes on one device.

    ``model``: an encoder (``is_causal`` false) or decoder; where its ``style`` does not say
    otherwise, gated ones have root-mean-square normalisation and rotated positions, as Llama does,
    the others layer normalisation; ``precision``: of products and activations; ``setup`` says what
    weights and moments are stored in.

    Raises PlanningError if a dimension is not positive, heads do not divide the width, or a
    precision is unknown.

    Examples
    --------
    >>> gpt2 = Transformer(layers=12, hidden=768, heads=12, sequence=1024, vocabulary=50257)
    >>> work = transformer_work(gpt2, micro_batch=8)
    >>> round(work.parameters / 1e6), round(float(work.operators.flop.sum()) / 1e12, 1)
    (124, 6.6)
    """
    _check(model, micro_batch)
    if setup.attention == "unfused":
        model = replace(model, has_flash_attention=False)
    tally = Tally.of(precision, setup)
    tokens = micro_batch * model.sequence
    trained = 1 - setup.frozen_layers(model) / model.layers
    operators = [
        _repeated(operator, share)
        for operator in block_operators(tally, model, micro_batch)
        if (share := trained if operator.phase == "backward" else 1.0) > 0
    ]
    operators += _ends(tally, model, tokens)
    parameters = setup.trainable_parameters(model)
    updated = update(parameters, setup, precision, tensors=_tensors(model, setup))
    return Work(
        operators=Operators.of([*operators, updated]),
        micro_batch=micro_batch,
        parameters=transformer_parameters(model) + setup.adapter_parameters(model),
        trainable_parameters=parameters,
        parameter_bytes=setup.parameter_bytes(model, precision),
        optimizer_state_bytes=parameters * setup.moment_bytes(precision),
        # by the transformer's formula (planners.memory.training_memory)
        saved_bytes_per_sample=0.0,
        input_bytes_per_sample=8.0 * model.sequence,  # token numbers are 64-bit
        precision=precision,
        setup=setup,
        transformer=model,
    )


def in_precision(work: Work, precision: Precision, *, is_autocast: bool = True) -> Work:
    """Return the work as it would be with its products and activations in another precision.

    The traffic that grows with the batch changes in proportion of the elements' sizes; parameters
    and their update stay as they are, but in double precision, which stores all in 64 bits. A
    recorded step that is taken from 32 to 16 bits runs under autocast, which keeps some operators
    in 32 bits and casts around them (``_under_autocast``).

    ``is_autocast``: False where weights and activations are stored in 16 bits: nothing is cast.

    Raises PlanningError if the precision is unknown.
    """
    work = _without_casts(work)
    ratio = activation_bytes(precision) / activation_bytes(work.precision)
    stored = 2.0 ** ((precision == "fp64") - (work.precision == "fp64"))
    made = work.operators
    # A rehearsed network in 32 bits has convolutions in TF32, and all else in fp32.
    own = _IN_32_BITS if work.precision in _IN_32_BITS else (work.precision,)
    stays = (made.is_update & (stored == 1)) | ~np.isin(made.dtype.astype(str), own)
    operators = replace(
        made,
        bytes=np.where(stays, made.bytes, stored * made.fixed_bytes + ratio * made.grown_bytes),
        fixed_bytes=np.where(stays, made.fixed_bytes, stored * made.fixed_bytes),
        dtype=np.where(stays, made.dtype, precision),
    )
    if is_autocast and ratio < 1:
        operators = _under_autocast(work, operators)
    return replace(
        work,
        operators=operators,
        precision=precision,
        saved_bytes_per_sample=ratio * work.saved_bytes_per_sample,
        moments=tuple(
            replace(m, growing_bytes_per_sample=ratio * m.growing_bytes_per_sample)
            for m in work.moments
        ),
    )


_IN_32_BITS: Final = ("fp32", "tf32")


# What autocast does to a step that was recorded in 32 bits (PyTorch, "Automatic mixed precision",
# CUDA operations that autocast to float32): these operators read and write 32 bits, and what they
# write is cast for the next product (4 + 2 bytes an element beside the 8 read and written).
# Every trained weight of a product is cast once forward, and its gradient
# back once.
_KEPT: Final = re.compile(r"aten::.*(layer_norm|group_norm|softmax|nll_loss|cross_entropy)")
# Where no batch normalisation returns to 16 bits, sums and rectifications run on what the others
# wrote: in 32 bits, uncast.
_BETWEEN: Final = re.compile(r"aten::(add|relu|threshold)")
_BACK: Final = re.compile(r"aten::.*batch_norm")
_CASTS: Final = "autocast::"
_CAST_TRAFFIC: Final = 0.75  # of a cast of what is written, in the operator's traffic in 32 bits
_CAST_BYTES: Final = 6.0  # of a parameter: read in one width, written in the other


def _under_autocast(work: Work, narrowed: Operators) -> Operators:
    """Return operators in 16 bits as autocast runs them; described models bring their own."""
    made = work.operators
    recorded = _named(_RECORDED, made)
    if not recorded.any():
        return narrowed
    kept = ~made.is_update & _named(_KEPT, made)
    found = put(narrowed, kept, _cast_around(select(made, kept)))
    if not _named(_BACK, made).any():
        between = ~made.is_update & ~kept & _named(_BETWEEN, made)
        found = put(found, between, select(made, between))
    weighted = recorded & (made.phase == "forward") & (made.flop > 0) & (made.fixed_bytes > 0)
    weights = float(made.count[weighted & np.isin(made.kind, _WEIGHTED)].sum())
    if weights > 0:
        casts = Operators.of(_weights_cast(p, weights, work) for p in ("forward", "backward"))
        found = concatenate([found, casts])
    return found


_RECORDED: Final = re.compile("aten::")
_WEIGHTED: Final = ("matmul", "convolution", "winograd", "depthwise")


def _named(pattern: re.Pattern[str], operators: Operators) -> NDArray[np.bool_]:
    """Return which operators have a name that begins so."""
    return np.array([pattern.match(name) is not None for name in operators.name], bool)


def _cast_around(some: Operators) -> Operators:
    return replace(
        some,
        name=_CASTS + some.name,
        count=2 * some.count,
        listed=2 * some.listed,
        bytes=some.fixed_bytes + (1 + _CAST_TRAFFIC) * some.grown_bytes,
    )


def _weights_cast(phase: Phase, weights: float, work: Work) -> Operator:
    moved = _CAST_BYTES * work.trainable_parameters
    return Operator(
        name=_CASTS + "weights", kind="copy", phase=phase, count=weights, flop=0.0, bytes=moved,
        fixed_bytes=moved,
    )  # fmt: skip


def _without_casts(work: Work) -> Work:
    """Return a work without what ``_under_autocast`` did to it."""
    made = select(work.operators, work.operators.name != _CASTS + "weights")
    cast = _named(re.compile(_CASTS), made)
    if len(made) == len(work.operators) and not cast.any():
        return work
    wide = cast | ((made.dtype == "fp32") & ~made.is_update & _named(_BETWEEN, made))
    some = select(made, cast)
    made = put(made, cast, replace(
        some,
        name=np.array([name.removeprefix(_CASTS) for name in some.name], object),
        count=some.count / 2,
        listed=some.listed / 2,
        bytes=some.fixed_bytes + some.grown_bytes / (1 + _CAST_TRAFFIC),
    ))  # fmt: skip
    # in 32 bits all along: narrow as the others are, and wide again with them
    ratio, some = activation_bytes(work.precision) / FP32_BYTES, select(made, wide)
    narrow = np.full(len(some), work.precision, object)
    moved = some.fixed_bytes + ratio * some.grown_bytes
    return replace(work, operators=put(made, wide, replace(some, bytes=moved, dtype=narrow)))


def _tensors(model: Transformer, setup: TrainingSetup) -> float:
    """Return how many tensors the trained parameters are spread over."""
    matrices = [m for m in model_matrices(model) if m.name != "router"]
    if setup.has_adapters:
        return 2.0 * sum(m.count * m.copies for m in matrices if setup.adapts(m.name))
    biased = model.surroundings.biased
    tensors = sum(m.count * m.copies * (2 if m.name in biased else 1) for m in matrices)
    return tensors * (1 - setup.frozen_layers(model) / model.layers)


def _check(model: Transformer, micro_batch: int) -> None:
    names = ("layers", "hidden", "heads", "sequence", "experts", "experts_per_token", "kv_heads",
             "ffn", "head_width")  # fmt: skip
    sizes = {name: getattr(model, name) for name in names} | {"micro_batch": micro_batch}
    check_dimensions({name: size for name, size in sizes.items() if size is not None})
    if model.vocabulary < 0 or (model.head_width is None and model.hidden % model.heads):
        raise refused(
            f"a width of {model.hidden} over {model.heads} heads, {model.vocabulary} words",
            "heads divide the width, and the vocabulary is 0 or more",
        )


def block_operators(tally: Tally, model: Transformer, batch: int) -> list[Operator]:
    """Return the operators of all layers for ``batch`` samples, forward and backward."""
    tokens, layers, style = batch * model.sequence, model.layers, model.surroundings
    width, kv = head_width(model) * model.heads, key_value_width(model)
    made = [
        operator
        for m in model_matrices(model)
        for operator in tally.product(
            m.name, tokens * m.met, m.inner, m.columns, count=m.count, resident=m.copies,
            has_bias=m.name in style.biased,
        )
    ]  # fmt: skip
    attending = layers - model.mixer_layers
    if attending:
        seen = scored_width(model) * layers / attending / width
        attention = tally.attention(
            float(tokens) * model.sequence, model.heads, width, tokens * (width + kv),
            is_fused=model.has_flash_attention, seen=seen * (0.5 if model.is_causal else 1.0),
        )  # fmt: skip
        made += [_repeated(operator, attending) for operator in attention]
    made += _feed_forward(tally, model, tokens)
    made += tally.norm(
        tokens * model.hidden, has_root_mean_square=style.has_root_mean_square,
        number=layers * style.norms,
    )  # fmt: skip
    # Two residual sums; backward adds gradients where a tensor was read several times.
    made += tally.pointwise(
        "add", "elementwise", tokens * model.hidden,
        (2 * SUM_PASSES * layers, 4 * SUM_PASSES * layers), (2 * layers, 4 * layers),
    )  # fmt: skip
    if style.is_rotated:
        rotation = tally.pointwise("rotate", "elementwise", tokens * (width + kv), *ROTATION)
        made += [_repeated(operator, attending) for operator in rotation if attending]
    return made


def _feed_forward(tally: Tally, model: Transformer, tokens: float) -> list[Operator]:
    """Return activations, and what sorts tokens to the experts of a mixture."""
    passes, calls, _ = ACTIVATIONS["gated" if model.is_gated else "relu"]
    routed, made = 0, []
    for m in model_matrices(model):
        if m.name == "router":
            routed = m.count
        if m.name == "down":
            block = tally.pointwise(
                "activation", "elementwise", tokens * m.met * m.inner, passes, calls
            )
            made += [_repeated(operator, m.count) for operator in block]
    if routed:
        # Tokens are sorted to their experts and put back.
        met = tokens * model.experts_per_token * model.hidden
        sorted_ = tally.pointwise("dispatch", "embedding", met, (4.0, 4.0), (2.0, 2.0))
        made += [_repeated(operator, routed) for operator in sorted_]
    return made


def _ends(tally: Tally, model: Transformer, tokens: float) -> list[Operator]:
    """Return embedding, last normalisation, output head and loss."""
    h, v, setup = model.hidden, model.vocabulary, tally.setup
    made = tally.norm(tokens * h, has_root_mean_square=model.surroundings.has_root_mean_square)
    is_frozen = setup.has_adapters or setup.frozen_fraction > 0
    if v > 0:
        made += tally.embedding(tokens, v, h, is_frozen=is_frozen)
    if v > 0 and model.has_head:
        is_tied = is_frozen and model.has_tied_embeddings
        made += tally.product("head", tokens, h, v, is_frozen=is_tied)
        made += tally.loss(tokens * v)
    return made


def _repeated(operator: Operator, times: float) -> Operator:
    return replace(
        operator,
        count=operator.count * times,
        flop=operator.flop * times,
        bytes=operator.bytes * times,
        fixed_bytes=operator.fixed_bytes * times,
    )
