"""An update is whole or not at all, one source does not harm another, and it can be undone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import catalogue_payloads as payload
import pytest
from catalogue_server import Site, content, redirect, serving, status, truncated
from typer.testing import CliRunner

from advisor.catalogue import Catalogue, OfferFilter, snapshot
from advisor.catalogue.providers.aws import AWS
from advisor.catalogue.providers.azure import Azure
from advisor.catalogue.providers.base import FetchSession, RawFile
from advisor.catalogue.providers.gcosts import GCosts
from advisor.catalogue.providers.skypilot import SkyPilot
from advisor.catalogue.providers.sources import Source, sources
from advisor.catalogue.rows import Listed, read_rows, write_rows
from advisor.catalogue.snapshot import cache_folder
from advisor.catalogue.upkeep.difference import difference
from advisor.catalogue.upkeep.download import DownloadLimits
from advisor.catalogue.upkeep.given import given_files
from advisor.catalogue.upkeep.update import Options, Report, update_catalogue
from advisor.cli.catalogue import app
from advisor.errors import CatalogueError, UsageError

QUICK = DownloadLimits(tries=2, first_wait_s=0.01, silence_s=2.0, file_s=20.0)
GCP = {
    "e2-standard-4": {
        "cost": {"us-central1": {"hour": 0.14, "hour_spot": 0.05, "month_1y": 61.0}},
        "cpu": 4,
        "ram": 16,
    },
    "x9-standard-4": {"cost": {"us-central1": {"hour": 0.2}}, "cpu": 4, "ram": 16},
}
GCP_PATH = "/Cyclenerd/google-cloud-pricing-cost-calculator/master/pricing.yml"
LAMBDA_PATH = "/skypilot-org/skypilot-catalog/master/catalogs/v8/lambda/vms.csv"
LAMBDA = payload.skypilot(
    *(
        f"{name},{gpu},1,30,200,{usd},us-east-1,,"
        for name, gpu, usd in (("gpu_1x_a10", "A10", 0.80), ("gpu_1x_gh200", "GH200", 1.60))
    )
)
FEWER = {"gcp", "lambda", "azure", "aws"}  # these payloads are a handful of rows


@pytest.fixture(scope="session")
def few_offers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few types of the bundled snapshot in all their regions: whole updates in milliseconds."""
    whole, small = snapshot.bundled_folder(), tmp_path_factory.mktemp("bundled")
    for path in whole.iterdir():
        if not path.name.startswith(("types", "prices", "regions", "provenance")):
            (small / path.name).write_bytes(path.read_bytes())
    rows = read_rows(whole)
    kept = {"e2-standard-4", "n1-standard-4", "n1-standard-8+1xV100", "m5.large", "p5.48xlarge",
            "Standard_D4s_v5"}  # fmt: skip
    write_rows(
        small, [one for one in rows if one.instance_type in kept or one.provider == "lambda"]
    )
    return small


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_offers: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(snapshot, "bundled_folder", lambda: few_offers)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as one:
        one.put(GCP_PATH, content(payload.gcosts(GCP), "text/plain"))
        one.put(LAMBDA_PATH, content(LAMBDA, "text/plain"))
        yield one


def two(site: Site) -> list[Source]:
    return [
        Source(name="gcp", make=lambda: GCosts(site.base)),
        Source(name="lambda", make=lambda: SkyPilot("lambda", site.base)),
    ]


def run(chosen: Sequence[Source], **changes: object) -> Report:
    options = Options(limits=QUICK, accept_fewer=FEWER)
    return update_catalogue(chosen, replace(options, **changes))  # type: ignore[arg-type]


def statuses(report: Report) -> dict[str, str]:
    return {one.source: one.status for one in report.outcomes}


def price(catalogue: Catalogue, provider: str, name: str, region: str) -> list[float]:
    wanted = OfferFilter(
        providers=(provider,), types=(name,), regions=(region,), pricing=["on-demand"]
    )
    return list(catalogue.select(wanted).price_usd_per_h.tolist())


