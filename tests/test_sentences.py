"""Sentences of answers are true: read back by a reader that knows the record and English alone."""

from __future__ import annotations

import re
import shlex
from typing import Any

import numpy as np
import pytest
from documentation import ROOT

from advisor.catalogue import Catalogue
from advisor.estimate.predictor import Predictor
from advisor.lab.experiments.sentences import (
    contradictions,
    drawn_answer,
    questions,
    thinned,
    tried,
)
from advisor.words import SCREEN_LINES, listed
from advisor.words.recommendation import text

# Thirty priced offers; an answer takes about a second of computing.
OFFERS = 30


def drawn(number: int, seed: int = 0) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return records of drawn answers, with what was asked."""
    random = np.random.default_rng(seed)
    made = (drawn_answer(random) for _ in range(number))
    return [(answer.to_record(), asked) for answer, asked in made]


def test_nothing_that_drawn_answers_say_contradicts_their_rows() -> None:
    for record, asked in drawn(200):
        assert contradictions(record, asked) == [], asked


@pytest.mark.parametrize("number", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_nothing_that_an_answer_says_contradicts_its_record(number: int) -> None:
    predictor = Predictor(thinned(Catalogue.load(with_overrides=False), OFFERS))
    said = 0
    for asked in questions(number, seed=4, root=ROOT):
        sentences, found = tried(asked, predictor, with_changes=False)
        assert found == [], asked
        said += len(sentences)
    assert said >= number


def changed(record: dict[str, Any], place: int) -> dict[str, Any]:
    """Return the change at a place: the first saves most, those behind it name rows."""
    one = listed(record)[place]
    do = "load with DataLoader(num_workers=4, pin_memory=True, persistent_workers=True)"
    if place:
        do = f"without DDP or FSDP in the script, take #{one['rank']} (advisor plan prints it)"
    figures = {name: one[name] for name in ("training_time_h", "cost_usd")}
    return {"name": "ddp", "do": do, "pick": None, **figures}


@pytest.mark.parametrize("width", [60, 80, 120])
def test_what_saves_most_stands_and_no_change_is_cut_in_a_pipe(width: int) -> None:
    """On a screen the first change; in pipes all, with the command that asks more in one piece."""
    command = ["advisor", "recommend", "--region", "us east", "--budget", "5"]
    for record, asked in drawn(200, seed=7):
        record["changes"] = [changed(record, place) for place in range(len(listed(record)))]
        screen, pipe = (
            [line for line, _ in text(record, width=width, command=command, is_screen=is_screen)]
            for is_screen in (True, False)
        )
        said, whole = (" ".join(" ".join(lines).split()) for lines in (screen, pipe))
        assert all(" ".join(one["do"].split()) in whole for one in record["changes"]), asked
        assert all(" ".join(one["do"].split()) in said for one in record["changes"][:1]), asked
        assert len(screen) <= SCREEN_LINES + 2 or width < 80, asked
        for lines in (screen, pipe):
            shown = {
                line.lstrip("> ").split()[0] for line in lines if re.match(r"[> ] ?\d+ ", line)
            }
            assert set(re.findall(r"#(\d+)", " ".join(lines))) <= shown, asked
            place = next((i for i, line in enumerate(lines) if "advisor recommend" in line), None)
            assert place is not None or lines is screen or not listed(record)
            if place is not None:
                name, *words = shlex.split("\n".join(lines[place:]).replace("\\\n", " "))
                assert (name, words[:-2]) == ("More", command)
                assert words[-2] == "--explain"
                assert int(words[-1]) in [one["rank"] for one in record["front"]]


# A false sentence of every kind: the true one is changed as the pattern says.
FALSE = {
    "rent": (r"Rent \d+", "Rent 7"),
    "standing": (r"\$[\d.,]+", "$0.00123"),
    "faster": (r"twice as fast|[\d.,]+ (%|times) faster", "88 times faster"),
    "cheaper": (r"half the price|\d+ % cheaper", "98 % cheaper"),
    "here": (r"take [\d.,]+", "take 12,345"),
    "stay": (r"machine: [\d.,]+", "machine: 12,345"),
    "too_short": (r"takes [\d.,]+", "takes 0.123"),
    "error": (r"\d+ % \(held", "99 % (held"),
    "deadline_missed": (r"\d+ %", "101 %"),
}


def test_the_reader_sees_a_false_sentence_of_every_kind() -> None:
    seen = set()
    for record, asked in drawn(300):
        for place, claim in enumerate(record["claims"]):
            kind = claim["kind"]
            if kind not in FALSE:
                continue
            lie = re.sub(*FALSE[kind], claim["text"])
            if lie == claim["text"] or "over" in lie:  # a bound that is lower is true as well
                continue
            summary = [*record["summary"]]
            summary[place] = lie
            if any(lie in one for one in contradictions({**record, "summary": summary}, asked)):
                seen.add(kind)
            else:
                assert kind == "rent", lie  # seven devices may be what is rented
    assert seen == set(FALSE)


def test_the_reader_refuses_a_sentence_that_it_does_not_know() -> None:
    record, asked = next((r, a) for r, a in drawn(50) if r["summary"])
    for said in ("For 84% of the money it takes 1.7 times as long (#1).", "It is fast."):
        found = contradictions({**record, "summary": [*record["summary"], said]}, asked)
        assert any(one.startswith("no known form") for one in found)


def test_a_claim_that_its_rows_contradict_is_found() -> None:
    found = 0
    for record, asked in drawn(60):
        for claim in record["claims"]:
            if claim["time_factor"] is not None:
                wrong = {**claim, "time_factor": 1.01 * claim["time_factor"]}
                claims = [wrong if one is claim else one for one in record["claims"]]
                said = contradictions({**record, "claims": claims}, asked)
                assert any("time factor" in one for one in said)
                found += 1
    assert found > 10


def test_the_pick_that_keeps_the_deadline_is_not_told_to_take_another() -> None:
    """Seen: "to keep the deadline take #4" where the pick keeps it, and #4 takes the whole day."""
    kept = 0
    for record, asked in drawn(300):
        pick = record["picks"].get("best_value")
        rows = {one["rank"]: one for one in record["front"]}
        if "deadline" not in asked or pick not in rows:
            continue
        if rows[pick]["late_probability"] <= 1 - asked.get("confidence", 0.9):
            kept += 1
            assert not any(one["kind"].startswith("deadline") for one in record["claims"])
    assert kept > 10


def test_nothing_slower_is_said_to_pay_off_beside_this_machine() -> None:
    """Seen: "renting pays off where it halves the time: #4 takes 41.9 d" beside 33 d here."""
    stays = 0
    for record, _ in drawn(400):
        if record["picks"].get("best_value") != "here":
            continue
        here = record["here"]["training_time_h"]["value"]
        for claim in record["claims"]:
            if claim["kind"] == "faster":
                row = record["front"][claim["row"] - 1]
                assert row["training_time_h"]["value"] < here
                stays += 1
    assert stays > 10
