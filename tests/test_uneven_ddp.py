from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "uneven_ddp.py"
STEPS, WIDTH, DEPTH = 3, 32, 4


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("uneven_ddp", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_uneven_split_over_real_workers_has_the_gradient_of_the_even_one(
    tmp_path: Path,
) -> None:
    import torch

    # The even split, worker after worker in this process: the sum of their weighted gradients.
    ddp = example()
    network = ddp.model(WIDTH, DEPTH)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    for step in range(STEPS):
        x, y = ddp.global_batch(24, WIDTH, step)
        optimizer.zero_grad()
        for rank in range(2):
            mine = ddp.share([12, 12], rank)
            ddp.backward(network, x[mine], y[mine], 0.5, 1)
        optimizer.step()

    saved = tmp_path / "gradient.pt"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(EXAMPLE), "--batches", "17,7", "--accumulation", "2,1", "--slow", "1,2",
        "--steps", str(STEPS - 1), "--warm-up", "1", "--width", str(WIDTH), "--save", str(saved),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])["batches"] == [17, 7]
    uneven = torch.load(saved, weights_only=True)
    for a, b in zip(uneven, ddp.gradients(network), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)
