"""A page for the person who drives a robot: the newest frame of each camera, and what the operator can do now.

    with LiveView(engine) as view:
        print(view.address)
        view.show(words="running", keys=[("s", "success")])

The page is served by a process of its own. It reads the frames from the memory that the episode is recorded in, like
the inference process does, so control waits for nothing. While the operator waits it shows what the cameras see
(`InferenceEngine.look`), and until then the last frames of the episode.
"""

import os
import socket
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Self

from PIL import Image

from plaudit import processes
from plaudit.errors import DataError, MissingExtra, import_extra
from plaudit.rollout.recording import EpisodeBuffer
from plaudit.types import EnvSpec
from plaudit.web.guard import LOCAL, Access, Guard, error
from plaudit.web.pages import encode_image, listen, page_routes

try:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
except ModuleNotFoundError as problem:
    raise MissingExtra("starlette", "web") from problem

if TYPE_CHECKING:
    from plaudit.protocols import InferenceEngine

HOST, PORT = "127.0.0.1", 8421  # any free port where this one is in use
POLL_S = 0.05  # between looks for a new episode or a new phase
GRACE_S = 1.0  # for open pages, at the end


class LiveView:
    """Serves the page while an engine records episodes."""

    def __init__(self, engine: "InferenceEngine"):
        import_extra("uvicorn", "web")
        engine.preview = EpisodeBuffer.allocate(engine.env_spec, 0)
        self._engine, self._state, self._done = engine, dict[str, Any](), threading.Event()
        try:
            listening = listen(HOST, PORT)
        except DataError:
            listening = listen(HOST, 0)
        with listening:
            self.port: int = listening.getsockname()[1]
            descriptor = listening.fileno()
            self._server = processes.ChildProcess(
                "live view", "plaudit.web.live:main", descriptor, engine.env_spec, descriptors=(descriptor,)
            )
        self._thread = threading.Thread(target=self._follow, name="live view", daemon=True)

    @property
    def address(self) -> str:
        """Of the page, on this machine."""
        return f"http://localhost:{self.port}/"

    def show(self, **state: Any) -> None:
        """Replace what the page shows next to the frames; see live.js."""
        self._state = state

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._server.end()
        self._thread.join()
        self._engine.preview = None

    def _follow(self) -> None:
        """Pass on each episode's memory and each state."""
        buffer, preview = None, self._engine.preview
        state, ended = dict[str, Any](), 0.0
        assert preview is not None
        while not self._done.wait(POLL_S):
            shown = self._engine.recording
            if shown is not None:
                ended = time.monotonic()
            elif preview.num_observations and preview.observed_at[0] > ended:
                shown = preview
            if shown is not None and shown is not buffer:
                buffer = shown
                self._server.send(shown.max_steps, shown.block.descriptor)
            if self._state is not state:
                state = self._state
                self._server.send(state)


def main(parent: Connection, descriptor: int, env_spec: EnvSpec) -> None:
    """The process of the page. descriptor: of the socket that listens"""
    from plaudit.web.guard import make_server

    processes.exit_with_parent(parent, processes.GRACE_S)
    os.nice(5)  # behind control and inference
    screen = Screen(env_spec)
    server = make_server(make_live_app(screen), ws="none", lifespan="off", timeout_graceful_shutdown=round(GRACE_S))
    listening = [socket.socket(fileno=descriptor)]
    thread = threading.Thread(target=server.run, kwargs={"sockets": listening}, name="server")  # leaves Ctrl-C alone
    thread.start()
    with suppress(processes.ParentGone):
        while True:
            state = processes.receive(parent)
            if isinstance(state, int):  # steps that the memory has room for
                screen.watch(EpisodeBuffer.attach(processes.receive_block(parent), env_spec, state))
            else:
                screen.state = state
    server.should_exit = True
    thread.join()


class Screen:
    """What the page shows."""

    def __init__(self, env_spec: EnvSpec):
        self.state: dict[str, Any] = {}
        self._env_spec, self._episodes = env_spec, 0
        self._buffer: EpisodeBuffer | None = None
        self._is_preview = False

    def watch(self, buffer: EpisodeBuffer) -> None:
        """Show the frames of another episode, from its first one on; or the row of `InferenceEngine.preview`."""
        self._buffer, self._is_preview = buffer, not buffer.max_steps
        self._episodes += not self._is_preview

    def describe(self) -> dict[str, Any]:
        """Everything but the frames.

        step: of the newest frames; None before the first
        age_s: of the frames between two episodes; None during one
        """
        buffer = self._buffer
        step = None if buffer is None or not buffer.num_observations else buffer.num_observations - 1
        age_s = None
        if buffer is not None and self._is_preview:
            age_s = round(time.monotonic() - buffer.observed_at[0], 1)
        robot, cameras = self._env_spec.name, sorted(self._env_spec.cameras)
        frames = {"episode": self._episodes, "step": step, "age_s": age_s}
        return {**self.state, "robot": robot, "cameras": cameras, **frames}

    def frame(self, camera: str) -> tuple[bytes, str] | None:
        """The newest frame as an image, and its media type; None where there is none."""
        buffer = self._buffer
        if buffer is None or camera not in buffer.frames or not buffer.num_observations:
            return None
        return encode_image(Image.fromarray(buffer.frames[camera][buffer.num_observations - 1]))


def make_live_app(screen: Screen) -> Starlette:
    """The application, for pages of this machine."""

    def frame(request: Request) -> Response:
        image = screen.frame(request.path_params["camera"])
        return error(404, "no such frame") if image is None else Response(image[0], media_type=image[1])

    routes = [
        Route("/live", lambda _: JSONResponse(screen.describe())),
        Route("/frame/{camera:path}", frame),
        *page_routes("live.html"),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, access=Access(frozenset(LOCAL)))])
