"""A small real training job that saves, resumes and runs under torchrun: used by benchmarks here.

    python checkpointed_job.py --steps 9 --every 3 --checkpoint D/job.pt --events D/log

Each event is one line ``time,event,step`` on the clock of ``time.monotonic``, appended at once, so
that a kill loses none.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn


def main() -> None:
    """Train up to ``--steps``, from the checkpoint where there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, required=True, help="steps between checkpoints")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument(
        "--pace",
        type=float,
        default=0.0,
        help="least seconds of a step: stands for a device that computes while the host waits",
    )
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--batch", type=int, default=128)
    asked = parser.parse_args()
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    torch.set_num_threads(1)
    log = os.open(asked.events, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(event: str, step: int) -> None:
        if rank == 0:
            os.write(log, f"{time.monotonic():.4f},{event},{step}\n".encode())

    torch.manual_seed(0)
    layers = [nn.Linear(asked.width, asked.width), nn.ReLU()] * 3
    model: nn.Module = nn.Sequential(*layers, nn.Linear(asked.width, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    first = 0
    if asked.checkpoint.exists():
        state = torch.load(asked.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = int(state["step"])
    core = model
    if workers > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    share = asked.batch // workers
    note("ready", first)
    for step in range(first, asked.steps):
        begin = time.monotonic()
        x = torch.randn(share, asked.width)
        loss = nn.functional.cross_entropy(model(x), x[:, :10].argmax(dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(max(asked.pace - (time.monotonic() - begin), 0.0))
        note("step", step + 1)
        if (step + 1) % asked.every == 0 or step + 1 == asked.steps:
            if rank == 0:
                temporary = asked.checkpoint.with_suffix(".new")
                torch.save(
                    {
                        "model": core.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "step": step + 1,
                    },
                    temporary,
                )
                temporary.replace(asked.checkpoint)
            note("saved", step + 1)
    if workers > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
