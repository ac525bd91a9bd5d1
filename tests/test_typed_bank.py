"""The bank of questions as people typed them, and the protocol that asks them."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor import data
from advisor.cli.program import load_verb
from advisor.errors import AbsentDataError, ModelError
from advisor.estimate.predictor import Predictor
from advisor.lab.data.typed import spread
from advisor.lab.fit.layouts import read_all, usable
from advisor.lab.score import typed
from advisor.lab.score.harness import evaluate
from advisor.lab.score.typed import Said, TypedLine

BANK = data.root("datasets") / "questions"
with (BANK / "questions.csv").open(encoding="utf-8", newline="") as file:
    ROWS = list(csv.DictReader(file))
LINES = typed.read_bank(data.root("datasets"))
# What people do not know: the network, and what the software overlaps.
UNTYPED = re.compile(r"@\d+Gbps|--(no-)?(tp-)?overlap|--(tp|pp|cp|ep|zero|accumulate)\b")
STAYS = "--layers 2 --hidden 64 --heads 2 --sequence 64 --batch 8 --gpu L4"


def test_every_row_says_whose_it_is_and_what_is_left_out_with_it() -> None:
    assert len(ROWS) >= 100
    for name in ("id", "line", "quantity", "truth", "source", "licence", "day", "group"):
        assert all(row[name].strip() for row in ROWS), name
    assert len({row["id"] for row in ROWS}) == len(ROWS)
    assert len({(row["line"], row["quantity"]) for row in ROWS}) == len(ROWS)
    assert {line.quantity for line in LINES} == set(typed.QUANTITIES)
    assert all((line.definition != "") == (line.quantity == "memory") for line in LINES
               if line.family != "threads")  # fmt: skip


def test_truths_lie_within_their_ranges() -> None:
    ranges = [row for row in ROWS if row["low"]]
    assert ranges
    for row in ranges:
        assert float(row["low"]) <= float(row["truth"]) <= float(row["high"]), row["id"]


def test_no_line_types_what_a_person_does_not_know() -> None:
    assert not [row["id"] for row in ROWS if UNTYPED.search(row["line"])]
    several = [line for line in LINES if line.is_of_machines]
    assert len(several) > 20
    assert all("--micro-batch" not in line.line for line in several)


def test_every_file_that_a_line_names_lies_there_and_no_other() -> None:
    named = {name for line in LINES for name in line.files}
    assert named == {path.name for path in (BANK / "files").iterdir()}
    assert all((".json" in line.line) == bool(line.files) for line in LINES)


@pytest.mark.parametrize("line", [pytest.param(one.line, id=one.name) for one in LINES])
def test_every_line_is_one_that_the_terminal_parses(line: str) -> None:
    """The words are flags that the verb has, and no other argument stands between them."""
    verb, *words = line.split()
    load_verb(verb).make_context(verb, words, resilient_parsing=False).close()


def test_a_slip_is_not_parsed() -> None:
    with pytest.raises(Exception, match="--gpus"):
        load_verb("predict").make_context("predict", ["--gpus", "L4"])


# The protocol.


def asked_of(tmp_path: Path, *rows: tuple[str, str, str, str]) -> Path:
    """Write a bank of (line, quantity, unit, truth)."""
    with (tmp_path / "questions.csv").open("w", encoding="utf-8", newline="") as table:
        writer = csv.writer(table)
        writer.writerow(["id", "line", "quantity", "unit", "truth", "group"])
        writer.writerows((f"q{i}", *row, f"threads/{i}") for i, row in enumerate(rows))
    return tmp_path


def test_a_verdict_is_the_exit_code_and_a_slip_is_wrong_either_way(tmp_path: Path) -> None:
    huge = "predict --layers 80 --hidden 8192 --heads 64 --batch 1 --gpu RTX4090"
    slip = f"predict {STAYS} --precision fp7"
    bank = asked_of(
        tmp_path,
        (f"predict {STAYS}", "fits", "", "yes"), (f"predict {STAYS}", "fits", "", "no"),
        (huge, "fits", "", "no"), (huge, "fits", "", "yes"),
        (slip, "fits", "", "yes"), (slip, "fits", "", "no"),
        (f"predict {STAYS}", "step_time", "s", "0.01"),
    )  # fmt: skip
    rows = typed.read_typed(bank)
    found = evaluate(typed.TYPED, rows, typed.TYPED.answer(rows))
    assert found.overall.rows == 1
    assert found.figures["verdicts_right_fraction"] == 2 / 6
    assert found.figures["said to fit though it failed"] == 1
    assert found.figures["said not to fit though it ran"] == 1
    assert found.figures["answered_fraction"] == 5 / 7
    assert "not understood: q4, q5" in found.notes


def test_inside_is_the_truth_itself_and_a_range_that_meets_the_interval_is_told_apart(
    tmp_path: Path,
) -> None:
    line = f"predict {STAYS}"
    with typed.asking_alone():
        said = typed.ask(line)
    assert said.record is not None
    step = said.record["step_time_s"]
    bank = asked_of(tmp_path, *((line, "step_time", "s", str(truth)) for truth in (
        step["value"], 0.9 * step["low"], 1.1 * step["high"])))  # fmt: skip
    rows = typed.read_typed(bank)
    wide = [replace(one, low=0.8 * one.truth, high=1.2 * one.truth) for one in rows.facts.lines]
    rows = replace(rows, facts=replace(rows.facts, lines=wide))
    found = evaluate(typed.TYPED, rows, typed.TYPED.answer(rows))
    assert found.overall.coverage == pytest.approx(1 / 3)
    assert found.figures["coverage of the truths' ranges"] == 1


def test_values_come_in_the_unit_of_the_question() -> None:
    with typed.asking_alone():
        said = typed.ask(f"predict {STAYS} --total-steps 1000")

    def value(quantity: str, unit: str) -> tuple[float, float, float]:
        line = TypedLine(
            name="", line="", files=(), quantity=quantity,  # type: ignore[arg-type]
            unit=unit, truth=1.0, low=1.0, high=1.0, verdict="", definition="", group="",
        )  # fmt: skip
        return said.value(line)

    step, samples, tokens = (
        np.array(value(*one))
        for one in (("step_time", "s"), ("throughput", "samples/s"), ("throughput", "tokens/s"))
    )
    assert np.allclose(samples * step[[0, 2, 1]], 8)
    assert np.allclose(tokens, 64 * samples)
    assert np.all(np.diff(step[[1, 0, 2]]) > 0)
    hours, minutes = (np.array(value("training_time", unit)) for unit in ("h", "min"))
    assert np.allclose(minutes, 60 * hours)
    gib, gb = (value("memory", unit)[0] for unit in ("GiB", "GB (1e9)"))
    assert gb / gib == 2**30 / 1e9
    assert np.isnan(value("cost", "USD")).all()  # no machine that is sold


def test_the_command_is_asked_alone_and_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the user's own models and settings nor his folder are looked at."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADVISOR_MODELS", str(tmp_path / "none"))
    (tmp_path / "advisor.toml").write_text("coverage = 0.5\n", encoding="utf-8")
    with typed.asking_alone(BANK / "files"):
        assert Path("gpt-oss-120b.json").is_file()
        said = typed.ask(f"predict {STAYS}")
    assert said.record is not None
    assert said.record["step_time_s"]["coverage"] == 0.9
    assert Path.cwd() == tmp_path
    assert not typed.ask("predict --gpu L4").verdict


def test_lines_of_a_fitted_table_are_answered_by_constants_without_it() -> None:
    shipped = Predictor().constants
    for group in ("layouts/vtrain_multi", "blackwell", "mixtures/NVIDIA-NeMo/Megatron-Bridge"):
        table = typed.table_of(group)
        unseen = typed.without(group)
        with unseen.asked():
            assert Predictor().constants.layout.parameters == shipped.layout.folds[table]
        assert not [e for e in unseen.constants.layout.errors if e.table == table]
    assert typed.without("layouts/torchtitan").constants.memory != shipped.memory
    law = typed.without("campaigns/TinyLlama").campaigns
    assert law == typed.campaign_folds()["TinyLlama"]
    assert Predictor().constants is shipped
    assert typed.without("threads").constants is shipped


def test_every_group_of_a_fitted_table_has_a_fold() -> None:
    rows = usable(read_all(data.root("datasets")))
    fitted = {*rows.table, *rows.model}
    folds = set(Predictor().constants.layout.folds)
    laws = set(typed.campaign_folds())
    for group in {line.group for line in LINES}:
        family, _, name = group.partition("/")
        if table := typed.table_of(group):
            assert table in folds or table not in fitted, group
        elif family == "finetune":
            assert f"finetune without model {name}" in folds or name not in fitted, group
        elif family == "campaigns":
            assert name in laws, group


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=20), st.integers(1, 9))
def test_no_value_is_taken_twice_before_every_other_was_taken(
    values: list[str], most: int
) -> None:
    import pandas as pd

    taken = spread(pd.DataFrame({"model": values}), most, ("model",)).model.tolist()
    assert len(taken) == min(most, len(values))
    for value in set(values):
        # Fewer than another only where there are no more of it.
        assert taken.count(value) >= min(values.count(value), max(map(taken.count, values)) - 1)


def test_a_bank_that_is_not_there_or_not_of_this_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AbsentDataError):
        typed.read_bank(tmp_path)
    with pytest.raises(ModelError, match="furlongs"):
        typed.read_bank(asked_of(tmp_path, (f"predict {STAYS}", "step_time", "furlongs", "1")))


def test_an_answer_that_is_not_zero_or_three_is_no_verdict() -> None:
    assert [Said(code=code).verdict for code in (0, 1, 2, 3, 130)] == ["yes", "", "", "no", ""]
