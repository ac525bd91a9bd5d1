"""An input-bound recording as a user asks about it: what mends its feed stands in the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from conftest import InProcess

from advisor.words import SCREEN_LINES
from advisor.words.recommendation import text

RUNS: Final = Path(__file__).parent / "golden" / "systems"
# A loader that waits in one process, for as long as pays a machine.
ASKED: Final = ("recommend", "--run", "slow", "--epochs", "20000")
FED: Final = ("loader-workers", "repeat-batches")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADVISOR_RUNS", str(RUNS))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def pick_of(record: dict[str, Any]) -> dict[str, Any]:
    best = record["picks"]["best_value"]
    return next(one for one in (*record["front"], record["here"]) if one and one["rank"] == best)


def test_what_mends_the_feed_stands_first_on_a_screen_and_in_a_pipe(
    folder: Path, in_process: InProcess
) -> None:
    record = json.loads(in_process(*ASKED, "--json", cwd=folder).stdout)
    changes = {one["name"]: one for one in record["changes"]}
    assert [one["name"] for one in record["changes"]][:2] == [*FED]
    # A quarter of the bill in the time of the best value, on fewer machines: several share the
    # loading, and loading faster they are not needed.
    assert changes["loader-workers"]["cost_factor"] < 0.4
    piped = in_process(*ASKED, cwd=folder).stdout
    lines = [line for line, _ in text(record, width=80)]
    assert len(lines) <= SCREEN_LINES
    for shown in (" ".join(piped.split()), " ".join(" ".join(lines).split())):
        assert "Change" in shown
        assert "load with DataLoader(num_workers=4), on 2 RTX A4000" in shown
        assert "times, then fresh ones, on 4 RTX A4000" in shown
    for name in FED:
        one = changes[name]
        time, cost = (one[of]["value"] for of in ("training_time_h", "cost_usd"))
        assert f"{time:.2f} h, ${cost:.2f}: " in piped


def test_what_a_change_is_worth_is_what_its_best_value_takes(
    folder: Path, in_process: InProcess
) -> None:
    record = json.loads(in_process(*ASKED, "--json", cwd=folder).stdout)
    now = pick_of(record)
    for one in record["changes"]:
        if one["name"] in ("device", "ddp"):  # what the answer assumes
            continue
        for of, factor in (("training_time_h", "time_factor"), ("cost_usd", "cost_factor")):
            assert one[of]["value"] == pytest.approx(one[factor] * now[of]["value"], rel=1e-6)
        if one["name"] in FED:
            assert one["pick"]["cost_usd"] == one["cost_usd"]
            assert one["time_factor"] * one["cost_factor"] < 0.95


def test_where_this_machine_is_kept_what_makes_it_faster_is_said(
    folder: Path, in_process: InProcess
) -> None:
    """Free machines save no money: only what is faster is a change."""
    record = json.loads(in_process("recommend", "--run", "slow", "--json", cwd=folder).stdout)
    if record["picks"].get("best_value") != "here":
        pytest.skip("this machine is not the best value")
    assert record["changes"]
    here_h = record["here"]["training_time_h"]["value"]
    for one in record["changes"]:
        assert one["training_time_h"]["value"] < 0.95 * here_h
        assert one["cost_usd"]["value"] == 0.0
    piped = in_process("recommend", "--run", "slow", cwd=folder).stdout
    assert "Change" in piped
    assert ", free: use each batch" in " ".join(piped.split())
