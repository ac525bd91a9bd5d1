"""Supply chain: locked versions, a bill of materials, and an audit that does not pass unseen."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from documentation import tool
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / ".ci" / "lock.txt"
supply = tool("supply", ".ci")


def locked() -> dict[str, str]:
    pairs = [line.split("==", 1) for line in LOCK.read_text().splitlines()]
    return dict(pairs)


def test_the_lock_names_one_version_of_everything_that_is_declared_and_keeps_its_bound() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = extras["optional-dependencies"]
    declared = [*extras["dependencies"], *optional["test"], *optional["lint"], *optional["docs"]]
    versions = locked()
    wanted = [Requirement(one) for one in declared]
    wrong = [
        str(one)
        for one in wanted
        if one.name != "torch"
        and not one.specifier.contains(versions.get(canonicalize_name(one.name), "0"))
    ]
    assert not wrong, "run make lock"


def test_a_licence_is_the_expression_or_the_name_that_the_package_states() -> None:
    def named(**licence: str) -> dict[str, object]:
        return {"license": licence}

    assert supply.licence_of({"licenses": [{"expression": "MIT AND Zlib"}]}) == "MIT AND Zlib"
    osi = named(name="License :: OSI Approved :: BSD License")
    assert supply.licence_of({"licenses": [osi]}) == "BSD License"
    assert supply.licence_of({"licenses": [osi, named(id="BSD-3-Clause")]}) == "BSD-3-Clause"
    assert supply.licence_of({"licenses": [named(name="Permission is hereby\ngranted")]}) == (
        supply.UNSTATED
    )


def test_vulnerabilities_and_what_was_not_compared_are_told_apart() -> None:
    fault = {"id": "PYSEC-1", "fix_versions": ["2.0"]}
    bad, skipped = supply.findings(
        {
            "dependencies": [
                {"name": "a", "version": "1.0", "vulns": [fault]},
                {"name": "b", "version": "1.0", "vulns": []},
                {"name": "c", "skip_reason": "not found"},
            ]
        }
    )
    assert bad == ["a 1.0: PYSEC-1, mended in 2.0"]
    assert skipped == ["c"]


def test_an_audit_without_its_tool_or_database_is_no_pass(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("numpy==2.0\n")
    done = subprocess.run(
        [sys.executable, "-S", str(ROOT / ".ci" / "supply.py"), "audit", str(lock)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "compared 0 of 1" in done.stdout
    assert done.stderr.splitlines()[1].startswith("hint: ")
