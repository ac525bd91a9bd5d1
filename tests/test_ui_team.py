"""``advisor ui --serve``: questions as addresses, answers as JSON, nothing but asking."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_pages import RUN
from starlette.testclient import TestClient
from test_ui import VALUES, without_facts
from typer.testing import CliRunner
from ui_pages import ASKED, FEW, HERE, Opened

from advisor import api
from advisor.ask import ENTRIES, Question
from advisor.cli.program import app
from advisor.errors import UsageError
from advisor.ui import controls
from advisor.ui.desk import BusyError, Desk
from advisor.ui.guard import Keys
from advisor.ui.live_report import LiveReport
from advisor.ui.server import application

PROXY = "https://advisor.example.org"
JOB = {"layers": 4, "hidden": 256, "heads": 4, "tokens": "2B"}
TASK = """
resources: {infra: lambda, instance_type: gpu_1x_a10}
envs: {ADVISOR_LAYERS: 4, ADVISOR_HIDDEN: 256, ADVISOR_HEADS: 4, ADVISOR_TOKENS: 2B, BUDGET: 9}
"""
SCRIPT = """#!/bin/sh
#SBATCH --nodes=1 --gpus-per-node=8 --time=1:00:00
#ADVISOR layers=4 hidden=256 heads=4 tokens=2B
srun python train.py
"""


@pytest.fixture(scope="module")
def team() -> Iterator[Opened]:
    """A team's page, with the golden run in its store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADVISOR_RUNS", str(RUN.parent))
        live, keys = LiveReport(Question.read(ASKED), is_shared=True), Keys.shared(PROXY)
        with TestClient(application(live, keys), base_url=HERE) as client:
            yield Opened(live, keys, client)


def asked_of(team: Opened, **question: Any) -> dict[str, Any]:
    reply = team.client.get(f"/api/recommend?{urlencode(question)}")
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def recommended(team: Opened, **question: Any) -> dict[str, Any]:
    found = api.recommend(Question.read(question), predictor=team.live.predictor).to_record()
    return without_facts(json.loads(json.dumps(found)))


def test_the_address_and_the_body_are_answered_as_the_verb_does(team: Opened) -> None:
    want = recommended(team, **JOB, **FEW, budget=40)
    assert want["front"]
    assert without_facts(asked_of(team, **JOB, **FEW, budget=40)) == want
    posted = team.client.post("/api/recommend", json={"question": {**JOB, **FEW, "budget": 40}})
    assert without_facts(posted.json()) == want


def test_another_job_leaves_nothing_of_the_servers_own(team: Opened) -> None:
    record = asked_of(
        team, cnn="32:16:2x16,2x32:plain", total_steps=1000, cloud="lambda", max_nodes=1
    )
    assert "tokens" not in str(record["job"]["total_steps_source"])
    record = asked_of(team, budget=40, **FEW)  # without a job: the server's
    assert without_facts(record) == recommended(team, **ASKED, budget=40)


def test_a_run_of_the_store_is_asked_by_its_whole_name(team: Opened) -> None:
    asked = {"run": "run-schema-1", "total_steps": 2000, "cloud": "verda", "max_nodes": 1}
    assert "run-schema-1" in team.client.get("/api/runs").json()["runs"]
    want = recommended(team, **{**asked, "run": str(RUN)})
    assert without_facts(asked_of(team, **asked)) == want


@pytest.mark.parametrize("run", ["latest", "schema", str(RUN), "../golden/run-schema-1"])
def test_no_other_run_is_read(team: Opened, run: str) -> None:
    reply = team.client.get(f"/api/recommend?{urlencode({'run': run})}")
    assert reply.status_code == 400
    assert "no run" in reply.json()["error"]["what"]


@pytest.mark.parametrize(
    "name", ["job_file", "model", "runs", "catalogue", "overrides", "cluster", "cluster_trace"]
)
def test_no_file_is_named_from_outside(team: Opened, name: str) -> None:
    for reply in (
        team.client.get(f"/api/recommend?{name}=/etc/passwd"),
        team.client.post("/api/recommend", json={"question": {name: "/etc/passwd"}}),
        team.client.get(f"/?{name}=/etc/passwd"),
        team.client.get(f"/api/gate?on=g5.xlarge&{name}=/etc/passwd"),
    ):
        assert reply.status_code == 400
        assert "does not apply here" in reply.json()["error"]["what"]


@given(st.fixed_dictionaries({}, optional=VALUES), st.booleans())
def test_an_address_asks_the_same_question_again(said: dict[str, Any], with_job: bool) -> None:
    base = Question.read(ASKED)
    posted = {**said, **(JOB if with_job else {})}
    question = controls.changed(base, posted, controls.TEAM_NAMES)
    query = controls.forms(base, question, controls.TEAM_NAMES)["query"]
    again = controls.changed(
        Question.read({"layers": 2, "hidden": 64, "heads": 2, "epochs": 1}),
        controls.read_query(parse_qsl(query)), controls.TEAM_NAMES,
    )  # fmt: skip
    assert again == question


