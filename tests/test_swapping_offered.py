"""``recommend`` says unasked what own consumer cards over a slow link reach that swap layers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from advisor.cli.program import app

MODEL = (
    "--layers", "24", "--hidden", "2048", "--heads", "16", "--batch", "1024", "--sequence", "512",
    "--tokens", "1B",
)  # fmt: skip
HEAD = "rule,provider,instance_type,value,count,vcpus,memory_gib,accelerator,accelerator_count,"
PARAMETERS = 24 * 12 * 2048**2 + 50304 * 2048
EVERY = 8


def machines(folder: Path, *, gbps: float, card: str = "RTX-3090") -> str:
    path = folder / "own.csv"
    path.write_text(f"{HEAD}network_gbps\nmachine,home,gaming,0.10,8,16,128,{card},1,{gbps}\n")
    return str(path)


def asked(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.output))


def offered(own: str) -> list[dict[str, Any]]:
    record = asked("recommend", *MODEL, "--overrides", own, "--cloud", "home")
    return [one for one in record["changes"] if "layer swapping" in one["do"]]


def test_what_is_offered_is_what_plan_has_beside_the_pipelines(tmp_path: Path) -> None:
    own = machines(tmp_path, gbps=0.1)
    (change,) = offered(own)
    (cluster,) = re.findall(r"--cluster '(\d+x gaming)'", change["do"])
    plans = asked("plan", *MODEL, "--cluster", cluster, "--overrides", own)["plans"]
    (swap,) = [one for one in plans if one["name"] == "layer swapping"]
    for what in ("training_time_h", "cost_usd"):
        assert change[what]["value"] == pytest.approx(swap[what]["value"], rel=1e-6)
    piped = [
        one["step_time_s"]["value"] for one in plans
        if any(each["pp"] > 1 for each in one["layouts"].values())
    ]  # fmt: skip
    step_s = swap["step_time_s"]["value"]
    assert swap["details"]["gain_over_pipeline"] == pytest.approx(min(piped) / step_s)
    assert step_s < min(piped)
    assert all(step_s < one["step_time_s"]["value"] for one in plans if one["commands"])


@pytest.mark.parametrize(("peers", "gbps"), [(8, 0.1), (4, 0.1), (8, 1.0), (2, 0.05)])
def test_its_step_is_the_closed_form(peers: int, gbps: float) -> None:
    """Computing of one peer, loads that hide behind it, and an averaging in eight steps."""
    plans = asked("plan", *MODEL, "--cluster", f"{peers}x1xRTX-3090@{gbps}Gbps")["plans"]
    (swap,) = [one for one in plans if one["name"] == "layer swapping"]
    said, step_s = swap["details"], swap["step_time_s"]["value"]
    once_s = 2 * (2 * PARAMETERS) * (peers - 1) / peers / (gbps * 1e9 / 8)
    assert said["averaging_s"] == pytest.approx(once_s / EVERY, rel=0.02)
    assert said["synchronous_step_s"] - step_s == pytest.approx(
        (EVERY - 1) * once_s / EVERY, rel=0.02
    )
    # A peer's share of the batch, every layer's forward done twice: 8 flop a weight and token, at
    # most at the card's 71 Tflop/s and no less than a quarter of it.
    tokens = 1024 / peers * 512
    least_s = 8 * PARAMETERS * tokens / 71e12
    assert least_s < step_s - said["averaging_s"] < 5 * least_s


@pytest.mark.parametrize(("gbps", "card"), [(25.0, "RTX-3090"), (0.1, "A10G")])
def test_nothing_is_offered_over_fast_links_or_of_servers_cards(
    gbps: float, card: str, tmp_path: Path
) -> None:
    assert not offered(machines(tmp_path, gbps=gbps, card=card))
