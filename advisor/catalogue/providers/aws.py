"""AWS: on-demand prices, reserved prices, and the Spot Advisor's savings.

``fetch`` takes what the public pricing pages are made of: the list of locations, one file of
Linux on-demand prices a region, and the Spot Advisor. ``parse`` reads besides, from a folder of
the user's, the price list service's ``index.csv`` of a region (hundreds of megabytes, read line by
line), which has reserved prices too. The Spot Advisor gives savings in whole per cent of the
on-demand price, averaged over a month, and a band of interruptions: a spot price made of it is an
estimate, and marked so.
"""

from __future__ import annotations

import io
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from advisor.catalogue import files
from advisor.catalogue.providers.base import (
    FetchSession,
    RawFile,
    fault,
    opened,
    price,
    priced,
    read_json,
)
from advisor.catalogue.rows import Listed, ListedOffer
from advisor.catalogue.snapshot import bundled_folder
from advisor.catalogue.tables import read_records
from advisor.collectors import bounded


@cache
def region_codes() -> dict[str, str]:
    """Return AWS's codes of regions by the names in its price pages.

    Raises CatalogueError if the table cannot be read.
    """
    rows = read_records(bundled_folder() / files.AWS_REGIONS_FILE, files.columns("aws_regions"))
    return {row.name: row.code for row in rows}


def region_code(name: str) -> str | None:
    """Return the code of a region, or None where the name is of no region (a local zone).

    >>> region_code("Europe (Ireland)"), region_code("US East (Boston)")
    ('eu-west-1', None)
    """
    return region_codes().get(name.replace("Europe (", "EU (", 1))  # both are in use


_PAGES: Final = "https://b0.p.awsstatic.com"
_ADVISOR: Final = "https://spot-bid-advisor.s3.amazonaws.com"
_LOCATIONS_PATH: Final = "/locations/1.0/aws/current/locations.json"
_PRICES_PATH: Final = (
    "/pricing/2.0/meteredUnitMaps/ec2/USD/current/ec2-ondemand-without-sec-sel/{}/Linux/index.json"
)
_MAX_PAGE_BYTES: Final = 64 << 20
_SIZE: Final = re.compile(r"([\d.,]+)\s*(GiB|MiB|TiB|GB|TB)?")
_RESERVED: Final = {"1yr": "reserved_1y_usd_per_h", "3yr": "reserved_3y_usd_per_h"}


@dataclass(slots=True)
class _Found:
    """What the files said so far."""

    types: dict[str, ListedOffer] = field(default_factory=dict)
    prices: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    dates: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, name: str, region: str, column: str, usd_per_h: float, date: str) -> None:
        self.prices.setdefault((name, region), {})[column] = usd_per_h
        self.dates[name, region] = date


class AWS:
    """AWS's public price pages and Spot Advisor."""

    name = "aws"
    source = "aws-price-list"
    licence = "facts of a public list"
    replaces = ("ec2.shop", "karpenter-provider-aws")

    def __init__(self, pages: str = _PAGES, advisor: str = _ADVISOR) -> None:
        self._pages, self._advisor = pages, advisor

    def fetch(self, session: FetchSession) -> Sequence[RawFile]:
        """Download the prices of every region and the Spot Advisor's table."""
        url = f"{self._pages}{_LOCATIONS_PATH}"
        locations = session.get(url, name="locations.json", max_bytes=_MAX_PAGE_BYTES)
        files = []
        for name, code in sorted(_region_names(locations).items()):
            url = self._pages + _PRICES_PATH.format(urllib.parse.quote(name))
            files.append(session.get(url, name=f"{code}.json", max_bytes=_MAX_PAGE_BYTES))
        url = f"{self._advisor}/spot-advisor-data.json"
        files.append(session.get(url, name="spot-advisor-data.json", max_bytes=_MAX_PAGE_BYTES))
        return files

    def owns(self, path: str) -> bool:
        """Tell whether a file of a user's folder is for this adapter."""
        name = path.rpartition("/")[2]
        is_data = name.endswith((".json", ".csv", ".json.gz", ".csv.gz"))
        return is_data and ("aws" in path.split("/")[:-1] or name == "spot-advisor-data.json")

    def parse(self, files: Sequence[RawFile], as_of: str) -> Listed:
        """Read price pages, lists and the Spot Advisor, whichever are there."""
        found = _Found()
        advice: Mapping[str, Any] = {}
        for file in files:
            date = file.retrieved_at[:10] or as_of
            if ".csv" in file.name:
                _read_list(file, date, found)
                continue
            content = read_json(file)
            if isinstance(content, dict) and "spot_advisor" in content:
                advice = content["spot_advisor"]
            elif isinstance(content, dict) and "regions" in content:
                _read_page(file, content, date, found)
            elif not (isinstance(content, dict) and _is_locations(content)):
                fault(file, "top", "is neither a price page nor the Spot Advisor's table")
        return tuple(self._row(key, found, advice) for key in found.prices)

    def _row(self, key: tuple[str, str], found: _Found, advice: Mapping[str, Any]) -> ListedOffer:
        name, region = key
        prices = dict(found.prices[key])
        saving, band = _advice(advice, region, name)
        on_demand = prices.get("on_demand_usd_per_h")
        if on_demand and saving is not None:
            prices["spot_usd_per_h"] = round(on_demand * (1 - saving), 6)
        return priced(
            self,
            found.types[name],
            region,
            prices,
            found.dates[key],
            spot_status="derived:spot-advisor-savings",
            band=band,
        )


