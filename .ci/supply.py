"""What the product brings along: a bill of materials with licences, and an audit of known faults.

``python .ci/supply.py bill PYTHON FOLDER`` writes ``sbom.cdx.json`` (CycloneDX) of an environment
and ``licences.csv``, a line a package. ``python .ci/supply.py audit LOCK`` compares every locked
version with the published vulnerabilities: 1 where one has some, 2 where nothing could be compared
because no database was reached. Both run the public tools, from ``make sbom`` and ``make audit``.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

UNSTATED = "not stated"
# A package may hold its whole licence where a name is expected. [characters]
LONGEST_NAME = 60


def licence_of(component: Mapping[str, Any]) -> str:
    """Return the licence that a component states of itself: an SPDX name where there is one."""
    expressions = [one["expression"] for one in component["licenses"] if "expression" in one]
    parts = [one["license"] for one in component["licenses"] if "license" in one]
    names = [one.get("id") or one.get("name", "") for one in parts]
    short = [name for name in names if name and len(name) <= LONGEST_NAME and "\n" not in name]
    spdx = [name for name in short if "::" not in name]
    chosen = expressions or spdx or [name.rpartition(":: ")[2] for name in short]
    return " or ".join(dict.fromkeys(chosen)) or UNSTATED


def licences(bill: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield name, version and licence of every package of a bill, by name."""
    for part in sorted(bill["components"], key=lambda one: str(one["name"]).lower()):
        yield part["name"], part["version"], licence_of({"licenses": [], **part})


def write_bill(python: str, folder: Path) -> str:
    """Write the bill of an environment and its licences; return one line on them."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "sbom.cdx.json"
    tool = [sys.executable, "-m", "cyclonedx_py", "environment", python]
    subprocess.run(
        [*tool, "--of", "JSON", "--output-reproducible", "-o", str(target)], check=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    rows = list(licences(json.loads(target.read_text())))
    with (folder / "licences.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("package", "version", "licence"), *rows])
    unstated = [name for name, _, licence in rows if licence == UNSTATED]
    return f"{len(rows)} packages; without a stated licence: {', '.join(unstated) or 'none'}"


def findings(audited: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return what pip-audit found, a line a vulnerability, and the packages it did not compare."""
    packages = audited["dependencies"]
    bad = [
        f"{one['name']} {one['version']}: {fault['id']}, mended in "
        f"{', '.join(fault['fix_versions']) or 'no version'}"
        for one in packages
        for fault in one.get("vulns", ())
    ]
    return bad, [one["name"] for one in packages if "skip_reason" in one]


def audit(lock: Path) -> int:
    """Print what is known of the locked versions, and return the exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", "-r", str(lock), "--no-deps", "--disable-pip",
         "--progress-spinner", "off", "-f", "json"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    total = len(lock.read_text().splitlines())
    try:
        bad, skipped = findings(json.loads(done.stdout))
    except (json.JSONDecodeError, KeyError):
        bad, skipped = [], ["?"] * total
    print(*bad, f"compared {total - len(skipped)} of {total} packages: {len(bad)} known faults",
          sep="\n")  # fmt: skip
    if len(skipped) == total:
        print("error: no database of vulnerabilities was reached", file=sys.stderr)
        print("hint: run make audit where PyPI's JSON interface can be reached", file=sys.stderr)
        return 2
    return 1 if bad else 0


def main(argv: Sequence[str]) -> int:
    """Run the command that is named."""
    match argv:
        case ["bill", python, folder]:
            print(write_bill(python, Path(folder)))
            return 0
        case ["audit", lock]:
            return audit(Path(lock))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
