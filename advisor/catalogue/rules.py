"""The user's ``overrides.csv``: its rules, read and checked.

``instance_type`` and ``region`` are globs where they choose among what exists; empty is all.

========  =============================================  ======================================
rule      what it does                                   ``value``
========  =============================================  ======================================
price     sets a price for a way to pay (``pricing``)    USD per hour of one instance
factor    multiplies prices: a negotiated discount       e.g. 0.9
service   adds the same offers under the name            surcharge, e.g. 1.15 for Vertex AI
          ``service``: a managed training service
machine   adds machines of one's own                     USD per hour of one machine
network   sets the network between machines of these   (none): ``network_gbps``, ``rdma``
          types
quota     limits how many may be rented at once          a number of ``unit``: instances, vcpus
                                                         or gpus, in each type and region
region    allows only these regions of the provider      (none)
reserved  machines that are reserved: ``count`` of one   USD per hour of one, as far as an hour
          type in one region                             more costs anything; 0 if it is paid
block     a capacity block: the same, charged in whole   USD per hour of one
          blocks of ``hours``
========  =============================================  ======================================
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.catalogue import files
from advisor.catalogue.networks import rate_of
from advisor.catalogue.nouns import PRICINGS
from advisor.catalogue.tables import Column, read, text
from advisor.errors import CatalogueError

COLUMNS: Final = (
    text("rule", is_required=True),
    text("provider", is_required=True),
    text("instance_type", is_optional=True),
    text("region", is_optional=True),
    text("pricing", is_optional=True),
    Column(name="value", high=files.MAX_PRICE_USD_PER_H, is_optional=True),
    text("unit", is_optional=True),
    text("service", is_optional=True),
    Column(name="count", low=1, high=1_000_000, is_optional=True),
    Column(name="hours", low=0.01, high=100_000, is_optional=True),
    Column(name="vcpus", low=1, high=100_000, is_optional=True),
    Column(name="memory_gib", low=0.05, high=1_000_000, is_optional=True),
    text("accelerator", is_optional=True),
    Column(name="accelerator_count", low=0.01, high=10_000, is_optional=True),
    Column(name="network_gbps", high=1_000_000, is_optional=True),
    text("rdma", is_optional=True),
    text("intra_node_link", is_optional=True),
    Column(name="coremark_per_vcpu", low=100, high=1_000_000, is_optional=True),
    text("note", is_optional=True),
)
UNITS: Final = ("instances", "vcpus", "gpus")
_NEEDED: Final = {
    "price": ("instance_type", "value"),
    "factor": ("value",),
    "service": ("value", "service"),
    "machine": ("instance_type", "value", "vcpus", "memory_gib"),
    "network": ("instance_type",),
    "quota": ("value",),
    "region": ("region",),
    "reserved": ("instance_type", "region", "value", "count"),
    "block": ("instance_type", "region", "value", "count", "hours"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the file; ``place`` names it in errors and as a source."""

    place: str
    rule: str
    provider: str
    instance_type: str = ""
    region: str = ""
    pricing: str = ""
    value: float = np.nan
    unit: str = ""
    service: str = ""
    count: float = np.nan
    hours: float = np.nan
    vcpus: float = np.nan
    memory_gib: float = np.nan
    accelerator: str = ""
    accelerator_count: float = np.nan
    network_gbps: float = np.nan
    rdma: str = ""
    intra_node_link: str = ""
    coremark_per_vcpu: float = np.nan
    note: str = ""

    def fault(self, column: str, what: str, hint: str) -> CatalogueError:
        """Make the error that names this row and one of its columns."""
        return CatalogueError(f"{self.place}, column {column!r}: {what}", hint=hint)


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Read and check the user's file.

    Raises CatalogueError if the file cannot be read or a row makes no sense; it names the row and
    the column.
    """
    table = read(path, COLUMNS)
    rows = zip(*(list(values) for values in table.values()), strict=True)
    rules = []
    for number, row in enumerate(rows, start=2):
        cells: dict[str, Any] = dict(zip(table, row, strict=True))
        rules.append(Rule(place=f"{path.name}, row {number}", **cells))
        _check(rules[-1])
    return tuple(rules)


def _check(rule: Rule) -> None:
    if rule.rule not in _NEEDED:
        raise rule.fault("rule", f"is {rule.rule!r}", f"one of: {', '.join(_NEEDED)}")
    for name in _NEEDED[rule.rule]:
        value = getattr(rule, name)
        if value == "" or value != value:
            raise rule.fault(name, "is empty", f"the rule {rule.rule!r} needs it")
    if rule.rule in ("price", "factor", "service", "machine", "block") and not rule.value > 0:
        raise rule.fault("value", f"is {rule.value:g}", "it must be above 0")
    if rule.pricing and rule.pricing not in PRICINGS:
        raise rule.fault("pricing", f"is {rule.pricing!r}", f"one of: {', '.join(PRICINGS)}")
    if rule.rule == "network" and not (rule.network_gbps > 0 or rate_of(rule.rdma)):
        what = f"is {rule.network_gbps:g}"
        raise rule.fault("network_gbps", what, "give Gbit/s, or rdma with its rate: IB-1600")
    if rule.rule == "quota" and (rule.unit or "instances") not in UNITS:
        raise rule.fault("unit", f"is {rule.unit!r}", f"one of: {', '.join(UNITS)}")
