"""What the hooks cost a training step, measured where they run.

Everything that the hooks put into a step (the optimizer's hook, the wrappers around the backward
pass and the loader) is timed inside a real training loop, so that caches are as cold as in
practice: the wider the model, the colder. A wrapper's cost is the time of the wrapped call less
that of the call in it; what timing itself costs there is measured on a call that does nothing, in
the same loop, and taken off. The median is shown beside the mean: on a busy machine the mean has
other programs' time slices in it.

python benchmarks/collector_hooks.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from advisor.collectors.hooks import format as fmt
from advisor.collectors.hooks import patches
from advisor.collectors.hooks.session import Session

# The hooks' own repetitions (traced steps, descriptions) are over by then.
_SETTLED = 60
_WRAPPED: tuple[tuple[Any, str], ...] = (
    (torch.autograd, "backward"),
    (_BaseDataLoaderIter, "__next__"),
)


class Meter:
    """Sums the time in some calls, and takes off that of others inside them."""

    def __init__(self) -> None:
        self.spent_ns = 0

    def timed(self, call: Callable[..., Any], sign: int = 1) -> Callable[..., Any]:
        """Return ``call`` with its time added, or taken off where ``sign`` is -1."""

        def run(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter_ns()
            try:
                return call(*args, **kwargs)
            finally:
                self.spent_ns += sign * (time.perf_counter_ns() - begin)

        return run

    def take_us(self) -> float:
        """Return the microseconds summed up, and begin anew."""
        spent, self.spent_ns = self.spent_ns, 0
        return spent / 1e3


def hooked(meter: Meter, folder: Path) -> Session:
    """Put the hooks into this process, with a meter around each."""
    payload = fmt.CONTROL_PAYLOAD.pack(0, 0, time.monotonic_ns() + 10**12)
    (folder / fmt.CONTROL_FILE).write_bytes(payload)
    session = Session(str(folder))
    session.optimizer_stepped = meter.timed(session.optimizer_stepped)  # type: ignore[method-assign]
    for owner, name in _WRAPPED:
        setattr(owner, name, meter.timed(getattr(owner, name), -1))
    for name, patch in patches.of(session).items():
        if name in sys.modules:
            patch(sys.modules[name])
    for owner, name in _WRAPPED:
        setattr(owner, name, meter.timed(getattr(owner, name)))
    return session


def nothing() -> None:
    """Do nothing, to be timed."""


def measure(steps: int, width: int) -> tuple[list[float], list[float]]:
    """Train; return the hooks' share [us] and the whole time [ms] of every settled step."""
    meter, empty = Meter(), Meter()
    once = empty.timed(nothing)
    nested = empty.timed(empty.timed(nothing, -1))
    hooked(meter, Path(tempfile.mkdtemp()))
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(64 * steps, width // 100)), batch_size=64)
    inputs = torch.randn(64, width)
    hook_us, timing_us, step_ms = [], [], []
    for (_,) in loader:
        begin = time.perf_counter_ns()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        step_ms.append((time.perf_counter_ns() - begin) / 1e6)
        hook_us.append(meter.take_us())
        model(inputs).square().mean()  # caches as cold as the hooks find them
        once()
        for _ in _WRAPPED:
            nested()
        timing_us.append(empty.take_us())
    timing = statistics.median(timing_us)
    return [us - timing for us in hook_us[_SETTLED:]], step_ms[_SETTLED:]


def main() -> None:
    """Train, and print what the hooks took of each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--width", type=int, default=700)
    options = parser.parse_args()
    torch.set_num_threads(1)
    hook_us, step_ms = measure(options.steps, options.width)
    print(f"step: median {statistics.median(step_ms):.2f} ms over {len(step_ms)} steps")
    tail = sorted(hook_us)[int(0.9 * len(hook_us))]
    print(
        f"hooks: median {statistics.median(hook_us):.1f} us a step, mean "
        f"{statistics.mean(hook_us):.1f}, 90th percentile {tail:.1f}"
    )


if __name__ == "__main__":
    main()
