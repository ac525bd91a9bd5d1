"""The web application: a page, the answers that it asks for, and a team's answers as JSON.

No folder is served: a few paths have content, everything else is not found. Nothing is written:
every request asks.
"""

from __future__ import annotations

import functools
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.schemas import SchemaGenerator

from advisor.ask import Question
from advisor.ui.controls import read_query
from advisor.ui.desk import MOST_WAITING, Desk, in_thread
from advisor.ui.guard import Guard, Keys
from advisor.ui.live_report import LiveReport
from advisor.ui.openapi import document
from advisor.ui.replies import Refusal, read_object, refusal, refused, unreadable
from advisor.ui.workers import AnswerProcesses, InThread

Handler = Callable[[Request], Awaitable[Response]]
_LONGEST_SLOT: Final = 64
_MOST_PAGES: Final = 64
# The page states its policy itself, by the hash of its script; this part only a header can.
_PAGE_POLICY: Final = "frame-ancestors 'none'"


def application(
    live: LiveReport, keys: Keys, *, workers: AnswerProcesses | None = None,
    most_waiting: int = MOST_WAITING,
) -> Guard:  # fmt: skip
    """Return the application of one page.

    ``workers``: who computes; a thread of this process where None; ``most_waiting``: see ``Desk``.

    Raises AdvisorError, PlanningError if there is no answer to the command line's question.
    """
    handlers = _Handlers(live, workers, most_waiting)
    routes = [
        Route("/", _replying(handlers.page)),
        Route("/api/answer", _replying(handlers.answer), methods=["POST"]),
        Route("/api/export", _replying(handlers.export), methods=["POST"]),
    ]
    if keys.is_shared:
        routes += [
            Route("/api/recommend", _replying(handlers.recommend), methods=["GET", "POST"]),
            Route("/api/gate", _replying(handlers.gate), methods=["GET", "POST"]),
            Route("/api/runs", _replying(handlers.runs)),
            Route("/openapi.json", _replying(handlers.openapi)),
            Route("/healthz", _replying(handlers.healthz)),
        ]
    return Guard(Starlette(routes=routes, exception_handlers={HTTPException: _not_found}), keys)


class _Handlers:
    """What is replied, path by path; the parts after ``---`` are what OpenAPI says of it."""

    def __init__(
        self, live: LiveReport, workers: AnswerProcesses | None, most_waiting: int
    ) -> None:
        self._live = live
        self._computer = computer = workers or InThread(live)
        self._pages: OrderedDict[bytes, str] = OrderedDict()
        self._desk = Desk(
            computer.reply, at_once=computer.count, most_waiting=most_waiting,
            state=lambda: computer.state,
        )  # fmt: skip
        self._desk.keep(live.question, computer.first(live.question), is_whole=False)

    async def page(self, request: Request) -> Response:
        """Show the page, with the answer to the question of its address.

        ---
        summary: The page of a question.
        parameters: []
        responses: {200: {description: The page., content: {text/html: {}}}}
        """
        given = read_query((k, v) for k, v in request.query_params.multi_items() if k != "token")
        await self._computer.look()
        question = await self._changed(given) if given else self._live.question
        reply = await self._desk.ask("", question, is_whole=False)
        page = self._pages.get(reply)
        if page is None:
            page = self._pages[reply] = await in_thread(lambda: self._live.page(reply))
        while len(self._pages) > _MOST_PAGES:
            self._pages.popitem(last=False)
        return HTMLResponse(page, headers={"Content-Security-Policy": _PAGE_POLICY})

    async def answer(self, request: Request) -> Response:
        """Answer what the page's controls say."""
        body = await read_object(request)
        slot, is_whole = _slot(body), body.get("whole", True)
        if not isinstance(is_whole, bool):
            raise unreadable("whole is true or false")
        question = await self._changed(body.get("question"))
        return _json(await self._desk.ask(slot, question, is_whole=is_whole))

    async def export(self, request: Request) -> Response:
        """Export a candidate of an answer."""
        body = await read_object(request)
        question = await self._changed(body.get("question"))
        found = await self._desk.ask(f"{_slot(body)} export", question, is_whole=False)
        return _json(await self._desk.turn(lambda: self._computer.export(question, found, body)))

    async def recommend(self, request: Request) -> Response:
        """Answer a question as `advisor recommend --json` does.

        ---
        summary: What to rent for a job.
        description: The record of `advisor recommend --json`; without a job, of the server's own.
        parameters: []
        requestBody: {content: {application/json: {schema: {$ref: '#/components/schemas/Asked'}}}}
        responses: {200: {$ref: '#/components/responses/Recommendation'}}
        """
        question = await self._changed((await _body(request))["question"])
        found = json.loads(await self._desk.ask("", question, is_whole=True))
        return JSONResponse(found["data"]["answer"])

    async def gate(self, request: Request) -> Response:
        """Judge a submission as `advisor gate --json` does.

        ---
        summary: Whether machines hold a job and keep its limits.
        description: The record of `advisor gate --json`, and whether the submission passes.
        parameters: []
        requestBody: {content: {application/json: {schema: {$ref: '#/components/schemas/Gate'}}}}
        responses: {200: {$ref: '#/components/responses/Verdict'}}
        """
        body = await _body(request, "on", "count")
        question = await self._changed(body["question"])
        return _json(await self._desk.turn(lambda: self._computer.judge(question, body)))

    async def runs(self, _: Request) -> Response:
        """List the runs of the store.

        ---
        summary: Names of the recorded runs, the latest first.
        responses: {200: {$ref: '#/components/responses/Runs'}}
        """
        return JSONResponse({"runs": await in_thread(self._live.runs)})

    async def openapi(self, request: Request) -> Response:
        """Describe these paths."""
        return JSONResponse(document(SchemaGenerator, request.app.routes))

    async def healthz(self, _: Request) -> Response:
        """Say that the server runs.

        ---
        summary: Whether the server runs.
        responses: {200: {description: It does.}}
        """
        return JSONResponse({"status": "ok"})

    async def _changed(self, posted: Any) -> Question:
        await self._computer.look()
        return await in_thread(lambda: self._live.changed(posted))


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


async def _body(request: Request, *beside: str) -> dict[str, Any]:
    """Return a posted object, or the same from the address: the question and what is beside it."""
    if request.method == "POST":
        return {"question": {}, **await read_object(request)}
    items = request.query_params.multi_items()
    question = read_query(item for item in items if item[0] not in beside)
    return {"question": question, **{name: text for name, text in items if name in beside}}


def _slot(body: Mapping[str, Any]) -> str:
    slot = body.get("slot", "")
    if not isinstance(slot, str) or len(slot) > _LONGEST_SLOT:
        raise unreadable("slot is a short text")
    return slot


def _replying(handler: Handler) -> Handler:
    """Return a handler whose errors are replies: what is wrong, and what to do."""

    @functools.wraps(handler)
    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception as error:
            return refused(request, refusal(error))

    return handle


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    if status == 405:
        path, ways = request.url.path, (getattr(error, "headers", None) or {}).get("Allow", "GET")
        why = Refusal(status, f"{path} does not answer {request.method}", f"use {ways}")
    else:
        why = Refusal(status, "there is no such page", "open the page of the address")
    return refused(request, why)
