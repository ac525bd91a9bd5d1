"""What a plan's uneven split gains on this machine, against what it promised.

Profiles two gloo workers, one of which computes everything several times, asks
``planners.systems.cephalo`` for the split, and runs even and uneven batches in turns.

    python -m advisor.lab.experiments.uneven_ddp
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from advisor.planners.core.columns import LayerLatency
from advisor.planners.core.errors import GIB
from advisor.planners.systems.cephalo import CephaloConstants, UnevenJob, Worker, plan_cephalo

EXAMPLE = Path(__file__).parents[2] / "examples" / "uneven_ddp.py"
PROFILED = (16, 32, 64, 128)


def run(batches: tuple[int, ...], slow: str, steps: int = 20) -> dict[str, object]:
    """Run the example and return its record."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(len(batches)), str(EXAMPLE),
        "--batches", ",".join(map(str, batches)), "--slow", slow, "--steps", str(steps),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    record: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return record


def profile(slow: str) -> list[Worker]:
    """Measure both workers' computing time at a few batches."""
    runs = [run((b, b), slow) for b in PROFILED]
    workers = []
    for rank in range(2):
        times = [float(r["computing_s"][rank]) for r in runs]  # type: ignore[index]
        # One pass is measured as a whole: all of it stands in for Cephalo's backward.
        latency = LayerLatency.from_points(PROFILED, [1e-6 * t for t in times], times)
        workers.append(Worker(name=f"worker {rank}", memory_bytes=GIB, latency=latency))
    return workers


def main() -> None:
    """Print the split, the promise and the measured gain."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=192)
    parser.add_argument("--times", type=int, default=3, help="what the slow worker repeats")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    slow = f"1,{arguments.times}"
    workers = profile(slow)
    free = CephaloConstants(reserve_bytes=0.0, accumulation_overhead_s=0.0)
    job = UnevenJob(global_batch=arguments.batch, layers=1)
    chosen = plan_cephalo(workers, job, constants=free, may_accumulate=False)
    even = (arguments.batch // 2,) * 2
    rounds = [(run(even, slow), run(chosen.batches, slow)) for _ in range(arguments.rounds)]
    even_s = statistics.median(float(e["step_s"]) for e, _ in rounds)  # type: ignore[arg-type]
    uneven_s = statistics.median(float(u["step_s"]) for _, u in rounds)  # type: ignore[arg-type]
    slowest_s = max(float(w.latency.at(b)[1]) for w, b in zip(workers, even, strict=True))
    # What is not computing (the reduction) stays as measured with even batches.
    promised_s = chosen.step_s + max(even_s - slowest_s, 0.0)
    print(
        f"split {chosen.batches} of {arguments.batch}, worker 1 computes {arguments.times} times"
    )
    print(f"even {even_s * 1e3:.1f} ms a step, uneven {uneven_s * 1e3:.1f} ms")
    print(f"gain promised {even_s / promised_s:.2f}, measured {even_s / uneven_s:.2f}")


if __name__ == "__main__":
    main()
