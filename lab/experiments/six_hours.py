"""What it takes to read a long recording, and to recommend from it.

    python -m advisor.lab.experiments.six_hours

A SYNTHETIC recording: it is written in the file format of a recording, by nobody who trained
anything. A recorded run of the machine lends it everything but the readings and the steps; these
are as many as ``--hours`` give at ``--steps-per-s``, with the readings that the sampler takes
(five a second in the first minute, one a second afterwards).
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import sys
import tempfile
from pathlib import Path

from advisor.collectors.derive.store import latest_run, read_recording
from advisor.collectors.format.records import EVENT_FILES, PROFILER_FILE, parse, parse_json
from advisor.collectors.hooks import format as fmt
from advisor.lab import frame

SCRIPT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
data = torch.utils.data.TensorDataset(torch.randn(2000, 64), torch.randn(2000, 8))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(50):
    for x, y in torch.utils.data.DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
"""


def record(folder: Path) -> Path:
    """Record a short run, which lends the synthetic one its facts."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    runs = str(folder / "runs")
    frame.run_s([*frame.ADVISOR, "profile", "-q", "--for", "5s", str(script)], ADVISOR_RUNS=runs)
    return latest_run(folder / "runs")


def lengthen(run: Path, hours: float, steps_per_s: float, seed: int = 0) -> None:
    """Rewrite a run's files as if it had gone on for ``hours``."""
    rng = random.Random(seed)
    start_ns = _lengthen_readings(run / PROFILER_FILE, hours, rng)
    for path in run.glob(EVENT_FILES):
        _lengthen_steps(path, start_ns, int(hours * 3600 * steps_per_s), 1e9 / steps_per_s, rng)


def _lengthen_readings(path: Path, hours: float, rng: random.Random) -> int:
    frames = [(kind, payload) for kind, payload, _ in parse(path.read_bytes())]
    start_ns: int = next(parse_json(p)["t_ns"] for kind, p in frames if kind == fmt.HEADER)
    first = next(p for kind, p in frames if kind == fmt.READING)
    values = list(fmt.READING_PAYLOAD.unpack_from(first))
    seconds = [0.2 * i for i in range(300)] + [60.0 + i for i in range(int(hours * 3600) - 60)]
    made = [fmt.framed(kind, p) for kind, p in frames if kind not in (fmt.READING, fmt.END)]
    for t_s in seconds:
        values[0] = start_ns + int(1e9 * t_s)
        values[2] = int(1e9 * t_s * rng.uniform(0.98, 1.0))
        made.append(fmt.framed(fmt.READING, fmt.READING_PAYLOAD.pack(*values)))
    end = next((parse_json(p) for kind, p in frames if kind == fmt.END), {})
    end["t_ns"] = start_ns + int(hours * 3600e9)
    made.append(fmt.framed(fmt.END, json.dumps(end).encode()))
    path.write_bytes(b"".join(made))
    return start_ns


def _lengthen_steps(
    path: Path, start_ns: int, steps: int, step_ns: float, rng: random.Random
) -> None:
    frames = [(kind, payload) for kind, payload, _ in parse(path.read_bytes())]
    made = [fmt.framed(kind, p) for kind, p in frames if kind in (fmt.HEADER, fmt.FACT)]
    loader = next((p for kind, p in reversed(frames) if kind == fmt.LOADER), None)
    t_ns = float(start_ns + 2_000_000_000)
    for index in range(1, steps + 1):
        t_ns += step_ns * rng.gauss(1.0, 0.02)
        flags = fmt.FLAG_COMPLETES | (fmt.FLAG_BOUNDARY if index % 2500 == 1 else 0)
        values = (int(t_ns), index * 1000, index, fmt.CLOCK_OPTIMIZER, flags, 0, 1, 1, 50, 8, 0)
        if loader is not None and index % max(1, int(1e9 / step_ns)) == 0:  # once a second
            made.append(fmt.framed(fmt.LOADER, struct.pack("<Q", int(t_ns)) + loader[8:]))
        made.append(fmt.framed(fmt.STEP, fmt.STEP_PAYLOAD.pack(*values)))
    path.write_bytes(b"".join(made))


def main() -> None:
    """Make the recording and time ``recommend`` on it and on the short one."""
    options = frame.options(__doc__, {
        "--hours": 6.0, "--steps-per-s": 20.0, "--times": 3,
        "--keep": (Path, "folder to leave the recording in"),
    })  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="six-hours-"))
    try:
        short = record(folder)
        long = (options.keep or folder) / "long"
        shutil.copytree(short, long)
        lengthen(long, options.hours, options.steps_per_s)
        derived = read_recording(long)
        clock = derived.step_time
        size = sum(path.stat().st_size for path in long.iterdir()) / 2**20
        sys.stdout.write(
            f"SYNTHETIC: {options.hours:g} h, {len(derived.readings)} readings, "
            f"{0 if clock is None else clock.steps} steps, {size:.1f} MiB\n"
        )
        for name, run in (("the short run", short), ("the long run", long)):
            command = [*frame.ADVISOR, "recommend", "--run", str(run), "--total-steps", "1M"]
            took = min(frame.run_s(command).cpu_s for _ in range(options.times))
            sys.stdout.write(f"recommend from {name}: {took:.2f} CPU-s\n")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
