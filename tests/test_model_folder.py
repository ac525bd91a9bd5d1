"""Every fitted model says what made it, and making it again gives the same bytes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor import data
from advisor.cli.train import app
from advisor.errors import ModelError, UsageError
from advisor.lab.data.dataset import note_frame
from advisor.lab.fit import check, verbs
from advisor.records import reads
from advisor.train import folder as model_folder

RUN = CliRunner()
FOLDERS = sorted(p.name for p in data.root("trained_models").iterdir() if p.is_dir())


@pytest.mark.parametrize("name", FOLDERS)
def test_every_shipped_model_names_its_command_day_and_inputs(name: str) -> None:
    folder = data.root("trained_models") / name
    card = (folder / "card.md").read_text(encoding="utf-8")
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    assert shlex.split(metrics["command"])[:2] == ["advisor", "train"]
    assert metrics["command"].endswith(f"--day {metrics['day']}")
    assert check.command_of(folder) == metrics["command"]
    assert f"`{metrics['command']}`" in card
    assert metrics["inputs"], "a fit that read nothing"
    for table, digest in metrics["inputs"].items():
        assert len(digest) == 64
        assert f"| {table} | `{digest}` |" in card
    assert name in check.COMMANDS


@pytest.mark.parametrize("name", FOLDERS)
def test_a_card_says_nothing_that_its_metrics_do_not(name: str) -> None:
    """The card is written from ``metrics.json`` and ``about.md``: neither is edited by hand."""
    folder = data.root("trained_models") / name
    if name in ("runs", "runs_cost"):
        pytest.skip("its card has the ranges too; test_models has its laws")
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    about = (folder / model_folder.ABOUT).read_text(encoding="utf-8")
    card = (folder / "card.md").read_text(encoding="utf-8")
    assert card == verbs.card_of(name, metrics, about)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", check.QUICK)
def test_fitting_a_shipped_model_again_gives_the_same_bytes(name: str) -> None:
    folder = check.folder_of(name)
    try:
        assert check.check(folder).differences == ()
    except ModelError as error:
        if "not here" in str(error) or "not under" in str(error):
            pytest.skip(str(error))
        raise


def test_a_layout_model_is_written_into_the_folder_that_out_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended in a traceback after five minutes: the folder was taken for the file."""
    from test_layout_model import written

    written(tmp_path / "data" / "planners" / "measured_layouts.csv")
    out = tmp_path / "out"
    asked = ["layout-model", "--data", str(tmp_path / "data"), "--day", "2026-01-02"]
    ended = RUN.invoke(app, [*asked, "--out", str(out)], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    made = {f.name: f.read_bytes() for f in out.iterdir()}
    assert set(made) == {"parameters.json", "metrics.json", "card.md"}
    again = tmp_path / "again"
    RUN.invoke(app, [*asked, "--out", str(again)], catch_exceptions=False)
    assert {f.name: f.read_bytes() for f in again.iterdir()} == made
    assert check.compare(out, again) == []
    # The command on the card is the one that was given, but for the folder it was written to.
    assert check.command_of(out) == shlex.join(["advisor", "train", *asked])


@pytest.mark.parametrize(
    "verb", ["layout-model", "device-model", "scaling", "memory", "campaigns"]
)
def test_a_folder_that_cannot_be_written_is_refused_before_the_fit(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("the fit began")

    monkeypatch.setattr("advisor.data.measurements", never)
    monkeypatch.setattr("advisor.lab.fit.campaigns.read_campaigns", never)
    file = tmp_path / "parameters.json"
    file.write_text("kept")
    ended = RUN.invoke(app, [verb, "--out", str(file)])
    assert isinstance(ended.exception, UsageError)
    assert "is not a folder" in str(ended.exception)
    assert file.read_text() == "kept"


def test_a_changed_constant_is_told_with_its_size(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, value in ((old, 2.0), (new, 2.1)):
        folder.mkdir()
        (folder / "parameters.json").write_text(json.dumps({"a": {"b": [1.0, value]}}))
        (folder / "same.csv").write_text("x")
        (folder / "about.md").write_text(f"by hand {value}")
    (new / "more.json").write_text("{}")
    told = check.compare(old, new)
    assert told[0] == "more.json: only in the new fit"
    assert "1 values differ" in told[1]
    assert "a.b[1]: 2.0 was fitted, now 2.1" in told[1]
    assert len(told) == 2


@pytest.mark.parametrize("command", [None, "rm -rf /", 5, "advisor validate gpu"])
def test_only_training_commands_are_run_again(tmp_path: Path, command: object) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps({"command": command}))
    with pytest.raises(ModelError, match=r"command|how it was fitted"):
        check.command_of(tmp_path)


def test_a_day_is_a_day() -> None:
    assert model_folder.day_of("2026-02-28") == "2026-02-28"
    for text in ("2026-02-30", "yesterday", ""):
        with pytest.raises(UsageError, match="cannot read"):
            model_folder.day_of(text)


@given(
    st.recursive(
        st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(max_size=3),
        lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=3), part),
        max_leaves=8,
    ),
    st.integers(2, 9),
)
@settings(max_examples=60, deadline=None)
def test_rounding_is_near_and_rounding_again_changes_nothing(value: object, digits: int) -> None:
    once = verbs.rounded(value, digits)
    assert verbs.rounded(once, digits) == once
    if isinstance(value, float):
        assert once == pytest.approx(value, rel=10.0 ** (1 - digits))


def test_writing_keeps_what_else_lies_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    origin = model_folder.origin("scaling", {"a/b": "f" * 64}, "2026-01-02")
    errors = {"errors": {"a": {"rows": 3, "mean": 0.25}}, "rows": 3}
    verbs.write("scaling", tmp_path, origin, {"parameters.json": "{}\n"}, errors)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert list(metrics)[:4] == list(model_folder.ORIGIN)
    card = (tmp_path / "card.md").read_text()
    assert "| a | 3 | 0.25 |" in card
    assert "Rows: 3" in card


def test_what_is_read_is_noted_whatever_the_order_of_its_rows() -> None:
    frame = pd.DataFrame({"a": [1, 2, 3], "b": [0.1, 0.2, 0.3]})
    shuffled = frame.sample(frac=1.0, random_state=1)
    with reads.tables_read() as outer:
        with reads.tables_read() as one:
            note_frame("t", frame)
        with reads.tables_read() as other:
            note_frame("t", shuffled)
        with reads.tables_read() as changed:
            note_frame("t", frame.assign(b=np.nextafter(frame["b"], 1)))
    assert one == other
    assert one != changed
    assert set(outer) == {"t"}
    note_frame("t", frame)  # nobody collects: nothing happens
    assert set(one) == {"t"}


def test_the_layout_models_metrics_are_of_the_tables_it_names() -> None:
    folder = data.root("trained_models") / "layout_model"
    fitted_on = json.loads((folder / "parameters.json").read_text())["fitted_on"]
    left_out = json.loads((folder / "metrics.json").read_text())["left_out"]
    assert {row["table"] for row in left_out} <= set(fitted_on)
