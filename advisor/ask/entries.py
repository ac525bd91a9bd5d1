"""Entries: all that is known of an option, held by the field that its value is kept in.

``hours: float = option("Useful computing time.", HOURS, ...)`` is a field of a frozen record and
an option ``--hours`` of the command line alike. Those of a question (``advisor.ask.requests``) are
also Python's keywords, names of settings, JSON and addresses, and controls of the page. A kind
says how a value is read from text or a plain Python value, and shown again; a default is written
as a user writes it: ``"5m"``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from dataclasses import field as record_field
from functools import partial
from inspect import get_annotations
from typing import TYPE_CHECKING, Any, Final

from advisor import quantities
from advisor.errors import UsageError
from advisor.quantities import QUANTILES

if TYPE_CHECKING:
    from advisor.catalogue import GpuFilter

_MOST: Final = 10**12
_POWER: Final = re.compile(r"(?P<watts>\d+(\.\d+)?)\s*W\s*@\s*(?P<price>\S+)")


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueKind:
    """A kind of value."""

    metavar: str  # what help shows in place of the value; empty for a flag
    # from text or a Python value; takes the name or flag for its message, raises ``UsageError``
    read: Callable[[Any, str], Any]
    show: Callable[[Any], Any] = _same  # to what JSON can hold and ``read`` reads again
    is_hours: bool = False  # a bare number is hours, which the command line says


def _refused(value: object, what: str, name: str, hint: str) -> UsageError:
    shown = repr(value)
    shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
    return UsageError(f"{name}: cannot read {shown} as {what}", hint=hint)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str | os.PathLike) or not str(value).strip():
        raise _refused(value, "a name", name, "give a word or a path")
    return str(value)


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise _refused(value, "yes or no", name, "give true or false")
    return value


def _whole(value: Any, name: str, *, least: int, most: int) -> int:
    limits = f"give {least} to {most}" if most < _MOST else f"give {least} or more"
    try:
        number = quantities.parse_count(value, option=name)
    except UsageError as error:
        is_negative = str(error).endswith("negative")
        raise _out_of_range(value, name, limits) if is_negative else error from None
    if not number.is_integer():
        raise _refused(value, "a whole number", name, limits)
    if not least <= number <= most:
        raise _out_of_range(value, name, limits)
    return int(number)


def _out_of_range(value: object, name: str, hint: str) -> UsageError:
    return UsageError(f"{name} {str(value)[:40]} is out of range", hint=hint)


def whole(least: int = 1, most: int = _MOST) -> ValueKind:
    """Return the kind of whole numbers between two bounds, both included."""
    return ValueKind(metavar="N", read=partial(_whole, least=least, most=most))


def choice(*words: str) -> ValueKind:
    """Return the kind of one of several words."""

    def read(value: Any, name: str) -> str:
        if value not in words:
            raise UsageError(
                f"{name} {str(value)[:40]!r} is unknown", hint=f"one of: {', '.join(words)}"
            )
        return str(value)

    return ValueKind(metavar="|".join(words), read=read)


def _bits(value: Any, name: str) -> int:
    if str(value) not in ("16", "8", "4"):
        raise _refused(value, "a number of bits", name, "one of: 16, 8, 4")
    return int(value)


def _positive(parse: Callable[..., float], value: Any, name: str) -> float:
    number = parse(value, option=name)
    if number <= 0:
        raise UsageError(f"{name}: {value} is not positive", hint="give more than 0")
    return number


def _names(value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise _refused(value, "a list of names", name, "write e.g. aws,gcp")
    return tuple(word for one in value if (word := one.strip().lower()))


def _counts(value: Any, name: str) -> tuple[int, ...]:
    if isinstance(value, str):
        value = value.split(",")
    elif isinstance(value, int | float):
        value = [value]
    try:
        return tuple(_whole(one, name, least=0, most=_MOST) for one in value)
    except (TypeError, UsageError):
        raise UsageError(
            f"{name}: cannot read {value!r} as a list of whole numbers", hint="write e.g. 2,4,8"
        ) from None


# What of a step can lie in host memory: those of ``planners.core.OFFLOADS``, which is not loaded
# to read a command line.
PARTS: Final = ("optimizer", "gradients", "parameters", "activations")
_SWITCH: Final[Mapping[str, bool]] = {
    "yes": True, "true": True, "on": True, "1": True,
    "no": False, "none": False, "false": False, "off": False, "0": False,
}  # fmt: skip


def _parts(value: Any, name: str) -> bool | tuple[str, ...]:
    """Read which parts of a step are offloaded: some of them by name, or whether any may be.

    >>> _parts("parameters, optimizer", "offload"), _parts("yes", "offload")
    (('optimizer', 'parameters'), True)
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _SWITCH:
        return _SWITCH[value.strip().lower()]
    said = _names(value, name)
    if not said or not set(said) <= set(PARTS):
        raise _refused(value, "parts of a step", name, f"some of: {','.join(PARTS)}")
    return tuple(part for part in PARTS if part in said)


