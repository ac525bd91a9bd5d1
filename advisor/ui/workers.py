"""Who answers questions: a thread, or processes beside each other.

Each process has a catalogue and models of its own: an answer is Python and numpy and holds the
interpreter's lock, so that threads would only take turns. The pool is joblib's (loky): it starts
fresh processes, and a new pool where one was killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from concurrent.futures import BrokenExecutor
from typing import Any, Final

from advisor.ask import Question
from advisor.errors import AdvisorError, UsageError
from advisor.ui.desk import in_thread
from advisor.ui.live_report import LiveReport
from advisor.ui.replies import Refusal, RefusedError, refusal
from advisor.ui.sources import Sources

# No question of the catalogue takes as long; one that does is given up. [s]
LONGEST_S: Final = 120.0
_live: LiveReport | None = None  # of a worker


class Answering:
    """Who answers; what cannot be answered is raised as it is, or as ``RefusedError``."""

    count = 1
    _sources: Sources | None = None

    @property
    def state(self) -> str:
        """Of what answers are computed from, where that is looked at."""
        return self._sources.state if self._sources else ""

    async def look(self) -> None:
        """Look whether it was replaced, now and then."""
        if self._sources is not None:
            await self._sources.look()

    async def reply(self, question: Question, is_whole: bool) -> bytes:
        """Return what ``LiveReport.reply`` gives."""
        return await self._ask(_reply, question.to_record(), is_whole)

    async def export(self, question: Question, reply: bytes, body: dict[str, Any]) -> bytes:
        """Return what ``LiveReport.export`` gives, as JSON."""
        return await self._ask(_export, question.to_record(), reply, body)

    async def judge(self, question: Question, body: dict[str, Any]) -> bytes:
        """Return what ``LiveReport.judge`` gives, as JSON."""
        return await self._ask(_judge, question.to_record(), body)

    async def _ask(self, work: Any, *given: Any) -> bytes:
        raise NotImplementedError


class InThread(Answering):
    """Answers as ``LiveReport`` gives them, in a thread of this process, one at a time."""

    def __init__(self, live: LiveReport) -> None:
        self._live = live

    def first(self, question: Question) -> bytes:
        """Return the answer with which the server starts.

        Raises AdvisorError, PlanningError as ``LiveReport.reply``.
        """
        return self._live.reply(question, False)

    async def _ask(self, work: Any, *given: Any) -> bytes:
        return await in_thread(lambda: bytes(work(self._live, *given)))


class AnswerProcesses(Answering):
    """Answers as ``LiveReport`` gives them, ``count`` at a time, each within ``LONGEST_S``.

    Parameters
    ----------
    question : Question
        The command line's, with the name of its run.
    count : int
        How many processes; each holds some 150 MB, and more while it answers.
    """

    def __init__(self, question: Question, count: int) -> None:
        self._record = question.to_record()
        self._sources = Sources(question)
        self.count = count

    def first(self, question: Question) -> bytes:
        """Return the answer with which the server starts.

        Raises AdvisorError if there is none.
        """
        try:
            return asyncio.run(self.reply(question, False))
        except RefusedError as error:
            why = error.why
            kind = UsageError if why.exit_code == UsageError.exit_code else AdvisorError
            raise kind(why.what, hint=why.hint) from None

    async def _ask(self, work: Any, *given: Any) -> bytes:
        pool = await in_thread(self._pool)
        try:
            found = await asyncio.wait_for(
                asyncio.wrap_future(pool.submit(_answered, work, given)), LONGEST_S
            )
        except TimeoutError:
            pool.shutdown(wait=False, kill_workers=True)
            hint = "ask for fewer providers or machines"
            raise RefusedError(
                Refusal(503, f"no answer in {LONGEST_S:g} s", hint, retry_after_s=10)
            ) from None
        except (BrokenExecutor, AdvisorError, RuntimeError) as error:
            why = Refusal(503, f"the answer was lost: {type(error).__name__}", "ask again",
                          retry_after_s=5)  # fmt: skip
            raise RefusedError(why) from None
        if isinstance(found, Refusal):
            raise RefusedError(found)
        return bytes(found)

    def _pool(self) -> Any:
        from joblib.externals.loky import get_reusable_executor

        # One thread each: what is computed beside other answers does not want all cores.
        return get_reusable_executor(
            max_workers=self.count, timeout=None, initializer=_begin,
            initargs=(self._record, os.getpid(), self.state),
            env={"OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def close(self) -> None:
        """End the processes, whatever they do."""
        self._pool().shutdown(wait=False, kill_workers=True)


def _begin(record: dict[str, Any], server: int, state: str) -> None:
    """Begin to be a worker; where ``state`` differs the pool is another one, once it is idle."""
    global _live  # a process is one worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's
    threading.Thread(target=_end_with, args=(server,), daemon=True).start()
    _live = LiveReport(Question.read(record), is_shared=True)


def _end_with(server: int) -> None:
    """End this process when the server is gone, also where nothing could end it first."""
    while os.getppid() == server:
        time.sleep(1.0)
    os._exit(1)


def _answered(work: Any, given: tuple[Any, ...]) -> bytes | Refusal:
    """Return what a worker's function returns, or why it has nothing: errors cross as values."""
    try:
        assert _live is not None
        found: bytes = work(_live, *given)
    except Exception as error:
        return refusal(error)
    return found


def _reply(live: LiveReport, record: dict[str, Any], is_whole: bool) -> bytes:
    return live.reply(Question.read(record), is_whole)


def _export(live: LiveReport, record: dict[str, Any], reply: bytes, body: dict[str, Any]) -> bytes:
    found = live.export(Question.read(record), json.loads(reply)["data"]["answer"], body)
    return json.dumps(found).encode()


def _judge(live: LiveReport, record: dict[str, Any], body: dict[str, Any]) -> bytes:
    return json.dumps(live.judge(Question.read(record), body)).encode()
