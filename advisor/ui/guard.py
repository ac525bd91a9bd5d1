"""Who may ask the server: whoever has the address that the command printed, from its own page.

A server on loopback is reached by every program of the machine and by every page that a browser of
this machine shows. What keeps them out, in this order:

==============  ============================================================================
Host            must be a loopback name: a foreign name that was made to point here (DNS
                rebinding) is refused
path            everything lies below a random prefix, to which the cookie is bound: cookies
                know no ports, so another server on loopback would get one of ``/``
Origin          where a browser names one, it must be the page's own; a POST must name it
token           compared in constant time; the first page takes it from the address and leaves a
                cookie (HttpOnly, SameSite=Strict) in its place
==============  ============================================================================
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from advisor.ui.replies import Refusal, refused

HOSTS: Final = ("127.0.0.1", "localhost")
_COOKIE: Final = "advisor_ui"
HEADERS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
# For whatever says nothing stricter or looser of its own: no script, no picture, nothing.
_NOTHING: Final = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_OPEN: Final = "open the address that `advisor ui` printed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What a server lets in."""

    # below which all its paths lie, with slashes around it
    prefix: str = field(default_factory=lambda: f"/{secrets.token_urlsafe(6)}/")
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    # value of the cookie that replaces the token
    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    def address(self, port: int) -> str:
        """Return the address to open."""
        return f"http://{HOSTS[0]}:{port}{self.prefix}?token={self.token}"


class Guard:
    """Lets through to an application what may ask it, and puts security headers on every reply.

    ``app``: its paths begin after the prefix.
    """

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        is_new = False
        request = Request(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Content-Security-Policy", _NOTHING)
                if is_new:
                    headers.append("Set-Cookie", self._cookie())
            await send(message)

        reply = self._refusal(request)
        if reply is not None:
            await reply(scope, receive, send_guarded)
            return
        is_new = self._has_token(request)
        inner = {**scope, "path": f"/{scope['path'].removeprefix(self._keys.prefix)}"}
        await self._app(inner, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        """Return what is said to who may not ask, None to who may."""
        headers = request.headers
        if not _is_loopback(headers):
            return refused(request, Refusal(400, "this server is reached at 127.0.0.1", _OPEN))
        if not request.scope["path"].startswith(self._keys.prefix):
            return refused(request, Refusal(404, "there is no such page", _OPEN))
        if not _is_own_origin(headers, request.method):
            return refused(request, Refusal(403, "other pages may not ask this server", _OPEN))
        if not (self._has_token(request) or self._has_cookie(request)):
            return refused(request, Refusal(403, "the address lacks its token", _OPEN))
        return None

    def _has_token(self, request: Request) -> bool:
        """Whether the first page is asked for, with the token."""
        if request.method != "GET" or request.scope["path"] != self._keys.prefix:
            return False
        return _equal(request.query_params.get("token", ""), self._keys.token)

    def _has_cookie(self, request: Request) -> bool:
        return _equal(request.cookies.get(_COOKIE, ""), self._keys.cookie)

    def _cookie(self) -> str:
        path = self._keys.prefix
        return f"{_COOKIE}={self._keys.cookie}; Path={path}; HttpOnly; SameSite=Strict"


def _equal(given: str, kept: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), kept.encode())


def _is_loopback(headers: Headers) -> bool:
    """Whether there is one Host, a loopback name; the port may be that of a tunnel."""
    given = headers.getlist("host")
    name, _, port = given[0].partition(":") if len(given) == 1 else ("", "", "")
    return name in HOSTS and (not port or (port.isascii() and port.isdigit()))


def _is_own_origin(headers: Headers, method: str) -> bool:
    """Whether no other page asks; a browser names the origin of every POST."""
    origins = headers.getlist("origin")
    if not origins:
        return method in ("GET", "HEAD")
    parts = urlsplit(origins[0]) if len(origins) == 1 else urlsplit("")
    return parts.scheme == "http" and origins[0] == f"http://{headers['host']}"