def _spot(value: Any, name: str) -> tuple[str, ...]:
    return ("on-demand", "spot") if _flag(value, name) else ("on-demand",)


def _gpus(value: Any, name: str) -> GpuFilter:
    # The catalogue is heavy, and help needs none of it.
    from advisor.catalogue import GpuFilter, parse_gpus

    return value if isinstance(value, GpuFilter) else parse_gpus(_text(value, name))


def _gpus_shown(value: GpuFilter | None) -> str | None:
    from advisor.catalogue import gpus_text

    return None if value is None else gpus_text(value)


def _coverage(value: Any, name: str) -> float:
    known = {coverage for coverage in QUANTILES if str(coverage) == str(value).strip()}
    if not known:
        raise UsageError(
            f"{name} {str(value)[:40]} is not available",
            hint=f"one of: {', '.join(map(str, QUANTILES))}",
        )
    return known.pop()


def _power_price(value: Any, name: str) -> float:
    """Read what an hour of a machine costs: USD, or its power and the price of a kWh.

    >>> _power_price("0.05", "here_price"), _power_price("200W@0.30", "here_price")
    (0.05, 0.06)
    """
    found = _POWER.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return quantities.parse_usd(value, option=name)
    return float(found["watts"]) / 1000.0 * quantities.parse_usd(found["price"], option=name)


def _quantity(
    parse: Callable[..., float], metavar: str, *, is_positive: bool = False
) -> ValueKind:
    if is_positive:
        return ValueKind(metavar=metavar, read=partial(_positive, parse))
    return ValueKind(metavar=metavar, read=lambda value, name: parse(value, option=name))


# As the type of the field says that holds it.
TYPED: Final = ValueKind(metavar="", read=lambda value, _: value)
POWER_PRICE: Final = ValueKind(metavar="USD", read=_power_price)
TEXT: Final = ValueKind(metavar="TEXT", read=_text)
FLAG: Final = ValueKind(metavar="", read=_flag)
BITS: Final = ValueKind(metavar="16|8|4", read=_bits)
COVERAGE: Final = ValueKind(metavar="SHARE", read=_coverage)
NAMES: Final = ValueKind(metavar="NAMES", read=_names, show=",".join)
COUNTS: Final = ValueKind(metavar="N,N,...", read=_counts, show=list)
OFFLOADED: Final = ValueKind(
    metavar="[PARTS]", read=_parts, show=lambda one: one if isinstance(one, bool) else list(one)
)
SPOT: Final = ValueKind(metavar="", read=_spot, show=lambda pricings: "spot" in pricings)
GPUS: Final = ValueKind(metavar="GPUS", read=_gpus, show=_gpus_shown)
WAIT: Final = _quantity(quantities.parse_hours, "DURATION")
HOURS: Final = replace(WAIT, is_hours=True)
SOME_HOURS: Final = replace(
    _quantity(quantities.parse_hours, "DURATION", is_positive=True), is_hours=True
)
SECONDS: Final = _quantity(quantities.parse_seconds, "DURATION")
# Where a bare number of hours would surprise.
SECONDS_WITH_UNIT: Final = _quantity(
    partial(quantities.parse_seconds, needs_unit=True), "DURATION"
)
CALL: Final = _quantity(
    partial(quantities.parse_seconds, needs_unit=True), "DURATION", is_positive=True
)
COUNT: Final = _quantity(quantities.parse_count, "COUNT")
SOME: Final = _quantity(quantities.parse_count, "COUNT", is_positive=True)
RATE: Final = _quantity(quantities.parse_rate, "RATE")
SOME_RATE: Final = _quantity(quantities.parse_rate, "RATE", is_positive=True)
BYTES: Final = _quantity(quantities.parse_bytes, "SIZE")
BYTES_WITH_UNIT: Final = _quantity(partial(quantities.parse_bytes, needs_unit=True), "SIZE")
USD: Final = _quantity(quantities.parse_usd, "USD")
SHARE: Final = _quantity(quantities.parse_share, "SHARE")
VALIDATION: Final = _quantity(partial(quantities.parse_share, most=100.0), "SHARE")

