"""Replies in one form: JSON, and for a person a page; errors say what is wrong and what to do."""

from __future__ import annotations

import asyncio
import html
import os
import sys
import traceback
from typing import Any, Final, NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from advisor.collectors import bounded
from advisor.collectors.errors import explain, shown
from advisor.ui.desk import BusyError, SupersededError

# Longest body that is read. [bytes]
LONGEST_BODY: Final = 64 * 1024
BODY_S: Final = 10.0  # the longest body takes this at 50 kbit/s [s]
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>advisor ui</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
</head><body><h1>{what}</h1><p>{hint}</p></body></html>
"""


class Refusal(NamedTuple):
    """Why there is no answer: HTTP status, what is wrong, what to do, and the exit code it has."""

    status: int
    what: str
    hint: str
    exit_code: int = 1
    retry_after_s: int = 0  # when to ask again; 0 where that would not help [s]


def refused(request: Request, why: Refusal) -> Response:
    """Return the reply that says why there is no answer; a page to who asks for one."""
    again = {"Retry-After": str(why.retry_after_s)} if why.retry_after_s else {}
    if "text/html" in request.headers.get("accept", ""):
        page = _PAGE.format(
            what=html.escape(why.what[:1].upper() + why.what[1:]), hint=html.escape(why.hint)
        )
        if again:  # a browser asks again by itself
            again["Refresh"] = again["Retry-After"]
        return HTMLResponse(page, why.status, again)
    error = {"what": why.what, "hint": why.hint, "exit_code": why.exit_code}
    return JSONResponse({"error": error}, why.status, again)


def refusal(error: Exception) -> Refusal:
    """Return why there is no answer, as an error says it."""
    if isinstance(error, RefusedError):
        return error.why
    if isinstance(error, SupersededError):
        return Refusal(409, str(error), "wait for the answer to the newer one")
    if isinstance(error, BusyError):
        return Refusal(429, str(error), error.hint, retry_after_s=error.retry_after_s)
    known = error if hasattr(error, "exit_code") else explain(error)
    if known is None:
        _report_defect(error)
        hint = "the terminal of `advisor ui` says more; please report it"
        return Refusal(500, "the advisor failed on this question", hint)
    hint = shown(str(getattr(known, "hint", "")))
    return Refusal(400, shown(str(known)), hint, int(getattr(known, "exit_code", 1)))


def _report_defect(error: Exception) -> None:
    """Say on the terminal what the page is not told."""
    if os.environ.get("ADVISOR_DEBUG"):
        traceback.print_exception(error)
        return
    what = shown(f"{type(error).__name__}: {error}")
    sys.stderr.write(f"error: {what}\nhint: ADVISOR_DEBUG=1 shows the traceback\n")


class RefusedError(Exception):
    """A request that is not answered, and why."""

    def __init__(self, why: Refusal) -> None:
        super().__init__(why.what)
        self.why = why


def unreadable(hint: str) -> RefusedError:
    """Return the refusal of a request that cannot be read."""
    return RefusedError(Refusal(400, "cannot read the request", hint, 2))


async def read_object(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request's body.

    Raises RefusedError if the body is longer than ``LONGEST_BODY``, takes longer than ``BODY_S``,
    or is no JSON object.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError(Refusal(415, "the body is not JSON", "send application/json", 2))
    try:
        async with asyncio.timeout(BODY_S):
            body = await _body(request)
    except TimeoutError:
        why = Refusal(408, "the body took too long", f"send it within {BODY_S:g} s", 2)
        raise RefusedError(why) from None
    except ClientDisconnect:
        raise RefusedError(Refusal(400, "the body ended early", "send it again", 2)) from None
    try:
        content = bounded.parse_json(body)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise RefusedError(Refusal(400, "the body is not a JSON object", "send an object", 2))
    return content


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_BODY:
            hint = f"send {LONGEST_BODY} bytes at most"
            raise RefusedError(Refusal(413, "the body is too long", hint, 2))
    return bytes(body)
