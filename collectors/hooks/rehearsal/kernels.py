"""The choices that torch makes on CUDA and not on a processor: which kernels run.

Attention: flash where it may (no mask, 16 bits, heads up to 256; it takes fewer heads of keys than
of queries), else the memory-efficient kernel (ATen/native/transformers/cuda/sdp_utils.cpp). Norms
by the root of the mean square: one kernel, from torch 2.9 on. Recurrent layers: cuDNN's.
Optimizers and norms of gradients: over lists of tensors, for fakes too.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from torch._subclasses.fake_tensor import FakeTensor

from .mode import Rehearsal

_FLASH_TYPES = (torch.float16, torch.bfloat16)
_WIDEST_FLASH = 256
_FUSED_NORMS = (2, 9)  # the first torch that has them on CUDA
_RECURRENT = ("rnn_relu", "rnn_tanh", "lstm", "gru")  # in cuDNN's order


def choose_as_cuda(mode: Rehearsal) -> None:
    """Have attention, recurrent layers and optimizers choose as they would on CUDA."""
    _attention()
    library: Any = torch
    for number, name in enumerate(_RECURRENT):
        original = getattr(library._C._VariableFunctions, name)
        setattr(library._VF, name, _recurrent(mode, number, original))
    _foreach()
    _alignment()
    mode.kept = _own_kernels()  # registered for as long as it lives


def _own_kernels() -> Any:
    """Have operators be one kernel that torch takes apart where it is built without CUDA.

    Their composite stands in for a missing kernel, before any mode sees them. What is registered
    here is never called: fake tensors do not get so far.
    """
    library: Any = torch.library
    kernels = library.Library("aten", "IMPL")
    version = tuple(int(one) for one in str(torch.__version__).split(".")[:2])
    norms = ("_fused_rms_norm", "_fused_rms_norm_backward") if version >= _FUSED_NORMS else ()
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key

    def never(*_: Any, **__: Any) -> Any:
        raise NotImplementedError

    for name in ("silu_backward", "mish_backward", *norms):
        if hasattr(torch.ops.aten, name) and not has_kernel("aten::" + name, "CUDA"):
            kernels.impl(name, never, "CUDA")
    return kernels


def _alignment() -> None:
    """Have lengths of a CTC loss lie beside its scores: torch reads real ones, not fakes'."""
    library: Any = torch
    original = library.ctc_loss

    def ctc_loss(scores: Any, targets: Any, *lengths: Any, **named: Any) -> Any:
        if isinstance(scores, FakeTensor):
            lengths = tuple(
                one.to(scores.device) if isinstance(one, torch.Tensor) else one for one in lengths
            )
        return original(scores, targets, *lengths, **named)

    library.ctc_loss = ctc_loss


def _is_on_cuda(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.device.type == "cuda"


def _autocast(*tensors: Any) -> tuple[Any, ...]:
    """Return the tensors as autocast would pass them on."""
    if not torch.is_autocast_enabled("cuda"):
        return tensors
    kind = torch.get_autocast_dtype("cuda")
    return tuple(
        one.to(kind) if one is not None and one.is_floating_point() else one for one in tensors
    )


def _attention() -> None:
    original = functional.scaled_dot_product_attention

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        if not _is_on_cuda(query) or query.dim() != 4:
            return original(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                enable_gqa=enable_gqa,
            )  # fmt: skip
        query, key, value, attn_mask = _autocast(query, key, value, attn_mask)
        is_short = query.shape[-1] <= _WIDEST_FLASH
        if attn_mask is None and query.dtype in _FLASH_TYPES and is_short:
            return torch.ops.aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, scale=scale
            )[0]
        if enable_gqa and key.shape[1] != query.shape[1]:
            times = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        if attn_mask is not None:
            attn_mask = _additive(attn_mask, query, key)
        learns = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, learns, dropout_p, is_causal, scale=scale
        )[0]

    module: Any = functional
    module.scaled_dot_product_attention = attention


def _additive(mask: Any, query: Any, key: Any) -> Any:
    """Return a mask as what is added to the scores."""
    if mask.dtype == torch.bool:
        added = torch.zeros_like(mask, dtype=query.dtype)
        mask = added.masked_fill_(mask.logical_not(), float("-inf"))
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _recurrent(mode: Rehearsal, number: int, original: Any) -> Any:
    """Return a recurrent layer that runs on cuDNN where its input lies on CUDA."""

    def layer(*args: Any) -> Any:
        if not (isinstance(args[0], FakeTensor) and _is_on_cuda(args[0])):
            return original(*args)
        if isinstance(args[3], bool):
            inputs, state, weights, bias, layers, dropout, training, both, batch_first = args
            sizes: list[int] = []
        else:
            inputs, lengths, state, weights, bias, layers, dropout, training, both = args
            batch_first, sizes = False, [int(one) for one in lengths.tolist()]
        hidden, cell = state if isinstance(state, (list, tuple)) else (state, None)
        inputs, hidden, cell, *weights = _autocast(inputs, hidden, cell, *weights)
        with mode.fakes:  # the library's buffer: weights in its own order
            size = sum(one.numel() for one in weights)
            buffer = torch.empty(size, dtype=inputs.dtype, device=inputs.device)
        output, hidden, cell_out, _, _ = torch.ops.aten._cudnn_rnn(
            inputs, list(weights), 4 if bias else 2, buffer, hidden, cell, number,
            hidden.shape[-1], 0, layers, batch_first, dropout, training, both, sizes, None,
        )  # fmt: skip
        return (output, hidden) if cell is None else (output, hidden, cell_out)

    return layer


def _foreach() -> None:
    """Have optimizers and clipping take lists of fakes, as they take lists of tensors."""
    import torch.nn.utils.clip_grad as clipping
    import torch.optim.optimizer as optimizer
    import torch.utils._foreach_utils as lists

    for kinds in (
        getattr(optimizer, "_foreach_supported_types", None),
        getattr(lists, "_foreach_supported_types", None),
    ):
        if isinstance(kinds, list) and FakeTensor not in kinds:
            kinds.append(FakeTensor)

    def supported(tensors: Any, device: Any) -> bool:
        kinds = (torch.Tensor, torch.nn.Parameter, FakeTensor)
        known = (*lists._get_foreach_kernels_supported_devices(), "cpu")
        return device.type in known and all(t is None or type(t) in kinds for t in tensors)

    modules: tuple[Any, ...] = (lists, clipping)
    for module in modules:
        if hasattr(module, "_has_foreach_support"):
            module._has_foreach_support = supported
