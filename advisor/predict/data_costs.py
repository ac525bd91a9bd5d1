"""Data in, storage and results out: waits and costs beside the machines.

==================  =============================================================================
here                meaning, unit
==================  =============================================================================
data in             every machine copies the data onto its own volume before the first step, as
                    fast as the slowest of its network, its volume and the place where it lies. [s]
storage             a volume on every machine for the data and two checkpoints (the new one is
                    written before the old one goes), while the machines are billed. [USD/h]
results out         over the internet, once, at the first tier's price. [USD]
==================  =============================================================================

Bringing data in costs nothing at the providers themselves. Prices are those of the catalogue
(``advisor catalogue storage``); where it has none, nothing is added and the breakdown says null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from advisor.catalogue import Catalogue, OfferColumns
from advisor.catalogue.billing import charged_h
from advisor.catalogue.nouns import OtherPrice
from advisor.jobs.job import Job
from advisor.planners.core.units import GIB

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

CHECKPOINTS_KEPT: Final = 2
# Providers' month of storage prices: 365 x 24 / 12 hours.
_MONTH_H: Final = 730.0
# The plain volume of each provider (whose rate is above), and the first tier of its traffic.
_VOLUMES: Final = ("block storage gp3", "block storage balanced")
_FIRST_TIERS: Final = ("up to 10 TiB/month", "0-1 TiB/month")
# AWS's and Azure's traffic is listed once, for their American regions: taken for all of theirs.
_EVERYWHERE: Final = ("", "us")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCosts:
    """What each offer adds to the machines' price; nan where the catalogue has no price."""

    storage_usd_per_h: Floats  # (n,); of one machine [USD/h]
    egress_usd: Floats  # (n,); once [USD]
    # shortest_bill_h, bill_step_h: (n,); what is charged at least, and what a bill is a whole
    # multiple of (0: by the second) [h]
    shortest_bill_h: Floats
    bill_step_h: Floats

    def charged_h(self, offer: Integers, hours: Floats) -> Floats:
        """Return the hours that are charged for machines of some offers rented so long [h]."""
        return charged_h(hours, self.shortest_bill_h[offer], self.bill_step_h[offer])

    def billing(self, *offers: int) -> tuple[float, float]:
        """Return shortest bill and step of machines that are rented together [h]."""
        rows = list(offers)
        return float(self.shortest_bill_h[rows].max()), float(self.bill_step_h[rows].max())


@dataclass(frozen=True, slots=True, kw_only=True)
class SidePrices:
    """Prices by provider (rows) and region (columns); nan where there is none."""

    # storage_usd_per_gib_h, egress_usd_per_gib: (providers, regions)
    storage_usd_per_gib_h: Floats
    egress_usd_per_gib: Floats
    provider: Integers  # (n_types,); row of each type of the catalogue
    region: Integers  # (n_prices,); column of each price of the catalogue

    def costs(self, job: Job, offers: OfferColumns) -> SideCosts:
        """Return what ``job`` adds to each offer."""
        place = self.provider[offers.type_index], self.region[offers.price_index]
        kept_gib = ((job.transfers.data_bytes or 0.0) + CHECKPOINTS_KEPT * job.state_bytes) / GIB
        return SideCosts(
            storage_usd_per_h=_priced(kept_gib, self.storage_usd_per_gib_h[place]),
            egress_usd=_priced(job.result_bytes / GIB, self.egress_usd_per_gib[place]),
            shortest_bill_h=offers.shortest_bill_h,
            bill_step_h=offers.bill_step_h,
        )


def side_prices(catalogue: Catalogue) -> SidePrices:
    """Lay the catalogue's prices of storage and traffic out by provider and region."""
    providers, provider = np.unique(np.asarray(catalogue.types.provider), return_inverse=True)
    rows = {str(name): i for i, name in enumerate(providers)}
    columns = {str(name): i for i, name in enumerate(catalogue.prices.regions)}
    storage = np.full((len(rows), len(columns)), np.nan)
    egress = storage.copy()
    for price in catalogue.other_prices:
        if price.provider not in rows:
            continue
        if price.item in _VOLUMES:
            _put(storage[rows[price.provider]], columns, price, price.price_usd / _MONTH_H)
        elif price.item.startswith("internet egress") and price.tier in _FIRST_TIERS:
            _put(egress[rows[price.provider]], columns, price, price.price_usd)
    return SidePrices(
        storage_usd_per_gib_h=storage,
        egress_usd_per_gib=egress,
        provider=np.asarray(provider, dtype=np.int64),
        region=np.asarray(catalogue.prices.region_index, dtype=np.int64),
    )


def _put(row: Floats, columns: Mapping[str, int], price: OtherPrice, usd: float) -> None:
    """Set a price in its region; one that has none of its own fills what is still unknown."""
    if price.region in _EVERYWHERE:
        row[np.isnan(row)] = usd
    elif price.region in columns:
        row[columns[price.region]] = usd


def _priced(gib: float, usd_per_gib: Floats) -> Floats:
    """Return the cost; nothing costs nothing even where its price is unknown."""
    return np.zeros(usd_per_gib.shape) if gib <= 0 else np.asarray(gib * usd_per_gib)
