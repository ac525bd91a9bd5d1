"""One price has one day and one kind at every door, and of equal prices the surest one wins."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from advisor.api import recommend, report_data
from advisor.ask import Constraints, JobSpec, Question
from advisor.catalogue import Catalogue, OfferFilter
from advisor.cli.program import app
from advisor.estimate.answer import offer_of
from advisor.words import price_words, prices_words, standing_words

RUN = CliRunner()
GPT2 = ["--layers", "12", "--hidden", "768", "--heads", "12", "--tokens", "5B"]
QUESTIONS = (
    [*GPT2],
    [*GPT2, "--dated"],
    [*GPT2, "--gpus", "V100,T4", "--max-nodes", "2"],
    [*GPT2, "--cloud", "aws", "--spot", "--max-nodes", "1"],
    [
        "--layers",
        "4",
        "--hidden",
        "128",
        "--heads",
        "4",
        "--batch",
        "8",
        "--tokens",
        "100M",
        "--cloud",
        "gcp,azure",
    ],
    [*GPT2, "--gpus", "H100:8", "--cloud", "aws"],
)
_SURE = {"own": 0, "listed": 1, "scaled": 2, "derived": 3}
_OFFERED = ("own", "offered", "list-price-no-stock-info", "not-offered-or-unknown")


def said(*words: str, code: int = 0) -> str:
    done = RUN.invoke(app, list(words), catch_exceptions=False, env={"COLUMNS": "80"})
    assert done.exit_code == code, done.output
    return done.stdout


def unwrapped(*words: str) -> str:
    return " ".join(said(*words).split())


def record_of(*words: str) -> Any:
    return json.loads(said(*words, "--json"))


def sureness(kind: str, listing: str, day: str) -> tuple[int, int, int]:
    """Smaller is surer: an oracle of its own, by words of the records alone."""
    return _SURE[kind], _OFFERED.index(listing), -int(day.replace("-", "") or 0)


def kind_by_words(status: str) -> str:
    for kind in ("own", "scaled", "derived"):
        if status.startswith(kind):
            return kind
    return "scaled" if " x " in status else "listed"


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue.load(with_overrides=False)


def rented(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for one in record["front"]:
        yield from one["configuration"]
        for other in one["alternatives"]:
            if other["kind"] != "region":  # those are the twins, in words "same price and time"
                yield from other["configuration"]


@pytest.mark.parametrize("question", QUESTIONS, ids=[" ".join(one[-4:]) for one in QUESTIONS])
def test_no_answer_has_an_equal_priced_twin_that_is_surer(
    question: list[str], catalogue: Catalogue
) -> None:
    """Of the same type, paid the same way, taken away as often: own, listed, offered, newest."""
    record = record_of("recommend", *question)
    parts = list(rented(record))
    assert parts
    for part in parts:
        kind = catalogue.instance_type(part["instance_type"], provider=part["provider"])
        rows = np.flatnonzero(catalogue.prices.type_index == kind.index)
        price = catalogue.prices.usd_per_h(part["pricing"])[rows]
        mine = rows[catalogue.prices.region[rows] == part["region"]][0]
        band = catalogue.prices.spot_interruption_band
        own = sureness(part["price_kind"], listing(catalogue, mine), part["price_as_of"])
        for row in rows[price == part["price_usd_per_h"]].tolist():
            if part["pricing"] == "spot" and str(band[row]) != str(band[mine]):
                continue
            source = catalogue.prices.provenances[catalogue.prices.provenance_index[row]]
            if source.listing not in _OFFERED:
                continue
            status = source.spot_status if part["pricing"] == "spot" else source.status
            assert own <= sureness(kind_by_words(status), source.listing, source.as_of), part


def listing(catalogue: Catalogue, row: int) -> Any:
    return catalogue.prices.provenances[catalogue.prices.provenance_index[row]].listing


@pytest.mark.parametrize("pricing", ["on-demand", "spot"])
def test_what_is_taken_as_the_cheapest_of_a_type_has_no_surer_twin(
    pricing: Any, catalogue: Catalogue
) -> None:
    """All types: what ``predict``, ``gate`` and the exports take where no region is named."""
    offers = catalogue.select(OfferFilter(pricing=(pricing,)))
    types, first = np.unique(offers.type_index, return_index=True)
    sources = [offers.source(row) for row in range(len(offers))]
    own = np.array([
        sureness(kind_by_words(one.spot_status if pricing == "spot" else one.status),
                 one.listing, one.as_of)
        for one in sources
    ])  # fmt: skip
    order = own @ np.array([10**10, 10**9, 1])
    cheapest = np.full(int(types.max()) + 1, np.inf)
    least = np.full(cheapest.shape, 10**12)
    np.minimum.at(cheapest, offers.type_index, offers.price_usd_per_h)
    twins = offers.price_usd_per_h == cheapest[offers.type_index]
    np.minimum.at(least, offers.type_index[twins], order[twins])
    assert twins.sum() > len(types)
    np.testing.assert_array_equal(order[first], least[types])
    np.testing.assert_array_equal(offers.price_usd_per_h[first], cheapest[types])


def test_a_region_that_lists_no_storage_is_no_bargain(catalogue: Catalogue) -> None:
    """Local zones have no price of their own for a volume: the answer's region has."""
    record = record_of("recommend", *GPT2, "--cloud", "aws", "--gpus", "H100:8", "--dated")
    (part,) = next(one for one in record["front"] if one["devices"] == 8)["configuration"]
    assert (part["region"], part["price_kind"]) == ("us-east-1", "listed")


