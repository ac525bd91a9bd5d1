"""One row is all that an accelerator needs, and a provider of SkyPilot's list: in every verb."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import advisor

JOB = ("--layers", "12", "--hidden", "768", "--heads", "12", "--tokens", "1B")
OWN_MACHINES = """\
rule,provider,instance_type,value,vcpus,memory_gib,accelerator,accelerator_count,network_gbps,rdma
machine,gcp,new-8g,20,96,1000,Acme X100,8,100,IB-3200
machine,gcp,known-8g,20,96,1000,H100-SXM5-80GB,8,100,IB-3200
"""
SCRIPT = """\
import torch
print(torch.cuda.get_device_name(0))
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    loss = model(torch.randn(32, 64, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

VMS = """\
InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region,GpuInfo
acme-8g,96,1000,Acme X100,8,20,,west,
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The program with a copy of its data in which two rows were added.

    They are an H100 by another name, and a provider that bills by the hour.
    """
    folder = tmp_path_factory.mktemp("tree")
    package = folder / "advisor"
    package.mkdir()
    for one in Path(advisor.__file__).parent.iterdir():
        if one.name != "datasets":
            (package / one.name).symlink_to(one.resolve())
    datasets = (Path(advisor.__file__).parent / "datasets").resolve()
    (package / "datasets").mkdir()
    for one in datasets.iterdir():
        if one.name != "catalogue":
            (package / "datasets" / one.name).symlink_to(one)
    table = shutil.copytree(datasets / "catalogue", package / "datasets" / "catalogue")
    with (table / "accelerators.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    (known,) = [row for row in rows if row["name"] == "H100-SXM5-80GB"]
    added = known | {"name": "X100-SXM-80GB", "aliases": "Acme X100", "suite_names": "",
                     "layer_tflops": "794.5", "vertex_name": "ACME_X100"}  # fmt: skip
    with (table / "accelerators.csv").open("a", newline="") as file:
        csv.DictWriter(file, list(rows[0]), lineterminator="\n").writerow(added)
    with (table / "providers.csv").open("a") as file:
        file.write("acme,Acme Cloud,3600,3600,skypilot,,acme,a test\n")
    (folder / "given" / "acme").mkdir(parents=True)
    (folder / "given" / "acme" / "vms.csv").write_text(VMS)
    (folder / "config" / "advisor").mkdir(parents=True)
    (folder / "config" / "advisor" / "overrides.csv").write_text(OWN_MACHINES)
    (folder / "train.py").write_text(SCRIPT)
    own = {"PYTHONPATH": str(folder), "XDG_CONFIG_HOME": str(folder / "config"),
           "XDG_DATA_HOME": str(folder / "data"), "XDG_CACHE_HOME": str(folder / "cache"),
           "COLUMNS": "100"}  # fmt: skip

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "advisor", *words], cwd=folder, env=os.environ | own,
            capture_output=True, text=True, check=True, timeout=300,
        )  # fmt: skip

    return run


def without_names(answer: Any) -> Any:
    """Return an answer without what its machines are called."""
    text = json.dumps({k: v for k, v in answer.items() if k not in ("sources", "commands")})
    return json.loads(text.replace("new-8g", "known-8g").replace("X100-SXM", "H100-SXM5"))


def test_it_is_recommended_and_timed_as_the_card_whose_facts_it_has(run: Run) -> None:
    answer = json.loads(
        run("recommend", *JOB, "--gpus", "x100", "--max-nodes", "1", "--json").stdout
    )
    rented = answer["front"][0]["configuration"][0]
    assert (rented["instance_type"], rented["accelerator"]) == ("new-8g", "X100-SXM-80GB")
    new, known = (
        json.loads(run("predict", *JOB, "--on", f"gcp:{name}-8g", "--json").stdout)
        for name in ("new", "known")
    )
    assert without_names(new) == without_names(known)


def test_a_script_is_rehearsed_on_it(run: Run) -> None:
    assert "NVIDIA X100-SXM-80GB" in run("profile", "--as", "2xX100", "train.py").stdout


def test_it_is_handed_over_by_the_name_that_its_row_states(run: Run) -> None:
    words = ("export", "--to", "vertex", *JOB, "--gpus", "X100", "--max-nodes", "1")
    assert "acceleratorType: ACME_X100" in run(*words).stdout


def test_a_provider_is_updated_named_billed_and_handed_over_by_its_row(run: Run) -> None:
    run("catalogue", "update", "acme", "--from", "given", "--as-of", "2026-11-20")
    asked = (*JOB, "--cloud", "acme", "--max-nodes", "1")
    assert "8 x X100 at Acme Cloud, west (1 x acme-8g)" in run("recommend", *asked).stdout
    (row,) = json.loads(run("recommend", *asked, "--json").stdout)["front"]
    assert row["training_time_h"]["value"] < 1.0  # billed as one whole hour
    assert row["cost_usd"]["value"] == pytest.approx(20.0, rel=0.01)
    assert "infra: acme/west" in run("export", "--to", "skypilot", *asked).stdout
