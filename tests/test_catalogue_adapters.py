"""Each adapter fetches what it parses, reads its format, and names what is wrong in it."""

from __future__ import annotations

import gzip
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import catalogue_payloads as payload
import pytest
from catalogue_server import Site, content, serving

from advisor.catalogue.providers.aws import AWS
from advisor.catalogue.providers.azure import Azure
from advisor.catalogue.providers.base import Adapter, RawFile, local_file
from advisor.catalogue.providers.gcosts import GCosts, read_mapping
from advisor.catalogue.providers.skypilot import SkyPilot
from advisor.catalogue.providers.sources import sources
from advisor.catalogue.rows import Listed, ListedOffer, types_of
from advisor.catalogue.upkeep.download import DownloadLimits, HttpSession, RawStore
from advisor.errors import CatalogueError, UsageError

Read = Callable[..., Listed]


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as one:
        yield one


@pytest.fixture
def session(tmp_path: Path) -> HttpSession:
    return HttpSession(
        source="s", store=RawStore(tmp_path / "raw"), limits=DownloadLimits(tries=1, silence_s=5.0)
    )


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def parse(adapter: Adapter, **files: bytes) -> Listed:
        return adapter.parse([raw(tmp_path, name, body) for name, body in files.items()], "")

    return parse


def raw(folder: Path, name: str, body: bytes) -> RawFile:
    name = name.replace("__", ".")
    (folder / name).write_bytes(body)
    return local_file(name, folder / name)


def prices(rows: Listed) -> dict[tuple[str, str], ListedOffer]:
    assert len({one.key for one in rows}) == len(rows)
    return {(one.instance_type, one.region): one for one in rows if one.region}


# Azure ---------------------------------------------------------------------------------------


def test_azure_follows_its_pages_and_reads_every_way_to_pay(
    site: Site, session: HttpSession
) -> None:
    second = "/api/retail/prices?$skip=100"
    consumption, reservation = (
        "/api/retail/prices?"
        + urllib.parse.urlencode(
            {"$filter": f"serviceName eq 'Virtual Machines' and priceType eq '{kind}'"}
        )
        for kind in ("Consumption", "Reservation")
    )
    item = payload.azure_item
    site.put(
        consumption,
        content(
            payload.azure_page(
                [
                    item("Standard_D4s_v5", 0.192),
                    item("Standard_D4s_v5", 0.0384, skuName="D4s v5 Spot"),
                    item("Standard_D4s_v5", 0.0384, skuName="D4s v5 Low Priority"),
                    item("Standard_D4s_v5", 0.376, productName="VMs Dsv5 Series Windows"),
                    item("Standard_D4s_v5", 0.1, productName="Dsv5 Series CloudServices"),
                    item("Standard_D4s_v5", 0.12, type="DevTestConsumption"),
                    item("", 5.0, productName="Dsv5 Dedicated Host"),
                ],
                f"{site.base}{second}",
            )
        ),
    )
    site.put(
        second,
        content(payload.azure_page([item("Standard_D4s_v5", 0.22, armRegionName="uksouth")])),
    )
    terms = [("1 Year", 1020.0), ("3 Years", 1980.0), ("5 Years", 2900.0)]
    site.put(
        reservation,
        content(
            payload.azure_page(
                [
                    item("Standard_D4s_v5", usd, type="Reservation", reservationTerm=term)
                    for term, usd in terms
                ]
            )
        ),
    )
    adapter = Azure(site.base)
    files = adapter.fetch(session)
    found = prices(adapter.parse(files, ""))
    assert set(found) == {("Standard_D4s_v5", "eastus"), ("Standard_D4s_v5", "uksouth")}
    row = found["Standard_D4s_v5", "eastus"]
    assert (row.on_demand_usd_per_h, row.spot_usd_per_h) == (0.192, 0.0384)
    assert row.reserved_1y_usd_per_h == pytest.approx(1020 / 8760)
    assert row.reserved_3y_usd_per_h == pytest.approx(1980 / 26280)
    assert row.sold.as_of == files[0].retrieved_at[:10]
    assert row.sold.source == "azure-retail-prices"


