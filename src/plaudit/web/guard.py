"""Who may use a server of pages or of judges, checked before anything else is done with a request or a websocket.

A request must name a host of the server, so that a foreign page cannot reach it under a name of its own (DNS
rebinding). A request that changes something and a websocket must come from a page of this server. Pages run no script
but the server's files.

Connections have limits too: uvicorn waits forever for the first request of a connection, and for the rest of one that
has begun. A machine that opens connections and sends nothing could use all of them up, without a token.
"""

import asyncio
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from plaudit.errors import MissingExtra

try:
    import uvicorn
    import websockets  # noqa: F401
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.responses import JSONResponse, RedirectResponse, Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ModuleNotFoundError as problem:
    raise MissingExtra(problem.name or "uvicorn", "web") from problem

SILENT_S = 20.0  # that a connection may take to send a request
MOST = 500  # connections; more are answered with 503. A browser opens six
MAX_FRAME = 1 << 16  # bytes of a websocket's message; pages send none
GRACE_S = 2  # for open pages, when the server ends
LOCAL = ("127.0.0.1", "localhost", "::1")
HEADER = "x-plaudit"  # of requests that change something; a foreign page cannot send it without being asked
MAX_BODY = 64 << 10  # bytes
MAX_PATH = 4000  # characters; Python reads no number of more digits
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self'; "
    "connect-src 'self'; frame-src 'self'; frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Access:
    """Who may use a server."""

    hosts: frozenset[str]  # names and addresses without a port, as the Host header has them
    token: str = ""  # "": none is needed
    # Whether programs use it, and no pages: requests need no header of ours, and the token may be a bearer token.
    programs: bool = False
    max_body: int = MAX_BODY  # bytes


class Guard:
    """Refuses foreign hosts, foreign pages and missing tokens; adds the headers that protect pages."""

    def __init__(self, app: ASGIApp, access: Access):
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[-1]
        refused = self._refusal(scope, headers, given)
        if refused is None and self._access.token and given and scope["type"] == "http" and not self._access.programs:
            refused = self._logged_in(headers, given)
        if refused is not None and scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: answered with 403
        elif refused is not None:
            await refused(scope, receive, _with_headers(send))
        else:
            await self._app(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope, headers: Headers, given: str) -> Response | None:
        access, host = self._access, headers.get("host", "")
        if len(scope["path"]) > MAX_PATH:
            return error(414, "the address is too long")
        if _name(host) not in access.hosts:
            return error(421, f"this server is not {host[:100]!r}; open the address that the command printed")
        changes = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD")
        if changes and (refused := self._foreign(scope, headers, host)):
            return refused
        bearer = headers.get("authorization", "").removeprefix("Bearer ") if access.programs else ""
        given = bearer or _cookies(headers).get(_cookie(host)) or given
        if access.token and not hmac.compare_digest(given.encode(), access.token.encode()):
            return error(401, "the token is missing or wrong; open the address that the command printed")
        return None

    def _foreign(self, scope: Scope, headers: Headers, host: str) -> Response | None:
        """Refuse what a page of another server sends. A program that is no browser sends no Origin."""
        origin = headers.get("origin")
        foreign = origin is not None and urlsplit(origin).netloc.lower() != host.lower()
        marked = scope["type"] == "websocket" or headers.get(HEADER) == "1" or self._access.programs
        if foreign or not marked:
            return error(403, "only pages of this server can make changes")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._access.max_body:
            return error(413, "the request is too large")
        return None

    def _logged_in(self, headers: Headers, token: str) -> Response:
        """Keep the token in a cookie, and out of the address."""
        response = RedirectResponse("/", 303)
        response.set_cookie(_cookie(headers.get("host", "")), token, httponly=True, samesite="strict")
        return response


def error(status: int, message: str) -> Response:
    """An answer that a page shows as a message."""
    return JSONResponse({"error": message}, status)


def _name(host: str) -> str:
    """A host without its port, in small letters."""
    name, colon, port = host.lower().rpartition(":")
    return (name if colon and port.isdigit() else host.lower()).strip("[]")


def _cookie(host: str) -> str:
    """The name of the cookie with the token. Servers on other ports of a machine share its cookies."""
    port = host.rpartition(":")[2]
    return f"plaudit_{port if port.isdigit() else 80}"


def _cookies(headers: Headers) -> Mapping[str, str]:
    try:
        return {name: one.value for name, one in SimpleCookie(headers.get("cookie", "")).items()}
    except CookieError:
        return {}


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers: Any = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


def make_server(app: Any, **options: Any) -> uvicorn.Server:
    """A server of an application. options: more of `uvicorn.Config`, or in place of these"""
    own = {
        "http": Connection,
        "ws": "websockets-sansio",
        "ws_max_size": MAX_FRAME,
        "limit_concurrency": MOST,
        "log_level": "warning",
        "lifespan": "on",
        "timeout_graceful_shutdown": GRACE_S,
        "server_header": False,
    }
    return uvicorn.Server(uvicorn.Config(app, **(own | options)))


class Connection(H11Protocol):
    """A connection that is closed if it sends no request in time."""

    _last: Any = None  # request that the last look has seen

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(SILENT_S, self._look)

    def _look(self) -> None:
        if self.transport.is_closing() or self.transport.get_protocol() is not self:  # it is a websocket now
            return
        answered = self.cycle is None or self.cycle.response_complete
        if answered and self.cycle is self._last:
            self.transport.close()
            return
        self._last = self.cycle
        self.loop.call_later(SILENT_S, self._look)
