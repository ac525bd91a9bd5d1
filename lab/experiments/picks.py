"""What is picked for thirty jobs: twenty recorded scripts, ten models that were never run.

    python -m advisor.lab.experiments.picks [--runs FOLDER] [--record] [--json FILE]

``--record`` profiles the scripts of ``lab/scripts`` for eight seconds each into FOLDER
first, those that are there already left out. Every second script is asked for a million steps in
place of its own minute. A pick is sensible where

* there is exactly one best value, and it names a row of the list, or this machine;
* no row of the whole front, and not this machine, costs a tenth less and takes at most a tenth
  longer, or takes a tenth less and costs at most a tenth more (upper bounds where nothing similar
  was measured);
* no row of the list has more machines of another row's type and is less than a tenth faster;
* nothing is rented for what this machine does within ten minutes;
* the answer is one screen: 24 lines of 80 columns.

The regret: the true times of all rows err by 20 % (log-normal, each row its own error, 400 draws);
how much more time x cost than the best row has the pick, and the first row of the list?
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from advisor import recommend
from advisor.answer import Candidate, Recommendation
from advisor.errors import AdvisorError, UsageError
from advisor.estimate.predictor import Predictor
from advisor.lab import frame
from advisor.lab.experiments import zoo
from advisor.rank.front import best
from advisor.rank.ranking_rows import TROUBLE_H
from advisor.words.recommendation import SCREEN_LINES, text

SCRIPTS: Final = 20
COLUMNS: Final = 80
TENTH: Final = 0.1
ERROR_SD: Final = 0.2
DRAWS: Final = 400
EARNEST_STEPS: Final = 1_000_000
DESCRIBED: Final[dict[str, dict[str, Any]]] = {
    "GPT-2 small, 5B tokens": {"layers": 12, "hidden": 768, "heads": 12, "tokens": "5B"},
    "GPT-2 XL, 10B": {"layers": 48, "hidden": 1600, "heads": 25, "tokens": "10B"},
    "Llama 7B, 10B": {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 11008, "gated": True,
                      "tokens": "10B"},
    "Llama 7B, LoRA, 20M": {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 11008,
                            "gated": True, "lora": 16, "tokens": "20M"},
    "13B, 1B": {"layers": 40, "hidden": 5120, "heads": 40, "tokens": "1B"},
    "70B, 1B, 16 nodes": {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672,
                          "gated": True, "tokens": "1B", "max_nodes": 16},
    "8 experts of 7B, 1B": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8,
                            "ffn": 14336, "gated": True, "experts": 8, "experts_per_token": 2,
                            "tokens": "1B"},
    "4 layers, 10M": {"layers": 4, "hidden": 256, "heads": 4, "sequence": 256, "tokens": "10M"},
    "ResNet-50, 90 epochs": {"cnn": "224:64:3x256,4x512,6x1024,3x2048:bottleneck",
                             "total_samples": 115e6},
    "ResNet-50, one epoch": {"cnn": "224:64:3x256,4x512,6x1024,3x2048:bottleneck",
                             "total_samples": 1.28e6},
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One job: what was picked, what is wrong with it, how long the answer is, the regrets."""

    job: str
    pick: str
    wrong: tuple[str, ...]
    rows: int
    lines: int
    columns: int
    pick_regret: float
    first_regret: float


def record(folder: Path) -> None:
    """Profile the scripts that are not in the folder yet."""
    here = {path.name for path in folder.glob("*")}
    for script in zoo.scripts():
        name = script.path.stem
        if script.missing or script.path.suffix != ".py" or any(name in one for one in here):
            continue
        command = [*frame.ADVISOR, "profile", "-q", "--for", "8s"]
        told = dict(os.environ, ADVISOR_RUNS=str(folder))
        subprocess.run([*command, *script.words], env=told, check=False, capture_output=True)


