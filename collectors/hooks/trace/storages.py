"""Memory that operators touch: what belongs to the model, what to the batch, what is alive.

A tensor is a view of a storage; traffic is counted by tensor, ownership and life by storage.
*Fixed* storages (parameters, buffers, gradients, optimizer state, and what is computed from these
alone) do not grow with the batch.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any


# Of no storage do other ranks hold other parts.
WHOLE: Mapping[int, int] = {}


def tensors_in(value: Any) -> Iterator[Any]:
    """Yield the tensors in an operator's arguments or results, however nested."""
    if value is None or isinstance(value, (int, float, str, bool)):
        return
    if hasattr(value, "untyped_storage"):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def parts(tensor: Any) -> list[Any]:
    """Return the strided tensors that hold ``tensor``: itself, or a sparse one's pieces."""
    layout = str(tensor.layout)
    if layout == "torch.sparse_coo":
        return [tensor._indices(), tensor._values()]
    if layout in ("torch.sparse_csr", "torch.sparse_bsr"):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if layout in ("torch.sparse_csc", "torch.sparse_bsc"):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor] if layout == "torch.strided" else []


def size_bytes(tensor: Any) -> int:
    """Return the bytes that reading ``tensor`` once moves; a broadcast dimension is free."""
    total = 0
    for part in parts(tensor):
        elements = 1
        for size, stride in zip(part.shape, part.stride()):
            elements *= int(size) if stride else 1
        total += elements * int(part.element_size())
    return total


def key_of(tensor: Any) -> int:
    """Return the identity of the storage behind a tensor; 0 where it has none."""
    try:
        pieces = parts(tensor)
        return int(pieces[-1].untyped_storage()._cdata) if pieces else 0
    except Exception:  # tensors without storage: fake, functional, wrapper subclasses
        return 0


class Storages:
    """The storages of one deep step: which belong to the model, and when each lived.

    Life is counted in *looks*: finding out who has died takes a look at everything alive, so
    there is one after every operator while that is little, and after every few when it is much.
    """

    # Looks are spaced so that an operator pays for at most this many storages, about 15 us.
    _PER_OPERATOR = 100

    def __init__(self) -> None:
        self.fixed: set[int] = set()
        # Key -> (weak reference, bytes, owner, first look). The reference keeps the address from
        # being used again within the step, so that a key names one storage; hence the dead are
        # kept too: (key, bytes, first look, look that found it dead, reference).
        self._living: dict[int, tuple[Any, int, int, int]] = {}
        self._dead: list[tuple[int, int, int, int, Any]] = []
        self._looks = 0
        self._operators = 0

    def add_model(self, tensors: Iterable[Any]) -> None:
        """Take in parameters, buffers, gradients and optimizer state."""
        for tensor in tensors:
            self.fixed.add(key_of(tensor))
            self.made(tensor, -1)

    def made(self, tensor: Any, owner: int) -> None:
        """Take in an operator's result; a view of a known storage changes nothing."""
        from torch.multiprocessing.reductions import StorageWeakRef

        for part in parts(tensor):
            storage = part.untyped_storage()
            key = int(storage._cdata)
            if key not in self._living:
                reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._living[key] = reference, int(storage.nbytes()), owner, self._looks

    def operator_ended(self) -> None:
        """Look who is alive, if it is time."""
        self._operators += 1
        if self._operators * self._PER_OPERATOR >= len(self._living):
            self._operators = 0
            self._look()

    def _look(self) -> None:
        for key, (reference, size, _, born) in list(self._living.items()):
            if reference.expired():
                self._dead.append((key, size, born, self._looks, reference))
                del self._living[key]
        self._looks += 1

    def living(self) -> list[tuple[int, int, int]]:
        """Return (key, bytes, owner) of the storages alive now."""
        self._look()
        return [(key, size, owner) for key, (_, size, owner, _) in self._living.items()]

    def frontier(
        self, fixed: set[int], parts: Mapping[int, int] = WHOLE
    ) -> list[tuple[int, int, int]]:
        """Return the moments of the step that can be its peak for some size of the batch.

        What is left at the step's end (a loop's variables) lived in it from the step before, up to
        the moment at which it was made anew. ``parts``: storage -> ranks that hold the others.

        Returns
        -------
        list of (int, int, int)
            Bytes that are fixed, bytes that grow, and storages, of those moments at which
            fixed + r growing is the largest for some r >= 0; from the most fixed to the most
            growing.
        """
        changes = [[0, 0, 0] for _ in range(self._looks + 1)]
        lives = [(key, size, born, died) for key, size, born, died, _ in self._dead]
        lives += [(k, size, born, self._looks) for k, (_, size, _, born) in self._living.items()]
        for key, size, born, died in lives:
            size *= parts.get(key, 1)
            kind = 0 if key in fixed else 1
            changes[min(born, self._looks)][kind] += size
            changes[min(born, self._looks)][2] += 1
            changes[died][kind] -= size
            changes[died][2] -= 1
        for key, (_, size, _, born) in self._living.items():
            if key not in fixed and born:
                size *= parts.get(key, 1)
                changes[0][1] += size
                changes[0][2] += 1
                changes[min(born + 1, self._looks)][1] -= size
                changes[min(born + 1, self._looks)][2] -= 1
        moments = []
        now = [0, 0, 0]
        for change in changes:
            now = [before + added for before, added in zip(now, change)]
            moments.append((now[0], now[1], now[2]))
        return upper_hull(moments)


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
