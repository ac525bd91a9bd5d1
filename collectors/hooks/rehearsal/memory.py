"""The device's memory over the step: live storages, and what the caching allocator makes of them.

Every storage of a fake tensor on the accelerator is taken in when an operator makes it and let go
when Python does, as a real one would be. Sizes are rounded as the caching allocator rounds blocks
(512 bytes); the segments that it takes from the device are replayed afterwards from the list of
events (c10/cuda/CUDACachingAllocator.cpp: ``kMinBlockSize``, ``kSmallSize``, ``kSmallBuffer``,
``kLargeBuffer``, ``kMinLargeAlloc``, ``kRoundLarge``).
"""

from __future__ import annotations

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


class _Segment:
    """A piece of device memory: its free ranges, in order."""

    __slots__ = ("free", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = [(0, size)]

    def take(self, at: int, size: int) -> None:
        begin, length = self.free[at]
        if length == size:
            del self.free[at]
        else:
            self.free[at] = begin + size, length - size

    def give(self, begin: int, size: int) -> None:
        ranges = sorted([*self.free, (begin, size)])
        merged = [ranges[0]]
        for start, length in ranges[1:]:
            last, before = merged[-1]
            if last + before == start:
                merged[-1] = last, before + length
            else:
                merged.append((start, length))
        self.free = merged


def replay(events: Iterable[tuple[int, int]], device_bytes: int | None = None) -> int | None:
    """Return the most bytes in segments: best fit, split where the rest is useful.

    Small blocks live in segments of 2 MiB, larger ones in 20 MiB, from 10 MiB on in their own.
    Where the device is full, segments that nothing lives in are given back first, as the allocator
    does; None where that is not enough.
    """
    most = 0
    pools: tuple[list[_Segment], list[_Segment]] = ([], [])
    held: dict[int, tuple[_Segment, int, int]] = {}
    reserved = 0
    for key, size in events:
        if size < 0:
            found = held.pop(key, None)
            if found is not None:
                found[0].give(found[1], found[2])
            continue
        if not size:
            continue
        is_small = size <= _SMALL
        pool = pools[0] if is_small else pools[1]
        best = _best_fit(pool, size, is_small)
        if best is None:
            segment = _Segment(_segment_bytes(size))
            if device_bytes is not None and reserved + segment.size > device_bytes:
                reserved -= _given_back(pools)
                if reserved + segment.size > device_bytes:
                    return None
            reserved += segment.size
            most = max(most, reserved)
            pool.append(segment)
            best = segment, 0
        segment, at = best
        begin, length = segment.free[at]
        is_split = length - size >= (_BLOCK if is_small else _SMALL + 1)
        taken = size if is_split else length
        segment.take(at, taken)
        held[key] = segment, begin, taken
    return most


def _given_back(pools: tuple[list[_Segment], list[_Segment]]) -> int:
    """Take out the segments that nothing lives in, and return their bytes."""
    freed = 0
    for pool in pools:
        kept = [one for one in pool if one.free != [(0, one.size)]]
        freed += sum(one.size for one in pool) - sum(one.size for one in kept)
        pool[:] = kept
    return freed


def _best_fit(pool: list[_Segment], size: int, is_small: bool) -> tuple[_Segment, int] | None:
    """Return the segment and the range of least size that holds a block."""
    best: tuple[int, _Segment, int] | None = None
    for segment in pool:
        for at, (_, length) in enumerate(segment.free):
            if length >= size and (best is None or length < best[0]):
                best = length, segment, at
    return None if best is None else (best[1], best[2])


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
