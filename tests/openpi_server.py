"""A policy server that speaks openpi's protocol (`openpi/serving/websocket_policy_server.py`), with a toy inside.

Actions are [H, A] with action[h, a] = sum of the state + h. The prompt tells it what else to do: "fail", "sleep",
"hang up" (once). Run as a program, it serves on the port it is given: `python openpi_server.py 8000`.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from plaudit.policies import openpi

METADATA = {"model": "toy", "reset_pose": [0.0, 1.0]}
Pack = Callable[[Any], bytes]
Unpack = Callable[[bytes], Any]


class ToyServer:
    def __init__(
        self, pack: Pack = openpi.pack, unpack: Unpack = openpi.unpack, port: int = 0, api_key: str | None = None
    ):
        self._pack, self._unpack, self._api_key = pack, unpack, api_key
        self.seen: list[dict[str, Any]] = []  # observations, in order
        self.connections = 0
        self._server: Server = serve(
            self._handle, "localhost", port, compression=None, max_size=None, process_request=self._admit
        )
        self.port = self._server.socket.getsockname()[1]

    def serve_forever(self) -> None:
        self._server.serve_forever()

    def stop(self) -> None:
        self._server.shutdown()

    def _admit(self, connection: ServerConnection, request: Any) -> Any:
        if self._api_key is not None and request.headers.get("Authorization") != f"Api-Key {self._api_key}":
            return connection.respond(HTTPStatus.UNAUTHORIZED, "who are you?\n")
        return None

    def _handle(self, connection: ServerConnection) -> None:
        self.connections += 1
        connection.send(self._pack(METADATA))
        while True:
            try:
                answer = self._infer(self._unpack(connection.recv()), connection)
                connection.send(self._pack({**answer, "server_timing": {"infer_ms": 1.0}}))
            except ConnectionClosed:
                return
            except ValueError:
                connection.send(traceback.format_exc())
                connection.close(1011, "Internal server error. Traceback included in previous frame.")
                return

    def _infer(self, observation: dict[str, Any], connection: ServerConnection) -> dict[str, Any]:
        self.seen.append(observation)
        prompt = observation.get("prompt", "")
        if prompt == "fail":
            raise ValueError("the gripper has no opinion")
        if prompt == "sleep" and len(self.seen) == 1:
            time.sleep(1.0)
        if prompt == "hang up" and self.connections == 1:
            connection.close()
        rows = np.float32(observation["observation/state"].sum()) + np.arange(4, dtype=np.float64)
        return {"actions": np.repeat(rows[:, None], 3, axis=1)}


@contextmanager
def toy_server(**options: Any) -> Iterator[ToyServer]:
    server = ToyServer(**options)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


if __name__ == "__main__":
    ToyServer(port=int(sys.argv[1])).serve_forever()
