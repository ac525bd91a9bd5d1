"""Laws of the pick and of its rows, over a few questions of ``lab.experiments.monotone``."""

from __future__ import annotations

from collections import Counter

import pytest
from documentation import ROOT

from advisor.catalogue import Catalogue
from advisor.estimate.predictor import Predictor
from advisor.lab.experiments.monotone import answered, faults, is_same, kept, looser, picked
from advisor.lab.experiments.sentences import questions, thinned

# Priced offers; an answer takes less than a second of computing, a question eight answers.
OFFERS = 30


@pytest.fixture(scope="module")
def few() -> Predictor:
    return Predictor(thinned(Catalogue.load(with_overrides=False), OFFERS))


@pytest.mark.parametrize("number", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_what_a_pick_keeps_changes_nothing_and_what_is_looser_nothing_for_the_worse(
    few: Predictor, number: int
) -> None:
    """And every row that is shown goes to the target that it names."""
    tried = Counter[str]()
    for asked in questions(number, seed=11, root=ROOT):
        for law, said in faults(asked | {"mixed": False}, few):
            tried[law] += 1
            assert said == "", asked
    assert min(tried[law] for law in ("kept", "beaten", "exported")) >= number / 2


def test_spot_machines_that_may_get_dearer_are_judged_alike_as_rows_and_as_picks(
    few: Predictor,
) -> None:
    """Seen: the row that was kept for the pick was not the pick, and without spot it changed."""
    asked = {
        "cnn": "224:64:3x256,4x512,6x1024,3x2048:bottleneck", "total_samples": 4.2e7,
        "batch": 1024, "boot": "0m", "mixed": False,
    }  # fmt: skip
    predictor = Predictor(thinned(Catalogue.load(with_overrides=False), 40))
    picks = []
    for spot in (True, False):
        found = answered({**asked, "spot": spot}, predictor)
        assert found is not None
        picks.append(picked(found[1].to_record()))
    first, second = picks
    assert first is not None
    assert second is not None
    assert first["configuration"][0]["pricing"] == "spot" or is_same(first, second)


def test_kept_constraints_are_tighter_and_looser_questions_ask_less(few: Predictor) -> None:
    asked = {"layers": 12, "hidden": 768, "heads": 12, "tokens": 1e9, "budget": 1e4,
             "deadline": 500.0, "max_nodes": 4, "mixed": False}  # fmt: skip
    found = answered(asked, few)
    assert found is not None
    pick = picked(found[1].to_record())
    assert pick is not None
    more = {name: value for one in kept(pick, asked) for name, value in one.items()}
    assert {"deadline", "budget"} <= set(more) or pick["rank"] == 0
    for name in ("deadline", "budget", "max_nodes"):
        assert more.get(name, 0) < asked[name]
    for other in looser(asked):
        assert all(other.get(n, 1e9) >= asked[n] for n in ("budget", "deadline", "max_nodes"))
