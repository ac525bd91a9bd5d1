"""Which optimizers step, and which of them completes a training step."""

from __future__ import annotations

import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Ticks of the others after which an optimizer counts as left behind (a pretraining phase's).
# Wasserstein GANs train the critic 100 times for a generator step at first: 128 is above.
_STALE = 128
# Ticks for which an optimizer that was made but has not stepped yet is waited for.
_UNUSED = 16


class Optimizers:
    """The optimizers seen, by identity, with their counts."""

    def __init__(self) -> None:
        self._all: list[Any] = []  # weak references: a model may be dropped
        self._number: dict[int, int] = {}
        self._count: list[int] = []
        self._last: list[int] = []
        self._ticks = 0

    def made(self, optimizer: Any) -> int:
        """Take in a new optimizer and return its number."""
        number = self._number.get(id(optimizer))
        if number is None or self._all[number]() is not optimizer:
            number = self._number[id(optimizer)] = len(self._all)
            self._all.append(weakref.ref(optimizer))
            self._count.append(0)
            self._last.append(self._ticks)
        return number

    @property
    def is_waited_for(self) -> bool:
        """Whether there is an optimizer, but none has stepped yet."""
        return self._ticks == 0 and bool(self.alive())

    def is_only(self, optimizer: Any) -> bool:
        """Count a step of the only optimizer there is, nearly always; False if it is not."""
        if len(self._all) != 1 or self._all[0]() is not optimizer:
            return False
        self._ticks += 1
        self._count[0] += 1
        return True

    def stepped(self, optimizer: Any) -> tuple[int, bool]:
        """Count a step; return the optimizer's number and whether it completes a training step.

        The optimizer that steps least often does; among equals the one that was made last.
        """
        number = self.made(optimizer)
        self._ticks += 1
        self._count[number] += 1
        self._last[number] = self._ticks
        if len(self._all) == 1:
            return number, True
        mine = self._count[number]
        for other, count in enumerate(self._count):
            is_later = count < mine or (count == mine and other > number)
            if other != number and is_later and self._is_active(other):
                return number, False
        return number, True

    def _is_active(self, number: int) -> bool:
        silent = self._ticks - self._last[number]
        limit = _STALE if self._count[number] else _UNUSED
        return silent <= limit and self._all[number]() is not None

    def alive(self) -> list[Any]:
        """Return the optimizers that still exist."""
        return [one for one in (reference() for reference in self._all) if one is not None]

    def parameters(self) -> list[Any]:
        """Return every parameter in any optimizer, once."""
        seen = {}
        for optimizer in self.alive():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    seen[id(parameter)] = parameter
        return list(seen.values())

    def states(self) -> list[Any]:
        """Return the tensors that the optimizers keep beside the parameters."""
        tensors = []
        for optimizer in self.alive():
            for state in optimizer.state.values():
                if isinstance(state, dict):
                    tensors += [value for value in state.values() if hasattr(value, "numel")]
        return tensors

    def facts(self) -> list[dict[str, Any]]:
        """Return what to record of each optimizer."""
        return [
            {
                "kind": type(optimizer).__name__,
                "parameters": sum(
                    parameter.numel()
                    for group in optimizer.param_groups
                    for parameter in group["params"]
                ),
                "steps": self._count[self._number[id(optimizer)]],
            }
            for optimizer in self.alive()
        ]
