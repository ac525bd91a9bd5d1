"""Smaller clouds, from SkyPilot's catalogue: one CSV a cloud, one adapter a cloud.

Rows stand by availability zone; a region's price is the cheapest of its zones, and spot and
on-demand are taken apart. ``GpuInfo`` is JSON in some files and a Python literal in others, and
writes gigabytes under the name of mebibytes in one; it is only used to check the memory.
The repository states no licence (2026-11-20): rows from it are kept in files of their own. Clouds
with a catalogue of their own kind (AWS, Azure, GCP) and resellers are left out.
"""

from __future__ import annotations

import ast
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

from advisor.catalogue.providers.base import (
    FetchSession,
    RawFile,
    fault,
    price,
    priced,
    read_content,
)
from advisor.catalogue.rows import Listed, ListedOffer, with_types
from advisor.collectors import bounded
from advisor.providers import provider_of

_VERSION: Final = "v8"  # of SkyPilot 0.14.1
_MAX_BYTES: Final = 64 << 20
_NEEDED: Final = ("InstanceType", "vCPUs", "MemoryGiB", "Price", "Region")


class SkyPilot:
    """One cloud of SkyPilot's catalogue."""

    licence = "unconfirmed"

    def __init__(self, provider: str, base: str = "https://raw.githubusercontent.com") -> None:
        self.name = provider
        self.source = f"skypilot-catalog-{_VERSION}"
        self.replaces = ()
        self._cloud, self._base = provider_of(provider).skypilot_catalog, base

    def fetch(self, session: FetchSession) -> Sequence[RawFile]:
        """Download the cloud's table."""
        path = f"skypilot-org/skypilot-catalog/master/catalogs/{_VERSION}/{self._cloud}/vms.csv"
        return [session.get(f"{self._base}/{path}", name="vms.csv", max_bytes=_MAX_BYTES)]

    def owns(self, path: str) -> bool:
        """Tell whether a file of a user's folder is for this adapter."""
        return f"/{path}".endswith((f"/{self._cloud}/vms.csv", f"/{self._cloud}/vms.csv.gz"))

    def parse(self, files: Sequence[RawFile], as_of: str) -> Listed:
        """Read the table."""
        types: dict[str, ListedOffer] = {}
        cheapest: dict[tuple[str, str], dict[str, float]] = {}
        date = as_of
        for file in files:
            date = file.retrieved_at[:10] or as_of
            for number, row in enumerate(_rows(file), start=2):
                name, region = row["InstanceType"], row["Region"] or "all-regions"
                if not name:
                    continue  # accelerators that are attached to a machine and priced apart
                types.setdefault(name, self._type(file, number, row))
                prices = cheapest.setdefault((name, region), {})
                for column, field in (("Price", "on_demand"), ("SpotPrice", "spot")):
                    if row.get(column):
                        place = f"row {number}, column {column!r}"
                        usd, key = price(file, place, row[column]), f"{field}_usd_per_h"
                        prices[key] = min(usd, prices.get(key, usd))
        rows = tuple(
            priced(self, types[name], region, ways, date, listing="list-price-no-stock-info")
            for (name, region), ways in cheapest.items()
            if ways
        )
        return with_types(rows, {one.type_key: one for one in types.values()})

    def _type(self, file: RawFile, number: int, row: Mapping[str, str]) -> ListedOffer:
        def size(column: str) -> float | None:
            place = f"row {number}, column {column!r}"
            return price(file, place, row[column]) or None if row.get(column) else None

        return ListedOffer(
            provider=self.name,
            instance_type=row["InstanceType"],
            vcpus=size("vCPUs"),
            memory_gib=size("MemoryGiB"),
            accelerator=row.get("AcceleratorName", ""),
            accelerator_count=size("AcceleratorCount") or 0.0,
            accelerator_memory_gib=_memory_gib(row.get("GpuInfo", "")),
            source=self.source,
        )


def _rows(file: RawFile) -> list[dict[str, str]]:
    try:
        text = read_content(file).decode()
        reader = bounded.csv_tables(io.StringIO(text, newline=""), strict=True)
        header = reader.fieldnames or []
        for column in _NEEDED:
            if column not in header:
                fault(file, f"column {column!r}", "is missing")
        if len(set(header)) != len(header):
            fault(file, "row 1", "has a column twice")
        rows = list(reader)
    except ValueError as error:
        fault(file, "text", f"is not CSV: {error}")
    for number, row in enumerate(rows, start=2):
        if None in row.values():
            fault(file, f"row {number}", f"does not have {len(header)} cells")
    return rows


def _memory_gib(text: str) -> float | None:
    """Read the memory of one accelerator from ``GpuInfo``."""
    try:
        info: Any = bounded.parse_json(text)
    except ValueError:
        try:
            info = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    try:
        return float(info["Gpus"][0]["MemoryInfo"]["SizeInMiB"]) / 1024
    except (KeyError, IndexError, TypeError, ValueError):
        return None