def test_new_prices_take_the_place_of_old_ones_in_their_regions_only(site: Site) -> None:
    before = Catalogue.load()
    report = run(two(site))
    assert statuses(report) == {"gcp": "updated", "lambda": "updated"}
    after = Catalogue.load()
    assert after.path == report.folder
    assert after.as_of_by_provider["gcp"][1] == "2026-11-18"
    assert price(after, "gcp", "e2-standard-4", "us-central1") == [0.14]
    for untouched in ("europe-west4", "asia-east1"):
        assert price(after, "gcp", "e2-standard-4", untouched) == price(
            before, "gcp", "e2-standard-4", untouched
        )
    # A type that the new list does not have in this region is not offered there any more.
    assert price(before, "gcp", "n1-standard-4", "us-central1")
    assert not price(after, "gcp", "n1-standard-4", "us-central1")
    # What another source says stays: host and attached accelerator.
    assert price(after, "gcp", "n1-standard-8+1xV100", "us-central1")
    assert price(after, "aws", "m5.large", "us-east-1") == [0.096]


def test_a_known_type_keeps_its_facts_and_a_new_one_is_added(site: Site) -> None:
    before = Catalogue.load().instance_type("e2-standard-4")
    run(two(site))
    after = Catalogue.load()
    known = after.instance_type("e2-standard-4")
    assert known.network_bytes_per_s == before.network_bytes_per_s
    assert known.core_speed == before.core_speed
    assert after.instance_type("x9-standard-4").vcpus == 4


def test_committed_use_becomes_a_way_to_pay(site: Site) -> None:
    run(two(site))
    catalogue = Catalogue.load()
    wanted = OfferFilter(types=("e2-standard-4",), pricing=["reserved-1y"])
    assert catalogue.select(wanted).price_usd_per_h.tolist() == [pytest.approx(61.0 / 730)]


@pytest.mark.parametrize(
    "answer",
    [
        status(500),
        status(429),
        status(404),
        truncated(payload.gcosts(GCP)),
        content(b"<html></html>", "text/html"),
        content(b"about: [1]\n", "text/plain"),
        content(payload.gcosts({"x": {"cost": {"us": {"hour": -1}}}}), "text/plain"),
        redirect(GCP_PATH),
    ],
    ids=["500", "429", "404", "truncated", "html", "malformed", "negative", "circle"],
)  # fmt: skip
def test_a_source_that_fails_leaves_its_part_and_the_others_go_on(
    site: Site, answer: object
) -> None:
    before = Catalogue.load()
    site.put(GCP_PATH, answer)  # type: ignore[arg-type]
    report = run(two(site))
    assert statuses(report) == {"gcp": "failed", "lambda": "updated"}
    failed = report.outcomes[0]
    assert failed.message
    assert failed.hint
    after = Catalogue.load()
    assert price(after, "gcp", "n1-standard-4", "us-central1") == price(
        before, "gcp", "n1-standard-4", "us-central1"
    )
    assert price(after, "lambda", "gpu_1x_a10", "us-east-1") == [0.80]


def test_an_adapter_with_a_fault_of_its_own_harms_only_itself(site: Site) -> None:
    class Broken(SkyPilot):
        def parse(self, files: Sequence[RawFile], as_of: str) -> Listed:
            raise ZeroDivisionError("oops")

    broken = Source(name="broken", make=lambda: Broken("verda", site.base))
    site.put(LAMBDA_PATH.replace("lambda", "verda"), content(LAMBDA, "text/plain"))
    report = run([broken, *two(site)])
    assert statuses(report) == {"broken": "failed", "gcp": "updated", "lambda": "updated"}
    assert "ZeroDivisionError: oops" in report.outcomes[0].message


def test_when_every_source_fails_the_snapshot_stays(site: Site) -> None:
    site.put(GCP_PATH, status(500))
    site.put(LAMBDA_PATH, status(404))
    report = run(two(site))
    assert report.folder is None
    assert not report.is_current
    assert snapshot.current_folder() == snapshot.bundled_folder()


