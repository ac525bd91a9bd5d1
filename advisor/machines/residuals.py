"""The process of the device model's errors, as ``advisor train device-model`` keeps it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor import data
from advisor.collectors import bounded
from advisor.errors import ModelError
from advisor.planners.step.residual import (
    AMPLITUDES,
    ErrorPoints,
    ResidualParameters,
    SeenErrors,
)

FILE: Final = "residual.json"
SCHEMA_VERSION: Final = 1
_NUMBERS: Final = ("job_length", "device_length", "other_precision", "spread")
_DIGITS: Final = 4  # of logarithms: 0.01 %


def residual_parameters(path: Path | None = None) -> ResidualParameters:
    """Return the packaged process, or that of another file.

    Raises ModelError if the file is missing, not JSON, of another version, or lacks a part.
    """
    file = path or data.root("trained_models") / "device_model" / FILE
    try:
        return from_record(bounded.read_json(file))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"the device model's errors {file.name} cannot be read: {error}",
            hint="fit them again with: advisor train device-model",
        ) from error


def to_record(parameters: ResidualParameters) -> dict[str, Any]:
    """Return the JSON form, numbers rounded."""
    seen = parameters.seen
    columns: dict[str, Any] = {
        f.name: _rounded(getattr(seen.points, f.name)) for f in fields(ErrorPoints)
    }
    columns |= {"of_peaks": _rounded(seen.of_peaks), "of_rates": _rounded(seen.of_rates)}
    return {
        "schema_version": SCHEMA_VERSION,
        "amplitudes": {name: round(parameters.amplitudes[name], _DIGITS) for name in AMPLITUDES},
        **{name: round(getattr(parameters, name), _DIGITS) for name in _NUMBERS},
        "rate_scales": [round(one, _DIGITS) for one in parameters.rate_scales],
        "seen": columns,
    }


def _rounded(column: np.ndarray) -> list[Any]:
    kept = column if column.dtype.kind == "U" else np.round(column, _DIGITS)
    values: list[Any] = kept.tolist()
    return values


def from_record(record: dict[str, Any]) -> ResidualParameters:
    """Return the process of a JSON form.

    Raises KeyError, TypeError, ValueError if it is of another version, lacks a part, or its
    columns differ in length.
    """
    if record.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"schema version {record.get('schema_version')}")
    seen = record["seen"]
    size = len(seen["device"])
    shapes = {"rates": (size, 4), "job": (size, 6)}
    points: dict[str, Any] = {}
    for f in fields(ErrorPoints):
        kind = float if f.name in shapes else np.str_
        points[f.name] = np.array(seen[f.name], dtype=kind).reshape(shapes.get(f.name, (size,)))
    errors = {name: np.array(seen[name], float) for name in ("of_peaks", "of_rates")}
    numbers = [
        *points["rates"].ravel(),
        *points["job"].ravel(),
        *np.concatenate([*errors.values()]),
    ]
    if not np.all(np.isfinite(numbers)) or any(e.shape != (size,) for e in errors.values()):
        raise ValueError("a column is too short or has a number that is none")
    values = {name: float(record[name]) for name in _NUMBERS}
    a, b, c, d = (float(one) for one in record["rate_scales"])
    positive = [*values.values(), a, b, c, d]
    if not all(np.isfinite(one) and one > 0 for one in positive):
        raise ValueError("a length, scale or spread is not positive")
    return ResidualParameters(
        amplitudes={name: float(record["amplitudes"][name]) for name in AMPLITUDES},
        rate_scales=(a, b, c, d),
        seen=SeenErrors(points=ErrorPoints(**points), **errors),
        **values,
    )
