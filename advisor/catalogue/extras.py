"""Read what is looked up, not ranked: measured links, and prices of storage and traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from advisor.catalogue import files
from advisor.catalogue.nouns import OtherPrice
from advisor.catalogue.tables import Column, known, read
from advisor.planners.core.units import GB


def read_links(path: Path | None) -> tuple[dict[str, Any], ...]:
    """Read the copies measured on instances (nvbandwidth); none without the file.

    One direction, None where not measured; ``gpu_name`` is as the driver says it, copies between
    devices are over all pairs, and with ``has_peer_access`` do not go through host memory. Raises
    CatalogueError if the file cannot be read or a cell breaks its rule.
    """
    if path is None:
        return ()
    return tuple(
        {
            "provider": row["provider"],
            "instance_type": row["instance_type"],
            "gpu_name": row["gpu_name"],
            "gpu_count": known(row["gpu_count"]),
            "pcie_generation": known(row["pcie_gen"]),
            "pcie_lanes": known(row["pcie_width"]),
            "host_to_device_bytes_per_s": known(row["h2d_gbs"], GB),
            "device_to_host_bytes_per_s": known(row["d2h_gbs"], GB),
            "device_to_device_min_bytes_per_s": known(row["d2d_min_gbs"], GB),
            "device_to_device_median_bytes_per_s": known(row["d2d_median_gbs"], GB),
            "device_to_device_max_bytes_per_s": known(row["d2d_max_gbs"], GB),
            "has_peer_access": {"yes": True, "no": False}.get(row["p2p"]),
            "source": row["source"],
        }
        for row in _rows(path, files.LINKS)
    )


def read_other_prices(path: Path | None) -> tuple[OtherPrice, ...]:
    """Read the prices of storage and traffic; none without the file.

    Raises CatalogueError if the file cannot be read or a cell breaks its rule.
    """
    if path is None:
        return ()
    return tuple(
        OtherPrice(
            provider=row["provider"],
            region=row["region"],
            item=row["item"],
            tier=row["tier"],
            price_usd=float(row["price"]),
            unit=row["unit"],
            as_of=row["as_of"],
            source=row["source"],
        )
        for row in _rows(path, files.OTHER_PRICES)
    )


def _rows(path: Path, columns: tuple[Column, ...]) -> list[dict[str, Any]]:
    table = read(path, columns)
    cells = zip(*(list(values) for values in table.values()), strict=True)
    return [dict(zip(table, row, strict=True)) for row in cells]