@pytest.mark.parametrize(
    ("query", "what"), [("budget=1&budget=2", "twice"), ("spot=often", "yes")]
)
def test_an_address_that_cannot_be_read_is_told(team: Opened, query: str, what: str) -> None:
    reply = team.client.get(f"/api/recommend?{query}")
    assert (reply.status_code, reply.json()["error"]["exit_code"]) == (400, 2)
    assert what in reply.json()["error"]["what"]


def test_the_page_shows_the_question_of_its_address(team: Opened) -> None:
    reply = team.client.get(f"/?{urlencode({**JOB, **FEW, 'budget': 40})}")
    assert reply.status_code == 200
    parts = dict(
        re.findall(r'<script type="application/json" id="(\w+)">(.*?)</script>', reply.text)
    )
    live = json.loads(parts["live"])
    assert (live["is_shared"], live["asked"]["answers"]["budget"]) == (True, 40.0)
    assert json.loads(parts["data"])["asked"]["budget"] == 40.0
    names = [one["name"] for group in live["groups"] for one in group["controls"]]
    assert set(names) == set(controls.TEAM_NAMES)


def _gate(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["gate", "--json", *words])
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "passes": done.exit_code == 0}


@pytest.mark.parametrize("budget", ["0.01", "500"])
def test_machines_are_judged_as_the_verb_does(team: Opened, budget: str) -> None:
    job = {**JOB, "budget": budget}
    flags = [word for name, value in job.items() for word in (f"--{name}", str(value))]
    want = _gate("--on", "aws:g5.xlarge", "--count", "2", *flags)
    query = urlencode({"on": "aws:g5.xlarge", "count": 2, **job})
    assert team.client.get(f"/api/gate?{query}").json() == want
    body = {"on": "aws:g5.xlarge", "count": 2, "question": job}
    assert team.client.post("/api/gate", json=body).json() == want
    assert want["passes"] is (budget == "500")


def test_submissions_are_judged_as_the_verb_does(team: Opened, tmp_path: Path) -> None:
    task, script = tmp_path / "task.yaml", tmp_path / "train.sbatch"
    task.write_text(TASK)
    script.write_text(SCRIPT)
    machine = "8xA100-80GB:nvlink@200Gbps"
    for body, words in (
        ({"skypilot": TASK}, ["--skypilot", str(task)]),
        ({"script": SCRIPT, "partitions": {"gpu": machine}},
         ["--partition", f"gpu={machine}", "--sbatch", "--", str(script)]),
    ):  # fmt: skip
        reply = team.client.post("/api/gate", json=body)
        assert reply.status_code == 200, reply.text
        want = _gate(*words)
        assert want["run"]
        assert reply.json() == want


@pytest.mark.parametrize("said", ["run=latest", "job=/etc/passwd", "model=/etc"])
def test_a_submission_names_no_file_either(team: Opened, said: str) -> None:
    """What cannot be judged passes with a note, as of the verb; strictly it is refused."""
    text = SCRIPT.replace("layers=4 hidden=256 heads=4 tokens=2B", said)
    for strict in (False, True):
        body = {"script": text, "partitions": {"gpu": "8xA100-80GB"}, "strict": strict}
        found = team.client.post("/api/gate", json=body).json()
        assert (found["run"], found["passes"]) == ("", not strict)


@pytest.mark.parametrize(
    "body", [{}, {"on": "g5.xlarge", "script": "x"}, {"on": 3}, {"on": "no-such"},
             {"on": "g5.xlarge", "count": 0}, {"script": "x", "partitions": []}]
)  # fmt: skip
def test_what_the_gate_cannot_read_is_told(team: Opened, body: dict[str, Any]) -> None:
    reply = team.client.post("/api/gate", json={"question": JOB, **body})
    assert reply.status_code == 400
    assert reply.json()["error"]["hint"]


def test_openapi_describes_what_is_answered(team: Opened) -> None:
    found = team.client.get("/openapi.json").json()
    assert found["openapi"].startswith("3.1")
    assert set(found["paths"]) == {"/", "/api/recommend", "/api/gate", "/api/runs", "/healthz"}
    known = set(found["components"]["responses"]) | set(found["components"]["schemas"])
    assert set(re.findall(r'"#/components/\w+/(\w+)"', json.dumps(found))) <= known
    names = [one["name"] for one in found["paths"]["/api/recommend"]["get"]["parameters"]]
    assert names == list(controls.TEAM_NAMES)
    assert set(names) <= set(ENTRIES)
    wrong = team.client.get("/api/recommend?budget=plenty").json()
    jsonschema.validate(wrong, found["components"]["schemas"]["Error"])
    jsonschema.validate({**JOB, **FEW}, found["components"]["schemas"]["Question"])
    assert team.client.get("/healthz").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "advisor.example.org", "origin": PROXY}, 200),  # the proxy keeps the Host
        ({"host": "advisor.example.org:443", "origin": PROXY}, 200),
        ({"host": "advisor.example.org:443@evil.example.org"}, 400),
        ({"origin": PROXY}, 200),  # the proxy names this server
        ({}, 200),  # a program
        ({"origin": "https://evil.example.org"}, 403),
        ({"origin": "http://["}, 403),
        ({"host": "evil.example.org"}, 400),
        ({"host": "advisor.example.org", "origin": "http://advisor.example.org"}, 403),
    ],
)
def test_the_proxys_address_is_the_servers_own(
    team: Opened, headers: dict[str, str], status: int
) -> None:
    reply = team.client.post("/api/recommend", json={"question": FEW}, headers=headers)
    assert reply.status_code == status
    assert "set-cookie" not in reply.headers


