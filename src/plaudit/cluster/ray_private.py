"""All uses of Ray beyond its documented interface.

Written against Ray 2.60. Each says why it is needed and what happens where another release lacks it, so that a change
of Ray is fixed in one file. The only other ones are the health-check settings (`SYSTEM_CONFIG` in launch.py), which Ray
documents as internal; docs/cluster.md has their measured effect.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

START_HOOK = "plaudit.cluster.ray_private.on_start"  # `ray start` calls it by the name in RAY_START_HOOK

# `ray start` by this interpreter: the `ray` script beside it names an interpreter by its path, which may have moved.
RAY_MAIN = "import sys; from ray.scripts.scripts import main; sys.exit(main())"

SLOWDOWN = 10  # 30 s become five minutes


def keep_loopback() -> None:
    """Keep 127.0.0.1, in this process.

    Ray replaces a loopback address by one that other machines can reach, in `ray.init` and in `ray start`, and such a
    node listens on all addresses. A user of 127.0.0.1 wants a cluster that no other machine can reach. Without this
    more ports are open, and nothing else changes.
    """
    _module("services").resolve_ip_for_localhost = lambda host: host


def on_start(ray_params: Any, head: bool) -> None:
    """Ray calls this in `ray start`, before it starts anything."""
    keep_loopback()
    _module("node").time = SlowClock()
    ray_params.ray_client_server_port = None  # a server for drivers outside of the cluster; there is no flag against it
    if ray_params.node_name in ("127.0.0.1", "::1"):  # --node-ip-address has been replaced already
        ray_params.node_ip_address = ray_params.node_name


def node_options(address: str, folder: Path) -> dict[str, Any]:
    """Arguments of `ray.init` for a driver: the address of its own node, and the folder that Ray's sockets are in."""
    return {"_node_ip_address": address, "_temp_dir": str(folder.absolute())}


class SlowClock:
    """The module `time` with a slow monotonic clock.

    Ray gives its own processes 30 s to register, a constant that no setting changes; on a busy machine that is too
    short. So Ray's clock is slowed while a node starts: by `patient` around `ray.init`, by `on_start` in `ray start`,
    which `plaudit cluster start` ends after a timeout of its own. Without it a start on a busy machine fails sooner.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        """Seconds, ten times too slow."""
        return time.monotonic() / SLOWDOWN


@contextmanager
def patient() -> Iterator[None]:
    """Slow Ray's clock in this block."""
    node = _module("node")
    node.time = SlowClock()
    try:
        yield
    finally:
        node.time = time


def keep_quiet() -> None:
    """Stop Ray from printing the last output of every process that died, which it does whatever its log settings are.
    It would break our screen, and the loop reports lost workers itself."""
    _module("worker").print_to_stdstream = lambda *_, **__: None


def read_token_again() -> None:
    """Read the token's variables again. Ray reads them when it is imported; without this, a process that imported Ray
    before joins with the old token and is refused."""
    raylet: Any = import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


@dataclass(frozen=True)
class Actor:
    """An actor of the cluster."""

    kind: str  # its class
    name: str  # "" without one
    node_id: str
    pid: int
    state: str  # "ALIVE", "RESTARTING", ...
    restarts: int


def actors() -> list[Actor]:
    """All that are not dead, of any driver. Ray's public listing needs its dashboard, which we do not run."""
    alive = [
        Actor(
            kind=entry["ActorClassName"],
            name=entry["Name"],
            node_id=entry["Address"]["NodeID"],
            pid=entry["Pid"],
            state=entry["State"],
            restarts=entry["NumRestarts"],
        )
        for entry in _module("state").actors().values()
        if entry["State"] != "DEAD"
    ]
    return sorted(alive, key=lambda actor: (actor.node_id, actor.kind, actor.pid))


def _module(name: str) -> Any:
    """Untyped, because it has no public interface."""
    return import_module(f"ray._private.{name}")