def test_a_refused_source_stays_as_it_was_until_it_is_accepted(site: Site) -> None:
    cheap = {"e2-standard-4": {"cost": {"us-central1": {"hour": 0.05}}, "cpu": 4, "ram": 16}}
    site.put(GCP_PATH, content(payload.gcosts(cheap), "text/plain"))
    assert statuses(run(two(site)[:1], accept_fewer=())) == {"gcp": "refused"}
    report = run(two(site)[:1])
    assert statuses(report) == {"gcp": "refused"}
    assert "--accept gcp" in report.outcomes[0].hint
    assert snapshot.current_folder() == snapshot.bundled_folder()
    assert statuses(run(two(site)[:1], accept={"gcp"})) == {"gcp": "updated"}
    assert price(Catalogue.load(), "gcp", "e2-standard-4", "us-central1") == [0.05]


def test_an_update_can_be_compared_and_undone(site: Site) -> None:
    before = Catalogue.load()
    report = run(two(site))
    assert report.folder is not None
    changed = difference(before, Catalogue.load())
    assert {one["provider"] for one in changed["providers"]} == {"gcp", "lambda"}
    assert any(
        (one["instance_type"], one["region"], one["new_usd_per_h"])
        == ("e2-standard-4", "us-central1", 0.14)
        for one in changed["changes"]
    )
    assert snapshot.previous_folder(report.folder) == snapshot.bundled_folder()
    assert snapshot.roll_back() == snapshot.bundled_folder()
    assert Catalogue.load().path == snapshot.bundled_folder()
    with pytest.raises(CatalogueError, match="no update to undo"):
        snapshot.roll_back()


def test_two_updates_are_undone_one_after_the_other(site: Site) -> None:
    first = run(two(site)[:1]).folder
    second = run(two(site)[1:]).folder
    assert first is not None
    assert second is not None
    assert snapshot.read_manifest(second)["previous"] == first.name
    assert snapshot.roll_back() == first
    assert snapshot.roll_back() == snapshot.bundled_folder()


def test_the_same_prices_again_make_no_new_snapshot(site: Site) -> None:
    # gcosts states its own day, so a second look an hour later brings the same rows.
    first = run(two(site)[:1])
    again = run(two(site)[:1])
    assert first.folder is not None
    assert again.folder is None
    assert again.is_current
    assert again.message == "nothing has changed"
    assert snapshot.current_folder() == first.folder


def test_raw_files_are_kept_with_day_and_checksum_and_serve_as_input(site: Site) -> None:
    report = run(two(site))
    raw = cache_folder() / "raw"
    entry = json.loads((raw / "lambda" / "index.json").read_text())["vms.csv"]
    assert len(entry["sha256"]) == 64
    assert entry["url"].endswith(LAMBDA_PATH)
    day = entry["retrieved_at"][:10]
    assert report.folder is not None
    first = read_rows(report.folder)
    snapshot.roll_back()
    # The folder of downloads, carried to a machine without a network.
    chosen = sources(["gcp", "lambda"])
    with given_files(raw, chosen) as files:
        again = run(chosen, files=files)
    assert again.folder is not None
    assert read_rows(again.folder) == first
    dates = {one.sold.as_of for one in first if one.region and one.provider == "lambda"}
    assert day in dates


def test_old_snapshots_are_forgotten_but_the_last_ones_are_kept(site: Site) -> None:
    made = []
    for n in range(6):
        usd = 0.14 + n / 1000
        one = {"e2-standard-4": {"cost": {"us-central1": {"hour": usd}}, "cpu": 4, "ram": 16}}
        site.put(GCP_PATH, content(payload.gcosts(one), "text/plain"))
        made.append(run(two(site)[:1]).folder)
        time.sleep(0.01)
    left = sorted((cache_folder() / "snapshots").iterdir())
    assert made[-1] in left
    assert made[-2] in left
    assert len(left) <= snapshot.KEPT + 1


def test_a_corrupt_update_says_how_to_return(site: Site) -> None:
    folder = run(two(site)).folder
    assert folder is not None
    (folder / "prices.csv.gz").write_bytes(b"\x1f\x8bnonsense")
    with pytest.raises(CatalogueError, match="updated catalogue cannot be read") as raised:
        Catalogue.load()
    assert "rollback" in raised.value.hint
    snapshot.roll_back()
    assert len(Catalogue.load().types) > 20


