"""Make the bundled snapshot from collected facts: ``python -m advisor.lab.catalogue.build``.

The folder is laid out like ``shared/data/catalogue``; its ``SOURCES.md`` names every source. The
result is split by licence: rows and columns under CC BY-SA 4.0, and rows from a source whose
licence is not confirmed, lie in files of their own that may be removed without breaking the rest.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from advisor import data
from advisor.catalogue import files
from advisor.catalogue.offer_columns import Bools, Floats, Provenance
from advisor.catalogue.providers.aws import region_code
from advisor.catalogue.rows import ListedOffer, read_rows, types_of, with_types, write_rows
from advisor.catalogue.specifications import family
from advisor.catalogue.tables import Column, read, write
from advisor.lab.catalogue import networks

if TYPE_CHECKING:
    from pandas import DataFrame


# Numbers of other tables: ``accelerator_checks*.csv``, typed by hand and each with its source;
# where one differs by more than ``TOLERANCE`` a note says why ours stays. ``accelerators.csv``
# itself is kept by hand (docs/adding_an_accelerator.md).


TOLERANCE: Final = 0.03  # tables round to two digits and take other clocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One number of another table."""

    quantity: str
    value: float
    source: str
    note: str


_CHECKS: Final = (
    Column(name="accelerator", kind="text", is_required=True),
    Column(name="quantity", kind="text", is_required=True),
    Column(name="value", low=1e-3, high=1_000_000, is_required=True),
    Column(name="source", kind="text", is_required=True),
    Column(name="note", kind="text"),
)
_CHECKS_FILES: Final = ("accelerator_checks.csv", "accelerator_checks.cc-by-sa-4.0.csv")


def read_checks(folder: Path) -> dict[str, list[Check]]:
    """Read the other tables' numbers by accelerator.

    Raises CatalogueError if a file cannot be read or a cell breaks its rule.
    """
    checks: dict[str, list[Check]] = defaultdict(list)
    for name in _CHECKS_FILES:
        table = read(folder / name, _CHECKS)
        columns = (table["quantity"], table["source"], table["note"])
        values = table["value"].tolist()
        rows = zip(table["accelerator"], *columns, values, strict=True)
        for accelerator, quantity, source, note, value in rows:
            check = Check(quantity=quantity, value=value, source=source, note=note)
            checks[accelerator].append(check)
    return dict(checks)


def agrees(check: Check, row: Mapping[str, Any]) -> bool:
    """Tell whether a number is ours within the tolerance."""
    return abs(check.value / float(row[check.quantity]) - 1.0) <= TOLERANCE


# CoreMark per vCPU of types that ran other benchmarks: a power law fitted on those with both.
#
#     ln(CoreMark per vCPU) = a + b ln(score) + c ln(sharing)    [or + c if the CPU is Arm]
#
# ========= =======================================================================
# score     single-core score of Geekbench 6 or of PassMark
# sharing   stress-ng's score with all vCPUs busy over vCPUs times that of one: below one where two
#           vCPUs are the hyperthreads of one core
# Arm       stands in for ``sharing`` where it is not known: an Arm vCPU is a whole core
# ========= =======================================================================
#
# Whole provider families left out, the scatter of the residual of ln is 0.12 with ``sharing`` (897
# types), 0.16 and 0.15 without (1,131 and 1,175), the median error 9, 6 and 6 %, the 90th
# percentile 19, 25 and 24 %; one speed for all errs by 20 and 52 %.
# ``lab/speed/catalogue_core_speed.py`` prints it again (2026-11-21).


Law = tuple[str, ...]

# The better law first; a type takes the first that its scores allow.
LAWS: Final[tuple[Law, ...]] = (
    ("geekbench", "sharing"), ("geekbench", "arm"), ("passmark", "arm"),
)  # fmt: skip


def converted(source: Path, types: DataFrame) -> dict[tuple[str, str], float]:
    """Return CoreMark per vCPU for the types without it that ran others, by (provider, name).

    ``types``: columns provider, instance_type, vcpus, cpu_arch, coremark_per_vcpu.
    """
    scores = _scores(source, types)
    coremark = scores["coremark"].to_numpy(float)
    is_open = np.isnan(coremark)
    speed = np.full(len(scores), np.nan)
    for law in LAWS:
        x, has_all = _design(scores, law)
        known = has_all & ~is_open
        weights = _fit(x[known], np.log(coremark[known]))
        todo = has_all & is_open & np.isnan(speed)
        speed[todo] = np.exp(x[todo] @ weights)
    pairs = zip(scores["provider"], scores["instance_type"], strict=True)
    return {
        pair: round(value)
        for pair, value in zip(pairs, speed.tolist(), strict=True)
        if value == value
    }


