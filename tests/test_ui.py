"""The web application as a server: who may ask it, what it answers, and that it adds nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from typer.testing import CliRunner

from advisor import api
from advisor.cli import app
from advisor.cli.asking import CONSTRAINTS, LAYOUT, SETUP
from advisor.errors import AdvisorError, UsageError
from advisor.predict import Predictor
from advisor.question import ENTRIES, Question
from advisor.ui import controls
from advisor.ui.desk import Desk, SupersededError
from advisor.ui.guard import HEADERS, Keys
from advisor.ui.live_report import LiveReport
from advisor.ui.replies import LONGEST_BODY
from advisor.ui.serve import listening
from advisor.ui.server import application

HERE = "http://127.0.0.1:8123"
# A second of computing at most: one provider, two kinds of small GPUs.
ASKED: dict[str, Any] = {
    "layers": 4, "hidden": 256, "heads": 4, "tokens": "2B", "cloud": "aws", "gpus": "L4,A10G",
}  # fmt: skip
FEW: dict[str, Any] = {"cloud": "aws", "gpus": "L4,A10G"}


@pytest.fixture(scope="module")
def live() -> LiveReport:
    return LiveReport(Question.read(ASKED))


@pytest.fixture(scope="module")
def keys() -> Keys:
    return Keys()


@pytest.fixture(scope="module")
def client(live: LiveReport, keys: Keys) -> Iterator[TestClient]:
    """A browser that has opened the printed address."""
    with TestClient(application(live, keys), base_url=HERE) as one:
        reply = one.get(keys.prefix, params={"token": keys.token})
        assert reply.status_code == 200
        yield one


@pytest.fixture
def stranger(client: TestClient, live: LiveReport, keys: Keys) -> TestClient:
    """Somebody who never saw the address."""
    return TestClient(application(live, keys), base_url=HERE)


def post(client: TestClient, keys: Keys, body: Any = None, **options: Any) -> Any:
    options.setdefault("headers", {"origin": HERE})
    if body is not None:
        options["json"] = body
    return client.post(f"{keys.prefix}api/answer", **options)


def without_facts(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "front": [{**one, "facts": None} for one in record["front"]]}


def test_the_answer_is_that_of_recommend(client: TestClient, keys: Keys) -> None:
    """Number for number: nothing is computed here."""
    reply = post(client, keys, {"question": {**FEW, "budget": "40", "spot": True}})
    assert reply.status_code == 200, reply.text
    said = api.recommend(Question.read({**ASKED, "budget": 40, "spot": True}))
    want = json.loads(json.dumps(said.to_record()))
    assert want["front"]
    shown = reply.json()["data"]["answer"]
    assert all(one["facts"] for one in shown["front"])  # a report says where its numbers are from
    assert without_facts(shown) == without_facts(want)
    assert reply.json()["exit_code"] == 0


def test_the_first_part_of_an_answer_is_the_whole_one_without_changes(
    client: TestClient, keys: Keys
) -> None:
    part = post(client, keys, {"question": FEW, "whole": False}).json()
    whole = post(client, keys, {"question": FEW, "whole": True}).json()
    first, all_of_it = part["data"]["answer"], whole["data"]["answer"]
    assert all_of_it["changes"]
    assert first == {**all_of_it, "changes": []}
    assert (part["is_whole"], whole["is_whole"]) == (False, True)


def test_nothing_that_satisfies_the_constraints_is_an_answer(
    client: TestClient, keys: Keys
) -> None:
    reply = post(client, keys, {"question": {**FEW, "budget": "0.01", "deadline": "1m"}})
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
def test_a_mistake_is_told_in_a_line_and_what_to_do(
    client: TestClient, keys: Keys, question: Any, what: str
) -> None:
    reply = post(client, keys, {"question": question})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert what in error["what"]
    assert error["hint"]
    assert error["exit_code"] == 2
    assert "Traceback" not in reply.text


@pytest.mark.parametrize(
    "name", ["run", "job_file", "model", "runs", "catalogue", "overrides", "cluster_trace"]
)
def test_what_names_a_file_cannot_be_posted(client: TestClient, keys: Keys, name: str) -> None:
    reply = post(client, keys, {"question": {**FEW, name: "/etc/passwd"}})
    assert reply.status_code == 400
    assert "does not apply here" in reply.json()["error"]["what"]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"question": NaN}', 400),
        (b"[" * 5000, 400),
        (b'"' + b"x" * LONGEST_BODY + b'"', 413),
        (b'{"question": {}, "slot": 3}', 400),
        (b'{"question": {}, "whole": "no"}', 400),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(
    client: TestClient, keys: Keys, content: bytes, status: int
) -> None:
    headers = {"origin": HERE, "content-type": "application/json"}
    reply = post(client, keys, content=content, headers=headers)
    assert reply.status_code == status
    assert reply.json()["error"]["hint"]


def test_a_form_of_another_page_is_not_read(client: TestClient, keys: Keys) -> None:
    """What a browser sends across origins without asking first."""
    headers = {"origin": HERE, "content-type": "text/plain"}
    assert post(client, keys, content=b'{"question": {}}', headers=headers).status_code == 415


@pytest.mark.parametrize("token", ["", "wrong", "é"])
def test_without_the_token_nothing_is_shown(stranger: TestClient, keys: Keys, token: str) -> None:
    for reply in (
        stranger.get(keys.prefix, params={"token": token}),
        stranger.get(f"{keys.prefix}other"),
        post(stranger, keys, {"question": {}}),
    ):
        assert reply.status_code == 403
        assert "token" in reply.json()["error"]["what"]
        assert "set-cookie" not in reply.headers


def test_a_person_without_the_token_is_told_on_a_page(stranger: TestClient, keys: Keys) -> None:
    reply = stranger.get(keys.prefix, headers={"accept": "text/html"})
    assert reply.status_code == 403
    assert "<h1>The address lacks its token</h1>" in reply.text
    assert keys.token not in reply.text


def test_the_cookie_is_bound_to_the_server(stranger: TestClient, keys: Keys) -> None:
    reply = stranger.get(keys.prefix, params={"token": keys.token})
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    # Cookies know no ports: one of "/" would be sent to every server on loopback.
    assert f"Path={keys.prefix}" in cookie
    assert keys.token not in cookie
    assert keys.token not in reply.text


@pytest.mark.parametrize("host", ["example.com", "127.0.0.1.example.com", "", "127.0.0.1:80@x.y",
                                  "0.0.0.0:8123", "[::1]:8123", "localhost.:8123"])  # fmt: skip
def test_a_foreign_host_is_refused(client: TestClient, keys: Keys, host: str) -> None:
    """DNS rebinding: the name is the attacker's, the address is ours."""
    for reply in (
        client.get(keys.prefix, params={"token": keys.token}, headers={"host": host}),
        post(client, keys, {"question": {}}, headers={"host": host, "origin": f"http://{host}"}),
    ):
        assert reply.status_code == 400
        assert "data" not in reply.json()


