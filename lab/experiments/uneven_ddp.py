"""What a plan's uneven split gains on this machine, against what it promised.

Profiles two gloo workers, one of which computes everything several times, asks
``planners.systems.cephalo`` for the split, and runs even and uneven batches in turns.

    python -m advisor.lab.experiments.uneven_ddp
"""

from __future__ import annotations

import json
import statistics
import subprocess
from typing import Any

from advisor.lab import frame
from advisor.planners.core.arrays import LayerLatency
from advisor.planners.core.errors import GIB
from advisor.planners.systems.cephalo import CephaloConstants, UnevenJob, Worker, plan_cephalo

EXAMPLE = frame.ROOT / "examples" / "uneven_ddp.py"
PROFILED = (16, 32, 64, 128)


def run(batches: tuple[int, ...], slow: str, steps: int = 20) -> dict[str, Any]:
    told = ",".join(map(str, batches))
    command = frame.torchrun(
        len(batches), EXAMPLE, "--batches", told, "--slow", slow, "--steps", steps
    )
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


def profile(slow: str) -> list[Worker]:
    """Measure both workers' computing time at a few batches."""
    runs = [run((b, b), slow) for b in PROFILED]
    workers = []
    for rank in range(2):
        times = [float(r["computing_s"][rank]) for r in runs]
        # One pass is measured as a whole: all of it stands in for Cephalo's backward.
        latency = LayerLatency.from_points(PROFILED, [1e-6 * t for t in times], times)
        workers.append(Worker(name=f"worker {rank}", memory_bytes=GIB, latency=latency))
    return workers


def main() -> None:
    words = {"--batch": 192, "--times": (3, "what the slow worker repeats"), "--rounds": 5}
    arguments = frame.options(__doc__, words)
    slow = f"1,{arguments.times}"
    workers = profile(slow)
    free = CephaloConstants(reserve_bytes=0.0, accumulation_overhead_s=0.0)
    job = UnevenJob(global_batch=arguments.batch, layers=1)
    chosen = plan_cephalo(workers, job, constants=free, may_accumulate=False)
    even = (arguments.batch // 2,) * 2
    rounds = [(run(even, slow), run(chosen.batches, slow)) for _ in range(arguments.rounds)]
    even_s = statistics.median(float(e["step_s"]) for e, _ in rounds)
    uneven_s = statistics.median(float(u["step_s"]) for _, u in rounds)
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