# Headings under which help and documentation list options, in this order.
OPTIONS: Final = "Options"
JOB_PANEL: Final = "The job"
LIMITS: Final = "Time and money"
RENTED: Final = "What may be rented"
GIVEN: Final = "Machines that are given"
LAYOUT_PANEL: Final = "The layout"
SOFTWARE: Final = "The training software"
FILES: Final = "Question and catalogue"
OUTPUT: Final = "Output"
PANELS: Final = (
    OPTIONS, JOB_PANEL, LIMITS, RENTED, GIVEN, LAYOUT_PANEL, SOFTWARE, FILES, OUTPUT,
)  # fmt: skip
_KEY: Final = "entry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that can be asked."""

    help: str
    kind: ValueKind = TYPED  # how it is read
    flags: tuple[str, ...] = ()  # on the command line; made of the name where empty
    panel: str = OPTIONS
    field: str = ""
    name: str = ""  # the field's where it is not another
    part: str = ""  # of a question, that it is asked in
    is_argument: bool = False  # by its place among the words, not by a flag
    names: tuple[str, ...] = ()  # of a field that is a question: the entries that it is asked by
    # more: what typer is told besides
    more: Mapping[str, Any] = record_field(default_factory=dict)


def option(
    help: str, kind: ValueKind = TYPED, default: Any = None, flags: str = "", *,
    name: str = "", panel: str = OPTIONS, **more: Any,
) -> Any:  # fmt: skip
    """Return a field of a record that is an option.

    ``default``: the value, the text of a quantity (``"5m"``), or ``...`` where the option has to
    be given; ``flags``: separated by spaces; ``more``: for typer.
    """
    value = default
    if isinstance(default, str) and kind is not TYPED:
        value = kind.read(default, flags)
        more["show_default"] = default
    entry = Entry(
        help=help, kind=kind, flags=tuple(flags.split()), name=name, panel=panel, more=more
    )
    return _field(entry, value)


def argument(help: str, default: Any = None, **more: Any) -> Any:
    """Return a field of a record that is given by its place; ``default`` as of ``option``."""
    return _field(Entry(help=help, is_argument=True, more=more), default)


def asked(*groups: tuple[str, ...]) -> Any:
    """Return the field of a record that is the question of these names."""
    names = tuple(dict.fromkeys(name for group in groups for name in group))
    return _field(Entry(help="", names=names), ...)


def _field(entry: Entry, default: Any) -> Any:
    if default is ...:
        return record_field(metadata={_KEY: entry})
    return record_field(default=default, metadata={_KEY: entry})


PLOT_FLAG: Final = "--plot"
OFFLOAD_FLAG: Final = "--offload"
_AS_JSON: Final[Mapping[str, Any]] = {
    "help": "Print the record as JSON.", "default": False, "flags": "--json", "panel": OUTPUT,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """Options of a verb whose answer can be printed as JSON."""

    as_json: bool = option(**_AS_JSON)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Options of a verb whose answer can be drawn, and printed as JSON."""

    plot: str | None = option(
        "Draw the answer too: in the terminal, or into a .png, .svg or .pdf file.",
        flags=PLOT_FLAG, metavar="[FILE]", panel=OUTPUT,
    )  # fmt: skip
    as_json: bool = option(**_AS_JSON)


def entries_of(record: type[Any]) -> Iterator[Entry]:
    """Yield the entries of a record, its own before inherited ones, each with field and name."""
    own = get_annotations(record)
    for one in sorted(fields(record), key=lambda one: one.name not in own):
        if (entry := one.metadata.get(_KEY)) is not None:
            yield replace(entry, field=one.name, name=entry.name or one.name)
