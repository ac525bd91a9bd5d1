"""Every rule on the case that it comes from, and silence on prices that are right."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from advisor.catalogue import Catalogue, snapshot
from advisor.catalogue.offer_columns import Provenance
from advisor.catalogue.rows import Listed, ListedOffer, read_rows, types_of, with_types
from advisor.catalogue.upkeep.checks import Context, Finding, check

LISTED = Provenance(
    as_of="2026-11-20",
    status="listed",
    spot_status="",
    listing="offered",
    source="test",
    licence="",
)
NO_STOCK = replace(LISTED, listing="list-price-no-stock-info")
NOTHING: Listed = ()


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue.load(snapshot.bundled_folder(), with_overrides=False)


def machine(name: str, accelerator: str = "", count: float = 0.0, **changes: Any) -> ListedOffer:
    facts = {"vcpus": 8.0, "memory_gib": 64.0, **changes}
    return ListedOffer(
        provider="cloud",
        instance_type=name,
        accelerator=accelerator,
        accelerator_count=count,
        **facts,
    )


def offered(name: str, region: str, usd: float | None, spot: float | None = None) -> ListedOffer:
    return ListedOffer(
        provider="cloud",
        instance_type=name,
        region=region,
        on_demand_usd_per_h=usd,
        spot_usd_per_h=spot,
        provenance=LISTED,
    )


def listed(types: tuple[ListedOffer, ...], prices: tuple[ListedOffer, ...]) -> Listed:
    known = types_of(types)
    rows = tuple(
        replace(known[one.type_key], region=one.region, provenance=one.provenance,
                on_demand_usd_per_h=one.on_demand_usd_per_h, spot_usd_per_h=one.spot_usd_per_h)
        for one in prices
    )  # fmt: skip
    return with_types(rows, known)


def priced(rows: Listed) -> Listed:
    return tuple(one for one in rows if one.region)


def checked(
    catalogue: Catalogue, rows: Listed, before: Listed = NOTHING
) -> tuple[Listed, list[Finding]]:
    context = Context(
        before=before,
        outdated=("test",),
        accelerators=catalogue.accelerators,
        members=catalogue.matching_gpus,
        canonical=catalogue.canonical_gpu,
    )
    return check(rows, context)


def rules(findings: list[Finding]) -> Counter[tuple[str, str]]:
    return Counter((one.rule, one.severity) for one in findings)


def test_azure_h100_at_zero_dollars_is_dropped(catalogue: Catalogue) -> None:
    rows = listed(
        types=(machine("nd96", "H100", 8),),
        prices=(offered("nd96", "eastus", 0.0), offered("nd96", "westus", 98.32)),
    )
    left, findings = checked(catalogue, rows)
    assert [one.region for one in priced(left)] == ["westus"]
    assert rules(findings) == {("no-price", "dropped"): 1}


@pytest.mark.parametrize("usd", [float("nan"), float("inf"), -1.0, 1e7])
def test_what_is_no_price_is_dropped(catalogue: Catalogue, usd: float) -> None:
    rows = listed(types=(machine("m"),), prices=(offered("m", "r", usd, spot=0.1),))
    left, findings = checked(catalogue, rows)
    assert priced(left)[0].on_demand_usd_per_h is None
    assert priced(left)[0].spot_usd_per_h == 0.1
    assert rules(findings) == {("no-price", "dropped"): 1}


def test_tpu_v6e_at_700_whatever_the_size_is_dropped(catalogue: Catalogue) -> None:
    sizes = (1, 4, 8)
    rows = listed(
        types=tuple(machine(f"v6e-{n}", "tpu-v6e", n) for n in sizes),
        prices=tuple(offered(f"v6e-{n}", "us-east1", 700.0) for n in sizes),
    )
    left, findings = checked(catalogue, rows)
    assert priced(left) == ()
    assert rules(findings) == {("sentinel", "dropped"): 3}


def test_constrained_core_sizes_at_one_price_are_kept(catalogue: Catalogue) -> None:
    # Azure's Standard_M64ms, M64-32ms and M64-16ms: one machine, fewer vCPUs, one price.
    rows = listed(
        types=tuple(machine(f"m64-{n}", vcpus=n, memory_gib=1792.0) for n in (16, 32, 64)),
        prices=tuple(offered(f"m64-{n}", "eastus", 10.337) for n in (16, 32, 64)),
    )
    left, findings = checked(catalogue, rows)
    assert len(priced(left)) == 3
    assert findings == []


def test_an_a2_read_without_its_gpu_is_dropped(catalogue: Catalogue) -> None:
    # us-central1: 3.673 with the A100; 12 vCPUs and 85 GiB alone are 0.74.
    kind = machine("a2-highgpu-1g", "A100", 1, vcpus=12.0, memory_gib=85.0)
    before = listed(
        types=(replace(kind, accelerator="A100-SXM4-40GB"),),
        prices=(offered("a2-highgpu-1g", "us-central1", 3.673),),
    )
    rows = listed(types=(kind,), prices=(offered("a2-highgpu-1g", "us-east1", 0.74),))
    left, findings = checked(catalogue, rows, before)
    assert priced(left) == ()
    assert ("host-only", "dropped") in rules(findings)


def test_h100_at_another_products_price_in_one_region_is_dropped(catalogue: Catalogue) -> None:
    # SkyPilot v8: us-central1 at 43-46 (reserved by the day) against 88-127 elsewhere.
    prices = {"us-central1": 43.0, "us-east1": 88.0, "us-east4": 88.5, "europe-west4": 97.0,
              "asia-east1": 101.0}  # fmt: skip
    rows = listed(
        types=(machine("a3-highgpu-8g", "H100", 8, vcpus=208.0, memory_gib=1872.0),),
        prices=tuple(offered("a3-highgpu-8g", region, usd) for region, usd in prices.items()),
    )
    left, findings = checked(catalogue, rows)
    assert {one.region for one in priced(left)} == set(prices) - {"us-central1"}
    assert rules(findings) == {("region-outlier", "dropped"): 1}


def test_a_dear_region_of_a_cpu_only_type_is_only_flagged(catalogue: Catalogue) -> None:
    prices = {"eastus": 0.1, "westus": 0.1, "uksouth": 0.12, "brazilsoutheast": 0.27}
    rows = listed(
        types=(machine("d2"),),
        prices=tuple(offered("d2", region, usd) for region, usd in prices.items()),
    )
    left, findings = checked(catalogue, rows)
    assert len(priced(left)) == 4
    assert rules(findings) == {("region-outlier", "flagged"): 1}


def test_a_spot_price_above_on_demand_is_dropped(catalogue: Catalogue) -> None:
    rows = listed(types=(machine("m"),), prices=(offered("m", "r", 1.0, spot=1.2),))
    left, findings = checked(catalogue, rows)
    assert priced(left)[0].spot_usd_per_h is None
    assert priced(left)[0].on_demand_usd_per_h == 1.0
    assert rules(findings) == {("spot-above", "dropped"): 1}


def test_runpods_spot_prices_that_are_its_on_demand_prices_are_dropped(
    catalogue: Catalogue,
) -> None:
    rows = listed(
        types=(machine("1x_A100", "A100-80GB", 1),),
        prices=tuple(offered("1x_A100", f"r{n}", 1.39, spot=1.39) for n in range(5)),
    )
    left, findings = checked(catalogue, rows)
    assert all(one.spot_usd_per_h is None for one in priced(left))
    assert ("spot-is-on-demand", "dropped") in rules(findings)


@pytest.mark.parametrize(
    ("name", "stated_gib", "canonical", "is_corrected"),
    [
        ("A100", 80.0, "A100-PCIe-80GB", True),  # one name for both sizes
        ("A100", 40.0, "A100-SXM4-40GB", False),
        ("A100-80GB", 80 / 1024, "A100-SXM4-80GB", False),  # RunPod: "SizeInMiB": 80
        ("L4", 22.0, "L4", False),  # dstack#91: 24 GB is 22.35 GiB
        ("H100", 3.0, "H100-SXM5-80GB", True),
        ("V100", 128.0, "V100-SXM2-16GB", False),  # the sum over eight
    ],
)
def test_the_memory_of_an_accelerator_is_checked_against_its_description(
    catalogue: Catalogue, name: str, stated_gib: float, canonical: str, is_corrected: bool
) -> None:
    count = 8 if name == "V100" else 1
    row = machine("m", name, count, accelerator_memory_gib=stated_gib)
    left, findings = checked(catalogue, listed(types=(row,), prices=(offered("m", "r", 2.0),)))
    assert left[0].accelerator == canonical
    assert bool(findings) == is_corrected


def test_an_accelerator_that_nobody_describes_is_dropped(catalogue: Catalogue) -> None:
    rows = listed(types=(machine("m", "Z9000", 1),), prices=(offered("m", "r", 2.0),))
    left, findings = checked(catalogue, rows)
    assert left == NOTHING
    assert rules(findings) == {("unknown-accelerator", "dropped"): 1}


def test_memory_in_mebibytes_is_dropped(catalogue: Catalogue) -> None:
    rows = listed(types=(machine("m", memory_gib=65536.0),), prices=(offered("m", "r", 0.4),))
    left, findings = checked(catalogue, rows)
    assert left == NOTHING
    assert rules(findings) == {("machine-size", "dropped"): 1}


def test_bare_metal_with_a_dedicated_surcharge_is_marked(catalogue: Catalogue) -> None:
    rows = listed(
        types=(machine("m5.24xlarge", vcpus=96.0), machine("m5.metal", vcpus=96.0)),
        prices=(offered("m5.24xlarge", "r", 4.608), offered("m5.metal", "r", 5.069)),
    )
    left, findings = checked(catalogue, rows)
    assert priced(left)[1].sold.status == "dedicated-tenancy"
    assert rules(findings) == {("dedicated-tenancy", "marked"): 1}


def test_four_l40_dearer_than_twice_two_are_flagged(catalogue: Catalogue) -> None:
    rows = listed(
        types=(machine("L40x2", "L40", 2, vcpus=64.0), machine("L40x4", "L40", 4, vcpus=128.0)),
        prices=(offered("L40x2", "us", 1.98), offered("L40x4", "us", 5.96)),
    )
    left, findings = checked(catalogue, rows)
    assert len(priced(left)) == 2
    assert rules(findings) == {("uneven-price", "flagged"): 1}


def test_every_type_in_every_region_at_one_price_is_a_list_price(catalogue: Catalogue) -> None:
    regions = ["us-east-1", "us-west-1", "europe-central-1", "asia-south-1"]
    rows = listed(
        types=(machine("gpu_1x_a10", "A10", 1), machine("gpu_8x_v100", "V100", 8)),
        prices=tuple(
            replace(offered(name, region, usd), provenance=NO_STOCK)
            for region in regions
            for name, usd in (("gpu_1x_a10", 0.75), ("gpu_8x_v100", 6.32))
        ),
    )
    left, findings = checked(catalogue, rows)
    assert {one.key for one in priced(left)} == {
        ("cloud", "gpu_1x_a10", "all-regions"),
        ("cloud", "gpu_8x_v100", "all-regions"),
    }
    assert rules(findings) == {("every-region", "corrected"): 1}


def test_a_sudden_change_is_refused(catalogue: Catalogue) -> None:
    # AWS cut P5 by 44 % in 2025: right, but somebody should look.
    kinds = (machine("p5", "H100", 8), machine("m5"))
    accelerated = replace(kinds[0], accelerator="H100-SXM5-80GB")
    before = listed(
        types=(accelerated, kinds[1]),
        prices=(offered("p5", "us-east-1", 98.32), offered("m5", "us-east-1", 0.096)),
    )
    rows = listed(
        types=kinds, prices=(offered("p5", "us-east-1", 55.04), offered("m5", "us-east-1", 0.1))
    )
    _, findings = checked(catalogue, rows, before)
    assert [(one.rule, one.severity, one.instance_type) for one in findings] == [
        ("sudden-change", "refused", "p5")
    ]


@pytest.mark.parametrize(("left", "is_refused"), [(8, True), (9, False), (12, False)])
def test_a_falling_number_of_prices_is_refused(
    catalogue: Catalogue, left: int, is_refused: bool
) -> None:
    kinds = tuple(machine(f"m{n}") for n in range(12))
    before = listed(types=kinds, prices=tuple(offered(f"m{n}", "r", 1.0) for n in range(10)))
    rows = listed(types=kinds, prices=tuple(offered(f"m{n}", "r", 1.0) for n in range(left)))
    _, findings = checked(catalogue, rows, before)
    assert (("fewer-prices", "refused") in rules(findings)) == is_refused


def test_regions_that_were_not_read_do_not_count_as_missing(catalogue: Catalogue) -> None:
    kinds = (machine("m"),)
    before = listed(types=kinds, prices=tuple(offered("m", f"r{n}", 1.0) for n in range(20)))
    _, findings = checked(
        catalogue, listed(types=kinds, prices=(offered("m", "r3", 1.0),)), before
    )
    assert findings == []


def test_the_bundled_prices_pass_their_own_rules(catalogue: Catalogue) -> None:
    rows = read_rows(snapshot.bundled_folder())
    context = Context(
        before=rows,
        outdated=("",),
        accelerators=catalogue.accelerators,
        members=catalogue.matching_gpus,
        canonical=catalogue.canonical_gpu,
    )
    left, findings = check(rows, context)
    assert len(priced(left)) == len(priced(rows))
    assert {one.severity for one in findings} <= {"flagged", "marked"}
    # Known and looked at (docs/prices.md): dear regions of Azure, surcharges of bare metal.
    assert len(findings) < 0.005 * len(priced(rows))
