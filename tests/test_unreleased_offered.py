"""What only a system without a released framework would reach, on machines a user has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from advisor.cli.program import app

MODEL = (
    "--layers", "32", "--hidden", "4096", "--heads", "32", "--batch", "64", "--sequence", "512",
    "--tokens", "1B",
)  # fmt: skip
OWN = """\
rule,provider,instance_type,value,count,vcpus,memory_gib,accelerator,accelerator_count,network_gbps
machine,lab,big,1.20,1,64,512,A100-SXM4-40GB,2,25
machine,lab,small,0.80,1,64,512,A10G,4,25
"""


def asked(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done.output


def test_an_own_pair_of_unlike_machines_is_told_what_zorse_would_reach(tmp_path: Path) -> None:
    """The change is the asymmetric pipeline that ``plan`` prints of the same machines."""
    own = tmp_path / "own.csv"
    own.write_text(OWN)
    words = (*MODEL, "--overrides", str(own), "--cloud", "lab")
    record = json.loads(asked("recommend", *words, "--json"))
    (change,) = [one for one in record["changes"] if one["name"] == "unreleased"]
    (rank,) = re.findall(r"the machines of #(\d+):", change["do"])
    (row,) = [one for one in record["front"] if one["rank"] == int(rank)]
    assert {part["instance_type"] for part in row["configuration"]} == {"big", "small"}
    planned = json.loads(asked(
        "plan", *MODEL, "--cluster", "big + small", "--overrides", str(own), "--json"
    ))["plans"]  # fmt: skip
    ways = {one["name"]: one for one in planned}
    zorse = ways["asymmetric pipeline"]
    assert not zorse["commands"]
    assert zorse["details"]["split"] in change["do"]
    released = min(one["step_time_s"]["value"] for one in planned if one["commands"])
    gain = zorse["step_time_s"]["value"] / row["step_time_s"]["value"]
    assert row["step_time_s"]["value"] == pytest.approx(released, rel=0.01)
    for what in ("training_time_h", "cost_usd"):
        assert change[what]["value"] == pytest.approx(gain * row[what]["value"], rel=1e-6)
    said = " ".join(asked("recommend", *words).split())
    assert "without a released framework (asymmetric pipeline) would reach" in said
    # The split adds up: layers by stage are the model's.
    stages = [
        sum(map(int, one.split("+"))) for one in re.findall(r"([\d+]+) layers", change["do"])
    ]
    assert sum(stages) == 32
