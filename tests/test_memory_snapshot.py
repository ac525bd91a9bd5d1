"""The predicted memory as a snapshot: PyTorch reads it, and its peak is the ledger's."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch.cuda._memory_viz
from conftest import InProcess

from advisor.planners.core import Layout
from advisor.report.memory_snapshot import memory_snapshot

GB = 1e9
VIEWER: Any = torch.cuda._memory_viz
TERMS = {
    "parameters": 16 * GB, "gradients": 8 * GB, "optimizer": 30 * GB, "activations": 12 * GB,
    "logits": 2 * GB, "recomputed": GB, "context": 3 * GB, "fragmentation": 2 * GB,
    "host_state": 9 * GB,
}  # fmt: skip
SEEN = sum(TERMS.values()) - 14 * GB
LAYOUTS = {
    "one device": Layout(dp=1, micro_batch=1, accumulation_steps=4),
    "pipeline": Layout(pp=4, tp=2, micro_batch=1, accumulation_steps=8),
    "interleaved": Layout(
        pp=2, micro_batch=1, accumulation_steps=8, schedule="interleaved", virtual_stages=2
    ),
}


def fullest_bytes(snapshot: Mapping[str, Any]) -> int:
    """Return what the allocations of a snapshot's first device come to at most."""
    signs = {"alloc": 1, "free_completed": -1}
    events = snapshot["device_traces"][0]
    found = itertools.accumulate(signs.get(e["action"], 0) * e["size"] for e in events)
    return int(max(found))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_fullest_moment_is_the_ledger_without_what_no_allocator_sees(layout: Layout) -> None:
    snapshot = memory_snapshot(TERMS, layout, 1.5, layers=8)
    assert fullest_bytes(snapshot) <= SEEN
    least = 1 - 1e-6 if layout.virtual_stages == 1 else 0.9
    assert fullest_bytes(snapshot) >= least * SEEN


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_what_a_step_allocates_it_frees_but_for_the_state(layout: Layout) -> None:
    snapshot = memory_snapshot(TERMS, layout, 1.5, layers=8)
    (segment,) = snapshot["segments"]
    assert segment["active_size"] == 54 * GB
    assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_no_two_blocks_that_live_overlap(layout: Layout) -> None:
    live: dict[int, int] = {}
    for one in memory_snapshot(TERMS, layout, 1.5, layers=8)["device_traces"][0]:
        if one["action"] == "alloc":
            begin, end = one["addr"], one["addr"] + one["size"]
            assert all(end <= a or begin >= a + size for a, size in live.items())
            live[begin] = one["size"]
        elif one["action"] == "free_completed":
            assert live.pop(one["addr"]) == one["size"]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_pytorch_reads_it(layout: Layout) -> None:
    snapshot = memory_snapshot(TERMS, layout, 1.5, layers=8)
    assert "parameters" in VIEWER.trace_plot(snapshot) or VIEWER.trace_plot(snapshot)
    assert "seg" in VIEWER.trace(snapshot)
    assert "active" in VIEWER.segsum(snapshot).lower() or VIEWER.segsum(snapshot)


def test_the_file_of_an_answer_holds_what_an_allocator_would_read(
    in_process: InProcess, tmp_path: Path
) -> None:
    words = "--model llama3-8b --lora 16 --batch 8 --sequence 2048 --total-steps 10 --gpu H100"
    files = ["--snapshot", "step.pickle", "--json"]
    result = in_process("predict", *words.split(), *files, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)["memory"]["read_gib"]["allocated"]["value"]
    snapshot = pickle.loads((tmp_path / "step.pickle").read_bytes())
    assert fullest_bytes(snapshot) / 2**30 == pytest.approx(told, rel=1e-4)