@pytest.mark.parametrize(
    "origin",
    ["http://example.com", "null", "http://127.0.0.1:9", "", "https://127.0.0.1:8123",
     "http://localhost:8123"],
)  # fmt: skip
def test_another_origin_is_refused(client: TestClient, keys: Keys, origin: str) -> None:
    reply = post(client, keys, {"question": FEW}, headers={"origin": origin})
    assert reply.status_code == 403
    assert "access-control-allow-origin" not in reply.headers


def test_a_post_must_name_its_origin(client: TestClient, keys: Keys) -> None:
    assert post(client, keys, {"question": FEW}, headers={}).status_code == 403


@pytest.mark.parametrize("path", ["/", "/favicon.ico", "/api/answer", "/etc/passwd"])
def test_nothing_is_outside_the_prefix(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    "path",
    ["../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "/etc/passwd", "..%2f..%2fetc%2fpasswd",
     "server.py", "assets/ui.js", ".", "ui.js/..", "ui.js%00.css"],
)  # fmt: skip
def test_no_file_is_served(client: TestClient, keys: Keys, path: str) -> None:
    reply = client.get(f"{keys.prefix}{path}")
    assert reply.status_code in (403, 404)
    assert "root:" not in reply.text


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_refused(client: TestClient, keys: Keys, method: str) -> None:
    reply = client.request(method, f"{keys.prefix}api/answer", headers={"origin": HERE})
    assert reply.status_code == 405
    assert "access-control-allow-origin" not in reply.headers


