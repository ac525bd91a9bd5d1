"""Options whose value is a quantity: the command line's way into ``advisor.quantities``.

``restart: Annotated[float, quantity(SECONDS, "--restart", help=...)] = 300.0`` hands on a
number in the unit that the kind is named for; a default is written in that unit too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import typer

from advisor import quantities


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityKind:
    """A kind of quantity."""

    metavar: str  # what help shows in place of the value
    parse: Callable[..., float]  # reads the text; ``option`` names the flag in its message


HOURS: Final = QuantityKind(metavar="DURATION", parse=quantities.parse_hours)
SECONDS: Final = QuantityKind(metavar="DURATION", parse=quantities.parse_seconds)
# Where a bare number of hours would surprise.
SECONDS_WITH_UNIT: Final = QuantityKind(
    metavar="DURATION", parse=partial(quantities.parse_seconds, needs_unit=True)
)
BYTES: Final = QuantityKind(metavar="SIZE", parse=quantities.parse_bytes)
BYTES_WITH_UNIT: Final = QuantityKind(
    metavar="SIZE", parse=partial(quantities.parse_bytes, needs_unit=True)
)
RATE: Final = QuantityKind(metavar="RATE", parse=quantities.parse_rate)
USD: Final = QuantityKind(metavar="USD", parse=quantities.parse_usd)
SHARE: Final = QuantityKind(metavar="SHARE", parse=quantities.parse_share)
COUNT: Final = QuantityKind(metavar="COUNT", parse=quantities.parse_count)


def quantity(kind: QuantityKind, *flags: str, help: str, default: str | None = None) -> Any:
    """Return the option ``flags`` whose text is read as a quantity of this kind.

    ``default`` is how help writes the default value.
    """

    def parse(value: Any) -> float:
        return kind.parse(value, option=flags[0]) if isinstance(value, str) else value

    return typer.Option(
        *flags, parser=parse, metavar=kind.metavar, help=help, show_default=default or False
    )
