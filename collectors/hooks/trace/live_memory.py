"""Live memory over a step: storages as they are made and let go, and the moments of its peak.

One list of changes, in time. An allocator's policy says what a storage takes (its own bytes, or a
block's) and how its end is learned: of real tensors by looking who is still alive, of fake ones
by a callback.

*Fixed* storages (parameters, buffers, gradients, optimizer state, and what is computed from these
alone) do not grow with the batch.
"""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .storages import WHOLE, key_of, parts


class LiveMemory:
    """Live bytes by storage, as the script makes and frees them.

    Attributes
    ----------
    now, peak, most : int
        Bytes alive, the most since ``begin_step``, and the most that the script is told of.
    stream : int
        The stream in which blocks are made now; 0 is the default one.
    events : list of (int, int, int)
        Storage, bytes (negative where it is freed), stream.
    begin_at : int
        How many of these were before the step.
    """

    # Beyond so many changes they are not followed any more: the peak is.
    _MOST_EVENTS = 400_000

    def __init__(self, rounded: Callable[[int], int]) -> None:
        self.now = self.peak = self.most = self.stream = 0
        self.events: list[tuple[int, int, int]] = []
        self.is_followed = True
        self._rounded = rounded
        # By storage: what tells its end, bytes, stream, owner, after how many changes it was made.
        self._live: dict[int, tuple[Any, int, int, int, int]] = {}
        self.begin_at = self._peak_at = 0
        self._updates: list[int] = []  # where updates begin and end, in turn

    def add(self, tensor: Any, owner: int = -1) -> None:
        """Take in a tensor's storage, if it is a new one; a view changes nothing."""
        for part in parts(tensor):
            storage = part.untyped_storage()
            key = int(storage._cdata)
            if key not in self._live:
                size = self._rounded(int(storage.nbytes()))
                reference, at = self._reference(storage, key), len(self.events)
                self._live[key] = reference, size, self.stream, owner, at
                self._changed(key, size, self.stream)

    def _reference(self, storage: Any, key: int) -> Any:
        """Return what lives no longer than the storage, and frees it."""

        def freed(_: Any) -> None:
            self.free(key)

        return weakref.ref(storage, freed)

    def free(self, key: int) -> None:
        """Let a storage go; one that is not known is ignored."""
        held = self._live.pop(key, None)
        if held is not None:
            self._changed(key, -held[1], held[2])

    def resized(self, key: int, size: int) -> None:
        """Note that a storage was given another size, as FSDP does to free its shards' whole."""
        held = self._live.get(key)
        if held is not None:
            rounded = self._rounded(size)
            self._live[key] = (held[0], rounded, self.stream, *held[3:])
            self._changed(key, -held[1], held[2])
            self._changed(key, rounded, self.stream)

    def _changed(self, key: int, by: int, stream: int) -> None:
        self.now += by
        if self.is_followed:
            self.events.append((key, by, stream))
            self.is_followed = len(self.events) < self._MOST_EVENTS
        if self.now > self.peak:
            self.peak = self.now
            self._peak_at = len(self.events)
        if self.now > self.most:
            self.most = self.now

    def begin_step(self) -> None:
        """Count the peak anew."""
        self.peak, self._peak_at = self.now, len(self.events)
        self.begin_at, self._updates = len(self.events), []

    def update_runs(self, is_running: bool) -> None:
        """Note that an optimizer begins to update parameters, or has updated them."""
        if is_running != bool(len(self._updates) % 2):
            self._updates.append(len(self.events))

    def frontiers(
        self, fixed: set[int], parts: Mapping[int, int] = WHOLE
    ) -> list[list[tuple[int, int, int]]]:
        """Return the moments that can be the step's peak for some batch, and those of its updates.

        ``parts``: storage -> ranks that hold the others.

        Returns
        -------
        list of list of (int, int, int)
            Bytes that are fixed, bytes that grow, and storages (0 where they are told of), of
            those moments at which fixed + r growing is the largest for some r >= 0; from the most
            fixed to the most growing.
        """
        now = [0, 0, 0]
        moments: tuple[list[tuple[int, int, int]], ...] = ([], [])
        for at, (key, by, count, is_moment) in enumerate(self._changes(fixed)):
            if at in self._updates:
                moments[1].append((now[0], now[1], now[2]))
            now[0 if key in fixed else 1] += by * parts.get(key, 1)
            now[2] += count
            if is_moment:
                is_update = bisect.bisect_right(self._updates, at) % 2
                moments[is_update].append((now[0], now[1], now[2]))
        return [upper_hull(found) for found in moments]

    def _changes(self, fixed: set[int]) -> Iterator[tuple[int, int, int, bool]]:
        """Yield storage, bytes, storages more, and whether it is then a moment of the step."""
        for at, (key, by, _) in enumerate([*self.events, (0, 0, 0)]):
            yield key, by, 0, at >= self.begin_at and by >= 0

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


