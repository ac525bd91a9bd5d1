"""A provider from another package: the example of docs/adding_a_provider.md, really installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs" / "adding_a_provider.md"
PRICES = "instance,gpus,vcpus,memory_gib,usd_per_h\nhopper-8,8,192,2048,17.5\nplain,0,16,64,0.4\n"


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of the page."""
    return re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Put the package of the docs where pip would: the module, and a dist-info folder."""
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "acme_advisor.py").write_text(blocks("python")[0])
    info = site / "acme_advisor-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-advisor\nVersion: 1.0\n")
    entry = re.search(r'acme = "(acme_advisor:\w+)"', blocks("toml")[0])
    assert entry is not None
    (info / "entry_points.txt").write_text(
        f"[advisor.catalogue_adapters]\nacme = {entry[1]}\nbroken = acme_advisor:Nothing\n"
    )
    return site


def advisor(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[1]
    folders = site.parent
    return subprocess.run(
        [sys.executable, "-m", "advisor.cli", *arguments],
        env={
            **os.environ,
            "PYTHONPATH": f"{root}{os.pathsep}{site}",
            "XDG_CACHE_HOME": str(folders / "cache"),
            "XDG_CONFIG_HOME": str(folders / "config"),
            "COLUMNS": "100",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_worked_example_updates_lists_and_shows(installed: Path, tmp_path: Path) -> None:
    given = tmp_path / "given" / "acme"
    given.mkdir(parents=True)
    (given / "prices.csv").write_text(PRICES)
    done = advisor(
        installed,
        "catalogue",
        "update",
        "acme",
        "broken",
        "--from",
        str(given.parent),
        "--as-of",
        "2026-11-20",
    )
    assert done.returncode == 0, done.stderr
    listed = advisor(installed, "catalogue", "list", "--cloud", "acme", "--format", "csv")
    assert "acme,hopper-8,all-regions,on-demand,17.5,H100-SXM5-80GB,8.0" in listed.stdout
    assert "2026-11-20,listed,list-price-no-stock-info,acme-price-list" in listed.stdout
    shown = advisor(installed, "catalogue", "show", "hopper-8")
    assert "8 x H100-SXM5-80GB" in shown.stdout
    asked = ("--layers", "12", "--hidden", "768", "--heads", "12", "--tokens", "1B", "--cloud",
             "acme", "--max-nodes", "1", "--gpus", "H100")  # fmt: skip
    ranked = advisor(installed, "recommend", *asked)
    assert "8 x H100 at Acme Cloud (1 x hopper-8)" in ranked.stdout, ranked.stderr
    predicted = advisor(installed, "recommend", *asked, "--json")
    (row,) = json.loads(predicted.stdout)["front"]
    assert row["training_time_h"]["value"] < 1.0  # billed as one whole hour
    assert row["cost_usd"]["value"] == pytest.approx(17.5, rel=0.01)
    written = advisor(installed, "export", "--to", "skypilot", *asked)
    assert "infra: acme" in written.stdout
    refused = advisor(installed, "export", "--to", "dstack", *asked)
    assert "dstack does not rent from acme" in refused.stderr


def test_an_adapter_that_cannot_be_loaded_is_one_failed_source(installed: Path) -> None:
    done = advisor(installed, "catalogue", "update", "broken", "--json")
    assert done.returncode == 1
    assert "the adapter 'broken' (acme_advisor:Nothing) cannot be loaded" in done.stdout
    assert "Traceback" not in done.stderr
