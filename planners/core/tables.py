"""Records of arrays as tables: some rows of one, one put into another, one behind another.

A record is a frozen dataclass whose fields are arrays with one entry a row, tuples or mappings of
such arrays, or further records; everything else (names, scalars, None) belongs to all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Record = TypeVar("Record")


def select(record: Record, rows: NDArray[Any] | tuple[slice | NDArray[Any] | None, ...]) -> Record:
    """Return some rows of a record.

    Parameters
    ----------
    record : dataclass of arrays of shape (n, ...)
    rows : integer or boolean array
        Places among the n, in the order wanted; or any other index of an array.
    """
    some: Record = _mapped(lambda parts: parts[0][rows], [record])
    return some


def put(record: Record, rows: NDArray[Any], part: Record) -> Record:
    """Return a record with ``part`` in place of the rows at ``rows``.

    Raises
    ------
    ValueError
        If ``part`` has not one row for each of ``rows``.
    """

    def placed(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        whole = parts[0].copy()
        whole[rows] = parts[1]
        return whole

    changed: Record = _mapped(placed, [record, part])
    return changed


def concatenate(records: Sequence[Record]) -> Record:
    """Return the rows of all records, one record behind the other.

    Raises
    ------
    ValueError
        If there is no record.
    """
    if not records:
        raise ValueError("nothing to concatenate")
    whole: Record = _mapped(lambda parts: np.concatenate(list(parts)), records)
    return whole


def _mapped(
    function: Callable[[Sequence[NDArray[Any]]], NDArray[Any]], records: Sequence[Any]
) -> Any:
    first = records[0]
    changes = {
        field.name: _value(function, [getattr(record, field.name) for record in records])
        for field in fields(first)
    }
    return replace(first, **changes)


def _value(
    function: Callable[[Sequence[NDArray[Any]]], NDArray[Any]], values: Sequence[Any]
) -> Any:
    first = values[0]
    if isinstance(first, np.ndarray) and first.ndim:
        return function(values)
    if isinstance(first, tuple) and all(isinstance(part, np.ndarray) for part in first):
        return tuple(function(parts) for parts in zip(*values, strict=True))
    if isinstance(first, Mapping):
        return {key: _value(function, [value[key] for value in values]) for key in first}
    if is_dataclass(first) and not isinstance(first, type):
        return _mapped(function, values)
    return first
