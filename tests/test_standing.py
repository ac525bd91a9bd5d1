"""Laws of what can be had: launchers, prices that have a day, and what wins by them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advisor import data, recommend
from advisor.answer import Candidate, Recommendation
from advisor.catalogue import Catalogue, OfferFilter
from advisor.errors import UsageError
from advisor.estimate.predictor import Predictor
from advisor.export import TARGETS, export_to
from advisor.export.target import NotExportableError
from advisor.providers import launched_by, launcher_of, providers
from advisor.rank.front import doubted
from advisor.words import standing_words
from advisor.words.recommendation import text

GPT2: dict[str, Any] = {"layers": 12, "hidden": 768, "heads": 12, "tokens": "5B"}


@pytest.fixture(scope="module")
def answer(predictor: Predictor) -> Recommendation:
    return recommend(predictor=predictor, **GPT2)


def test_launchers_are_targets_of_known_providers_with_a_source() -> None:
    path = data.root("datasets") / "catalogue" / "launchers.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({(row["provider"], row["launcher"]) for row in rows}) == len(rows)
    for row in rows:
        assert row["provider"] in providers()
        assert TARGETS[row["launcher"]].rents
        assert row["source"]
        assert row["licence"]
        assert row["launcher"] in launched_by(row["provider"])
        most = float(row["most_machines"] or "inf")
        assert (row["launcher"] in launched_by(row["provider"], 2)) == (most >= 2)
    assert launcher_of("skypilot", "hyperstack") is None  # unknown is never yes


def test_an_offer_lacks_a_day_a_listing_or_a_launcher_or_nothing() -> None:
    catalogue = Catalogue.load(with_overrides=False)
    offers = catalogue.select(OfferFilter())
    rows = np.arange(len(offers))
    alone, several = (offers.lacks(rows, np.full(rows.size, n)) for n in (1, 2))
    assert set(alone.tolist()) <= {0, 1, 2}
    assert (several >= alone).all()
    assert offers.is_dated[offers.is_sure].all()
    provider = catalogue.types.provider[offers.type_index]
    assert (alone[provider == "hyperstack"] == 2).all()
    assert (alone[provider == "azure"] == 0).all()
    assert (several > alone)[provider == "verda"].all()


def test_what_lacks_more_is_doubted_more_and_nothing_without_bound() -> None:
    finish = np.array([[1.0, 2.0, high] for high in (2.0, 2.2, 4.0, 40.0)])
    by_lacks = [doubted(np.full(4, n), finish, 0.1, 0.9) for n in (0, 1, 2)]
    assert (by_lacks[0] == 1).all()
    assert (by_lacks[2] > by_lacks[1]).all()
    assert (by_lacks[1] >= 1.1 - 1e-12).all()
    assert (by_lacks[1] <= 1.25).all()


def lacks(one: Candidate) -> tuple[bool, bool]:
    ((offer, count),) = one.configuration.parts
    return not offer.price_as_of, not launched_by(offer.provider, count)


def test_nothing_on_the_list_is_as_good_as_the_pick_and_lacks_less(answer: Recommendation) -> None:
    by_rank: dict[Any, Candidate] = {one.rank: one for one in answer.front}
    pick = by_rank[answer.picks["best_value"]]
    for one in answer.front:
        is_near = one.training_time_h.value <= pick.training_time_h.value and (
            one.cost_usd.value <= 1.1 * pick.cost_usd.value
        )
        is_one_machine = sum(n for _, n in one.configuration.parts) == 1
        if is_near and is_one_machine and one is not pick:
            assert not all(a <= b for a, b in zip(lacks(one), lacks(pick), strict=True))


def test_the_row_of_a_dated_price_has_one(answer: Recommendation) -> None:
    by_rank: dict[Any, Candidate] = {one.rank: one for one in answer.front}
    if "dated" in answer.picks:
        assert not lacks(by_rank[answer.picks["dated"]])[0]
        assert lacks(by_rank[answer.picks["best_value"]])[0]
    else:
        assert not lacks(by_rank[answer.picks["best_value"]])[0]


def test_every_row_is_exported_to_what_rents_it(
    answer: Recommendation, predictor: Predictor
) -> None:
    record = answer.to_record()
    for row in record["front"]:
        made = export_to(record, rank=row["rank"], predictor=predictor)
        (part,) = row["configuration"]
        assert made.target == next(iter(part["launchers"]), "kubernetes")


def test_a_launcher_of_single_machines_refuses_several(
    answer: Recommendation, predictor: Predictor
) -> None:
    record = answer.to_record()
    one = next(row for row in record["front"] if row["configuration"][0]["count"] > 1)
    one["configuration"][0]["provider"] = "verda"
    with pytest.raises(NotExportableError, match="one machine at a time"):
        export_to(record, "skypilot", rank=one["rank"], predictor=predictor)


def test_the_screen_says_who_rents_the_pick_and_how_it_is_handed_over(
    answer: Recommendation,
) -> None:
    said = "\n".join(
        line for line, _ in text(answer.to_record(), most=None, command=["advisor", "recommend"])
    )
    pick = answer.picks["best_value"]
    assert f"advisor export {pick} --to " in said
    assert "rents it" in said


def test_of_equal_prices_the_listed_and_newest_region_is_picked(predictor: Predictor) -> None:
    """Seen: the Atlanta local zone at the price of us-east-1, which only that source lists."""
    found = recommend(
        predictor=predictor, **GPT2, cloud="aws", gpus="H100:8", max_nodes=1, effort="0"
    )
    (pick,) = (one for one in found.front if one.rank == found.picks["best_value"])
    ((offer, _),) = pick.configuration.parts
    assert (offer.listing, bool(offer.price_as_of)) == ("offered", True)


def test_a_commitments_price_is_used_where_it_is_asked_for_and_said(tmp_path: Path) -> None:
    own = tmp_path / "overrides.csv"
    own.write_text(
        "rule,provider,instance_type,region,pricing,value\n"
        "price,aws,p5.48xlarge,us-east-1,reserved-1y,9.5\n"
    )
    asked: dict[str, Any] = {**GPT2, "cloud": "aws", "max_nodes": 1, "overrides": str(own)}
    assert all(
        one.configuration.parts[0][0].pricing == "on-demand" for one in recommend(**asked).front
    )
    found = recommend(**asked, reserved="1y")
    (pick,) = (one for one in found.front if one.rank == found.picks["best_value"])
    ((offer, count),) = pick.configuration.parts
    assert (offer.instance_type, offer.pricing) == ("p5.48xlarge", "reserved-1y")
    assert offer.price_usd_per_h * count == pytest.approx(9.5)
    assert [one.pricing for one in pick.bills] == ["reserved-1y"]
    record = found.to_record()
    assert "your one-year price" in record["summary"][0]
    assert "1-year price" in "\n".join(line for line, _ in text(record))
    made = export_to(record, "slurm", predictor=Predictor(Catalogue.load(overrides=own)))
    assert "your one-year price" in "".join(made.files.values())
    with pytest.raises(UsageError, match="commitment of 3y") as refused:
        recommend(**asked, reserved="3y")
    assert "overrides" in str(refused.value.hint) or "price" in str(refused.value.hint)


def test_an_hour_its_day_and_who_rents_it_stand_behind_the_pick_at_80_columns(
    answer: Recommendation,
) -> None:
    record = answer.to_record()
    head = " ".join(" ".join(line for line, _ in text(record, width=80)[:6]).split())
    (row,) = (one for one in record["front"] if one["rank"] == record["picks"]["best_value"])
    (part,) = row["configuration"]
    each = part["price_usd_per_h"] / part["accelerators_per_instance"]
    assert f"${each:.3g}"[:4] in head
    assert f"per GPU-hour, {standing_words(row)}." in head
