"""Small payloads in the shape of each public price list.

Synthetic: the shapes are those of the public formats, the values are few and chosen by us, near
real prices so that the checks let them pass. No file of a provider is copied here.
"""

from __future__ import annotations

import json
from typing import Any


def azure_item(size: str, usd: float, **changes: Any) -> dict[str, Any]:
    """Make a meter of the Retail Prices API."""
    short = size.removeprefix("Standard_").replace("_", " ")
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": usd,
        "unitPrice": usd,
        "armRegionName": "eastus",
        "location": "US East",
        "effectiveStartDate": "2026-09-01T00:00:00Z",
        "meterName": short,
        "productName": "Virtual Machines Ddsv5 Series",
        "skuName": short,
        "serviceName": "Virtual Machines",
        "serviceFamily": "Compute",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "isPrimaryMeterRegion": True,
        "armSkuName": size,
        **changes,
    }


def azure_page(items: list[dict[str, Any]], following: str | None = None) -> bytes:
    """Make a page of the Retail Prices API."""
    page = {
        "BillingCurrency": "USD",
        "CustomerEntityId": "Default",
        "CustomerEntityType": "Retail",
        "Items": items,
        "NextPageLink": following,
        "Count": len(items),
    }
    return json.dumps(page).encode()


def aws_locations(*names: tuple[str, str]) -> bytes:
    """Make AWS's list of locations, a local zone among them."""
    regions = {
        name: {"name": name, "code": code, "type": "AWS Region", "continent": "North America"}
        for name, code in names
    }
    zone = {"name": "US East (Boston)", "code": "us-east-1-bos-1", "type": "AWS Local Zone"}
    return json.dumps({**regions, zone["name"]: zone}).encode()


def aws_page(name: str, prices: dict[str, float], published: str = "2026-11-15") -> bytes:
    """Make a region's page of Linux on-demand prices."""
    items = {
        f"{kind.replace('.', ' ')} {name} Linux": {
            "rateCode": "ABC.JRTCKXETXF.6YS6EN2CT7",
            "price": f"{usd:.10f}",
            "Location": name,
            "Instance Family": "General purpose",
            "vCPU": "2",
            "Instance Type": kind,
            "Memory": "8 GiB",
            "Storage": "EBS only",
            "Network Performance": "Up to 10 Gigabit",
            "Operating System": "Linux",
        }
        for kind, usd in prices.items()
    }
    manifest = {
        "serviceId": "ec2",
        "hawkFilePublicationDate": f"{published}T00:12:12Z",
        "currencyCode": "USD",
    }
    return json.dumps({"manifest": manifest, "regions": {name: items}}).encode()


def aws_advice(region: str, savings: dict[str, tuple[int, int]]) -> bytes:
    """Make the Spot Advisor's table: saving in per cent and band of interruptions."""
    linux = {kind: {"s": saving, "r": band} for kind, (saving, band) in savings.items()}
    table = {
        "ranges": [{"index": 0, "label": "<5%", "dots": 0, "max": 5}],
        "instance_types": {kind: {"emr": True, "cores": 2, "ram_gb": 8.0} for kind in savings},
        "spot_advisor": {region: {"Linux": linux, "Windows": {}}},
    }
    return json.dumps(table).encode()


_LIST_HEADER = (
    "SKU", "OfferTermCode", "RateCode", "TermType", "PriceDescription", "EffectiveDate",
    "StartingRange", "EndingRange", "Unit", "PricePerUnit", "Currency", "RelatedTo",
    "LeaseContractLength", "PurchaseOption", "OfferingClass", "Product Family", "serviceCode",
    "Location", "Location Type", "Instance Type", "vCPU", "Memory", "Tenancy", "Operating System",
    "License Model", "CapacityStatus", "Pre Installed S/W", "Region Code",
)  # fmt: skip


def aws_list(rows: list[dict[str, str]]) -> bytes:
    """Make a region's ``index.csv`` of AWS's price list service."""
    usual = {
        "TermType": "OnDemand",
        "Unit": "Hrs",
        "Currency": "USD",
        "Location": "US East (N. Virginia)",
        "Location Type": "AWS Region",
        "vCPU": "2",
        "Memory": "8 GiB",
        "Tenancy": "Shared",
        "Operating System": "Linux",
        "CapacityStatus": "Used",
        "Pre Installed S/W": "NA",
        "Region Code": "us-east-1",
    }
    lines = [
        '"FormatVersion","v1.0"',
        '"Disclaimer","Synthetic."',
        '"Publication Date","2026-11-14T18:38:05Z"',
        '"Version","20261114183805"',
        '"OfferCode","AmazonEC2"',
        ",".join(f'"{name}"' for name in _LIST_HEADER),
    ]
    for row in rows:
        full = {**usual, **row}
        lines.append(",".join(f'"{full.get(name, "")}"' for name in _LIST_HEADER))
    return ("\n".join(lines) + "\n").encode()


def gcosts(machines: dict[str, dict[str, Any]], timestamp: int = 1_794_960_000) -> bytes:
    """Make gcosts' ``pricing.yml``; the default day is 2026-11-18."""
    lines = [
        "---",
        "about:",
        "  copyright: |2",
        "",
        "    Synthetic: shape only.",
        "    key: not a key",
        "  generated: Wed Nov 18 00:00:00 2026",
        f"  timestamp: {timestamp}",
        "compute:",
        "  instance:",
    ]
    for name, machine in machines.items():
        lines.append(f"    {name}:")
        for key, value in machine.items():
            if isinstance(value, dict):
                lines.append(f"      {key}:")
                for region, cost in value.items():
                    lines.append(f"        {region}:")
                    lines += [f"          {way}: {usd}" for way, usd in cost.items()]
            else:
                lines.append(f"      {key}: {value}")
    lines += ["storage:", "  bucket: 1"]
    return ("\n".join(lines) + "\n").encode()


SKYPILOT_HEADER = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice"
)


def skypilot(*rows: str) -> bytes:
    """Make a cloud's table of SkyPilot's catalogue."""
    return ("\n".join([SKYPILOT_HEADER, *rows]) + "\n").encode()


def skypilot_gpu(name: str, count: int, mib: int, *, is_json: bool = False) -> str:
    """Make a cell of ``GpuInfo``: JSON in some files, a Python literal in others."""
    info = {
        "Gpus": [
            {"Name": name, "Manufacturer": "NVIDIA", "Count": count,
             "MemoryInfo": {"SizeInMiB": mib}}
        ],
        "TotalGpuMemoryInMiB": mib,
    }  # fmt: skip
    text = json.dumps(info) if is_json else repr(info)
    escaped = text.replace('"', '""')
    return f'"{escaped}"'
