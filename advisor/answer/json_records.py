"""Nouns as JSON records, and back: one converter for whatever the program writes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, reduce
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Literal,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from advisor.collectors import bounded
from advisor.errors import AdvisorError, ModelError

if TYPE_CHECKING:
    from cattrs import Converter

T = TypeVar("T")
Said = Mapping[str, str] | Sequence[str]

SCHEMA_VERSION: Final = 2
# The largest trainings took 1e26 flop; a thousand of them still are a number.
_LARGEST: Final = 1e29
# What nouns that are not written field by field tell the converter, as their modules are imported.
_HOOKS: Final[list[Callable[[Converter], None]]] = []


def with_hooks(add: Callable[[Converter], None]) -> None:
    """Have ``add`` teach the converter how nouns are written that are no fields of their own."""
    _HOOKS.append(add)
    _converter.cache_clear()


class Recorded:
    """A noun that writes itself as a JSON record, and is read from one.

    ``renamed`` are the names in the record of fields and properties, "" for a field that is not
    in it; ``written`` are properties, of parts by dots, that stand in it after the fields;
    ``said``, where it is given, is all that is written and its order (``told``).
    Numbers have as many ``digits`` as are significant, None for all.
    """

    __slots__ = ()
    renamed: ClassVar[Mapping[str, str]] = {}
    written: ClassVar[tuple[str, ...]] = ()
    said: ClassVar[Said] = ()
    digits: ClassVar[int | None] = None

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form."""
        found: dict[str, Any] = to_record(self)
        return found

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Read the JSON form; fields that are not known here are passed over.

        Raises ValueError if a field is missing or makes no sense; the message names it.
        """
        return from_record(cls, record)

    def state(self) -> dict[str, Any]:
        """Return what is known, arrays as they are: they are saved beside the record."""
        found: dict[str, Any] = to_record(self, keeps_arrays=True)
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the noun that ``state`` describes."""
        return from_record(cls, state, keeps_arrays=True)


def to_record(noun: Any, *, is_lean: bool = False, keeps_arrays: bool = False) -> Any:
    """Return the JSON form of a dataclass: its fields, down to plain values.

    ``is_lean``: leave out what is at its default; ``keeps_arrays``: they are saved beside it.
    """
    found = _converter(is_lean=is_lean, keeps_arrays=keeps_arrays)
    return found.unstructure(noun)


def told(noun: Any, said: Said) -> dict[str, Any]:
    """Return some of a noun as JSON: names, or names in the record and where each value is found.

    Names and places of parts have dots; a part that is not there has nothing to tell.
    """
    record: dict[str, Any] = {}
    paths = said if isinstance(said, Mapping) else {name: name for name in said}
    for name, path in paths.items():
        *places, last = name.split(".")
        part = reduce(lambda found, place: found.setdefault(place, {}), places, record)
        part[last] = to_record(_at(noun, path))
    return record


def _at(noun: Any, path: str) -> Any:
    for name in path.split("."):
        noun = None if noun is None else getattr(noun, name)
    return noun


def from_record(
    kind: type[T], record: Any, *, where: str = "record", is_strict: bool = False,
    keeps_arrays: bool = False,
) -> T:  # fmt: skip
    """Make a dataclass from its JSON form, every value checked against its field.

    ``where``: its name in messages, may be empty; ``is_strict``: refuse fields that are not known;
    False by default; ``keeps_arrays``: they are arrays already.

    Raises ValueError if a field is missing or of another type, or the noun refuses its value.
    """
    from cattrs import BaseValidationError, transform_error

    if not isinstance(record, Mapping):
        raise ValueError(f"{where} must be an object, got {shown(record)}")  # noqa: TRY004
    try:
        return _converter(is_strict=is_strict, keeps_arrays=keeps_arrays).structure(record, kind)
    except BaseValidationError as errors:
        first = transform_error(errors, path=where, format_exception=_message)[0]
        words, _, place = first.rpartition(" @ ")
        place = place.removeprefix(".")
        is_of_field = words.startswith(("must be ", "is ", "has "))
        raise ValueError(f"{place}{'' if is_of_field else ':'} {words}".lstrip(": ")) from errors


def object_in(file: Path, what: str, *, error: type[AdvisorError], hint: str) -> dict[str, Any]:
    """Return the JSON object in a file; ``what`` it holds, in messages.

    Raises ``error`` if it cannot be read, or holds something else.
    """
    try:
        found = bounded.read_json(file)
        if isinstance(found, dict):
            return found
        raise ValueError("it is not a JSON object")  # noqa: TRY301
    except (OSError, ValueError) as why:
        raise error(f"cannot read {what} {file}: {why}".replace("  ", " "), hint=hint) from why


