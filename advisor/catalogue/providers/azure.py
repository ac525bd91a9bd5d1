"""Azure's Retail Prices API: on-demand, spot and reserved prices of Linux virtual machines.

The API answers in pages of ``Items`` with a ``NextPageLink`` and needs no account. An item is one
meter: a size (``armSkuName``) in a region; Windows, cloud-service and low-priority meters are left
out. A reservation's price is for its whole term. Sizes' vCPUs and memory are not in it: they come
from the snapshot before.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from advisor.catalogue.providers.base import FetchSession, RawFile, fault, price, priced, read_json
from advisor.catalogue.rows import Listed, ListedOffer

_FILTERS: Final = (
    "serviceName eq 'Virtual Machines' and priceType eq 'Consumption'",
    "serviceName eq 'Virtual Machines' and priceType eq 'Reservation'",
)
_MAX_PAGES: Final = 2_000  # of 1,000 items; all of virtual machines are some 500 pages
_MAX_PAGE_BYTES: Final = 32 << 20
_HOURS_PER_TERM: Final = {"1 Year": 8_760.0, "3 Years": 26_280.0}
_LEFT_OUT: Final = ("windows", "cloudservices", "cloud services", "dedicated host")


class Azure:
    """Azure's Retail Prices API."""

    name = "azure"
    source = "azure-retail-prices"
    licence = "facts of a public API"
    replaces = ("karpenter-provider-azure",)

    def __init__(self, base: str = "https://prices.azure.com") -> None:
        self._base = base

    def fetch(self, session: FetchSession) -> Sequence[RawFile]:
        """Download all pages; a link to another host is refused."""
        return [file for at in range(len(_FILTERS)) for file in self._pages(session, at)]

    def _pages(self, session: FetchSession, at: int) -> Iterator[RawFile]:
        query = urllib.parse.urlencode({"$filter": _FILTERS[at]})
        url = f"{self._base}/api/retail/prices?{query}"
        host = urllib.parse.urlsplit(self._base)[:2]
        for page in range(_MAX_PAGES):
            name = f"prices-{at}-{page:04d}.json"
            file = session.get(url, name=name, max_bytes=_MAX_PAGE_BYTES)
            yield file
            following = _page(file).get("NextPageLink")
            if not following:
                return
            parts = urllib.parse.urlsplit(str(following))
            # The API writes its port into the link.
            parts = parts._replace(netloc=parts.netloc.removesuffix(":443"))
            if parts[:2] != host:
                fault(file, "NextPageLink", f"leads to another host, {parts.netloc!r}")
            url = urllib.parse.urlunsplit(parts)
        fault(file, "NextPageLink", f"more than {_MAX_PAGES} pages")

    def owns(self, path: str) -> bool:
        """Tell whether a file of a user's folder is for this adapter."""
        return fnmatchcase(path, "*azure*/*.json") or fnmatchcase(path, "*azure*.json")

    def parse(self, files: Sequence[RawFile], as_of: str) -> Listed:
        """Read the pages."""
        prices: dict[tuple[str, str], dict[str, float]] = {}
        dates: dict[tuple[str, str], str] = {}
        for file in files:
            for at, item in enumerate(_page(file)["Items"]):
                meter = _meter(file, at, item)
                if meter is None:
                    continue
                key, way, usd_per_h = meter
                # Two meters of one size differ in old names; the cheaper one is what is billed.
                known = prices.setdefault(key, {})
                known[way] = min(usd_per_h, known.get(way, usd_per_h))
                dates[key] = max(dates.get(key, ""), file.retrieved_at[:10] or as_of)
        return tuple(
            priced(self, self._type(name), region, ways, dates[name, region])
            for (name, region), ways in prices.items()
        )

    def _type(self, name: str) -> ListedOffer:
        return ListedOffer(provider="azure", instance_type=name, source=self.source)


def _page(file: RawFile) -> Mapping[str, Any]:
    content = read_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("Items"), list):
        fault(file, "Items", "is missing: this is not a page of the Retail Prices API")
    if content.get("BillingCurrency", "USD") != "USD":
        fault(file, "BillingCurrency", f"is {content['BillingCurrency']!r}, not USD")
    return content


def _meter(file: RawFile, at: int, item: Any) -> tuple[tuple[str, str], str, float] | None:
    """Return ((size, region), column, price per hour), or None for what is not wanted."""
    place = f"Items[{at}]"
    if not isinstance(item, dict):
        fault(file, place, "is not an object")
    size, region = item.get("armSkuName") or "", item.get("armRegionName") or ""
    product, sku = str(item.get("productName", "")), str(item.get("skuName", ""))
    if not size or not region or any(word in product.lower() for word in _LEFT_OUT):
        return None
    if "Low Priority" in sku:
        return None
    usd = price(file, f"{place}.retailPrice", item.get("retailPrice"))
    if item.get("type") == "Reservation":
        term = str(item.get("reservationTerm", ""))
        if term not in _HOURS_PER_TERM:
            return None  # five-year terms of special sizes
        column = f"reserved_{term[0]}y_usd_per_h"
        return (size, region), column, usd / _HOURS_PER_TERM[term]
    if item.get("type") != "Consumption" or item.get("unitOfMeasure") != "1 Hour":
        return None
    is_spot = sku.endswith(" Spot")
    return (size, region), "spot_usd_per_h" if is_spot else "on_demand_usd_per_h", usd
