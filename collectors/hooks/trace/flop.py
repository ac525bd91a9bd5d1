"""Floating-point operations of one operator call, from the shapes it got and gave.

A multiplication and an addition count as two. Products, convolutions, recurrent layers and
attention have their closed forms here, because the framework's own counter misses recurrent
layers on MKLDNN and cuDNN, counts grouped convolutions' gradients as dense and takes sparse
products for dense ones (torch 2.13). Every other operator that computes counts one operation per
element of its largest operand, which is a convention: it is bound by memory.

=========  ==============================================================================
symbol     meaning
=========  ==============================================================================
m, k, n    rows, inner size and columns of a product: 2 m k n
nnz        stored elements of a sparse operand: 2 nnz n
N, T       sequences in a batch, time steps: a recurrent layer takes 2 N T numel(W) for each
           of its weight matrices W (input and hidden weights of all gates together)
=========  ==============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def _product(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= int(size)
    return total


def _is_sparse(tensor: Any) -> bool:
    return "strided" not in str(tensor.layout) and "mkldnn" not in str(tensor.layout)


def _matrix_product(a: Any, b: Any) -> float:
    """(m, k) times (k, n), either of them possibly sparse."""
    if _is_sparse(a):
        return 2.0 * int(a._nnz()) * int(b.shape[-1])
    if _is_sparse(b):
        return 2.0 * int(b._nnz()) * int(a.shape[0])
    return 2.0 * _product(a.shape) * (int(b.shape[-1]) if b.dim() > 1 else 1)


def _linear_backward(args: Any, out: Any) -> float:
    """Gradients by input (args: self, grad, weight) and by weight, as asked for."""
    one = 2.0 * _product(args[0].shape) * int(args[2].shape[0])
    return one * sum(tensor is not None for tensor in out[:2])


def _convolution_once(data: Any, weight: Any, result: Any, is_transposed: bool) -> float:
    """Every output (transposed: input) element meets its group's whole filter."""
    # The filter is (out, in / groups, *kernel), transposed (in, out / groups, *kernel): in both a
    # row of the weight is what one element meets, so groups need no term of their own.
    meeting = data if is_transposed else result
    return 2.0 * _product(meeting.shape) * _product(weight.shape[1:])


def _convolution(args: Any, out: Any) -> float:
    is_transposed = bool(args[6]) if len(args) > 6 and isinstance(args[6], bool) else False
    return _convolution_once(args[0], args[1], out, is_transposed)


def _convolution_backward(args: Any, out: Any) -> float:
    """By input and by weight each as much as forward; the bias adds up the gradient."""
    gradient, data, weight = args[0], args[1], args[2]
    mask = args[10]
    once = _convolution_once(data, weight, gradient, bool(args[7]))
    return once * (bool(mask[0]) + bool(mask[1])) + (_product(gradient.shape) if mask[2] else 0)


def _recurrent(data: Any, weights: Sequence[Any]) -> float:
    """2 N T numel(W) over the weight matrices; a packed batch is (N T, features) already."""
    tokens = _product(data.shape[:-1])
    return 2.0 * tokens * sum(_product(weight.shape) for weight in weights if weight.dim() == 2)


def _attention_pairs(query: Any, key: Any, is_causal: bool) -> float:
    """Query-key pairs over batch and heads: a causal kernel skips those above the diagonal."""
    queries, keys = int(query.shape[-2]), int(key.shape[-2])
    pairs = float(queries * keys)
    if is_causal:
        seen = min(queries, keys)
        pairs = seen * (seen + 1) / 2.0 + max(0, queries - keys) * keys
    return _product(query.shape[:-2]) * pairs


def _attention(query: Any, key: Any, value: Any, is_causal: bool, products: float) -> float:
    """As many products over all pairs, half of them as wide as a key and half as a value."""
    width = (int(query.shape[-1]) + int(value.shape[-1])) / 2.0
    return products * 2.0 * _attention_pairs(query, key, is_causal) * width


