"""Settings: the strongest place counts, every place is named, and one table says what is set."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from everywhere import replace_everywhere
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor.ask import (
    CONSTRAINTS,
    ENTRIES,
    JOB,
    Question,
    read_environment,
    settings,
    stated,
    unknown_variables,
    variable_of,
)
from advisor.cli.options import ask
from advisor.cli.program import app
from advisor.collectors.derive import store
from advisor.errors import UsageError

NAMES = (*JOB, *CONSTRAINTS, "catalogue", "overrides")
# From weak to strong, as the documentation orders them.
PLACES = ("user", "project", "environment", "file", "flag")
runner = CliRunner()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder, and a user's folders of its own."""
    for kind in ("CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "config" / "advisor").mkdir(parents=True)
    monkeypatch.chdir(project)
    return project


def state(folder: Path, monkeypatch: pytest.MonkeyPatch, place: str, value: int) -> dict[str, Any]:
    """Say ``max_nodes`` in one place; return what ``ask`` is given for it."""
    if place == "user":
        path = folder.parent / "config" / "advisor" / "advisor.toml"
        path.write_text(f"max_nodes = {value}\n")
    elif place == "project":
        (folder / "advisor.toml").write_text(f"max_nodes = {value}\n")
    elif place == "environment":
        monkeypatch.setenv("ADVISOR_MAX_NODES", str(value))
    elif place == "file":
        (folder / "question.json").write_text(json.dumps({"max_nodes": value}))
        return {"file": folder / "question.json"}
    else:
        return {"given": {"max_nodes": str(value)}}
    return {}


@pytest.mark.parametrize("said", [
    [place for bit, place in enumerate(PLACES) if mask >> bit & 1] for mask in range(32)
])  # fmt: skip
def test_the_strongest_place_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    asked: dict[str, Any] = {"given": {}}
    for place in said:
        asked |= state(folder, monkeypatch, place, 10 + PLACES.index(place))
    given = asked.pop("given")
    found = ask(given, names=NAMES, **asked).constraints.max_nodes
    assert found == (10 + PLACES.index(said[-1]) if said else 8)


def test_what_counts_and_where_it_stands_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("user", "project", "environment"):
        state(folder, monkeypatch, place, 10 + PLACES.index(place))
    (folder / "advisor.toml").write_text("max_nodes = 11\nbudget = 5\n")
    ask({}, names=NAMES)
    assert capsys.readouterr().err.splitlines() == [
        "note: set in the environment: ADVISOR_MAX_NODES", "note: advisor.toml says budget",
    ]  # fmt: skip


@given(st.dictionaries(st.sampled_from(["budget", "max_nodes", "top"]), st.integers(1, 50)))
def test_the_environment_is_read_as_flags_are(values: dict[str, int]) -> None:
    environ = {variable_of(name): str(value) for name, value in values.items()}
    read = Question.read(read_environment(environ))
    assert read == Question.read({name: str(value) for name, value in values.items()})


@pytest.mark.parametrize("name", sorted(set(ENTRIES) - {"runs"}))
def test_every_option_can_be_set_in_the_environment(name: str) -> None:
    entry = ENTRIES[name]
    if not entry.kind.metavar:
        assert read_environment({variable_of(name): "1"}) == {name: True}
        assert read_environment({variable_of(name): "off"}) == {name: False}
        with pytest.raises(UsageError, match=variable_of(name)):
            read_environment({variable_of(name): "perhaps"})
    assert read_environment({variable_of(name): ""}) == {}
    assert unknown_variables({variable_of(name): "1"}) == {}


def test_a_variable_that_makes_no_sense_is_named() -> None:
    with pytest.raises(UsageError, match=r"ADVISOR_BUDGET.*plenty") as error:
        read_environment({"ADVISOR_BUDGET": "plenty"})
    assert error.value.hint
    assert unknown_variables({"ADVISOR_BUGDET": "5"}) == {"ADVISOR_BUGDET": "ADVISOR_BUDGET"}


def test_the_folder_of_runs_is_no_answer_to_a_question() -> None:
    assert read_environment({"ADVISOR_RUNS": "/somewhere"}) == {}


def test_doctor_says_what_is_set_where(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("user", "project", "environment"):
        state(folder, monkeypatch, place, 10 + PLACES.index(place))
    (found,) = [one for one in settings(folder, os.environ) if one.name == "max_nodes"]
    assert (found.value, found.place) == ("12", "the environment")
    assert [text.rpartition(": ")[2] for text in found.beaten] == ["10", "11"]
    monkeypatch.setenv("ADVISOR_BUGDET", "5")
    replace_everywhere(
        monkeypatch, "advisor.collectors.watch.benchmark", "cached_or_measured", lambda: None
    )
    shown = runner.invoke(app, ["doctor"])
    assert shown.exit_code == 0, shown.output
    (line,) = [line for line in shown.output.splitlines() if line.startswith("max_nodes")]
    assert line.split()[1:4] == ["12", "the", "environment"]
    assert "advisor.toml: 11" in line
    assert "ADVISOR_BUGDET is not a setting; did you mean ADVISOR_BUDGET?" in shown.output
    record = json.loads(runner.invoke(app, ["doctor", "--json"]).output)
    assert {one["name"] for one in record["settings"]} == {"max_nodes", "runs_folder"}


@pytest.mark.parametrize("place", ["user", "project"])
def test_a_file_can_say_where_runs_are_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    file = folder / "advisor.toml"
    if place == "user":
        file = folder.parent / "config" / "advisor" / "advisor.toml"
    file.write_text('runs_folder = "kept"\n')
    monkeypatch.setenv("ADVISOR_RUNS", "")  # what the verb sets is undone after the test
    run = store.new_run("mine", file.parent / "kept")
    listed = json.loads(runner.invoke(app, ["runs", "list", "--json"]).output)
    assert [one["run"] for one in listed["runs"]] == [run.name]
    assert next(one.name for one in settings(folder, {})) == "runs_folder"
    assert stated(folder, {}) == [] or stated(folder, {})[0][1] == {}


def test_the_environment_goes_before_the_file_that_says_where_runs_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "advisor.toml").write_text('runs_folder = "kept"\n')
    monkeypatch.setenv("ADVISOR_RUNS", str(folder / "elsewhere"))
    (found,) = [one for one in settings(folder, os.environ) if one.name == "runs_folder"]
    assert (found.value, found.place) == (str(folder / "elsewhere"), "ADVISOR_RUNS")
    assert found.beaten == (f"advisor.toml: {folder / 'kept'}",)


@pytest.mark.parametrize("content", ["runs_folder = 3", 'runs_folder = ""', "= 3"])
def test_a_wrong_file_is_named(folder: Path, content: str) -> None:
    (folder / "advisor.toml").write_text(content)
    with pytest.raises(UsageError, match=r"advisor\.toml") as error:
        stated(folder, {})
    assert error.value.hint


def test_overrides_of_ones_own_are_used_wherever_they_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A price of one's own, through the flag, the environment, the file and Python."""
    from advisor.api import recommend

    (folder / "mine.csv").write_text(
        "rule,provider,instance_type,pricing,value\nprice,aws,g5.xlarge,on-demand,0.001\n"
    )
    words = ["--layers", "4", "--hidden", "256", "--heads", "4", "--tokens", "10M", "--json",
             "--cloud", "aws", "--gpus", "A10G:1", "--max-nodes", "1"]  # fmt: skip

    def cheapest(*more: str) -> float:
        done = runner.invoke(app, ["recommend", *words, *more])
        assert done.exit_code == 0, done.output
        front = json.loads(done.stdout)["front"]
        prices = (part["price_usd_per_h"] for one in front for part in one["configuration"])
        return float(min(prices))

    assert cheapest() > 0.001
    assert cheapest("--overrides", "mine.csv") == 0.001
    monkeypatch.setenv("ADVISOR_OVERRIDES", "mine.csv")
    assert cheapest() == 0.001
    monkeypatch.delenv("ADVISOR_OVERRIDES")
    (folder / "advisor.toml").write_text('overrides = "mine.csv"\n')
    assert cheapest() == 0.001
    found = recommend(layers=4, hidden=256, heads=4, tokens="10M", cloud="aws",
                      gpus="A10G:1", max_nodes=1,
                      overrides=folder / "mine.csv")  # fmt: skip
    prices = [one.configuration.price_usd_per_h for one in found.front]
    assert min(prices) == 0.001


def _said_for_a_verb(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: str, value: int
) -> None:
    """Say how many nodes ``simulate spot`` has in one place."""
    if place == "environment":
        monkeypatch.setenv("ADVISOR_SIMULATE_SPOT_NODES", str(value))
        return
    user = folder.parent / "config" / "advisor" / "advisor.toml"
    path = user if place == "user" else folder / "advisor.toml"
    path.write_text(f"[simulate.spot]\nnodes = {value}\nrestart = '7m'\n")


@pytest.mark.parametrize("said", [
    [place for bit, place in enumerate(("user", "project", "environment", "flag"))
     if mask >> bit & 1] for mask in range(16)
])  # fmt: skip
def test_a_verb_of_its_own_reads_settings_in_the_same_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    order = ["user", "project", "environment", "flag"]
    for place in said:
        if place != "flag":
            _said_for_a_verb(folder, monkeypatch, place, 2 + order.index(place))
    flags = ["--nodes", str(2 + order.index("flag"))] if "flag" in said else []
    done = runner.invoke(app, ["simulate", "spot", "--hours", "1", "--json", *flags])
    assert done.exit_code == 0, done.output
    job = json.loads(done.stdout)["job"]
    assert job["nodes"] == (2 + order.index(said[-1]) if said else 1)
    assert job["restart_s"] == (420.0 if {"user", "project"} & set(said) else 300.0)


def test_a_setting_can_stand_for_a_required_option_and_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "pyproject.toml").write_text(
        "[tool.advisor]\ndeadline = '3h'\n[tool.advisor.simulate.failures]\n"
        "devices = 64\n[tool.advisor.train.models]\ndata = ['nowhere']\n"
    )
    monkeypatch.setenv("ADVISOR_SIMULATE_FAILURES_HOURS", "90m")
    done = runner.invoke(app, ["simulate", "failures", "--json"])
    assert done.exit_code == 0, done.output
    assert "pyproject.toml says simulate.failures.devices" in done.stderr
    assert "the environment says simulate.failures.hours" in done.stderr
    spot = runner.invoke(app, ["simulate", "spot", "--hours", "1", "--json"])
    assert json.loads(spot.stdout)["job"]["deadline_s"] == 3 * 3600
    trained = runner.invoke(app, ["train", "--seed", "1"])
    assert "nowhere" in str(trained.exception)
    assert "pyproject.toml says train.models.data" in trained.stderr


