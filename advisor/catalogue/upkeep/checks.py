"""Check what an adapter read before it is believed; each rule comes from a real case.

===================  ==========================================================================
rule                 does      seen in
===================  ==========================================================================
no-price             drops     Azure's H100 at $0 (skypilot#3615); 2,754 zeros of libcloud's list
unknown-accelerator  drops     accelerators of a name that nobody describes
accelerator-memory   corrects  A100 of 40 or 80 GB under one name; "SizeInMiB: 80" of RunPod
machine-size         drops     memory in MiB or bytes where GiB were meant
sentinel             drops     TPU v6e at 700.0 whatever the size, where the price is unknown
host-only            drops     A2 read without its GPUs (skypilot-catalog#31)
region-outlier       drops     H100 x8 at 0.36-0.49 of other regions: another product's price;
                     or flags  CPU-only types do differ by that much (Azure's Brazil South East)
spot-above           drops     spot prices above the on-demand price
spot-is-on-demand    drops     RunPod: every spot price equals the on-demand price
dedicated-tenancy    marks     bare metal 6-10 % above the same virtual machine (karpenter)
uneven-price         flags     L40 x4 dearer than twice L40 x2 (Shadeform)
every-region         corrects  every type in every region at one price (Lambda, OCI)
sudden-change        refuses   a type's price changed by more than 30 %; ``--accept``
fewer-prices         refuses   more than 10 % of the prices are gone; ``--accept-fewer``
===================  ==========================================================================

Rules about types come first, then those about prices that compare sizes, regions and ways to pay;
the last two refuse a list that differs too much from the one before.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final, Literal

from advisor.catalogue.accelerators import Accelerator
from advisor.catalogue.files import MAX_PRICE_USD_PER_H
from advisor.catalogue.rows import Listed, ListedOffer, types_of, with_types
from advisor.errors import AdvisorError
from advisor.quantities import percent_text

EVERYWHERE: Final = "all-regions"  # the region of a list price that names none
Severity = Literal["dropped", "corrected", "marked", "flagged", "refused", "accepted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a rule found; ``instance_type`` and ``region`` may be ``""``."""

    rule: str
    severity: Severity
    provider: str
    instance_type: str = ""
    region: str = ""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What rules compare with."""

    before: Listed  # the snapshot in use
    outdated: tuple[str, ...]  # what the sources begin with whose prices the new ones replace
    accelerators: Mapping[str, Accelerator]
    # from an accelerator's name to canonical names; raises ``AdvisorError``
    members: Callable[[str], Collection[str]]
    canonical: Callable[[str], str]  # the same for a name that means one; raises ``AdvisorError``

    def replaced_by(self, prices: Iterable[ListedOffer]) -> tuple[ListedOffer, ...]:
        """Return the prices of before that new ones replace."""
        return replaced_by(prices, self.before, self.outdated)


def replaced_by(
    new: Iterable[ListedOffer], before: Iterable[ListedOffer], outdated: tuple[str, ...]
) -> tuple[ListedOffer, ...]:
    """Return the prices of before that new ones replace.

    A region is replaced as a whole, as far as its prices come from an outdated source; a price
    with a new one of its own in any case. A list price without a region stands for all of them.
    """
    keys = {one.key for one in new if one.region}
    regions = {(provider, region) for provider, _, region in keys}
    everywhere = {provider for provider, region in regions if region == EVERYWHERE}
    providers = {provider for provider, _ in regions}

    def is_covered(one: ListedOffer) -> bool:
        return (
            (one.provider, one.region) in regions
            or one.provider in everywhere
            or (one.provider in providers and one.region == EVERYWHERE)
        )

    return tuple(
        one
        for one in before
        if one.region
        if one.key in keys or (is_covered(one) and one.sold.source.startswith(outdated))
    )


Checked = tuple[Listed, list[Finding]]
Rule = Callable[[Listed, Context], Checked]


COLUMNS: Final = (
    "on_demand_usd_per_h",
    "spot_usd_per_h",
    "reserved_1y_usd_per_h",
    "reserved_3y_usd_per_h",
)
Types = Mapping[tuple[str, str], ListedOffer]


def known_types(rows: Listed, context: Context) -> Types:
    """Return the new types over those known before; what is known before is more complete."""
    return types_of(rows) | types_of(context.before)


Keep = Callable[[ListedOffer], tuple[ListedOffer | None, str]]


def each_price(rows: Listed, rule: str, severity: Severity, keep: Keep) -> Checked:
    """Apply a rule to every price.

    ``keep`` returns what is left of a price, and a message where something is wrong with it; of
    what is dropped nothing is left, whatever the rule does else.
    """
    kept: list[ListedOffer] = []
    findings: list[Finding] = []
    for row in rows:
        left, message = keep(row) if row.region else (row, "")
        if left is not None:
            kept.append(left)
        if message:
            findings.append(finding(rule, severity if left else "dropped", row, message))
    return tuple(kept), findings


def finding(rule: str, severity: Severity, row: ListedOffer, message: str) -> Finding:
    """Name what a rule found in a price or a type."""
    place = {name: getattr(row, name) for name in ("provider", "instance_type", "region")}
    return Finding(rule=rule, severity=severity, message=message, **place)


def by_provider(rule: str, severity: Severity, found: Mapping[str, str]) -> list[Finding]:
    """Name what a rule found of whole providers: a message each."""
    return [
        Finding(rule=rule, severity=severity, provider=name, message=message)
        for name, message in sorted(found.items())
    ]


_OUTLIER: Final = (0.5, 2.0)  # of the median over regions
_MIN_REGIONS: Final = 4
_DEDICATED: Final = (1.03, 1.15)  # of the virtual machine's price
NO_STOCK: Final = "list-price-no-stock-info"


def drop_missing(rows: Listed, context: Context) -> Checked:
    """Drop prices that are none: zero, not finite, or absurd."""

    def keep(row: ListedOffer) -> tuple[ListedOffer | None, str]:
        prices = ((column, getattr(row, column)) for column in COLUMNS)
        wrong = {
            column: usd
            for column, usd in prices
            if usd is not None and not 0 < usd <= MAX_PRICE_USD_PER_H
        }
        if not wrong:
            return row, ""
        message = ", ".join(f"{column} is {usd:g}" for column, usd in wrong.items())
        left = replace(row, **dict.fromkeys(wrong))
        has_price = any(getattr(left, column) is not None for column in COLUMNS)
        return left if has_price else None, message

    return each_price(rows, "no-price", "dropped", keep)


def check_regions(rows: Listed, context: Context) -> Checked:
    """Drop prices of accelerated types far from the type's median over regions; flag others."""
    types = known_types(rows, context)
    medians = _medians(rows)

    def keep(row: ListedOffer) -> tuple[ListedOffer | None, str]:
        usual, usd = medians.get(row.type_key), row.on_demand_usd_per_h
        if usual is None or usd is None or _OUTLIER[0] <= usd / usual <= _OUTLIER[1]:
            return row, ""
        message = f"{usd:g} is {usd / usual:.2f} of the median over regions"
        return None if types[row.type_key].accelerator else row, message

    return each_price(rows, "region-outlier", "flagged", keep)


