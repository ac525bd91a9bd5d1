"""What is picked for thirty jobs: twenty recorded scripts, ten models that were never run.

    python -m advisor.lab.experiments.picks [--runs FOLDER] [--record] [--json FILE]
    python -m advisor.lab.experiments.picks --recipes [--split seen|scored] [--json FILE]

``--record`` profiles the scripts of ``tests/zoo`` for eight seconds each into FOLDER
first, those that are there already left out. Every second script is asked for a million steps in
place of its own minute. A pick is sensible where

* there is exactly one best value, and it names a row of the list, or this machine;
* no row of the whole front, and not this machine, costs a tenth less and is waited for at most a
  tenth longer, or is waited for a tenth less and costs at most a tenth more (upper bounds where
  nothing similar was measured); the wait is that of ``rank.renting``, a person's work in it;
* no row of the list has more machines of another row's type and is less than a tenth faster;
* nothing is rented for what this machine does within ten minutes;
* the answer is one screen: 24 lines of 80 columns.

The regret: the true times of all rows err by 20 % (log-normal, each row its own error, 400 draws);
how much more wait x cost than the best row has the pick, and the first row of the list?

``--recipes`` asks for published trainings (``datasets/measurements/recipes``) on the card that
their makers had, over all providers and up to 128 machines, and holds the number of devices of the
best value against theirs. A recipe on a card that nobody rents is asked on any, and devices are
counted by the catalogue's peaks; one device for one is right. Right is within a factor of two.
The recipes of the split ``seen`` were looked at while the rule was made, those of ``scored`` once
at its end.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from advisor import api, data, recommend
from advisor.answer import Candidate, Recommendation
from advisor.ask import Question
from advisor.catalogue import Catalogue, OfferFilter, parse_gpus
from advisor.errors import AdvisorError, UsageError
from advisor.estimate.predictor import Predictor
from advisor.lab import frame
from advisor.lab.experiments import zoo
from advisor.rank import recommend as rank
from advisor.rank.renting import USUALLY
from advisor.words.recommendation import SCREEN_LINES, text

SCRIPTS: Final = 20
COLUMNS: Final = 80
TENTH: Final = 0.1
TEN_MINUTES_H: Final = 1 / 6
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
    if pick != "here" and here is not None and here.training_time_h.value < TEN_MINUTES_H:
        yield "rented for less than ten minutes"


def _judged(one: Candidate) -> tuple[float, float]:
    """Return wait [h] and cost [USD]: their upper bounds where nothing similar was measured."""
    time, cost = one.training_time_h, one.cost_usd
    t, c = (time.high, cost.high) if one.is_extrapolating else (time.value, cost.value)
    return _waited(one, t), c


def _waited(one: Candidate, time_h: float) -> float:
    """Return the wait that picks judge by [h]; that for this machine takes no work."""
    parts = one.configuration.parts
    machines = sum(0 if offer.pricing == "own" else count for offer, count in parts)
    return float(USUALLY.judged_h("best_value", time_h, machines, one.request_h))


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
    waited = np.array([[_waited(one, t) for t in times]
                       for one, times in zip(rows, (time * error).T, strict=True)]).T  # fmt: skip
    value = waited * cost * error
    least = value.min(axis=1)
    # Where nothing is rented, what would be.
    chosen = answer.picks.get("best_value")
    named = [one for one in answer.front if one.rank == chosen]
    pick = int(
        np.argmin([_waited(one, t) * c for one, t, c in zip(rows, time, cost, strict=True)])
    )
    if named:
        pick = next(i for i, one in enumerate(rows) if one.configuration == named[0].configuration)
    return (
        float(np.mean(value[:, pick] / least - 1)), float(np.mean(value[:, 0] / least - 1)),
    )  # fmt: skip


# Published recipes: the devices of the pick beside those that people used.


MOST_NODES: Final = 128
FACTOR: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One recipe: its devices, and those of the best value, in devices of the recipe's card."""

    recipe: str
    split: str
    card: str
    devices: float
    pick: str
    pick_devices: float
    training_time_h: float
    cost_usd: float
    is_right: bool


def recipes(split: str) -> list[dict[str, str]]:
    """Return the rows of the table; those of one split, or all for ``""``."""
    path = data.root("datasets") / "measurements" / "recipes" / "recipes.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if split in ("", row["split"])]


def question_of(row: dict[str, str], folder: Path, catalogue: Catalogue) -> dict[str, Any]:
    """Return what is asked of a recipe; a model's configuration is written into ``folder``."""
    asked: dict[str, Any] = json.loads(row["question"])
    if row["config"]:
        (folder / "config.json").write_text(row["config"], encoding="utf-8")
        asked["model"] = str(folder)
    gpus = parse_gpus(row["device"])
    if len(catalogue.select(OfferFilter(gpus=gpus))):
        asked["gpus"] = gpus
    return asked | {"max_nodes": MOST_NODES}


def held(row: dict[str, str], predictor: Predictor) -> Held:
    with TemporaryDirectory() as folder:
        asked = question_of(row, Path(folder), predictor.catalogue)
        question = Question.read(asked)
        job = api.job_of(question.job, question.setup, catalogue=lambda: predictor.catalogue)
        answer = rank(job, question.constraints, predictor=predictor)
    chosen = answer.front[int(answer.picks["best_value"]) - 1]
    [(offer, count)] = chosen.configuration.parts
    used, theirs = offer.accelerators * count, float(row["devices"])
    cards = predictor.catalogue.accelerators
    peaks = [
        cards[name].peak_flop_per_s("bf16") or cards[name].peak_flop_per_s("fp16") or 0.0
        for name in (str(offer.accelerator), *predictor.catalogue.matching_gpus(row["device"]))
    ]
    counted = used if "gpus" in asked else used * peaks[0] / peaks[1]
    ratio = max(counted / theirs, theirs / counted)
    return Held(
        recipe=row["recipe"], split=row["split"], card=row["device"], devices=theirs,
        pick=f"{count} x {offer.accelerators:g} {offer.accelerator}, {offer.provider}",
        pick_devices=counted, training_time_h=chosen.training_time_h.value,
        cost_usd=chosen.cost_usd.value,
        is_right=ratio <= FACTOR or (used == theirs == 1.0),
    )  # fmt: skip


def hold_recipes(split: str, file: Path | None) -> None:
    """Ask for the recipes, and print what was picked beside what people used."""
    predictor, found = Predictor(), []
    for row in recipes(split):
        one = held(row, predictor)
        found.append(one)
        print(
            f"{one.recipe:28} {one.split:6} {one.devices:5g} {one.card:11} "
            f"{one.pick_devices:7.3g}  {one.pick:42} {one.training_time_h:8.3g} h "
            f"{one.cost_usd:10.2f} USD {'' if one.is_right else '  not within a factor of two'}",
            flush=True,
        )
    for name in dict.fromkeys(one.split for one in found):
        own = [one.is_right for one in found if one.split == name]
        print(
            f"{name}: {sum(own)} of {len(own)} within a factor of two ({sum(own) / len(own):.0%})"
        )
    frame.write_json(file, [asdict(one) for one in found])


def main() -> None:
    words = {"--runs": Path(".advisor/runs"), "--record": False, "--json": Path,
             "--recipes": False, "--split": ""}  # fmt: skip
    given = frame.options(__doc__, words)
    if given.recipes:
        hold_recipes(given.split, given.json)
        return
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
