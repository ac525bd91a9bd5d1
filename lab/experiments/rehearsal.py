"""How many GPU scripts are rehearsed unchanged, and what that costs: ``lab/scripts/gpu``.

    python -m advisor.lab.experiments.rehearsal [--python PYTHON] [NAME ...]
    python -m advisor.lab.experiments.rehearsal --sizes

Every script is one that trains on CUDA, re-made by its structure. A script passes if a whole step
of it was traced. ``--python`` names an interpreter that has the packages that some of them need
(transformers, peft, bitsandbytes, lightning, accelerate). ``--sizes`` rehearses one Llama script
at four sizes, and 70B under FSDP2 on 64 ranks.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from advisor.collectors.format import Recording
from advisor.collectors.run import profile, rehearsed

SCRIPTS = Path(__file__).parents[1] / "scripts" / "gpu"
# What others import, not scripts themselves.
_PARTS = {"resnet", "gpt"}
_RANKS = {
    "deepspeed_zero3",
    "fsdp2",
    "tensor_parallel",
    "fsdp_tp",
    "fsdp1",
    "ddp_toy",
    "imagenet_nccl",
}
_SIZES = {
    "1B": ("--size", "1b"),
    "7B": ("--size", "7b"),
    "70B": ("--size", "70b"),
    "405B": ("--size", "405b"),
    "70B, FSDP2, one of 64 ranks": ("--size", "70b", "--fsdp"),
}


def main() -> None:
    """Rehearse the scripts that are named, all by default, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--sizes", action="store_true")
    given = parser.parse_args()
    names = given.names or sorted(p.stem for p in SCRIPTS.glob("*.py") if p.stem not in _PARTS)
    cases = {name: (name, ()) for name in names}
    if given.sizes:
        cases = {size: ("llama", words) for size, words in _SIZES.items()}
    columns = ("script", "rehearsed", "parameters", "Gflop", "peak [MiB]", "CPU [s]", "wall [s]")
    table = Table(*columns, "host memory [MiB]")
    passed = 0
    for case, (name, words) in cases.items():
        seen, wall_s = rehearse(given.python, name, words)
        passed += seen.deep_step is not None
        table.add_row(case, *_row(seen), f"{wall_s:.1f}", f"{seen.peak_rss_bytes / 2**20:,.0f}")
    console = Console()
    console.print(table)
    console.print(f"{passed} of {len(cases)} rehearsed")


def rehearse(python: str, name: str, words: tuple[str, ...]) -> tuple[Recording, float]:
    """Return the recording of a script, and how long it took [s]."""
    ranks = 64 if "--fsdp" in words else 8 if name in _RANKS else 1
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        seen = profile(
            [python, str(SCRIPTS / f"{name}.py"), *words],
            run_root=Path(folder),
            limit_s=150.0,
            measure_host=False,
            rehearsal=rehearsed(when="always", devices=min(ranks, 8), ranks=ranks),
        )
    return seen, time.monotonic() - begin_s


def _row(seen: Recording) -> tuple[str, ...]:
    deep, rehearsal = seen.deep_step, seen.rehearsal
    cpu_s = f"{seen.readings[-1].cpu_s:.1f}" if seen.readings else ""
    if deep is None or rehearsal is None:
        return f"no: {seen.stop_reason}", "", "", "", cpu_s
    flop = sum(one.flop for one in deep.operators)
    peak = (rehearsal.peak_bytes or 0) / 2**20
    return "yes", f"{deep.parameters:,}", f"{flop / 1e9:,.0f}", f"{peak:,.0f}", cpu_s


if __name__ == "__main__":
    main()
