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


class _Seen:
    """One optimizer: its number in the order of making, its steps, and the tick of the last."""

    __slots__ = ("count", "last", "number", "reference")

    def __init__(self, optimizer: Any, number: int, tick: int) -> None:
        self.reference = weakref.ref(optimizer)  # a model may be dropped
        self.number = number
        self.count = 0
        self.last = tick


class Optimizers:
    """The optimizers seen, by identity, with their counts."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}  # by id
        self._only: Any = None  # a reference, while there has been one
        self._made = 0
        self._ticks = 0

    def made(self, optimizer: Any) -> _Seen:
        """Take in a new optimizer."""
        seen = self._seen.get(id(optimizer))
        if seen is None or seen.reference() is not optimizer:
            # Some scripts make one for every task: the dead are let go of.
            self._seen = {
                key: other for key, other in self._seen.items() if other.reference() is not None
            }
            seen = self._seen[id(optimizer)] = _Seen(optimizer, self._made, self._ticks)
            self._made += 1
            self._only = seen if self._made == 1 else None
        return seen

    @property
    def is_waited_for(self) -> bool:
        """Whether there is an optimizer, but none has stepped yet."""
        return self._ticks == 0 and bool(self.alive())

    def is_only(self, optimizer: Any) -> bool:
        """Count a step of the only optimizer there is, nearly always; False if it is not."""
        only = self._only
        if only is None or only.reference() is not optimizer:
            return False
        self._ticks += 1
        only.count += 1
        return True

    def stepped(self, optimizer: Any) -> tuple[int, bool]:
        """Count a step; return the optimizer's number and whether it completes a training step.

        The optimizer that steps least often does; among equals the one that was made last.
        """
        mine = self.made(optimizer)
        self._ticks += 1
        mine.count += 1
        mine.last = self._ticks
        number = min(mine.number, 0xFFFF)  # as wide as its field
        for other in list(self._seen.values()):
            later = (-other.count, other.number) > (-mine.count, mine.number)
            if other is not mine and later and self._is_active(other):
                return number, False
        return number, True

    def _is_active(self, seen: _Seen) -> bool:
        limit = _STALE if seen.count else _UNUSED
        return self._ticks - seen.last <= limit and seen.reference() is not None

    def alive(self) -> list[Any]:
        """Return the optimizers that still exist."""
        references = [seen.reference() for seen in list(self._seen.values())]
        return [optimizer for optimizer in references if optimizer is not None]

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
                "steps": self._seen[id(optimizer)].count,
            }
            for optimizer in self.alive()
        ]
