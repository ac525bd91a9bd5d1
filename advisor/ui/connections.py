"""Connections that are not waited for for ever, and that idle ones do not use up.

Uvicorn limits how long a connection may be idle between two requests; it waits without end for a
first request, for the rest of its headers, and for who reads no reply. Nobody has signed in by
then, so these limits hold for everybody:

=====================  ======================================================================
headers                ``HEADERS_S`` from the connection, or from the last reply
a request and reply    ``EXCHANGE_S`` in all: the queue, the answer and the reading of it
idle connections       ``MOST_IDLE``; for one more, those idle longest are closed, of those that
                       have been idle for ``GRACE_S``
=====================  ======================================================================

A body's limit is ``replies.BODY_S``.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_S: Final = 10.0  # a browser sends them in one packet [s]
EXCHANGE_S: Final = 300.0  # as long as the longest queue and a slow line take [s]
# Above this many connections without a request the longest idle is closed. A page keeps at most
# six open to one server, so it is what some eighty pages can hold.
MOST_IDLE: Final = 512
# Whoever has just connected is about to ask: very many at once are no reason to close any. [s]
GRACE_S: Final = 1.0
_TOO_SLOW: Final = (
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)


class PatientProtocol(H11Protocol):
    """A connection with limits to how long it waits; ``protocol`` makes those of one server."""

    # of the server, since when, the longest idle first
    idle: ClassVar[OrderedDict[PatientProtocol, float]]
    headers_s: ClassVar[float]
    grace_s: ClassVar[float]
    most_idle: ClassVar[int]

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._limit: asyncio.TimerHandle | None = None
        self._is_idle: bool | None = None
        self._has_begun = False  # bytes of the next request have come

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, but not for ever."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self.idle.pop(self, None)
        if self._limit is not None:
            self._limit.cancel()

    def data_received(self, data: bytes) -> None:
        """Read on: a request, or a part of one."""
        self._has_begun = True
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request; uvicorn's own limit to that is shorter."""
        self._has_begun = False
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        """Set the limit of what is waited for now, where that has changed."""
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle == self._is_idle:
            return
        self._is_idle = is_idle
        if self._limit is not None:
            self._limit.cancel()
        self.idle.pop(self, None)
        if self.transport.is_closing():
            return
        self._limit = self.loop.call_later(self.headers_s if is_idle else EXCHANGE_S, self._end)
        if is_idle:
            self.idle[self] = self.loop.time()
            self._make_room()

    def _make_room(self) -> None:
        while len(self.idle) > self.most_idle:
            longest, since = next(iter(self.idle.items()))
            if self.loop.time() - since < self.grace_s:
                return
            longest.abandon()

    def _end(self) -> None:
        if self._is_idle and self._has_begun:
            self.transport.write(_TOO_SLOW)
            self.transport.close()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Close the connection at once, whatever is not sent yet."""
        self.idle.pop(self, None)
        self.transport.abort()


def protocol(
    *, headers_s: float = HEADERS_S, grace_s: float = GRACE_S, most_idle: int = MOST_IDLE
) -> type[PatientProtocol]:
    """Return the class of one server's connections."""
    own = {"idle": OrderedDict(), "headers_s": headers_s, "grace_s": grace_s,
           "most_idle": most_idle}  # fmt: skip
    return type("Connection", (PatientProtocol,), own)
