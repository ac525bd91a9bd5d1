"""The caching allocator of a rehearsed device: blocks of live storages, cut from segments.

Every storage of a fake tensor on the accelerator is taken in when an operator makes it and let go
when Python does, as a real one would be (``trace.live_memory``). Sizes are rounded as the caching
allocator rounds blocks (512 bytes); the segments that it takes from the device are replayed
afterwards from the list of events (c10/cuda/CUDACachingAllocator.cpp: ``kMinBlockSize``,
``kSmallSize``, ``kSmallBuffer``, ``kLargeBuffer``, ``kMinLargeAlloc``, ``kRoundLarge``). Blocks
belong to the stream in which they were made, and none takes another's: what FSDP gathers and
reduces lies apart.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterable
from typing import Any

from ..trace.live_memory import LiveMemory

_BLOCK = 512
_SMALL = 1 << 20  # up to here a block is cut from a small segment
_SMALL_SEGMENT = 2 << 20
_LARGE_SEGMENT = 20 << 20
_OWN_SEGMENT = 10 << 20  # from here on a block has a segment of its own, in steps of 2 MiB
_STEP = 2 << 20
# Batches at which segments are replayed, over the script's own.
_TIMES = (0.5, 1.0, 2.0, 4.0)
_OPTIONS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def rounded(size: int) -> int:
    """Return the bytes of the block that holds ``size`` bytes."""
    return -(-size // _BLOCK) * _BLOCK


def losses(memory: LiveMemory, fixed: set[int]) -> list[tuple[float, int]]:
    """Return what segments are more than the step's peak, were the batch another.

    Blocks that are not ``fixed`` are made so many times as large: (times, bytes).
    """
    return [(times, _lost(memory, fixed, times)) for times in _TIMES]


def _lost(memory: LiveMemory, fixed: set[int], times: float) -> int:
    sizes = [by if key in fixed else int(by * times) for key, by, _ in memory.events]
    sizes = [rounded(by) if by > 0 else -rounded(-by) for by in sizes]
    scaled = [(key, by, at) for (key, _, at), by in zip(memory.events, sizes)]
    now, peak = sum(sizes[: memory.begin_at]), 0
    for by in sizes[memory.begin_at :]:
        now += by
        peak = max(peak, now)
    held = replay(scaled, is_expandable=_is_expandable())
    return max(0, (held or 0) - peak)


def reserved(memory: LiveMemory, device_bytes: int) -> int | None:
    """Return the bytes of the caching allocator's segments.

    None where they do not fit, or the changes were too many to be followed.
    """
    if not memory.is_followed:
        return None
    return replay(memory.events, device_bytes, is_expandable=_is_expandable())


def _is_expandable() -> bool:
    """Whether the script lets the allocator's segments grow."""
    asked = "".join(os.environ.get(name, "") for name in _OPTIONS)
    return "expandable_segments:true" in asked.replace(" ", "").lower()


class _Pool:
    """The free ranges of a kind of blocks: by size, as the allocator looks for them, and by place.

    A range is (bytes, segment, begin).
    """

    def __init__(self) -> None:
        self.free: list[tuple[int, int, int]] = []
        self._begins: dict[tuple[int, int], int] = {}  # (segment, begin): bytes
        self._ends: dict[tuple[int, int], int] = {}  # (segment, end): begin
        self.segment: int | None = None  # the one that is expandable

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

    def take_end(self, segment: int, end: int) -> int:
        """Take out the range at a segment's end, if it is free; return where it begins."""
        begin = self._ends.get((segment, end))
        if begin is None:
            return end
        self._remove((end - begin, segment, begin))
        return begin

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


def replay(
    events: Iterable[tuple[int, int, int]], device_bytes: int | None = None, *,
    is_expandable: bool = False,
) -> int | None:  # fmt: skip
    """Return the most bytes in segments: best fit, split where the rest is useful.

    Small blocks live in segments of 2 MiB, larger ones in 20 MiB, from 10 MiB on in their own; of
    expandable segments a stream has one of each, which grow by 2 and 20 MiB. Where the device is
    full, segments that nothing lives in are given back first, as the allocator does; None where
    that is not enough.
    """
    most = reserved = 0
    pools: dict[tuple[int, bool], _Pool] = {}
    sizes: dict[int, int] = {}  # of segments, by number
    held: dict[int, tuple[_Pool, tuple[int, int, int]]] = {}
    for key, size, stream in events:
        if size < 0:
            pool, block = held.pop(key, (None, (0, 0, 0)))
            if pool is not None:
                pool.give(*block)
            continue
        if not size:
            continue
        is_small = size <= _SMALL
        pool = pools.setdefault((stream, is_small), _Pool())
        found = pool.best_fit(size)
        if found is None:
            found, more = _grown(pool, size, sizes) if is_expandable else _new(size, sizes)
            if device_bytes is not None and reserved + more > device_bytes:
                reserved -= sum(one.give_back(sizes) for one in pools.values())
                if reserved + more > device_bytes:
                    return None
            reserved += more
            most = max(most, reserved)
        length, segment, begin = found
        if length - size >= (_BLOCK if is_small or is_expandable else _SMALL + 1):
            pool.give(length - size, segment, begin + size)
            length = size
        held[key] = pool, (length, segment, begin)
    return most


def _new(size: int, sizes: dict[int, int]) -> tuple[tuple[int, int, int], int]:
    """Return a new segment as a free range, and its bytes."""
    found = _segment_bytes(size), len(sizes), 0
    sizes[found[1]] = found[0]
    return found, found[0]


def _grown(pool: _Pool, size: int, sizes: dict[int, int]) -> tuple[tuple[int, int, int], int]:
    """Return the range at the end of a pool's one segment, grown to hold a block, and by what."""
    if pool.segment is None:
        pool.segment = len(sizes)
        sizes[pool.segment] = 0
    end = sizes[pool.segment]
    begin = pool.take_end(pool.segment, end)
    step = _SMALL_SEGMENT if size <= _SMALL else _LARGE_SEGMENT
    more = -(-(size - (end - begin)) // step) * step
    sizes[pool.segment] = end + more
    return (end + more - begin, pool.segment, begin), more


def _segment_bytes(size: int) -> int:
    if size <= _SMALL:
        return _SMALL_SEGMENT
    if size < _OWN_SEGMENT:
        return _LARGE_SEGMENT
    return -(-size // _STEP) * _STEP


def followed_resize(memory: LiveMemory, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``UntypedStorage.resize_`` with its changes told to ``memory``."""

    def resize_(self: Any, size: int) -> Any:
        key = self._cdata
        result = original(self, size)
        memory.resized(key, self.nbytes())
        return result

    return resize_
