"""The web application's server: on loopback, until Ctrl-C or a signal to end."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterator
from types import FrameType
from typing import Final

import uvicorn

from advisor.ask import Question
from advisor.errors import AdvisorError
from advisor.ui.connections import protocol
from advisor.ui.guard import HOSTS, Keys
from advisor.ui.live_report import Beside, LiveReport
from advisor.ui.server import application
from advisor.ui.workers import AnswerProcesses

# Answers that are still being computed are not waited for. [s]
_PATIENCE_S: Final = 1
# Idle connections, those that ask, and the files of the program.
_FILES: Final = 4096


@contextlib.contextmanager
def listening_socket(port: int) -> Iterator[socket.socket]:
    """Listen on loopback for as long as the block lasts.

    ``port``: 0 takes a free one.

    Raises AdvisorError if the port is in use, or may not be used.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        # A port that was just left can be taken again; on Windows this would share it.
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOSTS[0], port))
            listener.listen()
        except OSError as error:
            is_taken = error.errno == errno.EADDRINUSE
            why = "is in use" if is_taken else f"cannot be used: {error.strerror}"
            raise AdvisorError(
                f"port {port} {why}", hint="name another with --port, or leave it out"
            ) from error
        yield listener


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP leave the block, so that what it began is ended too.

    A process that SIGTERM ends at once runs no ``finally``: its workers would stay. SIGHUP that is
    ignored (``nohup``) stays so.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def end_as_well(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGTERM)  # while requests are served it is uvicorn's

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, end)}
    hangup = getattr(signal, "SIGHUP", None)  # not on Windows
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        before[hangup] = signal.signal(hangup, end_as_well)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Server:
    """The web application on a port that is listened to.

    Raises AdvisorError if the job or the catalogue cannot be read.
    """

    def __init__(
        self, question: Question, listener: socket.socket, *, beside: Beside | None = None,
        keys: Keys | None = None, processes: int = 0,
    ) -> None:  # fmt: skip
        """Read the job and answer the question once.

        ``keys``: who may ask; whoever has the printed address by default; ``processes``: how many
        answer questions beside this one; 0 answers in this process, one question at a time.
        """
        keys = keys or Keys()
        live = LiveReport(question, beside=beside, is_shared=keys.is_shared)
        self._listener = listener
        self._workers = AnswerProcesses(live.question, processes) if processes else None
        try:
            self._app = application(live, keys, workers=self._workers)
        except BaseException:
            self._close()
            raise
        self.address = keys.address(listener.getsockname()[1])

    def _close(self) -> None:
        if self._workers is not None:
            self._workers.close()

    def run(self, *, is_opened: bool) -> None:
        """Serve until Ctrl-C, which is how it ends: no error; or until ``ended_by_signals``.

        ``is_opened``: open the page in a browser; connections wait until the server runs.
        """
        if is_opened:
            threading.Thread(target=webbrowser.open, args=(self.address,), daemon=True).start()
        _allow_files()
        config = uvicorn.Config(
            self._app, http=protocol(), ws="none", lifespan="off", log_config=None,
            log_level="critical", access_log=False, server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=_PATIENCE_S,
        )  # fmt: skip
        try:
            with contextlib.suppress(KeyboardInterrupt):
                uvicorn.Server(config).run(sockets=[self._listener])
        finally:
            self._close()


def _allow_files() -> None:
    """Let this process have as many connections as it limits itself to, where it may."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
