"""What the stragglers room says, beside what is true: published workers, and two real ranks.

    python -m advisor.lab.experiments.stragglers published
    python -m advisor.lab.experiments.stragglers default
    python -m advisor.lab.experiments.stragglers ranks   # root: one of two gloo ranks has a quota
    python -m advisor.lab.experiments.stragglers selection   # what choosing samples takes

``ranks`` profiles two ranks of one script under torchrun (``advisor profile --workers 2``), the
second with half a core, asks ``advisor advise --on here`` about that recording, and runs the
batches that it says. Groups outrank their neighbours: the quota and not the load makes the
straggler.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from advisor import data
from advisor.collectors.derive.store import read_recording
from advisor.collectors.format.recording import Recording
from advisor.collectors.watch.benchmark import measure
from advisor.lab import data as measurements
from advisor.lab import frame, score
from advisor.lab.experiments.zoo import advisor
from advisor.lab.fit.scaling import fit_without_each
from advisor.lab.minicloud.limits import cpu_group
from advisor.lab.score import scaling
from advisor.planners.links.gradients import ScalingParameters
from advisor.planners.systems.rank_spread import measured_spread
from advisor.planners.systems.similar_samples import representatives, selection_s
from advisor.planners.systems.stragglers import (
    UnlikeRanks,
    asynchronous,
    backed_up,
    dropped,
    rebalanced,
    unlike_ranks,
)

SCRIPT = Path(__file__).with_name("unlike_ranks.py")
QUOTA = 0.5
BATCH = 256
MENDED = ("uneven-batches", "drop-near-duplicates")


def published() -> None:
    """Print the spreads of Alibaba's jobs, and what would mend its four jobs of known workers."""
    spread = measurements.STRAGGLERS.read("spread_by_job", data.root("datasets"))
    print(
        f"{len(spread)} jobs, {spread['iterations'].sum()} iterations: median spread by job "
        f"{spread['spread_median'].median():.1%} (p90 {spread['spread_median'].quantile(0.9):.0%})"
        f", lag-1 {spread['spread_lag1'].median():.2f}"
    )
    table = measurements.STRAGGLERS.read("workers", data.root("datasets"))
    for job in sorted(table["job"].unique()):
        its = table[table["job"] == job]
        wide = its.pivot_table(index="iteration", columns="worker", values="batch_time_fraction")
        own = wide.dropna().to_numpy()
        found = measured_spread(own)
        last = np.abs(np.diff(own, axis=0)).mean() / np.abs(own - own.mean(axis=0)).mean()
        ranks = UnlikeRanks(own_s=own, batches=np.full(own.shape[1], 1024.0))
        gains = {
            "rebalance": rebalanced(ranks).gain,
            "drop": dropped(ranks, choosing_s=0.0).gain,
            "one backup": backed_up(ranks, 1).gain,
            "async": asynchronous(ranks).gain,
        }
        words = ", ".join(f"{name} {gain:+.1%}" for name, gain in gains.items())
        print(
            f"job {job}: stays {found.staying_fraction:.1%}, passes {found.passing_fraction:.1%}, "
            f"lag-1 {found.lag1:.2f}, last step's error {last:.2f} of the mean's; "
            f"samples/s {words}"
        )


def default() -> None:
    """Print the errors on clusters left out with other spreads than the fitted one."""
    fitted = fit_without_each
    for spread in (None, 0.0, 0.031, 0.086):

        def fit(*asked: Any, spread: float | None = spread) -> dict[str, ScalingParameters]:
            found = fitted(*asked)
            if spread is None:
                return found
            return {k: replace(one, straggler_sd_fraction=spread) for k, one in found.items()}

        with mock.patch.object(scaling, "fit_without_each", fit):
            record = score.run("scaling-nominal", data.root("datasets")).to_record()
        errors = record["overall"]
        print(
            f"spread {'fitted' if spread is None else spread}: mean "
            f"{errors['mape_fraction']:.1%}, median {errors['median_ape_fraction']:.1%}"
        )


