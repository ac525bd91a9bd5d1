"""The web application: a page, and the answers that it asks for.

No folder is served: a few paths have content, everything else is not found.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from advisor.collectors.errors import explain, shown
from advisor.ui.controls import changed
from advisor.ui.desk import Desk, SupersededError
from advisor.ui.guard import Guard, Keys
from advisor.ui.live_report import ExportRequest, LiveReport
from advisor.ui.replies import Refusal, UnreadableError, read_object, refused

Handler = Callable[[Request], Awaitable[Response]]
_LONGEST_SLOT: Final = 64
# The page states its policy itself, by the hashes of its scripts; this part only a header can.
_PAGE_POLICY: Final = "frame-ancestors 'none'"


def application(live: LiveReport, keys: Keys) -> Guard:
    """Return the application of one page."""
    desk = Desk(live.answer)

    async def page(_: Request) -> Response:
        return HTMLResponse(live.page(), headers={"Content-Security-Policy": _PAGE_POLICY})

    async def answer(request: Request) -> Response:
        body = await read_object(request)
        slot, is_whole = _slot(body), body.get("whole", True)
        if not isinstance(is_whole, bool):
            raise _unreadable("whole is true or false")
        question = changed(live.question, body.get("question"))
        return JSONResponse(await desk.ask(slot, question, is_whole=is_whole))

    async def export(request: Request) -> Response:
        body = await read_object(request)
        asked = ExportRequest.read(body)
        question = changed(live.question, body.get("question"))
        found = await desk.ask(f"{_slot(body)} export", question, is_whole=False)
        record = found["data"]["answer"]
        return JSONResponse(await desk.turn(lambda: live.export(question, record, asked)))

    app = Starlette(
        routes=[
            Route("/", _replying(page)),
            Route("/api/answer", _replying(answer), methods=["POST"]),
            Route("/api/export", _replying(export), methods=["POST"]),
        ],
        exception_handlers={HTTPException: _not_found},
    )
    return Guard(app, keys)


def _slot(body: Mapping[str, Any]) -> str:
    slot = body.get("slot", "")
    if not isinstance(slot, str) or len(slot) > _LONGEST_SLOT:
        raise _unreadable("slot is a short text")
    return slot


def _unreadable(hint: str) -> UnreadableError:
    return UnreadableError(Refusal(400, "cannot read the request", hint, 2))


def _replying(handler: Handler) -> Handler:
    """Return a handler whose errors are replies: what is wrong, and what to do."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception as error:
            return refused(request, _refusal(error))

    return handle


def _refusal(error: Exception) -> Refusal:
    if isinstance(error, UnreadableError):
        return error.why
    if isinstance(error, SupersededError):
        return Refusal(409, str(error), "wait for the answer to the newer one")
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


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return refused(
        request, Refusal(status, "there is no such page", "open the page of the address")
    )
