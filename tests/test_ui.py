"""What ``advisor ui`` answers: that of ``recommend``, and nothing of its own."""

from __future__ import annotations

import asyncio
import json
import shlex
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from everywhere import replace_everywhere
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner
from ui_pages import ASKED, FEW, Opened, opened

from advisor import api
from advisor.ask import CONSTRAINTS, ENTRIES, LAYOUT, SETUP, Question
from advisor.catalogue import Catalogue
from advisor.cli.program import app, load_verb
from advisor.errors import UsageError
from advisor.simulate import comparison
from advisor.ui import controls, live_report
from advisor.ui.desk import Desk, SupersededError, in_thread
from advisor.ui.live_report import LiveReport


@pytest.fixture(scope="module")
def ui() -> Iterator[Opened]:
    with opened() as one:
        yield one


def without_facts(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "front": [{**one, "sources": None} for one in record["front"]]}


def test_the_answer_is_that_of_recommend(ui: Opened) -> None:
    """Number for number: nothing is computed here."""
    reply = ui.post({"question": {**FEW, "budget": "40", "spot": True}})
    assert reply.status_code == 200, reply.text
    question = Question.read({**ASKED, "budget": 40, "spot": True})
    said = api.recommend(question, predictor=ui.live.predictor)
    want = json.loads(json.dumps(said.to_record()))
    assert want["front"]
    shown = reply.json()["data"]["answer"]
    assert all(
        one["sources"] for one in shown["front"]
    )  # a report says where its numbers are from
    assert without_facts(shown) == without_facts(want)
    assert reply.json()["exit_code"] == 0


def test_the_first_part_of_an_answer_is_the_whole_one_without_changes(ui: Opened) -> None:
    part = ui.post({"question": FEW, "whole": False}).json()
    whole = ui.post({"question": FEW, "whole": True}).json()
    first, all_of_it = part["data"]["answer"], whole["data"]["answer"]
    assert all_of_it["changes"]
    # What takes longer: what would change the answer, and where each number is from.
    assert not any(one["sources"] for one in first["front"])
    assert without_facts(first) == without_facts({**all_of_it, "changes": []})
    assert (part["is_whole"], whole["is_whole"]) == (False, True)


def test_nothing_that_satisfies_the_constraints_is_an_answer(ui: Opened) -> None:
    reply = ui.post({"question": {**FEW, "budget": "0.01", "deadline": "1m"}})
    assert reply.status_code == 200
    assert reply.json()["exit_code"] == 3
    assert not reply.json()["data"]["answer"]["front"]


