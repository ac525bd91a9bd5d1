"""Lay the user's rules over a snapshot: negotiated prices, own machines, quotas, regions."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue.billing import SHORTEST_BILL_H
from advisor.catalogue.columns import Bools, Ints, PriceColumns, Texts, TypeColumns
from advisor.catalogue.networks import GBIT_BYTES, bypasses_kernel, sustained_network
from advisor.catalogue.nouns import PRICINGS, Accelerator, Pricing, Provenance
from advisor.catalogue.rules import Rule
from advisor.errors import AdvisorError
from advisor.planners.core.units import GIB

OWN_REGION: Final = "on-premises"
OWN_LISTING: Final = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """What rules change: the two tables."""

    types: TypeColumns
    prices: PriceColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Rules and what is needed to apply them."""

    rules: tuple[Rule, ...]
    saved_at: str  # ISO date that prices set by the user carry
    accelerators: Mapping[str, Accelerator]
    canonical: Callable[[str], str]  # from an accelerator's name as typed to its canonical name

    def apply(self, types: TypeColumns, prices: PriceColumns) -> Offers:
        """Apply the rules in order; those on regions come last, for they hold for all others.

        Raises CatalogueError if a rule matches nothing or names an unknown accelerator.
        """
        offers = Offers(types=types, prices=prices)
        regions = [rule for rule in self.rules if rule.rule == "region"]
        for rule in self.rules:
            if rule.rule == "machine":
                offers = self._add_machine(rule, offers)
            elif rule.rule == "price":
                offers = _set_price(rule, offers, self.saved_at)
            elif rule.rule in ("reserved", "block"):
                offers = _reserve(rule, offers, self.saved_at)
            elif rule.rule != "region":
                offers = _RULES[rule.rule](rule, offers)
        return _keep_regions(regions, offers) if regions else offers

    def _add_machine(self, rule: Rule, offers: Offers) -> Offers:
        types = offers.types
        if ((types.provider == rule.provider) & (types.name == rule.instance_type)).any():
            what = f"{rule.provider} has a type {rule.instance_type!r} already"
            raise rule.fault("instance_type", what, "give the machine another name")
        accelerator = self._accelerator(rule)
        machine = _machine(rule, accelerator, types)
        at = np.array([len(types)])
        added = _with_rows(offers.prices, at, rule.region or OWN_REGION, self._own(rule))
        added = added.with_prices(np.array([len(added) - 1]), {"on-demand": rule.value})
        most = added.max_instances.copy()
        most[-1] = np.inf if np.isnan(rule.count) else rule.count
        return Offers(types=types.join(machine), prices=replace(added, max_instances=most))

    def _accelerator(self, rule: Rule) -> Accelerator | None:
        if not rule.accelerator:
            return None
        try:
            return self.accelerators[self.canonical(rule.accelerator)]
        except AdvisorError as error:
            raise rule.fault("accelerator", str(error), error.hint) from error

    def _own(self, rule: Rule) -> Provenance:
        return _own(rule, self.saved_at)


def _own(rule: Rule, saved_at: str) -> Provenance:
    return Provenance(
        as_of=saved_at,
        status=f"own {rule.rule}",
        spot_status="",
        listing=OWN_LISTING,
        source=rule.place + (f": {rule.note}" if rule.note else ""),
        licence="",
    )


def _of_types(rule: Rule, types: TypeColumns) -> Bools:
    """Return which types a rule chooses; that it chooses none is an error."""
    own: Bools = types.provider == rule.provider
    if not own.any():
        known = ", ".join(sorted(set(types.provider.tolist())))
        raise rule.fault("provider", f"is {rule.provider!r}", f"one of: {known}")
    own = own & _globbed(types.name, rule.instance_type)
    if not own.any():
        what = f"{rule.instance_type!r} matches no type of {rule.provider}"
        raise rule.fault("instance_type", what, "see: advisor catalogue list")
    return own


