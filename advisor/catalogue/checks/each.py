"""Helpers that rules about prices share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from advisor.catalogue.checks.findings import Checked, Context, Finding, Severity
from advisor.catalogue.rows import CatalogueRows, PriceRow, TypeRow

COLUMNS: Final = (
    "on_demand_usd_per_h",
    "spot_usd_per_h",
    "reserved_1y_usd_per_h",
    "reserved_3y_usd_per_h",
)
Types = Mapping[tuple[str, str], TypeRow]


def known_types(rows: CatalogueRows, context: Context) -> Types:
    """Return the new types over those known before; what is known before is more complete."""
    return {one.key: one for one in (*rows.types, *context.before.types)}


def each_price(
    rows: CatalogueRows,
    rule: str,
    severity: Severity,
    keep: Callable[[PriceRow], tuple[PriceRow | None, str]],
) -> Checked:
    """Apply a rule to every price.

    ``keep`` returns what is left of a price, and a message where something is wrong with it.
    """
    kept: list[PriceRow] = []
    findings: list[Finding] = []
    for row in rows.prices:
        left, message = keep(row)
        if left is not None:
            kept.append(left)
        if message:
            findings.append(finding(rule, severity, row, message))
    return replace(rows, prices=tuple(kept)), findings


def finding(rule: str, severity: Severity, row: PriceRow | TypeRow, message: str) -> Finding:
    """Name what a rule found in a price or a type."""
    return Finding(
        rule=rule,
        severity=severity,
        provider=row.provider,
        instance_type=row.instance_type,
        region=row.region if isinstance(row, PriceRow) else "",
        message=message,
    )