def test_azure_does_not_follow_a_link_to_another_host(site: Site, session: HttpSession) -> None:
    page = payload.azure_page([], "http://169.254.169.254/latest/meta-data")
    site.put(
        "/api/retail/prices?"
        + urllib.parse.urlencode(
            {"$filter": "serviceName eq 'Virtual Machines' and priceType eq 'Consumption'"}
        ),
        content(page),
    )
    with pytest.raises(CatalogueError, match="leads to another host"):
        Azure(site.base).fetch(session)


PAGE = payload.azure_page([payload.azure_item("S", 1.0)])


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b"{}", "Items: is missing"),
        (b"[1, 2]", "Items: is missing"),
        (b"<html>", "is not JSON"),
        (b'{"Items": ', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (PAGE.replace(b"1.0", b'"x"'), r"Items\[0\]\.retailPrice: is 'x'"),
        (PAGE.replace(b"1.0", b"-1"), r"Items\[0\]\.retailPrice: is -1"),
        (PAGE.replace(b"1.0", b"NaN"), "is not JSON: NaN"),
        (PAGE.replace(b"USD", b"EUR"), "BillingCurrency: is 'EUR'"),
    ],
)
def test_azure_names_what_is_wrong(read: Read, body: bytes, place: str) -> None:
    with pytest.raises(CatalogueError, match=f"a.json.*{place}|a.json {place}"):
        read(Azure(), a__json=body)


# AWS -----------------------------------------------------------------------------------------


def test_aws_reads_regions_and_derives_spot_from_the_advisors_savings(
    site: Site, session: HttpSession
) -> None:
    names = (("US East (N. Virginia)", "us-east-1"), ("EU (Ireland)", "eu-west-1"))
    site.put("/locations/1.0/aws/current/locations.json", content(payload.aws_locations(*names)))
    folder = "/pricing/2.0/meteredUnitMaps/ec2/USD/current/ec2-ondemand-without-sec-sel"
    for name, _ in names:
        page = payload.aws_page(name, {"m5.large": 0.096, "p5.48xlarge": 55.04})
        packed = gzip.compress(page)  # as AWS sends it: gzip without a word about it
        site.put(f"{folder}/{urllib.parse.quote(name)}/Linux/index.json", content(packed))
    advice = payload.aws_advice("us-east-1", {"m5.large": (60, 1)})
    site.put("/spot-advisor-data.json", content(advice))
    adapter = AWS(site.base, site.base)
    found = prices(adapter.parse(adapter.fetch(session), ""))
    assert len(found) == 4
    row = found["m5.large", "us-east-1"]
    assert row.on_demand_usd_per_h == 0.096
    assert row.spot_usd_per_h == pytest.approx(0.096 * 0.4)
    assert row.spot_interruption_band == 1
    assert row.sold.as_of == "2026-11-15"
    assert row.sold.spot_status == "derived:spot-advisor-savings"
    assert found["m5.large", "eu-west-1"].spot_usd_per_h is None


def test_aws_reads_the_price_list_with_reserved_prices(read: Read) -> None:
    def reserved(usd: str, term: str, **changes: str) -> dict[str, str]:
        usual = {"OfferingClass": "standard", "PurchaseOption": "No Upfront"}
        return {
            "Instance Type": "m5.large",
            "PricePerUnit": usd,
            "TermType": "Reserved",
            "LeaseContractLength": term,
            **usual,
            **changes,
        }

    on_demand = {"Instance Type": "m5.large", "PricePerUnit": "0.0960000000"}
    body = payload.aws_list(
        [
            on_demand,
            {**on_demand, "PricePerUnit": "0.188", "Operating System": "Windows"},
            {**on_demand, "PricePerUnit": "0.102", "Tenancy": "Dedicated"},
            {**on_demand, "PricePerUnit": "0.576", "Pre Installed S/W": "SQL Std"},
            {**on_demand, "PricePerUnit": "0.0", "CapacityStatus": "UnusedCapacityReservation"},
            reserved("0.060", "1yr"),
            reserved("0.041", "3yr"),
            reserved("500", "1yr", PurchaseOption="All Upfront", Unit="Quantity"),
            reserved("0.070", "1yr", OfferingClass="convertible"),
        ]
    )
    row = prices(read(AWS(), us__csv=body))["m5.large", "us-east-1"]
    assert row.on_demand_usd_per_h == 0.096
    assert (row.reserved_1y_usd_per_h, row.reserved_3y_usd_per_h) == (0.060, 0.041)
    assert row.sold.as_of == "2026-11-14"


