"""Every operator of a rehearsal: computed where all of it is known, else only its shape.

An operator whose inputs are all real runs as ever. With a fake input, or a result on an
accelerator, its result is fake. A fake tensor carries its true value along as long as that depends
on no parameter and on nothing random (``_value``): so masks, labels, indices and lengths stay
what the script's data say, and control flow follows them.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..trace.live_memory import LiveMemory
from ..trace.storages import key_of, tensors_in
from ..trace.whole import local
from . import unknown
from .values import FEW, Notes, carry, guess_of, mapped, stand_in, taint, value_of

# Values are carried along up to so many elements, of one tensor and of all that an operator reads.
MOST_VALUED = 1 << 20
_MOST_READ = 4 << 20
# Products cost time and end in the network; what is drawn at random is nobody's true value.
_UNVALUED = frozenset([
    "mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward", "_cudnn_rnn",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "normal",
    "normal_", "uniform_", "exponential_", "multinomial", "geometric_", "cauchy_", "log_normal_",
])  # fmt: skip
_RANDOM = ("rand", "bernoulli", "dropout")
_CREATED = frozenset(["zeros", "ones", "full", "arange", "scalar_tensor", "linspace", "eye"])


class Schema:
    """What is known of an operator by its name and schema."""

    __slots__ = ("is_amp", "is_created", "is_valued", "name", "written")

    def __init__(self, func: Any) -> None:
        schema = getattr(func, "_schema", None)
        self.name = schema.name.split("::")[1] if schema is not None else str(func)
        is_random = any(word in self.name for word in _RANDOM)
        self.is_valued = self.name not in _UNVALUED and not is_random
        self.is_created = self.name in _CREATED
        self.is_amp = self.name.startswith("_amp_")
        self.written: tuple[tuple[int, str], ...] = ()
        if schema is not None and schema.is_mutable:
            self.written = tuple(
                (at, argument.name)
                for at, argument in enumerate(schema.arguments)
                if argument.alias_info is not None and argument.alias_info.is_write
            )


class Rehearsal(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode that is on while a script is rehearsed.

    Attributes
    ----------
    fakes : FakeTensorMode
        torch's own: shapes, types, strides and devices of results.
    is_least : bool
        Whether sizes that depend on the network are the least there can be, not the most.
    sizes_made : int
        How many of them there were.
    placed : dict
        Storages of this rank's slices of distributed weights -> ranks that hold the others.
    """

    supports_higher_order_operators = True

    def __init__(self, fakes: FakeTensorMode, memory: LiveMemory, notes: Notes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fakes = fakes
        self.memory = memory
        self.notes = notes
        self.is_on = True
        self.is_least = False
        self.sizes_made = 0
        self.placed: dict[int, int] = {}
        self.collectives: Any = ()
        self.exchanged: dict[str, tuple[int, int]] = {}  # by operator: calls, bytes
        self.kept: Any = None
        self._facts: dict[Any, Schema] = {}
        self._is_wrapper: dict[type, bool] = {}
        self._one_at_a_time = threading.RLock()  # fakes are made in one thread at a time

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator: for real, on values, or on shapes alone."""
        kwargs = kwargs or {}
        if not self.is_on:
            return func(*args, **kwargs)
        if func is torch.ops.prim.device.default:
            return args[0].device
        for kind in types:
            if self.wraps(kind):
                self.place(args)
                return NotImplemented  # DTensor and its like unwrap themselves first
        tensors = list(tensors_in((args, kwargs)))
        has_fakes = any(isinstance(one, FakeTensor) for one in tensors)
        if not has_fakes and not is_accelerated(kwargs.get("device")):
            return func(*args, **kwargs)
        facts = self._facts.get(func)
        if facts is None:
            facts = self._facts[func] = Schema(func)
        if facts.written and self._writes_real(facts, args, kwargs, tensors):
            return func(*mapped(args, self._number), **mapped(kwargs, self._number))
        value, is_guess = self._value(func, facts, args, kwargs, tensors)
        with self._one_at_a_time:
            result = unknown.run(self, func, facts.name, args, kwargs, value, is_guess)
        if isinstance(result, unknown.Plain):
            return result.value
        self._attach(result, value, is_guess)
        if func in self.collectives:
            self._exchange(func, facts.name, result, args, kwargs)
        if facts.written and value is None and not facts.is_amp:
            for one in _written(facts, args, kwargs):
                taint(one)
        return result

    def place(self, args: Any) -> None:
        """Note which of the weights among an operator's arguments are slices, or shards."""
        for one in args:
            spec = getattr(one, "_spec", None) if isinstance(one, torch.nn.Parameter) else None
            if spec is not None:
                ranks = 1
                for at, placement in enumerate(spec.placements):
                    ranks *= 1 if placement.is_replicate() else int(spec.mesh.size(at))
                if ranks > 1:
                    self.placed[key_of(local(one))] = ranks

    def bounded(self, most: int) -> int:
        """Return a size that depends on the network, of which ``most`` is the largest."""
        return min(1, most) if self.is_least else most

    def _exchange(self, func: Any, name: str, result: Any, args: Any, kwargs: Any) -> None:
        """Count a collective's bytes, by torch's own rules."""
        from torch.distributed._tools.fake_collectives import CollectiveOp

        try:
            size = int(CollectiveOp.get_comm_tensor_size(func, result, args, kwargs))
        except Exception:  # one that moves nothing of size: a barrier, a wait
            size = 0
        self.count(name, size)

    def count(self, name: str, size: int) -> None:
        """Count a collective over ``size`` bytes."""
        calls, before = self.exchanged.get(name, (0, 0))
        self.exchanged[name] = calls + 1, before + size

    def wraps(self, kind: type) -> bool:
        """Whether tensors of a kind hold others, which are what is fake."""
        found = self._is_wrapper.get(kind)
        if found is None:
            is_plain = kind.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl  # type: ignore[attr-defined]
            found = self._is_wrapper[kind] = not is_plain and not issubclass(kind, FakeTensor)
        return found

    def _writes_real(self, facts: Schema, args: Any, kwargs: Any, tensors: list[Any]) -> bool:
        """Whether the operator writes something unknown into a real tensor of few elements."""
        written = _written(facts, args, kwargs)
        if not written or any(isinstance(one, FakeTensor) for one in written):
            return False
        return facts.is_valued and sum(one.numel() for one in tensors) <= _MOST_READ

    def _number(self, tensor: Any) -> Any:
        """Return a real tensor for any: with its true values, or made-up ones."""
        return stand_in(tensor, self.notes) if isinstance(tensor, FakeTensor) else tensor

    def _value(
        self, func: Any, facts: Schema, args: Any, kwargs: Any, tensors: list[Any]
    ) -> tuple[Any, bool]:
        """Return the operator's result on the values of its inputs, and whether one was guessed.

        None where an input's value is not known, the operator is none that is valued, or the
        processor has no kernel for it.
        """
        if not facts.is_valued or (not tensors and not facts.is_created):
            return None, False
        values: dict[int, Any] = {}
        is_guess, total = False, 0
        for one in tensors:
            total += one.numel()
            if total > _MOST_READ or isinstance(one, torch.nn.Parameter):
                return None, False
            value = value_of(one) if isinstance(one, FakeTensor) else one
            if value is None:
                if one.numel() > FEW:
                    return None, False
                value, is_guess = guess_of(one), True
            values[id(one)] = value
        if not tensors and _created_elements(args) > MOST_VALUED:
            return None, False
        positional = mapped(args, lambda one: values[id(one)])
        named = mapped(kwargs, lambda one: values[id(one)])
        named.pop("pin_memory", None)
        try:
            result = func(*positional, **named)
        except Exception:  # no such kernel on a processor, or not for this type
            return None, False
        if facts.name in ("_to_copy", "lift_fresh") and _shares(result, positional[0]):
            result = result.clone()  # the script's own tensor must not change with the copy
        return result, is_guess

    def _attach(self, result: Any, value: Any, is_guess: bool) -> None:
        """Have fake results carry their values, and the memory know of them."""
        outs: list[Any] = list(tensors_in(result))
        values = list(tensors_in(value))
        for at, out in enumerate(outs):
            if not isinstance(out, FakeTensor):
                continue
            if out.fake_device.type == "cuda":
                self.memory.add(out)
            if len(values) == len(outs) and values[at].shape == out.shape:
                carry(out, values[at], is_guess=is_guess)


def is_accelerated(device: Any) -> bool:
    """Whether a device that an operator is given is an accelerator."""
    return device is not None and torch.device(device).type == "cuda"


def _written(facts: Schema, args: Any, kwargs: Any) -> list[Any]:
    """Return the tensors that an operator writes into."""
    found = [args[at] if at < len(args) else kwargs.get(name) for at, name in facts.written]
    return list(tensors_in(found))


def _created_elements(args: Any) -> int:
    """Return how many elements an operator without inputs makes; arange by its end."""
    first = args[0] if args else 0
    if isinstance(first, (list, tuple)):
        return torch.Size(first).numel()
    numbers = [abs(one) for one in args if isinstance(one, (int, float))]
    return int(max(numbers, default=0))


def _shares(result: Any, source: Any) -> bool:
    is_pair = isinstance(result, torch.Tensor) and isinstance(source, torch.Tensor)
    return is_pair and (result is source or result.data_ptr() == source.data_ptr())
