"""The same scripts recorded as the machine is, and beside two processes that burn.

What everything takes on an idle machine should come out both times; the wall time does not. Shown
for each time of a recording: beside the burners over without them, by the clock and corrected;
and how often the corrected one without burners lies in the interval told beside them. With
``--cores 1`` the scripts, the burners and the profiler share one core; with ``--threads 2`` the
scripts compute with a pool, whose threads wait for each other.

python -m advisor.lab.speed.collector_contention
python -m advisor.lab.speed.collector_contention --script program --rounds 5
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from advisor.collectors.format.recording import Recording
from advisor.collectors.run.runner import profile
from advisor.lab import frame

EXAMPLE = frame.ROOT / "examples" / "digits_cnn.py"

# A loader that costs something, epochs that end in validation and a checkpoint.
LOADING = """
import sys, tempfile, torch
from torch.utils.data import DataLoader, Dataset
class Images(Dataset):
    def __len__(self):
        return 1280
    def __getitem__(self, index):
        image = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(index))
        for _ in range(8):
            image = (image - image.mean()) / image.std()
        return image, index % 10
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 256), torch.nn.ReLU(),
                            torch.nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(100000):
    for image, label in DataLoader(Images(), batch_size=32, num_workers=int(sys.argv[1])):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(image), label).backward()
        optimizer.step()
    with torch.no_grad():
        for image, label in DataLoader(Images(), batch_size=128):
            model(image)
    torch.save(model.state_dict(), tempfile.gettempdir() + "/contention.pt")
"""
PROGRAM = "sum(i * i for i in range(40_000_000))"
SCRIPTS = ("example", "loader", "workers", "program")


@dataclass(frozen=True)
class Told:
    """One time of a recording: by the clock, corrected, and half of its interval [s]."""

    raw_s: float
    corrected_s: float
    half_width_s: float


@dataclass
class Ratios:
    """Beside the burners over without, round by round."""

    raw: list[float] = field(default_factory=list)
    corrected: list[float] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)

    def add(self, alone: Told, beside: Told) -> None:
        """Take in one round; times of nothing compare with nothing."""
        if alone.raw_s <= 0 or alone.corrected_s <= 0:
            return
        self.raw.append(beside.raw_s / alone.raw_s)
        self.corrected.append(beside.corrected_s / alone.corrected_s)
        off = abs(beside.corrected_s - alone.corrected_s)
        self.held.append(off <= beside.half_width_s + alone.half_width_s)

    def __str__(self) -> str:
        def shown(ratios: list[float]) -> str:
            low, high = min(ratios), max(ratios)
            return f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})"

        held = f"{sum(self.held)} of {len(self.held)}"
        return f"raw {shown(self.raw)}, corrected {shown(self.corrected)}, in interval {held}"


def times(seen: Recording) -> dict[str, Told]:
    found = {}
    step, loading, saves = seen.step_time, seen.loading, seen.saves
    if step is not None:
        half = (step.high_s - step.low_s) / 2
        found["step"] = Told(step.raw_s, step.corrected_s, half)
        if loading is not None:
            found["wait"] = Told(loading.raw_wait_s, loading.wait_s, half)
    for name in ("startup", "boundary"):
        raw, told = getattr(seen, f"{name}_raw_s"), getattr(seen, f"{name}_s")
        if raw is not None and told is not None:
            found[name] = Told(raw, told, getattr(seen, f"{name}_half_width_s") or 0.0)
    if saves is not None:
        found["save"] = Told(saves.raw_seconds, saves.seconds, saves.half_width_s)
    if step is None and seen.busy_s is not None:
        half = seen.contention_half_width * seen.busy_s
        found["program"] = Told(seen.duration_s, seen.busy_s, half)
    return found


def command(name: str, folder: Path) -> list[str]:
    """Return what is recorded: the example, a script with a loader, or one without steps."""
    if name == "example":
        return [sys.executable, str(EXAMPLE), "--epochs", "100000"]
    script = folder / f"{name}.py"
    script.write_text(PROGRAM if name == "program" else LOADING)
    return [sys.executable, str(script), "2" if name == "workers" else "0"]


def main() -> None:
    options = frame.options(__doc__, {
        "--rounds": 3, "--seconds": 12.0, "--burners": 2,
        "--cores": (0, "use only so many; 0 for all"),
        "--threads": (1, "of each script's own pool"),
        "--script": {"choices": SCRIPTS, "action": "append"},
    })  # fmt: skip
    if options.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    shown = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the scripts' own lines
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def recorded(what: list[str]) -> dict[str, Told]:
            limit_s = options.seconds
            return times(profile(what, run_root=folder / "runs", limit_s=limit_s,
                                 measure_host=False, is_precise=True))  # fmt: skip

        for script in options.script or SCRIPTS:
            ratios: dict[str, Ratios] = {}
            what = command(script, folder)
            for _ in range(options.rounds):
                alone = recorded(what)
                with frame.burning(options.burners):
                    beside = recorded(what)
                for time in alone.keys() & beside.keys():
                    ratios.setdefault(time, Ratios()).add(alone[time], beside[time])
            for time, its in sorted(ratios.items()):
                if its.raw:
                    os.write(shown, f"{script}, {time}: {its}\n".encode())


if __name__ == "__main__":
    main()
