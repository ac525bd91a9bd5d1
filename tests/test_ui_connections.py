"""The server of ``advisor ui`` under many connections: slow, silent, and very many at once.

Everything is on loopback, over real sockets, with limits of a second in place of ten.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlencode

import psutil
import pytest
import uvicorn
from collecting import ROOT
from ui_pages import ASKED, FEW

from advisor.ask import Question
from advisor.ui import replies
from advisor.ui.connections import protocol
from advisor.ui.guard import Keys
from advisor.ui.live_report import LiveReport
from advisor.ui.serve import listening_socket
from advisor.ui.server import application

HEADERS_S = 3.0
GRACE_S = 0.5
MOST_IDLE = 40
JOB = ("layers", "hidden", "heads", "tokens")
LONGEST_S = 60.0  # a shared machine stands still for seconds


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A team's server in a thread of this process."""
    app = application(LiveReport(Question.read(ASKED), is_shared=True), Keys.shared())
    connection = protocol(headers_s=HEADERS_S, grace_s=GRACE_S, most_idle=MOST_IDLE)
    config = uvicorn.Config(
        app, http=connection, ws="none", lifespan="off", log_config=None, timeout_keep_alive=60
    )
    server = uvicorn.Server(config)
    with listening_socket(0) as listener:
        running = threading.Thread(target=server.run, args=([listener],), daemon=True)
        running.start()
        yield int(listener.getsockname()[1])
        server.should_exit = True
        running.join(LONGEST_S)


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=LONGEST_S) as found:
        yield found


def head(port: int, line: str = "GET /healthz HTTP/1.1", *more: str) -> bytes:
    return "\r\n".join([line, f"Host: 127.0.0.1:{port}", *more, "", ""]).encode()


def status(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1])


def rest(one: socket.socket) -> bytes:
    """What is read until the server closes the connection."""
    found = b""
    while part := one.recv(65536):
        found += part
    return found


def drip(one: socket.socket, piece: bytes) -> bytes:
    """Send a byte every while, as if it were to go on for ever; return what comes back."""
    one.settimeout(0.1)
    begun = time.monotonic()
    while time.monotonic() - begun < LONGEST_S:
        try:
            one.send(piece)
            if found := one.recv(65536):
                return found
        except TimeoutError:
            continue
        except OSError:
            break
        break
    return b""


def test_headers_that_never_end_are_not_waited_for(port: int) -> None:
    with connected(port) as one:
        one.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        assert status(drip(one, b"x")) == 408


def test_who_says_nothing_is_let_go(port: int) -> None:
    with connected(port) as one:
        begun = time.monotonic()
        try:
            said = rest(one)
        except ConnectionResetError:
            said = b""
        assert said == b""
        assert time.monotonic() - begun >= 0.9 * HEADERS_S


def test_a_second_request_has_the_same_limit(port: int) -> None:
    with connected(port) as one:
        one.sendall(head(port))
        said = b""
        while b"ok" not in said:
            said += one.recv(65536)
        assert status(said) == 200
        one.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        assert status(drip(one, b"x")) == 408


def test_a_body_that_never_ends_is_not_waited_for(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "BODY_S", 0.5)
    with connected(port) as one:
        one.sendall(head(port, "POST /api/recommend HTTP/1.1", "Content-Type: application/json",
                         "Content-Length: 60000"))  # fmt: skip
        assert status(drip(one, b" ")) == 408


def test_the_body_of_a_refused_request_is_not_read_for_ever(port: int) -> None:
    """Refused before it was read; what still comes has the limit of headers."""
    with connected(port) as one:
        one.sendall(head(port, "POST /api/recommend HTTP/1.1", "Origin: http://evil.example.org",
                         "Content-Type: application/json", "Content-Length: 60000"))  # fmt: skip
        while b"hint" not in one.recv(65536):
            continue
        begun = time.monotonic()
        drip(one, b" ")
        assert time.monotonic() - begun < LONGEST_S


def test_silent_connections_keep_nobody_out(port: int) -> None:
    """Three times as many as are kept: the longest idle go, and whoever asks is answered."""
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * MOST_IDLE)]
    try:
        time.sleep(2 * GRACE_S)
        with connected(port) as one:
            one.sendall(head(port, "GET /healthz HTTP/1.1", "Connection: close"))
            assert status(rest(one)) == 200
        left = 0
        for one in silent:
            one.settimeout(0.01)
            try:
                left += bool(one.recv(1))
            except TimeoutError:
                left += 1
            except ConnectionResetError:
                continue
        assert left <= MOST_IDLE
    finally:
        for one in silent:
            one.close()


async def _asked(port: int, path: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(port, f"GET {path} HTTP/1.1", "Connection: close"))
    reply = await reader.read()
    writer.close()
    return status(reply)


def test_two_hundred_clients_at_once_are_all_answered(port: int) -> None:
    """Of a question that nobody asked before, the page and the record, all computed once."""
    query = urlencode({**FEW, "budget": 77})

    async def ask_all() -> list[int]:
        paths = [f"/?{query}", f"/api/recommend?{query}"]
        return await asyncio.gather(*(_asked(port, paths[k % 2]) for k in range(200)))

    assert Counter(asyncio.run(ask_all())) == {200: 200}


def test_two_hundred_questions_are_answered_or_told_when(port: int) -> None:
    """More questions than can wait: each reply is an answer, or says when to come again."""

    async def ask_all() -> list[int]:
        asked = [urlencode({**FEW, "budget": 100 + k}) for k in range(200)]
        return await asyncio.gather(*(_asked(port, f"/api/recommend?{one}") for one in asked))

    found = Counter(asyncio.run(ask_all()))
    assert set(found) == {200, 429}
    assert found[429] > found[200] > 0


@pytest.mark.slow
def test_a_killed_process_is_replaced() -> None:
    """The verb itself, with two processes that answer; they are killed while one does."""
    job = [word for name in JOB for word in (f"--{name}", str(ASKED[name]))]
    words = [sys.executable, "-m", "advisor.cli", "ui", "--serve", "--workers", "2", *job]
    with subprocess.Popen(
        words, cwd=ROOT, env={**os.environ, "PYTHONPATH": ROOT}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        port = int(running.stdout.readline().strip().rstrip("/").rpartition(":")[2])
        workers = [
            one for one in psutil.Process(running.pid).children(recursive=True)
            if "popen_loky" in " ".join(one.cmdline())
        ]  # fmt: skip
        assert len(workers) == 2

        async def ask_and_kill() -> int:
            asked = asyncio.create_task(_asked(port, "/api/recommend?budget=50"))
            await asyncio.sleep(0.2)
            for one in workers:
                one.kill()
            return await asked

        first = asyncio.run(ask_and_kill())
        again = asyncio.run(_asked(port, "/api/recommend?budget=51"))
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=LONGEST_S)
    assert (first, again) == (503, 200)
    assert (running.returncode, said) == (0, "")
    assert not [one for one in workers if one.is_running()]
