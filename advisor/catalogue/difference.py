"""Changes between two snapshots: types, prices, and by how much."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from advisor.catalogue.catalogue import Catalogue
from advisor.catalogue.nouns import PRICINGS, Pricing

if TYPE_CHECKING:
    import pandas as pd

_KEYS: Final = ("provider", "instance_type", "region", "pricing")


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
    import pandas as pd

    both = pd.concat([_prices(old), _prices(new)], axis=1, keys=["old", "new"])
    is_old, is_new = both["old"].notna(), both["new"].notna()
    changed = both[is_old & is_new & (both["old"] != both["new"])]
    fraction = changed["new"] / changed["old"] - 1
    changes = [
        Change(
            **dict(zip(_KEYS, key, strict=True)),
            old_usd_per_h=float(before),
            new_usd_per_h=float(after),
            change_fraction=float(share),
        )
        for key, before, after, share in zip(
            changed.index.tolist(), changed["old"], changed["new"], fraction, strict=True
        )
    ]
    changes.sort(
        key=lambda one: (
            -abs(np.log1p(one.change_fraction)), one.provider, one.instance_type, one.region,
            one.pricing,
        )
    )  # fmt: skip
    provider = both.index.get_level_values("provider")
    old_types, new_types = _types(old), _types(new)
    found = []
    for name in sorted({one for one, _ in old_types | new_types}):
        own = provider == name
        shares = fraction[fraction.index.get_level_values("provider") == name]
        found.append(
            ProviderDifference(
                provider=name,
                types_added=sum(one == name for one, _ in new_types - old_types),
                types_removed=sum(one == name for one, _ in old_types - new_types),
                prices_added=int((own & is_new & ~is_old).sum()),
                prices_removed=int((own & is_old & ~is_new).sum()),
                prices_changed=len(shares),
                median_change_fraction=float(shares.median()) if len(shares) else None,
            )
        )
    differing = (one for one in found if any(list(asdict(one).values())[1:]))
    return Difference(providers=tuple(differing), changes=tuple(changes))


def _prices(catalogue: Catalogue) -> pd.Series[float]:
    """Return all prices by ``_KEYS``."""
    import pandas as pd

    types, prices = catalogue.types, catalogue.prices
    at = prices.type_index
    columns = [types.provider[at], types.name[at], prices.region]
    return pd.concat(
        [
            pd.Series(
                prices.usd_per_h(pricing),
                pd.MultiIndex.from_arrays([*columns, [pricing] * len(at)], names=_KEYS),
            ).dropna()
            for pricing in PRICINGS
        ]
    )


def _types(catalogue: Catalogue) -> set[tuple[str, str]]:
    types = catalogue.types
    return set(zip(types.provider.tolist(), types.name.tolist(), strict=True))
