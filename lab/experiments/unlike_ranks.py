"""Two ranks with batches of their own, each in a control group: what ``stragglers.py`` records.

    advisor profile --workers 2 lab/experiments/unlike_ranks.py --batches 64,64 \
        --groups /sys/fs/cgroup/cpu/a,/sys/fs/cgroup/cpu/b

The last line of rank 0 is JSON: its median step on the wall, warm-up left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 768
WARM_UP = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", required=True, help="samples of each rank")
    parser.add_argument("--groups", default="", help="control groups of the ranks")
    parser.add_argument("--steps", type=int, default=60)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if asked.groups:
        folder = Path(asked.groups.split(",")[rank])
        (folder / "cgroup.procs").write_text(str(os.getpid()))
    batch = int(asked.batches.split(",")[rank])
    layers = [nn.Linear(WIDTH, WIDTH) if i % 2 == 0 else nn.ReLU() for i in range(9)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    ends = [time.monotonic()]
    for _ in range(asked.steps):
        x = torch.randn(batch, WIDTH, generator=generator)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        ends.append(time.monotonic())
    steps = [b - a for a, b in pairwise(ends)][WARM_UP:]
    if rank == 0:
        print(json.dumps({"step_s": statistics.median(steps), "steps": len(steps)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
