"""Data-parallel training with uneven batches: a plan's split, run with torchrun and gloo.

Workers of unlike speed take unlike shares b_i of the global batch B, so that all finish together.
Each weights the mean loss of its share by b_i/B; summed over the workers (``all_reduce`` with SUM,
not the mean that ``DistributedDataParallel`` takes) that is the gradient of the mean loss over the
whole batch, whatever the split:

    sum_i (b_i / B) grad mean_i  =  grad mean_B

Run it with the split from ``advisor plan`` and one worker slowed down:

    torchrun --standalone --nproc-per-node 2 examples/uneven_ddp.py --batches 64,32 --slow 1,2

``--slow 1,2`` makes worker 1 compute every pass twice. Prints one JSON line from worker 0: seconds
a step (median), each worker's own computing time, and a checksum of the gradient.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn


def model(width: int, depth: int) -> nn.Sequential:
    """Return a perceptron; every worker builds the same one."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def global_batch(size: int, width: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the step's whole batch; workers take their slice of the same one."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, width, generator=generator)
    return x, x.square().mean(dim=1, keepdim=True)


def share(batches: list[int], rank: int) -> slice:
    """Return the worker's slice of the global batch.

    >>> share([6, 2], 1)
    slice(6, 8, None)
    """
    first = sum(batches[:rank])
    return slice(first, first + batches[rank])


def backward(
    network: nn.Module, x: torch.Tensor, y: torch.Tensor, weight: float, accumulation: int
) -> None:
    """Add the gradient of ``weight`` x the mean loss, in ``accumulation`` micro-batches."""
    for part, target in zip(x.chunk(accumulation), y.chunk(accumulation), strict=True):
        loss = nn.functional.mse_loss(network(part), target)
        (loss * (weight * len(part) / len(x))).backward()


def gradients(network: nn.Module) -> list[torch.Tensor]:
    """Return the gradients themselves, not copies."""
    return [p.grad for p in network.parameters() if p.grad is not None]


def reduce_gradients(network: nn.Module) -> None:
    """Sum the workers' weighted gradients in one message."""
    flat = torch.cat([g.reshape(-1) for g in gradients(network)])
    dist.all_reduce(flat, op=dist.ReduceOp.SUM)
    offset = 0
    for gradient in gradients(network):
        gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
        offset += gradient.numel()


def train(arguments: argparse.Namespace, rank: int) -> tuple[list[float], list[float], float]:
    """Return seconds of each step, of the worker's own computing, and the gradient's checksum."""
    batches: list[int] = arguments.batches
    network = model(arguments.width, arguments.depth)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    weight = batches[rank] / sum(batches)
    steps, computing, checksum = [], [], 0.0
    for step in range(arguments.steps + arguments.warm_up):
        x, y = global_batch(sum(batches), arguments.width, step)
        mine = share(batches, rank)
        dist.barrier()
        started = time.perf_counter()
        for _ in range(arguments.repeats.get(rank, 1)):
            optimizer.zero_grad()
            backward(network, x[mine], y[mine], weight, arguments.accumulation[rank])
        computed = time.perf_counter()
        reduce_gradients(network)
        checksum = float(
            sum(p.grad.double().norm() for p in network.parameters() if p.grad is not None)
        )
        optimizer.step()
        if step >= arguments.warm_up:
            steps.append(time.perf_counter() - started)
            computing.append(computed - started)
    if arguments.save and rank == 0:
        torch.save(
            [p.grad.clone() for p in network.parameters() if p.grad is not None], arguments.save
        )
    return steps, computing, checksum


def main() -> None:
    """Run one worker; torchrun says which."""
    arguments = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, workers = dist.get_rank(), dist.get_world_size()
    if len(arguments.batches) != workers:
        raise SystemExit(f"{len(arguments.batches)} batches for {workers} workers")
    if arguments.accumulation == []:
        arguments.accumulation = [1] * workers
    steps, computing, checksum = train(arguments, rank)
    own = [torch.zeros(1) for _ in range(workers)]
    dist.all_gather(own, torch.tensor([statistics.median(computing)]))
    if rank == 0:
        record = {
            "batches": arguments.batches,
            "step_s": statistics.median(steps),
            "computing_s": [float(t) for t in own],
            "gradient_norm": checksum,
        }
        print(json.dumps(record))
    # A worker that leaves while another still writes makes gloo abort the other.
    dist.barrier()
    dist.destroy_process_group()


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batches", type=_numbers, required=True, help="b_i, e.g. 64,32")
    parser.add_argument("--accumulation", type=_numbers, default=[], help="micro-batches each")
    parser.add_argument("--slow", type=_numbers, default=[], help="RANK,TIMES to compute again")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--save", default=os.environ.get("UNEVEN_DDP_GRADIENT", ""))
    arguments = parser.parse_args()
    arguments.repeats = {arguments.slow[0]: arguments.slow[1]} if arguments.slow else {}
    return arguments


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
