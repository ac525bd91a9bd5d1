"""A transformer in a few numbers, and how many parameters it has."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.planners.core.checks import check_counts, check_not_negative


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A transformer in a few numbers (symbols of Narayanan et al., SC'21, in brackets).

    Attributes
    ----------
    layers, hidden, heads, sequence, vocabulary : int
        [l, h, a, s, V]
    kv_heads : int or None
        Key/value heads of grouped-query attention; None means ``heads``.
    ffn : int or None
        Inner width of the feed-forward block; None means 4 h.
    is_gated : bool
        Three feed-forward matrices (SwiGLU) instead of two.
    experts, experts_per_token : int
        Mixture of experts; 1 and 1 for a dense model.
    head_width : int or None
        Width of one attention head; None means ``hidden / heads``, as the layout planner takes it.
    has_head : bool
        Every token is projected onto the vocabulary; ``vocabulary`` 0 has no embedding either.
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    kv_heads: int | None = None
    ffn: int | None = None
    is_gated: bool = False
    is_causal: bool = True
    has_flash_attention: bool = True
    has_tied_embeddings: bool = True
    experts: int = 1
    experts_per_token: int = 1
    head_width: int | None = None
    has_head: bool = True

    def __post_init__(self) -> None:
        names = ("layers", "hidden", "heads", "sequence", "kv_heads", "ffn", "experts",
                 "experts_per_token", "head_width")  # fmt: skip
        check_counts("transformer", **{name: getattr(self, name) for name in names})
        check_not_negative("transformer", vocabulary=self.vocabulary)


def head_width(model: Transformer) -> int:
    """Return the width of one attention head."""
    return model.head_width or model.hidden // model.heads


def key_value_width(model: Transformer) -> int:
    """Return the width of all key heads, or value heads, of a layer together."""
    return (model.kv_heads or model.heads) * head_width(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A weight matrix of every layer: ``count`` of ``inner`` x ``columns`` in a layer."""

    name: str
    inner: int
    columns: int
    count: int = 1


def layer_matrices(model: Transformer) -> tuple[Matrix, ...]:
    """Return the weight matrices of one layer, all experts' included, the router's not."""
    h, width, kv = model.hidden, head_width(model) * model.heads, key_value_width(model)
    ffn, up = model.ffn or 4 * h, 2 if model.is_gated else 1
    return (
        Matrix(name="query", inner=h, columns=width),
        Matrix(name="key", inner=h, columns=kv),
        Matrix(name="value", inner=h, columns=kv),
        Matrix(name="projection", inner=width, columns=h),
        Matrix(name="up", inner=h, columns=ffn, count=up * model.experts),
        Matrix(name="down", inner=ffn, columns=h, count=model.experts),
    )


def transformer_parameters(model: Transformer) -> int:
    """Return the parameters: products, normalisations and embeddings, without biases.

    Examples
    --------
    >>> transformer_parameters(Transformer(
    ...     layers=32, hidden=4096, heads=32, sequence=4096, vocabulary=32000, ffn=11008,
    ...     is_gated=True, has_tied_embeddings=False))  # Llama-2-7B: 6,738,415,616
    6738415616
    """
    h = model.hidden
    matrices = sum(m.count * m.inner * m.columns for m in layer_matrices(model))
    router = h * model.experts if model.experts > 1 else 0
    norms = (1 if model.is_gated else 2) * h
    embeddings = (
        model.vocabulary * h * (1 if model.has_tied_embeddings or not model.has_head else 2)
    )
    positions = 0 if model.is_gated else model.sequence * h
    return model.layers * (matrices + router + 2 * norms) + norms + embeddings + positions
