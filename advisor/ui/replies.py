"""Replies in one form: JSON, and for a person a page; errors say what is wrong and what to do."""

from __future__ import annotations

import html
from typing import Any, Final, NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from advisor.collectors import bounded

# Longest body that is read. [bytes]
LONGEST_BODY: Final = 64 * 1024
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


def refused(request: Request, why: Refusal) -> Response:
    """Return the reply that says why there is no answer; a page to who asks for one."""
    if "text/html" in request.headers.get("accept", ""):
        page = _PAGE.format(what=html.escape(_sentence(why.what)), hint=html.escape(why.hint))
        return HTMLResponse(page, why.status)
    error = {"what": why.what, "hint": why.hint, "exit_code": why.exit_code}
    return JSONResponse({"error": error}, why.status)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


class UnreadableError(Exception):
    """A body that is too long, or no JSON object."""

    def __init__(self, why: Refusal) -> None:
        super().__init__(why.what)
        self.why = why


async def read_object(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request's body.

    Raises UnreadableError if the body is longer than ``LONGEST_BODY``, or no JSON object.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise UnreadableError(Refusal(415, "the body is not JSON", "send application/json", 2))
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > LONGEST_BODY:
                hint = f"send {LONGEST_BODY} bytes at most"
                raise UnreadableError(Refusal(413, "the body is too long", hint, 2))
    except ClientDisconnect:
        raise UnreadableError(Refusal(400, "the body ended early", "send it again", 2)) from None
    try:
        content = bounded.parse_json(bytes(body))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise UnreadableError(Refusal(400, "the body is not a JSON object", "send an object", 2))
    return content