def _medians(prices: Iterable[ListedOffer]) -> dict[tuple[str, str], float]:
    by_type: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in prices:
        if row.on_demand_usd_per_h is not None:
            by_type[row.type_key].append(row.on_demand_usd_per_h)
    return {key: median(found) for key, found in by_type.items() if len(found) >= _MIN_REGIONS}


def drop_spot_above(rows: Listed, context: Context) -> Checked:
    """Drop spot prices above the on-demand price."""

    def keep(row: ListedOffer) -> tuple[ListedOffer | None, str]:
        spot, on_demand = row.spot_usd_per_h, row.on_demand_usd_per_h
        if spot is None or on_demand is None or spot <= on_demand:
            return row, ""
        return _without_spot(row), f"spot {spot:g} above on-demand {on_demand:g}"

    return each_price(rows, "spot-above", "dropped", keep)


def drop_spot_copies(rows: Listed, context: Context) -> Checked:
    """Drop all spot prices of a provider where each is the on-demand price."""
    both: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        if row.spot_usd_per_h is not None and row.on_demand_usd_per_h is not None:
            both[row.provider].append(row.spot_usd_per_h == row.on_demand_usd_per_h)
    copies = {name for name, equal in both.items() if len(equal) >= _MIN_REGIONS and all(equal)}
    found = {
        name: f"all {len(both[name])} spot prices equal the on-demand price" for name in copies
    }
    left = tuple(_without_spot(row) if row.provider in copies else row for row in rows)
    return left, by_provider("spot-is-on-demand", "dropped", found)


