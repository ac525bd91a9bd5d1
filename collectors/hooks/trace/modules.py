"""The module that an operator belongs to, forward and backward.

Forward, an operator belongs to the module entered last: a leaf's own operators and whatever
its parents compute before they enter the next one (an activation, a residual sum), so that the
layers add up to the step. Backward, the autograd node that runs was numbered when its forward
operator ran, and the numbers at each module's entry say between which two entries that was.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from .storages import size_bytes, tensors_in

# What an operator outside of every module belongs to.
NOBODY = -1


class Call:
    """One entry into a module."""

    __slots__ = ("has_children", "module", "output_bytes")

    def __init__(self, module: Any) -> None:
        self.module = module
        self.has_children = False
        self.output_bytes = 0


class Modules:
    """The module calls of one deep step, in order of entry.

    Attributes
    ----------
    owner : int
        The call entered last: whom the next operator belongs to.
    roots : list
        Modules that were called from outside of any other.
    leading_sizes : list of int
        Samples in the first tensor that reached each call of a root that learns: its first
        dimension, or the second where a recurrent or attention module in there is told that time
        comes first. A loss is a root too, and often sees every token as a row.
    are_learnt_from : list of bool
        Whether gradients were kept in each of these calls: a policy that acts keeps none.
    """

    def __init__(self) -> None:
        self.owner = NOBODY
        self.roots: list[Any] = []
        self.leading_sizes: list[int] = []
        self.are_learnt_from: list[bool] = []
        self.singles: dict[int, int] = {}
        self._calls: list[Call] = []
        self._stack: list[int] = []
        self._numbers: list[int] = []  # autograd's next number at each entry
        self._handles: list[Any] = []
        self._is_size_wanted = False
        self._is_batch_open = False
        self._root_shape: tuple[int, ...] = ()

    def __enter__(self) -> Modules:
        from torch.nn.modules import module

        self._handles = [
            module.register_module_forward_pre_hook(self._entered),
            module.register_module_forward_hook(self._left, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    @property
    def is_inside(self) -> bool:
        """Whether a module's forward is running."""
        return bool(self._stack)

    def _entered(self, module: Any, args: Any) -> None:
        import torch

        if self._stack:
            self._calls[self._stack[-1]].has_children = True
        else:
            self._is_size_wanted = any(True for _ in module.parameters())
            self._root_shape = ()
            if not any(module is root for root in self.roots):
                self.roots.append(module)
        if self._is_size_wanted:
            for tensor in tensors_in(args):
                self._root_shape = tuple(tensor.shape)
                self.leading_sizes.append(int(tensor.shape[0]) if tensor.dim() else 1)
                self.are_learnt_from.append(torch.is_grad_enabled())
                self._is_size_wanted = False
                self._is_batch_open = True
                break
        is_time_first = getattr(module, "batch_first", None) is False
        if is_time_first and len(self._root_shape) > 1:
            self._time_comes_first(args)
        if self._is_batch_open:
            self._look_for_batch(module, args)
        self.owner = len(self._calls)
        self._stack.append(self.owner)
        self._calls.append(Call(module))
        self._numbers.append(torch._C._autograd._get_sequence_nr())

    def _look_for_batch(self, module: Any, args: Any) -> None:
        """Count one sample if the first layer whose input's layout is known sees no batch."""
        import torch

        dimensions = batched_dimensions(module)
        if not dimensions:
            return
        self._is_batch_open = False
        for tensor in tensors_in(args):
            if tensor.dim() < dimensions and tuple(tensor.shape) == self._root_shape:
                self.leading_sizes[-1] = 1
            break
        if self.leading_sizes[-1] == 1 and torch.is_grad_enabled():
            root = self._calls[self._stack[0]].module if self._stack else module
            self.singles[id(root)] = self.singles.get(id(root), 0) + 1

    def _time_comes_first(self, args: Any) -> None:
        """Count samples by the second dimension if this module's input has the root's layout."""
        for tensor in tensors_in(args):
            shape = tuple(tensor.shape)
            if len(shape) == 3 and shape[:2] == self._root_shape[:2]:
                self.leading_sizes[-1] = int(shape[1])
            return

    def _left(self, module: Any, args: Any, output: Any) -> None:
        # A pre-hook that raised leaves its module on the stack: leave until this one.
        while self._stack:
            call = self._calls[self._stack.pop()]
            if call.module is module:
                call.output_bytes = sum(size_bytes(tensor) for tensor in tensors_in(output))
                return

    def of_node(self, number: int) -> int:
        """Return the call whose forward created the autograd node with this number."""
        return bisect_right(self._numbers, number) - 1 if number < 2**63 else NOBODY

    def fused_kind(self, owner: int) -> str:
        """Return the class of a call's module if accelerators compute all of it by few kernels.

        PyTorch's recurrent layers (cuDNN's): elsewhere each of their time steps is many operators.
        Cells that a script calls step by step stay so everywhere.
        """
        if not 0 <= owner < len(self._calls):
            return ""
        kind = type(self._calls[owner].module)
        is_layer = kind.__module__ == "torch.nn.modules.rnn" and not kind.__name__.endswith("Cell")
        return kind.__name__ if is_layer else ""

    def layers(self, sizes: Mapping[int, int]) -> tuple[list[dict[str, Any]], list[int]]:
        """Return the leaves in forward order, and for every call the index of its leaf.

        ``sizes``: a parameter's identity -> its elements on all ranks, where that is more.
        A call that had children passes what it did before them to the first of them.
        """
        names: dict[int, str] = {}
        for root in self.roots:
            prefix = type(root).__name__ + "." if len(self.roots) > 1 else ""
            for name, module in root.named_modules():
                names.setdefault(id(module), prefix + (name or type(root).__name__))
        found: list[dict[str, Any]] = []
        index_of: dict[int, int] = {}
        leaf_of_call = [0] * len(self._calls)
        following = None
        for number in range(len(self._calls) - 1, -1, -1):
            if not self._calls[number].has_children:
                following = number
            leaf_of_call[number] = number if following is None else following
        for number, call in enumerate(self._calls):
            if leaf_of_call[number] != number:
                continue
            module = call.module
            if id(module) not in index_of:
                index_of[id(module)] = len(found)
                found.append(
                    {
                        "name": names.get(id(module), type(module).__name__),
                        "kind": type(module).__name__,
                        "parameters": sum(
                            sizes.get(id(p), p.numel()) for p in module.parameters()
                        ),
                        "output_bytes": 0,
                    }
                )
            found[index_of[id(module)]]["output_bytes"] += call.output_bytes
        return found, [index_of[id(self._calls[leaf].module)] for leaf in leaf_of_call]


def batched_dimensions(module: Any) -> int:
    """Return how many dimensions a batch has for a layer that takes single samples too; 0 unknown.

    Linear layers take (features,), convolutions over n dimensions (channels, *n) as one sample.
    """
    if hasattr(module, "in_features") and hasattr(module, "out_features"):
        return 2
    sizes = getattr(module, "kernel_size", None)
    if isinstance(sizes, tuple) and hasattr(module, "in_channels"):
        return len(sizes) + 2
    return 0
