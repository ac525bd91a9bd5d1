"""XGBoost's trees, read from its UBJSON file and asked by numpy alone.

Importing XGBoost (and scikit-learn with it) takes longer than everything else that one answer
needs; a few hundred small trees do not need either.

Sources: https://ubjson.org/type-reference/ (markers, big-endian numbers), XGBoost's "Introduction
to Model IO" (fields of the trees: a leaf has no children, and its value for a threshold).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Marker -> type of a number.
_NUMBERS: Final[dict[bytes, np.dtype[Any]]] = {
    b"i": np.dtype(">i1"), b"U": np.dtype(">u1"), b"I": np.dtype(">i2"), b"l": np.dtype(">i4"),
    b"L": np.dtype(">i8"), b"d": np.dtype(">f4"), b"D": np.dtype(">f8"),
}  # fmt: skip
_CONSTANTS: Final = {b"T": True, b"F": False, b"Z": None, b"N": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostedTrees:
    """All trees' nodes in one table; shape (nodes,), but for ``roots`` (trees,)."""

    # left, right: children; -1 in a leaf
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float32]  # smaller values go left; in a leaf its value
    is_left_unknown: NDArray[np.bool_]  # unknown values (nan) go left
    roots: NDArray[np.int64]
    base: float  # what the trees add to
    features: int

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Read a booster of numerical splits with one output.

        Raises ValueError if the bytes are cut, or are no such booster.
        """
        try:
            learner = _Reader(data).value()["learner"]
            model = learner["gradient_booster"]["model"]
            about = learner["learner_model_param"]
            trees = model["trees"]
            base = float(np.ravel(about["base_score"])[0].strip("[]"))
            features = int(about["num_feature"])
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(f"not a booster: {error}") from error
        sizes = [len(tree["left_children"]) for tree in trees]
        roots = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)

        def column(name: str, dtype: Any) -> NDArray[Any]:
            return np.concatenate([np.asarray(tree[name], dtype) for tree in trees])

        shift = np.repeat(roots, sizes)
        left, right = column("left_children", np.int64), column("right_children", np.int64)
        return cls(
            left=np.where(left < 0, -1, left + shift),
            right=np.where(right < 0, -1, right + shift),
            feature=column("split_indices", np.int64),
            threshold=column("split_conditions", np.float32),
            is_left_unknown=column("default_left", bool),
            roots=roots,
            base=base,
            features=features,
        )

    def answer(self, X: Floats) -> Floats:
        """Return the sum of the leaves that each row falls into, shape (n,)."""
        rows = np.arange(len(X))[:, None]
        known = np.asarray(X, np.float32)
        node = np.broadcast_to(self.roots, (len(X), self.roots.size))
        while (inner := self.left[node] >= 0).any():
            value = known[rows, self.feature[node]]
            is_left = np.where(
                np.isnan(value), self.is_left_unknown[node], value < self.threshold[node]
            )
            below = np.where(is_left, self.left[node], self.right[node])
            node = np.where(inner, below, node)
        leaves: Floats = self.threshold[node].sum(axis=1, dtype=float)
        return self.base + leaves


class _Reader:
    """Universal Binary JSON from its first byte on."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def value(self) -> Any:
        """Return the value that begins here."""
        return self._of(self._take(1))

    def _of(self, marker: bytes) -> Any:
        if marker in _NUMBERS:
            return self._numbers(marker, 1)[0].item()
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if marker == b"S":
            return self._take(int(self.value())).decode()
        if marker == b"[":
            return self._array()
        if marker == b"{":
            return self._object()
        raise ValueError(f"not a booster: unknown marker {marker!r}")

    def _object(self) -> dict[str, Any]:
        found = {}
        while (marker := self._take(1)) != b"}":
            name = self._take(int(self._of(marker))).decode()
            found[name] = self.value()
        return found

    def _array(self) -> Any:
        marker = self._take(1)
        if marker == b"$":
            kind = self._take(1)
            self._take(1)  # "#"
            return self._numbers(kind, int(self.value()))
        if marker == b"#":
            return [self.value() for _ in range(int(self.value()))]
        found = []
        while marker != b"]":
            found.append(self._of(marker))
            marker = self._take(1)
        return found

    def _numbers(self, kind: bytes, count: int) -> NDArray[Any]:
        dtype = _NUMBERS[kind]
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if not 0 <= count <= len(self._data) - self._at:
            raise ValueError("not a booster: it is cut short")
        taken, self._at = self._data[self._at : end], end
        return taken
