"""A run's steps in shared memory: written by the training process, readable after its death."""

from __future__ import annotations

import mmap
import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

_HEAD: Final = struct.Struct("=Qd")  # steps written; time.monotonic() at which the loop began
_STEP: Final = struct.Struct("=dd")  # seconds since the loop began; run delay since then


class Tape:
    """Time and run delay at the end of every step, in anonymous memory shared over a fork.

    ``capacity``: steps that fit; later ones are counted and not kept.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._memory = mmap.mmap(-1, _HEAD.size + capacity * _STEP.size)

    def begin(self, now_s: float) -> None:
        _HEAD.pack_into(self._memory, 0, 0, now_s)

    def write(self, elapsed_s: float, delay_s: float) -> None:
        count, began_s = _HEAD.unpack_from(self._memory, 0)
        if count < self.capacity:
            offset = _HEAD.size + count * _STEP.size
            _STEP.pack_into(self._memory, offset, elapsed_s, delay_s)
        _HEAD.pack_into(self._memory, 0, count + 1, began_s)

    @property
    def steps(self) -> int:
        return int(_HEAD.unpack_from(self._memory, 0)[0])

    @property
    def began_s(self) -> float | None:
        """When the loop began, on the clock ``time.monotonic()``; None before [s]."""
        began_s = float(_HEAD.unpack_from(self._memory, 0)[1])
        return began_s or None

    def read(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return elapsed and delay at the end of each kept step, both (steps,) [s]."""
        kept = min(self.steps, self.capacity)
        data = self._memory[_HEAD.size : _HEAD.size + kept * _STEP.size]
        pairs = np.frombuffer(data, dtype=np.float64).reshape(kept, 2)
        return pairs[:, 0], pairs[:, 1]

    def close(self) -> None:
        self._memory.close()
