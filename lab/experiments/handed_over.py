"""Say what the loop of a script takes to receive a batch that its loading processes have ready.

    python -m advisor.lab.experiments.handed_over

Of batches of 16 numbers to 12 images, by the number of processes: the clock's tenth and half, and
the loop's own CPU time. Zero processes are a loop that loads inline.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import numpy as np

SHAPES: Final = (((16,), 64), ((3, 32, 32), 128), ((3, 224, 224), 12))  # of a sample, and batch
PROCESSES: Final = (0, 1, 4)
BATCHES: Final = 40
_READY_S: Final = 0.06  # for the processes to make the next batches


def received(
    shape: tuple[int, ...], batch: int, processes: int
) -> tuple[list[float], list[float]]:
    """Return what each batch took by the clock, and of the loop's thread [s]."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    sample = torch.zeros(1, *shape).expand(batch * (BATCHES + 1), *shape)
    loader: Any = DataLoader(
        TensorDataset(sample), batch_size=batch, num_workers=processes,
        prefetch_factor=8 if processes else None,
    )  # fmt: skip
    batches = iter(loader)
    held, clock, own = next(batches), [], []
    for _ in range(BATCHES):
        time.sleep(_READY_S if processes else 0.0)
        began, began_own = time.perf_counter(), time.thread_time()
        held = next(batches)
        own.append(time.thread_time() - began_own)
        clock.append(time.perf_counter() - began)
    del held, batches
    return clock, own


def main() -> int:
    """Print a line for each shape and number of processes."""
    for shape, batch in SHAPES:
        for processes in PROCESSES:
            clock, own = received(shape, batch, processes)
            tenth, half = np.quantile(clock, [0.1, 0.5]) * 1e3
            sys.stdout.write(
                f"{batch} x {shape}, {processes} processes: {tenth:.2f} ms, half {half:.2f}, "
                f"of the loop {np.median(own) * 1e3:.2f}\n"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