def jobs(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the jobs: recorded ones that can be answered, then those described."""
    names = {script.path.stem for script in zoo.scripts()}
    found = [path for path in sorted(folder.glob("*")) if any(one in path.name for one in names)]
    for number, path in enumerate(found):
        # The scripts are examples of a minute; every second one is asked for in earnest.
        longer: dict[str, Any] = {"total_steps": EARNEST_STEPS} if number % 2 else {}
        yield path.name, {"run": str(path), **longer}
    yield from DESCRIBED.items()


def tried(name: str, asked: dict[str, Any], predictor: Predictor, seed: int) -> Tried:
    answer = recommend(predictor=predictor, **asked)
    every = recommend(predictor=predictor, gain=0.0, top=500, **asked)
    shown = [line for line, _ in text(answer.to_record(), width=COLUMNS)]
    lines, columns = len(shown), max(map(len, shown))
    wrong = [*_wrong(answer, every)]
    if lines > SCREEN_LINES or columns > COLUMNS:
        wrong.append(f"{lines} lines of {columns} columns")
    pick, first = _regrets(answer, every, np.random.default_rng(seed))
    return Tried(
        job=name, pick=str(answer.picks.get("best_value")), wrong=tuple(wrong),
        rows=len(answer.front), lines=lines, columns=columns, pick_regret=pick,
        first_regret=first,
    )  # fmt: skip


def _wrong(answer: Recommendation, every: Recommendation) -> Iterator[str]:
    pick = answer.picks.get("best_value")
    by_name: dict[Any, Candidate | None] = {one.rank: one for one in answer.front}
    chosen = (by_name | {"here": answer.here}).get(pick)
    if chosen is None:
        yield "no pick"
        return
    time, cost = _judged(chosen)
    others = [*every.front, *([] if answer.here is None else [answer.here])]
    for other in others:
        t, c = _judged(other)
        cheaper = c < cost * (1 - TENTH) and t <= time * (1 + TENTH)
        faster = t < time * (1 - TENTH) and c <= cost * (1 + TENTH)
        if cheaper or faster:
            yield f"beaten by {other.configuration.parts[0][0].instance_type}"
    for one in answer.front:
        for other in answer.front:
            (offer, count), (less, fewer) = (
                one.configuration.parts[0],
                other.configuration.parts[0],
            )
            gain = other.training_time_h.value / one.training_time_h.value - 1
            if offer.instance_type == less.instance_type and count > fewer and gain < TENTH:
                yield f"{count} machines for {gain:.0%}"
    here = answer.here
    if pick != "here" and here is not None and here.training_time_h.value < TROUBLE_H:
        yield "rented for less than ten minutes"


def _judged(one: Candidate) -> tuple[float, float]:
    """Return time and cost: their upper bounds where nothing similar was measured."""
    if one.is_extrapolating:
        return one.training_time_h.high, one.cost_usd.high
    return one.training_time_h.value, one.cost_usd.value


def _regrets(
    answer: Recommendation, every: Recommendation, random: np.random.Generator
) -> tuple[float, float]:
    """Return the mean regret of the pick and of the first row, as shares of the least t c."""
    rows = every.front
    time = np.array([one.training_time_h.value for one in rows])
    cost = np.array([one.cost_usd.value for one in rows])
    if not len(rows):
        return 0.0, 0.0
    error = np.exp(ERROR_SD * random.standard_normal((DRAWS, len(rows))))
    value = (time * error + TROUBLE_H) * cost * error
    least = value.min(axis=1)
    # Where nothing is rented, what would be.
    chosen = answer.picks.get("best_value")
    named = [one for one in answer.front if one.rank == chosen]
    pick = best(time, cost, 1.0)
    if named:
        pick = next(i for i, one in enumerate(rows) if one.configuration == named[0].configuration)
    return (
        float(np.mean(value[:, pick] / least - 1)), float(np.mean(value[:, 0] / least - 1)),
    )  # fmt: skip


def main() -> None:
    words = {"--runs": Path(".advisor/runs"), "--record": False, "--json": Path}
    given = frame.options(__doc__, words)
    if given.record:
        record(given.runs)
    predictor, found, recorded = Predictor(), [], 0
    for seed, (name, question) in enumerate(jobs(given.runs)):
        if "run" in question and recorded == SCRIPTS:
            continue
        try:
            try:
                one = tried(name, question, predictor, seed)
            except UsageError:  # a program has no steps to be asked more of
                one = tried(name, {"run": question["run"]}, predictor, seed)
        except AdvisorError as error:
            print(f"{name:44} left out: {error}", flush=True)
            continue
        recorded += "run" in question
        found.append(one)
        said = "; ".join(one.wrong) or "sensible"
        print(f"{one.job[-44:]:44} {one.pick:>5} {one.rows:3} rows {one.lines:3} lines {said}",
              flush=True)  # fmt: skip
    good = sum(not one.wrong for one in found)
    print(f"{len(found)} jobs ({recorded} recorded): {good} with exactly one sensible pick "
          f"({good / len(found):.0%}); at most {max(o.lines for o in found)} lines of "
          f"{max(o.columns for o in found)} columns")  # fmt: skip
    regret = []
    for name in ("pick", "first"):
        regrets = [getattr(one, f"{name}_regret") for one in found]
        regret.append(f"{np.median(regrets):.0%} (at most {max(regrets):,.0%})")
    print(f"mean regret in time x cost under errors of 20 %, median job: pick {regret[0]}, "
          f"first row of the whole front {regret[1]}")  # fmt: skip
    frame.write_json(given.json, [asdict(one) for one in found])


if __name__ == "__main__":
    main()
