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
    memory, cores = types.memory_bytes / GIB, types.vcpus
    known = (types.accelerator_count == 0) & (types.cpu_model != "") & (memory > 0) & (cores > 0)
    rows = np.flatnonzero(known[offers.type_index])
    kind = _kinds([getattr(types, name) for name in _ALIKE])[offers.type_index[rows]]
    _, group = np.unique(
        kind * len(offers.regions) + offers.region_index[rows], return_inverse=True
    )
    m, p = memory[offers.type_index[rows]], offers.price_usd_per_h[rows]

    def of_group(values: Any) -> Any:
        return np.bincount(group, values)

    n = of_group(np.ones(len(rows)))
    mean_m, mean_p = of_group(m) / n, of_group(p) / n
    apart = m - mean_m[group]
    spread = of_group(apart**2)
    differs = spread > 1e-9
    if not differs.any():
        raise UsageError(
            "no offers of the catalogue differ in memory alone: what memory costs is not known",
            hint="give it: --core-price 0.04 --memory-price 0.004",
        )
    each = of_group(apart * p)[differs] / spread[differs]
    count = of_group(cores[offers.type_index[rows]])[differs] / n[differs]
    low, middle, high = np.quantile(each, (0.25, 0.5, 0.75))
    return {
        "usd_per_core_h": float(np.median((mean_p[differs] - each * mean_m[differs]) / count)),
        "usd_per_gib_h": float(middle),
        "usd_per_gib_h_low": float(low),
        "usd_per_gib_h_high": float(high),
        "source": f"median of {len(each):,} groups of offers that differ in memory alone",
    }


def _kinds(columns: list[Any]) -> Any:
    """Return a number a row: rows with the same number agree in every column."""
    codes = [np.unique(one, return_inverse=True)[1] for one in columns]
    return np.unique(np.stack(codes), axis=1, return_inverse=True)[1].reshape(-1)
