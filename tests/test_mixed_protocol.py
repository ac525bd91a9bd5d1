"""Rows of published runs over unlike machines, as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from advisor.estimate.ways import stages
from advisor.lab.score import mixed
from advisor.lab.score.asked import predictor

ROW: dict[str, Any] = {
    "table": "amp_trials", "accelerator_mix": "V100:12;T4:4", "accelerators_per_node": 4.0,
    "network_gbit_per_s_per_accelerator": 2.5, "layers": 24.0, "hidden": 1024.0, "heads": 16.0,
    "kv_heads": 16.0, "ffn": 4096.0, "vocabulary": 50257.0, "sequence": 1024.0, "arch": "gpt",
    "precision": "fp16", "global_batch": 32.0, "micro_batch": 1.0, "tp": 1.0, "pp": 2.0,
    "stage_layers": "[15, 15]", "step_s": 1.3, "notes": "12xV100; AMP own prediction p_cost=1.25",
}  # fmt: skip


def test_a_row_is_typed_with_the_machines_that_were_rented() -> None:
    run = mixed._run(ROW)
    assert run.cluster == "3xp3.8xlarge,1xg4dn.12xlarge"
    assert run.cut == (13, 11)  # two units before the layers, four behind
    assert run.theirs_s == 1.25
    assert "--tp 1 --pp 2 --micro-batch 1 --stage-layers 13,11" in run.question
    cards = mixed._run(ROW | {"table": "another", "stage_layers": np.nan, "micro_batch": np.nan})
    assert cards.cluster == "3x4xV100@10Gbps,1x4xT4@10Gbps"
    assert cards.cut is None
    assert np.isnan(mixed._run(ROW | {"notes": ""}).theirs_s)


@pytest.mark.parametrize(
    ("tp", "pp", "cut"),
    [(1, 1, "[30]"), (1, 2, "[15, 15]"), (2, 2, "[14, 16]"), (4, 4, "[8, 6, 6, 10]")],
)
def test_every_layout_that_was_tried_can_be_asked(tp: int, pp: int, cut: str) -> None:
    run = mixed._run(ROW | {"tp": float(tp), "pp": float(pp), "stage_layers": cut})
    step, low, high = mixed.ask_run(run, predictor())
    assert 0 < low < step < high < np.inf


def test_the_verb_says_what_the_protocol_scores() -> None:
    run = mixed._run(ROW)
    words = (
        "plan --layers 24 --hidden 1024 --heads 16 --ffn 4096 --vocabulary 50257 --sequence 1024 "
        f"{run.question} --json"
    )
    done = subprocess.run(
        [sys.executable, "-m", "advisor.cli", *words.split()],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (way,) = (w for w in json.loads(done.stdout)["plans"] if w["name"] == stages.NAME)
    step, _, _ = mixed.ask_run(run, predictor())
    assert way["step_time_s"]["value"] == pytest.approx(step, rel=1e-6)
    assert way["details"]["layers_by_stage"] == [13, 11]
