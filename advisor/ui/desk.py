"""A desk for questions: a bounded queue, answers kept by question, and who computes them.

An answer takes seconds of computing. It runs beside the server, in a thread or in processes of its
own. Whoever asks what is being answered already waits for the same answer; a question that a newer
one of its slot replaced before its turn is dropped; where too many wait, the next is told when to
come again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from advisor.ask import Question
from advisor.errors import AdvisorError

T = TypeVar("T")

# Answers kept, of some 30 to 200 kB each, and slots that are told apart.
_KEPT: Final = 256
_SLOTS: Final = 1024
# Questions that may wait for their turn, where they are expected to be answered in time.
MOST_WAITING: Final = 32
# Proxies commonly give up after a minute (nginx's proxy_read_timeout). [s]
LONGEST_WAIT_S: Final = 45.0
_FIRST_GUESS_S: Final = 3.0  # what an answer takes, until one was given; 1.7 on a free core [s]


class SupersededError(AdvisorError):
    """A newer question of the same slot came before this one's turn."""


class BusyError(AdvisorError):
    """Too many questions wait already.

    ``retry_after_s``: when it is worth asking again, whole seconds.
    """

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(
            "too many questions are waiting", hint=f"ask again in {retry_after_s} seconds"
        )
        self.retry_after_s = retry_after_s


@dataclass(eq=False, slots=True, kw_only=True)
class _Pending:
    """An answer that is being computed, or waits for its turn."""

    # slot, ticket: of everybody who wants it
    asked: list[tuple[str, object]] = field(default_factory=list)
    done: asyncio.Task[bytes] | None = None
    is_begun: bool = False


class Desk:
    """Answers questions in the order they come, the newest of each slot alone.

    Parameters
    ----------
    answer : callable
        From a question, and whether everything is wanted that takes longer, to the answer as JSON.
    at_once : int
        How many answers are computed beside each other.
    most_waiting : int
        How many questions may wait for their turn.
    state : callable
        What answers are computed from: of another state none is given.
    """

    def __init__(
        self, answer: Callable[[Question, bool], Awaitable[bytes]], *, at_once: int = 1,
        most_waiting: int = MOST_WAITING, state: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        self._answer = answer
        self._state = state
        self._at_once = at_once
        self._most_waiting = most_waiting
        self._turns = asyncio.Semaphore(at_once)
        self._newest: OrderedDict[str, object] = OrderedDict()
        self._kept: OrderedDict[tuple[str, bool], bytes] = OrderedDict()
        self._works: dict[tuple[str, bool], _Pending] = {}
        self._usual_s = _FIRST_GUESS_S
        self._others = 0  # that wait for a turn of theirs

    async def ask(self, slot: str, question: Question, *, is_whole: bool) -> bytes:
        """Return the answer as JSON.

        ``slot``: where the answer is shown; a newer question of it replaces this one, unless it is
        empty; ``is_whole``: whether everything is wanted that takes longer.

        Raises SupersededError if a newer question came first, BusyError if too many wait.
        """
        ticket = object()
        if slot:
            _put(self._newest, slot, ticket, _SLOTS)
        key = self._key(question)
        for one in (True,) if is_whole else (True, False):
            if (key, one) in self._kept:
                self._kept.move_to_end((key, one))
                return self._kept[key, one]
        work = self._works.get((key, is_whole))
        if work is None:
            self._check_room()
            work = self._works[key, is_whole] = _Pending()
            work.done = asyncio.create_task(self._work((key, is_whole), question, work))
        work.asked.append((slot, ticket))
        assert work.done is not None
        return await asyncio.shield(work.done)

    def keep(self, question: Question, found: bytes, *, is_whole: bool) -> None:
        """Keep an answer that was computed elsewhere."""
        _put(self._kept, (self._key(question), is_whole), found, _KEPT)

    def _key(self, question: Question) -> str:
        return self._state() + json.dumps(question.to_record(), sort_keys=True)

    async def turn(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return what ``call`` returns, once it is its turn.

        Raises BusyError if too many wait; Exception: what ``call`` raises.
        """
        self._check_room()
        self._others += 1
        try:
            await self._wait()
        finally:
            self._others -= 1
        try:
            return await call()
        finally:
            self._turns.release()

    def _check_room(self) -> None:
        waiting = self._waiting()
        in_time = max(int(self._at_once * LONGEST_WAIT_S / self._usual_s), 1)
        if waiting >= min(self._most_waiting, in_time):
            raise BusyError(self._expected_s(waiting))

    def _waiting(self) -> int:
        works = self._works.values()
        return self._others + sum(1 for one in works if not one.is_begun and self._is_wanted(one))

    def _expected_s(self, waiting: int) -> int:
        """Return when who comes now and finds so many waiting would be answered, in seconds."""
        rounds = math.ceil((waiting + 1) / self._at_once)
        return max(math.ceil(rounds * self._usual_s), 1)

    def _is_wanted(self, work: _Pending) -> bool:
        return any(not slot or self._newest.get(slot) is ticket for slot, ticket in work.asked)

    async def _wait(self) -> None:
        """Wait for a turn, which the caller gives back."""
        try:
            async with asyncio.timeout(LONGEST_WAIT_S):
                await self._turns.acquire()
        except TimeoutError:
            raise BusyError(self._expected_s(self._waiting())) from None

    async def _work(self, key: tuple[str, bool], question: Question, work: _Pending) -> bytes:
        try:
            await self._wait()
            try:
                if not self._is_wanted(work):
                    raise SupersededError("a newer question came first")
                work.is_begun = True
                begun = time.monotonic()
                found = await self._answer(question, key[1])
                self._usual_s += 0.2 * (time.monotonic() - begun - self._usual_s)
            finally:
                self._turns.release()
            _put(self._kept, key, found, _KEPT)
            return found
        finally:
            del self._works[key]


def _put(kept: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > most:
        kept.popitem(last=False)


async def in_thread(call: Callable[[], T]) -> T:
    """Return what ``call`` returns, run in a thread that the end of the program does not wait for.

    Raises Exception: what ``call`` raises.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = call()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True, name="advisor-ui-answer").start()
    return await done
