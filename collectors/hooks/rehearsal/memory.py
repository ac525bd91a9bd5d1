"""The device's memory over the step: live storages, and what the caching allocator makes of them.

Every storage of a fake tensor on the accelerator is taken in when an operator makes it and let go
when Python does, as a real one would be. Sizes are rounded as the caching allocator rounds blocks
(512 bytes); the segments that it takes from the device are replayed afterwards from the list of
events (c10/cuda/CUDACachingAllocator.cpp: ``kMinBlockSize``, ``kSmallSize``, ``kSmallBuffer``,
``kLargeBuffer``, ``kMinLargeAlloc``, ``kRoundLarge``). Blocks belong to the stream in which they
were made, and none takes another's: what FSDP gathers and reduces lies apart.
"""

from __future__ import annotations

import bisect
import os
import weakref

from ..trace.storages import parts, upper_hull

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

_BLOCK = 512
_SMALL = 1 << 20  # up to here a block is cut from a small segment
_SMALL_SEGMENT = 2 << 20
_LARGE_SEGMENT = 20 << 20
_OWN_SEGMENT = 10 << 20  # from here on a block has a segment of its own, in steps of 2 MiB
_STEP = 2 << 20
# Beyond this many events the segments are not followed any more: the peak of live bytes is.
_MOST_EVENTS = 400_000
# Batches at which segments are replayed, over the script's own.
_TIMES = (0.5, 1.0, 2.0, 4.0)
_OPTIONS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def rounded(size: int) -> int:
    """Return the bytes of the block that holds ``size`` bytes."""
    return -(-size // _BLOCK) * _BLOCK


class Memory:
    """Live bytes on the device, by storage.

    Attributes
    ----------
    now, peak : int
        Bytes of live blocks, and the most since ``begin_step``.
    stream : int
        The stream in which blocks are made now; 0 is the default one.
    """

    def __init__(self) -> None:
        self.now = self.peak = self.stream = 0
        # storage, bytes: negative where it is freed, stream
        self.events: list[tuple[int, int, int]] = []
        self.is_followed = True
        self._begin_at = 0
        self._updates: list[int] = []  # where updates begin and end, in turn
        self._live: dict[int, tuple[Any, int, int]] = {}
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

        self._live[key] = weakref.ref(storage, freed), size, self.stream
        self._changed(key, size, self.stream)

    def free(self, key: int) -> None:
        """Let a storage go; one that is not known is ignored."""
        held = self._live.pop(key, None)
        if held is not None:
            self._changed(key, -held[1], held[2])

    def resized(self, key: int, size: int) -> None:
        """Note that a storage was given another size, as FSDP does to free its shards' whole."""
        held = self._live.get(key)
        if held is not None:
            self._live[key] = held[0], rounded(size), self.stream
            self._changed(key, -held[1], held[2])
            self._changed(key, rounded(size), self.stream)

    def _changed(self, key: int, by: int, stream: int) -> None:
        self.now += by
        if self.is_followed:
            self.events.append((key, by, stream))
            self.is_followed = len(self.events) < _MOST_EVENTS
        if self.now > self.peak:
            self.peak = self.now
            self._peak_at = len(self.events)

    def begin_step(self) -> None:
        """Count the peak anew."""
        self.peak, self._peak_at = self.now, len(self.events)
        self._begin_at, self._updates = len(self.events), []

    def update_runs(self, is_running: bool) -> None:
        """Note that an optimizer begins to update parameters, or has updated them."""
        if is_running != bool(len(self._updates) % 2):
            self._updates.append(len(self.events))

    def frontiers(
        self, fixed: set[int], parts: Mapping[int, int]
    ) -> list[list[tuple[int, int, int]]]:
        """Return the moments that can be the step's peak for some batch, and those of its updates.

        As ``Storages.frontier`` has them, of every block and at every moment.

        ``parts``: storage -> ranks that hold the others.
        """
        now = [0, 0]
        moments: tuple[list[tuple[int, int, int]], ...] = ([], [])
        for at, (key, by, _) in enumerate([*self.events, (0, 0, 0)]):
            if at in self._updates:
                moments[1].append((now[0], now[1], 0))
            now[0 if key in fixed else 1] += by * parts.get(key, 1)
            if at >= self._begin_at and by >= 0:
                is_update = bisect.bisect_right(self._updates, at) % 2
                moments[is_update].append((now[0], now[1], 0))
        return [upper_hull(found) for found in moments]

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
        for key, by, _ in self.events[: self._peak_at]:
            live[key] = live.get(key, 0) + by
        found: dict[str, int] = {}
        for key, size in live.items():
            kind = of_storage.get(key, "activations")
            found[kind] = found.get(kind, 0) + size
        return found

    def losses(self, fixed: set[int]) -> list[tuple[float, int]]:
        """Return what segments are more than the step's peak, were the batch another.

        Blocks that are not ``fixed`` are made so many times as large: (times, bytes).
        """
        return [(times, self._lost(fixed, times)) for times in _TIMES]

    def _lost(self, fixed: set[int], times: float) -> int:
        sizes = [by if key in fixed else int(by * times) for key, by, _ in self.events]
        sizes = [rounded(by) if by > 0 else -rounded(-by) for by in sizes]
        scaled = [(key, by, at) for (key, _, at), by in zip(self.events, sizes)]
        now, peak = sum(sizes[: self._begin_at]), 0
        for by in sizes[self._begin_at :]:
            now += by
            peak = max(peak, now)
        held = replay(scaled, is_expandable=_is_expandable())
        return max(0, (held or 0) - peak)

    def reserved(self, device_bytes: int) -> int | None:
        """Return the bytes of the caching allocator's segments.

        None where they do not fit, or the events were too many to be followed.
        """
        if not self.is_followed:
            return None
        return replay(self.events, device_bytes, is_expandable=_is_expandable())


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


def followed_resize(memory: Memory, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``UntypedStorage.resize_`` with its changes told to ``memory``."""

    def resize_(self: Any, size: int) -> Any:
        key = self._cdata
        result = original(self, size)
        memory.resized(key, self.nbytes())
        return result

    return resize_
