"""NOTICE names every source of what ships, its licence and whose it is."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from advisor.catalogue.snapshot import Snapshot, read_snapshot

ROOT = Path(__file__).parents[1]
NOTICE = (ROOT / "NOTICE").read_text(encoding="utf-8")
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Of the sets that do not ship, a README says where they can be had.
NOT_SHIPPED = {"siasosp23/artifacts", "skypilot-org/spot-traces"}


def _linked() -> set[str]:
    """Return the repositories that a data set's README names as its source."""
    pages = (ROOT / "datasets" / "measurements").glob("*/README.md")
    link = re.compile(r"github\.com/([\w.-]+/[\w.-]+)")
    return {one for page in pages for one in link.findall(page.read_text(encoding="utf-8"))}


def test_every_repository_that_a_table_was_made_of_is_named() -> None:
    rows = pd.read_csv(ROOT / "datasets/measurements/layouts/runs.csv.gz")["source"]
    of_rows = {m[0] for text in rows if (m := REPOSITORY.match(text))}
    assert len(_linked()) > 40
    absent = {one for one in _linked() | of_rows if one not in NOTICE}
    assert absent <= NOT_SHIPPED


def test_every_licence_named_has_its_text_and_is_in_the_expression_of_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stated = set(project["license"].split(" AND "))
    headings = re.findall(r"^(\S+) \((?:LICENSES/\S+\.txt|LICENSE)\)", NOTICE, re.MULTILINE)
    assert set(headings) == stated
    assert {path.stem for path in (ROOT / "LICENSES").iterdir()} == stated - {"Apache-2.0"}
    assert {"NOTICE", "LICENSES/*.txt"} <= set(project["license-files"])


@pytest.mark.parametrize("part", ["skypilot-catalog", "techpowerup"])
def test_what_is_unconfirmed_is_named_and_can_be_left_out(part: str, tmp_path: Path) -> None:
    unconfirmed = NOTICE[NOTICE.index("Unconfirmed:") :]
    assert part in unconfirmed
    left = shutil.copytree(ROOT / "datasets" / "catalogue", tmp_path / "catalogue")
    gone = list(left.glob(f"*.{part}.*"))
    assert gone
    for path in gone:
        path.unlink()
    found = read_snapshot(left, left, Snapshot)
    assert len(found.types) > 3_000
    assert "H100-SXM5-80GB" in found.accelerators
    assert ("RTX-4090" in found.accelerators) == (part != "techpowerup")
