"""Laws of the predicted step as a trace: it ends with the step; a rank does one pass at a time."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from conftest import InProcess

WORDS = {
    "data parallel": "--model gpt2 --batch 64 --gpu L4 --count 8",
    "pipeline": "--model llama2-7b --batch 32 --gpu A100-80GB --count 8 --pp 4 --tp 2",
    "as likely to fit as not": (
        "--layers 32 --hidden 4096 --heads 32 --kv-heads 8 --ffn 14336 --gated "
        "--vocabulary 128256 --sequence 2048 --weights bf16 --stack trainer --lora 8 "
        "--recompute none --batch 3 --micro-batch 3 --gpu A100-80GB"
    ),
    "image network": "--cnn 224:64:3x256,4x512,6x1024,3x2048:bottleneck --batch 64 --gpu T4",
}


def traced(run: InProcess, words: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    file = folder / "step.json"
    given = [*words.split(), "--total-steps", "10", "--json", "--trace", str(file)]
    result = run("predict", *given, cwd=folder)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), json.loads(file.read_text())


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_every_rank_ends_with_the_predicted_step(
    words: str, tmp_path: Path, in_process: InProcess
) -> None:
    said, trace = traced(in_process, words, tmp_path)
    ends: dict[int, float] = defaultdict(float)
    for one in trace["traceEvents"]:
        if one["ph"] == "X":
            assert one["ts"] >= 0
            assert one["dur"] >= 0
            ends[one["pid"]] = max(ends[one["pid"]], one["ts"] + one["dur"])
    assert len(ends) == said["devices"]
    step_us = said["step_time_s"]["value"] * 1e6
    assert all(end == pytest.approx(step_us, rel=1e-4) for end in ends.values())


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_a_rank_does_one_pass_at_a_time(words: str, tmp_path: Path, in_process: InProcess) -> None:
    _, trace = traced(in_process, words, tmp_path)
    passes: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for one in trace["traceEvents"]:
        if one["name"].startswith(("forward", "backward", "optimizer")):
            passes[one["pid"]].append((one["ts"], one["ts"] + one["dur"]))
    assert passes
    for spans in passes.values():
        ordered = sorted(spans)
        for (_, end), (begin, _) in itertools.pairwise(ordered):
            assert begin >= end - 0.01


def test_stages_run_as_many_passes_as_micro_batches(tmp_path: Path, in_process: InProcess) -> None:
    said, trace = traced(in_process, WORDS["pipeline"], tmp_path)
    layout = said["layout"]
    names = [one["name"] for one in trace["traceEvents"] if one["pid"] == 0 and one["ph"] == "X"]
    wanted = layout["accumulation_steps"] * layout["virtual_stages"]
    for phase in ("forward", "backward"):
        assert sum(name.startswith(f"{phase} of micro-batch") for name in names) == wanted
