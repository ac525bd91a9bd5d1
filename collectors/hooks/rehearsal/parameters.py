"""Modules whose parameters are fake: made without memory, moved and cast in place.

A parameter keeps its identity when it moves, as on a GPU: ties, hooks and an optimizer made before
``.cuda()`` survive. torch's own ``Module._apply`` swaps fake tensors, which fails where anything
refers to them weakly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from .mode import Rehearsal


def make_fake(mode: Rehearsal) -> None:
    """Have every parameter that is made from now on be fake."""
    _make_parameters(mode)
    _make_subclasses()
    module: Any = nn.Module
    module._apply = _moving(mode)
    _set_data(mode)


def _set_data(mode: Rehearsal) -> None:
    """Have ``parameter.data = moved`` take the device along, as FSDP moves what it manages."""
    original: Any = torch.Tensor.data

    def replace(self: Any, value: Any) -> None:
        original.__set__(self, value)
        if isinstance(value, FakeTensor) and value.fake_device != self.fake_device:
            self.fake_device = value.fake_device
            if value.fake_device.type == "cuda":
                mode.memory.add(self)

    fake: Any = FakeTensor
    fake.data = property(original.__get__, replace)


def _make_parameters(mode: Rehearsal) -> None:
    parameter: Any = nn.Parameter
    original = parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        is_plain = type(data) in (torch.Tensor, nn.Parameter) and cls is nn.Parameter
        if mode.is_on and is_plain and data.device.type == "cpu":
            with mode.fakes:
                data = torch.empty_strided(data.size(), data.stride(), dtype=data.dtype)
        return original(cls, data, requires_grad)

    parameter.__new__ = new


def _make_subclasses() -> None:
    """Let libraries make their own kinds of parameters of fakes (bitsandbytes' 8-bit weights)."""
    tensor: Any = torch.Tensor
    original = tensor._make_subclass
    mixed: dict[type, type] = {}

    # torch's compiler compares the names of these arguments with its own where it is imported.
    def make_subclass(cls: Any, data: Any, requires_grad: bool = False, **kwargs: Any) -> Any:
        is_own = issubclass(cls, FakeTensor) or cls is nn.Parameter
        if not isinstance(data, FakeTensor) or is_own:
            return original(cls, data, requires_grad, **kwargs)
        if cls not in mixed:
            own = {
                "__torch_dispatch__": FakeTensor.__torch_dispatch__,
                "__torch_function__": torch._C._disabled_torch_function_impl,
            }
            mixed[cls] = type(cls.__name__, (cls, FakeTensor), own)
        made = data.detach()
        made.__class__ = mixed[cls]
        made.requires_grad_(requires_grad and data.dtype.is_floating_point)
        return made

    tensor._make_subclass = staticmethod(make_subclass)


def _moving(mode: Rehearsal) -> Any:
    """Return ``Module._apply`` for modules with fake parameters."""

    def apply(self: Any, fn: Any, recurse: bool = True) -> Any:
        if recurse:
            for child in self.children():
                child._apply(fn)
        for name, parameter in self._parameters.items():
            if parameter is None:
                continue
            for tensor in (parameter, parameter.grad):
                if tensor is None:
                    continue
                with torch.no_grad():
                    moved = fn(tensor)
                if isinstance(tensor, FakeTensor):
                    _become(mode, tensor, moved)
                elif tensor is parameter:
                    kept = parameter.requires_grad
                    self._parameters[name] = nn.Parameter(moved, kept) if tensor.is_leaf else moved
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    return apply


def _become(mode: Rehearsal, tensor: Any, moved: Any) -> None:
    """Give a fake parameter another's type and device, in place."""
    if moved is tensor:
        return
    device = moved.device
    base = getattr(tensor, "_advisor_base", tensor.fake_device)
    is_same = moved.dtype == tensor.dtype and moved.shape == tensor.shape
    is_fake = isinstance(moved, FakeTensor)
    if not is_same or not is_fake or moved.stride() != tensor.stride() or device.type == "meta":
        # ``.data`` may change the type, not the device: it is changed where the tensor was made.
        tensor.fake_device = base
        with mode.fakes:
            tensor.data = torch.empty_strided(
                moved.shape, moved.stride(), dtype=moved.dtype, device=base
            )
    tensor._advisor_base = base
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", 0)
    tensor.fake_device = device
    is_used = torch._C._autograd._get_sequence_nr() > 0  # anything has been computed to learn from
    if is_used and tensor.is_leaf and tensor.requires_grad:
        # Where gradients go was noted with the old device if the parameter was used there
        # (``weight_norm``): torch forgets it when data are set that lie elsewhere.
        tensor.data = tensor.detach()
    if device.type == "cuda":
        mode.memory.add(tensor)
    else:
        mode.memory.free(tensor.untyped_storage()._cdata)