MACHINES = {
    "price without a date": ("verda", "1V100.6V", "V100"),
    "price of 2026-07-20": ("aws", "p5.48xlarge", "H100:8"),
}


@pytest.mark.parametrize("words", MACHINES)
def test_every_door_says_one_day_of_a_price(words: str, tmp_path: Path) -> None:
    provider, machine, gpus = MACHINES[words]
    day = words.removeprefix("price of ").removeprefix("price ")
    question = [*GPT2, "--cloud", provider, "--gpus", gpus, "--max-nodes", "1"]
    record = record_of("recommend", *question)
    best = next(one for one in record["front"] if one["rank"] == record["picks"]["best_value"])
    (part,) = best["configuration"]
    assert part["instance_type"] == machine
    assert price_words([part]) == words
    row = unwrapped("recommend", *question)
    assert words in row
    standing = standing_words(best)
    assert f"{words}, stock unknown" in standing
    assert standing in row
    predicted = record_of("predict", *GPT2, "--on", f"{provider}:{machine}")
    assert [one["note"] for one in predicted["sources"] if one["what"].startswith("price")] == [
        f"{provider} {part['region']}, lowest on-demand price; {standing}"
    ]
    said("export", *question, "--to", "slurm", "-o", str(tmp_path))
    exported = "".join(one.read_text() for one in tmp_path.iterdir())
    assert re.search(
        rf"# Row \d+ of `advisor recommend` for .*, {re.escape(standing)}\.", exported
    )
    shown = said("catalogue", "show", f"{provider}:{machine}")
    assert day in next(line for line in shown.splitlines() if line.startswith(part["region"]))
    listed = said("catalogue", "list", "--type", machine, "--cloud", provider, "--cheapest",
                  "--on-demand")  # fmt: skip
    assert f"prices{words.removeprefix('price')}" in listed
    assert standing in unwrapped(
        "gate", *GPT2, "--on", f"{provider}:{machine}", "--budget", "1000"
    )


def test_python_and_the_page_say_the_days_of_what_they_show() -> None:
    asked = Question(
        job=JobSpec(layers=12, hidden=768, heads=12, tokens=5e9),
        constraints=Constraints(providers=("verda", "aws"), max_nodes=1),
    )
    data = report_data(asked, with_changes=False)
    rows = data["answer"]["front"]
    assert data["words"]["prices"] == prices_words(rows)
    for one in rows:
        assert data["words"]["candidates"][str(one["rank"])]["price"] == price_words(
            one["configuration"]
        )
    found = recommend(layers=12, hidden=768, heads=12, tokens="5B", cloud="verda", max_nodes=1)
    assert "(prices without a date)" in found._repr_html_()
    assert found.catalogue.as_of == ""


def test_the_users_own_price_is_called_so_and_only_it(tmp_path: Path) -> None:
    """A discount on one way to pay leaves the others their source's day and kind."""
    own = tmp_path / "overrides.csv"
    own.write_text(
        "rule,provider,instance_type,region,value\nprice,aws,p5.48xlarge,us-east-1,40\n"
        "factor,aws,p4d.24xlarge,us-east-1,0.5\n"
    )
    catalogue = Catalogue.load(overrides=own)
    listed = Catalogue.load(with_overrides=False)
    for machine, kind in (("p5.48xlarge", "own"), ("p4d.24xlarge", "scaled")):
        for pricing in ("on-demand", "spot"):
            wanted = OfferFilter(types=(machine,), regions=("us-east-1",), pricing=(pricing,))
            mine, theirs = (offer_of(one, one.select(wanted), 0) for one in (catalogue, listed))
            is_own = kind == "own" and pricing == "on-demand"
            assert mine.price_kind == (kind if pricing == "on-demand" else theirs.price_kind)
            assert (mine.price_as_of != theirs.price_as_of) == is_own
            assert (mine.price_status == theirs.price_status) == (
                mine.price_usd_per_h == theirs.price_usd_per_h
            )
    question = [*GPT2, "--overrides", str(own), "--gpus", "H100:8", "--cloud", "aws"]
    assert re.search(r"your price of \d{4}-\d\d-\d\d", unwrapped("recommend", *question))
    predicted = record_of("predict", *GPT2, "--overrides", str(own), "--on", "p5.48xlarge")
    fact = next(one for one in predicted["sources"] if one["what"].startswith("price"))
    assert fact["source"] == "given"
    assert "your price of" in fact["note"]


def test_the_foot_speaks_of_rows_that_are_shown() -> None:
    """Rows that did not fit the screen do not date what is on it."""
    words, record = said("recommend", *GPT2), record_of("recommend", *GPT2)
    foot = " ".join(words.split("\nPrices ")[-1].split("\nMore ")[0].split())
    ranks = {int(rank) for rank in re.findall(r"^[> ] ?(\d+) ", words, re.MULTILINE)}
    rows = [price_words(one["configuration"]) for one in record["front"] if one["rank"] in ranks]
    assert rows
    assert ("without a date" in foot) == any("without a date" in one for one in rows)
    days = sorted(day for one in rows for day in re.findall(r"\d{4}-\d\d-\d\d", one))
    assert set(re.findall(r"\d{4}-\d\d-\d\d", foot)) <= {*days}
    assert {*days[:1], *days[-1:]} <= {*re.findall(r"\d{4}-\d\d-\d\d", foot)}
