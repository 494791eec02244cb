"""What Plaudit uses of Ray beyond its documented interface: here, and nowhere else in the package.

Written against Ray 2.60. Each part says why it is there and what happens where another release lacks it, so that a
change of Ray is found and mended in one file. The one other exception are the health-check settings (`SYSTEM_CONFIG` in
launch.py), which Ray documents as internal and whose effect docs/cluster.md has measured.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

START_HOOK = "plaudit.cluster.ray_private.on_start"  # `ray start` calls it by the name in RAY_START_HOOK

# `ray start` by the interpreter at hand: the `ray` script beside it names one of its own, which may have moved.
RAY_MAIN = "import sys; from ray.scripts.scripts import main; sys.exit(main())"

SLOWER = 10  # times: 30 s are five minutes


# 127.0.0.1 means 127.0.0.1. Ray replaces a loopback address by the machine's outward one, in `ray.init` and in `ray
# start`, and a node with an outward address listens on all of them. Whoever says 127.0.0.1 wants a cluster that nobody
# else can reach. Without this the ports are open wider, and nothing else changes.


def keep_loopback() -> None:
    """From now on in this process."""
    _module("services").resolve_ip_for_localhost = lambda host: host


def on_start(ray_params: Any, head: bool) -> None:
    """What `ray start` is about to start, before it does."""
    keep_loopback()
    _module("node").time = SlowClock()
    ray_params.ray_client_server_port = None  # a server for drivers outside of the cluster; there is no flag against it
    if ray_params.node_name in ("127.0.0.1", "::1"):  # --node-ip-address has been replaced already
        ray_params.node_ip_address = ray_params.node_name


def node_options(address: str, folder: Path) -> dict[str, Any]:
    """Arguments of `ray.init` for a driver: the address of its own node, and the folder that Ray's sockets are in."""
    return {"_node_ip_address": address, "_temp_dir": str(folder.absolute())}


# Ray gives its own processes 30 s to register, a constant that no setting reaches; beside other work on two cores that
# is too short. So the clock by which it counts is slowed while a node starts: by `patient` around `ray.init`, by
# `on_start` in `ray start`, which `plaudit cluster start` ends when it has waited long enough. Without it a start on a
# busy machine fails sooner.


class SlowClock:
    """The module `time`, whose monotonic clock goes slowly."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return time.monotonic() / SLOWER


@contextmanager
def patient() -> Iterator[None]:
    """While a node starts in this process."""
    node = _module("node")
    node.time = SlowClock()
    try:
        yield
    finally:
        node.time = time


def keep_quiet() -> None:
    """Ray writes the last words of every process that died to the driver's output, whatever it was told about logs.
    There they would tear our screen, and the loop reports lost workers itself. Without it they do."""
    _module("worker").print_to_stdstream = lambda *_, **__: None


def read_token_again() -> None:
    """Ray keeps what the environment said of its token when it was imported. Without it a process that had imported Ray
    before joins with the old one, and is refused."""
    raylet: Any = import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


@dataclass(frozen=True)
class Actor:
    """A process that serves calls."""

    kind: str  # its class
    name: str  # "" without one
    node_id: str
    pid: int
    state: str  # "ALIVE", "RESTARTING", ...
    restarts: int


def actors() -> list[Actor]:
    """All that are not dead, of any driver. Ray's public listing needs its dashboard, which we do not run."""
    found = [
        Actor(
            kind=facts["ActorClassName"],
            name=facts["Name"],
            node_id=facts["Address"]["NodeID"],
            pid=facts["Pid"],
            state=facts["State"],
            restarts=facts["NumRestarts"],
        )
        for facts in _module("state").actors().values()
        if facts["State"] != "DEAD"
    ]
    return sorted(found, key=lambda actor: (actor.node_id, actor.kind, actor.pid))


def _module(name: str) -> Any:
    """Untyped, because what is used of it is nobody's interface."""
    return import_module(f"ray._private.{name}")
