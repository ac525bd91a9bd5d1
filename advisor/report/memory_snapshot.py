"""The memory of a predicted step as a snapshot of PyTorch's allocator.

pytorch.org/memory_viz opens it, and ``torch.cuda._memory_viz`` reads it: what
``torch.cuda.memory._snapshot`` returns, whose ``device_traces`` hold the allocations and frees of
one device, the fullest, over the predicted step.

Every block is a term of the memory's ledger (``planners.memory``), or a layer's part of one:
states stay, activations come with a micro-batch's forward pass and go with its backward pass,
logits and what is computed again live where the two meet. At the fullest moment the blocks
together are the ledger's sum, but for the context, which no allocator sees, and fragmentation.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from pickle import dumps
from typing import Any, Final

from advisor.answer import Answer
from advisor.errors import UsageError
from advisor.jobs import Job
from advisor.planners.core import GIB, Layout
from advisor.planners.layouts import TimedPass, timeline
from advisor.planners.memory import HOST_TERMS, UNSEEN

# Terms that come and go with passes; others stay.
_PASSING: Final = ("activations", "logits", "recomputed")
_BASE: Final = 1 << 40  # of all addresses
# Passes are told layer by layer where there are no more blocks than a viewer stays quick with.
_MOST_BLOCKS: Final = 20_000


class _Blocks:
    """Blocks handed out and taken back, each size from where it lay before."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.end = _BASE
        self._free: dict[int, list[int]] = defaultdict(list)
        self._live: dict[str, tuple[int, int]] = {}

    def alloc(self, name: str, size: float, at_s: float) -> None:
        """Hand out a block; nothing where it would be empty."""
        taken = int(size)
        if taken < 1:
            return
        if self._free[taken]:
            address = self._free[taken].pop()
        else:
            address, self.end = self.end, self.end + taken
        self._live[name] = address, taken
        self._say("alloc", name, address, taken, at_s)

    def free(self, name: str, at_s: float) -> None:
        """Take a block back, if there is one of the name."""
        if name not in self._live:
            return
        address, size = self._live.pop(name)
        self._free[size].append(address)
        for action in ("free_requested", "free_completed"):
            self._say(action, name, address, size, at_s)

    def _say(self, action: str, name: str, address: int, size: int, at_s: float) -> None:
        frame = {"name": name, "filename": "predicted by advisor", "line": 0}
        self.events.append({
            "action": action, "addr": address, "size": size, "stream": 0, "frames": [frame],
            "time_us": round(at_s * 1e6),
        })  # fmt: skip

    def segment(self) -> dict[str, Any]:
        """Return the one segment that all blocks lie in, as it is at the end."""
        left = sorted((address, size, name) for name, (address, size) in self._live.items())
        blocks, at = [], _BASE
        for address, size, name in [*left, (self.end, 0, "")]:
            if address > at:
                blocks.append({"address": at, "size": address - at, "requested_size": 0,
                               "state": "inactive", "frames": []})  # fmt: skip
            if size:
                frame = {"name": name, "filename": "predicted by advisor", "line": 0}
                blocks.append({"address": address, "size": size, "requested_size": size,
                               "state": "active_allocated", "frames": [frame]})  # fmt: skip
            at = address + size
        live = sum(size for _, size, _ in left)
        return {
            "device": 0, "address": _BASE, "total_size": self.end - _BASE, "stream": 0,
            "allocated_size": live, "active_size": live, "requested_size": live,
            "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
            "frames": [], "blocks": blocks,
        }  # fmt: skip


def snapshot_file(job: Job, found: Answer) -> bytes:
    """Return the memory of a predicted step as a file for PyTorch's viewer.

    Raises UsageError if it is not told by terms.
    """
    terms = found.memory.get("terms_gib")
    if terms is None or job.work is None:
        raise UsageError(
            "--snapshot is of memory that is told by terms, and this is not",
            hint="see `advisor predict --memory`",
        )
    model, own = job.work.transformer, len(job.work.layers)
    layers = max((own if model is None else model.layers) // found.layout.pp, 1)
    sizes = {name: size * GIB for name, size in terms.items()}
    snapshot = memory_snapshot(sizes, found.layout, found.step_time_s.value, layers=layers)
    return dumps(snapshot)


def memory_snapshot(
    terms: Mapping[str, float], layout: Layout, step_s: float, *, layers: int
) -> dict[str, Any]:
    """Return the predicted step's memory on the fullest device as PyTorch writes snapshots.

    ``terms``: of the ledger [bytes]; ``layers``: of one device, over all its chunks.
    """
    seen = {name: size for name, size in terms.items()
            if name not in UNSEEN["allocated"] and name not in HOST_TERMS}  # fmt: skip
    blocks = _Blocks()
    for name, size in seen.items():
        if name not in _PASSING:
            blocks.alloc(name, size, 0.0)
    stage = layout.pp - 1 if terms.get("logits", 0.0) > 0 else 0
    passes = [
        one
        for one in timeline(
            layout.pp, layout.accumulation_steps, schedule=layout.schedule,
            virtual_stages=layout.virtual_stages,
        )
        if one.stage == stage
    ]  # fmt: skip
    stretch = step_s / max(one.end for one in passes)
    parts = max(layers // layout.virtual_stages, 1) if len(passes) * layers < _MOST_BLOCKS else 1
    each = seen.get("activations", 0.0) / (_most_held(passes) * parts)
    for one in sorted(passes, key=lambda p: p.begin):
        met = seen if one.chunk == layout.virtual_stages - 1 else {}
        _pass(blocks, one, met, stretch, (parts, each))
    return {
        "segments": [blocks.segment()], "device_traces": [blocks.events],
        "allocator_settings": {}, "external_annotations": [],
    }  # fmt: skip


def _most_held(passes: list[TimedPass]) -> int:
    """Return how many passes' activations the device holds at most."""
    ends = sorted((one.begin, -1 if one.is_backward else 1) for one in passes)
    return max(itertools.accumulate(held for _, held in ends))


def _pass(
    blocks: _Blocks, one: TimedPass, terms: Mapping[str, float], stretch: float,
    layers: tuple[int, float],
) -> None:  # fmt: skip
    """Write what one pass allocates and frees.

    ``terms``: of the model's last chunk, where passes turn round; ``layers``: how many, and what
    each keeps [bytes].
    """
    parts, each = layers
    begin_s, end_s = one.begin * stretch, one.end * stretch
    step_s = (end_s - begin_s) / parts
    of = f"micro-batch {one.micro_batch}" + (f", chunk {one.chunk}" if one.chunk else "")
    if not one.is_backward:
        for layer in range(parts):
            blocks.alloc(f"activations of layer {layer}, {of}", each, begin_s + layer * step_s)
        blocks.alloc(f"logits, {of}", terms.get("logits", 0.0), end_s)
        return
    blocks.alloc(f"recomputed, {of}", terms.get("recomputed", 0.0), begin_s)
    blocks.free(f"logits, {of}", begin_s)
    for at, layer in enumerate(reversed(range(parts))):
        blocks.free(f"activations of layer {layer}, {of}", begin_s + (at + 1) * step_s)
    blocks.free(f"recomputed, {of}", end_s)
