"""Claims are corrected, and stay so: what a protocol's record must say, and what is left out.

The small tables are made up (synthetic); the published ones are those that ship.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor import data
from advisor.catalogue import Catalogue
from advisor.cli.program import app
from advisor.estimate import case
from advisor.lab import score as scored
from advisor.lab.data import MLPERF
from advisor.lab.fit.memory import read_memory
from advisor.lab.fit.scaling import fit_without_each, read_clusters, variance_components
from advisor.lab.score import runs, scaling
from advisor.lab.score.harness import (
    Answers,
    Blinded,
    Protocol,
    Questions,
    Validation,
    by,
    evaluate,
)
from advisor.lab.score.runs import random_ratio, walked_ratio
from advisor.lab.score.scores import FORMS, STATISTICS, Group, Scores, score
from advisor.learned.choose import Runs
from advisor.planners.links.gradients import ScalingParameters

ROOT = Path(__file__).parents[1]


def shipped() -> Path:
    return data.measurements(None)


def mirrored() -> Path:
    """The clusters of Sia beside AWS do not ship."""
    found = data.shared()
    if found is None:
        pytest.skip("the public measurements are not here")
    return found / "data"


UNASKED: Final[dict[str, Any]] = {
    "name": "p", "description": "d", "rows": lambda _: made(np.ones(1)), "answer": lambda _: None,
}  # fmt: skip


def one(overall: Scores, **more: object) -> Validation:
    return Validation(
        protocol=Protocol(**UNASKED, form="nested"),
        scores="s",
        overall=overall,
        **more,  # type: ignore[arg-type]
    )


ratios = st.lists(st.floats(0.2, 5.0), min_size=3, max_size=25)


@given(ratios)
def test_half_the_rows_err_no_more_than_the_median_error(ratio: list[float]) -> None:
    found = score(ratio, np.ones(len(ratio)))
    errors = np.array([abs(one - 1) for one in ratio])
    half = len(ratio) / 2
    assert (errors <= found.median_ape_fraction + 1e-5).sum() >= half
    assert (errors >= found.median_ape_fraction - 1e-5).sum() >= half
    assert (errors <= found.p90_ape_fraction + 1e-5).sum() >= 0.9 * (len(ratio) - 1)
    assert (errors > found.p90_ape_fraction + 1e-5).sum() <= 0.1 * (len(ratio) - 1) + 1
    assert found.mape_fraction == pytest.approx(sum(errors) / len(errors), abs=1e-6)


@given(ratios)
def test_an_interval_covers_what_is_not_beyond_either_bound(truth: list[float]) -> None:
    ones = np.ones(len(truth))
    found = score(ones, truth, low=0.5 * ones, high=2.0 * ones)
    beyond = sum(one < 0.5 for one in truth) + sum(one > 2.0 for one in truth)
    assert found.coverage == pytest.approx(1 - beyond / len(truth))
    assert score([1.0], [0.4], low=[0.5], high=[2.0]).coverage == 0.0
    assert score([1.0], [2.1], low=[0.5], high=[2.0]).coverage == 0.0


def made(truth: np.ndarray) -> Questions:
    """Return three questions, or as many as there are truths, each its own group."""
    names = [f"row {i}" for i in range(truth.size)]
    return Questions(questions=names, truth=truth, unseen=names, groups=by(names))


# The record -----------------------------------------------------------------------------------


def test_a_baseline_on_other_rows_is_refused() -> None:
    ours, theirs = score([1.0, 2.0], [1.0, 1.0]), score([1.0], [1.0])
    with pytest.raises(ValueError, match="'simple' has 1 rows, ours 2"):
        one(ours, baselines={"simple": theirs})
    found = one(ours, baselines={"simple": theirs}, beside={"simple": score([2.0], [1.0])})
    assert found.to_record()["baselines"]["simple"]["ours"]["rows"] == 1


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ValueError, match="form must be one of"):
        Protocol(**UNASKED, form="blind")  # type: ignore[arg-type]


@given(st.lists(st.tuples(*[st.floats(0.1, 10.0)] * 3, st.booleans()), min_size=1, max_size=12))
def test_rules_are_scored_on_the_rows_that_both_answer(
    rows: list[tuple[float, float, float, bool]],
) -> None:
    ours, theirs, truth, has = (np.array(c) for c in zip(*rows, strict=True))
    theirs = np.where(has, theirs, np.nan)
    asked = made(truth)
    protocol = Protocol(
        name="p", description="d", rows=lambda _: asked, answer=lambda _: Answers(value=ours),
        baselines={"rule": lambda _rows, _answered: theirs},
    )  # fmt: skip
    found = evaluate(protocol, asked, protocol.answer(asked))
    if not has.any():
        assert not found.baselines
        return
    assert found.baselines["rule"] == score(theirs[has], truth[has])
    assert found.ours("rule") == score(ours[has], truth[has])
    for loss in found.losses():
        assert loss["ours"] > loss["theirs"]
    own, rule = score(ours[has], truth[has]), found.baselines["rule"]
    better = [s for s in STATISTICS if getattr(own, s) > getattr(rule, s)]
    assert [loss["statistic"] for loss in found.losses()] == better


def test_losses_of_groups_are_named() -> None:
    bad, good = score([2.0], [1.0]), score([1.0], [1.0])
    found = one(good, groups=[Group(group="g", scores=bad, baselines={"rule": good})])
    assert {loss["group"] for loss in found.losses()} == {"g"}


@pytest.mark.parametrize("name", scored.PROTOCOLS)
def test_every_protocol_says_what_it_scores_and_how_it_was_chosen(name: str) -> None:
    protocol = scored.load(name)
    assert protocol.name == name
    assert protocol.seen, "what had the scored rows in sight"
    assert protocol.form in FORMS
    assert protocol.scores


def test_another_predictor_is_scored_on_the_same_rows(tmp_path: Path, made_up: str) -> None:
    """What is written as questions is answered by row; rows without an answer are not scored."""
    asked = ["validate", made_up, "--data", str(tmp_path)]
    table, answers = tmp_path / "rows.csv", tmp_path / "answers.csv"
    assert CliRunner().invoke(app, [*asked, "--questions", str(table)]).exit_code == 0
    assert len(table.read_text().splitlines()) == 4
    answers.write_text("row,value,low,high\n0,1.2,1,2\n2,4,5,6\n")
    shown = CliRunner().invoke(app, [*asked, "--answers", str(answers), "--json"])
    record = json.loads(shown.stdout)
    assert (record["rows"], record["overall"]["coverage"]) == (2, 0.5)
    assert record["overall"]["mape_fraction"] == pytest.approx(0.1)
    answers.write_text("row,value\n7,1.2\n")
    refused = CliRunner().invoke(app, [*asked, "--answers", str(answers)])
    assert "not asked" in str(refused.exception)


# The command ----------------------------------------------------------------------------------


def write_entries(folder: Path) -> Path:
    lines = ["round,org,benchmark,accelerator,n_accelerators,samples_per_s,global_batch_size"]
    for number, benchmark in enumerate(("a", "b", "c")):
        lines += [
            f"v1,o,{benchmark},T4,{n},{100 * n ** (0.8 + 0.05 * number)},{32 * n}"
            for n in (8, 16, 32, 64, 128)
        ]
    table = folder / MLPERF.tables["entries"].published
    table.parent.mkdir(parents=True)
    table.write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a protocol whose form is better with its rows in sight."""
    truth = np.array([1.0, 2.0, 4.0])
    module = ModuleType("advisor.lab.score.made_up")
    module.__dict__["P"] = Protocol(
        name="p", description="d", rows=lambda _: made(truth),
        answer=lambda _: Answers(value=1.1 * truth),
        blind=lambda _, __: Blinded(
            answers=Answers(value=1.3 * truth), changed=("the form",),
            still_seen=("what there is to choose from",),
        ),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(scored.PROTOCOLS, "made-up", ("made_up:P", "Nothing."))
    return "made-up"


def test_both_stand_side_by_side(tmp_path: Path, made_up: str) -> None:
    asked = ["validate", made_up, "--data", str(tmp_path), "--blind"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0, shown.output
    assert "shipped" in shown.output
    assert "ALL p50" in shown.output
    plain = CliRunner().invoke(app, asked[:-1])
    assert "difference" not in plain.output


def test_the_difference_is_blind_less_shipped(tmp_path: Path, made_up: str) -> None:
    result = scored.run(made_up, tmp_path, is_blind=True)
    record = result.to_record()["blind"]
    assert record["difference"]["mape_fraction"] == pytest.approx(0.2)
    assert len(record["groups"]) == 3
    assert record["changed"]


def test_a_table_of_ones_own_cannot_be_blind(tmp_path: Path) -> None:
    table = write_entries(tmp_path) / MLPERF.tables["entries"].published
    shown = CliRunner().invoke(app, ["validate", str(table), "--blind"])
    assert "--blind scores a protocol" in str(shown.exception)
    assert getattr(shown.exception, "exit_code", None) == 2


# The claims -----------------------------------------------------------------------------------


def test_every_text_has_one_number_of_accelerators() -> None:
    """The catalogue's: whatever counts something else says what."""
    count = len(
        Catalogue.load(data.root("datasets") / "catalogue", with_overrides=False).accelerators
    )
    texts = [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "datasets").glob("**/README.md"),
    ]
    said = {
        (path.name, int(number))
        for path in texts
        for number in re.findall(r"\b(\d{3,})\s+accelerators", path.read_text())
    }
    assert said
    assert {number for _, number in said} == {count}, said


@pytest.mark.slow  # `make accuracy-quick` scores these rows
def test_a_run_elsewhere_is_worth_something_on_an_unseen_card() -> None:
    found = scored.run("instance", shipped())
    assert {g.group for g in found.groups} == {"K80", "V100-SXM2-16GB"}
    assert found.overall.mape_fraction < found.baselines["no run"].mape_fraction
    assert found.overall.rows == found.baselines["no run"].rows


def test_memory_is_scored_on_every_source_that_prints_it() -> None:
    found = scored.run("memory", shipped())
    known = read_memory(shipped())
    printed = known.is_reading
    sources = set(known.rows.table[printed].tolist())
    groups = {g.group: g.scores.rows for g in found.groups}
    assert sources <= set(groups)
    assert found.overall.rows == sum(groups[s] for s in sources) == printed.sum()
    # Verdicts are scored where the source says which runs failed.
    assert found.figures["failures"] == known.is_out_of_memory.sum() >= 40
    told = found.figures["failures"] + found.figures["runs that ran"]
    assert told == known.tells_failures.sum()
    simple = found.baselines["a calculator of five terms"]
    assert found.overall.mape_fraction < 0.6 * simple.mape_fraction
    assert found.baselines["SimuMax, on its own machine"].rows == sum(
        known.rows.table == "blackwell"
    )


def test_choices_that_failed_are_paid_for() -> None:
    found = scored.run("ranking", shipped())
    for name in ("scout", "ibm"):
        paid = found.figures[f"{name}, ours: cost over best"]
        assert paid > found.figures[f"{name}, ours: cost over best, had failures been known"]
        own = [g for g in found.groups if g.group.startswith(f"{name} ")]
        assert paid == pytest.approx(1 + np.mean([g.scores.mape_fraction for g in own]), rel=1e-5)
    assert set(found.baselines) == {
        "always the same", "always the same, at least twice as large after a failure", "at random",
    }  # fmt: skip
    for rule in found.baselines.values():
        assert found.overall.mape_fraction < rule.mape_fraction
    for name in ("scout", "ibm", "trainpred"):
        ours, usual = (found.figures[f"{name}, {who}: cost over best"]
                       for who in ("ours", "always the same"))  # fmt: skip
        assert ours < 0.95 * usual


def test_a_random_order_costs_what_many_random_orders_cost() -> None:
    prices = np.array([[2.0, np.nan, 1.0, np.nan, 4.0]])
    runs = Runs(
        prices=prices, times=prices, has_run=np.array([[True, True, True, False, True]]),
        families=np.array(["f"], dtype=object), price_usd_per_h=np.ones(5),
        measured=np.zeros((1, 5, 0)),
    )  # fmt: skip
    spent = np.array([[2.0, 3.0, 1.0, 7.0, 4.0]])
    rng = np.random.default_rng(0)
    walked = [
        walked_ratio(runs, 0, rng.permutation(5).astype(float), spent) for _ in range(20_000)
    ]
    assert random_ratio(runs, 0, spent) == pytest.approx(np.mean(walked), rel=0.02)


@pytest.mark.slow  # `make accuracy-quick` scores these rows
def test_baselines_of_accelerators_are_on_our_rows_and_say_where_we_lose() -> None:
    found = scored.run("gpu-mlperf", shipped())
    for name, theirs in found.baselines.items():
        assert found.ours(name).rows == theirs.rows
    losses = {(x["baseline"], x["statistic"]) for x in found.losses()}
    won = {
        (name, statistic)
        for name, theirs in found.baselines.items()
        for statistic in STATISTICS
        if getattr(theirs, statistic) < getattr(found.ours(name), statistic)
    }
    assert losses == won
    fit = "log-linear, shared exponents"
    assert {(fit, "median_ape_fraction"), (fit, "mape_fraction")}.isdisjoint(losses)


@pytest.mark.slow
def test_nominal_links_alone_are_scored_without_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left_out: dict[str, ScalingParameters] = {}

    def kept(folder: Path) -> dict[str, ScalingParameters]:
        left_out.update(fit_without_each(folder))
        return left_out

    monkeypatch.setattr(scaling, "fit_without_each", kept)
    found = scored.run("scaling-nominal", mirrored())
    _widths_are_of(left_out)
    assert found.overall.coverage is not None
    assert found.overall.coverage > 0.7
    assert 0.85 < found.figures["90 % interval covers, loading aside"] < 0.95
    figures = found.figures
    for cluster in ("aws", "rtx", "dgx-ext"):
        for rule in ("perfect scaling", "alpha-beta at nominal bandwidth"):
            assert f"{cluster}: {rule}" in figures
    assert figures["rtx: ours"] > 1.3 * figures["rtx: in sample (constants as shipped, fitted on "
                                                "these rows)"]  # fmt: skip
    assert figures["dgx-ext: ours"] > figures["dgx-ext: perfect scaling"]  # we lose on A100
    assert found.overall.rows == found.baselines["perfect scaling"].rows


def _widths_are_of(left_out: Mapping[str, ScalingParameters]) -> None:
    """The shipped widths are those of clusters that the constants have not seen."""
    fitted, clusters = case.scaling(), read_clusters(mirrored())
    found = variance_components(left_out, clusters)
    assert (fitted.log_sd_compute, fitted.log_sd_communication) == pytest.approx(found, rel=1e-3)
    in_sight = variance_components(dict.fromkeys(left_out, fitted), clusters)
    assert in_sight[1] < 0.7 * found[1]


@pytest.mark.slow
def test_layouts_compare_like_with_like() -> None:
    found = scored.run("layouts", shipped())
    for family in ("A100", "H100", "V100"):
        for how in ("plain", "told the stack"):
            for statistic in ("mean of tables, MAPE", "pooled, MAPE"):
                ours = found.figures[f"{family} {how}, {statistic}"]
                assert ours < found.figures[f"{family} constant efficiency, {statistic}"]
            assert f"{family} {how}, 90% interval, pooled coverage" in found.figures
    assert found.figures["megatron_sc21: Calculon as published, MAPE"] == 0.095
    assert found.baselines["constant hardware-FLOP efficiency"].rows >= found.overall.rows


def test_the_protocol_on_our_runs_scores_the_kind_of_model_that_ships() -> None:
    shipped = json.loads((ROOT / "trained_models" / "runs" / "model.json").read_text())
    (weights,) = [
        v
        for k, v in json.loads(
            (ROOT / "trained_models" / "runs" / "metrics.json").read_text()
        ).items()
        if k == "weights"
    ]
    chosen = runs.shipped_choice()
    assert shipped["estimator"]["name"] == "guarded"
    assert weights[chosen] == 1.0  # what answers alone is what is scored alone
    record = json.loads((ROOT / "datasets" / "accuracy" / "own.json").read_text())["record"]
    assert f"guarded {chosen}" in record["scores"]


def test_the_networks_loss_and_the_costs_stand_beside_the_trees() -> None:
    """The network is used where it wins: where it does not, its loss is on record."""
    record = json.loads((ROOT / "datasets" / "accuracy" / "own.json").read_text())["record"]
    network = record["baselines"]["sequence network"]
    assert network["rows"] == record["overall"]["rows"]
    assert network["mape_fraction"] > record["overall"]["mape_fraction"]
    found = record["figures"]
    assert found["cost_direct_rows"] == found["cost_billed_rows"] == record["rows"]
    for how in ("billed", "direct"):
        assert 0 < found[f"cost_{how}_mape_fraction"] < 0.3
