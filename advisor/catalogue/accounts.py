"""Whether an offer can be had: limits of new accounts, launchers that rent it, a price to trust.

``datasets/catalogue/accounts.csv`` has one row a group of instance types, each with its day and
source. Of a provider without a row no limit is known, and none is taken. What is in stock no
source says.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import translate
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import files
from advisor.catalogue.offer_columns import COMMITTED, Offers, TableRow, TypeColumns
from advisor.catalogue.snapshot import bundled_folder
from advisor.catalogue.tables import read_records
from advisor.errors import CatalogueError
from advisor.providers import launched_by

UNITS: Final = ("vcpus", "gpus", "machines", "usd_per_h")
COLUMNS: Final = files.columns("accounts")
# What an account has to ask for is granted after so long: "24 to 72 hours" where AWS looks at a
# request (docs.getimpala.ai, 2026-11-25), "within a few hours" or refused at Google
# (github.com/rochesterxugroup/google_cloud_tutorial). [h]
REQUEST_H: Final = 24.0


def limited_types(limit: TableRow, types: TypeColumns) -> NDArray[np.bool_]:
    """Return which types a limit is of; one of GPUs is of machines that have one."""
    is_named = re.compile(translate(limit.instance_types)).match
    found = types.provider == limit.provider
    at = np.flatnonzero(found)
    found[at] = [is_named(name) is not None for name in types.name[at].tolist()]
    if limit.unit == "gpus":
        found &= types.accelerator_count > 0
    return np.asarray(found, dtype=bool)


def account_limits(path: Path | None = None) -> tuple[TableRow, ...]:
    """Return the most of some types that a new account of a provider can rent at once.

    They are those that could be checked, as ``COLUMNS`` says, of ``path`` or that ship.

    Raises CatalogueError if the file cannot be read or a cell breaks its rule.
    """
    return _limits(path or bundled_folder() / "accounts.csv")


@cache
def _limits(where: Path) -> tuple[TableRow, ...]:
    rows = read_records(where, COLUMNS)
    unknown = sorted({row.unit for row in rows} - set(UNITS))
    if unknown:
        raise CatalogueError(
            f"{where}: the unit {unknown[0]!r} is unknown", hint=f"one of: {', '.join(UNITS)}"
        )
    return tuple(row for row in rows if row.checked == "yes")


def with_standing(types: TypeColumns, offers: Offers) -> Offers:
    """Return offers with what is known of whether they can be had: ``Offers.lacks``."""
    names, at = np.unique(types.provider, return_inverse=True)
    rented = [(bool(launched_by(one)), bool(launched_by(one, 2))) for one in names.tolist()]
    launched = np.array([np.inf if many else float(one) for one, many in rented])
    is_dated, is_sure = np.zeros((2, len(offers)), dtype=bool)
    for pricing in np.unique(offers.pricing).tolist():
        rows = np.flatnonzero(offers.pricing == pricing)
        source = offers.provenance_index[rows]
        is_dated[rows] = np.array([one.day_of(pricing) != "" for one in offers.provenances])[
            source
        ]
        is_sure[rows] = np.array([one.is_sure(pricing) for one in offers.provenances])[source]
    return replace(
        offers, most_at_once=rented_at_once(types, offers), is_dated=is_dated, is_sure=is_sure,
        most_launched=launched[at][offers.type_index],
    )  # fmt: skip


def rented_at_once(types: TypeColumns, offers: Offers) -> NDArray[np.float64]:
    """Return how many machines of each offer a new account can rent at once; inf where unknown.

    Offers with a quota of the user's own are within it, and who holds a commitment has an account
    that holds the machines: no other limit counts.
    """
    limit_of = np.full(len(types), -1, dtype=np.int64)
    limits = account_limits()
    for number, one in reversed(list(enumerate(limits))):
        limit_of[limited_types(one, types)] = number
    found = np.full(len(offers), np.inf)
    at_row = limit_of[offers.type_index]
    with np.errstate(divide="ignore", invalid="ignore"):
        for number, one in enumerate(limits):
            at = np.flatnonzero(at_row == number)
            rows = offers.type_index[at]
            each = {
                "vcpus": types.vcpus[rows], "gpus": types.accelerator_count[rows],
                "machines": np.ones(at.size), "usd_per_h": offers.price_usd_per_h[at],
            }[one.unit]  # fmt: skip
            found[at] = np.floor(one.limit / np.maximum(np.nan_to_num(each, nan=1.0), 1e-9))
    is_held = np.isfinite(offers.max_instances) | np.isin(offers.pricing, COMMITTED)
    found[is_held] = np.inf
    return found