@pytest.mark.parametrize(
    ("question", "what"),
    [
        ({"budget": "plenty"}, "budget"),
        ({"gpus": "no-such-card:1"}, "no-such-card"),
        ({"coverage": "0.7"}, "coverage"),
        ({"cloud": ["aws", "gcp", 3]}, "cloud"),
        ({"budgte": "4"}, "budgte"),
        ({"region": "us\u202e-*"}, "text"),
        ({"region": "x" * 600}, "text"),
        ([], "object"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_a_line_and_what_to_do(ui: Opened, question: Any, what: str) -> None:
    reply = ui.post({"question": question})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert what in error["what"]
    assert error["hint"]
    assert error["exit_code"] == 2
    assert "Traceback" not in reply.text


@pytest.mark.parametrize(
    "name", ["run", "job_file", "model", "runs", "catalogue", "overrides", "cluster_trace"]
)
def test_what_names_a_file_cannot_be_posted(ui: Opened, name: str) -> None:
    reply = ui.post({"question": {**FEW, name: "/etc/passwd"}})
    assert reply.status_code == 400
    assert "does not apply here" in reply.json()["error"]["what"]


def test_a_question_that_was_replaced_is_dropped() -> None:
    """Of three questions of one slot, asked while another is answered, the newest is answered."""
    is_let, answered = threading.Event(), []

    def answer(question: Question, is_whole: bool) -> dict[str, Any]:
        answered.append(question.constraints.max_nodes)
        assert is_let.wait(60)
        return {"nodes": question.constraints.max_nodes}

    async def reply(question: Question, is_whole: bool) -> bytes:
        return json.dumps(await in_thread(lambda: answer(question, is_whole))).encode()

    async def ask_all() -> list[Any]:
        desk = Desk(reply)
        asked = [("other", 1), ("here", 2), ("here", 3), ("here", 4)]
        tasks = []
        for slot, nodes in asked:
            question = Question.read({"max_nodes": nodes})
            tasks.append(asyncio.create_task(desk.ask(slot, question, is_whole=True)))
            await asyncio.sleep(0)
        is_let.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        again = await desk.ask("new", Question.read({"max_nodes": 4}), is_whole=False)
        return [*found, again]

    first, *dropped, last, again = asyncio.run(ask_all())
    assert (json.loads(first), json.loads(last)) == ({"nodes": 1}, {"nodes": 4})
    assert all(isinstance(one, SupersededError) for one in dropped)
    assert len(dropped) == 2
    # An answer that was given is kept.
    assert again == last
    assert answered == [1, 4]


def test_the_page_offers_every_constraint_and_the_whole_layout() -> None:
    assert set(controls.NAMES) >= {*CONSTRAINTS, *LAYOUT, *SETUP}
    assert len(set(controls.NAMES)) == len(controls.NAMES)
    drawn = [one for group in controls.controls(("aws",)) for one in group["controls"]]
    assert [one["name"] for one in drawn] == list(controls.NAMES)
    for group in controls.controls(("aws",), runs=("digits",)):  # as the help of the verb has them
        assert {ENTRIES[one["name"]].panel for one in group["controls"]} == {group["title"]}
    for one in drawn:
        assert one["help"] == ENTRIES[one["name"]].help
        assert one["kind"] != "choice" or one["choices"]


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "budget": st.floats(1e-3, 1e9), "deadline": st.floats(1e-3, 1e5),
    "max_nodes": st.integers(1, 4096), "spot": st.booleans(), "checkpoints": st.booleans(),
    "cloud": st.lists(st.sampled_from(["aws", "gcp", "azure"]), min_size=1, unique=True),
    "gpus": st.sampled_from(["A100:8", "A100:40GB..80GB:1..8", "24GB..:1"]),
    "region": st.text(st.characters(min_codepoint=33, exclude_categories=["C", "Z"]), min_size=1,
                      max_size=12),
    "confidence": st.floats(0.5, 0.99), "coverage": st.sampled_from([0.5, 0.8, 0.9, 0.95]),
    "gain": st.floats(0, 0.9), "tp": st.integers(1, 64), "zero": st.integers(0, 3),
    "offload": st.booleans() | st.just(["optimizer", "gradients"]),
    "loss": st.sampled_from(["fused", "chunked"]), "overlap": st.booleans(),
    "kernels": st.sampled_from(["fused"]),
}  # fmt: skip


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_what_is_copied_asks_the_same_question(said: dict[str, Any]) -> None:
    """The command line and the project file, read again, are the question that was shown."""
    base = Question.read(ASKED)
    question = controls.changed(base, said)
    forms = controls.forms(base, question)
    assert Question.read(tomllib.loads(forms["toml"])) == question
    verb = load_verb("recommend")
    context = verb.make_context("recommend", shlex.split(forms["command"])[2:])
    given_values = {n: v for n, v in context.params.items() if n in ENTRIES and v is not None}
    assert Question.read(given_values) == question


def test_the_command_undoes_what_the_settings_say() -> None:
    """A project file that says ``spot`` holds for the copied command too."""
    base = Question.read({**ASKED, "spot": True})
    command = controls.forms(base, controls.changed(base, {"spot": False}))["command"]
    assert "--on-demand" in command


def test_what_the_command_line_fixed_stays_and_what_the_page_leaves_out_is_open() -> None:
    base = Question.read({**ASKED, "budget": 40})
    question = controls.changed(base, {"deadline": "2h"})
    assert question.job == base.job
    assert question.constraints.budget_usd is None
    assert question.constraints.deadline_h == 2.0


def test_two_runs_and_a_port_out_of_range_are_mistakes() -> None:
    two = CliRunner().invoke(app, ["ui", "a", "--run", "b"])
    assert isinstance(two.exception, UsageError)
    assert CliRunner().invoke(app, ["ui", "--port", "70000"]).exit_code == 2


def test_the_latest_run_is_meant_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is recorded while the page is open is another job."""
    home = "advisor.collectors.derive.store"
    replace_everywhere(monkeypatch, home, "latest_run", lambda: Path("/runs/digits-7"))
    assert live_report.with_name(Question()).job.run == "digits-7"
    assert live_report.with_name(Question.read(ASKED)) == Question.read(ASKED)


def test_the_own_cluster_is_compared_with_every_answer(tmp_path: Path) -> None:
    """As ``recommend --cluster`` compares it, with the question as it was changed."""
    rows = [f"{k},8,{k * 4800},21600" for k in range(50)]
    trace = tmp_path / "jobs.csv"
    trace.write_text("\n".join(["job_id,num_gpu,submit_time,duration", *rows]) + "\n")
    own = {"cluster_trace": str(trace), "cluster": "10x4xV100-SXM2-16GB@100Gbps"}
    live = LiveReport(Question.read({**ASKED, **own}), beside=comparison)
    found = live.answer(controls.changed(live.question, {**FEW, "top": 1}), is_whole=False)
    job = api.job_of(live.question.job)
    question = Question.read({**ASKED, **own, "top": 1})
    answer = api.ranked(job, question, predictor=live.predictor, with_changes=False)
    want = comparison(question, job, answer, live.predictor)
    assert want is not None
    record = json.loads(json.dumps(want.to_record()["own_cluster"]))
    assert found["data"]["answer"]["own_cluster"] == record


def test_the_catalogue_is_read_once(ui: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(Catalogue, "load", refuse)
    assert ui.post({"question": {**FEW, "max_nodes": "2"}, "whole": False}).status_code == 200


def test_a_candidate_is_exported_as_the_verb_does(
    ui: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that is shown beside the file writes the same file."""
    question = FEW
    body = {"question": question, "to": "skypilot", "rank": 1, "values": {}}
    made = ui.post(body, "api/export").json()
    monkeypatch.chdir(tmp_path)
    words = shlex.split(made["command"])[1:]
    assert words[:4] == ["export", "1", "--to", "skypilot"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert done.stdout == next(iter(made["files"].values()))


@pytest.mark.parametrize(
    "wrong", [{"to": "nothing"}, {"to": 3}, {"rank": "1"}, {"rank": True}, {"rank": 99},
              {"values": []}, {"values": {"a": "\n"}}, {"values": {"none-such": "1"}}]
)  # fmt: skip
def test_an_export_that_cannot_be_made_is_told(ui: Opened, wrong: dict[str, Any]) -> None:
    body = {"question": FEW, "to": "skypilot", **wrong}
    reply = ui.post(body, "api/export")
    assert reply.status_code == 400
    assert reply.json()["error"]["hint"]
