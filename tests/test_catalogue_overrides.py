"""The user's own prices, machines, quotas and regions, laid over the bundled snapshot."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

from advisor.catalogue import Catalogue, OfferFilter, Pricing, snapshot
from advisor.errors import CatalogueError
from advisor.providers import SHORTEST_BILL_H, charged_h

HEADER = (
    "rule,provider,instance_type,region,pricing,value,unit,service,count,vcpus,memory_gib,"
    "accelerator,accelerator_count,network_gbps,note\n"
)


@pytest.fixture(scope="module")
def plain() -> Catalogue:
    return Catalogue.load(snapshot.bundled_folder(), with_overrides=False)


def load(tmp_path: Path, *rows: str) -> Catalogue:
    width = HEADER.count(",")
    path = tmp_path / "overrides.csv"
    path.write_text(HEADER + "".join(row + "," * (width - row.count(",")) + "\n" for row in rows))
    return Catalogue.load(snapshot.bundled_folder(), overrides=path)


def price(catalogue: Catalogue, provider: str, name: str, region: str, way: str) -> float:
    wanted = OfferFilter(
        providers=(provider,),
        types=(name,),
        regions=(region,),
        pricing=("on-demand", "spot", "reserved-1y", "reserved-3y"),
    )
    offers = catalogue.select(wanted)
    found = offers.price_usd_per_h[offers.pricing == way]
    assert len(found) == 1
    return float(found[0])


def test_a_negotiated_price_takes_the_place_of_the_listed_one(tmp_path: Path) -> None:
    catalogue = load(tmp_path, "price,aws,p5.48xlarge,us-east-1,on-demand,40")
    assert price(catalogue, "aws", "p5.48xlarge", "us-east-1", "on-demand") == 40.0
    assert price(catalogue, "aws", "p5.48xlarge", "us-west-2", "on-demand") == 55.04


def test_a_reservation_is_a_way_to_pay_of_its_own(tmp_path: Path, plain: Catalogue) -> None:
    catalogue = load(tmp_path, "price,gcp,a2-highgpu-8g,us-central1,reserved-3y,10.3")
    assert price(catalogue, "gcp", "a2-highgpu-8g", "us-central1", "reserved-3y") == 10.3
    listed = price(plain, "gcp", "a2-highgpu-8g", "us-central1", "on-demand")
    assert price(catalogue, "gcp", "a2-highgpu-8g", "us-central1", "on-demand") == listed
    usual = catalogue.select(OfferFilter(types=("a2-highgpu-8g",)))
    assert set(usual.pricing.tolist()) == {"on-demand", "spot"}


def test_a_discount_scales_prices_and_keeps_their_date(tmp_path: Path, plain: Catalogue) -> None:
    catalogue = load(tmp_path, "factor,azure,Standard_N*,,on-demand,0.8")
    for name, factor in (("Standard_NC24ads_A100_v4", 0.8), ("Standard_D4s_v5", 1.0)):
        before = price(plain, "azure", name, "eastus", "on-demand")
        after = price(catalogue, "azure", name, "eastus", "on-demand")
        assert after == pytest.approx(factor * before)
    assert catalogue.as_of == plain.as_of
    types, prices = catalogue.types, catalogue.prices
    at = prices.type_index == np.flatnonzero(types.name == "Standard_NC24ads_A100_v4")[0]
    days, ways = (prices.of_source(attrgetter(name)) for name in ("as_of", "status"))
    assert set(days[at].tolist()) == {"2026-06-18"}
    assert all("x 0.8 by overrides.csv, row 2" in one for one in ways[at].tolist())


def test_a_managed_service_competes_under_its_own_name(tmp_path: Path, plain: Catalogue) -> None:
    catalogue = load(tmp_path, "service,gcp,a*,,,1.15,,vertex")
    listed = price(plain, "gcp", "a2-highgpu-1g", "us-central1", "on-demand")
    dearer = price(catalogue, "vertex", "a2-highgpu-1g", "us-central1", "on-demand")
    assert dearer == pytest.approx(1.15 * listed)
    assert price(catalogue, "gcp", "a2-highgpu-1g", "us-central1", "on-demand") == listed
    row = catalogue.instance_type("a2-highgpu-1g", provider="vertex")
    assert row.accelerator == "A100-SXM4-40GB"
    only = catalogue.select(OfferFilter(providers=("vertex",)))
    assert {str(name)[0] for name in catalogue.types.name[only.type_index]} == {"a"}


def test_a_machine_of_ones_own_competes_in_the_same_list(tmp_path: Path) -> None:
    row = "machine,lab,dgx,,,3.2,,,4,128,1024,a100-80gb,8,200,paid off in 2027"
    catalogue = load(tmp_path, row)
    one = catalogue.instance_type("dgx")
    assert (one.provider, one.accelerator, one.accelerator_count) == ("lab", "A100-SXM4-80GB", 8)
    assert one.accelerator_memory_bytes is not None
    assert 79 < one.accelerator_memory_bytes / 2**30 < 80
    assert one.network_bytes_per_s == 25e9
    offers = catalogue.select(OfferFilter(types=("dgx",)))
    assert offers.price_usd_per_h.tolist() == [3.2]
    assert offers.region.tolist() == ["on-premises"]
    assert offers.max_instances.tolist() == [4.0]
    # An own machine has the date of the file, and does not make the catalogue look new.
    assert catalogue.as_of == "2026-07-30"


def test_quotas_limit_instances_and_take_away_what_they_do_not_allow(tmp_path: Path) -> None:
    catalogue = load(
        tmp_path,
        "quota,aws,p4d.24xlarge,us-east-1,,200,vcpus",
        "quota,aws,g5.*,us-east-1,,3,gpus",
        "quota,aws,m5.large,us-east-1,,2,instances",
    )

    def most(name: str) -> list[float]:
        wanted = OfferFilter(types=(name,), regions=("us-east-1",), pricing=["on-demand"])
        return list(catalogue.select(wanted).max_instances.tolist())

    assert most("p4d.24xlarge") == [2.0]  # 200 // 96
    assert most("g5.xlarge") == [3.0]
    assert most("g5.12xlarge") == []  # four GPUs in one
    assert most("m5.large") == [2.0]
    assert most("m5.xlarge") == [np.inf]


def test_only_allowed_regions_of_a_provider_are_left(tmp_path: Path) -> None:
    catalogue = load(tmp_path, "region,aws,,eu-*", "region,aws,,ca-central-1")
    regions = set(catalogue.select(OfferFilter(providers=("aws",))).region.tolist())
    assert regions
    assert all(region.startswith("eu-") or region == "ca-central-1" for region in regions)
    assert len(set(catalogue.select(OfferFilter(providers=("gcp",))).region.tolist())) == 43


def test_rules_apply_in_the_order_of_the_file(tmp_path: Path) -> None:
    catalogue = load(
        tmp_path,
        "price,aws,m5.large,us-east-1,on-demand,1",
        "factor,aws,m5.large,us-east-1,on-demand,0.5",
    )
    assert price(catalogue, "aws", "m5.large", "us-east-1", "on-demand") == 0.5


def test_a_type_can_be_priced_where_it_had_no_price(tmp_path: Path) -> None:
    catalogue = load(tmp_path, "price,aws,p5en.48xlarge,mars-1,on-demand,70")
    assert price(catalogue, "aws", "p5en.48xlarge", "mars-1", "on-demand") == 70.0


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ("bargain,aws,m5.large,,,1", "row 2, column 'rule'"),
        ("price,aws,m5.large,,,", "row 2, column 'value': is empty"),
        ("price,aws,m5.large,,,-1", "row 2, column 'value': is '-1'"),
        ("price,aws,m5.large,,,0", "row 2, column 'value'"),
        ("price,aws,m5.large,,weekly,1", "row 2, column 'pricing'"),
        ("price,nowhere,m5.large,,,1", "row 2, column 'provider'"),
        ("price,aws,m5.huge,,,1", "row 2, column 'instance_type'"),
        ("factor,aws,m5.large,mars-*,,1", "row 2, column 'region'"),
        ("quota,aws,m5.large,,,1,cores", "row 2, column 'unit'"),
        ("service,gcp,a*,,,1.1,,aws", "row 2, column 'service'"),
        ("machine,lab,box,,,1", "row 2, column 'vcpus': is empty"),
        ("machine,lab,box,,,1,,,1,8,64,Z9000,1", "row 2, column 'accelerator'"),
        ("machine,aws,m5.large,,,1,,,1,8,64", "row 2, column 'instance_type'"),
        ("price,aws,m5.large,,,1e999", "row 2, column 'value'"),
    ],
)
def test_a_bad_rule_is_named_by_row_and_column(tmp_path: Path, row: str, place: str) -> None:
    with pytest.raises(CatalogueError, match=f"overrides.csv, {place}") as raised:
        load(tmp_path, row)
    assert raised.value.hint


def test_the_file_in_the_configuration_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "advisor"
    folder.mkdir()
    (folder / "overrides.csv").write_text(
        "rule,provider,instance_type,value,vcpus,memory_gib\nmachine,lab,box,0.5,8,64\n"
    )
    assert Catalogue.load().instance_type("box").provider == "lab"
    with pytest.raises(CatalogueError):
        Catalogue.load(with_overrides=False).instance_type("box")


ON_DEMAND: tuple[Pricing, ...] = ("on-demand",)
P5_ON_DEMAND = OfferFilter(types=("p5.48xlarge",), regions=("us-east-1",), pricing=ON_DEMAND)


def test_a_reservation_adds_so_many_machines_at_its_own_price(
    tmp_path: Path, plain: Catalogue
) -> None:
    catalogue = load(tmp_path, "reserved,aws,p5.48xlarge,us-east-1,,0,,,2")
    offers = catalogue.select(P5_ON_DEMAND)
    assert offers.price_usd_per_h.tolist() == [0.0, 55.04]
    assert offers.max_instances.tolist() == [2.0, np.inf]
    assert len(plain.select(P5_ON_DEMAND)) == 1


def test_a_capacity_block_is_charged_whole(tmp_path: Path) -> None:
    header = HEADER.replace(",count,", ",count,hours,")
    path = tmp_path / "overrides.csv"
    row = "block,aws,p5.48xlarge,us-east-1,,31.5,,,4,24"
    path.write_text(header + row + "," * (header.count(",") - row.count(",")) + "\n")
    catalogue = Catalogue.load(snapshot.bundled_folder(), overrides=path)
    offers = catalogue.select(P5_ON_DEMAND)
    assert offers.price_usd_per_h[0] == 31.5
    charged = charged_h(np.array([1.0, 24.0, 25.0]), offers.shortest_bill_h[0],
                        offers.bill_step_h[0])  # fmt: skip
    assert charged.tolist() == [24.0, 24.0, 48.0]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("reserved,aws,p5.*,us-east-1,,0,,,2", "names"),
        ("reserved,aws,p5.48xlarge,mars-1,,0,,,2", "mars-1"),
        ("reserved,aws,p5.48xlarge,us-east-1,,0", "is empty"),
        ("block,aws,p5.48xlarge,us-east-1,,30,,,2", "is empty"),
    ],
)
def test_a_reservation_says_what_it_lacks(tmp_path: Path, row: str, told: str) -> None:
    with pytest.raises(CatalogueError, match=told):
        load(tmp_path, row)


def test_bills_are_of_a_minute_at_least_and_of_an_hour_where_a_provider_says_so(
    plain: Catalogue,
) -> None:
    offers = plain.select(OfferFilter(pricing=("on-demand", "spot")))
    assert offers.shortest_bill_h.min() == SHORTEST_BILL_H
    is_hourly = offers.bill_step_h == 1.0
    owners = plain.types.provider[offers.type_index[is_hourly]]
    assert set(owners.tolist()) <= {"scaleway"}
    assert (plain.types.accelerator_count[offers.type_index[is_hourly]] == 0).all()
