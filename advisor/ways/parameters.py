"""Fitted constants: from the files of ``trained_models`` to the planners' frozen records."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from advisor import data
from advisor.collectors import bounded
from advisor.errors import ModelError
from advisor.planners.links.collectives import CollectiveParameters
from advisor.planners.links.data_parallel import ScalingParameters
from advisor.planners.memory.training_memory import MemoryParameters

SCHEMA_VERSION = 1
DIGITS = 5  # significant: fits converge further, readings are less certain
Record = TypeVar("Record", ScalingParameters, MemoryParameters, CollectiveParameters)


def scaling(folder: Path | None = None) -> ScalingParameters:
    """Read the constants of data-parallel scaling; ``folder`` replaces the packaged one.

    Raises
    ------
    ModelError
        If the file is missing, not JSON, of another version, or lacks a constant.
    """
    path = (folder or data.root("trained_models") / "scaling") / "parameters.json"
    values = _read(path, "advisor train scaling")
    collectives = values.pop("collectives", None)
    if not isinstance(collectives, dict):
        raise _unusable(path, "it has no 'collectives'", "advisor train scaling")
    values["collectives"] = _record(CollectiveParameters, collectives, path)
    return _record(ScalingParameters, values, path)


def memory(folder: Path | None = None) -> MemoryParameters:
    """Read the constants of the memory model; ``folder`` replaces the packaged one.

    Raises
    ------
    ModelError
        If the file is missing, not JSON, of another version, or lacks a constant.
    """
    path = (folder or data.root("trained_models") / "memory") / "parameters.json"
    return _record(MemoryParameters, _read(path, "advisor train memory"), path)


def text(parameters: ScalingParameters | MemoryParameters) -> str:
    """Return ``parameters.json``: every constant to ``DIGITS`` significant digits."""
    record = {"schema_version": SCHEMA_VERSION, "parameters": _rounded(asdict(parameters))}
    return json.dumps(record, indent=2) + "\n"


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _rounded(value) if isinstance(value, dict) else float(f"{value:.{DIGITS}g}")
        for name, value in values.items()
    }


def _read(path: Path, command: str) -> dict[str, Any]:
    try:
        record = bounded.read_json(path)
    except (OSError, ValueError) as error:
        raise _unusable(path, str(error), command) from error
    if not isinstance(record, dict) or record.get("schema_version") != SCHEMA_VERSION:
        raise _unusable(path, f"not of schema version {SCHEMA_VERSION}", command)
    values = record.get("parameters")
    try:
        bounded.check_numbers(values)
    except ValueError as error:
        raise _unusable(path, str(error), command) from error
    if not isinstance(values, dict):
        raise _unusable(path, "its parameters are not an object", command)
    return dict(values)


def _record(kind: type[Record], values: dict[str, Any], path: Path) -> Record:
    names = {field.name for field in fields(kind)}
    fitted = {field.name for field in fields(kind) if field.default is MISSING}
    odd = ", ".join(sorted((fitted - set(values)) | (set(values) - names)))
    if odd:
        raise _unusable(path, f"missing or unknown: {odd}", f"advisor train {path.parent.name}")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise _unusable(path, str(error), f"advisor train {path.parent.name}") from error


def _unusable(path: Path, why: str, command: str) -> ModelError:
    return ModelError(f"cannot use {path}: {why}", hint=f"fit it again with `{command}`")