def mark_dedicated(rows: Listed, context: Context) -> Checked:
    """Mark bare metal that costs a dedicated tenancy's surcharge over the virtual machine."""
    types = known_types(rows, context)
    virtual: dict[tuple[str, str, str, float | None], float] = {}
    for row in rows:
        if row.on_demand_usd_per_h is not None and ".metal" not in row.instance_type:
            virtual[_place(row, types)] = row.on_demand_usd_per_h

    def keep(row: ListedOffer) -> tuple[ListedOffer | None, str]:
        if ".metal" not in row.instance_type or row.on_demand_usd_per_h is None:
            return row, ""
        twin = virtual.get(_place(row, types))
        if twin is None or not _DEDICATED[0] < row.on_demand_usd_per_h / twin < _DEDICATED[1]:
            return row, ""
        marked = replace(row.sold, status="dedicated-tenancy")
        ratio = row.on_demand_usd_per_h / twin
        return replace(row, provenance=marked), f"{ratio:.2f} of the virtual machine's price"

    return each_price(rows, "dedicated-tenancy", "marked", keep)


def _place(row: ListedOffer, types: Types) -> tuple[str, str, str, float | None]:
    of = types[row.type_key]
    return row.provider, row.region, row.instance_type.partition(".")[0], of.vcpus


def collapse_regions(rows: Listed, context: Context) -> Checked:
    """Turn "every type in every region at one price" into a list price without a region."""
    regions: dict[str, set[str]] = defaultdict(set)
    prices: dict[str, dict[str, set[tuple[Any, ...]]]] = defaultdict(lambda: defaultdict(set))
    count: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.region and row.sold.listing == NO_STOCK:
            regions[row.provider].add(row.region)
            own = prices[row.provider][row.instance_type]
            own.add(tuple(getattr(row, column) for column in COLUMNS))
            count[row.provider] += 1
    collapsed = {
        name
        for name, found in regions.items()
        if len(found) >= _MIN_REGIONS
        and count[name] == len(found) * len(prices[name])
        and all(len(ways) == 1 for ways in prices[name].values())
    }
    kept: dict[tuple[str, str, str], ListedOffer] = {}
    for row in rows:
        one = replace(row, region=EVERYWHERE) if row.region and row.provider in collapsed else row
        kept.setdefault(one.key, one)
    found = {
        name: f"every type in all {len(regions[name])} regions at one price: one list price"
        for name in collapsed
    }
    return tuple(kept.values()), by_provider("every-region", "corrected", found)


def _without_spot(row: ListedOffer) -> ListedOffer:
    return replace(
        row,
        spot_usd_per_h=None,
        spot_interruption_band=None,
        provenance=row.provenance and replace(row.provenance, spot_status=""),
    )


_SUDDEN: Final = 0.30  # P4 and P5 fell by 33-44 % in 2025, and nothing else by more than 10
_FEWER: Final = 0.10
_WAYS: Final = ("on_demand_usd_per_h", "spot_usd_per_h")


def refuse_sudden_changes(rows: Listed, context: Context) -> Checked:
    """Refuse where a type's price changed by more than 30 %, as the median over regions."""
    replaced = context.replaced_by(rows)
    old = {row.key: row.on_demand_usd_per_h for row in replaced}
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        before = old.get(row.key)
        if before and row.on_demand_usd_per_h:
            ratios[row.provider, row.instance_type].append(row.on_demand_usd_per_h / before)
    changed = {key: median(found) for key, found in ratios.items()}
    findings = [
        Finding(
            rule="sudden-change",
            severity="refused",
            provider=provider,
            instance_type=name,
            message=f"the on-demand price changed by {percent_text(ratio - 1, signed=True)}",
        )
        for (provider, name), ratio in sorted(changed.items(), key=lambda item: item[1])
        if abs(ratio - 1) > _SUDDEN
    ]
    return rows, findings


def refuse_fewer_prices(rows: Listed, context: Context) -> Checked:
    """Refuse where more than a tenth of a provider's prices are gone, by way to pay."""
    findings = []
    replaced = context.replaced_by(rows)
    for way in _WAYS:
        before, after = (
            Counter(row.provider for row in prices if getattr(row, way) is not None)
            for prices in (replaced, rows)
        )
        name = way.removesuffix("_usd_per_h").replace("_", "-")
        found = {
            provider: f"{after[provider]:,} {name} prices where there were {count:,}"
            for provider, count in before.items()
            if after[provider] < (1 - _FEWER) * count
        }
        findings += by_provider("fewer-prices", "refused", found)
    return rows, findings


_SENTINEL_SIZES: Final = 3
_HOST_ONLY: Final = 0.25  # of the usual price per accelerator; A2's host alone is 0.20 of it
_UNEVEN: Final = 1.4  # price per accelerator against a smaller size's
_AS_MANY: Final = 0.8  # vCPUs to an accelerator, to be comparable


