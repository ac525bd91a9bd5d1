"""The storages behind an operator's tensors: their identity, and the bytes that it moves.

A tensor is a view of a storage; traffic is counted by tensor, ownership and life by storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
