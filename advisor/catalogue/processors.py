"""What pages of the providers state of processors, by the names of the types.

``processors.csv`` names the processor of types of which the collected specifications name none.
``burstable.csv`` says which share of each virtual CPU lasts on types that burst, and what happens
beyond it. Their rows are globs of names; of each file the first that fits counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path

import numpy as np

from advisor.catalogue import files
from advisor.catalogue.offer_columns import Floats, Ints, Texts
from advisor.catalogue.tables import Column, Values, numbers, read, texts

_CREDITS_PER_H = 60.0  # a credit is a virtual CPU for a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstColumns:
    """How all types compute for longer, one row a type; see ``TypeColumns``."""

    baseline: Floats
    launch_h: Floats
    surplus_usd_per_h: Floats
    coremark_share: Floats  # of a virtual CPU that it had when CoreMark was measured
    source: Texts


def processor_columns(
    path: Path | None, provider: Texts, name: Texts, cpu_model: Texts
) -> tuple[Texts, Texts]:
    """Return the types' processors, those that pages state where none is known, and the pages.

    Raises CatalogueError if the file cannot be read or a cell breaks its rule.

    ``path``: the file of ``files.PROCESSORS``; without it nothing is added.
    """
    table = _table(path, files.PROCESSORS)
    row = _rows(table, provider, np.where(cpu_model == "", name, ""))
    stated = np.array([*texts(table, "cpu_model"), ""])[row]
    return np.where(cpu_model == "", stated, cpu_model), _sources(table)[row]


def burst_columns(path: Path | None, provider: Texts, name: Texts) -> BurstColumns:
    """Return how the types compute for longer.

    Raises CatalogueError as ``processor_columns``.

    ``path``: the file of ``files.BURSTABLE``; without it no type is known to burst.
    """
    table = _table(path, files.BURSTABLE)
    row = _rows(table, provider, name)

    def of_rows(column: str, others: float) -> Floats:
        return np.append(numbers(table, column), others)[row]

    baseline = of_rows("vcpu_baseline", 1.0)
    is_at_baseline = np.array([*texts(table, "coremark_at"), ""])[row] == "baseline"
    return BurstColumns(
        baseline=baseline,
        launch_h=np.nan_to_num(of_rows("launch_credits", 0.0)) / _CREDITS_PER_H,
        surplus_usd_per_h=of_rows("surplus_usd_per_vcpu_h", np.nan),
        coremark_share=np.where(is_at_baseline, baseline, 1.0),
        source=_sources(table)[row],
    )


def _table(path: Path | None, columns: Sequence[Column]) -> Mapping[str, Values]:
    if path is not None:
        return read(path, columns)
    return {column.name: np.empty(0) if column.is_number else [] for column in columns}


def _rows(table: Mapping[str, Values], provider: Texts, name: Texts) -> Ints:
    """Return the row of each type, the number of rows where none fits."""
    owners, globs = texts(table, "provider"), texts(table, "instance_types")
    row = np.full(len(name), len(globs))
    for owner in sorted(set(owners)):
        own = [at for at, one in enumerate(owners) if one == owner]
        fits = re.compile("|".join(f"({translate(globs[at])})" for at in own)).match
        for at in np.flatnonzero(provider == owner).tolist():
            found = fits(name[at])
            if found is not None:
                row[at] = own[(found.lastindex or 1) - 1]
    return row


def _sources(table: Mapping[str, Values]) -> Texts:
    """Return the page of every row with its licence and day, and nothing for no row."""
    columns = (texts(table, name) for name in ("source", "licence", "as_of"))
    cells = zip(*columns, strict=True)
    return np.array([*(f"{page} ({licence}; {day})" for page, licence, day in cells), ""])