def held_out(source: Path, types: DataFrame, law: Law) -> tuple[Floats, Floats]:
    """Return measured and predicted CoreMark per vCPU, each family predicted from the others."""
    scores = _scores(source, types)
    coremark = scores["coremark"].to_numpy(float)
    x, has_all = _design(scores, law)
    known = has_all & ~np.isnan(coremark)
    x, y = x[known], np.log(coremark[known])
    pairs = zip(scores["provider"][known], scores["instance_type"][known], strict=True)
    groups = np.array([f"{provider} {family(provider, name)}" for provider, name in pairs])
    predicted = np.empty(len(y))
    for group in np.unique(groups):
        out = groups == group
        predicted[out] = x[out] @ _fit(x[~out], y[~out])
    return np.exp(y), np.exp(predicted)


def _scores(source: Path, types: DataFrame) -> DataFrame:
    import pandas as pd

    keys = ["provider", "instance_type"]
    wanted = ["geekbench_single", "passmark_single", "stressng_bogo_s",
              "stressngsinglecore_bogo_s"]  # fmt: skip
    speeds = pd.read_csv(source / "cpu_speed.csv")[[*keys, *wanted]].drop_duplicates(keys)
    joined = types[[*keys, "vcpus", "cpu_arch", "coremark_per_vcpu"]].merge(
        speeds, on=keys, how="left"
    )
    joined["coremark"] = pd.to_numeric(joined["coremark_per_vcpu"], errors="coerce")
    joined["geekbench"] = joined["geekbench_single"]
    joined["passmark"] = joined["passmark_single"]
    per_vcpu = joined["stressng_bogo_s"] / pd.to_numeric(joined["vcpus"], errors="coerce")
    # Short runs boost one core above what it keeps up; more than linear scaling is noise.
    joined["sharing"] = (per_vcpu / joined["stressngsinglecore_bogo_s"]).clip(0.2, 1.2)
    joined["arm"] = np.where(joined["cpu_arch"] == "arm64", math.e, 1.0)  # its ln is 1 or 0
    return joined


def _design(scores: DataFrame, law: Law) -> tuple[Floats, Bools]:
    """Return the terms of a law and for which rows all of them are known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = [np.log(scores[name].to_numpy(float)) for name in law]
    x = np.column_stack([np.ones(len(scores)), *columns])
    return x, np.isfinite(x).all(axis=1)


def _fit(x: Floats, y: Floats) -> Floats:
    return np.asarray(np.linalg.lstsq(x, y, rcond=None)[0], dtype=np.float64)


# Source of prices (as its first words stand in price_provenance.csv) -> licence.
LICENCES: Final[Mapping[str, str]] = {
    "ec2.shop": "MIT",
    "karpenter-provider-aws": "Apache-2.0",
    "karpenter-provider-azure": "Apache-2.0",
    "gcosts-pricing.yml": "Apache-2.0",
    "gpuhunt-tpu_pricing.json": "MPL-2.0",
    "gcosts host + skypilot-v8 gpu": "Apache-2.0 and unconfirmed",
    "skypilot-catalog-v8": "unconfirmed",
    "skypilot-catalog-v8-shadeform": "unconfirmed",
}
_EBS_VOLUME: Final = r"^EBS Storage .* (gp2|gp3|io1|io2|st1|sc1|standard) GB (?:Mo|month)$"
SAME_GPU: Final = "measured on another instance with this accelerator"


def build(source: Path, target: Path) -> None:
    """Write the bundled snapshot of ``source`` into ``target``."""
    target.mkdir(parents=True, exist_ok=True)
    types, measured = _read(source / "types.csv.gz"), _read(source / "interconnect_measured.csv")
    pairs: Any = zip(types["provider"], types["instance_type"], strict=True)
    names = dict(zip(types["type_id"], pairs, strict=True))
    found = {one.type_key: one for one in map(_type, types.itertuples())}
    priced = tuple(_prices(source, {at: found[key] for at, key in names.items()}))
    write_rows(target, with_types(priced, found))
    write_networks(source, target)
    _write_share_alike(target, types, measured, converted(source, types))
    _write_links(measured, target)
    _write_other_prices(source, target)


def _read(path: Path) -> DataFrame:
    import pandas as pd

    return pd.read_csv(path, keep_default_na=False)


def _write(path: Path, columns: tuple[Column, ...], rows: Any) -> None:
    """Write rows, or these columns of a frame."""
    names = [column.name for column in columns]
    write(path, names, rows if isinstance(rows, list) else rows[names].itertuples(index=False))


def _prices(source: Path, types: Mapping[Any, ListedOffer]) -> Iterator[ListedOffer]:
    provenances = _read(source / "price_provenance.csv")
    known: dict[Any, Any] = dict(
        zip(provenances["prov_id"], provenances.itertuples(), strict=True)
    )
    table = _read(source / "prices.csv.gz")
    made: dict[tuple[Any, str], Provenance] = {}
    for row in table.itertuples():
        pair = (row.prov_id, str(row.listing_status))
        if pair not in made:
            made[pair] = _provenance(known[row.prov_id], pair[1])
        band = _number(row.spot_interruption_band)
        yield replace(
            types[row.type_id],
            region=str(row.region),
            on_demand_usd_per_h=_number(row.price_usd_hour),
            spot_usd_per_h=_number(row.spot_price_usd_hour),
            spot_interruption_band=None if band is None else int(band),
            provenance=made[pair],
        )


def _provenance(one: Any, listing: str) -> Provenance:
    is_dated = len(one.price_as_of) == len("2026-11-21")
    return Provenance(
        as_of=one.price_as_of if is_dated else "",
        status=one.price_status,
        spot_status=one.spot_status,
        listing=listing,
        source=one.price_source if is_dated else f"{one.price_source}: {one.price_as_of}",
        licence=LICENCES[one.price_source],
    )


def _type(row: Any) -> ListedOffer:
    """Drop what is under CC BY-SA 4.0: Azure specifications and CPU models of Spare Cores."""
    is_share_alike = row.spec_source.startswith("SpareCores")
    same = ("provider", "instance_type", "cpu_arch", "accelerator", "rdma", "intra_node_link")
    numeric = ("coremark_per_vcpu", "network_gbps", "local_ssd_gb")
    told: dict[str, Any] = {name: getattr(row, name) for name in same}
    told |= {name: _number(getattr(row, name)) for name in numeric}
    return ListedOffer(
        **told,
        vcpus=None if is_share_alike else _number(row.vcpus),
        memory_gib=None if is_share_alike else _number(row.memory_gib),
        cpu_model="" if row.provider == "azure" else row.cpu_model,
        accelerator_count=_number(row.accelerator_count) or 0.0,
        network_baseline_gbps=_number(row.network_gbps_baseline),
        source=row.spec_source,
    )


def _write_share_alike(
    target: Path, types: Any, measured: Any, speeds: Mapping[tuple[str, str], float]
) -> None:
    """Write what comes from Spare Cores' inspections and dumps, keyed by type."""
    copies = {
        column: set(
            measured[measured[column] != ""][["provider", "instance_type"]].itertuples(
                index=False, name=None
            )
        )
        for column in ("d2d_median_gbs", "h2d_gbs")
    }
    rows: list[list[object]] = []
    for row in types.itertuples():
        pair = (row.provider, row.instance_type)
        is_spec = row.spec_source.startswith("SpareCores")
        known: list[object] = [
            row.vcpus if is_spec else "",
            _number(row.memory_gib) if is_spec else None,
            row.cpu_model if row.provider == "azure" else "",
            _number(row.intra_node_gbs),
            _basis(row.intra_node_gbs, pair in copies["d2d_median_gbs"]),
            _number(row.host_device_gbs),
            _basis(row.host_device_gbs, pair in copies["h2d_gbs"]),
            speeds.get(pair),
        ]
        if any(value not in ("", None) for value in known):
            rows.append([*pair, *known])
    _write(target / files.SPECIFICATIONS_FILE, files.SHARE_ALIKE_SPECIFICATIONS, rows)


