"""The server of `plaudit serve`: its routes. guard.py decides who may use them.

Reports of runs and judges may be somebody else's, so they run no script at all.
"""

import asyncio
import gzip
import json
import math
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from plaudit.data.rewards import RewardConfig
from plaudit.errors import EpisodeNotFound, MissingExtra, PlauditError
from plaudit.files import Root, parse_json
from plaudit.training.live import ask
from plaudit.web.episodes import FrameReader, StoreIndex, as_json, as_typed, describe_episode, parse_number
from plaudit.web.guard import MAX_BODY, Access, Guard, error
from plaudit.web.judges import WhatIf, describe_judge
from plaudit.web.labeling import LabelSessions, actions
from plaudit.web.library import Item, Library, NotServed
from plaudit.web.pages import page_routes
from plaudit.web.runs import (
    RunReader,
    compare_runs,
    describe_run,
    describe_training,
    read_report,
    recent_episodes,
    reward_config,
)
from plaudit.web.tasks import Tasks

try:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocket, WebSocketDisconnect
except ModuleNotFoundError as problem:
    raise MissingExtra("starlette", "web") from problem

REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:"
FRAME_CACHE = {"Cache-Control": "private, max-age=86400"}  # a frame of a store never changes
COMPRESS = 1500  # bytes from which JSON is compressed
MAX_SHARE = 0.005  # of the time, spent on the pages that follow a run: the run may need the core
LIVE_S = 1.0  # between two looks at a run that pages follow, at least; MAX_LIVE_S at most
MAX_LIVE_S = 15.0
MAX_LOOKS = 1000  # that are kept
MAX_FOLLOWING = 100  # pages that follow runs at once
BODY_S = 20.0  # that a request may take to arrive
POLICY_VIOLATION, TRY_LATER = 1008, 1013  # codes of a websocket that the server closes
MAX_COMPARED = 12  # runs
MAX_WARM = 50_000  # episodes whose labels are read when the server starts
MAX_VIDEO = 64 << 20  # bytes; ours have about one megabyte


def make_app(roots: list[Path], access: Access, command: str = "") -> Starlette:
    """The application over the stores, runs and judges in some folders.

    command: "module:function" that runs a command line in a child process; "": pages start none
    """
    server = _Server(Library(roots), command)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        warming = asyncio.create_task(run_in_threadpool(server.warm))
        yield
        warming.cancel()
        server.close()

    def get(path: str, answer: Callable[..., Any]) -> Route:
        return Route(path, _endpoint(answer))

    def post(path: str, answer: Callable[..., Any]) -> Route:
        return Route(path, _endpoint(answer, reads_body=True), methods=["POST"])

    routes = [
        get("/frame/{number:int}/{frame:int}/{camera}/{name:path}", server.frame),  # first, as most requests are for it
        get("/clip/{number:int}/{camera}/{name:path}", server.clip),
        *page_routes("index.html"),
        get("/api/library", server.library_),
        get("/api/keys", lambda _: actions()),
        get("/api/episodes/{name:path}", server.episodes),
        get("/api/summary/{name:path}", lambda request: as_json(server.index(request.path_params["name"]).summary())),
        get("/api/episode/{number:int}/{name:path}", server.episode),
        get("/api/recent/{name:path}", server.recent),
        get("/api/run/{name:path}", server.run),
        get("/api/compare", server.compare),
        get("/api/training/{name:path}", server.training),
        get("/api/judge/{name:path}", server.judge),
        get("/api/what_if/{name:path}", server.what_if),
        get("/api/tasks", lambda _: server.tasks.list()),
        post("/api/tasks", lambda _, body: server.tasks.start(body)),
        post("/api/tasks/stop", lambda _, body: server.tasks.stop(body.get("number"))),
        post("/api/label/{name:path}", server.label),
        post("/api/operate/{name:path}", server.operate),
        WebSocketRoute("/live/{name:path}", server.live),
        get("/report/{kind}/{name:path}", server.report),
        get("/video/{which}/{name:path}", server.video),
    ]
    return Starlette(routes=routes, lifespan=lifespan, middleware=[Middleware(Guard, access=access)])


def _endpoint(answer: Callable[..., Any], *, reads_body: bool = False) -> Callable[[Request], Awaitable[Response]]:
    """A route that answers in a thread, since stores and images are read from the disk. Errors become messages."""

    async def endpoint(request: Request) -> Response:
        try:
            body = (await _json_body(request),) if reads_body else ()
            answered = await run_in_threadpool(answer, request, *body)
        except (NotServed, EpisodeNotFound, FileNotFoundError) as problem:
            return error(404, as_typed(problem))
        except (PlauditError, ValueError) as problem:
            return error(400, as_typed(problem))
        except OSError as problem:
            return error(503, f"a file could not be read: {problem.strerror or type(problem).__name__}")
        return answered if isinstance(answered, Response) else _json(answered, request)

    return endpoint


