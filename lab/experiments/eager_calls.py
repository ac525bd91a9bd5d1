"""What an eager call of PyTorch takes on the host, and updates: their walk, and fused ones.

    OMP_NUM_THREADS=1 python -m advisor.lab.experiments.eager_calls

Models so small that their arithmetic takes no time make steps on the processor; processor time of
a step over its operators that are more than views. With ``foreach`` the update runs over lists of
tensors, as on accelerators; there a driver adds to it. ``advisor.jobs.recorded_work``,
``planners.step.ledger`` and ``advisor.advice.step`` take constants from here.
"""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

REPEATS, STEPS, TENSORS = 15, 20, 100
VIEWS = (
    "view", "detach", "t.default", "transpose", "expand", "slice", "select", "unsqueeze",
    "squeeze", "permute", "split", "chunk", "alias", "as_strided", "reshape", "empty", "unbind",
)  # fmt: skip
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), (2, 4)),
    "transformer": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
        ),
        (1, 2, 8),
    ),
    "convolutions": (
        lambda: nn.Sequential(
            *(
                layer
                for _ in range(6)
                for layer in (nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU())
            )
        ),
        (1, 2, 4, 4),
    ),
}


class Counted(TorchDispatchMode):
    """Counts operators that are more than views."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count and call."""
        self.calls += not str(func).removeprefix("aten.").startswith(VIEWS)
        return func(*args, **(kwargs or {}))


def per_call_us(model: nn.Module, shape: tuple[int, ...], name: str, *, lists: bool) -> float:
    """Return the processor time of a call in a step [us]: the least of some repeats."""
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3, foreach=lists)
    x = torch.randn(shape)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        loss.item()

    took = []
    for _ in range(REPEATS + 1):
        begin = time.process_time()
        for _ in range(STEPS):
            step()
        took.append((time.process_time() - begin) / STEPS)
    with Counted() as counted:
        step()
    return 1e6 * min(took[1:]) / counted.calls


def walk_us(name: str) -> float:
    """Return what walking and grouping the parameters takes a tensor [us]: the median."""
    tensors = [torch.zeros(8, requires_grad=True) for _ in range(TENSORS)]
    for one in tensors:
        one.grad = torch.ones(8)
    optimizer: Any = getattr(torch.optim, name)(tensors, lr=1e-3)
    optimizer.step()
    lists = len(inspect.signature(optimizer._init_group).parameters) - 1
    took = []
    for _ in range(20 * REPEATS):
        found: list[list[torch.Tensor]] = [[] for _ in range(lists)]
        begin = time.process_time()
        optimizer._init_group(optimizer.param_groups[0], *found)
        optimizer._group_tensors_by_device_and_dtype([found[0], found[1]])
        took.append(time.process_time() - begin)
    return 1e6 * statistics.median(took) / TENSORS


def fused_us(name: str) -> tuple[float, float]:
    """Return what a fused update takes, and for each of its tensors of 1,000 numbers [us]."""
    took = {}
    for count in (4, TENSORS):
        tensors = [torch.zeros(1000, requires_grad=True) for _ in range(count)]
        for one in tensors:
            one.grad = torch.ones(1000)
        optimizer: Any = getattr(torch.optim, name)(tensors, lr=1e-3, fused=True)
        times = []
        for _ in range(20 * REPEATS):
            begin = time.perf_counter()
            optimizer.step()
            times.append(time.perf_counter() - begin)
        took[count] = 1e6 * statistics.median(times)
    each = (took[TENSORS] - took[4]) / (TENSORS - 4)
    return took[4] - 4 * each, each


def main() -> None:
    """Print microseconds a call, and a tensor."""
    torch.set_num_threads(1)
    for lists in (False, True):
        for model, (make, shape) in MODELS.items():
            for name in ("SGD", "AdamW"):
                took = per_call_us(make(), shape, name, lists=lists)
                way = "lists" if lists else "loops"
                print(f"{model:14} {name:6} {way:6} {took:5.1f} us a call", flush=True)
    for name in ("SGD", "AdamW", "RMSprop", "Adadelta"):
        print(f"walk {name:9} {walk_us(name):5.2f} us a tensor")
    for name in ("SGD", "Adam", "AdamW"):
        call, each = fused_us(name)
        print(f"fused {name:8} {call:5.1f} us an update, {each:5.2f} us a tensor")


if __name__ == "__main__":
    main()
