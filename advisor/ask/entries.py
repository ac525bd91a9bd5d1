"""Entries: all that is known of an option, held by the field that its value is kept in.

``hours: float = option("Useful computing time.", HOURS, ...)`` is a field of a frozen record and
an option ``--hours`` of the command line alike. Those of a question (``advisor.ask.requests``) are
also Python's keywords, names of settings, JSON and addresses, and controls of the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from dataclasses import field as record_field
from inspect import get_annotations
from typing import Any, Final

from advisor.ask.kinds import TYPED, ValueKind

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