def ranks(rounds: int) -> None:
    """Print what was said of mended batches, and what they took: medians of rounds, in turns."""
    print(f"load {os.getloadavg()[0]:.1f}")
    with contextlib.ExitStack() as stack:
        free = stack.enter_context(cpu_group("free", quota=None))
        held = stack.enter_context(cpu_group("held", quota=QUOTA))
        groups = (str(free.path), str(held.path))
        for group in (free, held):
            group.outrank_others()
        even = (BATCH, BATCH)
        _, seen, said = measured(even, groups, is_asked=True)
        found = unlike_ranks(
            seen.steps_by_rank, seen.wait_by_step, batch=BATCH,
            exchange_s=(seen.communication or {}).get("exchange_s_per_step", 0.0),
        )  # fmt: skip
        ways = {one["name"]: one["details"] for one in said if one["name"] in MENDED}
        arms = {"now": even} | {
            name: tuple(int(size) for size in way["batches"]) for name, way in ways.items()
        }
        took: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(rounds):
            for name, batches in arms.items():
                took[name].append(measured(batches, groups)[0])
    steps = {name: statistics.median(its) for name, its in took.items()}
    own = found.own_s.mean(axis=0).round(4).tolist()
    print(f"own {own} s, exchange {found.exchange_s:.4f} s, load {os.getloadavg()[0]:.1f}")
    print(f"advised: {', '.join(one['name'] for one in said)}")
    print(f"now {even}: {_beside(found.step_s, steps['now'])}")
    for name, way in ways.items():
        # The script chooses at random: what choosing by likeness takes is said apart.
        step_s = way["step_s"] - way.get("choosing_s", 0.0)
        rate = way["samples_fraction"] * steps["now"] / steps[name] - 1
        print(
            f"{name} {arms[name]}: {_beside(step_s, steps[name])}; samples/s said "
            f"{way['samples_fraction'] * found.step_s / step_s - 1:+.1%}, measured {rate:+.1%}; "
            f"choosing said to take {way.get('choosing_s', 0.0):.4f} s"
        )


def selection(rounds: int) -> None:
    """Print what choosing representatives takes on one core at best, and what is said of it."""
    core = measure()
    print(f"load {os.getloadavg()[0]:.1f}\n| samples | numbers | kept | said | measured | |")
    print("|---|---|---|---|---|---|")
    for count, size, kept in ((64, 768, 32), (128, 256, 96), (256, 768, 196), (256, 3072, 128),
                              (500, 64, 250), (512, 784, 256), (1024, 64, 512),
                              (64, 150528, 32)):  # fmt: skip
        samples = np.random.default_rng(0).standard_normal((count, size)).astype(np.float32)
        took = []
        for _ in range(3 * rounds):
            began = time.perf_counter()
            representatives(samples, kept)
            took.append(time.perf_counter() - began)
        said = selection_s(
            count, kept, 4.0 * size, flop_per_s=core.matmul_one_core_flop_per_s,
            memory_bytes_per_s=core.copy_one_core_bytes_per_s,
        )  # fmt: skip
        seen = min(took)  # what others hold back is not the choice's
        print(f"| {count} | {size} | {kept} | {1e3 * said:.2f} ms | {1e3 * seen:.2f} ms "
              f"| {said / seen - 1:+.0%} |")  # fmt: skip


def _beside(said_s: float, took_s: float) -> str:
    return f"step said {said_s:.4f}, measured {took_s:.4f} s ({said_s / took_s - 1:+.1%})"


def measured(
    batches: Sequence[int], groups: Sequence[str], *, is_asked: bool = False
) -> tuple[float, Recording, list[dict[str, Any]]]:
    """Profile the script with such batches; return its own step, the recording and advice."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as place:
        folder = Path(place)
        done = advisor(
            folder, "profile", "--quiet", "--for", "1h", "--steps", str(10**9), "--workers", "2",
            str(SCRIPT), "--batches", ",".join(map(str, batches)), "--groups", ",".join(groups),
        )  # fmt: skip
        lines = [one for one in done.stdout.splitlines() if one.startswith("{")]
        if not lines:
            raise RuntimeError(done.stderr[-500:])
        said = []
        if is_asked:
            told = advisor(folder, "advise", "--on", "here", "--full", "--json")
            said = json.loads(told.stdout)["advice"]
        seen = read_recording(next((folder / "runs").glob("*")))
        return float(json.loads(lines[-1])["step_s"]), seen, said


def main() -> None:
    ways: dict[str, Any] = {"published": published, "default": default, "ranks": ranks,
                            "selection": selection}  # fmt: skip
    asked = frame.options(__doc__, {"what": {"choices": list(ways)}, "--rounds": 3})
    ways[asked.what](*([asked.rounds] if asked.what in ("ranks", "selection") else []))


if __name__ == "__main__":
    main()
