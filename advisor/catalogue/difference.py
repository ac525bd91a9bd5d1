"""What changed between two snapshots: types, prices, and by how much."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from advisor.catalogue.catalogue import Catalogue
from advisor.catalogue.nouns import PRICINGS, Pricing

_Key = tuple[str, str, str]  # provider, instance type, region


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One price that differs; ``change_fraction`` is new / old - 1."""

    provider: str
    instance_type: str
    region: str
    pricing: Pricing
    old_usd_per_h: float
    new_usd_per_h: float
    change_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderDifference:
    """Counts of one provider; prices of all ways to pay together."""

    provider: str
    types_added: int
    types_removed: int
    prices_added: int
    prices_removed: int
    prices_changed: int
    median_change_fraction: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Providers that differ, by name, and changed prices, the largest change first."""

    providers: tuple[ProviderDifference, ...]
    changes: tuple[Change, ...]

    def to_record(self, old: str, new: str) -> dict[str, object]:
        """Return the answer to ``diff``; ``old`` and ``new`` say what was compared."""
        return {
            "schema_version": 1,
            "old": old,
            "new": new,
            "providers": [asdict(one) for one in self.providers],
            "changes": [asdict(one) for one in self.changes],
        }


def difference(old: Catalogue, new: Catalogue) -> Difference:
    """Compare two catalogues by provider, instance type and region."""
    changes: list[Change] = []
    added: dict[str, int] = {}
    removed: dict[str, int] = {}
    for pricing in PRICINGS:
        before, after = _prices(old, pricing), _prices(new, pricing)
        for key in after.keys() - before.keys():
            added[key[0]] = added.get(key[0], 0) + 1
        for key in before.keys() - after.keys():
            removed[key[0]] = removed.get(key[0], 0) + 1
        changes += [
            _change(key, pricing, before[key], after[key])
            for key in before.keys() & after.keys()
            if before[key] != after[key]
        ]
    changes.sort(
        key=lambda one: (
            -abs(np.log1p(one.change_fraction)),
            one.provider,
            one.instance_type,
            one.region,
            one.pricing,
        )
    )
    old_types, new_types = _types(old), _types(new)
    names = sorted({*old_types, *new_types})
    found = [
        _provider(
            name,
            old_types.get(name, set()),
            new_types.get(name, set()),
            (added.get(name, 0), removed.get(name, 0)),
            [one.change_fraction for one in changes if one.provider == name],
        )
        for name in names
    ]
    return Difference(providers=tuple(filter(_differs, found)), changes=tuple(changes))


def _change(key: _Key, pricing: Pricing, old: float, new: float) -> Change:
    provider, instance_type, region = key
    return Change(
        provider=provider,
        instance_type=instance_type,
        region=region,
        pricing=pricing,
        old_usd_per_h=old,
        new_usd_per_h=new,
        change_fraction=new / old - 1,
    )


def _provider(
    name: str,
    old_types: set[str],
    new_types: set[str],
    counts: tuple[int, int],
    changes: list[float],
) -> ProviderDifference:
    return ProviderDifference(
        provider=name,
        types_added=len(new_types - old_types),
        types_removed=len(old_types - new_types),
        prices_added=counts[0],
        prices_removed=counts[1],
        prices_changed=len(changes),
        median_change_fraction=float(np.median(changes)) if changes else None,
    )


def _differs(one: ProviderDifference) -> bool:
    return any(
        (
            one.types_added,
            one.types_removed,
            one.prices_added,
            one.prices_removed,
            one.prices_changed,
        )
    )


def _prices(catalogue: Catalogue, pricing: Pricing) -> dict[_Key, float]:
    types, prices = catalogue.types, catalogue.prices
    usd_per_h = prices.usd_per_h(pricing)
    rows = np.flatnonzero(~np.isnan(usd_per_h))
    at = prices.type_index[rows]
    keys = zip(
        types.provider[at].tolist(), types.name[at].tolist(), prices.region[rows].tolist(),
        strict=True,
    )  # fmt: skip
    return dict(zip(keys, usd_per_h[rows].tolist(), strict=True))


def _types(catalogue: Catalogue) -> dict[str, set[str]]:
    out: dict[str, set[str]] = {}
    types = catalogue.types
    for provider, name in zip(types.provider.tolist(), types.name.tolist(), strict=True):
        out.setdefault(provider, set()).add(name)
    return out
