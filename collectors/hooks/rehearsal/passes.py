"""Passes of an accumulated step: the first, the second and the last are made, the rest counted.

A script that accumulates gradients calls the same modules with inputs of the same shapes, pass
after pass. From the third on a module that is called from outside of any other returns what looks
like its second pass's results, and learns nothing: gradients lie there already. The trace counts
the second pass once more for each. The last pass is known from the step before, and made: what is
exchanged in it alone is seen.

Nothing is looked at before a step was seen to have two passes, so a script that accumulates
nothing pays nothing. A module is called as ever where it exchanges with others, keeps something
of a pass, or is hooked into: what it leaves in an attribute belongs to the pass that made it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

_MADE = 2  # passes that are made before others are left out
_PLAIN = (bool, int, float, str, type(None))


class Passes:
    """The passes of the step that runs, by what is called in them.

    ``exchanged``: the collectives of the step, which grow.
    """

    def __init__(self, exchanged: dict[str, Any]) -> None:
        self._exchanged = exchanged
        self._made: dict[Any, list[int]] = {}  # call -> passes in which it was made
        self._results: dict[Any, Callable[[], Any] | None] = {}
        self._number = self._before = 0
        self._is_inside = self._is_updating = self._is_left_out = self._is_watching = False

    def watch(self) -> None:
        """Begin to look at updates."""
        from torch.optim import optimizer

        optimizer.register_optimizer_step_pre_hook(lambda *_: self._updates(True))
        optimizer.register_optimizer_step_post_hook(lambda *_: self._updates(False))

    def _watch_modules(self) -> None:
        module: Any = nn.Module
        original = module.__call__

        def call(this: Any, *args: Any, **named: Any) -> Any:
            if self._is_inside or self._is_updating or not torch.is_grad_enabled():
                return original(this, *args, **named)
            return self._called(original, this, args, named)

        module.__call__ = call

    def _updates(self, is_running: bool) -> None:
        self._is_updating = is_running
        if self._number:
            self._before, self._number = self._number, 0
        self._made.clear()
        self._results.clear()

    def ended(self) -> bool:
        """Note the end of a backward pass; return whether it was left out."""
        was_left_out, self._is_left_out = self._is_left_out, False
        self._number += 1
        if self._number >= _MADE and not self._is_watching and not self._is_updating:
            self._is_watching = True
            self._watch_modules()
        return was_left_out

    def _called(self, original: Any, module: Any, args: Any, named: Any) -> Any:
        if torch._C._current_autograd_node() is not None or not module.training:
            return original(module, *args, **named)
        key = _key(module, args, named)
        made = self._made.setdefault(key, [])
        is_last = self._before and self._number == self._before - 1
        if len(made) >= _MADE and not is_last and made[-1] < self._number:
            again = self._results.get(key)
            if again is not None:
                self._is_left_out = True
                return again()
        before = sum(calls for calls, _ in self._exchanged.values())
        self._is_inside = True
        try:
            found = original(module, *args, **named)
        finally:
            self._is_inside = False
        if not made or made[-1] < self._number:
            made.append(self._number)
        if len(made) == _MADE:
            is_alone = before == sum(calls for calls, _ in self._exchanged.values())
            is_forgetful = is_alone and not any(map(_keeps, module.modules()))
            self._results[key] = _likeness(found) if is_forgetful else None
        return found


def _key(module: Any, args: Any, named: Any) -> Any:
    leaves, form = _pytree.tree_flatten((args, named))
    return id(module), str(form), getattr(module, "require_backward_grad_sync", None), tuple(
        (tuple(one.shape), one.dtype, one.requires_grad) if isinstance(one, torch.Tensor)
        else one if isinstance(one, _PLAIN) else id(one)
        for one in leaves
    )  # fmt: skip


def _keeps(module: Any) -> bool:
    """Whether a module keeps something of a pass, or others look into it."""
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        return True
    if getattr(module, "require_backward_grad_sync", False):
        return True  # it exchanges in its backward pass
    kept = [v for v in vars(module).values() if isinstance(v, (torch.Tensor, list, tuple, dict))]
    return any(
        isinstance(one, torch.Tensor) and one.grad_fn is not None
        for value in kept
        for one in (value.values() if isinstance(value, dict) else
                    [value] if isinstance(value, torch.Tensor) else value)
    )  # fmt: skip


class _Again(torch.autograd.Function):
    """A tensor that has a gradient, of which nobody learns."""

    @staticmethod
    def forward(ctx: Any, anchor: Any, tensor: Any) -> Any:
        """Return the tensor as a result."""
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Hand nothing on."""
        return None, None


_again: Any = _Again.apply


def _likeness(found: Any) -> Callable[[], Any] | None:
    """Return what makes results like these, without keeping them; None where none are tensors."""
    leaves: Any
    leaves, form = _pytree.tree_flatten(found)
    shapes = {
        at: (one.shape, one.dtype, one.device, one.requires_grad)
        for at, one in enumerate(leaves) if isinstance(one, torch.Tensor)
    }  # fmt: skip
    plain = [one if isinstance(one, _PLAIN) else None for one in leaves]
    if not shapes:
        return None

    def again() -> Any:
        made: list[Any] = list(plain)
        for at, (shape, dtype, device, learns) in shapes.items():
            made[at] = torch.empty(shape, dtype=dtype, device=device)
            if learns:
                made[at] = _again(torch.empty((), device=device, requires_grad=True), made[at])
        return _pytree.tree_unflatten(made, form)

    return again
