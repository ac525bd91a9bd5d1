"""Who may ask the server of ``advisor ui``, and that everybody else gets nothing."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from collecting import ROOT
from ui_pages import FEW, HERE, Opened, opened

from advisor.errors import AdvisorError
from advisor.ui.guard import HEADERS
from advisor.ui.replies import LONGEST_BODY
from advisor.ui.serve import listening_socket


@pytest.fixture(scope="module")
def ui() -> Iterator[Opened]:
    with opened() as one:
        yield one


@pytest.fixture
def stranger(ui: Opened) -> Opened:
    return ui.stranger()


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
def test_a_body_that_cannot_be_read_is_refused(ui: Opened, content: bytes, status: int) -> None:
    headers = {"origin": HERE, "content-type": "application/json"}
    reply = ui.post(content=content, headers=headers)
    assert reply.status_code == status
    assert reply.json()["error"]["hint"]


def test_a_form_of_another_page_is_not_read(ui: Opened) -> None:
    """What a browser sends across origins without asking first."""
    headers = {"origin": HERE, "content-type": "text/plain"}
    assert ui.post(content=b'{"question": {}}', headers=headers).status_code == 415


@pytest.mark.parametrize("token", ["", "wrong", "é"])
def test_without_the_token_nothing_is_shown(stranger: Opened, token: str) -> None:
    for reply in (
        stranger.client.get(stranger.keys.prefix, params={"token": token}),
        stranger.client.get(f"{stranger.keys.prefix}other"),
        stranger.post({"question": {}}),
    ):
        assert reply.status_code == 403
        assert "token" in reply.json()["error"]["what"]
        assert "set-cookie" not in reply.headers


def test_a_person_without_the_token_is_told_on_a_page(stranger: Opened) -> None:
    reply = stranger.client.get(stranger.keys.prefix, headers={"accept": "text/html"})
    assert reply.status_code == 403
    assert "<h1>The address lacks its token</h1>" in reply.text
    assert stranger.keys.token not in reply.text


def test_the_cookie_is_bound_to_the_server(stranger: Opened) -> None:
    reply = stranger.client.get(stranger.keys.prefix, params={"token": stranger.keys.token})
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    # Cookies know no ports: one of "/" would be sent to every server on loopback.
    assert f"Path={stranger.keys.prefix}" in cookie
    assert stranger.keys.token not in cookie
    assert stranger.keys.token not in reply.text


@pytest.mark.parametrize("host", ["example.com", "127.0.0.1.example.com", "", "127.0.0.1:80@x.y",
                                  "0.0.0.0:8123", "[::1]:8123", "localhost.:8123"])  # fmt: skip
def test_a_foreign_host_is_refused(ui: Opened, host: str) -> None:
    """DNS rebinding: the name is the attacker's, the address is ours."""
    for reply in (
        ui.client.get(ui.keys.prefix, params={"token": ui.keys.token}, headers={"host": host}),
        ui.post({"question": {}}, headers={"host": host, "origin": f"http://{host}"}),
    ):
        assert reply.status_code == 400
        assert "data" not in reply.json()


@pytest.mark.parametrize(
    "origin",
    ["http://example.com", "null", "http://127.0.0.1:9", "", "https://127.0.0.1:8123",
     "http://localhost:8123", "http://[", "http://[::1"],
)  # fmt: skip
def test_another_origin_is_refused(ui: Opened, origin: str) -> None:
    reply = ui.post({"question": FEW}, headers={"origin": origin})
    assert reply.status_code == 403
    assert "access-control-allow-origin" not in reply.headers


def test_a_post_must_name_its_origin(ui: Opened) -> None:
    assert ui.post({"question": FEW}, headers={}).status_code == 403


@pytest.mark.parametrize("path", ["/", "/favicon.ico", "/api/answer", "/etc/passwd"])
def test_nothing_is_outside_the_prefix(ui: Opened, path: str) -> None:
    assert ui.client.get(path).status_code == 404


@pytest.mark.parametrize(
    "path",
    ["../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "/etc/passwd", "..%2f..%2fetc%2fpasswd",
     "server.py", "assets/ui.js", ".", "ui.js/..", "ui.js%00.css"],
)  # fmt: skip
def test_no_file_is_served(ui: Opened, path: str) -> None:
    reply = ui.client.get(f"{ui.keys.prefix}{path}")
    assert reply.status_code in (403, 404)
    assert "root:" not in reply.text


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_refused(ui: Opened, method: str) -> None:
    reply = ui.client.request(method, f"{ui.keys.prefix}api/answer", headers={"origin": HERE})
    assert reply.status_code == 405
    assert "access-control-allow-origin" not in reply.headers


def test_every_reply_has_the_security_headers(ui: Opened, stranger: Opened) -> None:
    for reply in (
        ui.client.get(ui.keys.prefix),
        ui.client.get(f"{ui.keys.prefix}other"),
        ui.client.get("/nothing"),
        ui.post({"question": {"budget": "?"}}),
        stranger.client.get(ui.keys.prefix),
    ):
        policy = reply.headers["content-security-policy"]
        # The page states its own in its head, by the hashes of its scripts.
        assert "default-src 'none'" in policy + reply.text.partition("<body")[0]
        assert "frame-ancestors 'none'" in policy
        assert {name: reply.headers[name] for name in HEADERS} == dict(HEADERS)


def test_it_listens_on_loopback_only_and_a_taken_port_is_told() -> None:
    with listening_socket(0) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        with (
            pytest.raises(AdvisorError, match=f"port {port} is in use") as raised,
            listening_socket(port),
        ):
            pass
        assert "--port" in raised.value.hint
        # The machine's other addresses do not answer.
        with socket.socket() as other, pytest.raises(ConnectionRefusedError):
            other.connect(("127.0.0.2", port))


@pytest.mark.slow
def test_the_verb_prints_its_address_and_ends_with_ctrl_c() -> None:
    words = [sys.executable, "-m", "advisor.cli", "ui", "--no-open", "--layers", "4", "--hidden",
             "256", "--heads", "4", "--tokens", "2B", "--cloud", "lambda"]  # fmt: skip
    with subprocess.Popen(
        words, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        address = running.stdout.readline().strip()
        with urllib.request.urlopen(address) as reply:
            assert "<title>transformer: what to rent</title>" in reply.read().decode()
        port = str(urlsplit(address).port)
        second = subprocess.run(
            [*words, "--port", port], cwd=ROOT, text=True, capture_output=True, check=False
        )
        running.send_signal(signal.SIGINT)
        rest, said = running.communicate()
    assert (running.returncode, rest, said) == (0, "", "")
    assert second.returncode == 1
    assert second.stderr.splitlines() == [
        f"error: port {port} is in use", "hint: name another with --port, or leave it out",
    ]  # fmt: skip