def test_every_reply_has_the_security_headers(
    client: TestClient, stranger: TestClient, keys: Keys
) -> None:
    for reply in (
        client.get(keys.prefix),
        client.get(f"{keys.prefix}other"),
        client.get("/nothing"),
        post(client, keys, {"question": {"budget": "?"}}),
        stranger.get(keys.prefix),
    ):
        policy = reply.headers["content-security-policy"]
        # The page states its own in its head, by the hashes of its scripts.
        assert "default-src 'none'" in policy + reply.text.partition("<body")[0]
        assert "frame-ancestors 'none'" in policy
        assert {name: reply.headers[name] for name in HEADERS} == dict(HEADERS)


def test_it_listens_on_loopback_only_and_a_taken_port_is_told() -> None:
    with listening(0) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        with (
            pytest.raises(AdvisorError, match=f"port {port} is in use") as raised,
            listening(port),
        ):
            pass
        assert "--port" in raised.value.hint
        # The machine's other addresses do not answer.
        with socket.socket() as other, pytest.raises(ConnectionRefusedError):
            other.connect(("127.0.0.2", port))


def test_a_question_that_was_replaced_is_dropped(live: LiveReport) -> None:
    """Of three questions of one slot, asked while another is answered, the newest is answered."""
    import threading

    is_let, answered = threading.Event(), []

    def answer(question: Question, is_whole: bool) -> dict[str, Any]:
        answered.append(question.constraints.max_nodes)
        assert is_let.wait(60)
        return {"nodes": question.constraints.max_nodes}

    async def ask_all() -> list[Any]:
        desk = Desk(answer)
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
    assert (first, last) == ({"nodes": 1}, {"nodes": 4})
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
    "offload": st.booleans(), "overlap": st.booleans(), "kernels": st.sampled_from(["fused"]),
}  # fmt: skip


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_what_is_copied_asks_the_same_question(said: dict[str, Any]) -> None:
    """The command line and the project file, read again, are the question that was shown."""
    import shlex

    base = Question.read(ASKED)
    question = controls.changed(base, said)
    forms = controls.forms(Question.read({k: v for k, v in ASKED.items() if k != "x"}), question)
    assert Question.read(tomllib.loads(forms["toml"])) == question
    verb = _verb()
    context = verb.make_context("recommend", shlex.split(forms["command"])[2:])
    given_values = {n: v for n, v in context.params.items() if n in ENTRIES and v is not None}
    assert Question.read(given_values) == question


def _verb() -> Any:
    from advisor.cli import load_verb

    return load_verb("recommend")


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
    for words in (["ui", "a", "--run", "b"], ["ui", "--port", "70000"]):
        assert CliRunner().invoke(app, words).exit_code == 2 or isinstance(
            CliRunner().invoke(app, words).exception, UsageError
        )


def test_the_latest_run_is_meant_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is recorded while the page is open is another job."""
    from pathlib import Path

    from advisor.ui import live_report as of

    monkeypatch.setattr(of.store, "latest_run", lambda: Path("/runs/digits-7"))
    assert of._with_name(Question()).job.run == "digits-7"
    assert of._with_name(Question.read(ASKED)) == Question.read(ASKED)


def test_a_predictor_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Predictor] = []
    kept = LiveReport.__init__.__globals__["Predictor"]
    monkeypatch.setitem(
        LiveReport.__init__.__globals__, "Predictor", lambda *a: made.append(kept(*a)) or made[-1]
    )
    live = LiveReport(Question.read(ASKED))
    for nodes in (1, 2):
        live.answer(controls.changed(live.question, {**FEW, "max_nodes": nodes}), False)
    assert len(made) == 1
