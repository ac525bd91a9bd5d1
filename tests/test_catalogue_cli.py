"""``advisor catalogue``: answers that fit the screen, records, and errors in two lines."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from advisor.catalogue import listing
from advisor.cli.catalogue import app
from advisor.errors import CatalogueError, UsageError


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("NO_COLOR", "1")


def run(*arguments: str, columns: int = 100) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": str(columns)})


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--gpus", "A100:8"),
        ("list", "--cpu-only", "--sort", "memory"),
        ("list", "--cloud", "nebius,oci", "--gpus", "H100"),
        ("show", "p4d.24xlarge", "--all-regions"),
        ("show", "Standard_NC96ads_A100_v4"),
        ("info",),
        ("storage", "--cloud", "gcp", "--region", "us-central1"),
        ("diff",),
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_no_line_is_wider_than_the_screen(arguments: tuple[str, ...], columns: int) -> None:
    done = run(*arguments, columns=columns)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines
    assert max(map(len, lines)) <= columns
    assert "…" not in done.stdout


def test_the_list_is_cheapest_first_and_says_how_many_there_are() -> None:
    done = run("list", "--gpus", "A100:8", "--on-demand", "-n", "3", "--json")
    record = json.loads(done.stdout)
    prices = [one["price_usd_per_h"] for one in record["offers"]]
    assert len(prices) == 3
    assert prices == sorted(prices)
    assert record["found"] > 3
    assert record["schema_version"] == listing.SCHEMA_VERSION
    assert record["catalogue"]["as_of"] == "2026-07-30"
    assert {one["accelerators"] for one in record["offers"]} == {8.0}


def test_csv_and_json_and_table_hold_the_same_offers() -> None:
    arguments = ("list", "--cloud", "lambda", "--gpus", "H100", "-n", "5")
    offers = json.loads(run(*arguments, "--json").stdout)["offers"]
    rows = list(csv.DictReader(io.StringIO(run(*arguments, "--format", "csv").stdout)))
    assert [row["instance_type"] for row in rows] == [one["instance_type"] for one in offers]
    assert [float(row["price_usd_per_h"]) for row in rows] == [
        one["price_usd_per_h"] for one in offers
    ]
    assert tuple(rows[0]) == listing.OFFER_FIELDS == tuple(offers[0])
    table = run(*arguments).stdout
    assert all(one["instance_type"] in table for one in offers)


def test_csv_is_safe_to_open_in_a_spreadsheet(tmp_path: Path) -> None:
    rules = tmp_path / "overrides.csv"
    rules.write_text(
        "rule,provider,instance_type,value,vcpus,memory_gib,note\n"
        'machine,lab,"=HYPERLINK(""http://evil"",""x"")",1,8,64,n\n'
        "machine,@lab,+box,1,8,64,n\n"
        "machine,lab,-box,1,8,64,n\n"
    )
    done = run("list", "--cloud", "lab,@lab", "--format", "csv", "--overrides", str(rules))
    rows = list(csv.reader(io.StringIO(done.stdout)))
    cells = [cell for row in rows[1:] for cell in row if cell]
    assert len(rows) == 4
    assert not [cell for cell in cells if cell[0] in "=+-@\t\r"]


@pytest.mark.parametrize(
    ("sort", "field", "is_descending"),
    [
        ("vcpus", "vcpus", True),
        ("memory", "memory_gib", True),
        ("price", "price_usd_per_h", False),
    ],
)
def test_sorting_puts_what_is_asked_for_first(sort: str, field: str, is_descending: bool) -> None:
    done = run("list", "--cloud", "aws", "--sort", sort, "-n", "50", "--json")
    values = [one[field] for one in json.loads(done.stdout)["offers"]]
    assert values == sorted(values, reverse=is_descending)


def test_a_price_per_accelerator_is_what_it_sorts_by() -> None:
    done = run("list", "--gpus", "H100", "--sort", "price-per-accelerator", "--json", "-n", "40")
    each = [
        one["price_usd_per_h"] / one["accelerators"] for one in json.loads(done.stdout)["offers"]
    ]
    assert each == sorted(each)


def test_cheapest_gives_one_offer_a_type() -> None:
    done = run("list", "--gpus", "L4", "--cheapest", "--json")
    names = [(one["provider"], one["instance_type"]) for one in json.loads(done.stdout)["offers"]]
    assert len(names) == len(set(names)) > 5


def test_age_and_retirement_filter() -> None:
    volta = ("list", "--cloud", "aws", "--gpus", "V100", "--json")
    days = (datetime.now(UTC).date() - date(2026, 7, 20)).days
    every = json.loads(run(*volta, "--retired").stdout)
    usual = json.loads(run(*volta).stdout)
    recent = json.loads(run(*volta, "--retired", "--max-age", str(days)).stdout)
    assert "retired" in {one["listing"] for one in every["offers"]}
    assert "retired" not in {one["listing"] for one in usual["offers"]}
    assert {one["as_of"] for one in recent["offers"]} == {"2026-07-20"}
    assert every["found"] > usual["found"] > 0
    assert every["found"] > recent["found"] > 0


def test_show_gives_links_measured_and_nominal_with_sources() -> None:
    record = json.loads(run("show", "a2-highgpu-8g", "--json").stdout)
    assert record["specification"]["intra_node_basis"] == "measured"
    measured = record["measured_links"][0]
    assert measured["host_to_device_bytes_per_s"] == pytest.approx(12.35e9, rel=0.01)
    assert record["accelerator"]["link_bytes_per_s"] == 300e9
    text = run("show", "a2-highgpu-8g", columns=120).stdout
    for part in ("nvswitch", "(measured)", "300 GB/s nominal", "gcosts-pricing.yml", "SpareCores"):
        assert part in text


def test_info_names_age_and_holes_of_every_provider() -> None:
    record = json.loads(run("info", "--json").stdout)
    assert record["types"] >= 3_900
    assert record["priced_pairs"] >= 90_000
    assert len(record["providers"]) >= 14
    azure = next(one for one in record["providers"] if one["provider"] == "azure")
    assert azure["newest"] == "2026-06-18"
    assert azure["spot_prices"] == 0
    assert 0 < azure["holes"]["types_without_network"] < 0.1 * azure["types"]


def test_old_prices_are_warned_of_on_stderr_only() -> None:
    done = run("list", "-n", "1", "--json")
    assert "days old" in done.stderr
    json.loads(done.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "--gpus", "H1000"), "no accelerator is called 'H1000'"),
        (("list", "--gpus", "A100:0"), "is empty"),
        (("list", "--cloud", "awz"), "no provider is called 'awz'"),
        (("list", "--min-memory", "lots"), "cannot read 'lots' as a size"),
        (("update", "awz"), "no source is called 'awz'"),
        (("update", "--as-of", "yesterday"), "as a day"),
    ],
)
def test_nonsense_is_a_usage_error_with_a_hint(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)
    assert done.exception.hint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "p4d.24xlrge"), "no instance type is called 'p4d.24xlrge'"),
        (("list", "--path", "/nowhere"), "no catalogue at /nowhere"),
        (("list", "--overrides", "/nowhere.csv"), "cannot read /nowhere.csv"),
        (("diff", "/nowhere"), "no snapshot '/nowhere'"),
        (("rollback",), "there is no update to undo"),
    ],
)
def test_what_is_not_there_is_one_error_with_a_hint(
    arguments: tuple[str, ...], message: str
) -> None:
    done = run(*arguments)
    assert isinstance(done.exception, CatalogueError)
    assert message in str(done.exception)
    assert done.exception.hint


def test_markup_in_names_is_shown_as_it_is(tmp_path: Path) -> None:
    rules = tmp_path / "overrides.csv"
    rules.write_text(
        "rule,provider,instance_type,value,vcpus,memory_gib\nmachine,lab,[red]box[/red],1,8,64\n"
    )
    done = run("list", "--cloud", "lab", "--overrides", str(rules))
    assert "[red]box[/red]" in done.stdout


def test_prices_of_storage_are_words_in_eighty_columns() -> None:
    """A day that is no day once took all the room: an item stood there letter below letter."""
    done = run("storage", columns=80)
    assert done.exit_code == 0
    rows = [line for line in done.stdout.splitlines() if line.startswith(("gcp ", "aws "))]
    assert rows
    assert all(re.search(r" (internet|block|object) ", line) for line in rows)