_FORMS: tuple[tuple[str, Callable[[Any, Any], float]], ...] = (
    ("mm _sparse_mm _int_mm _scaled_mm mv dot vdot", lambda a, _: _matrix_product(a[0], a[1])),
    ("addmm _addmm_activation _sparse_addmm addmv", lambda a, _: _matrix_product(a[1], a[2])),
    ("addr", lambda _, out: 2.0 * _product(out.shape)),
    # (..., k) times the transpose of (n, k).
    ("linear mkldnn_linear _linear_pointwise",
     lambda a, _: 2.0 * _product(a[0].shape) * int(a[1].shape[0])),
    ("linear_backward", _linear_backward),
    ("bmm", lambda a, _: 2.0 * _product(a[0].shape) * int(a[1].shape[2])),
    ("baddbmm", lambda a, _: 2.0 * _product(a[1].shape) * int(a[2].shape[2])),
    # Only the stored elements of a sparse result are computed.
    ("sparse_sampled_addmm", lambda a, out: 2.0 * int(out._nnz()) * int(a[1].shape[1])),
    ("convolution _convolution convolution_overrideable", _convolution),
    ("cudnn_convolution mkldnn_convolution _convolution_pointwise",
     lambda a, out: _convolution_once(a[0], a[1], out, False)),
    ("convolution_backward convolution_backward_overrideable", _convolution_backward),
    ("mkldnn_rnn_layer", lambda a, _: _recurrent(a[0], a[1:3])),
    ("mkldnn_rnn_layer_backward", lambda a, _: 2.0 * _recurrent(a[0], a[1:3])),
    ("_cudnn_rnn miopen_rnn", lambda a, _: _recurrent(a[0], a[1])),
    ("_cudnn_rnn_backward miopen_rnn_backward", lambda a, _: 2.0 * _recurrent(a[0], a[1])),
)  # fmt: skip
# Operator (without namespace and overload) -> closed form over (args, result).
CLOSED_FORMS = {name: form for names, form in _FORMS for name in names.split()}

# Arithmetic per parameter in the update rules that run as one fused operator: multiplications and
# additions of Adam's two moments, two bias corrections, root, division and update (Kingma and Ba
# 2015, algorithm 1); decoupled decay adds two; momentum SGD four.
FUSED_UPDATE_FLOP = {"_fused_adam_": 12.0, "_fused_adamw_": 14.0, "_fused_sgd_": 4.0,
                     "_fused_adagrad_": 6.0}  # fmt: skip

# Operators that move or make data without computing on it.
MOVES = frozenset([
        "_foreach_copy_", "_foreach_zero_", "_local_scalar_dense", "_nested_tensor_from_mask",
        "_to_copy", "_unsafe_index", "arange", "argmax", "argsort", "as_strided_scatter",
        "bernoulli_", "bincount", "cat", "clone", "col2im", "constant_pad_nd", "contiguous",
        "copy_", "embedding", "embedding_dense_backward", "empty", "empty_like", "fill_", "flip",
        "full", "full_like", "gather", "im2col", "index", "index_put", "index_put_",
        "index_select", "item", "lift_fresh", "masked_fill", "masked_fill_", "masked_select",
        "max_pool2d_with_indices_backward", "new_empty", "new_full", "new_ones", "new_zeros",
        "nonzero", "normal_", "one_hot", "ones", "ones_like", "pixel_shuffle", "rand", "randn",
        "random_", "randperm", "repeat", "roll", "scalar_tensor", "select_backward",
        "select_scatter", "slice_backward", "slice_scatter", "sort", "split_with_sizes_copy",
        "stack", "topk", "tril", "triu", "unfold_backward", "uniform_", "upsample_nearest2d",
        "upsample_nearest2d_backward", "where", "zero_", "zeros", "zeros_like",
])  # fmt: skip


def is_attention(name: str) -> bool:
    """Whether the operator is a fused attention, forward or backward, of any backend."""
    return name.startswith("_scaled_dot_product_") and name != "_scaled_dot_product_attention_math"


def is_product(name: str) -> bool:
    """Whether the operator is a product whose gradients are products too."""
    return name in CLOSED_FORMS or is_attention(name)


def flop(name: str, args: Sequence[Any], names: Sequence[str], out: Any, elements: int) -> float:
    """Return the floating-point operations of one call.

    Parameters
    ----------
    name : str
        The operator without namespace and overload, e.g. ``"addmm"``.
    elements : int
        Elements of its largest floating-point operand or result.
    """
    if is_attention(name):
        is_causal = "is_causal" in names and args[names.index("is_causal")] is True
        if name.endswith("_backward"):  # QK' again, then the gradients by P, V, Q and K
            return _attention(args[1], args[2], args[3], is_causal, 5.0)
        return _attention(args[0], args[1], args[2], is_causal, 2.0)  # QK' and PV
    closed_form = CLOSED_FORMS.get(name)
    if closed_form is not None:
        return float(closed_form(args, out))
    if name in FUSED_UPDATE_FLOP:
        return FUSED_UPDATE_FLOP[name] * sum(int(parameter.numel()) for parameter in args[0])
    return 0.0 if name in MOVES else float(elements)