def drop_sentinels(rows: Listed, context: Context) -> Checked:
    """Drop a price that is the same whatever the size: it stands for "unknown"."""
    types = known_types(rows, context)
    sizes: dict[tuple[str, str, str, float], set[float]] = defaultdict(set)
    for row in rows:
        of = types[row.type_key]
        if row.on_demand_usd_per_h is not None:
            size = of.accelerator_count if of.accelerator else (of.memory_gib or 0.0)
            sizes[_sentinel_key(row, of)].add(size)
    suspicious = {key for key, found in sizes.items() if _spread(found, key[2] != "")}

    def keep(row: ListedOffer) -> tuple[ListedOffer | None, str]:
        of = types[row.type_key]
        if row.on_demand_usd_per_h is None or _sentinel_key(row, of) not in suspicious:
            return row, ""
        return None, f"{row.on_demand_usd_per_h:g} for {_SENTINEL_SIZES} and more sizes"

    return each_price(rows, "sentinel", "dropped", keep)


def _sentinel_key(row: ListedOffer, of: ListedOffer) -> tuple[str, str, str, float]:
    return row.provider, row.region, of.accelerator, row.on_demand_usd_per_h or 0.0


def _spread(sizes: set[float], is_accelerated: bool) -> bool:
    """Tell whether one price covers sizes that cannot cost the same.

    Azure sells one machine with fewer vCPUs at the same price: CPU-only sizes are told by their
    memory, and must differ by more than rounding does.
    """
    known = sorted(size for size in sizes if size > 0)
    if len(known) < _SENTINEL_SIZES:
        return False
    return known[-1] / known[0] >= (2.0 if is_accelerated else 8.0)


def drop_host_only(rows: Listed, context: Context) -> Checked:
    """Drop prices of accelerated types that are those of the machine without accelerators.

    An accelerator's price is compared with the provider's own median before; where the provider
    had none, with the cheapest of the others.
    """
    types = known_types(rows, context)
    usual = _usual_prices(context, types)

    def keep(row: ListedOffer) -> tuple[ListedOffer | None, str]:
        of = types[row.type_key]
        if not of.accelerator or row.on_demand_usd_per_h is None:
            return row, ""
        own = usual.get((row.provider, of.accelerator))
        known = own if own is not None else usual.get(("", of.accelerator))
        each = row.on_demand_usd_per_h / of.accelerator_count
        if known is None or each >= _HOST_ONLY * known:
            return row, ""
        return None, (
            f"{each:.3g} USD/h for a {of.accelerator}, usually {known:.3g}: "
            "the machine without it?"
        )

    return each_price(rows, "host-only", "dropped", keep)


def _usual_prices(context: Context, types: Types) -> dict[tuple[str, str], float]:
    """Return the price of an accelerator by provider (median), and under "" the cheapest."""
    known: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in context.before:
        of = types[row.type_key]
        if of.accelerator and row.on_demand_usd_per_h:
            each = row.on_demand_usd_per_h / of.accelerator_count
            known[row.provider, of.accelerator].append(each)
    usual = {key: median(prices) for key, prices in known.items()}
    for (_, accelerator), each in tuple(usual.items()):
        usual["", accelerator] = min(each, usual.get(("", accelerator), math.inf))
    return usual


def flag_uneven(rows: Listed, context: Context) -> Checked:
    """Flag sizes dearer per accelerator than a smaller size with as many vCPUs to each."""
    types = known_types(rows, context)
    findings: list[Finding] = []
    groups: dict[tuple[str, str, str], list[tuple[float, float, ListedOffer]]] = defaultdict(list)
    for row in rows:
        of = types[row.type_key]
        if of.accelerator and row.on_demand_usd_per_h is not None:
            each = row.on_demand_usd_per_h / of.accelerator_count
            vcpus = (of.vcpus or 0.0) / of.accelerator_count
            groups[row.provider, row.region, of.accelerator].append((each, vcpus, row))
    for group in groups.values():
        sizes = sorted(group, key=lambda one: one[2].on_demand_usd_per_h or 0.0)
        for at, (each, vcpus, row) in enumerate(sizes):
            smaller = [other for other, cores, _ in sizes[:at] if cores >= _AS_MANY * vcpus]
            if smaller and each > _UNEVEN * min(smaller):
                message = f"{each:.3g} USD/h an accelerator, {min(smaller):.3g} in a smaller size"
                findings.append(finding("uneven-price", "flagged", row, message))
    return rows, findings