def _region_names(locations: RawFile) -> dict[str, str]:
    """Return the names of the public regions with their codes."""
    content = read_json(locations)
    if not isinstance(content, dict) or not _is_locations(content):
        fault(locations, "top", "is not AWS's list of locations")
    return {
        str(one["name"]): str(one["code"])
        for one in content.values()
        if one.get("type") == "AWS Region" and one.get("code") and one.get("name")
    }


def _is_locations(content: Mapping[str, Any]) -> bool:
    return bool(content) and all(
        isinstance(one, dict) and "type" in one for one in content.values()
    )


def _read_page(file: RawFile, content: Mapping[str, Any], date: str, found: _Found) -> None:
    manifest = content.get("manifest") or {}
    if manifest.get("currencyCode", "USD") != "USD":
        fault(file, "manifest", f"prices are in {manifest['currencyCode']!r}, not USD")
    date = str(manifest.get("hawkFilePublicationDate", ""))[:10] or date
    for name, items in content["regions"].items():
        region = name if name in region_codes().values() else region_code(name)
        if region is None:
            continue
        for key, item in items.items():
            place = f"regions.{name}.{key}"
            if not isinstance(item, dict) or not item.get("Instance Type"):
                fault(file, place, "names no instance type")
            usd_per_h = price(file, place, item.get("price"))
            found.types.setdefault(item["Instance Type"], _type(item))
            found.add(item["Instance Type"], region, "on_demand_usd_per_h", usd_per_h, date)


def _type(item: Mapping[str, str]) -> ListedOffer:
    return ListedOffer(
        provider="aws",
        instance_type=item["Instance Type"],
        vcpus=_size(item.get("vCPU")),
        memory_gib=_size(item.get("Memory")),
        source=AWS.source,
    )


def _size(text: str | None) -> float | None:
    """Read ``"8 GiB"``, ``"1,952 GiB"`` or ``"96"``; None for ``"NA"``."""
    match = _SIZE.fullmatch((text or "").strip())
    return float(match[1].replace(",", "")) if match else None


def _read_list(file: RawFile, date: str, found: _Found) -> None:
    """Read a region's ``index.csv`` line by line: on-demand, and reserved without upfront."""
    with opened(file) as stream:
        lines = io.TextIOWrapper(stream, encoding="utf-8", newline="")
        header, published = _list_header(file, lines)
        date = published[:10] or date
        for number, cells in enumerate(bounded.csv_rows(lines), start=7):
            if len(cells) != len(header):
                fault(file, f"row {number}", f"has {len(cells)} cells, the header {len(header)}")
            row = dict(zip(header, cells, strict=True))
            column = _wanted(row)
            if column is None:
                continue
            place = f"row {number}, column 'PricePerUnit'"
            usd_per_h = price(file, place, row["PricePerUnit"])
            region = row.get("Region Code") or region_code(row["Location"]) or row["Location"]
            found.types.setdefault(row["Instance Type"], _type(row))
            found.add(row["Instance Type"], region, column, usd_per_h, date)


def _list_header(file: RawFile, lines: Iterator[str]) -> tuple[list[str], str]:
    """Read what stands above the rows; return the column names and the day of publication."""
    published = ""
    for _ in range(6):
        cells = next(bounded.csv_rows([next(lines, "")]), [])
        if cells[:1] == ["Publication Date"] and len(cells) > 1:
            published = cells[1]
        if cells[:1] == ["SKU"]:
            missing = _LIST_COLUMNS - set(cells)
            if missing:
                fault(file, f"column {min(missing)!r}", "is missing")
            return cells, published
    return fault(file, "row 6", "is not the header of AWS's price list")


_LIST_COLUMNS: Final = {
    "TermType", "Unit", "PricePerUnit", "Currency", "Location", "Instance Type", "Tenancy",
    "Operating System", "LeaseContractLength", "PurchaseOption", "OfferingClass",
    "CapacityStatus", "Pre Installed S/W", "vCPU", "Memory",
}  # fmt: skip


def _wanted(row: Mapping[str, str]) -> str | None:
    """Return the price column of a row of shared Linux without software, else None."""
    if not (
        row["Operating System"] == "Linux"
        and row["Tenancy"] == "Shared"
        and row["Pre Installed S/W"] == "NA"
        and row["CapacityStatus"] == "Used"
        and row["Currency"] == "USD"
        and row["Unit"] == "Hrs"
        and row["Instance Type"]
    ):
        return None
    if row["TermType"] == "OnDemand":
        return "on_demand_usd_per_h"
    if row["OfferingClass"] == "standard" and row["PurchaseOption"] == "No Upfront":
        return _RESERVED.get(row["LeaseContractLength"])
    return None


def _advice(advice: Mapping[str, Any], region: str, name: str) -> tuple[float | None, int | None]:
    """Return the saving as a fraction and the band of interruptions, or None and None."""
    try:
        one = advice[region]["Linux"][name]
        saving, band = float(one["s"]) / 100, int(one["r"])
    except (KeyError, TypeError, ValueError):
        return None, None
    return (saving, band) if 0 <= saving < 1 and 0 <= band <= 4 else (None, None)
