"""What the accuracy gate sees of faults that were put into a copy of the sources."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("advisor", "collectors", "datasets", "lab", "planners", "trained_models")
# Checks that take few seconds each: what ships as it ships, and three protocols.
ASKED = (
    "shipped/device_model", "shipped/layout_model", "shipped/memory", "shipped/scaling",
    "shipped/campaign", "memory", "campaigns", "finetune",
)  # fmt: skip


def _text(file: str, old: str, new: str) -> Callable[[Path], None]:
    def put(root: Path) -> None:
        text = (root / file).read_text(encoding="utf-8")
        assert old in text, f"{file} no longer holds {old!r}: put the fault in anew"
        (root / file).write_text(text.replace(old, new), encoding="utf-8")

    return put


def _numbers(file: str, name: str, factor: float) -> Callable[[Path], None]:
    """Return the fault of a constant of a JSON file that is off by a factor."""

    def put(root: Path) -> None:
        text, count = re.subn(
            rf'("{name}": )([\d.e+-]+)', lambda m: f"{m[1]}{float(m[2]) * factor}",
            (root / file).read_text(encoding="utf-8"),
        )  # fmt: skip
        assert count, f"{file} no longer holds {name}"
        (root / file).write_text(text, encoding="utf-8")

    return put


def _bandwidth(root: Path) -> None:
    for file, column in (("catalogue/accelerators.csv", "memory_bandwidth_gbs"),):
        path = root / "datasets" / file
        with path.open(encoding="utf-8", newline="") as opened:
            rows = list(csv.DictReader(opened))
        halved = [row for row in rows if row["name"].startswith("A100") and row[column]]
        for row in halved:
            row[column] = str(float(row[column]) / 2)
        assert halved, f"{file} has no A100"
        with path.open("w", encoding="utf-8", newline="") as opened:
            writer = csv.DictWriter(opened, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


METRICS = "advisor/learned/evaluation.py"
LAYOUT = "trained_models/layout_model/parameters.json"
SCALING = "trained_models/scaling/parameters.json"
FAULTS: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "memory kept free halved": (
        _text(
            "advisor/estimate/ways/data_parallel.py",
            "np.where(is_accelerated, margin,", "np.where(is_accelerated, margin / 2,",
        ),
        {"shipped/memory", "memory"},
    ),
    "least instead of median error": (
        _text(METRICS, "float(np.median(ape))", "float(np.min(ape))"), {"campaigns"},
    ),
    "coverage without its lower bound": (
        _text(METRICS, "(bounds[:, 0] <= truth) & ", ""),
        {"shipped/device_model", "shipped/layout_model"},
    ),
    "an A100's bandwidth halved": (
        _bandwidth, {"shipped/device_model", "shipped/layout_model"},
    ),
    "gemm_efficiency -20 %": (
        _numbers(LAYOUT, "gemm_efficiency", 0.8), {"shipped/layout_model"},
    ),
    "collective latency x 10, fitted": (
        _numbers(SCALING, "network_step_s", 10.0), {"shipped/scaling"},
    ),
    "collective latency x 10, of links": (
        _text(
            "advisor/machines/fleet.py",
            '"nvlink": 6e-6, "host": 20e-6, "ethernet": 48e-6, "rdma": 15e-6',
            '"nvlink": 6e-5, "host": 20e-5, "ethernet": 48e-5, "rdma": 15e-5',
        ),
        set(),
    ),
    "no fault": (lambda _root: None, set()),
}  # fmt: skip


# One process for all: most of the time of a check is importing.
GATE = """
import json, sys
from advisor.lab.score import gate, stored
kept = stored.read_all() | stored.read_held("shipped")
print(json.dumps({n: gate.judge(kept[n], gate.measure(n)).failures for n in sys.argv[1:]}))
"""


def seen(root: Path, names: tuple[str, ...] = ASKED) -> dict[str, list[str]]:
    """Run the gate on a copy; returns what it says of each check that fails."""
    environment = {n: v for n, v in os.environ.items() if not n.startswith("ADVISOR_")}
    ended = subprocess.run(
        [sys.executable, "-c", GATE, *names],
        cwd=root, env=environment | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {name: told for name, told in json.loads(ended.stdout).items() if told}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for room in ROOMS:
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / room, tmp_path / room, symlinks=True, ignore=skipped)
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_gate_sees_a_fault_of_the_shipped_constants(fault: str, clone: Path) -> None:
    put, by = FAULTS[fault]
    put(clone)
    found = seen(clone)
    assert set(found) >= by, found
    if fault == "no fault":
        assert not found
