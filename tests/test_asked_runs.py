"""Runs of described jobs: fine-tuning on Hugging Face's trainer, and Megatron on B200s."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advisor.errors import ModelError
from advisor.estimate.knowledge.layout_model import load
from advisor.lab import score
from advisor.lab.data import BLACKWELL, FINETUNE
from advisor.lab.fit import asked
from advisor.lab.fit.asked import columns_of, joined
from advisor.lab.fit.layouts import predicted_s
from advisor.lab.score.asked import ask, predictor_by
from advisor.planners.memory import UNSEEN, ledger, without_terms

TUNED = {
    "model_name": "granite-3.1-8b-instruct", "method": "full",
    "gpu_model": "NVIDIA-A100-SXM4-80GB", "number_nodes": 1.0, "number_gpus": 4.0,
    "tokens_per_sample": 4096.0, "batch_size": 8.0, "dataset_tokens_per_second": 9900.0,
    "train_runtime": 1000.0, "is_valid": 1.0,
}  # fmt: skip
# Llama-3-70B cut to 12 layers: tp, pp, dp, step [ms] and PyTorch's largest allocation [GiB], as
# measured (MooreThreads/SimuMax, Apache-2.0, docs/b200 at 1b8ca90).
B200 = ((1, 2, 4, 843.0, 66.55), (2, 1, 4, 725.5, 60.68), (4, 1, 2, 409.8, 39.07),
        (8, 1, 1, 280.9, 28.29))  # fmt: skip


def tuned(folder: Path, *changes: dict[str, Any]) -> Path:
    _write(folder / FINETUNE.tables["runs"].published, [{**TUNED, **change} for change in changes])
    return folder


def steps(folder: Path) -> Path:
    rows = []
    for tp, pp, dp, step_ms, allocated in B200:
        rows += [
            {
                "case": f"tp{tp}-pp{pp}-m{m}", "model": "llama3_70b", "layers": 12, "hidden": 8192,
                "heads": 64, "kv_heads": 8, "ffn": 28672, "vocabulary": 128256, "experts": 1,
                "attention": "gqa", "sequence": 4096, "tp": tp, "pp": pp, "dp": dp,
                "micro_batch": 1, "micro_batches": m, "zero_stage": 1,
                "accelerator": "B200-SXM-180GB", "accelerators": 8,
                "step_ms": step_ms * m / 4, "allocated_gib": allocated,
            }
            for m in (4, 8)
        ]  # fmt: skip
    rows.append({**rows[0], "attention": "mla", "experts": 160})
    others = dict.fromkeys(BLACKWELL.tables["steps"].columns.values(), 1)
    rows = [{**others, **row} for row in rows]
    _write(folder / BLACKWELL.tables["steps"].published, rows)
    return folder


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_memory_on_a_known_stack_is_what_pytorch_allocated(tmp_path: Path) -> None:
    runs, allocated, left_out = asked.read(steps(tmp_path))
    assert left_out == 1
    rows = columns_of(runs)
    used = without_terms(ledger(rows.shapes, rows.layouts, rows.software), UNSEEN["allocated"])
    error = np.abs(used / allocated - 1)
    assert error.mean() < 0.02
    assert error.max() < 0.05


def test_what_a_user_can_say_gives_what_the_columns_give(tmp_path: Path) -> None:
    runs, _ = asked.finetune_rows_read(
        tuned(tmp_path, {}, {"batch_size": 16.0}, {"number_gpus": 8.0, "method": "lora"})
    )
    answers = ask(predictor_by(load()), runs)
    assert answers.is_answered.all(), answers.status
    direct = predicted_s(columns_of(runs), load().parameters)
    assert answers.step_s == pytest.approx(direct, rel=0.02)
    assert (answers.low_s < answers.step_s).all()
    assert (answers.step_s < answers.high_s).all()


def test_a_model_of_8b_trains_on_one_gpu_in_pure_bf16(tmp_path: Path) -> None:
    one = {"number_gpus": 1.0, "batch_size": 1.0, "dataset_tokens_per_second": 2540.8}
    runs, _ = asked.finetune_rows_read(tuned(tmp_path, one))
    answers = ask(predictor_by(load()), runs)
    assert answers.is_answered.all(), answers.status
    wide = [replace(r, setup=replace(r.setup, weights="fp32", gradients="fp32")) for r in runs]
    assert not ask(predictor_by(load()), wide).is_answered.any()


def test_runs_that_cannot_be_are_left_out(tmp_path: Path) -> None:
    runs, left_out = asked.finetune_rows_read(
        tuned(
            tmp_path,
            {},
            {"dataset_tokens_per_second": 1e6},  # beyond the datasheet's products
            {"is_valid": 0.0},
            {"model_name": "granite-4.0-h-small"},  # state-space layers
        )
    )
    assert (len(runs), left_out) == (1, 3)
    with pytest.raises(ModelError, match="none of a known model"):
        asked.finetune_rows_read(tuned(tmp_path, {"is_valid": 0.0}))


def test_rows_of_two_sources_are_joined(tmp_path: Path) -> None:
    first = columns_of(asked.finetune_rows_read(tuned(tmp_path, {}, {"batch_size": 4.0}))[0])
    second = columns_of(asked.read(steps(tmp_path))[0])
    both = joined(first, second)
    parameters = load().parameters
    apart = np.concatenate([predicted_s(first, parameters), predicted_s(second, parameters)])
    assert predicted_s(both, parameters) == pytest.approx(apart)
    assert list(both.table) == ["finetune"] * 2 + ["blackwell"] * 8


def test_the_protocols_score_tables_of_the_same_form(tmp_path: Path) -> None:
    folder = steps(tuned(tmp_path, {}, {"model_name": "granite-3.1-2b"}))
    found = score.run("finetune", folder)
    assert found.overall.rows == 2
    assert {g.group for g in found.groups} >= {
        "model granite-3.1-2b",
        "accelerator A100-SXM4-80GB",
    }
    assert found.figures["refused as not fitting although they ran"] == 0
    found = score.run("blackwell", folder)
    assert found.overall.rows == 8
    assert [g.group for g in found.groups] == ["step after three rows"]
