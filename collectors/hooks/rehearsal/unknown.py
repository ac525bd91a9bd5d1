"""Results whose numbers or shapes depend on what nobody computed.

Where values are known the shape is true. Else it is bounded and noted: one traced step takes the
most that there can be (every element is kept, no two are alike), the next one the least, a single
element: of none many scripts make no maximum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from ..trace.storages import tensors_in
from .shim import CannotRehearseError
from .values import made_up, mapped, value_of, where

_UNSURE = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    NotImplementedError,
)
# Operators that read numbers to say how large their result is, or return one.
_DYNAMIC = frozenset([
    "nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim",
    "bincount", "_local_scalar_dense", "equal", "is_nonzero", "allclose",
])  # fmt: skip
_ANSWERS = frozenset(["equal", "is_nonzero", "allclose"])


class Plain:
    """A result that is a number, not a tensor."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def run(
    mode: Any, func: Any, name: str, args: Any, kwargs: Any, value: Any, is_guess: bool
) -> Any:
    """Return an operator's fake result, or a ``Plain`` number.

    ``value``: the result on the inputs' values, None where they are not known; ``is_guess``:
    whether one of them was guessed.

    Raises what the operator raises for inputs that do not fit each other, and CannotRehearseError
    where it has no fake kernel and none can be made up.
    """
    if name in ("_ctc_loss", "_ctc_loss_backward"):
        return _aligned(mode, name, args)
    is_repeat = name == "repeat_interleave" and len(args) == 1
    if name in _DYNAMIC or is_repeat:
        return _dynamic(mode, func, name, args, kwargs, value, is_guess)
    try:
        with mode.fakes:
            return func(*args, **kwargs)
    except _UNSURE as error:
        return _dynamic(mode, func, name, args, kwargs, value, is_guess, error)


def _dynamic(
    mode: Any, func: Any, name: str, args: Any, kwargs: Any, value: Any, is_guess: bool,
    error: BaseException | None = None,
) -> Any:  # fmt: skip
    given = [one for one in tensors_in((args, kwargs)) if isinstance(one, FakeTensor)]
    if name == "_to_copy" and first_of(args).layout is not torch.strided:
        return _moved(mode, first_of(args), kwargs)
    if not given:  # made on the accelerator of what is known: sparse tensors, lists
        return _like(mode, func(*args, **dict(kwargs, device="cpu")), kwargs["device"])
    first = given[0]
    device = first.fake_device
    if name == "_local_scalar_dense":
        if value is None or is_guess:
            mode.notes.add("made up a number of type %s" % str(first.dtype)[6:])
        return Plain(made_up(first.dtype) if value is None else value)
    if name in ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"):
        return Plain(False)
    if name in _ANSWERS:
        if isinstance(value, bool) and not is_guess:
            return Plain(value)
        mode.notes.add("made up the answer of %s" % name)
        return Plain(name != "is_nonzero")
    if value is not None and not is_guess:
        return _like(mode, value, device)
    if name == "_pack_padded_sequence":  # its second result stays on the processor, and is known
        lengths = value_of(args[1]) if isinstance(args[1], FakeTensor) else args[1]
        if lengths is None:  # none is longer
            lengths = torch.full(args[1].shape, first.shape[int(args[2])])
        data, sizes = func(torch.zeros(first.shape, dtype=first.dtype), lengths, args[2])
        return _empty(mode, data.shape, data.dtype, device), sizes
    made = _bounded(mode, name, args, first, device)
    if made is not None:
        mode.sizes_made += 1
        mode.notes.add("made up the size of %s: the least and the most there can be" % name)
        return made
    return _stood_in(mode, func, name, args, kwargs, device, error)


def _aligned(mode: Any, name: str, args: Any) -> Any:
    """Return the result of connectionist temporal classification: torch has no fake kernel for it.

    Its lengths may stay on the processor, which fake tensors refuse beside the accelerator's.
    """
    scores = args[1] if name == "_ctc_loss_backward" else args[0]  # (time, samples, classes)
    device = scores.fake_device if isinstance(scores, FakeTensor) else scores.device
    if name == "_ctc_loss_backward":
        return _empty(mode, scores.shape, scores.dtype, device)
    targets, lengths = args[1], args[3]
    known = value_of(lengths) if isinstance(lengths, FakeTensor) else lengths
    longest = int(targets.shape[-1] if known is None else max(known))
    samples = int(scores.shape[1])
    paths = (samples, int(scores.shape[0]), 2 * longest + 1)
    loss = _empty(mode, (samples,), scores.dtype, device)
    return loss, _empty(mode, paths, scores.dtype, device)