def fitted(
    kind: type[T], file: Path, *, train: str, version: int = 1, part: str | None = None
) -> T:
    """Return fitted constants as the dataclass whose fields ``file``, or a part of it, holds.

    ``train``: what ``advisor train`` is told to fit them again.

    Raises ModelError if the file is missing, not JSON, of another version, or if a constant is
    missing, unknown or no number.
    """
    try:
        record = bounded.read_json(file)
        if (found := record["schema_version"]) != version:
            raise ValueError(f"schema version {found!r}, not {version}")  # noqa: TRY301
        held = (
            record[part]
            if part
            else {one.name: record[one.name] for one in fields(cast(Any, kind))}
        )
        return from_record(kind, held, where=part or "record", is_strict=True)
    except (OSError, ValueError, TypeError, KeyError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ModelError(
            f"cannot use {file}: {why}",
            hint=f"fit it again with `advisor train {train}`, or install the package again",
        ) from error


@cache
def _converter(
    *, is_strict: bool = False, is_lean: bool = False, keeps_arrays: bool = False
) -> Converter:
    from cattrs import Converter
    from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn

    found = Converter(
        forbid_extra_keys=is_strict, omit_if_default=is_lean,
        unstruct_collection_overrides={tuple: list, frozenset: sorted},
    )  # fmt: skip
    found.register_structure_hook(float, float_of)
    for plain in (int, str, bool):
        found.register_structure_hook(plain, plain_of)
    found.register_structure_hook_func(_is_literal, _one_of)
    found.register_structure_hook_func(
        _is_plain_union, lambda value, kind: _any_of(found, value, kind)
    )
    found.register_structure_hook_func(
        _is_array, (lambda array, _: array) if keeps_arrays else _array_of
    )
    found.register_unstructure_hook_func(
        _is_array, (lambda array: array) if keeps_arrays else _lists_of
    )

    def written(kind: Any) -> Any:
        write_fields = make_dict_unstructure_fn(kind, found, **_fields(kind))
        last = {kind.renamed.get(name, name.rpartition(".")[2]): name for name in kind.written}

        def write(one: Any) -> Any:
            record = told(one, kind.said) if kind.said else write_fields(one) | told(one, last)
            if kind.digits is None:
                return record
            return rounded(record, lambda number: float(f"{number:.{kind.digits}g}"))

        return write

    def read(kind: Any) -> Any:
        known = {kind.renamed.get(name, name) for name in kind.written}
        make = make_dict_structure_fn(
            kind, found, _cattrs_forbid_extra_keys=is_strict, **_fields(kind)
        )
        return lambda row, _: make({k: v for k, v in dict(row).items() if k not in known}, kind)

    def in_order(kind: Any) -> Any:
        # Of a lean record cattrs writes what has no default first.
        write, names = (
            make_dict_unstructure_fn(kind, found, _cattrs_omit_if_default=True),
            [one.name for one in fields(kind)],
        )

        def ordered(one: Any) -> dict[str, Any]:
            record = write(one)
            return {name: record[name] for name in names if name in record}

        return ordered

    if is_lean:
        found.register_unstructure_hook_factory(is_dataclass, in_order)
    found.register_unstructure_hook_factory(_is_recorded, written)
    found.register_structure_hook_factory(_is_recorded, read)
    for add in _HOOKS:
        add(found)
    return found


def rounded(record: Any, to: Callable[[float], float]) -> Any:
    """Return a record with its numbers, counts excepted, rounded ``to`` what is kept."""
    if isinstance(record, dict):
        return {name: rounded(value, to) for name, value in record.items()}
    if isinstance(record, list):
        return [rounded(value, to) for value in record]
    return to(record) if isinstance(record, float) else record


def _fields(kind: Any) -> dict[str, Any]:
    """Return what the converter is told of a noun's fields."""
    from cattrs.gen import override

    return {
        name: override(rename=other) if other else override(omit=True)
        for name, other in kind.renamed.items()
        if name not in kind.written
    }


def _is_recorded(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Recorded) and is_dataclass(kind)


def _is_array(kind: Any) -> bool:
    import numpy as np

    return kind is np.ndarray or get_origin(kind) is np.ndarray


def _array_of(lists: Any, kind: Any) -> Any:
    """Return an array of a field's kind; null is no number, nan."""
    import numpy as np

    return np.array(lists, dtype=get_args(get_args(kind)[1])[0])


def _lists_of(array: Any) -> Any:
    """Return an array as lists; what is no finite number is null."""
    import numpy as np

    if array.dtype.kind == "f" and not np.isfinite(array).all():
        array = np.where(np.isfinite(array), array, None)
    return array.tolist()


def float_of(value: Any, _: Any) -> float:
    """Return a finite number, or say what is wrong with it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"must be float, got {shown(value)}")
    if not math.isfinite(value):
        raise ValueError(f"is not a number: {value}")
    if abs(value) > _LARGEST:
        raise ValueError(f"is larger than anything that can be computed: {value:.6g}")
    return float(value)


def plain_of(value: Any, kind: Any) -> Any:
    """Return a value of exactly this kind, or say what is wrong with it; 3.0 is whole."""
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"must be {kind.__name__}, got {shown(value)}")
    if kind is int and abs(value) > _LARGEST:
        raise ValueError(f"is larger than anything that can be computed: {value:.6g}")
    return value


def _one_of(value: Any, kind: Any) -> Any:
    if value not in get_args(kind):
        known = ", ".join(map(str, get_args(kind)))
        raise ValueError(f"is {shown(value)}; one of: {known}")
    return value


def _is_literal(kind: Any) -> bool:
    origin: Any = get_origin(kind)
    return origin is Literal


def _is_plain_union(kind: Any) -> bool:
    """Whether a field takes one of several plain kinds, such as a number or a word."""
    kinds = [one for one in get_args(kind) if one is not type(None)]
    is_union = get_origin(kind) in (Union, UnionType)
    return is_union and len(kinds) > 1 and not any(map(is_dataclass, kinds))


def _any_of(converter: Converter, value: Any, kind: Any) -> Any:
    if value is None and type(None) in get_args(kind):
        return None
    errors = []
    for one in get_args(kind):
        try:
            return converter.structure(value, one)
        except (TypeError, ValueError) as error:
            errors.append(str(error))
    raise ValueError("; or ".join(errors))


def _message(error: BaseException, _: Any) -> str:
    """Return what is wrong with one field."""
    from cattrs import ForbiddenExtraKeysError

    if isinstance(error, ForbiddenExtraKeysError):
        return f"has unknown fields: {', '.join(sorted(error.extra_fields))}"
    if isinstance(error, KeyError):
        return "is missing"
    return str(error)


def shown(value: Any) -> str:
    """Return a value as messages show it, shortened."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "..."
