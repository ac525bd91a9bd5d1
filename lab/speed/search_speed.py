"""How fast the layout searches are: layouts per CPU-second, and three searches people ask for.

    python -m advisor.lab.speed.search_speed

Figures of 21 November 2026 on one core of two shared ones stand in lab/notes/planners.md.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from advisor.planners.core.arrays import LayerLatency, Machines
from advisor.planners.core.errors import GIB
from advisor.planners.core.setup import Transformer
from advisor.planners.layouts.mixed import MachineGroup, search_mixed
from advisor.planners.layouts.problem import LayoutProblem, SearchSpace
from advisor.planners.systems.cephalo import UnevenJob, Worker, plan_cephalo

A100 = Machines(
    flop_per_s=271e12, memory_bytes_per_s=2.0e12, memory_bytes=80 * GIB, intra_bytes_per_s=300e9,
    network_bytes_per_s=200e9, devices_per_node=8, host_memory_bytes=2000 * GIB,
)  # fmt: skip
V100 = Machines(
    flop_per_s=80e12, memory_bytes_per_s=0.9e12, memory_bytes=16 * GIB, intra_bytes_per_s=150e9,
    network_bytes_per_s=12.5e9, devices_per_node=8, generation=0,
)  # fmt: skip
GPT3 = Transformer(layers=96, hidden=12288, heads=96, sequence=2048, vocabulary=51200)
OPT13B = Transformer(layers=40, hidden=5120, heads=40, sequence=2048, vocabulary=50272)


def timed(name: str, work: Callable[[], str]) -> None:
    """Print the least CPU time of three tries, and the peak of the memory allocated."""
    tries = []
    for _ in range(3):
        started = time.process_time()
        said = work()
        tries.append(time.process_time() - started)
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"{name}: {min(tries):.2f} CPU-s, {peak / 2**20:.0f} MiB at most; {said}")


def considered(nodes: int, batch: int) -> int:
    """Return how many layouts of GPT-3 a search looks at."""
    problem = LayoutProblem(transformer=GPT3, machines=A100)
    return problem.search(nodes * int(A100.devices_per_node), batch, SearchSpace()).considered


def gpt3() -> str:
    return f"{considered(128, 1536):,} layouts"


def rate() -> None:
    """Print layouts per CPU-second over searches of several sizes."""
    layouts = 0
    started = time.process_time()
    for nodes, batch in ((128, 1536), (64, 1024), (16, 512), (128, 2048)):
        layouts += considered(nodes, batch)
    seconds = time.process_time() - started
    print(f"{layouts / seconds:,.0f} layouts per CPU-second ({layouts:,} in {seconds:.2f} s)")


def unlike() -> str:
    groups = [
        MachineGroup(problem=LayoutProblem(transformer=OPT13B, machines=machines), nodes=nodes)
        for machines, nodes in ((A100, 4), (V100, 12))
    ]
    found = search_mixed(groups, 512)
    return f"{found.considered:,} candidates, {found.step_s:.2f} s a step"


def cephalo() -> str:
    rng = np.random.default_rng(0)
    workers = [
        Worker(
            name=f"kind {i % 8}",
            memory_bytes=24 * GIB,
            latency=LayerLatency(
                forward_line=(1e-3 * (1 + i % 8), 1e-3), backward_line=(2e-3 * (1 + i % 8), 2e-3)
            ),
        )
        for i in range(64)
    ]
    job = UnevenJob(
        global_batch=1024,
        layers=32,
        state_bytes=600 * GIB,
        compute_bytes=tuple(GIB * (1 + 0.1 * np.arange(8) + 0.001 * rng.random(8))),
        all_gather_s=0.01,
        reduce_scatter_s=0.01,
    )
    return f"largest batch {max(plan_cephalo(workers, job).batches)}"


def main() -> None:
    rate()
    timed("175B on 1,024 GPUs", gpt3)
    timed("32 A100 + 96 V100", unlike)
    timed("Cephalo, 64 GPUs, batch 1,024", cephalo)


if __name__ == "__main__":
    main()