def first_of(args: Any) -> Any:
    """Return the first tensor among an operator's arguments."""
    return next(one for one in args if isinstance(one, torch.Tensor))


def _moved(mode: Any, tensor: Any, kwargs: Any) -> Any:
    """Return a fake of a sparse tensor on another device: fakes cannot copy these."""
    made = tensor if isinstance(tensor, FakeTensor) else mode.fakes.from_tensor(tensor)
    device = kwargs.get("device") or made.fake_device
    made = made.detach() if made is tensor else made
    made.fake_device = torch.device("cuda", 0) if str(device) == "cuda" else torch.device(device)
    return made


def _empty(mode: Any, shape: Any, dtype: Any, device: Any) -> Any:
    with mode.fakes:
        return torch.empty(tuple(shape), dtype=dtype, device=device)


def _like(mode: Any, value: Any, device: Any) -> Any:
    """Return fakes of the shapes of real results."""
    if isinstance(value, torch.Tensor):
        made = mode.fakes.from_tensor(value)
        made.fake_device = device
        return made
    if isinstance(value, (list, tuple)):
        return type(value)([_like(mode, one, device) for one in value])
    return value


def _bounded(mode: Any, name: str, args: Any, first: Any, device: Any) -> Any:
    """Return the largest result that there can be, or the least; None for an unknown operator."""
    count, long = mode.bounded(first.numel()), torch.int64
    if name == "nonzero":
        return _empty(mode, (count, first.dim()), long, device)
    if name == "masked_select":
        return _empty(mode, (count,), first.dtype, device)
    if name in ("_unique2", "unique_consecutive"):
        sizes = ((count,), first.dtype), (first.shape, long), ((count,), long)
        return tuple(_empty(mode, shape, dtype, device) for shape, dtype in sizes)
    if name == "repeat_interleave":
        return _empty(mode, (count,), long, device)
    if name == "bincount":
        return _empty(mode, (max(int(args[2]) if len(args) > 2 else 0, 1),), long, device)
    if name == "nms":
        return _empty(mode, (mode.bounded(args[0].shape[0]),), long, device)
    if name == "index":
        return _empty(mode, _indexed_shape(mode, args[0], args[1]), args[0].dtype, device)
    if name == "_cudnn_rnn_backward":  # torch has no fake kernel for it: gradients are like inputs
        inputs, weights, hidden, cell = args[0], args[1], args[4], args[5]
        like = [
            None if one is None else _empty(mode, one.shape, one.dtype, device)
            for one in (inputs, hidden, cell)
        ]
        return (*like, [_empty(mode, one.shape, one.dtype, device) for one in weights])
    return None


def _indexed_shape(mode: Any, source: Any, indices: Any) -> list[int]:
    """Return the shape of ``source[indices]``; of a mask that is not known, a bound."""
    shape: list[int] = []
    chosen: tuple[int, ...] | None = None
    at = dimension = 0
    for index in indices:
        if index is None:
            shape.append(source.shape[dimension])
            dimension += 1
            continue
        at = len(shape) if chosen is None else at
        if index.dtype in (torch.bool, torch.uint8):
            known = value_of(index) if isinstance(index, FakeTensor) else index
            chosen = (mode.bounded(index.numel()) if known is None else int(known.sum()),)
            dimension += index.dim()
        else:
            chosen = tuple(index.shape)
            dimension += 1
    shape[at:at] = list(chosen or ())
    return shape + list(source.shape[dimension:])


def _stood_in(
    mode: Any, func: Any, name: str, args: Any, kwargs: Any, device: Any,
    error: BaseException | None,
) -> Any:  # fmt: skip
    """Run the processor's kernel on zeros, for the shape of the result alone."""

    def zeros(one: Any) -> Any:
        return torch.zeros(one.shape, dtype=one.dtype) if isinstance(one, FakeTensor) else one

    try:
        result = func(*mapped(args, zeros), **mapped(kwargs, zeros))
    except Exception:
        package = str(func).split(".")[0]
        place, _ = where()
        raise CannotRehearseError(
            "no fake kernel for the operator %s of %s, at %s" % (name, package, place),
            "add one with torch.library.register_fake: see docs/recording.md",
        ) from error
    mode.notes.add("the shape of %s is the processor's kernel's" % name)
    return _like(mode, result, device)
