"""Runs the servers of pages and of judges, with limits on connections.

uvicorn waits without a limit for the first request of a connection, and for the rest of one that has begun. A machine
that opens connections and sends nothing could use all of them up, without a token.
"""

import asyncio
from typing import Any

from plaudit.errors import MissingExtra

try:
    import uvicorn
    import websockets  # noqa: F401
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ModuleNotFoundError as problem:
    raise MissingExtra(problem.name or "uvicorn", "web") from problem

SILENT_S = 20.0  # that a connection may take to send a request
MOST = 500  # connections; more are answered with 503. A browser opens six
MAX_FRAME = 1 << 16  # bytes of a websocket's message; pages send none
GRACE_S = 2  # for open pages, when the server ends


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
