"""A real HTTP server on loopback that behaves, or misbehaves, as a test says."""

from __future__ import annotations

import contextlib
import gzip
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[["Handler"], None]


@dataclass
class Site:
    """What the server answers: for each path a list of answers, the last one for ever.

    ``seen`` holds the path and headers of every request.
    """

    base: str = ""
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def put(self, path: str, *answers: Answer) -> None:
        """Say how to answer a path."""
        self.answers[path] = list(answers)

    def paths(self) -> list[str]:
        """Return the paths asked for, in order."""
        return [path for path, _ in self.seen]


class Handler(BaseHTTPRequestHandler):
    """Answers as the site says."""

    site: Site
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.site.seen.append((self.path, dict(self.headers)))
        answers = self.site.answers.get(self.path) or [status(404)]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            answer(self)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving() -> Iterator[Site]:
    """Run a server until the block ends."""
    site = Site()
    handler = type("Own", (Handler,), {"site": site})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    site.base = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def content(
    body: bytes, content_type: str = "application/json", headers: dict[str, str] | None = None
) -> Answer:
    """Answer with a body."""

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def with_etag(body: bytes, etag: str) -> Answer:
    """Answer with a body, or with 304 to who has it already."""

    def answer(handler: Handler) -> None:
        if handler.headers.get("If-None-Match") == etag:
            handler.send_response(304)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        else:
            content(body, headers={"ETag": etag})(handler)

    return answer


def status(code: int, headers: dict[str, str] | None = None) -> Answer:
    """Answer with a status and no body."""

    def answer(handler: Handler) -> None:
        handler.send_response(code)
        for name, value in {"Content-Length": "0", **(headers or {})}.items():
            handler.send_header(name, value)
        handler.end_headers()

    return answer


def truncated(body: bytes) -> Answer:
    """Promise a body and hang up in the middle of it."""

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: len(body) // 2])
        handler.close_connection = True

    return answer


def dribbling(body: bytes, pause_s: float) -> Answer:
    """Send a byte, wait, send a byte, wait."""

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        for at in range(len(body)):
            handler.wfile.write(body[at : at + 1])
            handler.wfile.flush()
            time.sleep(pause_s)

    return answer


def silent(pause_s: float) -> Answer:
    """Say nothing for a while, then hang up."""

    def answer(handler: Handler) -> None:
        time.sleep(pause_s)
        handler.close_connection = True

    return answer


def bomb(size: int) -> Answer:
    """Send ``size`` zeros in a thousandth of the bytes."""
    return content(gzip.compress(bytes(size)), headers={"Content-Encoding": "gzip"})


def redirect(to: str) -> Answer:
    """Send the client elsewhere."""
    return status(302, {"Location": to})