class LookedAtMemory(LiveMemory):
    """Live bytes of real tensors, of which nobody is told that they are freed.

    Life is counted in *looks*: finding out who has died takes a look at everything alive, so
    there is one after every operator while that is little, and after every few when it is much.
    """

    # Looks are spaced so that an operator pays for at most this many storages, about 15 us.
    _PER_OPERATOR = 100

    def __init__(self) -> None:
        super().__init__(int)
        self.fixed: set[int] = set()
        # What is freed keeps its reference, which keeps the address from being used again within
        # the step, so that a key names one storage.
        self._dead: list[Any] = []
        self._looks: list[int] = []  # after how many changes
        self._operators = 0

    _MOST_EVENTS = 1 << 62

    def add_model(self, tensors: Iterable[Any]) -> None:
        """Take in parameters, buffers, gradients and optimizer state."""
        for tensor in tensors:
            self.fixed.add(key_of(tensor))
            self.add(tensor)

    def _reference(self, storage: Any, key: int) -> Any:
        from torch.multiprocessing.reductions import StorageWeakRef

        return StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    def operator_ended(self) -> None:
        """Look who is alive, if it is time."""
        self._operators += 1
        if self._operators * self._PER_OPERATOR >= len(self._live):
            self._operators = 0
            self._look()

    def _look(self) -> None:
        for key, (reference, *_) in list(self._live.items()):
            if reference.expired():
                self._dead.append(reference)
                self.free(key)
        self._looks.append(len(self.events))

    def living(self) -> list[tuple[int, int, int]]:
        """Return (key, bytes, owner) of the storages alive now."""
        self._look()
        return [(key, size, owner) for key, (_, size, _, owner, _) in self._live.items()]

    def _changes(self, fixed: set[int]) -> Iterator[tuple[int, int, int, bool]]:
        """Yield the changes, a moment at every look.

        What is left at the step's end (a loop's variables) lived in it from the step before, up to
        the moment at which it was made anew.
        """
        former: dict[int, list[tuple[int, int]]] = {}  # by the look after which they end
        for key, (_, size, _, _, at) in self._live.items():
            born = bisect.bisect_right(self._looks, at)
            if key not in fixed and born:
                former.setdefault(born, []).append((key, size))
                yield key, size, 1, False
        seen: set[int] = set()
        done = 0
        for look, until in enumerate(self._looks):
            for key, by, _ in self.events[done:until]:
                yield key, by, -1 if key in seen else 1, False
                seen.add(key)
            done = until
            yield 0, 0, 0, True
            for key, size in former.get(look, ()):
                yield key, -size, -1, False


def upper_hull(points: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the points whose first two sizes are outermost in some positive direction."""
    hull: list[tuple[int, int, int]] = []
    for point in sorted(set(points), reverse=True):
        if hull and point[1] <= hull[-1][1]:
            continue  # neither more fixed nor more growing than one before
        while len(hull) > 1 and _is_inside(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _is_inside(a: tuple[int, int, int], b: tuple[int, int, int], c: tuple[int, int, int]) -> bool:
    """Whether ``b`` lies on or below the line from ``a`` to ``c``."""
    return (b[1] - a[1]) * (a[0] - c[0]) <= (c[1] - a[1]) * (a[0] - b[0])
