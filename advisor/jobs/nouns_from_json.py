"""Frozen nouns from JSON: every value is checked against the field that it is for."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from advisor.planners.core.errors import PlanningError
from advisor.planners.core.nouns import Work

# The largest trainings took 1e26 flop; a thousand of them still are a number.
_LARGEST: Final = 1e29
_LONGEST: Final = 100_000  # entries of a list: a step of the largest models runs as many operators


def noun_from_json(kind: Any, value: Any, where: str) -> Any:
    """Make a frozen noun from a JSON object, field by field.

    Parameters
    ----------
    kind : type
        The dataclass; its fields say what each value must be.
    value : Any
        What was read.
    where : str
        Its name in messages.

    Raises
    ------
    ValueError
        If a field is missing, unknown or of another type; the message names it.
    """
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
    if origin is frozenset:
        inner = types.GenericAlias(tuple, (get_args(hint)[0], ...))
        return frozenset(_value(inner, value, where))
    if origin is Literal:
        if value not in get_args(hint):
            known = ", ".join(map(str, get_args(hint)))
            raise ValueError(f"{where} is {_shown(value)}; one of: {known}")
        return value
    if is_dataclass(hint):
        return noun_from_json(hint, value, where)
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