def _basis(value: Any, is_measured: bool) -> str:
    if not value:
        return ""
    return "measured" if is_measured else SAME_GPU


def write_networks(source: Path, target: Path) -> None:
    """Write what providers' pages state of the networks of the types that ``target`` holds."""
    rows = networks.network_rows(source, list(types_of(read_rows(target)).values()))
    names = [column.name for column in files.NETWORKS]
    told = [[getattr(row, name) for name in names] for row in rows]
    _write(target / files.NETWORKS_FILE, files.NETWORKS, told)


def _write_links(measured: Any, target: Path) -> None:
    table = measured.copy()
    table["p2p"] = table["p2p"].where(table["p2p"] == "yes", "")  # else: no path, or a failure
    _write(target / files.LINKS_FILE, files.columns("links"), table)


def _write_other_prices(source: Path, target: Path) -> None:
    """Write storage by the month and outgoing traffic; requests, IOPS and restores are left out.

    AWS publishes an item twice, with and without its short name; the one with it is kept. Its
    regions stand by name; those of local zones are left out.
    """
    table = _read(source / "transfer_storage_prices.csv")
    volume = table["item"].str.extract(_EBS_VOLUME, expand=False)
    is_ebs = table["item"].str.startswith("EBS ")
    table = table[~is_ebs | volume.notna()].copy()
    volume = volume[table.index]
    table["item"] = table["item"].where(volume.isna(), "block storage " + volume)
    # AWS bills a "GB" of 2**30 bytes.
    table["unit"] = table["unit"].where(volume.isna(), "USD/GiB-month")
    table["region"] = [
        region_code(region) if owner else region
        for region, owner in zip(table["region"], volume.notna(), strict=True)
    ]
    table = table[table["region"].notna() & (table["price"] != "")]
    table = table.drop_duplicates(["provider", "region", "item", "tier"])
    _write(target / files.OTHER_PRICES_FILE, files.columns("other_prices"), table)


def _number(value: Any) -> float | None:
    return None if value == "" else float(value)


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    default = data.shared()
    parser.add_argument(
        "source", type=Path, nargs="?", default=default and default / "data" / "catalogue"
    )
    parser.add_argument("--to", type=Path, default=data.root("datasets") / "catalogue")
    chosen = parser.parse_args(None if arguments is None else list(arguments))
    if chosen.source is None:
        parser.error("name the folder of collected facts, or set ADVISOR_SHARED")
    build(chosen.source, chosen.to)


if __name__ == "__main__":
    main()
