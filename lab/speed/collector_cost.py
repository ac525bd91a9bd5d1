"""What a whole recording costs the script: the same script with and without, in turns.

The script trains with steps of about five milliseconds and times itself: wall time less the time
that it waited for a core (so that neighbours count for little), and CPU time, both a step. Runs
with and without the profiler alternate, and their ratio is printed round by round: of the median
step, of the mean CPU time of a step, and of all steps from the first on, the traced ones and the
start-up of the recording included.

python -m advisor.lab.speed.collector_cost
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from advisor.lab import frame

SCRIPT = """
import json, os, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
steps, width = int(sys.argv[1]), int(sys.argv[2])
model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(32 * steps, width)), batch_size=32)
waiting = os.open("/proc/self/schedstat", os.O_RDONLY)
times = []
for (x,) in loader:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    delay = int(os.pread(waiting, 64, 0).split()[1])
    times.append((time.perf_counter_ns() - delay, time.thread_time_ns()))
settled = times[60:]
walls = [b[0] - a[0] for a, b in zip(settled, settled[1:])]
cpu = (settled[-1][1] - settled[0][1]) / (len(settled) - 1)
whole = (times[-1][0] - times[0][0]) / (len(times) - 1)
middle = sorted(walls)[len(walls) // 2]
print(json.dumps({"step_us": middle / 1e3, "cpu_us": cpu / 1e3, "all_us": whole / 1e3}))
"""


def run(script: Path, runs: Path, options: argparse.Namespace, *, is_profiled: bool) -> Any:
    """Run the script, with or without the profiler, and return what it measured."""
    command = [sys.executable, str(script), str(options.steps), str(options.width)]
    if is_profiled:
        # A rule that never settles: every run is recorded to its end.
        profile = ["profile", "-q", "--for", "10m", "--precise", "--runs", str(runs), "--"]
        command = [*frame.ADVISOR, *profile, *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout)


def main() -> None:
    options = frame.options(__doc__, {"--rounds": 6, "--steps": 2400, "--width": 800})
    ratios: dict[str, list[float]] = {"step_us": [], "cpu_us": [], "all_us": []}
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "steps.py"
        script.write_text(SCRIPT)
        for number in range(options.rounds):
            pair = {
                is_profiled: run(script, Path(name) / "runs", options, is_profiled=is_profiled)
                for is_profiled in frame.in_turns(number)
            }
            for key, values in ratios.items():
                values.append(pair[True][key] / pair[False][key])
            print(
                f"round {number + 1}: step {pair[False]['step_us']:.0f} us alone, "
                f"{pair[True]['step_us']:.0f} profiled: {ratios['step_us'][-1]:.4f}; "
                f"CPU {ratios['cpu_us'][-1]:.4f}, all steps {ratios['all_us'][-1]:.4f}",
                flush=True,
            )
    for key, values in ratios.items():
        spread = f"{min(values):.4f} to {max(values):.4f}"
        print(f"{key}: median ratio {statistics.median(values):.4f} ({spread})")


if __name__ == "__main__":
    main()
