"""The device's memory over the step: live storages, and what the caching allocator makes of them.

Every storage of a fake tensor on the accelerator is taken in when an operator makes it and let go
when Python does, as a real one would be. Sizes are rounded as the caching allocator rounds blocks
(512 bytes); the segments that it takes from the device are replayed afterwards from the list of
events (c10/cuda/CUDACachingAllocator.cpp: ``kMinBlockSize``, ``kSmallSize``, ``kSmallBuffer``,
``kLargeBuffer``, ``kMinLargeAlloc``, ``kRoundLarge``).
"""

from __future__ import annotations

import bisect
import weakref

from ..trace.storages import parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

_BLOCK = 512
_SMALL = 1 << 20  # up to here a block is cut from a small segment
_SMALL_SEGMENT = 2 << 20
_LARGE_SEGMENT = 20 << 20
_OWN_SEGMENT = 10 << 20  # from here on a block has a segment of its own, in steps of 2 MiB
_STEP = 2 << 20
# Beyond this many events the segments are not followed any more: the peak of live bytes is.
_MOST_EVENTS = 400_000


def rounded(size: int) -> int:
    """Return the bytes of the block that holds ``size`` bytes."""
    return -(-size // _BLOCK) * _BLOCK


class Memory:
    """Live bytes on the device, by storage.

    Attributes
    ----------
    now, peak : int
        Bytes of live blocks, and the most since ``begin_step``.
    """

    def __init__(self) -> None:
        self.now = self.peak = 0
        self.events: list[tuple[int, int]] = []  # storage, bytes: negative where it is freed
        self.is_followed = True
        self._live: dict[int, tuple[Any, int]] = {}
        self._peak_at = 0

    def add(self, tensor: Any) -> None:
        """Take in a tensor's storage, if it is a new one."""
        for part in parts(tensor):
            self._add_storage(part.untyped_storage())

    def _add_storage(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._live:
            return
        size = rounded(storage.nbytes())

        def freed(_: Any) -> None:
            self.free(key)

        self._live[key] = weakref.ref(storage, freed), size
        self._changed(key, size)

    def free(self, key: int) -> None:
        """Let a storage go; one that is not known is ignored."""
        held = self._live.pop(key, None)
        if held is not None:
            self._changed(key, -held[1])

    def resized(self, key: int, size: int) -> None:
        """Note that a storage was given another size, as FSDP does to free its shards' whole."""
        held = self._live.get(key)
        if held is not None:
            self._live[key] = held[0], rounded(size)
            self._changed(key, -held[1])
            self._changed(key, rounded(size))

    def _changed(self, key: int, by: int) -> None:
        self.now += by
        if self.is_followed:
            self.events.append((key, by))
            self.is_followed = len(self.events) < _MOST_EVENTS
        if self.now > self.peak:
            self.peak = self.now
            self._peak_at = len(self.events)

    def begin_step(self) -> None:
        """Count the peak anew."""
        self.peak, self._peak_at = self.now, len(self.events)

    def held_by(self, kinds: Iterable[tuple[str, Iterable[Any]]]) -> dict[str, int]:
        """Return the bytes that lived at the peak, by the kind of what they hold.

        ``kinds``: pairs of a kind and its tensors as they are now; what is in none of them at the
        peak is ``"activations"``: kept for the backward pass, or passing.
        """
        of_storage: dict[int, str] = {}
        for kind, tensors in kinds:
            for tensor in tensors:
                for part in parts(tensor):
                    of_storage.setdefault(part.untyped_storage()._cdata, kind)
        live: dict[int, int] = {}
        for key, by in self.events[: self._peak_at]:
            live[key] = live.get(key, 0) + by
        found: dict[str, int] = {}
        for key, size in live.items():
            kind = of_storage.get(key, "activations")
            found[kind] = found.get(kind, 0) + size
        return found

    def reserved(self, device_bytes: int) -> int | None:
        """Return the bytes of the caching allocator's segments.

        None where they do not fit, or the events were too many to be followed.
        """
        return replay(self.events, device_bytes) if self.is_followed else None


class _Pool:
    """The free ranges of a kind of blocks: by size, as the allocator looks for them, and by place.

    A range is (bytes, segment, begin).
    """

    def __init__(self) -> None:
        self.free: list[tuple[int, int, int]] = []
        self._begins: dict[tuple[int, int], int] = {}  # (segment, begin): bytes
        self._ends: dict[tuple[int, int], int] = {}  # (segment, end): begin

    def best_fit(self, size: int) -> tuple[int, int, int] | None:
        """Take out the least range that holds a block."""
        at = bisect.bisect_left(self.free, (size, -1, -1))
        if at == len(self.free):
            return None
        found = self.free[at]
        self._remove(found)
        return found

    def give(self, length: int, segment: int, begin: int) -> None:
        """Put a range in, one with its free neighbours."""
        behind = self._begins.get((segment, begin + length))
        if behind is not None:
            self._remove((behind, segment, begin + length))
            length += behind
        before = self._ends.get((segment, begin))
        if before is not None:
            self._remove((begin - before, segment, before))
            begin, length = before, length + begin - before
        bisect.insort(self.free, (length, segment, begin))
        self._begins[segment, begin] = length
        self._ends[segment, begin + length] = begin

    def give_back(self, sizes: dict[int, int]) -> int:
        """Take out the segments that nothing lives in, and return their bytes."""
        idle = [one for one in self.free if sizes[one[1]] == one[0]]
        for one in idle:
            self._remove(one)
        return sum(one[0] for one in idle)

    def _remove(self, one: tuple[int, int, int]) -> None:
        length, segment, begin = one
        del self.free[bisect.bisect_left(self.free, one)]
        del self._begins[segment, begin]
        del self._ends[segment, begin + length]


def replay(events: Iterable[tuple[int, int]], device_bytes: int | None = None) -> int | None:
    """Return the most bytes in segments: best fit, split where the rest is useful.

    Small blocks live in segments of 2 MiB, larger ones in 20 MiB, from 10 MiB on in their own.
    Where the device is full, segments that nothing lives in are given back first, as the allocator
    does; None where that is not enough.
    """
    most = reserved = 0
    pools = _Pool(), _Pool()
    sizes: dict[int, int] = {}  # of segments, by number
    held: dict[int, tuple[_Pool, tuple[int, int, int]]] = {}
    for key, size in events:
        if size < 0:
            pool, block = held.pop(key, (None, (0, 0, 0)))
            if pool is not None:
                pool.give(*block)
            continue
        if not size:
            continue
        is_small = size <= _SMALL
        pool = pools[0] if is_small else pools[1]
        found = pool.best_fit(size)
        if found is None:
            found = _segment_bytes(size), len(sizes), 0
            if device_bytes is not None and reserved + found[0] > device_bytes:
                reserved -= sum(one.give_back(sizes) for one in pools)
                if reserved + found[0] > device_bytes:
                    return None
            sizes[found[1]] = found[0]
            reserved += found[0]
            most = max(most, reserved)
        length, segment, begin = found
        if length - size >= (_BLOCK if is_small else _SMALL + 1):
            pool.give(length - size, segment, begin + size)
            length = size
        held[key] = pool, (length, segment, begin)
    return most


def _segment_bytes(size: int) -> int:
    if size <= _SMALL:
        return _SMALL_SEGMENT
    if size < _OWN_SEGMENT:
        return _LARGE_SEGMENT
    return -(-size // _STEP) * _STEP


def followed_resize(memory: Memory, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``UntypedStorage.resize_`` with its changes told to ``memory``."""

    def resize_(self: Any, size: int) -> Any:
        key = self._cdata
        result = original(self, size)
        memory.resized(key, self.nbytes())
        return result

    return resize_
