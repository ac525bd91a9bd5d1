"""What the hooks cost a training step, measured where they run.

The entries into the hooks that do something every step are timed inside a real training loop, so
that caches are as cold as in practice: the wider the model, the colder. What timing itself costs
there is measured on an entry that does nothing, and taken off. The median is shown beside the
mean: on a busy machine the mean has other programs' time slices in it.

python benchmarks/collector_hooks.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advisor.collectors.hooks import format as fmt
from advisor.collectors.hooks import patches
from advisor.collectors.hooks.session import Session

ENTRIES = ("optimizer_stepped", "batch_fetched")


class Timed:
    """A session whose every entry is timed; ``spent_ns`` is the sum since it was last reset."""

    def __init__(self, session: Session) -> None:
        self.spent_ns = self.entries = 0
        for name in ENTRIES:
            setattr(session, name, self._timed(getattr(session, name)))
        self.nothing = self._timed(lambda: None)

    def _timed(self, entry: Any) -> Any:
        def run(*args: Any) -> None:
            begin = time.perf_counter_ns()
            entry(*args)
            self.spent_ns += time.perf_counter_ns() - begin
            self.entries += 1

        return run

    def take(self) -> tuple[float, int]:
        """Return the microseconds spent and the entries made, and begin anew."""
        taken = self.spent_ns / 1e3, self.entries
        self.spent_ns = self.entries = 0
        return taken


def main() -> None:
    """Train, and print what the hooks took of each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--width", type=int, default=700)
    steps, width = vars(parser.parse_args()).values()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    payload = fmt.CONTROL_PAYLOAD.pack(0, 0, time.monotonic_ns() + 10**12)
    (folder / fmt.CONTROL_FILE).write_bytes(payload)
    session = Session(str(folder))
    timed = Timed(session)
    for name, patch in patches.of(session).items():
        if name in sys.modules:
            patch(sys.modules[name])
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(64 * steps, width // 100)), batch_size=64)
    inputs = torch.randn(64, width)
    hook_us, step_ms, nothing_us = [], [], []
    for (_,) in loader:
        begin = time.perf_counter_ns()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        step_ms.append((time.perf_counter_ns() - begin) / 1e6)
        spent_us, entries = timed.take()
        hook_us.append(spent_us)
        model(inputs).square().mean()
        timed.nothing()
        nothing_us.append(timed.take()[0])
    timing_us = entries * statistics.median(nothing_us)
    settled = [us - timing_us for us in hook_us[60:]]  # traced steps and descriptions are over
    print(f"step: median {statistics.median(step_ms):.2f} ms over {len(settled)} steps")
    tail = sorted(settled)[int(0.9 * len(settled))]
    print(
        f"hooks: median {statistics.median(settled):.1f} us a step, mean "
        f"{statistics.mean(settled):.1f}, 90th percentile {tail:.1f} "
        f"(less {timing_us:.1f} for timing {entries} entries)"
    )


if __name__ == "__main__":
    main()
