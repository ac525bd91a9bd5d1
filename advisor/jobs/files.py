"""Jobs as files: what a step computes, how long the job is, what was measured of it.

One JSON object, ``{"schema_version": 1, "kind": "advisor-job", "job": {...}}``, whose fields are
those of ``advisor.jobs.job.Job`` and of the nouns inside it. Everything is checked when it is
read: nothing of another version, no missing or unknown field, no impossible size.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from advisor.collectors import atomic, bounded
from advisor.errors import RunError
from advisor.jobs.job import Job
from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Work
from advisor.planners.step.device import PRODUCTS

SCHEMA_VERSION: Final = 1
KIND: Final = "advisor-job"
# The largest trainings took 1e26 flop; a thousand of them still are a number.
_LARGEST: Final = 1e29
_LONGEST: Final = 100_000  # entries of a list: a step of the largest models runs as many operators
_HINT: Final = "write it again: advisor predict ... --save-job FILE"


def write_job(job: Job, path: Path) -> None:
    """Write a job; the file is whole or not there.

    Raises
    ------
    RunError
        If it cannot be written.
    """
    record = {"schema_version": SCHEMA_VERSION, "kind": KIND, "job": asdict(job)}
    try:
        atomic.write_text(path, json.dumps(record, indent=1) + "\n")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}", hint="choose another place") from error


def read_job(path: Path) -> Job:
    """Read a job.

    Raises
    ------
    RunError
        If the file cannot be read, is of another version, or a value in it makes no sense; the
        message names the field.
    """
    try:
        record = bounded.read_json(path)
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read the job file {path}: {error}", hint=_HINT) from error
    if not isinstance(record, dict) or record.get("kind") != KIND:
        raise RunError(f"{path} is not a job file", hint=_HINT)
    version = record.get("schema_version")
    if version != SCHEMA_VERSION:
        raise RunError(
            f"{path} has schema version {version}; this advisor reads {SCHEMA_VERSION}",
            hint="write it again with this version, or use the advisor that wrote it",
        )
    try:
        job: Job = _noun(Job, record.get("job"), "job")
        _check(job)
    except ValueError as error:
        raise RunError(
            f"{path}: {error}", hint="correct the field, or write the file again"
        ) from error
    return job


def _check(job: Job) -> None:
    if job.work is None and job.program is None:
        raise ValueError("job has neither work nor program")
    for name, value in (
        ("global_batch", job.global_batch), ("total_steps", job.total_steps),
        ("recorded_batch", job.recorded_batch),
    ):  # fmt: skip
        if not value > 0:
            raise ValueError(f"job.{name} must be positive, got {value}")
    if job.work is None:
        return
    for operator in job.work.operators:
        if operator.kind in PRODUCTS and operator.flop == 0:
            raise ValueError(
                f"operator {operator.name!r} ({operator.phase}) is a {operator.kind} without flop"
            )


def _noun(kind: Any, value: Any, where: str) -> Any:
    """Make a frozen noun from a JSON object, field by field."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be an object, got {_shown(value)}")  # noqa: TRY004
    known = {field.name: field for field in fields(kind)}
    if kind is Work:
        value = _with_setup(value)
    if unknown := sorted(set(value) - set(known)):
        raise ValueError(f"{where} has unknown fields: {', '.join(unknown)}")
    missing = [
        name
        for name, field in known.items()
        if name not in value and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    hints = get_type_hints(kind)
    found = {name: _value(hints[name], value[name], f"{where}.{name}") for name in value}
    try:
        return kind(**found)
    except (ValueError, PlanningError) as error:
        raise ValueError(f"{where}: {error}") from error


def _with_setup(work: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a work as it is written today; older files say ``is_compiled`` alone."""
    if "setup" in work or not isinstance(work.get("is_compiled"), bool):
        return work
    rest = {name: value for name, value in work.items() if name != "is_compiled"}
    return rest | {"setup": {"kernels": "compiled" if work["is_compiled"] else "eager"}}


def _value(hint: Any, value: Any, where: str) -> Any:
    """Return a JSON value as the type that a field is declared with."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (hint,) = (one for one in get_args(hint) if one is not type(None))
        return _value(hint, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where} must be a list, got {_shown(value)}")
        if len(value) > _LONGEST:
            raise ValueError(f"{where} has {len(value):,} entries, {_LONGEST:,} at most")
        return tuple(_value(get_args(hint)[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is Literal:
        if value not in get_args(hint):
            known = ", ".join(map(str, get_args(hint)))
            raise ValueError(f"{where} is {_shown(value)}; one of: {known}")
        return value
    if is_dataclass(hint):
        return _noun(hint, value, where)
    return _plain(hint, value, where)


def _plain(hint: Any, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(f"{where} must be {hint.__name__}, got {_shown(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is not a number: {value}")
    if isinstance(value, int | float) and abs(value) > _LARGEST:
        raise ValueError(f"{where} is larger than anything that can be computed: {value:.6g}")
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
