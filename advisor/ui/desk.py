"""One question after another, each answered as ``advisor recommend`` answers it.

An answer takes seconds of computing: it runs in a thread of its own, so that the server goes on;
one at a time, since two would only slow each other down. A question that was replaced by a newer
one of the same slot before its turn came is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar

from advisor.ask import Question
from advisor.errors import AdvisorError

T = TypeVar("T")

# Answers kept for a user who goes back and forth, and slots that are told apart.
_KEPT: Final = 64
_SLOTS: Final = 256


class SupersededError(AdvisorError):
    """A newer question of the same slot came before this one's turn."""


class Desk:
    """Answers questions in the order they come, the newest of each slot alone.

    Parameters
    ----------
    answer : callable
        From a question, and whether everything is wanted that takes longer, to what JSON can
        hold. Called in a thread, never twice at a time.
    """

    def __init__(self, answer: Callable[[Question, bool], dict[str, Any]]) -> None:
        self._answer = answer
        self._turn = asyncio.Lock()
        self._newest: OrderedDict[str, object] = OrderedDict()
        self._kept: OrderedDict[tuple[str, bool], dict[str, Any]] = OrderedDict()

    async def ask(self, slot: str, question: Question, *, is_whole: bool) -> dict[str, Any]:
        """Return the answer.

        ``slot``: where the answer is shown; a newer question of it replaces this one;
        ``is_whole``: whether everything is wanted that takes longer.

        Raises SupersededError if a newer question came first.
        """
        ticket = object()
        _put(self._newest, slot, ticket, _SLOTS)
        key = json.dumps(question.to_record(), sort_keys=True)
        for one in (True,) if is_whole else (True, False):
            if (key, one) in self._kept:
                self._kept.move_to_end((key, one))
                return self._kept[key, one]
        async with self._turn:
            if self._newest.get(slot) is not ticket:
                raise SupersededError("a newer question came first")
            found = await in_thread(lambda: self._answer(question, is_whole))
        _put(self._kept, (key, is_whole), found, _KEPT)
        return found

    async def turn(self, call: Callable[[], T]) -> T:
        """Return what ``call`` returns, once whatever is being answered is.

        Raises Exception: what ``call`` raises.
        """
        async with self._turn:
            return await in_thread(call)


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
