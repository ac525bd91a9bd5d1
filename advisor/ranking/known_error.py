"""How far estimates were off on hardware of a family, as it was stored when it was last measured.

The figures are those of ``advisor validate described``: jobs asked as a user asks, each
accelerator left out of everything that was fitted for it. They ship in ``datasets/accuracy``.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from advisor import data
from advisor.catalogue import Catalogue
from advisor.collectors import bounded
from advisor.domain import Candidate, KnownError

PROTOCOL: Final = "described"
_ERROR: Final = ": median APE"
_ROWS: Final = ": rows"


@cache
def stored_errors() -> tuple[Mapping[str, Any], str]:
    """Return the stored figures by name, and their day; nothing where none are stored."""
    path = data.root("datasets") / "accuracy" / f"{PROTOCOL}.json"
    try:
        record = bounded.read_json(path)
        return record["record"]["figures"], str(record["day"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}, ""


def known_error(one: Candidate, catalogue: Catalogue) -> KnownError | None:
    """Return the error on accelerators of the candidate's family; None where none was measured.

    Parameters
    ----------
    one : Candidate
        Its first part's accelerators count.
    catalogue : Catalogue
    """
    name = one.configuration.parts[0][0].accelerator if one.configuration.parts else None
    own = None if name is None else catalogue.accelerators.get(name)
    if own is None:
        return None
    figures, day = stored_errors()
    errors, rows = [], 0
    for figure, value in figures.items():
        card = catalogue.accelerators.get(figure.removesuffix(_ERROR))
        if figure.endswith(_ERROR) and card and card.architecture == own.architecture:
            errors.append(float(value))
            rows += int(figures.get(figure.removesuffix(_ERROR) + _ROWS, 0))
    if not errors:
        return None
    return KnownError(
        family=f"{own.vendor} {own.architecture}",
        median_ape_fraction=statistics.median(errors),
        accelerators=len(errors),
        rows=rows,
        protocol=PROTOCOL,
        day=day,
    )
