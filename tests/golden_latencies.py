"""Reads the authors' golden files of Cephalo and Zorse (tests/golden/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from advisor.planners.core.layer_latency import LayerLatency

GOLDEN = Path(__file__).parent / "golden"


def read(name: str) -> tuple[list[dict[str, Any]], dict[tuple[str, str, str], LayerLatency]]:
    """Return the cases and the latencies by (model, GPU, dtype)."""
    record = json.loads((GOLDEN / name).read_text())
    latencies = {
        (entry["model"], entry["gpu"], entry["dtype"]): LayerLatency(
            micro_batches=tuple(entry["micro_batches"]),
            forward_s=tuple(1e-3 * t for t in entry["forward_ms"]),
            backward_s=tuple(1e-3 * t for t in entry["backward_ms"]),
            forward_line=(1e-3 * entry["forward_line_ms"][0], 1e-3 * entry["forward_line_ms"][1]),
            backward_line=(
                1e-3 * entry["backward_line_ms"][0],
                1e-3 * entry["backward_line_ms"][1],
            ),
        )
        for entry in record["latencies"]
    }
    return record["cases"], latencies