IRELAND = payload.aws_page("EU (Ireland)", {"m5.large": 1.0})
FREE = [{"Instance Type": "m5.large", "PricePerUnit": "x"}]


@pytest.mark.parametrize(
    ("name", "body", "place"),
    [
        ("a__json", b'{"x": 1}', "neither a price page nor"),
        ("a__json", IRELAND.replace(b"1.0000000000", b"free"), r"\(Ireland\)\..*: is 'free'"),
        ("a__json", IRELAND.replace(b'"USD"', b'"CNY"'), "'CNY', not USD"),
        ("a__csv", b"SKU,x\n", "column '.*': is missing"),
        ("a__csv", b"no list at all\n" * 9, "is not the header"),
        ("a__csv", payload.aws_list(FREE), "row 7, column 'PricePerUnit': is 'x'"),
        ("a__csv", payload.aws_list([]) + b'"a","b"\n', "row 7: has 2 cells"),
    ],
)
def test_aws_names_what_is_wrong(read: Read, name: str, body: bytes, place: str) -> None:
    with pytest.raises(CatalogueError, match=place):
        read(AWS(), **{name: body})


# Google Cloud --------------------------------------------------------------------------------

COST = {"hour": 3.673385, "hour_spot": 1.293355, "month": 2681.57, "month_1y": 1689.37,
        "month_3y": 938.57}  # fmt: skip


def test_gcosts_reads_every_way_to_pay_and_its_own_date(site: Site, session: HttpSession) -> None:
    machines = {
        "a2-highgpu-1g": {"a100": 1, "cost": {"us-central1": COST}, "cpu": 12, "ram": 85},
        "e2-micro": {"cost": {"us-central1": {"hour": 0.0084}}, "cpu": 0.25, "ram": 1},
    }
    site.put(
        "/Cyclenerd/google-cloud-pricing-cost-calculator/master/pricing.yml",
        content(payload.gcosts(machines), "text/plain; charset=utf-8"),
    )
    adapter = GCosts(site.base)
    rows = adapter.parse(adapter.fetch(session), "")
    row = prices(rows)["a2-highgpu-1g", "us-central1"]
    assert (row.on_demand_usd_per_h, row.spot_usd_per_h) == (3.673385, 1.293355)
    assert row.reserved_1y_usd_per_h == pytest.approx(1689.37 / 730)
    assert row.reserved_3y_usd_per_h == pytest.approx(938.57 / 730)
    assert row.sold.as_of == "2026-11-18"
    kinds = {one.instance_type: one for one in types_of(rows).values()}
    assert kinds["a2-highgpu-1g"].accelerator_count == 1
    assert kinds["e2-micro"].vcpus == 0.25


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: &x 1\n", "line 1: '&x 1' is more than this reader admits"),
        ("a: [1, 2]\n", "line 1"),
        ("a: !!python/object:os.system x\n", "line 1"),
        ("a:\n  - 1\n", "line 2: is not 'key: value'"),
        ("a: 1\na: 2\n", "line 2: 'a' appears twice"),
        ("a\n", "line 1: is not 'key: value'"),
        ("\tb: 1\n", "line 1"),
    ],
)
def test_the_yaml_reader_refuses_what_it_does_not_need(
    tmp_path: Path, text: str, place: str
) -> None:
    with pytest.raises(CatalogueError, match=place):
        read_mapping(raw(tmp_path, "pricing.yml", text.encode()))


def test_the_yaml_reader_reads_nested_mappings(tmp_path: Path) -> None:
    text = "# c\n---\na:\n  b: 'x: y'\n  text: |2\n\n      k: v\n   z: 1\n  c:\n    d: 2\ne: 3 \n"
    assert read_mapping(raw(tmp_path, "pricing.yml", text.encode())) == {
        "a": {"b": "x: y", "text": "", "c": {"d": "2"}},
        "e": "3",
    }


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b"a: 1\n", "compute.instance: is missing"),
        (b"\xff\xfe", "is not UTF-8"),
        (payload.gcosts({"n1": {"cost": {"us": {"hour": "x"}}}}), r"n1\.cost\.us\.hour: is 'x'"),
        (payload.gcosts({"n1": {"cost": {"us": {"month": 1}}}}), "has no price an hour"),
    ],
)
def test_gcosts_names_what_is_wrong(read: Read, body: bytes, place: str) -> None:
    with pytest.raises(CatalogueError, match=place):
        read(GCosts(), pricing__yml=body)


