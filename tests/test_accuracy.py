"""The stored figures, the gate that keeps them, and the tables that are written from them."""

from __future__ import annotations

import copy
import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import AdvisorError, ModelError, UsageError
from advisor.estimate import case
from advisor.lab import score as scored
from advisor.lab.data import BY_NAME
from advisor.lab.score import figures, gate, stored
from advisor.lab.score.harness import Validation
from advisor.lab.score.scores import Group, score
from advisor.rank import changes

ROOT = Path(__file__).resolve().parents[1]
KEPT = stored.read_all()
FETCHED = stored.read_all(stored.fetched())
SHIPPED = stored.read_held("shipped")
SAMPLED = stored.read_held("sampled")
EVERY = FETCHED | KEPT | SHIPPED | SAMPLED


def _record(mean: float = 0.1, coverage: float | None = 0.88, rows: int = 100) -> dict[str, Any]:
    overall = replace(
        score([1.0] * rows, [1.0] * rows),
        mape_fraction=mean, median_ape_fraction=mean / 2, p90_ape_fraction=2 * mean,
        coverage=coverage,
    )  # fmt: skip
    made = Validation(
        protocol=scored.load("gpu"), overall=overall,
        groups=[Group(group="V100-32GB", scores=overall)],
        baselines={"simple rule": replace(overall, mape_fraction=0.3, median_ape_fraction=0.01)},
        figures={"fp16 median APE": 0.06}, scores="the product",
    )  # fmt: skip
    return made.to_record()


def _stored(**changes: Any) -> stored.Stored:
    usual: dict[str, Any] = {
        "protocol": "gpu", "day": "2026-01-02", "reason": "first", "cpu_s": 3.0,
        "command": "advisor validate gpu --json", "inputs": {"t": "aa"}, "record": _record(),
    }  # fmt: skip
    return stored.Stored(**(usual | changes))


def _now(record: dict[str, Any] | None, **changes: Any) -> gate.ProtocolRun:
    usual: dict[str, Any] = {"protocol": "gpu", "inputs": {"t": "aa"}, "cpu_s": 1.0}
    return gate.ProtocolRun(record=record, **(usual | changes))


