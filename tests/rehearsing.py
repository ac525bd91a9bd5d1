"""What the tests of rehearsals run in processes of their own: small models, really and rehearsed.

``python rehearsing.py real`` traces a step of each model of ``models`` on the processor and prints
what was seen as JSON. ``rehearsed`` holds random chains of operators on "cuda" against the
processor, traces the same steps, and prints both with what CUDA makes of some steps.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def main(kind: str) -> None:
    """Do one of the things above."""
    if kind != "real":
        begin()
    found: Any = traced() if kind == "real" else rehearsed()
    sys.stdout.write("FOUND " + json.dumps(found) + "\n")


def rehearsed() -> dict[str, Any]:
    """Return all that is asked of one rehearsal; the values first, of which nothing is noted."""
    return {"values": values(), "traced": traced(), "memory": memory()}


def begin() -> None:
    """Begin a rehearsal in this process, without a recording and without overlays."""
    from advisor.collectors.hooks.rehearsal import start

    os.environ["ADVISOR_REHEARSAL_OVERLAY"] = "overlay"
    session = SimpleNamespace(
        writer=SimpleNamespace(folder="/tmp"), fact=lambda *_, **__: None, steps=0
    )
    device = {"name": "NVIDIA H100", "memory_bytes": 80 << 30, "capability": (9, 0)}
    rehearsing = start.Rehearsing(session, {"device": device})
    rehearsing.before_torch()
    import torch

    rehearsing.after_torch(torch)
    STARTED.append(rehearsing)


STARTED: list[Any] = []


# A traced step of small models.


def models() -> dict[str, Callable[[], tuple[Any, Any, Any]]]:
    """Return the name of each model -> what makes it, its input and its optimizer."""
    import torch
    from torch import nn

    def of(module: Any, data: Any, optimizer: Any = torch.optim.AdamW) -> Any:
        return module, data, optimizer(module.parameters(), lr=1e-3)

    encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return {
        "linear": lambda: of(nn.Linear(16, 4), torch.rand(8, 16)),
        "deep": lambda: of(
            nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4)),
            torch.rand(8, 16), torch.optim.SGD,
        ),
        "convolutions": lambda: of(
            nn.Sequential(
                nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                nn.Flatten(), nn.Linear(8, 4),
            ), torch.rand(4, 3, 16, 16),
        ),
        "grouped": lambda: of(nn.Conv2d(8, 16, 3, groups=4), torch.rand(2, 8, 12, 12)),
        "transposed": lambda: of(nn.ConvTranspose2d(8, 4, 4, 2), torch.rand(2, 8, 6, 6)),
        "encoder": lambda: of(encoder, torch.rand(2, 10, 32)),
        "embedding": lambda: of(
            nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 4)), torch.arange(20).view(4, 5)
        ),
        "normed": lambda: of(
            nn.Sequential(nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16)), torch.rand(8, 16),
            torch.optim.RMSprop,
        ),
        "group_norm": lambda: of(
            nn.Sequential(nn.Conv1d(4, 8, 3), nn.GroupNorm(2, 8), nn.SiLU()), torch.rand(2, 4, 20)
        ),
        "pooled": lambda: of(
            nn.Sequential(
                nn.Conv2d(1, 4, 5, 2, 2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(196, 3)
            ),
            torch.rand(2, 1, 28, 28), torch.optim.Adagrad,
        ),
        "bf16": lambda: of(nn.Linear(32, 32).bfloat16(), torch.rand(4, 32).bfloat16()),
        "bilinear": lambda: of(_bilinear(nn), torch.rand(4, 12)),
        "cells": lambda: of(_cells(nn), torch.rand(3, 6, 8)),
    }  # fmt: skip


def _bilinear(nn: Any) -> Any:
    class Bilinear(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Bilinear(12, 12, 5)

        def forward(self, x: Any) -> Any:
            return self.layer(x, x.flip(0)).softmax(-1)

    return Bilinear()


def _cells(nn: Any) -> Any:
    class Cells(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(8, 8)

        def forward(self, x: Any) -> Any:
            state = x.new_zeros(3, 8)
            for t in range(x.shape[1]):
                state = self.cell(x[:, t], state)
            return state

    return Cells()


def traced() -> dict[str, Any]:
    """Return what the trace saw of the second step of every model."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    found = {}
    for name, make in models().items():
        torch.manual_seed(0)
        model, data, optimizer = make()
        _step(model, data, optimizer)
        found[name] = _trace(model, data, optimizer)
        if not STARTED:
            with FlopCounterMode(display=False) as counter:
                _step(model, data, optimizer)
            found[name]["counted"] = counter.get_total_flops()
    return found