_MEMORY_TOLERANCE: Final = 0.07  # decimal against binary gigabytes differ by as much
# GiB of main memory for a vCPU: from 0.23 (small shared machines) to 62 (24 TB for 448 vCPUs,
# halved by constrained-core sizes) in the bundled table; a unit error is a factor of 1,000.
_GIB_PER_VCPU: Final = (0.1, 300.0)


def resolve_accelerators(rows: Listed, context: Context) -> Checked:
    """Give accelerators their canonical names; the stated memory tells members of a family."""

    def keep(row: ListedOffer) -> tuple[dict[str, Any] | None, Finding | None]:
        if not row.accelerator:
            return {"accelerator_count": 0.0}, None
        try:
            name, message = _resolved(row, context)
        except AdvisorError as error:
            return None, _of_type("unknown-accelerator", "dropped", row, str(error))
        known = {"accelerator": name, "accelerator_count": row.accelerator_count or 1.0}
        if not message:
            return known, None
        return known, _of_type("accelerator-memory", "corrected", row, message)

    return _each_type(rows, keep)


def _of_type(rule: str, severity: Severity, row: ListedOffer, message: str) -> Finding:
    return finding(rule, severity, replace(row, region=""), message)


def _each_type(
    rows: Listed, keep: Callable[[ListedOffer], tuple[dict[str, Any] | None, Finding | None]]
) -> Checked:
    """Apply a rule to every type: it returns what to change, None to drop it."""
    found = {key: keep(row) for key, row in types_of(rows).items()}
    kept = tuple(
        replace(row, **changes) for row in rows if (changes := found[row.type_key][0]) is not None
    )
    return kept, [one for _, one in found.values() if one is not None]


def _resolved(row: ListedOffer, context: Context) -> tuple[str, str]:
    """Return the canonical name, and what was corrected to get it."""
    name = context.canonical(row.accelerator)
    stated = row.accelerator_memory_gib
    if stated is None or _agrees(context.accelerators[name], stated):
        return name, ""
    # A number of mebibytes that is one of gibibytes, and the sum over all devices.
    for factor in (1024.0, 1.0 / max(row.accelerator_count, 1.0)):
        if _agrees(context.accelerators[name], stated * factor):
            return name, ""
    family = name.split("-")[0]
    for member in sorted(context.members(family)):
        if _agrees(context.accelerators[member], stated):
            return member, f"{row.accelerator} with {stated:.0f} GiB is {member}"
    known = context.accelerators[name].memory_gb
    return name, f"{stated:g} GiB stated for {name}, which has {known:g} GB: ignored"


def _agrees(accelerator: Accelerator, gib: float) -> bool:
    decimal = accelerator.memory_gb * 1e9
    binary = accelerator.memory_gb * 2**30
    stated = gib * 2**30
    return any(
        abs(stated / size - 1) <= _MEMORY_TOLERANCE
        for size in (decimal, binary, accelerator.memory_bytes)
    )


def check_sizes(rows: Listed, context: Context) -> Checked:
    """Drop types whose memory does not go with their vCPUs."""
    known = types_of(context.before)

    def keep(row: ListedOffer) -> tuple[dict[str, Any] | None, Finding | None]:
        if row.vcpus is None or row.memory_gib is None:
            return {}, None
        per_vcpu = row.memory_gib / row.vcpus if row.vcpus else 0.0
        if _GIB_PER_VCPU[0] <= per_vcpu <= _GIB_PER_VCPU[1]:
            return {}, None
        if row.type_key in known:
            # The snapshot before knows better; only the statement is dropped.
            return {"vcpus": None, "memory_gib": None}, None
        message = f"{row.memory_gib:g} GiB for {row.vcpus:g} vCPUs: a unit error?"
        return None, _of_type("machine-size", "dropped", row, message)

    return _each_type(rows, keep)


PRICES_RULES: Final[tuple[Rule, ...]] = (
    drop_missing, drop_sentinels, drop_host_only, flag_uneven, check_regions, drop_spot_above,
    drop_spot_copies, mark_dedicated, collapse_regions, refuse_sudden_changes,
    refuse_fewer_prices,
)  # fmt: skip


def check(rows: Listed, context: Context) -> Checked:
    """Apply all rules in order; return what is left and what was found.

    A type all of whose prices were dropped stays without one.
    """
    findings: list[Finding] = []
    on_types: tuple[Rule, ...] = resolve_accelerators, check_sizes
    for rule in on_types:
        rows, found = rule(rows, context)
        findings += found
    types = types_of(rows)
    for rule in PRICES_RULES:
        rows, found = rule(rows, context)
        findings += found
    return with_types(rows, types), findings


REFUSALS: Final = {"sudden-change": "--accept", "fewer-prices": "--accept-fewer"}