def _script() -> ModuleType:
    place = ROOT / "lab" / "score" / "accuracy.py"
    spec = importlib.util.spec_from_file_location("accuracy", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@given(st.floats(-0.1, 0.1), st.floats(-0.1, 0.1))
def test_only_what_worsens_by_more_than_half_a_point_fails(mean: float, cover: float) -> None:
    before, after = _record(0.2, 0.85), _record(0.2 + mean, 0.85 + cover)
    lines = {line.split(":")[0] for line in gate.worsened(before, after)}
    near = any(abs(x - gate.POINT) < 1e-5 for x in (mean, mean / 2, abs(cover - 0.05) - 0.05))
    if not near:
        assert ("mean" in lines) == (mean > gate.POINT)
        assert ("median" in lines) == (mean / 2 > gate.POINT)
        assert ("coverage" in lines) == (abs(cover - 0.05) - 0.05 > gate.POINT)
    if mean < 0:
        assert lines <= {"coverage"}
    assert gate.worsened(before, before) == []


def _changed(name: str, place: str, change: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a stored record, and the same with one figure changed."""
    before = dict(EVERY[name].record)
    after = copy.deepcopy(before)
    part = after["overall"] if place in after["overall"] else after["figures"]
    part[place] = change(part[place])
    return before, after


@pytest.mark.parametrize(
    ("name", "figure", "change", "fails"),
    [
        ("layouts", "after three rows: mean gain of tables", lambda gain: gain + 0.05, False),
        ("layouts", "after three rows: mean gain of tables", lambda gain: gain - 0.3, True),
        ("memory", "the product's rule: failures found", lambda _count: 0.0, True),
        ("memory", "the product's rule: failures found", lambda count: count + 1.0, False),
        ("spot-plan", "deadlines missed", lambda _count: 500.0, True),
        ("spot-plan", "deadlines missed", lambda _count: 1.0, True),
        ("campaigns", "p90_ape_fraction", lambda error: 35 * error, True),
        ("campaigns", "p90_ape_fraction", lambda error: 1.01 * error, False),
        ("campaigns", "width", lambda width: 3 * width, True),
        ("campaigns", "width", lambda width: width / 3, False),
        ("spot", "coverage", lambda _cover: 0.8, False),
        ("spot", "coverage", lambda _cover: 0.9, True),
        ("queue", "pollux_tiresias_mean_error_load_1.0", lambda _error: -0.2, True),
        ("layouts", "A100 constant efficiency, pooled, MAPE", lambda error: 2 * error, False),
    ],
)
def test_what_is_worse_of_a_figure_is_known(
    name: str, figure: str, change: Any, *, fails: bool
) -> None:
    before, after = _changed(name, figure, change)
    assert bool(gate.worsened(before, after)) == fails


@pytest.mark.parametrize("name", sorted(EVERY))
def test_every_tail_width_and_group_is_watched(name: str) -> None:
    before = EVERY[name].record
    for key in ("p90_ape_fraction", "width"):
        if before["overall"][key]:
            _, after = _changed(name, key, lambda value: 35 * value + 1.0)
            assert gate.worsened(before, after), key
    for place in range(len(before["groups"])):
        after = copy.deepcopy(dict(before))
        after["groups"][place]["mape_fraction"] += 1.0 + after["groups"][place]["mape_fraction"]
        assert len(gate.worsened(before, after)) == 1


@pytest.mark.parametrize("name", sorted(EVERY))
def test_every_figure_has_a_sense_and_one_without_fails(name: str) -> None:
    before = EVERY[name].record
    assert not [f for f in before["figures"] if scored.load(name).sense(f) is None]
    after = {**before, "figures": {**before["figures"], "of no known words": 1.0}}
    told = gate.worsened(before, after)
    assert told == [] if scored.load(name).sense("of no known words") else "no sense" in told[0]


@pytest.mark.parametrize(
    "name",
    [n for n in sorted(KEPT) if n in {p for p, _ in changes.ASKED.values()} | {"campaigns"}],
)
def test_what_recommend_tells_of_errors_is_true_both_ways(name: str) -> None:
    """Whoever edits 90 % into a file, or errs by 90 % now, is told so."""
    stored_now = KEPT[name].record
    assert gate.untrue(stored_now, stored_now) == []
    wrong = copy.deepcopy(dict(stored_now))
    for part in (wrong["overall"], *wrong["groups"]):
        part["median_ape_fraction"] = 0.9
    wrong["figures"] = {
        n: 0.9 if n.endswith(": median APE") else v for n, v in wrong["figures"].items()
    }
    assert gate.untrue(stored_now, wrong)
    assert gate.untrue(wrong, stored_now)


def test_leaving_rows_out_is_no_improvement() -> None:
    fewer = _record(0.05, rows=90)
    assert gate.worsened(_record(), fewer) == ["rows: 90 are scored, 100 were"]


def test_a_figure_of_the_table_is_watched_too() -> None:
    after = copy.deepcopy(_record())
    after["figures"]["fp16 median APE"] = 0.09
    assert [line.split(":")[0] for line in gate.worsened(_record(), after)] == ["fp16 median APE"]
    del after["figures"]["fp16 median APE"]
    assert "is gone" in gate.worsened(_record(), after)[0]


def test_other_tables_are_not_comparable_and_what_ships_must_be_there() -> None:
    same = gate.judge(_stored(), _now(_record()))
    assert (same.failures, same.remark) == ((), "")
    other = gate.judge(_stored(), _now(_record(), inputs={"t": "bb"}))
    assert "other rows in t" in other.failures[0]
    absent = _now(_record(0.9), inputs={})
    gone = _now(None, problem="Lambda's suite is not here", is_absent=True)
    for one in (absent, gone):
        assert "though it ships" in gate.judge(_stored(), one).failures[0]
        fetched = gate.judge(_stored(), one, is_fetched=True)
        assert fetched.failures == ()
        assert "not here" in fetched.remark
    broken = _now(None, problem="division by zero")
    for is_fetched in (False, True):
        verdict = gate.judge(_stored(), broken, is_fetched=is_fetched)
        assert "does not run" in verdict.failures[0]


def test_worse_figures_need_a_reason_of_their_own() -> None:
    worse = _stored(record=_record(0.12))
    assert gate.unexplained(_stored(), worse)
    assert gate.unexplained(_stored(), replace(worse, reason="two faulty rows came back")) == []
    assert gate.unexplained(_stored(), _stored(record=_record(0.08))) == []


def test_figures_survive_a_round_trip_and_need_a_reason(tmp_path: Path) -> None:
    stored.write(_stored(), tmp_path)
    assert stored.read("gpu", tmp_path) == stored.parsed(json.loads(stored.text(_stored())))
    assert stored.text(stored.read("gpu", tmp_path)) == stored.text(_stored())
    with pytest.raises(UsageError, match="reason"):
        stored.write(_stored(reason=" "), tmp_path)


@pytest.mark.parametrize("damaged", ["", "[]", "{}", '{"schema_version": 9}'])
def test_damaged_figures_are_one_error(tmp_path: Path, damaged: str) -> None:
    (tmp_path / "gpu.json").write_text(damaged)
    with pytest.raises(ModelError, match="stored figures"):
        stored.read("gpu", tmp_path)
    with pytest.raises(ModelError, match="no stored figures of own"):
        stored.read("own", tmp_path)


def test_every_protocol_has_stored_figures() -> None:
    assert {*KEPT, *FETCHED} == set(scored.PROTOCOLS)
    assert set(figures.NEEDS) == set(FETCHED) - set(KEPT)
    for one in KEPT.values():  # of the main column nothing is read that does not ship
        sets = {name.partition("/")[0] for name in one.inputs}
        assert all(BY_NAME[s].ships for s in sets if s in BY_NAME), one.protocol
    assert sum(one.record["rows"] for one in KEPT.values()) >= gate.LEAST_ROWS
    for name, one in KEPT.items():
        assert one.protocol == one.record["protocol"] == name
        assert one.reason
        assert one.inputs, f"{name} read nothing that was noted"
        assert one.record["form"] in figures.FORMS


def test_every_protocol_has_its_line_and_every_figure_named_is_there() -> None:
    assert set(figures.QUESTIONS) == set(scored.PROTOCOLS)
    for name, shown in figures.SHOWN.items():
        labels = {label for label, _, _ in figures.shown_values((FETCHED | KEPT)[name].record)}
        assert labels == {label for label, _, _ in shown}, name


def test_the_documentation_shows_what_is_stored() -> None:
    """`make figures` writes them; nobody edits between the markers."""
    protocols = (ROOT / "docs" / "generated" / "protocols.md").read_text(encoding="utf-8")
    assert figures.between_markers(protocols, figures.readme_table(KEPT, FETCHED)) == protocols
    page = ROOT / "docs" / "generated" / "accuracy.md"
    assert page.read_text(encoding="utf-8") == figures.hardware_table(KEPT, FETCHED)


def test_where_a_simpler_rule_is_better_the_table_says_so_in_bold() -> None:
    table = figures.readme_table({"gpu": _stored()})
    assert "simple rule 30.0 / **1.0**" in table
    assert "| 10.0 / 5.0 / 20.0 | 88 % |" in table
    assert "fp16, median 6.0 %" in table


def test_every_loss_is_in_bold() -> None:
    for one in KEPT.values():
        line = next(
            row for row in figures.readme_table({one.protocol: one}).splitlines()
            if f"(`{one.protocol}`)" in row
        )  # fmt: skip
        lost = [
            name for name, theirs in one.record["baselines"].items()
            if theirs["mape_fraction"] < theirs["ours"]["mape_fraction"]
            or theirs["median_ape_fraction"] < theirs["ours"]["median_ape_fraction"]
        ]  # fmt: skip
        assert ("**" in line) == bool(lost), one.protocol


def test_the_hardware_page_names_each_accelerator_once() -> None:
    assert "(`gpu`, with fetched data)" in figures.hardware_table({}, {"gpu": _stored()})
    page = figures.hardware_table({"gpu": _stored()})
    assert page.count("V100-32GB") + page.count("V100-SXM2-32GB") == 1
    assert "5.0 (100)" in page


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="needs"):
        figures.between_markers("no markers", "x")
    page = f"a\n{figures.BEGIN}\nold\n{figures.END}\nz"
    assert figures.between_markers(page, "new") == page.replace("old", "new")


def test_the_command_fails_where_a_protocol_got_worse(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = _script()
    worse = copy.deepcopy(dict(KEPT["failures"].record))
    worse["overall"] = worse["overall"] | {"mape_fraction": 0.5}
    for record, code in ((KEPT["failures"].record, 0), (worse, 1)):
        now = _now(dict(record), protocol="failures", inputs=KEPT["failures"].inputs)
        monkeypatch.setattr(gate, "measure_all", lambda *_, _now=now, **__: iter([_now]))
        assert script.main(["check", "failures"]) == code
    assert "failures: mean: 0.5" in capsys.readouterr().out


def test_every_shipped_folder_has_stored_figures_on_what_ships() -> None:
    assert set(SHIPPED) == set(scored.SHIPPED)
    for name, one in SHIPPED.items():
        assert one.record["rows"] > 30
        assert stored.place_of(name, one.inputs) == stored.folder()


def test_what_is_left_out_of_the_quick_check_is_sampled_where_it_ships() -> None:
    slow = {name for name in KEPT if not KEPT[name].is_quick}
    assert {f"sampled/{name}" for name in slow} == set(scored.SAMPLED) == set(SAMPLED)
    script = _script()
    for one in EVERY.values():
        assert script.is_asked(one, is_quick=False) == (one.protocol not in SAMPLED)
        assert script.is_asked(one, is_quick=True) == one.is_quick


@pytest.mark.parametrize("name", ["own", "minutes", "thesis"])
def test_a_sample_errs_on_its_groups_as_the_whole_protocol_does(name: str) -> None:
    """The same rows by the same fits: what differs is the day on which they were stored."""
    sample, whole = SAMPLED[f"sampled/{name}"].record, KEPT[name].record
    of_whole = {group["group"]: group for group in whole["groups"]}
    assert sample["rows"] == whole["rows"] or sample["groups"]
    pairs = [(group, of_whole[group["group"]]) for group in sample["groups"]]
    if sample["rows"] == whole["rows"]:
        pairs.append((sample["overall"], whole["overall"]))
    for ours, theirs in pairs:
        loose = gate.GROUP + gate.GROUP_SHARE * theirs["mape_fraction"]
        assert ours["rows"] == theirs["rows"]
        assert ours["mape_fraction"] == pytest.approx(theirs["mape_fraction"], abs=loose)


@pytest.mark.parametrize("factor", [0.1, 1.0, 10.0])
def test_a_shipped_constant_that_changed_is_seen(
    monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    shipped = case.scaling()
    step_s = shipped.collectives.network_step_s * factor
    wrong = replace(shipped, collectives=replace(shipped.collectives, network_step_s=step_s))
    monkeypatch.setattr(case, "scaling", lambda: wrong)
    verdict = gate.judge(SHIPPED["shipped/scaling"], gate.measure("shipped/scaling"))
    assert bool(verdict.failures) == (factor != 1.0)


def test_the_quickest_protocol_runs_as_it_is_stored() -> None:
    """One real run through the gate, so that its parts fit together."""
    try:
        now = gate.measure("failures")
    except AdvisorError as error:
        pytest.skip(str(error))
    verdict = gate.judge(KEPT["failures"], now)
    assert verdict.failures == ()
    if not verdict.remark:
        assert verdict.rows == KEPT["failures"].record["rows"]


def test_what_blind_figures_fitted_again_and_what_saw_the_rows_is_said() -> None:
    """One line each, with every protocol that it is true of."""
    lines = figures.readme_table(KEPT, FETCHED).splitlines()
    for name, one in KEPT.items():
        blind = one.record.get("blind") or {}
        told = [*blind.get("changed", ()), *(blind["still_seen"] if blind.get("changed") else ())]
        for what in told:
            assert any(row.startswith(f"- {what}: ") and f"`{name}`" in row for row in lines), what


def test_every_line_says_what_is_left_of_the_rows_in_the_fit() -> None:
    table = figures.readme_table(KEPT, FETCHED)
    for name in scored.PROTOCOLS:
        row = next(line for line in table.splitlines() if f"(`{name}`)" in line)
        told, declared = row.split(" | ")[4], scored.load(name).fitted_on
        record = (KEPT.get(name) or FETCHED[name]).record
        if record.get("blind", {}).get("changed"):
            again = record["blind"]["overall"]["mape_fraction"]
            assert told.startswith(f"{100 * again:.1f} / "), name
        elif name not in KEPT and scored.load(name).blind is not None:
            assert told.startswith("not here: ")
        else:
            again = f" (`advisor validate {name} --blind` fits it again)"
            told = told.removesuffix(again if scored.load(name).blind else "")
            assert told == (f"in sample: {'; '.join(declared)}" if declared
                            else "nothing fitted on it"), name  # fmt: skip
