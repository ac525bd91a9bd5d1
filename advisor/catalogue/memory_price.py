"""What a GiB of memory and a core cost an hour, by offers that differ in memory alone.

Such offers, a group, are of one provider, region, processor, number of cores, local disk and
network, without accelerators. Of those of memory m_i [GiB] at p_i [USD/h], with means m and p,
least squares gives the price of memory, and what is left is that of the v cores:

    g = sum (m_i - m) (p_i - p) / sum (m_i - m)^2        [USD/GiB-h]
    c = (p - g m) / v                                     [USD/core-h]

The answer is the median of the groups: what clouds charge for memory, and so what memory is worth
that a job borrows of others or lets them have.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from advisor.catalogue.offer_columns import Pricing
from advisor.catalogue.select import OfferFilter
from advisor.errors import UsageError
from advisor.planners.core import GIB

if TYPE_CHECKING:
    from advisor.catalogue.catalogue import Catalogue

_ALIKE: Final = (
    "provider", "vcpus", "cpu_model", "local_ssd_bytes", "network_bytes_per_s", "cpu_baseline",
)  # fmt: skip


def resource_prices(catalogue: Catalogue) -> dict[str, Any]:
    """Return what a core and a GiB cost an hour on demand, and what says so.

    Raises UsageError if no offers differ in memory alone.

    Returns
    -------
    dict
        ``usd_per_core_h``, ``usd_per_gib_h``; ``usd_per_gib_h_low`` and ``_high``, between which
        half of the groups lie; ``source``, in words.
    """
    paid: tuple[Pricing, ...] = ("on-demand",)
    types, offers = catalogue.types, catalogue.select(OfferFilter(pricing=paid))
    known = (types.accelerator_count == 0) & (types.cpu_model != "") & (types.vcpus > 0)
    rows = np.flatnonzero((known & (types.memory_bytes > 0))[offers.type_index])
    kind, p = offers.type_index[rows], offers.price_usd_per_h[rows]
    codes = [np.unique(getattr(types, name), return_inverse=True)[1] for name in _ALIKE]
    alike = np.unique(np.stack(codes), axis=1, return_inverse=True)[1].reshape(-1)[kind]
    places = alike * len(offers.regions) + offers.region_index[rows]
    group = np.unique(places, return_inverse=True)[1]
    of_group = partial(np.bincount, group)
    n, m = of_group(), types.memory_bytes[kind] / GIB
    apart = m - (of_group(m) / n)[group]
    spread = of_group(apart**2)
    differs = spread > 1e-9
    if not differs.any():
        raise UsageError(
            "no offers of the catalogue differ in memory alone: what memory costs is not known",
            hint="give it: --core-price 0.04 --memory-price 0.004",
        )
    each = of_group(apart * p)[differs] / spread[differs]
    cores = (of_group(p)[differs] - each * of_group(m)[differs]) / of_group(types.vcpus[kind])[
        differs
    ]
    low, middle, high = map(float, np.quantile(each, (0.25, 0.5, 0.75)))
    return {
        "usd_per_core_h": float(np.median(cores)), "usd_per_gib_h": middle,
        "usd_per_gib_h_low": low, "usd_per_gib_h_high": high,
        "source": f"median of {len(each):,} groups of offers that differ in memory alone",
    }  # fmt: skip