def _step(model: Any, data: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(data).float().square().mean().backward()
    optimizer.step()


def _trace(model: Any, data: Any, optimizer: Any) -> dict[str, Any]:
    from advisor.collectors.hooks.loaders import Loaders
    from advisor.collectors.hooks.optimizers import Optimizers
    from advisor.collectors.hooks.trace.deep import DeepTrace

    def failed(where: str, error: BaseException) -> None:
        raise error

    seen = Optimizers()
    seen.made(optimizer)
    writer: Any = SimpleNamespace(fact=lambda *_, **__: None, write=lambda *_: None)
    mode = STARTED[0].mode if STARTED else None
    trace = DeepTrace.begin(seen, Loaders(writer), failed, mode)
    assert trace is not None
    optimizer.zero_grad()
    loss = model(data).float().square().mean()
    trace.backward_begins()
    loss.backward()
    optimizer.step()
    trace.optimizer_runs(False)
    facts = trace.end()
    assert facts is not None
    rows = [
        [o["name"], o["phase"], o["shapes"], o["dtype"], o["count"]] for o in facts["operators"]
    ]
    return {
        "operators": sorted(rows),
        "flop": sum(o["flop"] for o in facts["operators"]),
        "parameters": facts["parameters"],
        "states": facts["optimizer_state_bytes"],
        "peak": max(fixed + growing for fixed, growing, _ in facts["memory_frontier"]),
    }


# Values that depend on no parameter are true.


def values() -> int:
    """Hold random chains of operators on "cuda" against the processor; return how many held."""
    import torch
    from hypothesis import given, settings
    from hypothesis import strategies as st

    steps: dict[str, Callable[[Any], Any]] = {
        "add": lambda x: x + 1,
        "add_": lambda x: x.add_(2),
        "view": lambda x: x.reshape(-1)[: x.numel() // 2 * 2].view(2, -1),
        "transpose": lambda x: x.t() if x.dim() == 2 else x,
        "row": lambda x: _written(x, 0, 7),
        "slice": lambda x: x[..., ::2],
        "mul_of_slice": lambda x: _doubled(x),
        "sort": lambda x: x.sort(-1).values,
        "unique": lambda x: x.unique(),
        "where": lambda x: torch.where(x > 2, x, -x),
        "mask": lambda x: x[x != 3] if (x != 3).any() else x,
        "nonzero": lambda x: x.nonzero() if (x != 0).any() else x,
        "cumsum": lambda x: x.cumsum(0),
        "clone": lambda x: x.clone(),
        "cat": lambda x: torch.cat([x, x]),
        "long": lambda x: x.long(),
        "max": lambda x: x.amax(-1, keepdim=True),
        "bincount": lambda x: torch.bincount(x.reshape(-1).long().clamp(0, 9)),
    }
    held = 0

    @settings(max_examples=120, deadline=None, database=None, derandomize=True)
    @given(
        st.lists(st.integers(-3, 5), min_size=4, max_size=12),
        st.lists(st.sampled_from(sorted(steps)), min_size=1, max_size=7),
    )
    def check(numbers: list[int], names: list[str]) -> None:
        nonlocal held
        real = torch.tensor(numbers, dtype=torch.float32)
        base = real.clone()
        fake, kept = base.cuda(), real.clone()
        other = kept
        for name in names:
            if fake.numel() < 2 or fake.numel() > 500:
                break
            fake, other = steps[name](fake), steps[name](other)
        assert fake.device.type == "cuda"
        assert fake.tolist() == other.tolist(), names
        assert base.tolist() == numbers  # the processor's own is left alone
        held += 1

    check()
    assert not STARTED[0].mode.notes.counts, STARTED[0].mode.notes.counts
    return held


def _written(x: Any, at: int, value: float) -> Any:
    x[at] = value
    return x


def _doubled(x: Any) -> Any:
    x[..., :1].mul_(2)
    return x


# Memory and made-up values on "cuda".


def memory() -> dict[str, Any]:
    """Return peaks of a step by its batch, what a loss says, and what stays of a guess."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    state = STARTED[0].mode.memory
    peaks = {}
    for batch in (64, 64, 1024, 2048, 4096):
        state.begin_step()
        _step(model, torch.rand(batch, 256, device="cuda"), optimizer)
        peaks[batch] = state.peak
    loss = model(torch.rand(8, 256).cuda()).square().mean()
    soft = torch.softmax(model(torch.rand(1, 256).cuda())[0, :10], 0)
    half = nn.Linear(64, 64).cuda().half()
    tied = nn.Linear(8, 8)
    tied.other = tied.weight
    before = torch.optim.SGD(tied.parameters(), lr=0.1)
    tied.cuda()
    return {
        "peaks": peaks,
        "weights": sum(p.numel() * p.element_size() for p in model.parameters()),
        "loss": [loss.item(), bool(torch.isfinite(loss)), bool(torch.isnan(loss).any())],
        "sum_of_softmax": float(soft.sum()),
        "half": [str(half.weight.dtype), half.weight.device.type],
        "is_tied": tied.other is tied.weight,
        "is_known_to_optimizer": before.param_groups[0]["params"][0].device.type,
        "notes": list(STARTED[0].mode.notes.counts),
    }


if __name__ == "__main__":
    main(sys.argv[1])