def _json(answered: Any, request: Request) -> Response:
    data, headers = _dumps(answered).encode(), {}
    if len(data) > COMPRESS and "gzip" in request.headers.get("accept-encoding", ""):
        data, headers = gzip.compress(data, 4), {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(data, media_type="application/json", headers=headers)


def _dumps(value: Any) -> str:
    """JSON. It has no NaN and no infinity, which files from others may have: they become null."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_without_nan(value))


def _without_nan(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {str(name): _without_nan(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_without_nan(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


async def _json_body(request: Request) -> dict[str, Any]:
    data = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                data += part
                if len(data) > MAX_BODY:
                    raise ValueError("the request is too large")
    except TimeoutError:
        raise ValueError(f"the request did not arrive in {BODY_S:g} s") from None
    body = parse_json(data or b"{}")
    if not isinstance(body, dict):
        raise ValueError("the request must be a JSON object")
    return body


def _result(described: dict[str, Any]) -> dict[str, Any]:
    """The first line of a verdict, and its color."""
    return {"verdict": described["verdict"]["result"], "tone": described["verdict"]["tone"]}


async def _ended(socket: WebSocket, seconds: float) -> bool:
    """Whether a page is closed within this time. Pages send nothing; what sends a message is no page."""
    try:
        message = await asyncio.wait_for(socket.receive(), seconds)
    except TimeoutError:
        return False
    if message["type"] != "websocket.disconnect":
        await socket.close(POLICY_VIOLATION)
    return True


@dataclass
class _Look:
    """A run that pages follow, as it was at the newest look."""

    shown: Any = None
    until: float = 0.0  # time of the next look
    guard: threading.Lock = field(default_factory=threading.Lock)


class _Server:
    """What the routes answer."""

    def __init__(self, library: Library, command: str):
        self._library, self._frames, self._sessions = library, FrameReader(), LabelSessions()
        self._indexes: dict[str, StoreIndex] = {}
        self._runs, self._what_if = RunReader(), WhatIf()
        self._looks: dict[tuple[str, str], _Look] = {}
        self._guard, self._following, self._closed = threading.Lock(), 0, False
        self.tasks = Tasks(library, command)

    def warm(self) -> None:
        """Open the stores in advance and read their labels: 10,000 episodes take a second."""
        stores, rows = [name for kind, name in self._library.items() if kind == "store"], 0
        for name in stores:
            with suppress(PlauditError):
                self._library.store(name)
        for name in stores:
            with suppress(PlauditError):
                for _ in self.index(name).prepare():
                    rows += 1
                    if self._closed or rows >= MAX_WARM:
                        return

    def close(self) -> None:
        self._closed = True
        self._sessions.close()
        self.tasks.close()
        self._library.close()

    # Episodes

    def library_(self, _: Request) -> list[dict[str, Any]]:
        """Name and kind of each item, and how many episodes a store has."""
        items = sorted(self._library.items().values(), key=lambda item: (item.kind, item.name))
        return [{"kind": item.kind, "name": item.name, **self._facts(item)} for item in items]

    def _facts(self, item: Item) -> dict[str, Any]:
        try:
            if item.kind == "store":
                store = self._library.store(item.name)
                return {"episodes": len(store), "labeled": sum(store.ledger.newest(i) is not None for i in store.ids)}
            if item.kind == "run":
                run = describe_run(self._runs.load(item.path))
                return {**_result(run), "live": run["live"] is not None, "step": run["step"]}
            if item.kind == "judge":
                return _result(describe_judge(item.path))
        except PlauditError as problem:
            return {"error": as_typed(problem)}
        return {}

    def episodes(self, request: Request) -> dict[str, Any]:
        name = request.path_params["name"]
        return {**self.index(name).page(request.query_params), "discarded": self._discarded(name)}

    def index(self, name: str) -> StoreIndex:
        store = self._library.store(name)
        index = self._indexes.get(name)
        if index is None or index.store is not store:
            index = self._indexes[name] = StoreIndex(store)
        return index

    def _discarded(self, name: str) -> dict[str, Any] | None:
        """The other of two stores: discarded episodes and the others are apart."""
        other = name.removesuffix("_discarded") if name.endswith("_discarded") else f"{name}_discarded"
        if ("store", other) not in self._library.items(fresh=False):
            return None
        return {"name": other, "discarded": other.endswith("_discarded")}

    def episode(self, request: Request) -> dict[str, Any]:
        name = request.path_params["name"]
        run = self._library.items(fresh=False).get(("run", name.rpartition("/")[0]))  # whose episodes these are
        rewards = RewardConfig() if run is None else reward_config(self._runs.load(run.path))
        return describe_episode(self._library.store(name), request.path_params["number"], rewards)

    def frame(self, request: Request) -> Response:
        at, width = request.path_params, request.query_params.get("w")
        store = self._library.store(at["name"], fresh=False)
        size = None if width is None else max(16, min(parse_number(width), 1024))
        data, kind = self._frames.image(store, at["number"], at["camera"], at["frame"], size)
        return Response(data, media_type=kind, headers=FRAME_CACHE)

    def clip(self, request: Request) -> Response:
        at = request.path_params
        data = self._frames.clip(self._library.store(at["name"], fresh=False), at["number"], at["camera"])
        return Response(data, media_type="image/jpeg", headers=FRAME_CACHE)

    # Labels

    def label(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        return self._sessions.act(self._library.store(request.path_params["name"], fresh=False), body)

    # Runs

    def run(self, request: Request) -> dict[str, Any]:
        return self._run(request.path_params["name"])

    def _run(self, name: str) -> dict[str, Any]:
        described = describe_run(self._runs.load(self._library.item("run", name).path))
        has_store = ("store", f"{name}/episodes") in self._library.items(fresh=False)
        return {**described, "episodes": f"{name}/episodes" if has_store else None}

    def _run_text(self, name: str) -> str:
        try:
            return _dumps(self._run(name))
        except PlauditError as problem:
            return _dumps({"error": str(problem)})

    def recent(self, request: Request) -> dict[str, Any]:
        return self._look("recent", request.path_params["name"], self._recent).shown

    def _recent(self, name: str) -> dict[str, Any]:
        run = self._runs.load(self._library.item("run", name).path)
        index = self.index(f"{name}/episodes")
        recent = recent_episodes(index.store, run)
        shown = {i: index.row(i) for group in ("latest", "disputed") for i in recent[group]}
        rewarded = {one["id"]: index.row(one["id"]) for one in recent["rewards"]}
        return {**recent, "rows": list({**shown, **rewarded}.values()), "store": index.store.settings.id}

    def compare(self, request: Request) -> list[dict[str, Any]]:
        names = request.query_params.getlist("run")[:MAX_COMPARED]
        return compare_runs([(name, self._runs.load(self._library.item("run", name).path)) for name in names])

    def operate(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        """Send an operator's command to the loop of a run."""
        run = self._library.item("run", request.path_params["name"])
        live = ask(run.path, str(body.get("command") or "no command"))
        if live is None:
            raise PlauditError("this run is not active on this machine; nothing was sent")
        return live

    async def live(self, socket: WebSocket) -> None:
        """Send a run each time that it has changed."""
        await socket.accept()
        if self._following >= MAX_FOLLOWING:
            await socket.close(TRY_LATER)
            return
        self._following += 1
        sent = ""
        try:
            while True:
                look = await run_in_threadpool(self._look, "live", socket.path_params["name"], self._run_text)
                if look.shown != sent:
                    await socket.send_text(look.shown)
                    sent = look.shown
                if await _ended(socket, look.until - time.monotonic()):
                    return
        except WebSocketDisconnect:
            return
        finally:
            self._following -= 1

    def _look(self, what: str, name: str, describe: Callable[[str], Any]) -> "_Look":
        """A run as pages that follow it show it. They share one look, and looks take a small share of the time."""
        with self._guard:
            if len(self._looks) > MAX_LOOKS:
                self._looks.clear()
            look = self._looks.setdefault((what, name), _Look())
        with look.guard:
            if time.monotonic() >= look.until:
                began = time.thread_time()
                look.shown = describe(name)
                pause_s = (time.thread_time() - began) / MAX_SHARE
                look.until = time.monotonic() + min(MAX_LIVE_S, max(LIVE_S, pause_s))
            return look

    def report(self, request: Request) -> Response:
        kind, name = request.path_params["kind"], request.path_params["name"]
        if kind not in ("run", "judge", "report"):
            raise NotServed(f"a {kind[:20]!r} has no report")
        item = self._library.item(kind, name)
        saves = "save" in request.query_params
        page = self._new_report(item) if saves and kind == "run" else read_report(item.path)
        headers = {"Content-Security-Policy": REPORT_POLICY}
        if saves:
            file = re.sub(r"[^A-Za-z0-9_-]+", "_", name)
            headers["Content-Disposition"] = f'attachment; filename="{file}.html"'
        return Response(page, media_type="text/html", headers=headers)

    def _new_report(self, item: Item) -> bytes:
        """A run as one file, as it is now; its folder is not changed."""
        from plaudit.report.run import write_run_report

        with TemporaryDirectory() as scratch:
            return write_run_report(item.path, Path(scratch) / "report.html").read_bytes()

    def video(self, request: Request) -> Response:
        which = request.path_params["which"]
        item = self._library.item("run", request.path_params["name"])
        if which not in ("first", "last"):
            raise NotServed("the videos of a run are 'first' and 'last'")
        try:
            video = Root(item.path).read(item.path / "videos" / f"{which}.mp4", MAX_VIDEO)
        except FileNotFoundError:
            raise NotServed(f"this run has no {which} video") from None
        return Response(video, media_type="video/mp4")

    # Judges

    def training(self, request: Request) -> dict[str, Any]:
        return describe_training(self._library.item("training", request.path_params["name"]).path)

    def judge(self, request: Request) -> dict[str, Any]:
        return describe_judge(self._library.item("judge", request.path_params["name"]).path)

    def what_if(self, request: Request) -> dict[str, Any]:
        name, source = request.path_params["name"], request.query_params.get("source", "classifier")
        index = self.index(name)
        answer = self._what_if.describe(index.store, source)
        return {**answer, "cameras": {one["id"]: index.row(one["id"])["camera"] for one in answer["worst"]}}
