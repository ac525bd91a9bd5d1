"""Prices of a collection's limited machines: those of the closest machines of the catalogue.

A share of one machine's cores is a machine in miniature: a core stands for ``VCPUS_PER_CORE``
virtual CPUs and a limited link for ``NETWORK_PER_LINK`` times its rate, so that a quarter of a
core to two cores are the catalogue's machines of one to eight virtual CPUs. The closest is the one
whose virtual CPUs, and network where the link is limited, differ least in their logarithms.
Thousands are as close as each other, from burstable machines at a tenth of the usual price to
those with twenty times the memory: of those within ``_AS_CLOSE``, or else of the closest, the one
of the median price stands for them, on demand, in its region.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor.catalogue import Catalogue
from advisor.collectors import atomic
from advisor.errors import CatalogueError
from advisor.lab.minicloud.plan import MINUTES, SECONDS, plan, shape_of

VCPUS_PER_CORE: Final = 4.0
NETWORK_PER_LINK: Final = 10.0
_AS_CLOSE: Final = 0.3  # 6 and 8 virtual CPUs are one size, 4 and 6 are not


def closest_prices(catalogue: Catalogue) -> dict[str, dict[str, Any]]:
    """Return ``usd_per_h`` and ``source`` by shape, for every machine of both plans.

    Raises CatalogueError if no machine without accelerators has a price.
    """
    shapes = {
        shape_of(run.instance, run.layout): (run.instance.granted_cores,
                                             run.layout.rate_bit_per_s or 0.0)
        for scale in (SECONDS, MINUTES)
        for run in plan(scale)
    }  # fmt: skip
    return {
        shape: _closest(catalogue, cores * VCPUS_PER_CORE, rate / 8.0 * NETWORK_PER_LINK)
        for shape, (cores, rate) in sorted(shapes.items())
    }


def _closest(catalogue: Catalogue, vcpus: float, bytes_per_s: float) -> dict[str, Any]:
    types, prices = catalogue.types, catalogue.prices
    known = np.isfinite(prices.on_demand_usd_per_h) & (prices.on_demand_usd_per_h > 0)
    at = prices.type_index[known]
    usd = prices.on_demand_usd_per_h[known]
    plain = np.asarray([not name for name in types.accelerator[at]], bool)
    has = np.asarray(types.vcpus[at], float)
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.abs(np.log(has / vcpus))
        if bytes_per_s > 0:
            off = off + np.abs(np.log(types.network_bytes_per_s[at] / bytes_per_s))
    off = np.where(plain & np.isfinite(off), off, np.inf)
    if not np.isfinite(off).any():
        raise CatalogueError(
            "the catalogue has no priced machine without accelerators",
            hint="advisor catalogue update",
        )
    near = np.flatnonzero(off <= max(off.min() + 1e-9, _AS_CLOSE))
    best = int(near[np.argsort(usd[near], kind="stable")[len(near) // 2]])
    row = int(at[best])
    region = str(prices.region[np.flatnonzero(known)[best]])
    return {
        "usd_per_h": float(usd[best]),
        "source": f"{types.provider[row]} {types.name[row]} {region}",
    }


def write_prices(path: Path, catalogue: Catalogue) -> None:
    """Write the prices as a file that the collector reads, with the catalogue's day."""
    record = {"as_of": str(catalogue.as_of), "shapes": closest_prices(catalogue)}
    atomic.write_text(path, json.dumps(record, indent=1) + "\n")
