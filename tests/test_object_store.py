"""A team's store of runs in an object store whose network breaks while it is written to.

moto's server speaks S3 over HTTP and s3fs is what ``ADVISOR_RUNS=s3://...`` opens; between them
stands a relay that stops in the middle of whatever passes.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.collectors.derive import store
from advisor.collectors.derive.store import list_runs, push_run, read_recording
from advisor.collectors.errors import RecordingError
from advisor.collectors.format.record_files import PROFILER_FILE

pytestmark = pytest.mark.frameworks
s3fs = pytest.importorskip("s3fs")
pytest.importorskip("moto")

GOLDEN = Path(__file__).parent / "golden" / "run-schema-1"
URL = "s3://team/runs"


class Relay:
    """Passes connections on to a port, up to ``budget`` bytes from the clients; None: all."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.budget: int | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._target))
            for pair, counts in (((client, server), True), ((server, client), False)):
                threading.Thread(target=self._pass, args=(*pair, counts), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        try:
            while data := source.recv(512):
                with self._lock:
                    if counts and self.budget is not None:
                        data = data[: self.budget]
                        self.budget -= len(data)
                        if not data:
                            break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of an S3-compatible server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen([sys.executable, *words], stderr=subprocess.DEVNULL) as running:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        yield port
        running.kill()


@pytest.fixture
def relay(server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Relay:
    """The way to the server, the bucket empty, one try a request."""
    relay = Relay(server)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "word", "AWS_MAX_ATTEMPTS": "1",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{relay.port}",
        "XDG_CACHE_HOME": str(tmp_path / "mine"),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    if files.exists("team"):
        files.rm("team", recursive=True)
    files.mkdir("team")
    return relay


def recorded(name: str) -> Path:
    """Return a run as it lies in the mirror once it has been recorded."""
    run = store.mirror_of(URL) / name
    run.mkdir(parents=True)
    for path in GOLDEN.iterdir():
        (run / path.name).write_bytes(path.read_bytes())
    return run


def size(run: Path) -> int:
    return sum(path.stat().st_size for path in run.iterdir())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
def test_a_store_that_stops_gets_the_run_with_the_next_one(
    relay: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    first = recorded("20260101-000000-first-0000")
    relay.budget = int(share * size(first))
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(RecordingError, match="cannot copy") as told:
        push_run(first, URL)
    assert str(first) in (told.value.hint or "")
    assert read_recording(first).step_time is not None
    relay.budget = None
    mine = {path.name: path for path in list_runs(URL)}
    assert list(mine) == [first.name]

    with monkeypatch.context() as elsewhere:  # another machine sees no half of a run
        elsewhere.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
        assert list_runs(URL) == []
    second = recorded("20260101-000001-second-0000")
    push_run(second, URL)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "third"))
    theirs = list_runs(URL)
    assert [run.name for run in theirs] == [first.name, second.name]
    for run, original in zip(theirs, (first, second), strict=True):
        assert read_recording(run).step_time == read_recording(original).step_time
        assert (run / PROFILER_FILE).read_bytes() == (original / PROFILER_FILE).read_bytes()