def test_validate_reads_settings(folder: Path) -> None:
    (folder / "advisor.toml").write_text("[validate]\nblind = true\n")
    (folder / "mine.csv").write_text("a,b\n1,2\n")
    done = runner.invoke(app, ["validate", "mine.csv"])
    assert "--blind scores a protocol" in str(done.exception)


@pytest.mark.parametrize(("text", "message", "hint"), [
    ("[simulate.spot]\nrestrat = '1m'", "has no option --restrat", "did you mean restart?"),
    ("[simulat.spot]\nnodes = 1", "there is no verb 'simulat'", "did you mean simulate?"),
    ("[simulate]\nspot = 3", "cannot read simulate.spot as a table", "write [simulate.spot]"),
])  # fmt: skip
def test_what_names_no_verb_or_option_is_refused(
    folder: Path, text: str, message: str, hint: str
) -> None:
    (folder / "advisor.toml").write_text(text)
    done = runner.invoke(app, ["simulate", "spot", "--hours", "1"])
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)
    assert "advisor.toml" in str(done.exception)
    assert done.exception.hint == hint


def test_doctor_shows_the_settings_of_every_verb(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("user", "project", "environment"):
        _said_for_a_verb(folder, monkeypatch, place, len(place))
    monkeypatch.setenv("ADVISOR_SIMULATE_SPOT_NODS", "5")
    replace_everywhere(
        monkeypatch, "advisor.collectors.watch.benchmark", "cached_or_measured", lambda: None
    )
    shown = runner.invoke(app, ["doctor"])
    assert shown.exit_code == 0, shown.output
    (line,) = [one for one in shown.output.splitlines() if one.startswith("simulate.spot.nodes")]
    assert line.split()[1:4] == ["11", "the", "environment"]
    assert "advisor.toml: 7" in line
    assert "_NODS is not a setting; did you mean ADVISOR_SIMULATE_SPOT_NODES?" in shown.output
