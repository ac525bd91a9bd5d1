"""Lay the user's rules over a snapshot: negotiated prices, own machines, quotas, regions.

Rules are rows of the user's ``overrides.csv``. ``instance_type`` and ``region`` are globs where
they choose among what exists; empty is all.

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

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import files
from advisor.catalogue.accelerators import Accelerator
from advisor.catalogue.networks import GBIT_BYTES, bypasses_kernel, rate_of, sustained_network
from advisor.catalogue.offer_columns import (
    OWN_LISTING,
    PRICINGS,
    Bools,
    Ints,
    Offers,
    Pricing,
    Provenance,
    TableRow,
    Texts,
    TypeColumns,
    column_of,
)
from advisor.catalogue.select import canonical
from advisor.catalogue.snapshot import Kind, Snapshot
from advisor.catalogue.tables import read_facts
from advisor.errors import AdvisorError, CatalogueError
from advisor.planners.core import GIB
from advisor.providers import SHORTEST_BILL_H

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
_RULE_HINT: Final = f"one of: {', '.join(_NEEDED)}"
_RULE, *_OTHERS = files.columns("overrides")
COLUMNS: Final = (replace(_RULE, hint=_RULE_HINT), *_OTHERS)
UNITS: Final = ("instances", "vcpus", "gpus")


def _fault(rule: TableRow, column: str, what: str, hint: str) -> CatalogueError:
    return CatalogueError(f"{rule.place}, column {column!r}: {what}", hint=hint)


def read_rules(path: Path) -> tuple[TableRow, ...]:
    """Read and check the user's file: ``COLUMNS``, an unknown number is NaN, and two more.

    ``place`` names the row in errors and as a source; ``saved_at`` is the day of the file, which
    prices set by the user carry.

    Raises CatalogueError if the file cannot be read or a row makes no sense; it names the row and
    the column.
    """
    rows = read_facts(path, COLUMNS)
    saved = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
    rules = []
    for number, row in enumerate(rows, start=2):
        facts = {name: np.nan if value is None else value for name, value in row.items()}
        place = f"{path.name}, row {number}"
        rules.append(TableRow(place=place, saved_at=saved.isoformat(), **facts))
        _check(rules[-1])
    return tuple(rules)


def _check(rule: TableRow) -> None:
    if rule.rule not in _NEEDED:
        raise _fault(rule, "rule", f"is {rule.rule!r}", _RULE_HINT)
    for name in _NEEDED[rule.rule]:
        value = getattr(rule, name)
        if value == "" or value != value:
            raise _fault(rule, name, "is empty", f"the rule {rule.rule!r} needs it")
    if rule.rule in ("price", "factor", "service", "machine", "block") and not rule.value > 0:
        raise _fault(rule, "value", f"is {rule.value:g}", "it must be above 0")
    if rule.pricing and rule.pricing not in PRICINGS:
        raise _fault(rule, "pricing", f"is {rule.pricing!r}", f"one of: {', '.join(PRICINGS)}")
    if rule.rule == "network" and not (rule.network_gbps > 0 or rate_of(rule.rdma)):
        what = f"is {rule.network_gbps:g}"
        raise _fault(rule, "network_gbps", what, "give Gbit/s, or rdma with its rate: IB-1600")
    if rule.rule == "quota" and (rule.unit or "instances") not in UNITS:
        raise _fault(rule, "unit", f"is {rule.unit!r}", f"one of: {', '.join(UNITS)}")


OWN_REGION: Final = "on-premises"


def apply_rules(rules: Sequence[TableRow], to: Kind) -> Kind:
    """Return a snapshot with the rules laid over it, in their order.

    Those on regions come last, for they hold for all others. Raises CatalogueError if a rule
    matches nothing or names an unknown accelerator.
    """
    regions = [rule for rule in rules if rule.rule == "region"]
    for rule in rules:
        if rule.rule != "region":
            to = _RULES[rule.rule](rule, to)
    return _keep_regions(regions, to) if regions else to


def _add_machine(rule: TableRow, offers: Kind) -> Kind:
    types = offers.types
    if ((types.provider == rule.provider) & (types.name == rule.instance_type)).any():
        what = f"{rule.provider} has a type {rule.instance_type!r} already"
        raise _fault(rule, "instance_type", what, "give the machine another name")
    prices = _with_row(
        offers.prices, rule, len(types), rule.region or OWN_REGION,
        on_demand_usd_per_h=rule.value, max_instances=np.nan_to_num(rule.count, nan=np.inf),
    )  # fmt: skip
    machine = _machine(rule, _accelerator(rule, offers))
    return replace(offers, types=types.join(machine), prices=prices)


def _accelerator(rule: TableRow, offers: Snapshot) -> Accelerator | None:
    if not rule.accelerator:
        return None
    try:
        name = canonical(rule.accelerator, offers.accelerators, offers.aliases)
    except AdvisorError as error:
        raise _fault(rule, "accelerator", str(error), error.hint) from error
    return offers.accelerators[name]


def _own(rule: TableRow) -> Provenance:
    return Provenance(
        as_of=rule.saved_at,
        status=f"own {rule.rule}",
        spot_status="",
        listing=OWN_LISTING,
        source=rule.place + (f": {rule.note}" if rule.note else ""),
        licence="",
    )


def _of_types(rule: TableRow, types: TypeColumns) -> Bools:
    """Return which types a rule chooses; that it chooses none is an error."""
    own: Bools = types.provider == rule.provider
    if not own.any():
        known = ", ".join(sorted(set(types.provider.tolist())))
        raise _fault(rule, "provider", f"is {rule.provider!r}", f"one of: {known}")
    own = own & _globbed(types.name, rule.instance_type)
    if not own.any():
        what = f"{rule.instance_type!r} matches no type of {rule.provider}"
        raise _fault(rule, "instance_type", what, "see: advisor catalogue list")
    return own


def _chosen(rule: TableRow, offers: Snapshot) -> Ints:
    """Return the rows of the prices that a rule chooses; that there is none is an error."""
    prices = offers.prices
    rows = _of_types(rule, offers.types)[prices.type_index]
    rows &= _globbed(prices.regions, rule.region)[prices.region_index]
    if not rows.any():
        what = f"{rule.region!r} matches no region in which these types have a price"
        raise _fault(rule, "region", what, "leave it empty for all regions")
    return np.flatnonzero(rows)


def _globbed(names: Texts, glob: str) -> Bools:
    if not glob:
        return np.ones(len(names), dtype=bool)
    return np.array([fnmatch.fnmatchcase(name, glob) for name in names.tolist()], dtype=bool)


def _set_price(rule: TableRow, offers: Kind) -> Kind:
    """Set a price; one type in one new region gets a row of its own."""
    prices = offers.prices
    pricing: Pricing = next((way for way in PRICINGS if way == rule.pricing), "on-demand")
    types = np.flatnonzero(_of_types(rule, offers.types))
    is_new = rule.region and not (set(rule.region) & set("*?[")) and len(types) == 1
    if is_new and not ((prices.type_index == types[0]) & (prices.region == rule.region)).any():
        price = {column_of(pricing): rule.value}
        return replace(offers, prices=_with_row(prices, rule, int(types[0]), rule.region, **price))
    rows, own = _chosen(rule, offers), _own(rule)
    # The prices of one way to pay become the user's; the others stay their source's.
    prices = _attributed(
        prices, rows,
        lambda one: replace(
            one, own=(*one.own, pricing), own_as_of=rule.saved_at, listing=own.listing,
            source=own.source,
        ),
    )  # fmt: skip
    return replace(offers, prices=prices.with_prices(rows, {pricing: rule.value}))


def _reserve(rule: TableRow, offers: Kind) -> Kind:
    """Add machines that are held for the user, beside those that anybody can rent."""
    types = np.flatnonzero(_of_types(rule, offers.types))
    if len(types) != 1:
        what = f"{rule.instance_type!r} names {len(types)} types of {rule.provider}"
        raise _fault(rule, "instance_type", what, "name one type a row")
    if rule.region not in offers.prices.regions:
        raise _fault(rule, "region", f"{rule.region!r} is unknown", "see: advisor catalogue list")
    terms = {"on_demand_usd_per_h": rule.value, "max_instances": rule.count}
    if rule.rule == "block":
        terms |= {"shortest_bill_h": rule.hours, "bill_step_h": rule.hours}
    prices = _with_row(offers.prices, rule, int(types[0]), rule.region, **terms)
    return replace(offers, prices=prices)


def _scale(rule: TableRow, offers: Kind) -> Kind:
    rows = _chosen(rule, offers)
    return replace(offers, prices=_scaled(rule, _derived(rule, offers.prices, rows), rows))


def _scaled(rule: TableRow, prices: Offers, rows: Ints) -> Offers:
    ways = [way for way in PRICINGS if rule.pricing in ("", way)]
    return prices.with_prices(
        rows, {way: prices.usd_per_h(way)[rows] * rule.value for way in ways}
    )


def _derived(rule: TableRow, prices: Offers, rows: Ints) -> Offers:
    """Mark prices as computed from a listed one: its date stays, its status says how."""
    how = f" x {rule.value:g} by {rule.place}"

    def marked(one: Provenance) -> Provenance:
        spot = one.spot_status and one.spot_status + how
        return replace(one, status=one.status + how, spot_status=spot)

    return _attributed(prices, rows, marked)


def _attributed(prices: Offers, rows: Ints, made: Callable[[Provenance], Provenance]) -> Offers:
    """Return the prices, some rows from what is made of their source."""
    used, which = np.unique(prices.provenance_index[rows], return_inverse=True)
    index = prices.provenance_index.copy()
    index[rows] = len(prices.provenances) + which
    added = (made(prices.provenances[at]) for at in used.tolist())
    return replace(prices, provenance_index=index, provenances=(*prices.provenances, *added))


def _add_service(rule: TableRow, offers: Kind) -> Kind:
    """Copy the chosen offers and their types as the service's, at its multiple of the price."""
    types, prices = offers.types, offers.prices
    if rule.service in types.provider.tolist():
        raise _fault(rule, "service", f"{rule.service!r} is a provider", "give it its own name")
    rows = _chosen(rule, offers)
    used, new_index = np.unique(prices.type_index[rows], return_inverse=True)
    copied = replace(types.take(used), provider=np.full(len(used), rule.service))
    first = len(prices)
    extra = replace(prices.take(rows), type_index=len(types) + new_index)
    joined = prices.join(extra)
    added = np.arange(first, len(joined))
    joined = _scaled(rule, _derived(rule, joined, added), added)
    if rule.pricing:
        others = [way for way in PRICINGS if way != rule.pricing]
        joined = joined.with_prices(added, dict.fromkeys(others, np.nan))
    return replace(offers, types=types.join(copied), prices=joined)


