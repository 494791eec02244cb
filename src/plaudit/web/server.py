"""The server of `plaudit serve`: routes, and who may use them.

It listens on this machine alone unless the user names another address, which requires a token. A request must name a
host that the server knows, so that a foreign page cannot reach it under a name of its own (DNS rebinding). A request
that changes something must come from a page of this server. Pages run no script but the server's files, and reports
of runs, which may be somebody else's, run none at all.
"""

import hmac
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plaudit.errors import EpisodeNotFound, MissingExtra, PlauditError
from plaudit.files import parse_json
from plaudit.palette import DARK, LIGHT, variables
from plaudit.web.episodes import FrameReader, StoreIndex, describe_episode
from plaudit.web.labeling import LabelSessions, actions
from plaudit.web.library import Library, NotServed
from plaudit.web.runs import describe_judge, describe_run, report_page

try:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.requests import Request
    from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
except ModuleNotFoundError as error:
    raise MissingExtra("starlette", "web") from error

STATIC = Path(__file__).parent / "static"
COOKIE = "plaudit_token"
HEADER = "x-plaudit"  # of requests that change something; a foreign page cannot send it without being asked
MAX_BODY = 64 << 10  # bytes
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; frame-src 'self'"
NO_FRAMES = "; frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:"
PALETTE = f":root {{ {variables(LIGHT)} color-scheme: light }} :root.dark {{ {variables(DARK)} color-scheme: dark }}"
Next = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Access:
    """Who may use a server."""

    hosts: frozenset[str]  # names with a port, as the Host header has them
    token: str = ""  # "": none is needed


class Guard(BaseHTTPMiddleware):
    """Refuses foreign hosts, foreign pages and missing tokens; adds the headers that protect pages."""

    def __init__(self, app: Any, access: Access):
        super().__init__(app)
        self._access = access

    async def dispatch(self, request: Request, call_next: Next) -> Response:
        """Answer a request, or refuse it."""
        if refused := self._refusal(request):
            return refused
        given = request.query_params.get("token")
        if self._access.token and given is not None:
            return self._logged_in(request, given)
        response = await call_next(request)
        headers = {
            "Cross-Origin-Resource-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "X-Frame-Options": "SAMEORIGIN",
        }
        headers["Content-Security-Policy"] = POLICY + NO_FRAMES
        for name, value in headers.items():
            response.headers.setdefault(name, value)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    def _refusal(self, request: Request) -> Response | None:
        access, host = self._access, request.headers.get("host", "")
        if host.lower() not in access.hosts:
            return _error(421, f"this server is not {host[:100]!r}; open the address that plaudit serve has printed")
        if request.method not in ("GET", "HEAD"):
            origin = request.headers.get("origin")
            foreign = origin is not None and urlsplit(origin).netloc.lower() != host.lower()
            if foreign or request.headers.get(HEADER) != "1":
                return _error(403, "only pages of this server may change something")
            if int(request.headers.get("content-length", "0")) > MAX_BODY:
                return _error(413, "the request is too large")
        given = request.cookies.get(COOKIE) or request.query_params.get("token") or ""
        if access.token and not hmac.compare_digest(given.encode(), access.token.encode()):
            return _error(401, "the token is missing or wrong; open the address that plaudit serve has printed")
        return None

    def _logged_in(self, request: Request, token: str) -> Response:
        """Keep the token in a cookie, and out of the address."""
        response = RedirectResponse(request.url.path, 303)
        response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return response


class Answer(JSONResponse):
    """JSON for a page. It has no NaN and no infinity, which files from others may have: they become null."""

    def render(self, content: Any) -> bytes:
        """The bytes of an answer."""
        try:
            return super().render(content)
        except ValueError:
            return json.dumps(_without_nan(content)).encode()


