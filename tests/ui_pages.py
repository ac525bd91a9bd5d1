"""What the tests of ``advisor ui`` share: a small question, and a browser that has its address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.testclient import TestClient

from advisor.ask import Question
from advisor.ui.guard import Keys
from advisor.ui.live_report import LiveReport
from advisor.ui.server import application

HERE = "http://127.0.0.1:8123"
# Half a second of computing: one provider of few machines.
FEW: dict[str, Any] = {"cloud": "lambda", "gpus": "A10,A100,H100:1", "max_nodes": 1}
ASKED: dict[str, Any] = {"layers": 4, "hidden": 256, "heads": 4, "tokens": "2B", **FEW}


@dataclass
class Opened:
    """A page of ``advisor ui``: what it shows, whom it lets in, and a browser that it let in."""

    live: LiveReport
    keys: Keys
    client: TestClient

    def post(self, body: Any = None, path: str = "api/answer", **options: Any) -> Any:
        """Post JSON as the page does, or what the options say."""
        options.setdefault("headers", {"origin": HERE})
        if body is not None:
            options["json"] = body
        return self.client.post(f"{self.keys.prefix}{path}", **options)

    def stranger(self) -> Opened:
        """Somebody who never saw the address."""
        client = TestClient(application(self.live, self.keys), base_url=HERE)
        return Opened(self.live, self.keys, client)


@contextmanager
def opened(**asked: Any) -> Iterator[Opened]:
    """Open the printed address."""
    live, keys = LiveReport(Question.read({**ASKED, **asked})), Keys()
    with TestClient(application(live, keys), base_url=HERE) as client:
        reply = client.get(keys.prefix, params={"token": keys.token})
        assert reply.status_code == 200
        yield Opened(live, keys, client)