def _chosen(rule: Rule, offers: Offers) -> Ints:
    """Return the rows of the prices that a rule chooses; that there is none is an error."""
    prices = offers.prices
    rows = _of_types(rule, offers.types)[prices.type_index]
    rows &= _globbed(prices.regions, rule.region)[prices.region_index]
    if not rows.any():
        what = f"{rule.region!r} matches no region in which these types have a price"
        raise rule.fault("region", what, "leave it empty for all regions")
    return np.flatnonzero(rows)


def _globbed(names: Texts, glob: str) -> Bools:
    if not glob:
        return np.ones(len(names), dtype=bool)
    return np.array([fnmatch.fnmatchcase(name, glob) for name in names.tolist()], dtype=bool)


def _set_price(rule: Rule, offers: Offers, saved_at: str) -> Offers:
    """Set a price; one type in one new region gets a row of its own."""
    prices = offers.prices
    pricing: Pricing = next((way for way in PRICINGS if way == rule.pricing), "on-demand")
    types = np.flatnonzero(_of_types(rule, offers.types))
    is_new = rule.region and not (set(rule.region) & set("*?[")) and len(types) == 1
    if is_new and not ((prices.type_index == types[0]) & (prices.region == rule.region)).any():
        prices = _with_rows(prices, types, rule.region, _own(rule, saved_at))
        rows = np.array([len(prices) - 1])
    else:
        rows = _chosen(rule, offers)
        prices = _attributed(prices, rows, [_own(rule, saved_at)], np.zeros(len(rows), dtype=int))
    return replace(offers, prices=prices.with_prices(rows, {pricing: rule.value}))


def _reserve(rule: Rule, offers: Offers, saved_at: str) -> Offers:
    """Add machines that are held for the user, beside those that anybody can rent."""
    types = np.flatnonzero(_of_types(rule, offers.types))
    if len(types) != 1:
        what = f"{rule.instance_type!r} names {len(types)} types of {rule.provider}"
        raise rule.fault("instance_type", what, "name one type a row")
    if rule.region not in offers.prices.regions:
        raise rule.fault("region", f"{rule.region!r} is unknown", "see: advisor catalogue list")
    prices = _with_rows(offers.prices, types, rule.region, _own(rule, saved_at))
    prices = prices.with_prices(np.array([len(prices) - 1]), {"on-demand": rule.value})
    terms = {"max_instances": rule.count}
    if rule.rule == "block":
        terms |= {"shortest_bill_h": rule.hours, "bill_step_h": rule.hours}
    columns = {name: getattr(prices, name).copy() for name in terms}
    for name, value in terms.items():
        columns[name][-1] = value
    return replace(offers, prices=replace(prices, **columns))


def _scale(rule: Rule, offers: Offers) -> Offers:
    rows = _chosen(rule, offers)
    return replace(offers, prices=_scaled(rule, _derived(rule, offers.prices, rows), rows))


def _scaled(rule: Rule, prices: PriceColumns, rows: Ints) -> PriceColumns:
    ways = [way for way in PRICINGS if rule.pricing in ("", way)]
    return prices.with_prices(
        rows, {way: prices.usd_per_h(way)[rows] * rule.value for way in ways}
    )


def _derived(rule: Rule, prices: PriceColumns, rows: Ints) -> PriceColumns:
    """Mark prices as computed from a listed one: its date stays, its status says how."""
    used, inverse = np.unique(prices.provenance_index[rows], return_inverse=True)
    made = [
        replace(
            prices.provenances[at],
            status=f"{prices.provenances[at].status} x {rule.value:g} by {rule.place}",
        )
        for at in used.tolist()
    ]
    return _attributed(prices, rows, made, inverse)


def _attributed(
    prices: PriceColumns, rows: Ints, made: Sequence[Provenance], which: Ints
) -> PriceColumns:
    index = prices.provenance_index.copy()
    index[rows] = len(prices.provenances) + which
    return replace(prices, provenance_index=index, provenances=(*prices.provenances, *made))