# SkyPilot ------------------------------------------------------------------------------------


def test_skypilot_takes_the_cheapest_zone_and_both_forms_of_gpu_info(
    site: Site, session: HttpSession
) -> None:
    gpu = payload.skypilot_gpu
    body = payload.skypilot(
        f"gpu_1x_a10,A10,1.0,30.0,200.0,0.75,us-east-1,{gpu('A10', 1, 24576)},0.5",
        f"gpu_1x_a10,A10,1.0,30.0,200.0,0.70,us-east-1,{gpu('A10', 1, 24576)},0.6",
        f"gpu_1x_a10,A10,1.0,30.0,200.0,0.80,us-west-1,{gpu('A10', 1, 24576, is_json=True)},",
        "cpu_4x,,,4.0,16.0,0.2,us-east-1,,",
        ",V100,1,,,1.5,us-east-1,,",
    )
    site.put(
        "/skypilot-org/skypilot-catalog/master/catalogs/v8/lambda/vms.csv",
        content(body, "text/plain"),
    )
    adapter = SkyPilot("lambda", site.base)
    rows = adapter.parse(adapter.fetch(session), "")
    found = prices(rows)
    assert set(found) == {
        ("gpu_1x_a10", "us-east-1"), ("gpu_1x_a10", "us-west-1"), ("cpu_4x", "us-east-1"),
    }  # fmt: skip
    row = found["gpu_1x_a10", "us-east-1"]
    assert (row.on_demand_usd_per_h, row.spot_usd_per_h) == (0.70, 0.5)
    assert "unconfirmed" in row.sold.licence
    kind = next(one for one in rows if one.instance_type == "gpu_1x_a10")
    assert kind.accelerator_memory_gib == 24.0


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b"a,b\n1,2\n", "column 'InstanceType': is missing"),
        (payload.skypilot("m,,,4,16,free,r,,"), "row 2, column 'Price': is 'free'"),
        (payload.skypilot("m,,,4,16,-1,r,,"), "row 2, column 'Price': is -1"),
        (payload.skypilot("m,,,4,16,inf,r,,"), "row 2, column 'Price'"),
        (payload.skypilot("m,,,four,16,1,r,,"), "row 2, column 'vCPUs'"),
        (payload.skypilot("m,,,4,16,1,r"), "row 2: does not have 9 cells"),
        (payload.skypilot("m,,,4,16,1,r,,,,"), "text: is not CSV: line 2: more cells"),
        (b"\xff\xfe\x00", "text: is not CSV"),
    ],
)
def test_skypilot_names_what_is_wrong(read: Read, body: bytes, place: str) -> None:
    with pytest.raises(CatalogueError, match=f"vms.csv, {place}"):
        read(SkyPilot("lambda"), vms__csv=body)


def test_gpu_info_is_read_and_never_run(read: Read) -> None:
    evil = "\"__import__('os').system('touch /tmp/run')\""
    rows = read(SkyPilot("lambda"), vms__csv=payload.skypilot(f"m,A10,1,4,16,1,r,{evil},"))
    assert rows[0].accelerator_memory_gib is None


# All -----------------------------------------------------------------------------------------


def test_unknown_sources_are_refused() -> None:
    with pytest.raises(UsageError, match="'awz'") as raised:
        sources(["awz"])
    assert "aws" in raised.value.hint


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("raw/azure/prices-0-0000.json", "azure"),
        ("Downloads/aws/us-east-1.json", "aws"),
        ("Downloads/aws/index.csv", "aws"),
        ("Downloads/spot-advisor-data.json", "aws"),
        ("google-cloud-pricing-cost-calculator/pricing.yml", "gcp"),
        ("skypilot-catalog/catalogs/v8/runpod/vms.csv", "runpod"),
        ("skypilot-catalog/catalogs/v8/lambda/vms.csv", "lambda"),
        ("holiday/photo.json", None),
    ],
)
def test_every_file_of_a_folder_finds_its_adapter(path: str, owner: str | None) -> None:
    owners = [source.name for source in sources() if source.make().owns(path)]
    assert owners == ([] if owner is None else [owner])
