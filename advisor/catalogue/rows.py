"""Types and prices as rows: what adapters make, what is checked and merged, what is written.

Columns (``columns.py``) answer questions; rows are what goes into and out of the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from advisor.catalogue import files
from advisor.catalogue.offer_columns import Provenance
from advisor.catalogue.snapshot import part_names, read_provenances
from advisor.catalogue.tables import parse_numbers, read, read_bytes, texts, unpack, write

UNCONFIRMED_PART: Final = ".skypilot-catalog"  # the source whose licence is not confirmed


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRow:
    """An instance type as a source states it; None or ``""`` is "does not say".

    ``accelerator`` is the provider's own name until it is resolved, canonical in the files.
    ``accelerator_memory_gib`` is only checked, not kept: accelerators.csv is the authority.
    """

    provider: str
    instance_type: str
    vcpus: float | None = None
    memory_gib: float | None = None
    cpu_arch: str = ""
    cpu_model: str = ""
    coremark_per_vcpu: float | None = None
    accelerator: str = ""
    accelerator_count: float = 0.0
    accelerator_memory_gib: float | None = None
    network_gbps: float | None = None
    network_baseline_gbps: float | None = None
    rdma: str = ""
    intra_node_link: str = ""
    local_ssd_gb: float | None = None
    source: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Provider and name: no two types share it."""
        return self.provider, self.instance_type


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRow:
    """Prices of a type in a region, USD per hour; None is "no price"."""

    provider: str
    instance_type: str
    region: str
    on_demand_usd_per_h: float | None = None
    spot_usd_per_h: float | None = None
    reserved_1y_usd_per_h: float | None = None
    reserved_3y_usd_per_h: float | None = None
    spot_interruption_band: float | None = None
    provenance: Provenance

    @property
    def key(self) -> tuple[str, str, str]:
        """Provider, name and region: no two rows of a snapshot share it."""
        return self.provider, self.instance_type, self.region


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueRows:
    """Types and their prices."""

    types: tuple[TypeRow, ...]
    prices: tuple[PriceRow, ...]


def read_rows(folder: Path) -> CatalogueRows:
    """Read a snapshot's types and prices as rows.

    Raises CatalogueError if a file is missing, damaged or breaks a rule.
    """
    regions = texts(read(folder / files.REGIONS_FILE, files.REGIONS), "region")
    provenances = read_provenances(folder)
    types: list[TypeRow] = []
    prices: list[PriceRow] = []
    for part in part_names(folder):
        table = read(folder / f"types{part}.csv.gz", files.TYPES)
        cells = zip(*(list(values) for values in table.values()), strict=True)
        own = [TypeRow(**_known(dict(zip(table, row, strict=True)))) for row in cells]
        path = folder / f"prices{part}.csv.gz"
        numbers = parse_numbers(unpack(read_bytes(path), path), files.PRICES, path.name)
        rows = zip(*(values.tolist() for values in numbers.values()), strict=True)
        named = (dict(zip(numbers, row, strict=True)) for row in rows)
        prices += [_price(row, own, regions, provenances) for row in named]
        types += own
    return CatalogueRows(types=tuple(types), prices=tuple(prices))


def _known(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if value != value else value for name, value in row.items()}


def _price(
    row: Mapping[str, float],
    types: Sequence[TypeRow],
    regions: Sequence[str],
    provenances: Sequence[Provenance],
) -> PriceRow:
    of = types[int(row["type_id"])]
    band = row["spot_interruption_band"]
    usd_per_h = {
        name: None if value != value else value
        for name, value in row.items()
        if name.endswith("_usd_per_h")
    }
    return PriceRow(
        provider=of.provider,
        instance_type=of.instance_type,
        region=regions[int(row["region_id"])],
        spot_interruption_band=None if band != band else int(band),
        provenance=provenances[int(row["provenance_id"])],
        **usd_per_h,
    )


def write_rows(folder: Path, rows: CatalogueRows) -> None:
    """Write types and prices as the files of a snapshot; equal rows give equal bytes.

    A type goes with its prices into the part of the unconfirmed licence if one of them is so.
    Raises ValueError if a price has no type or a key stands twice: a merge went wrong.
    """
    _check_keys(rows)
    types = sorted(rows.types, key=lambda one: one.key)
    prices = sorted(rows.prices, key=lambda one: one.key)
    regions = sorted({one.region for one in prices})
    provenances = sorted({one.provenance for one in prices}, key=_provenance_cells)
    write(folder / files.REGIONS_FILE, ["region"], ([region] for region in regions))
    names = [column.name for column in files.PROVENANCE]
    write(folder / files.PROVENANCE_FILE, names, map(_provenance_cells, provenances))
    places = (
        {region: at for at, region in enumerate(regions)},
        {provenance: at for at, provenance in enumerate(provenances)},
    )
    apart = {
        (one.provider, one.instance_type)
        for one in prices
        if "unconfirmed" in one.provenance.licence
    }
    for part, is_apart in (("", False), (UNCONFIRMED_PART, True)):
        chosen = [one for one in types if (one.key in apart) == is_apart]
        if chosen or not is_apart:
            _write_part(folder, part, chosen, prices, places)


def _check_keys(rows: CatalogueRows) -> None:
    keys = {one.key for one in rows.types}
    if len(keys) != len(rows.types):
        raise ValueError("a type appears twice")
    if len({one.key for one in rows.prices}) != len(rows.prices):
        raise ValueError("a price appears twice")
    for one in rows.prices:
        if (one.provider, one.instance_type) not in keys:
            raise ValueError(f"a price without a type: {one.key}")


def _provenance_cells(one: Provenance) -> tuple[str, ...]:
    return (one.as_of, one.status, one.spot_status, one.listing, one.source, one.licence)


def _write_part(
    folder: Path,
    part: str,
    types: Sequence[TypeRow],
    prices: Iterable[PriceRow],
    places: tuple[Mapping[str, int], Mapping[Provenance, int]],
) -> None:
    names = [column.name for column in files.TYPES]
    write(
        folder / f"types{part}.csv.gz",
        names,
        ([getattr(one, name) for name in names] for one in types),
    )
    place = {one.key: at for at, one in enumerate(types)}
    chosen = [one for one in prices if (one.provider, one.instance_type) in place]
    reserved = [
        name
        for name in ("reserved_1y_usd_per_h", "reserved_3y_usd_per_h")
        if any(getattr(one, name) is not None for one in chosen)
    ]
    known = ["on_demand_usd_per_h", "spot_usd_per_h", "spot_interruption_band", *reserved]
    write(
        folder / f"prices{part}.csv.gz",
        ["type_id", "region_id", "provenance_id", *known],
        (
            [
                place[one.provider, one.instance_type],
                places[0][one.region],
                places[1][one.provenance],
                *(getattr(one, name) for name in known),
            ]
            for one in chosen
        ),
    )
