"""A judge whose progress is the brightness of a frame, served in a thread; and a server that misbehaves."""

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager

import numpy as np
import uvicorn

from plaudit.judges.config import JudgeConfig
from plaudit.rule import DecisionRule
from plaudit.types import Episode, JudgeId, Scores
from plaudit.web.guard import LOCAL, Access
from plaudit.web.judge_server import make_judge_app
from plaudit.web.pages import listen


class BrightnessConfig(JudgeConfig):
    def build(self):
        return Brightness()


class Brightness:
    """P(success) is the square of the progress."""

    rule = DecisionRule(threshold=0.5, decode="per_frame")
    id = JudgeId("brightness", "1", rule.key())
    block: threading.Event | None = None

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores]:
        if self.block is not None:
            self.block.wait()
        values = [np.mean([f.mean((1, 2, 3)) / 255 for f in e.frames.values()], axis=0) for e in episodes]
        return [Scores((value**2).astype(np.float32), value.astype(np.float32)) for value in values]


def ramp(values: Sequence[float], size: int = 8) -> np.ndarray:
    """uint8 [T, size, size, 3] frames of these brightnesses."""
    return np.stack([np.full((size, size, 3), round(255 * value), np.uint8) for value in values])


def app(judge=None, token: str = "", **options):
    access = Access(frozenset({*LOCAL, "testserver"}), token, programs=True, max_body=1 << 20)
    return make_judge_app(judge or Brightness(), BrightnessConfig(), access, "brightness", **options)


@contextmanager
def serving(judge=None, port: int = 0, **options):
    """The address of a running server."""
    listening = listen("127.0.0.1", port)
    server = uvicorn.Server(uvicorn.Config(app(judge, **options), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def answering(reply: bytes, drip_s: float = 0.0):
    """The address of a server that sends these bytes whatever it is asked; drip_s: pause after each byte."""
    listening = socket.create_server(("127.0.0.1", 0))
    ends = threading.Event()

    def run():
        listening.settimeout(0.05)
        while not ends.is_set():
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(5)
                data, length = b"", None
                while length is None or len(data) < length:
                    part = connection.recv(1 << 16)
                    if not part:
                        break
                    data += part
                    if length is None and b"\r\n\r\n" in data:
                        head = data.split(b"\r\n\r\n")[0]
                        sizes = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
                        length = len(head) + 4 + int(sizes[0].split(b":")[1])
                try:
                    if not drip_s:
                        connection.sendall(reply)
                    for byte in reply if drip_s else b"":
                        connection.sendall(bytes([byte]))
                        if ends.wait(drip_s):
                            break
                except OSError:
                    pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        ends.set()
        thread.join()
        listening.close()


def http(body: bytes, status: str = "200 OK", head: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body
