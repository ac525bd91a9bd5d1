"""Fit of what quantised frozen weights add to a step, on published runs.

    python -m advisor.lab.experiments.quantised

A pair of runs says what weights of few bits take more than the same run in 16 bits; a run without
a pair is compared with the whole answer. Both are asked of the command, as people type them. Every
run asks for one number of its kernel (``decoded_flop`` of 4 bits, ``element_bytes`` of 8), a
source for the geometric mean of its runs, and the fit is that of its sources. Sources are left
out in turn.

GPTQ's runs are shown and not fitted: ``load_in_4bit`` and ``load_in_8bit`` run bitsandbytes'
kernels. Those on a desktop (``rtx4080``) are two or three steps, and scored only. Of generating
one token (``bnb-decode``) each says the number by itself: what a weight takes, times the card's
rate of arithmetic.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from statistics import mean, median, stdev
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from advisor import data
from advisor.lab.fit.layout_rows import known_part
from advisor.lab.score.typed import ask, asking_alone
from advisor.planners.step import KERNELS

FITTED: Final[Mapping[int, str]] = {4: "decoded_flop", 8: "element_bytes"}
_GRID: Final = {4: np.geomspace(4, 200, 7), 8: np.geomspace(10, 900, 7)}
_KINDS: Final = {4: ("nf4", "nf4-double"), 8: ("llm.int8",)}
_SCORED_ONLY: Final = "rtx4080"
_DECODE: Final = "forward"  # in place of a way to recompute


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One published run, and the same in 16 bits where there is one [s]."""

    name: str
    group: str
    kernel: str
    bits: int
    row: Mapping[str, str]
    quantised_s: float
    base_s: float | None

    @property
    def is_fitted(self) -> bool:
        return self.kernel in _KINDS[self.bits] and self.group != _SCORED_ONLY

    def told(self, bits: int) -> tuple[float, float, float]:
        """Return the product's answer for some bits: value, low and high [s]."""
        row = self.row
        recompute = row["base_recompute"] if bits == 16 else row["recompute"]
        said = ask(
            " ".join(f"--{name.replace('_', '-')} {row[name]}" for name in (
                "layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary", "lora",
                "micro_batch", "sequence", "gpu",
            ))
            .join(("predict ", f" --batch {int(row['micro_batch']) * int(row['accumulation'])} "))
            + ("--gated " if row["gated"] == "1" else "")
            + ("--precision fp16 " if self.kernel == "llm.int8" else "")
            + f"--base-bits {bits} --recompute {recompute} --total-steps 100"
        )  # fmt: skip
        if said.record is None:
            return math.nan, math.nan, math.nan
        step = said.record["step_time_s"]
        return step["value"], step["low"], step["high"]

    def expected(self) -> tuple[float, float, float]:
        """Return the quantised run as the product has it, from the run in 16 bits if it can."""
        told, low, high = self.told(self.bits)
        if self.base_s is None:
            return told, low, high
        base = _of_base(self)
        # a thread that says a ratio alone, or what is added to a run that was measured
        value = told / base if self.base_s == 1 else self.base_s + told - base
        return value, low * value / told, high * value / told

    def asks_for(self) -> float:
        """Return the number with which the product tells the run; nan where none does."""
        if self.row["recompute"] == _DECODE:
            return self._by_itself()
        found = []
        for number in _GRID[self.bits]:
            with _with_number(self.bits, float(number)):
                found.append(self.expected()[0])
        if not found[0] < self.quantised_s < found[-1]:
            return math.nan
        return float(np.exp(np.interp(self.quantised_s, found, np.log(_GRID[self.bits]))))

    def _by_itself(self) -> float:
        part, row = known_part(self.row["gpu"]), {k: float(v) for k, v in self._sizes().items()}
        if self.bits != 4 or part is None or self.base_s is None:
            return math.nan
        kv = row["kv_heads"] / row["heads"]
        matrices = 2 + row["gated"]
        layer = row["hidden"] * (2 * row["hidden"] * (1 + kv) + matrices * row["ffn"])
        added_s = (self.quantised_s - self.base_s) / (layer * row["layers"])
        return added_s * part.elementwise_flop_per_s

    def _sizes(self) -> dict[str, str]:
        named = ("layers", "hidden", "heads", "kv_heads", "ffn", "gated")
        return {name: self.row[name] for name in named}