def _set_network(rule: TableRow, offers: Kind) -> Kind:
    """Set the network of types; where the rule names no transport, theirs is plain Ethernet."""
    types = offers.types
    rows = _of_types(rule, types)

    def put(column: NDArray[Any], value: object) -> NDArray[Any]:
        return np.where(rows, value, column)  # type: ignore[call-overload,no-any-return]

    sustained = sustained_network(rule.network_gbps, rule.rdma)
    changed = replace(
        types,
        network_bytes_per_s=put(types.network_bytes_per_s, sustained),
        network_burst_bytes_per_s=put(
            types.network_burst_bytes_per_s, rule.network_gbps * GBIT_BYTES
        ),
        rdma=put(types.rdma, rule.rdma),
        rdma_share=put(types.rdma_share, float(bypasses_kernel(rule.rdma))),
        network_source=put(types.network_source, rule.place),
    )
    return replace(offers, types=changed)


def _limit(rule: TableRow, offers: Kind) -> Kind:
    """Lower the number of instances; a quota of vCPUs or GPUs is rounded down to whole ones."""
    rows = _chosen(rule, offers)
    types, prices = offers.types, offers.prices
    size = {"vcpus": types.vcpus, "gpus": types.accelerator_count}.get(rule.unit)
    allowed = np.full(len(types), np.floor(rule.value))
    if size is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            allowed = np.where(size > 0, np.floor(rule.value / size), np.inf)
    most = prices.max_instances.copy()
    most[rows] = np.minimum(most[rows], allowed[prices.type_index[rows]])
    return replace(offers, prices=replace(prices, max_instances=most))


