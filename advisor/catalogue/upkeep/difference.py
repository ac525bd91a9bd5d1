"""Changes between two snapshots: types, prices, and by how much."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from advisor.catalogue.catalogue import Catalogue
from advisor.catalogue.offer_columns import PRICINGS

if TYPE_CHECKING:
    import pandas as pd

_KEYS: Final = ("provider", "instance_type", "region", "pricing")


def difference(old: Catalogue, new: Catalogue) -> dict[str, Any]:
    """Compare two catalogues by provider, instance type and region.

    Returns
    -------
    dict
        ``providers`` that differ, by name, with counts of types and of prices of all ways to pay;
        ``changes``: changed prices, the largest change first: ``_KEYS``, the old price, the new
        one, and ``change_fraction``, which is new / old - 1.
    """
    import pandas as pd

    both = pd.concat([_prices(old), _prices(new)], axis=1, keys=["old", "new"])
    is_old, is_new = both["old"].notna(), both["new"].notna()
    is_changed = is_old & is_new & (both["old"] != both["new"])
    changed = both[is_changed].set_axis(["old_usd_per_h", "new_usd_per_h"], axis="columns")
    fraction = changed["new_usd_per_h"] / changed["old_usd_per_h"] - 1
    rows = changed.assign(change_fraction=fraction, size=-np.log1p(fraction).abs())
    rows = rows.reset_index().sort_values(["size", *_KEYS]).drop(columns="size")
    counts = pd.DataFrame(
        {
            "prices_added": is_new & ~is_old,
            "prices_removed": is_old & ~is_new,
            "prices_changed": is_changed,
        }
    ).groupby(level="provider")
    prices, medians = counts.sum(), fraction.groupby(level="provider").median()
    old_types, new_types = _types(old), _types(new)
    added, removed = (
        Counter(provider for provider, _ in one)
        for one in (new_types - old_types, old_types - new_types)
    )
    providers = [
        {"provider": name, "types_added": added[name], "types_removed": removed[name]}
        | {way: int(prices[way].get(name, 0)) for way in prices.columns}
        | {"median_change_fraction": medians.get(name)}
        for name in sorted({one for one, _ in old_types | new_types})
    ]
    return {
        "providers": [one for one in providers if any(list(one.values())[1:])],
        "changes": rows.to_dict("records"),
    }


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
