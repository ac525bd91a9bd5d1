"""Who may ask the server: whoever has the printed address, or whom a team's proxy lets through.

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

Behind a team's proxy (``advisor ui --serve``) signing in is the proxy's: there is no token, the
Host and Origin may be those of its address, a program's POST needs no Origin, and what another
site's page asks for is refused, except where a person follows a link.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from advisor.errors import UsageError
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
    # the address of the team's proxy, which lets in whoever has signed in there; "" without one
    proxy: str = ""
    is_shared: bool = False  # no token: whoever reaches the server may ask

    @classmethod
    def shared(cls, proxy: str = "") -> Keys:
        """Return those of a server behind a proxy.

        Raises UsageError if the proxy's address cannot be read.

        Examples
        --------
        >>> Keys.shared("https://tools.example.org/advisor").prefix
        '/advisor/'
        """
        path = ""
        if proxy:
            parts = _split(proxy)
            if parts is None or parts.scheme not in ("http", "https") or not parts.netloc:
                raise UsageError(
                    f"cannot read {proxy!r} as the proxy's address",
                    hint="give it as people open it: --url https://advisor.example.org",
                )
            path = parts.path.strip("/")
        return cls(prefix=f"/{path}/" if path else "/", proxy=proxy, is_shared=True)

    def address(self, port: int) -> str:
        """Return the address to open."""
        here = f"http://{HOSTS[0]}:{port}{self.prefix}"
        return here if self.is_shared else f"{here}?token={self.token}"

    @property
    def origin(self) -> str:
        """The proxy's origin; "" without one."""
        parts = urlsplit(self.proxy)
        return f"{parts.scheme}://{parts.netloc}" if self.proxy else ""


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
        headers, keys = request.headers, self._keys
        if not (_is_loopback(headers) or self._is_proxy_host(headers)):
            return refused(request, Refusal(400, "this server is reached at 127.0.0.1", _OPEN))
        if not request.scope["path"].startswith(keys.prefix):
            return refused(request, Refusal(404, "there is no such page", _OPEN))
        if not self._is_own_origin(headers, request.method) or (
            keys.is_shared and _is_of_another_site(headers)
        ):
            return refused(request, Refusal(403, "other pages may not ask this server", _OPEN))
        if not (keys.is_shared or self._has_token(request) or self._has_cookie(request)):
            return refused(request, Refusal(403, "the address lacks its token", _OPEN))
        return None

    def _is_proxy_host(self, headers: Headers) -> bool:
        """Whether the one Host is the proxy's name; some proxies leave its port out."""
        proxy, given = self._keys.proxy, headers.getlist("host")
        if not proxy or len(given) != 1:
            return False
        name, _, port = given[0].partition(":")
        return name == urlsplit(proxy).hostname and (not port or port.isdecimal())

    def _is_own_origin(self, headers: Headers, method: str) -> bool:
        """Whether no other page asks; a browser names the origin of every POST."""
        origins = headers.getlist("origin")
        if not origins:
            return self._keys.is_shared or method in ("GET", "HEAD")
        # What proxies do to Host differs: they keep it, or name this server's address.
        here = "" if self._is_proxy_host(headers) else f"http://{headers['host']}"
        return len(origins) == 1 and origins[0] in {here, self._keys.origin} - {""}

    def _has_token(self, request: Request) -> bool:
        """Whether the first page is asked for, with the token."""
        if self._keys.is_shared:
            return False
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


def _is_of_another_site(headers: Headers) -> bool:
    """Whether a browser says that another site's page asks, rather than a person with a link."""
    site, mode = headers.get("sec-fetch-site", ""), headers.get("sec-fetch-mode", "")
    return site == "cross-site" and mode != "navigate"


def _split(address: str) -> SplitResult | None:
    try:
        return urlsplit(address)
    except ValueError:  # as of "http://["
        return None