def _keep_regions(rules: Sequence[TableRow], offers: Kind) -> Kind:
    """Keep of each provider that has such rules only what one of them allows."""
    prices = offers.prices
    owner = offers.types.provider[prices.type_index]
    dropped = np.isin(owner, [rule.provider for rule in rules])
    for rule in rules:
        dropped[_chosen(rule, offers)] = False
    return replace(offers, prices=prices.take(~dropped))


def _machine(rule: TableRow, accelerator: Accelerator | None) -> TypeColumns:
    """Make the row of one's own machine, to stand after the others."""
    count = 1.0 if np.isnan(rule.accelerator_count) else rule.accelerator_count
    return TypeColumns.filled(
        1,
        device=-1,
        provider=rule.provider,
        name=rule.instance_type,
        vcpus=rule.vcpus,
        memory_bytes=rule.memory_gib * GIB,
        accelerator=accelerator.name if accelerator else "",
        accelerator_count=count if accelerator else 0.0,
        accelerator_memory_bytes=accelerator.memory_bytes if accelerator else np.nan,
        network_bytes_per_s=sustained_network(rule.network_gbps, rule.rdma),
        network_burst_bytes_per_s=rule.network_gbps * GBIT_BYTES,
        rdma=rule.rdma,
        rdma_share=float(bypasses_kernel(rule.rdma)),
        intra_node_link=rule.intra_node_link,
        core_speed=rule.coremark_per_vcpu,
        cpu_baseline=1.0,
        cpu_launch_h=0.0,
        core_speed_source="unknown" if np.isnan(rule.coremark_per_vcpu) else "measured",
        source=rule.place,
    )


def _with_row(
    prices: Offers, rule: TableRow, type_index: int, region: str, **known: float
) -> Offers:
    """Append what a rule sells of a type, in a region that may be new."""
    at = np.flatnonzero(prices.regions == region)
    regions = prices.regions if len(at) else np.append(prices.regions, region)
    terms = {"max_instances": np.inf, "shortest_bill_h": SHORTEST_BILL_H, "bill_step_h": 0.0}
    row = Offers.filled(
        1,
        type_index=type_index,
        region_index=int(at[0]) if len(at) else len(prices.regions),
        regions=regions,
        provenance_index=len(prices.provenances),
        provenances=(*prices.provenances, _own(rule)),
        **terms | known,
    )
    return replace(prices, regions=regions, provenances=row.provenances).join(row)


_RULES: Final[Mapping[str, Callable[[TableRow, Any], Any]]] = {
    "machine": _add_machine,
    "price": _set_price,
    "reserved": _reserve,
    "block": _reserve,
    "factor": _scale,
    "service": _add_service,
    "network": _set_network,
    "quota": _limit,
}