def test_another_sites_page_asks_nothing_but_a_link_is_followed(team: Opened) -> None:
    crossing = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert team.client.get("/api/runs", headers=crossing).status_code == 403
    linked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert team.client.get("/", headers=linked).status_code == 200


def test_a_proxy_that_serves_a_folder_is_known_by_its_path() -> None:
    keys = Keys.shared(f"{PROXY}/advisor/")
    live = LiveReport(Question.read(ASKED), is_shared=True)
    with TestClient(application(live, keys), base_url=HERE) as client:
        assert client.get("/advisor/healthz").status_code == 200
        assert client.get("/healthz").status_code == 404
    for wrong in ("advisor.example.org", "ftp://example.org", "http://["):
        with pytest.raises(UsageError, match="proxy's address"):
            Keys.shared(wrong)


def test_nothing_is_written(team: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked: the folders of a user that was never here stay empty."""
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    asked_of(team, **JOB, **FEW, budget=41)
    team.client.get(f"/?{urlencode({**JOB, **FEW, 'budget': 42})}")
    team.client.post("/api/gate", json={"script": SCRIPT, "partitions": {"gpu": "8xA100-80GB"}})
    body = {"question": {**JOB, **FEW}, "to": "skypilot", "rank": 1}
    assert team.client.post("/api/export", json=body).status_code == 200
    assert list(tmp_path.rglob("*")) == []


# The queue.


def counting() -> tuple[list[Question], Callable[[Question, bool], Awaitable[bytes]]]:
    """Return what was asked, and what answers it after a while."""
    asked: list[Question] = []

    async def answer(question: Question, is_whole: bool) -> bytes:
        asked.append(question)
        await asyncio.sleep(0.01)
        return b"{}"

    return asked, answer


def test_many_who_ask_the_same_are_answered_once() -> None:
    asked, answer = counting()

    async def ask_all() -> list[bytes]:
        desk = Desk(answer, at_once=2)
        question = Question.read({"max_nodes": 3})
        return await asyncio.gather(*(desk.ask("", question, is_whole=False) for _ in range(200)))

    assert asyncio.run(ask_all()) == [b"{}"] * 200
    assert len(asked) == 1


def test_who_finds_the_queue_full_is_told_when_to_come_again() -> None:
    """Two are answered at a time and three wait; nobody who was let in is turned away."""
    most = 0

    async def ask_all() -> list[Any]:
        now, is_let = 0, asyncio.Event()

        async def answer(question: Question, is_whole: bool) -> bytes:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await is_let.wait()
            now -= 1
            return str(question.constraints.max_nodes).encode()

        desk = Desk(answer, at_once=2, most_waiting=3)
        tasks = []
        for nodes in range(1, 9):
            question = Question.read({"max_nodes": nodes})
            tasks.append(asyncio.create_task(desk.ask("", question, is_whole=False)))
            await asyncio.sleep(0.001)
        is_let.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(ask_all())
    assert found[:5] == [b"1", b"2", b"3", b"4", b"5"]
    assert most == 2
    assert all(isinstance(one, BusyError) for one in found[5:])
    # Five answers before theirs, two at a time: longer than one answer takes, shorter than five.
    assert 5 < found[-1].retry_after_s < 25


def test_the_full_queue_is_said_in_http() -> None:
    live = LiveReport(Question.read(ASKED), is_shared=True)
    with TestClient(application(live, Keys.shared(), most_waiting=0), base_url=HERE) as client:
        other = urlencode({**FEW, "budget": 41})
        reply = client.get(f"/api/recommend?{other}")
        assert reply.status_code == 429
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.headers["retry-after"] in reply.json()["error"]["hint"]
        page = client.get(f"/?{other}", headers={"accept": "text/html"})
        assert page.status_code == 429
        assert page.headers["refresh"] == page.headers["retry-after"]  # a browser asks again
        assert client.get("/").status_code == 200  # what was answered already


def test_ten_questions_of_two_hundred_people_are_ten_answers() -> None:
    """One process answers, and nobody is sent away."""
    asked, answer = counting()

    async def ask_all() -> list[bytes]:
        desk = Desk(answer)
        questions = [Question.read({"max_nodes": 1 + place % 10}) for place in range(200)]
        return await asyncio.gather(*(desk.ask("", one, is_whole=True) for one in questions))

    assert asyncio.run(ask_all()) == [b"{}"] * 200
    assert len(asked) == 10