def _with_number(bits: int, number: float | None) -> Any:
    """Return a context in which a kernel has a number; None leaves the product's."""
    said: dict[str, Any] = {} if number is None else {FITTED[bits]: number}
    return patch.dict(KERNELS, {bits: replace(KERNELS[bits], **said)})


@cache
def _of_base(run: Run) -> float:
    return run.told(16)[0]


def read() -> list[Run]:
    """Return the runs of the table."""
    path = data.root("datasets") / "measurements" / "quantised" / "steps.csv"
    with path.open(newline="") as file:
        return [
            Run(
                name=row["id"], group=row["group"], kernel=row["kernel"], bits=int(row["bits"]),
                row=row, quantised_s=float(row["quantised_s"]),
                base_s=float(row["base_s"]) if row["base_s"] else None,
            )
            for row in csv.DictReader(file)
        ]  # fmt: skip


def fit(asked: list[tuple[Run, float]], without: str = "") -> float:
    """Return the number of a kernel by the sources that are not left out."""
    by_group: dict[str, list[float]] = {}
    for run, number in asked:
        if run.is_fitted and run.group != without and not math.isnan(number):
            by_group.setdefault(run.group, []).append(math.log(number))
    return math.exp(mean(mean(found) for found in by_group.values()))


def score(runs: list[Run], numbers: Mapping[str, float]) -> list[tuple[Run, float, bool]]:
    """Return ln(told / measured) of every training run, and whether its interval holds it.

    ``numbers``: by source; those of the product where there is none.
    """
    found: list[tuple[Run, float, bool]] = []
    for run in runs:
        if run.row["recompute"] == _DECODE:
            continue
        with _with_number(run.bits, numbers.get(f"{run.bits} {run.group}")):
            value, low, high = run.expected()
        found.append((run, math.log(value / run.quantised_s), low <= run.quantised_s <= high))
    return found


def _table(title: str, found: list[tuple[Run, float, bool]]) -> None:
    print(title)
    for kernel in sorted({run.kernel for run, _, _ in found}):
        for group in sorted({run.group for run, _, _ in found if run.kernel == kernel}):
            here = [(e, ok) for run, e, ok in found if (run.kernel, run.group) == (kernel, group)]
            _line(f"  {kernel:11}{group:13}", here)
    for bits in FITTED:
        _line(f"  {bits} bits, all{'':13}", [(e, ok) for run, e, ok in found if run.bits == bits])


def _line(name: str, found: list[tuple[float, bool]]) -> None:
    errors = [abs(math.expm1(error)) for error, _ in found if not math.isnan(error)]
    if not errors:
        return
    inside = sum(ok for error, ok in found if not math.isnan(error))
    signed = [error for error, _ in found if not math.isnan(error)]
    print(
        f"{name} {len(errors):3} runs, median {100 * median(errors):5.1f} %, mean"
        f" {100 * mean(errors):5.1f} %, bias {100 * math.expm1(mean(signed)):+6.1f} %,"
        f" inside {inside}/{len(errors)}"
    )


def main() -> None:
    """Print the fit, every source's own number, and the errors with its source left out."""
    with asking_alone():
        runs = read()
        numbers: dict[str, float] = {}
        for bits, name in FITTED.items():
            asked = [(run, run.asks_for()) for run in runs if run.bits == bits]
            for run, number in asked:
                print(f"  {run.name:28}{run.kernel:11} asks for {number:8.1f}")
            print(f"{name}: {fit(asked):.1f}; the product's: {getattr(KERNELS[bits], name)}")
            for group in sorted({run.group for run, _ in asked}):
                numbers[f"{bits} {group}"] = fit(asked, without=group)
                print(f"  without {group}: {numbers[f'{bits} {group}']:.1f}")
        _table("with the product's numbers", score(runs, {}))
        found = score(runs, numbers)
        _table("held-out sources", found)
        for bits in FITTED:
            left = [e for run, e, _ in found if run.bits == bits and run.is_fitted]
            print(f"{bits} bits: one deviation of ln(error) {stdev(left):.2f}")


if __name__ == "__main__":
    main()
