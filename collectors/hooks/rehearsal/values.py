"""What a fake tensor answers when the script wants a number of it.

A value that depends on no parameter is true. What comes out of the network is made up: floating
point numbers are positive, finite and slowly falling, integers 0 (a valid class, index, action),
each noted with the script's own line. Few unknown numbers (a loss, an accuracy) are guessed once
and computed with like values, so that a guess agrees with itself: ``isfinite(loss)`` is true, a
softmax of guesses adds up to one.
"""

from __future__ import annotations

import linecache
import os
import sys
import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from ..trace.frames import user_frame

FEW = 64  # unknown tensors of up to so many elements carry a guess
_MOST_NOTES = 100
_FALLING = 1e-4
_DECIDING = ("if ", "elif ", "while ", "assert ")


class Notes:
    """What was made up, left out or stood in for, each with how often and the script's line.

    Attributes
    ----------
    counts : dict of str to int
        Note -> how often.
    has_decided : bool
        Whether a made-up value stands in a line that decides where the script goes on.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.has_decided = False

    def add(self, text: str) -> None:
        """Note something at the script's line that runs now."""
        place, line = where()
        if text.startswith("made up") and line.startswith(_DECIDING):
            self.has_decided = True
            text += ", which decides where the script goes on"
        text = "%s (%s)" % (text, place) if place else text
        if text in self.counts or len(self.counts) < _MOST_NOTES:
            self.counts[text] = self.counts.get(text, 0) + 1


def where() -> tuple[str, str]:
    """Return ``"train.py:12"``, the script's line that runs now, and its text; empty if none."""
    frame = user_frame(sys._getframe(1))
    if frame is None:
        return "", ""
    name, line = frame.f_code.co_filename, frame.f_lineno
    return "%s:%d" % (os.path.basename(name), line), linecache.getline(name, line).strip()


# Storages that something unknown was written into: the values of tensors that share them are void.
_TAINTED: set[int] = set()
_made = [0]


def value_of(tensor: Any) -> Any:
    """Return the true value of a fake tensor, on the processor; None where it is not known."""
    value = getattr(tensor, "_advisor_value", None)
    if value is not None and _TAINTED and _storage(tensor) in _TAINTED:
        return None
    return value


def _storage(tensor: Any) -> int:
    """Return the identity of a tensor's storage; 0 for a sparse one."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else 0


def mapped(value: Any, of_tensor: Any) -> Any:
    """Return arguments with tensors replaced and accelerators' devices turned to the processor."""
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if isinstance(value, (list, tuple)):
        return type(value)([mapped(one, of_tensor) for one in value])
    if isinstance(value, dict):
        return {key: mapped(one, of_tensor) for key, one in value.items()}
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return value


def carry(tensor: Any, value: Any, *, is_guess: bool) -> None:
    """Have a fake tensor carry its value: a true one, or one computed with guesses."""
    tensor._advisor_guess = value if is_guess else None
    tensor._advisor_value = None if is_guess else value


def taint(tensor: Any) -> None:
    """Note that something unknown was written into a tensor."""
    if getattr(tensor, "_advisor_value", None) is not None:
        tensor._advisor_value = None
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        _TAINTED.add(storage._cdata)
        weakref.finalize(storage, _TAINTED.discard, storage._cdata)
    elif getattr(tensor, "_advisor_guess", None) is not None:
        tensor._advisor_guess = None


def made_up(dtype: Any) -> Any:
    """Return a number that nobody computed: positive, finite, slowly falling; 0; or False."""
    _made[0] += 1
    if dtype == torch.bool:
        return False
    is_real = dtype.is_floating_point or dtype.is_complex
    return 1.0 / (1.0 + _FALLING * _made[0]) if is_real else 0


def guess_of(tensor: Any) -> Any:
    """Return the numbers that a small unknown tensor is guessed to hold, the same each time."""
    guess = getattr(tensor, "_advisor_guess", None)
    if guess is None or guess.shape != tensor.shape:
        guess = torch.full(tuple(tensor.shape), made_up(tensor.dtype), dtype=tensor.dtype)
        tensor._advisor_guess = guess
    return guess


def stand_in(tensor: Any, notes: Notes) -> Any:
    """Return a real tensor in place of a fake one: its true values, or made-up ones, noted."""
    value = value_of(tensor)
    if value is not None:
        return value
    notes.add("made up values of type %s" % str(tensor.dtype)[6:])
    with _disable_current_modes():
        if tensor.numel() <= FEW:
            return guess_of(tensor)
        return torch.full(tuple(tensor.shape), made_up(tensor.dtype), dtype=tensor.dtype)


def answer_for_fakes(notes: Notes) -> None:
    """Teach fake tensors to cross into NumPy, lists, text and copies."""

    def numbers(self: Any) -> Any:
        return stand_in(self.detach() if self.requires_grad else self, notes)

    def array(self: Any, dtype: Any = None, *_: Any, **__: Any) -> Any:
        found = numbers(self).numpy()
        return found if dtype is None else found.astype(dtype)

    def text(self: Any, **_: Any) -> str:
        return "tensor(<rehearsed>, shape=%s, dtype=%s, device='%s')" % (
            tuple(self.shape), self.dtype, self.fake_device,
        )  # fmt: skip

    def formatted(self: Any, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else text(self)

    def same(self: Any, *_: Any, **__: Any) -> Any:
        return self

    def nothing(self: Any, *_: Any, **__: Any) -> None:
        return None

    replaced: dict[str, Any] = {
        "numpy": lambda self, *_, **__: array(self),
        "__array__": array,
        "tolist": lambda self: numbers(self).tolist(),
        "__repr__": text,
        "__str__": text,
        "__format__": formatted,
        "__deepcopy__": _deep_copy,
        "__reduce_ex__": lambda self, protocol: numbers(self).__reduce_ex__(protocol),
        "data_ptr": lambda self: id(self.untyped_storage()),
        "pin_memory": same,
        "share_memory_": same,
        "record_stream": nothing,
    }
    for name, own in replaced.items():
        setattr(FakeTensor, name, own)
    tensor: Any = torch.Tensor
    tensor.pin_memory = same


def _deep_copy(self: Any, memo: dict[int, Any]) -> Any:
    if id(self) in memo:
        return memo[id(self)]
    with torch.no_grad():
        copy = self.detach().clone()
    if isinstance(self, torch.nn.Parameter):
        copy = torch.nn.Parameter(copy, self.requires_grad)
    else:
        copy.requires_grad_(self.requires_grad)
    memo[id(self)] = copy
    return copy