def _without_nan(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {str(name): _without_nan(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_without_nan(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def _error(status: int, message: str) -> JSONResponse:
    return Answer({"error": message}, status)


def make_app(roots: list[Path], access: Access) -> Starlette:
    """The application over the stores, runs and judges in some folders."""
    server = _Server(Library(roots))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        server.close()

    routes = [
        Route("/", lambda _: FileResponse(STATIC / "index.html")),
        Route("/api/library", _endpoint(server.library_)),
        Route("/api/keys", _endpoint(lambda _: actions())),
        Route("/api/episodes/{name:path}", _endpoint(server.episodes)),
        Route("/api/episode/{number:int}/{name:path}", _endpoint(server.episode)),
        Route("/api/label/{name:path}", _endpoint(server.label, reads_body=True), methods=["POST"]),
        Route("/api/run/{name:path}", _endpoint(server.run)),
        Route("/api/judge/{name:path}", _endpoint(server.judge)),
        Route("/report/{kind}/{name:path}", _endpoint(server.report)),
        Route("/frame/{number:int}/{frame:int}/{camera}/{name:path}", _endpoint(server.frame)),
        Route("/static/palette.css", lambda _: Response(PALETTE, media_type="text/css")),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Starlette(routes=routes, lifespan=lifespan, middleware=[Middleware(Guard, access=access)])


def _endpoint(answer: Callable[..., Any], *, reads_body: bool = False) -> Callable[[Request], Awaitable[Response]]:
    """A route that answers in a thread, since stores and images are read from the disk. Errors become messages."""

    async def endpoint(request: Request) -> Response:
        try:
            body = await _json_body(request) if reads_body else None
            answered = await run_in_threadpool(answer, request, *(() if body is None else (body,)))
        except (NotServed, EpisodeNotFound, FileNotFoundError) as error:
            return _error(404, str(error))
        except (PlauditError, ValueError) as error:
            return _error(400, str(error))
        except OSError as error:
            return _error(503, f"a file could not be read: {error.strerror or type(error).__name__}")
        return answered if isinstance(answered, Response) else Answer(answered)

    return endpoint


async def _json_body(request: Request) -> dict[str, Any]:
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY:
            raise ValueError("the request is too large")
    body = parse_json(data or b"{}")
    if not isinstance(body, dict):
        raise ValueError("a request is a JSON object")
    return body


class _Server:
    """What the routes answer."""

    def __init__(self, library: Library):
        self._library, self._frames, self._sessions = library, FrameReader(), LabelSessions()
        self._indexes: dict[str, StoreIndex] = {}

    def close(self) -> None:
        self._sessions.close()
        self._library.close()

    def library_(self, _: Request) -> list[dict[str, Any]]:
        """Name and kind of each item, and how many episodes a store has."""
        items = sorted(self._library.items().values(), key=lambda item: (item.kind, item.name))
        return [{"kind": item.kind, "name": item.name, **self._size(item)} for item in items]

    def _size(self, item: Any) -> dict[str, Any]:
        if item.kind != "store":
            return {}
        try:
            store = self._library.store(item.name)
        except PlauditError as error:
            return {"error": str(error)}
        labeled = sum(store.ledger.newest(i) is not None for i in store.ids)
        return {"episodes": len(store), "labeled": labeled}

    def episodes(self, request: Request) -> dict[str, Any]:
        name = request.path_params["name"]
        store = self._library.store(name)
        index = self._indexes.get(name)
        if index is None or index.store is not store:
            index = self._indexes[name] = StoreIndex(store)
        return index.page(request.query_params)

    def episode(self, request: Request) -> dict[str, Any]:
        return describe_episode(self._library.store(request.path_params["name"]), request.path_params["number"])

    def frame(self, request: Request) -> Response:
        at, width = request.path_params, request.query_params.get("w")
        store = self._library.store(at["name"])
        size = None if width is None else max(16, min(int(width), 1024))
        data, kind = self._frames.image(store, at["number"], at["camera"], at["frame"], size)
        return Response(data, media_type=kind, headers={"Cache-Control": "private, max-age=86400"})

    def label(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        return self._sessions.act(self._library.item("store", request.path_params["name"]).path, body)

    def run(self, request: Request) -> dict[str, Any]:
        name = request.path_params["name"]
        item = self._library.item("run", name)
        has_store = ("store", f"{name}/episodes") in self._library.items()
        return {**describe_run(item.path), "episodes": f"{name}/episodes" if has_store else None}

    def judge(self, request: Request) -> dict[str, Any]:
        return describe_judge(self._library.item("judge", request.path_params["name"]).path)

    def report(self, request: Request) -> Response:
        kind = request.path_params["kind"]
        if kind not in ("run", "judge"):
            raise NotServed(f"a {kind[:20]!r} has no report")
        page = report_page(self._library.item(kind, request.path_params["name"]).path)
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY})