def _add_service(rule: Rule, offers: Offers) -> Offers:
    """Copy the chosen offers and their types as the service's, at its multiple of the price."""
    types, prices = offers.types, offers.prices
    if rule.service in types.provider.tolist():
        raise rule.fault("service", f"{rule.service!r} is a provider", "give it its own name")
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
    return Offers(types=types.join(copied), prices=joined)


def _set_network(rule: Rule, offers: Offers) -> Offers:
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
        is_rdma=put(types.is_rdma, bypasses_kernel(rule.rdma)),
        network_source=put(types.network_source, rule.place),
    )
    return replace(offers, types=changed)


def _limit(rule: Rule, offers: Offers) -> Offers:
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


def _keep_regions(rules: Sequence[Rule], offers: Offers) -> Offers:
    """Keep of each provider that has such rules only what one of them allows."""
    prices = offers.prices
    owner = offers.types.provider[prices.type_index]
    dropped = np.isin(owner, [rule.provider for rule in rules])
    for rule in rules:
        dropped[_chosen(rule, offers)] = False
    return replace(offers, prices=prices.take(~dropped))


def _machine(rule: Rule, accelerator: Accelerator | None, like: TypeColumns) -> TypeColumns:
    """Make the row of one's own machine; ``like`` gives the columns their kinds."""
    blank = {
        name: np.array([np.nan if column.dtype.kind == "f" else ""])
        for name, column in like.by_name().items()
    }
    count = 1.0 if np.isnan(rule.accelerator_count) else rule.accelerator_count
    known: dict[str, object] = {
        "provider": rule.provider,
        "name": rule.instance_type,
        "vcpus": rule.vcpus,
        "memory_bytes": rule.memory_gib * GIB,
        "accelerator": accelerator.name if accelerator else "",
        "accelerator_count": count if accelerator else 0.0,
        "accelerator_memory_bytes": accelerator.memory_bytes if accelerator else np.nan,
        "network_bytes_per_s": sustained_network(rule.network_gbps, rule.rdma),
        "network_burst_bytes_per_s": rule.network_gbps * GBIT_BYTES,
        "rdma": rule.rdma,
        "is_rdma": bypasses_kernel(rule.rdma),
        "network_source": "",
        "intra_node_link": rule.intra_node_link,
        "core_speed": rule.coremark_per_vcpu,
        "core_speed_source": "unknown" if np.isnan(rule.coremark_per_vcpu) else "measured",
        "source": rule.place,
    }
    return replace(like, **{**blank, **{name: np.array([one]) for name, one in known.items()}})


def _with_rows(
    prices: PriceColumns, types: Ints, region: str, provenance: Provenance
) -> PriceColumns:
    """Append a row without a price for each type, in a region that may be new."""
    at = np.flatnonzero(prices.regions == region)
    regions = prices.regions if len(at) else np.append(prices.regions, region)
    place = int(at[0]) if len(at) else len(prices.regions)
    nothing = np.full(len(types), np.nan)
    known: dict[str, Any] = dict.fromkeys(prices.by_name(), nothing)
    known |= {
        "type_index": types,
        "region_index": np.full(len(types), place),
        "max_instances": np.full(len(types), np.inf),
        "shortest_bill_h": np.full(len(types), SHORTEST_BILL_H),
        "bill_step_h": np.zeros(len(types)),
        "provenance_index": np.full(len(types), len(prices.provenances)),
    }
    rows = replace(prices, **known)
    widened = replace(prices, regions=regions, provenances=(*prices.provenances, provenance))
    return widened.join(rows)


_RULES: Final[Mapping[str, Callable[[Rule, Offers], Offers]]] = {
    "factor": _scale,
    "service": _add_service,
    "network": _set_network,
    "quota": _limit,
}
