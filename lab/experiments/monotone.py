"""The laws of the pick and of its rows, over random questions.

    python -m advisor.lab.experiments.monotone [--questions N] [--offers N] [--append FILE]

Every question (those of ``sentences``) is answered by ``recommend``, then asked again with what
follows from the answer:

=========  ========================================================================================
kept       a constraint that the pick keeps: another pick is a fault
looser     one of its limits loosened or left out: a pick of greater worth (T^w (c + s E), as
           ``advisor.rank.renting`` has it; less is better) is a fault
beaten     a row of the list that is sooner and cheaper than the pick, on no more machines, with no
           wait for an account, that lacks nothing that the pick has: a fault
exported   every row of the list goes to the target that it names; what mixes types of machines
           names none, and no target takes it
=========  ========================================================================================

Left out: ``--cloud``, which also says where somebody has accounts and therefore waits for none;
``--deadline`` beside ``--spot``, which offers plans by the deadline that are there by no other
way; unlike machines, which take ten times as long to search. ``--append FILE`` keeps every answer,
a JSON line each: a run that was ended goes on there.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from advisor.answer import Recommendation
from advisor.api import job_of, ranked
from advisor.ask import Question
from advisor.catalogue import Catalogue
from advisor.errors import AdvisorError
from advisor.estimate import Predictor
from advisor.export import export_to
from advisor.export.target import NotExportableError
from advisor.jobs import Job
from advisor.lab import frame
from advisor.lab.experiments.sentences import questions, thinned
from advisor.planners.core import PlanningError
from advisor.quantities import QUANTILES
from advisor.rank import Renting
from advisor.words import target_of

Record = Mapping[str, Any]
Asked = dict[str, Any]
QUESTIONS: Final = 500
OFFERS: Final = 300
# The confidence of a deadline where none is asked for (docs/answer.md).
CERTAINTY: Final = 0.9
# Deviations that a limit is above what the pick is expected to take: any confidence keeps it.
_FAR: Final = 2.6
_SAME: Final = 1e-9


def answered(asked: Asked, predictor: Predictor) -> tuple[Job, Recommendation] | None:
    """Return the job and the answer; None where the question is refused."""
    try:
        question = Question.read(asked)
        job = job_of(question.job, question.setup, catalogue=lambda: predictor.catalogue)
        return job, ranked(job, question, predictor=predictor, with_changes=False)
    except (AdvisorError, PlanningError):
        return None


def picked(record: Record) -> Record | None:
    """Return the row that is the best value, this machine included; None where nothing is."""
    place = record["picks"].get("best_value")
    if place == "here":
        found: Record = record["here"]
        return found
    return next((one for one in record["front"] if one["rank"] == place), None)


def _sd(one: Record, name: str) -> float:
    """Return the deviation of the logarithm of a quantity of a row."""
    value = one[name]
    if not value["value"] or value["high"] <= value["value"]:
        return 0.0
    return math.log(value["high"] / value["value"]) / float(QUANTILES[value["coverage"]])


def _above(one: Record, name: str) -> float:
    """Return a limit that a row keeps with every confidence that can be asked for."""
    return 1.001 * float(one[name]["value"]) * math.exp(_FAR * _sd(one, name))


def _late(one: Record, deadline_h: float) -> float:
    if one["late_probability"] is not None and not _sd(one, "training_time_h"):
        return float(one["late_probability"])
    sd = max(_sd(one, "training_time_h"), 1e-12)
    return 0.5 * math.erfc(math.log(deadline_h / one["training_time_h"]["value"]) / sd / 2**0.5)


def kept(one: Record, asked: Asked) -> Iterator[Asked]:
    """Yield constraints that a pick keeps, each with its value, where they are tighter."""
    parts, limits = one["configuration"], Asked()
    if not asked.get("spot"):
        limits["deadline"] = _above(one, "training_time_h")
    if one["cost_usd"]["value"]:
        limits["budget"] = _above(one, "cost_usd")
    machines = sum(part["count"] for part in parts)
    limits["max_nodes"] = max(machines, 1)
    for name, value in limits.items():
        if value < asked.get(name, 8 if name == "max_nodes" else math.inf):
            yield {name: value}
    if one["rank"] == 0 or len(parts) > 1:
        return
    (part,) = parts
    if part["accelerator"]:
        yield {"gpus": f"{part['accelerator']}:{part['accelerators_per_instance']:g}"}
    if "region" not in asked:
        yield {"region": part["region"]}
    # Spot machines that on-demand ones stand in for keep no limit that those break.
    if one["completion"] in ("on-demand", "spot", "elastic-spot"):
        yield {"max_price": 1.0001 * part["price_usd_per_h"]}
        yield {"max_hourly": 1.0001 * part["price_usd_per_h"] * machines}
    if part["price_as_of"]:
        yield {"dated": True}
    if asked.get("spot") and part["pricing"] == "on-demand" and "deadline" not in asked:
        yield {"spot": False}
    if machines == 1:
        yield {"known_network": True}


def looser(asked: Asked) -> Iterator[Asked]:
    """Yield the question with one limit loosened or left out."""
    for name in ("budget", "deadline", "max_hourly"):
        if name in asked and not (name == "deadline" and asked.get("spot")):
            yield {**asked, name: 3.0 * asked[name]}
            yield {key: value for key, value in asked.items() if key != name}
    for name in ("gpus", "dated"):
        if name in asked:
            yield {key: value for key, value in asked.items() if key != name}
    if asked.get("max_nodes", 8) < 8:
        yield {**asked, "max_nodes": 8}
    if not asked.get("spot") and "deadline" not in asked:
        yield {**asked, "spot": True}


def is_same(one: Record, other: Record) -> bool:
    """Whether two picks are one machine, or equal in all that is weighed."""
    if one["rank"] == 0 or other["rank"] == 0:
        return (one["rank"] == 0) == (other["rank"] == 0)
    names = ("provider", "instance_type", "region", "pricing", "count")
    parts = [[[p[n] for n in names] for p in x["configuration"]] for x in (one, other)]
    if parts[0] == parts[1] and one["layout"] == other["layout"]:
        return True
    weighed = ("training_time_h", "cost_usd")
    return all(abs(one[n]["value"] / other[n]["value"] - 1) < _SAME for n in weighed)


def worth(one: Record, renting: Renting) -> float:
    """Return what a row is picked by: less is better."""
    end = "high" if one["extrapolating"] else "value"
    machines = sum(part["count"] for part in one["configuration"])
    return float(
        renting.worth(
            "best_value", one["training_time_h"][end], one["doubt"] * one["cost_usd"][end],
            machines, one["request_h"],
        )
    )  # fmt: skip


def _words(one: Record) -> str:
    parts = " + ".join(
        f"{p['count']} x {p['provider']} {p['instance_type']} {p['region']} {p['pricing']}"
        for p in one["configuration"]
    )
    return (
        f"{parts}: {one['training_time_h']['value']:.4g} h, {one['cost_usd']['value']:.4g} USD, "
        f"doubt {one['doubt']:.3g}, wait {one['request_h']:.3g} h"
    )


def kept_faults(pick: Record, asked: Asked, predictor: Predictor) -> Iterator[tuple[str, str]]:
    """Yield constraints that the pick keeps, each with what is wrong with the answer under it."""
    for more in kept(pick, asked):
        found = answered(asked | more, predictor)
        if found is None:  # the two contradict each other: 8 GPUs on one machine of one
            continue
        then = picked(found[1].to_record())
        said = "" if then is not None and is_same(pick, then) else (
            f"kept {more}: {_words(pick)} -> {'nothing' if then is None else _words(then)}"
        )  # fmt: skip
        yield "kept", said


def looser_faults(pick: Record, asked: Asked, predictor: Predictor) -> Iterator[tuple[str, str]]:
    """Yield looser questions, each with what is worse about the pick."""
    renting = Renting.of(Question.read(asked).constraints)
    for other in looser(asked):
        found = answered(other, predictor)
        if found is None:
            continue
        then = picked(found[1].to_record())
        if then is None:
            yield "looser", f"looser {other}: {_words(pick)} -> nothing"
            continue
        deadline_h = other.get("deadline", math.inf)
        is_surer = _late(pick, deadline_h) > 1 - other.get("confidence", CERTAINTY) + 1e-9
        is_rented = pick["rank"] and then["rank"]  # this machine is weighed otherwise
        if not is_rented or is_surer:
            continue
        before, after = worth(pick, renting), worth(then, renting)
        said = f"looser {other}: {_words(pick)} -> {_words(then)}: {before:.5g} -> {after:.5g}"
        yield "looser", said if after > before * (1 + 1e-6) else ""


def beaten_faults(record: Record, pick: Record, asked: Asked) -> Iterator[tuple[str, str]]:
    """Yield the rows of the list, each with why it should have been picked, if it should."""

    def lacks(one: Record) -> tuple[float, ...]:
        machines = sum(part["count"] for part in one["configuration"])
        late = _late(one, asked["deadline"]) if "deadline" in asked else 0.0
        is_late = late > 1 - asked.get("confidence", CERTAINTY)
        return machines, one["request_h"], one["doubt"], one["extrapolating"], is_late

    for one in record["front"]:
        is_better = all(
            one[name]["value"] < pick[name]["value"] * (1 - _SAME)
            for name in ("training_time_h", "cost_usd")
        )
        has_all = all(a <= b for a, b in zip(lacks(one), lacks(pick), strict=True))
        said = f"beaten: {_words(pick)} by #{one['rank']} {_words(one)}"
        # What is rented is work: this machine is left for what is that much sooner.
        yield "beaten", said if is_better and has_all and pick["rank"] else ""


def export_faults(record: Record, job: Job, predictor: Predictor) -> Iterator[tuple[str, str]]:
    """Yield the rows of the list, each with what is wrong with its export."""
    for one in record["front"]:
        named, said = target_of(one), ""
        try:
            made = export_to(record, rank=one["rank"], job=job, predictor=predictor)
            if made.target != named or not made.files:
                said = f"exported: #{one['rank']} names {named!r}, made for {made.target}"
        except NotExportableError as error:
            said = f"exported: {_words(one)}: {error}" if named else ""
        except (AdvisorError, PlanningError) as error:
            said = f"exported: {_words(one)} {one['way']}: {error}"
        yield "exported", said


def faults(asked: Asked, predictor: Predictor) -> list[tuple[str, str]]:
    """Return every law tried at a question, by its name, with what breaks it; mostly nothing."""
    found = answered(asked, predictor)
    if found is None:
        return []
    job, answer = found
    record = answer.to_record()
    tried = [*export_faults(record, job, predictor)]
    if (pick := picked(record)) is not None:
        tried += beaten_faults(record, pick, asked)
        tried += kept_faults(pick, asked, predictor)
        tried += looser_faults(pick, asked, predictor)
    return tried


def main() -> None:
    """Ask, print every fault, and count."""
    given = frame.options(
        __doc__,
        {"--questions": QUESTIONS, "--first": 0, "--seed": 0, "--offers": OFFERS,
         "--append": Path, "--root": Path()},
    )  # fmt: skip
    path: Path | None = given.append
    lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
    known = {one["question"]: one for one in map(json.loads, lines)}
    predictor = Predictor(thinned(Catalogue.load(with_overrides=False), given.offers))
    tried, wrong, answers = Counter[str](), Counter[str](), 0
    for number, drawn in enumerate(questions(given.questions, given.seed, given.root)):
        asked = {**drawn, "mixed": False}
        if number < given.first:
            continue
        one = known.get(number)
        if one is None or one["asked"] != asked:
            one = {"question": number, "asked": asked, "found": faults(asked, predictor)}
            if path:
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(one) + "\n")
        answers += bool(one["found"])
        for law, said in one["found"]:
            tried[law] += 1
            wrong[law] += bool(said)
            if said:
                print(f"{number}: {said}\n    {asked}", flush=True)
    counts = ", ".join(f"{law} {wrong[law]} of {tried[law]}" for law in sorted(tried))
    print(f"{given.questions} questions, {answers} answered; faults: {counts}; {frame.load()}")


if __name__ == "__main__":
    main()