def test_a_newer_bundled_snapshot_is_preferred_to_an_older_update(site: Site) -> None:
    old = {"e2-standard-4": {"cost": {"us-central1": {"hour": 0.14}}, "cpu": 4, "ram": 16}}
    site.put(GCP_PATH, content(payload.gcosts(old, timestamp=1_700_000_000), "text/plain"))
    folder = run(two(site)[:1]).folder
    assert folder is not None
    # This update is newer than the bundle in the other providers' rows: they are the bundle's.
    assert snapshot.newest_date(folder) == snapshot.newest_date(snapshot.bundled_folder())
    rows = read_rows(folder)
    early = [
        replace(one, provenance=one.provenance and replace(one.provenance, as_of="2020-01-01"))
        for one in rows
    ]
    write_rows(folder, early)
    assert snapshot.current_folder() == snapshot.bundled_folder()


def test_only_one_update_runs_at_a_time(site: Site) -> None:
    with snapshot.locked(), pytest.raises(CatalogueError, match="another update is running"):
        run(two(site))
    assert run(two(site)).folder is not None


def test_a_kill_in_the_middle_leaves_the_snapshot_in_use(site: Site) -> None:
    """The child is stopped dead while it writes; nothing of it is found afterwards."""
    code = (
        "import os, pathlib, datetime\n"
        "from advisor.catalogue import snapshot\n"
        "def write(folder):\n"
        "    (folder / 'types.csv.gz').write_bytes(b'half')\n"
        "    print('writing', flush=True)\n"
        "    import time; time.sleep(60)\n"
        "snapshot.add(write, datetime.datetime.now(datetime.UTC), unlike=pathlib.Path('.'))\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ}, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "writing\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert snapshot.current_folder() == snapshot.bundled_folder()
    assert len(Catalogue.load().types) > 20
    assert list((cache_folder() / "snapshots").glob(".*.partial"))
    run(two(site))
    assert not list((cache_folder() / "snapshots").glob(".*.partial"))


def test_all_kinds_of_sources_work_together_from_one_archive(tmp_path: Path) -> None:
    """What a user downloaded elsewhere, as one zip: no network at all."""
    import zipfile

    names = (("US East (N. Virginia)", "us-east-1"),)
    azure = payload.azure_page([payload.azure_item("Standard_D4s_v5", 0.2)])
    archive = tmp_path / "download.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("azure/page-1.json", azure)
        file.writestr("aws/locations.json", payload.aws_locations(*names))
        file.writestr("aws/us-east-1.json", payload.aws_page(names[0][0], {"m5.large": 0.1}))
        file.writestr(
            "spot-advisor-data.json", payload.aws_advice("us-east-1", {"m5.large": (50, 2)})
        )
        file.writestr("gcosts/pricing.yml", payload.gcosts(GCP))
        file.writestr("skypilot-catalog/catalogs/v8/lambda/vms.csv", LAMBDA)
        file.writestr("README.txt", "hello")
    chosen = sources()
    with given_files(archive, chosen) as files:
        assert set(files) == {"aws", "azure", "gcp", "lambda"}
        wanted = [source for source in chosen if source.name in files]
        report = run(wanted, files=files, as_of="2026-11-19")
    assert set(statuses(report).values()) == {"updated"}
    catalogue = Catalogue.load()
    assert price(catalogue, "azure", "Standard_D4s_v5", "eastus") == [0.2]
    assert price(catalogue, "aws", "m5.large", "us-east-1") == [0.1]
    dates = catalogue.as_of_by_provider
    assert dates["azure"][1] == "2026-11-19"
    assert dates["lambda"][1] == "2026-11-19"


def test_the_command_updates_every_kind_of_source_through_a_mirror(site: Site) -> None:
    """The built-in hosts, asked through a mirror; one source fails, the exit code is 0."""
    names = (("US East (N. Virginia)", "us-east-1"),)
    azure = "/prices.azure.com/api/retail/prices?"
    ask = "serviceName eq 'Virtual Machines' and priceType eq '{}'"
    first, reserved = (
        azure + urllib.parse.urlencode({"$filter": ask.format(kind)})
        for kind in ("Consumption", "Reservation")
    )
    following = "https://prices.azure.com:443/api/retail/prices?$skip=100"
    pages = "/b0.p.awsstatic.com"
    prices = f"{pages}/pricing/2.0/meteredUnitMaps/ec2/USD/current/ec2-ondemand-without-sec-sel"
    bodies = {
        first: payload.azure_page([payload.azure_item("Standard_D4s_v5", 0.2)], following),
        azure + "$skip=100": payload.azure_page(
            [payload.azure_item("Standard_D4s_v5", 0.25, armRegionName="uksouth")]
        ),
        reserved: payload.azure_page([]),
        f"{pages}/locations/1.0/aws/current/locations.json": payload.aws_locations(*names),
        f"{prices}/US%20East%20%28N.%20Virginia%29/Linux/index.json": payload.aws_page(
            names[0][0], {"m5.large": 0.1, "p5.48xlarge": 60.0}
        ),
        "/spot-bid-advisor.s3.amazonaws.com/spot-advisor-data.json": payload.aws_advice(
            "us-east-1", {"m5.large": (50, 2)}
        ),
        "/raw.githubusercontent.com" + GCP_PATH: payload.gcosts(GCP),
    }
    for path, body in bodies.items():
        site.put(path, content(body))
    arguments = ["update", "azure", "aws", "gcp", "lambda", "--mirror", site.base, "--json"]
    for name in FEWER:
        arguments += ["--accept-fewer", name]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    found = {one["source"]: (one["status"], one["message"]) for one in record["sources"]}
    assert found["lambda"][0] == "failed"
    assert "answers 404" in found["lambda"][1]
    assert {found[name] for name in ("azure", "aws", "gcp")} == {("updated", "")}
    catalogue = Catalogue.load()
    assert price(catalogue, "azure", "Standard_D4s_v5", "uksouth") == [0.25]
    assert price(catalogue, "aws", "p5.48xlarge", "us-east-1") == [60.0]
    assert "downloading azure" in done.stderr


def test_a_given_file_without_a_day_stays_undated(tmp_path: Path) -> None:
    folder = tmp_path / "lambda"
    folder.mkdir()
    (folder / "vms.csv").write_bytes(LAMBDA)
    chosen = sources(["lambda"])
    with given_files(tmp_path, chosen) as files:
        run(chosen, files=files)
    assert Catalogue.load().as_of_by_provider["lambda"] == ("", "")


def test_a_folder_with_nothing_in_it_is_refused(tmp_path: Path) -> None:
    chosen = sources(["lambda"])
    with (
        pytest.raises(UsageError, match=r"nothing in .* is for lambda"),
        given_files(tmp_path, chosen),
    ):
        pass
    with (
        pytest.raises(UsageError, match="neither a folder nor an archive"),
        given_files(tmp_path / "none", chosen),
    ):
        pass


def test_the_adapters_ask_their_own_hosts(site: Site) -> None:
    """Through a mirror the hosts of the built-in adapters are seen: no other is asked."""
    asked: list[str] = []

    class Recorder:
        def get(self, url: str, *, name: str, max_bytes: int) -> RawFile:
            asked.append(urllib.parse.urlsplit(url).netloc)
            raise CatalogueError("stop")

    recorder: FetchSession = Recorder()
    for adapter in (Azure(), AWS(), GCosts(), SkyPilot("lambda")):
        with pytest.raises(CatalogueError, match="stop"):
            adapter.fetch(recorder)
    assert asked == [
        "prices.azure.com", "b0.p.awsstatic.com", "raw.githubusercontent.com",
        "raw.githubusercontent.com",
    ]  # fmt: skip


def test_rows_written_and_read_are_the_same(tmp_path: Path) -> None:
    rows = read_rows(snapshot.bundled_folder())
    write_rows(tmp_path, rows)
    assert read_rows(tmp_path) == rows
    assert snapshot.digest(tmp_path) == snapshot.digest(snapshot.bundled_folder())
